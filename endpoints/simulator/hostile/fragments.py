"""What an event holds: which of them bring generated text, under which names, and what beside it changes nothing.

The first-token clock stops at the first text of length > 0 in content, reasoning or a tool call; nothing else stops it.
"""

from __future__ import annotations

from typing import Any

from endpoints.simulator.hostile import sse
from endpoints.simulator.hostile.expected import Case, Expected, uncounted, whole
from endpoints.simulator.hostile.sse import (
    DONE,
    FINISH,
    PAUSE_S,
    ROLE,
    TAIL,
    TEXT,
    TOKENS,
    USAGE,
    WORDS,
    chat,
    choice,
    completion,
    event,
    frame,
    token,
)
from endpoints.simulator.hostile.wire import Play, stream

KIND = "fragments"
T = TOKENS
_LATE: dict[str, Any] = {"ttft_at_least": PAUSE_S}
_SEEN_LATE: dict[str, Any] = {"ttft_at_most": PAUSE_S, "visible_at_least": PAUSE_S}


def _case(name: str, what: str, expected: Expected, play: Play) -> Case:
    return Case(name, KIND, what, expected, play)


def _then_tokens(*first: bytes) -> Play:
    """These events at once, and the tokens after a pause."""
    return stream(*first, PAUSE_S, *T, *TAIL)


def _thinking(*delta_of: str) -> Play:
    """Four tokens under these names, a pause, and four tokens of content."""
    thoughts = [chat(dict.fromkeys(delta_of, word)) for word in WORDS[:4]]
    return stream(ROLE, *thoughts, PAUSE_S, *T[4:], *TAIL)


def _deltas(*deltas: object) -> Play:
    """Each as an event, then the rest of the eight tokens as content."""
    return stream(*sse.reply([*map(chat, deltas), *T[len(deltas) :]]))


def _among(*extra: bytes) -> Play:
    """The ordinary reply with these events around its second token."""
    return stream(*extra, ROLE, T[0], *extra, *T[1:], *extra, *TAIL)


def _beside(**more: Any) -> Play:
    """The ordinary reply with these fields in every event."""
    return stream(ROLE, *(token(word, **more) for word in WORDS), *TAIL)


def _choices(**more: Any) -> Play:
    """The ordinary reply with these fields in every choice."""
    return stream(ROLE, *(event(frame([choice({"content": w}) | more])) for w in WORDS), *TAIL)


def _call(arguments: str | None, name: str | None = None, index: int = 0) -> dict[str, Any]:
    return {"index": index, "type": "function", "function": {"name": name, "arguments": arguments}}


_arguments = ('{"', "city", '":', ' "', "Oslo", '"', "}")
_completions_tail = (completion("", "stop"), event(frame([], usage=sse.counts())), DONE)
_prelude = event(frame([], id="", model="", prompt_filter_results=[{"prompt_index": 0, "content_filter_results": {}}]))

