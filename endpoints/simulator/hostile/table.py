"""The page about all cases, in Markdown, made from the registry."""

from __future__ import annotations

import inspect

from endpoints.simulator.hostile.cases import CASES, GROUPS
from endpoints.simulator.hostile.expected import Case, Expected
from endpoints.simulator.hostile.sse import INPUT_TOKENS, OUTPUT_TOKENS, TEXT

_ABOUT = """\
# The hostile server

`endsweep simulate --hostile CASE` is a server with one bad habit: something that servers, gateways and proxies do to
clients. It writes raw bytes, with no HTTP library between a case and the wire. Point any client at it, ask for a
streamed reply, and compare what the client reports with the table.

```
endsweep simulate --hostile crlf --port 8000
curl -N http://127.0.0.1:8000/v1/chat/completions -d '{"model": "crlf", "stream": true}'
```

Every POST plays the case, whatever its route. A request whose `model` is the name of another case plays that one, so
`"model": "good"` gets an ordinary reply from any of them. `GET /v1/models` lists the case as the one model, and
`GET /health` is well, except where a case says "for every request".

The ordinary reply is {tokens} tokens, an event each, which make "{text}"; a role event before
them; a finish reason, a usage of {inputs} input and {tokens} output tokens, and `[DONE]` behind them. The report
column tells what differs from that reply, and for a failure all that is known of it.

- *fragments* are events that bring generated text (content, reasoning, tool calls);
- *tokens* are output tokens as the server states them; *unknown* when it does not. Fragments can then be counted, and
  the source of the count is `chunks`: never the length asked for;
- *first token* is the time from the request to the first fragment, in seconds; *first seen*, to the first text that a
  reader sees;
- *dropped* events are no JSON objects. They are counted, and harm no other event;
- *attempts* above 1: a request on a kept connection that died before any byte of a reply is sent once more.

This page is made by `python -m endpoints.simulator.hostile --table`; `tests/hostile` holds the client to every line of
it. There are {cases} cases.
"""


def table() -> str:
    """The whole page."""
    about = _ABOUT
    for name, value in (("text", TEXT), ("tokens", OUTPUT_TOKENS), ("inputs", INPUT_TOKENS), ("cases", len(CASES))):
        about = about.replace(f"{{{name}}}", str(value))
    parts = [about]
    for group in GROUPS:
        parts.append(f"\n## {group.KIND}\n\n{inspect.cleandoc(group.__doc__ or '')}\n")
        parts.append("\n| case | the server sends | outcome | report | why |\n|---|---|---|---|---|\n")
        parts += [_line(case) for case in group.CASES]
    return "".join(parts)


def _line(case: Case) -> str:
    e = case.expected
    cells = (f"`{case.name}`", case.what, f"`{e.outcome}`", _report(e), e.why)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def _report(e: Expected) -> str:
    """What is unlike the ordinary reply, or for a failure all that is known of it."""
    ok = e.outcome == "ok"
    said = [
        _if(e.status != 200, f"status {e.status or 'none'}"),
        _if(e.fragments is None, "fragments as many as were read"),
        _if(e.fragments is not None and e.fragments != (8 if ok else 0), f"{e.fragments} fragments"),
        _if(ok and e.output_tokens is None, "tokens unknown"),
        _if(e.output_tokens is not None and not (ok and e.output_tokens == 8), f"{e.output_tokens} tokens"),
        _if(e.streamed_tokens not in (None, e.output_tokens), f"{e.streamed_tokens} of them streamed"),
        _if(e.reasoning_tokens is not None, f"{e.reasoning_tokens} of them reasoning"),
        _if(e.cached_tokens is not None, f"{e.cached_tokens} input tokens cached"),
        _if(ok and e.input_tokens is None and e.output_tokens is not None, "input tokens unknown"),
        _if(ok and e.input_tokens is not None and e.output_tokens is None, f"{e.input_tokens} input tokens"),
        _if(bool(e.tokens_per_fragment), f"tokens of each: {', '.join(map(str, e.tokens_per_fragment or ()))}"),
        _if(e.ttft_at_least is not None, f"first token ≥ {e.ttft_at_least}"),
        _if(e.ttft_at_most is not None, f"first token < {e.ttft_at_most}"),
        _if(e.visible_at_least is not None, f"first seen ≥ {e.visible_at_least}"),
        _if(e.dropped_events > 0, f"{e.dropped_events} dropped"),
        _if(e.attempts > 1, f"at most {e.attempts} attempts"),
        _if(e.finish_reason != ("stop" if ok else None), f"finish reason {e.finish_reason or 'none'}"),
        _if(e.retry_after is not None, f"Retry-After {e.retry_after}"),
    ]
    return "; ".join(filter(None, said)) or ("as ordinary" if ok else "nothing more")


def _if(holds: bool, text: str) -> str:
    return text if holds else ""