CASES = [
    _case(
        "role-first",
        'a role event with `content: ""` at once, the first token later',
        whole("no text: the clock runs on", **_LATE),
        _then_tokens(ROLE),
    ),
    _case(
        "role-first-null",
        "a role event with `content: null` at once",
        whole("no text: the clock runs on", **_LATE),
        _then_tokens(chat({"role": "assistant", "content": None, "reasoning_content": None, "tool_calls": None})),
    ),
    _case(
        "role-first-alone",
        "a role event without any content at once",
        whole("no text: the clock runs on", **_LATE),
        _then_tokens(chat({"role": "assistant"})),
    ),
    _case(
        "empty-deltas-first",
        'deltas `{}`, `{"content": ""}`, `[]` and `{"tool_calls": []}` at once',
        whole("no text: the clock runs on", **_LATE),
        _then_tokens(chat({}), chat({"content": ""}), chat([]), chat({"content": [], "tool_calls": [], "refusal": ""})),
    ),
    _case(
        "content-filter-first",
        "a first event with empty choices and filter results (Azure) at once",
        whole("no choices: nothing was generated yet", **_LATE),
        _then_tokens(_prelude, ROLE),
    ),
    _case(
        "role-in-every-delta",
        "each token's delta has a role",
        whole("the role changes nothing"),
        stream(*(chat({"role": "assistant", "content": w}) for w in WORDS), *TAIL),
    ),
    _case(
        "role-with-text",
        "the role comes with the first token",
        whole("its text counts", ttft_at_most=PAUSE_S),
        stream(chat({"role": "assistant", "content": WORDS[0]}), PAUSE_S, *T[1:], *TAIL),
    ),
    _case("no-role", "no role at all", whole("nobody needs it"), stream(*T, *TAIL)),
    _case(
        "white-space-tokens",
        "tokens that are spaces, tabs and line feeds",
        whole("text has a length, not a look", text=" \n\t  \n\n\u200b."),
        stream(*sse.reply([token(w) for w in (" ", "\n", "\t", " ", " ", "\n\n", "\u200b", ".")])),
    ),
    _case(
        "reasoning",
        "four tokens of `reasoning`, then four of content",
        whole("reasoning is generated text; what a reader sees comes later", **_SEEN_LATE),
        _thinking("reasoning"),
    ),
    _case(
        "reasoning-content",
        "four tokens of `reasoning_content`, then four of content",
        whole("the same under another name", **_SEEN_LATE),
        _thinking("reasoning_content"),
    ),
    _case(
        "reasoning-twice",
        "`reasoning` and `reasoning_content` hold the same four tokens",
        whole("one thought under two names is counted once", **_SEEN_LATE),
        _thinking("reasoning", "reasoning_content"),
    ),
    _case(
        "reasoning-details",
        "four tokens in `reasoning_details` only",
        whole("generated text, wherever it stands", **_SEEN_LATE),
        stream(
            ROLE,
            *(chat({"reasoning_details": [{"type": "reasoning.text", "text": w}]}) for w in WORDS[:4]),
            PAUSE_S,
            *T[4:],
            *TAIL,
        ),
    ),
    _case(
        "thinking-parts",
        "content parts of type `thinking`, then of type `text` (Mistral)",
        whole("both are generated text, the second is seen", **_SEEN_LATE),
        stream(
            ROLE,
            *(chat({"content": [{"type": "thinking", "thinking": [{"type": "text", "text": w}]}]}) for w in WORDS[:4]),
            PAUSE_S,
            *(chat({"content": [{"type": "text", "text": w}]}) for w in WORDS[4:]),
            *TAIL,
        ),
    ),
    _case(
        "only-reasoning",
        "reasoning until the limit of tokens, no content at all",
        whole("an answer cut while thinking is data, not a failure", finish_reason="length"),
        stream(ROLE, *(chat({"reasoning_content": w}) for w in WORDS), chat({"content": ""}, "length"), USAGE, DONE),
    ),
    _case(
        "content-parts",
        "content as a list of text parts",
        whole("joined, they are the text"),
        _deltas(*({"content": [{"type": "text", "text": w}]} for w in WORDS)),
    ),
    _case(
        "tool-call",
        "a tool call: its name with the first event, arguments with the others",
        whole("tool calls are generated text", finish_reason="tool_calls", text="weather" + "".join(_arguments)),
        stream(
            ROLE,
            chat({"tool_calls": [_call("", "weather")]}),
            *(chat({"tool_calls": [_call(a)]}) for a in _arguments),
            chat({}, "tool_calls"),
            USAGE,
            DONE,
        ),
    ),
    _case(
        "tool-calls-at-once",
        "two tool calls in one event, names and arguments together",
        whole("one fragment", fragments=1, finish_reason="tool_calls", text='f{"a":1}g{"b":2}'),
        stream(
            ROLE,
            chat({"content": None, "tool_calls": [_call('{"a":1}', "f"), _call('{"b":2}', "g", 1)]}),
            chat({}, "tool_calls"),
            USAGE,
            DONE,
        ),
    ),
    _case(
        "function-call",
        "the older `function_call`",
        whole("generated text as well", finish_reason="function_call", text="weather" + "".join(_arguments)),
        stream(
            ROLE,
            chat({"function_call": {"name": "weather", "arguments": ""}}),
            *(chat({"function_call": {"arguments": a}}) for a in _arguments),
            chat({}, "function_call"),
            USAGE,
            DONE,
        ),
    ),
    _case(
        "refusal",
        "the tokens are a `refusal`",
        whole("generated text, and seen", ttft_at_most=PAUSE_S),
        stream(ROLE, *sse.paused([chat({"content": None, "refusal": w}) for w in WORDS], 1), *TAIL),
    ),
    _case(
        "choices-null",
        "events with `choices: null`",
        whole("nothing in them, nothing dropped"),
        _among(event(frame(None))),
    ),
    _case(
        "choices-absent",
        "events without choices, and `{}`",
        whole("nothing in them, nothing dropped"),
        _among(event(frame()), event({})),
    ),
    _case(
        "choices-empty",
        "events with `choices: []`",
        whole("nothing in them, nothing dropped"),
        _among(event(frame([]))),
    ),
    _case(
        "choices-of-other-types",
        "choices that are an object, a string, a list of null and of numbers",
        whole("wrong types spoil no other event"),
        _among(event(frame({"0": {}})), event(frame("none")), event(frame([None, 1, "x", []]))),
    ),
    _case("delta-null", "`delta: null` among the tokens", whole("nothing in it"), _among(chat(None))),
    _case(
        "delta-absent",
        "a choice without a delta among the tokens",
        whole("nothing in it"),
        _among(event(frame([{"index": 0, "finish_reason": None}]))),
    ),
    _case(
        "delta-of-other-types",
        "deltas that are a string, a number and a list",
        whole("wrong types spoil no other event"),
        _among(chat("x"), chat(1), chat([1])),
    ),
    _case(
        "content-of-other-types",
        "content that is a number, true and an object",
        whole("no text; the others stand"),
        _among(chat({"content": 7}), chat({"content": True}), chat({"content": {"text": "x"}})),
    ),
    _case(
        "tool-calls-of-other-types",
        "tool calls that are an object, null, and have null arguments",
        whole("no text; the others stand"),
        _among(
            chat({"tool_calls": {"index": 0}}),
            chat({"tool_calls": [None, {"function": None}, _call(None)]}),
            chat({"function_call": "x"}),
        ),
    ),
    _case(
        "unknown-keys",
        "fields nobody knows in every event, choice and delta",
        whole("ignored"),
        stream(
            ROLE,
            *(
                event(
                    frame(
                        [choice({"content": w, "audio": None, "annotations": []}, stop_reason=None, token_ids=None)],
                        obfuscation="xyz",
                        service_tier=None,
                        p=[1],
                    )
                )
                for w in WORDS
            ),
            *TAIL,
        ),
    ),
    _case(
        "nulls-everywhere",
        "id, model, created and fingerprint are null",
        whole("ignored"),
        _beside(id=None, model=None, created=None, system_fingerprint=None, object=None),
    ),
    _case("index-as-text", '`index: "0"`', whole("nobody needs it"), _choices(index="0")),
    _case("index-huge", "`index: 4294967296`", whole("no list is as long as an index says"), _choices(index=2**32)),
    _case(
        "two-choices",
        "two choices, an event each",
        whole("every fragment is one of the reply", fragments=16, output_tokens=16, text=None),
        stream(
            *(event(frame([choice({"content": w}, index=i)])) for w in WORDS for i in (0, 1)),
            *(event(frame([choice({}, "stop", index=i)])) for i in (0, 1)),
            sse.usage(sse.counts(16)),
            DONE,
        ),
    ),
    _case(
        "two-choices-in-one-event",
        "each event holds a token of both choices",
        whole("a fragment is an event", output_tokens=16, text="".join(w + w for w in WORDS)),
        stream(
            *(event(frame([choice({"content": w}, index=i) for i in (0, 1)])) for w in WORDS),
            event(frame([choice({}, "stop", index=i) for i in (0, 1)])),
            sse.usage(sse.counts(16)),
            DONE,
        ),
    ),
    _case(
        "token-ids",
        "each choice lists its token ids, one to three of them",
        whole("then the tokens of each fragment are known", fragments=4, tokens_per_fragment=(3, 1, 2, 2), text=TEXT),
        stream(
            ROLE,
            *(
                event(frame([choice({"content": "".join(WORDS[a:b])}, token_ids=list(range(a, b)))]))
                for a, b in ((0, 3), (3, 4), (4, 6), (6, 8))
            ),
            *TAIL,
        ),
    ),
    _case(
        "completions",
        "the completions route: `text`",
        whole("the other dialect", ttft_at_most=PAUSE_S),
        stream(*sse.paused([completion(w) for w in WORDS], 1), *_completions_tail),
    ),
    _case(
        "completions-text-null",
        'the completions route, with `text: null` and `text: ""` first and between',
        whole("no text, no token", **_LATE),
        stream(
            completion(None),
            completion(""),
            PAUSE_S,
            *(e for w in WORDS for e in (completion(w), completion(None), completion(""))),
            *_completions_tail,
        ),
    ),
    _case(
        "completions-finish-with-text",
        "the completions route; the last token has the finish reason",
        whole("both are read"),
        stream(*(completion(w) for w in WORDS[:-1]), completion(WORDS[-1], "stop"), *_completions_tail[1:]),
    ),
    _case(
        "finish-with-text",
        "the last token's event has the finish reason, too",
        whole("both are read"),
        stream(ROLE, *T[:-1], chat({"content": WORDS[-1]}, "stop"), USAGE, DONE),
    ),
    _case(
        "finish-before-text",
        "a token after the finish reason",
        whole("what comes before the end is part of the reply"),
        stream(ROLE, *T[:-1], FINISH, T[-1], USAGE, DONE),
    ),
    _case(
        "finish-empty",
        '`finish_reason: ""` in every event',
        whole("an empty reason is none; the real one stands"),
        _choices(finish_reason=""),
    ),
    _case(
        "finish-empty-only",
        '`finish_reason: ""` in every event, then [DONE]',
        whole("an empty reason is none, but [DONE] came", finish_reason=None),
        stream(ROLE, *(chat({"content": w}, "") for w in WORDS), USAGE, DONE),
    ),
    _case(
        "finish-absent-until-the-end",
        "no field `finish_reason` before the last event",
        whole("absent is null"),
        stream(*(event(frame([{"delta": {"content": w}}])) for w in WORDS), *TAIL),
    ),
    _case(
        "finish-content-filter",
        "the reply ends with `content_filter`",
        whole("a reason to end like others; it is reported", finish_reason="content_filter"),
        stream(ROLE, *T, chat({}, "content_filter"), USAGE, DONE),
    ),
    _case(
        "text-that-looks-like-the-protocol",
        "the model writes `data: [DONE]`, error objects and line ends",
        whole("text is text", text='data: [DONE]\n\n{"error": "x"}\r\n\r\nevent: error\n\n : \0end'),
        stream(
            *sse.reply(
                [
                    token(w)
                    for w in (
                        "data: [DONE]\n\n",
                        '{"error": "x"}',
                        "\r\n\r\n",
                        "event: error\n\n",
                        " ",
                        ":",
                        " \0",
                        "end",
                    )
                ]
            )
        ),
    ),
    _case(
        "nothing-but-done",
        "no usage, no finish reason, no role: text and [DONE]",
        uncounted("fragments can be counted, tokens cannot", finish_reason=None),
        stream(*T, DONE),
    ),
]
