"""Event streams that are put together in unusual ways: line ends, cuts, comments, characters, and data that is no JSON.

What is right here is what the WHATWG HTML standard says in "Parsing" and in "Interpreting an event stream".
"""

from __future__ import annotations

from endpoints.simulator.hostile import sse
from endpoints.simulator.hostile.expected import Case, Expected, failed, uncounted, whole
from endpoints.simulator.hostile.sse import BODY, DONE, FINISH, PAUSE_S, REPLY, ROLE, TAIL, TEXT, TOKENS, USAGE, paused
from endpoints.simulator.hostile.wire import STREAM, Play, stream

KIND = "framing"
BOM = b"\xef\xbb\xbf"
T = TOKENS


def _case(name: str, what: str, expected: Expected, play: Play) -> Case:
    return Case(name, KIND, what, expected, play)


def _every(old: bytes, new: bytes, events: tuple[bytes, ...] = REPLY) -> tuple[bytes, ...]:
    return tuple(e.replace(old, new) for e in events)


def _before_each(extra: bytes) -> tuple[bytes, ...]:
    return tuple(extra + e for e in REPLY)


def _cut(whole_body: bytes, size: int) -> tuple[bytes, ...]:
    return tuple(whole_body[at : at + size] for at in range(0, len(whole_body), size))


def _halves(whole_body: bytes, *inside: bytes) -> tuple[bytes, ...]:
    """Cut after the first byte of every occurrence of any of `inside`."""
    cuts = sorted(at + 1 for piece in inside for at in range(len(whole_body)) if whole_body.startswith(piece, at))
    return tuple(whole_body[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole_body)], strict=True))


def _with(*extra: bytes) -> tuple[bytes, ...]:
    """The ordinary reply with more events after its second token, in one write with tokens around them."""
    return (ROLE, T[0], T[1] + b"".join(extra) + T[2], *T[3:], *TAIL)


def _instead(*events: bytes) -> tuple[bytes | float, ...]:
    """The ordinary reply with other events in the place of as many tokens, from the second on."""
    return sse.reply((T[0], *events, *T[1 + len(events) :]))


def _lost(count: int) -> str:
    return "".join(sse.WORDS[:1] + sse.WORDS[1 + count :])


_SOON = {"ttft_at_most": PAUSE_S}
_UNICODE = ("Zoë", " 日本", "語", " 👩‍👩‍👧", " ñ", " ∑", " 𝄞", "!")
_LINES = ("a\u2028", "b\u2029", "c\u0085", "d\ufeff", "e\u00a0", "f\u200b", "g\u3000", "h")
_mixed = b"".join(e.replace(b"\n", (b"\n", b"\r\n", b"\r")[i % 3]) for i, e in enumerate(REPLY))
_two_lines = tuple(e.replace(b',"choices"', b',\ndata: "choices"') for e in REPLY)

CASES = [
    _case("good", "an ordinary reply, nothing wrong with it", whole("the control"), stream(*REPLY)),
    _case(
        "crlf",
        "lines end with CRLF",
        whole("one of three legal line ends; seen as it arrives, not at the body's end", **_SOON),
        stream(*paused(_every(b"\n", b"\r\n"))),
    ),
    _case(
        "cr",
        "lines end with a lone CR",
        whole("legal; the second CR ends the event at once, whatever follows", **_SOON),
        stream(*paused(_every(b"\n", b"\r"))),
    ),
    _case("mixed-line-ends", "LF, CRLF and CR by turns", whole("each is legal anywhere"), stream(_mixed)),
    _case("bom", "a byte order mark first", whole("one leading mark is dropped"), stream(BOM + ROLE, *REPLY[1:])),
    _case(
        "bom-cut",
        "the mark comes in three writes",
        whole("bytes may be cut anywhere"),
        stream(BOM[:1], BOM[1:2], BOM[2:], *REPLY),
    ),
    _case(
        "bom-later",
        "a second mark before the second token's line",
        whole(
            "only a leading mark is one: this line's field is not `data`, so it is ignored", fragments=7, text=_lost(1)
        ),
        stream(*_instead(BOM + T[1])),
    ),
    _case(
        "comments",
        "comments before, between and within events",
        whole("lines that begin with a colon are ignored"),
        stream(*_every(b"data: ", b": comment\n:\n:x: y\ndata: "), b": bye\n\n"),
    ),
    _case(
        "comments-as-events",
        "`: keep-alive` and a blank line, again and again",
        whole("no data, no event: neither dropped nor a token"),
        stream(*_before_each(b": keep-alive\n\n")),
    ),
    _case(
        "comment-flood",
        "fifty thousand comments between two tokens",
        whole("still no event"),
        stream(*_with(b": waiting for a slot\n\n" * 50_000)),
    ),
    _case(
        "comment-first",
        "a comment at once, the first token later",
        whole("a comment never stops the first-token clock", ttft_at_least=PAUSE_S),
        stream(b": PROCESSING\n\n", PAUSE_S, *REPLY),
    ),
    _case(
        "event-names",
        "`event: message` with every event",
        whole("the name changes nothing in what the data says"),
        stream(*_before_each(b"event: message\n")),
    ),
    _case(
        "event-name-after-data",
        "`event:` after the data line",
        whole("fields come in any order"),
        stream(*_every(b"\n\n", b"\nevent: chunk\n\n")),
    ),
    _case(
        "ids-and-retry",
        "`id:`, `retry:` and unknown fields with every event",
        whole("fields of the format that say nothing here"),
        stream(*_before_each(b"id: 7\nretry: 1000\nretry: soon\nx-trace: 1\nnonsense\n")),
    ),
    _case(
        "name-without-data",
        "`event: ping` and no data",
        whole("an event without data is not dispatched"),
        stream(*_before_each(b"event: ping\n\n")),
    ),
    _case(
        "ping-events",
        'events named ping with `{"type": "ping"}`',
        whole("an object without choices says nothing"),
        stream(*_before_each(b'event: ping\ndata: {"type": "ping"}\n\n')),
    ),
    _case(
        "no-space",
        "`data:{` without a space",
        whole("the space is optional", **_SOON),
        stream(*paused(_every(b"data: ", b"data:"))),
    ),
    _case(
        "two-spaces",
        "two spaces after the colon",
        whole("one is dropped, and JSON allows the other"),
        stream(*_every(b"data: ", b"data:  ")),
    ),
    _case(
        "tab",
        "a tab after the colon",
        whole("not dropped, but white space to JSON"),
        stream(*_every(b"data: ", b"data:\t", REPLY[:-1]), DONE),
    ),
    _case(
        "trailing-space",
        "spaces and tabs at the end of data lines",
        whole("white space to JSON"),
        stream(*_every(b"\n\n", b" \t \n\n")),
    ),
    _case(
        "field-names-are-literal",
        "three tokens in lines `data :`, `Data:` and ` data:`",
        whole("none of these is the field `data`, so the lines are ignored", fragments=5, text=_lost(3)),
        stream(*_instead(*(T[i + 1].replace(b"data:", n) for i, n in enumerate((b"data :", b"Data:", b" data:"))))),
    ),
    _case(
        "multi-line-data",
        "each object over two data lines",
        whole("data lines join with a line feed"),
        stream(*_two_lines),
    ),
    _case(
        "bare-data-line",
        "a line `data` without a colon inside objects, comments beside it",
        whole("a field without a value: an empty line of data"),
        stream(*_every(b',"choices"', b',\ndata\n: here\ndata:"choices"')),
    ),
    _case(
        "one-write",
        "all events in one write",
        whole("a write is no event: eight fragments, though they share a stamp"),
        stream(BODY),
    ),
    _case(
        "every-byte",
        "every byte in a chunk and a write of its own",
        whole("bytes may be cut anywhere"),
        stream(*_cut(BODY, 1)),
    ),
    _case("seven-bytes", "cut every seven bytes", whole("bytes may be cut anywhere"), stream(*_cut(BODY, 7))),
    _case(
        "cut-in-characters",
        "each character of two to four bytes cut after its first byte",
        whole("characters are decoded once the line is whole", text="".join(_UNICODE)),
        stream(
            *_halves(
                b"".join(sse.token(w) if isinstance(w, str) else w for w in (*_UNICODE, *TAIL)),
                *(bytes([b]) for b in range(0xC2, 0xF5)),
            )
        ),
    ),
    _case(
        "cut-in-crlf",
        "each CRLF cut in two",
        whole("a CR ends the line; the LF that follows belongs to it"),
        stream(*_halves(BODY.replace(b"\n", b"\r\n"), b"\r\n")),
    ),
    _case(
        "cut-between-line-ends",
        "each blank line in the next write",
        whole("bytes may be cut anywhere"),
        stream(*_halves(BODY, b"\n\n")),
    ),
    _case(
        "unicode-line-separators",
        "U+2028, U+2029, U+0085 and their like inside JSON",
        whole("line ends are LF, CRLF and CR, nothing else", text="".join(_LINES)),
        stream(*sse.reply([sse.token(w) for w in _LINES])),
    ),
    _case(
        "charset-latin-1",
        "UTF-8 under `charset=iso-8859-1`",
        whole("event streams are always UTF-8", text="".join(_UNICODE)),
        stream(
            *sse.reply([sse.token(w) for w in _UNICODE]),
            headers=("Content-Type: text/event-stream; charset=iso-8859-1", STREAM[1]),
        ),
    ),
    _case(
        "large-event",
        "one token of 5 MiB among the others",
        whole("large, but not absurd", text=None),
        stream(*_instead(sse.token("x" * (5 * 2**20)))),
    ),
    _case(
        "last-blank-line-missing",
        "the body ends after `data: [DONE]`, without the blank line",
        whole("that event is lost, as the standard says, but the finish reason came"),
        stream(*REPLY[:-1], DONE[:-1]),
    ),
    _case(
        "usage-unterminated",
        "the body ends inside the event that holds the usage, before its blank line",
        uncounted("an event without its blank line is not dispatched: the count is unknown"),
        stream(ROLE, *T, FINISH, USAGE[:-1]),
    ),
    _case(
        "done-unterminated",
        "no finish reason, and [DONE] without its blank line",
        failed("truncated", "neither end came, by the standard", fragments=8, text=TEXT),
        stream(ROLE, *T, DONE[:-1]),
    ),
    _case(
        "blank-lines",
        "fifty blank lines around every event",
        whole("nothing to dispatch"),
        stream(*_before_each(b"\n" * 25 + b"\r\n" * 25)),
    ),
    _case(
        "empty-data",
        "`data:` and `data: ` alone, again and again",
        whole("empty events are no tokens, and nothing was dropped"),
        stream(*_before_each(b"data:\n\ndata: \n\ndata\n\n")),
    ),
    _case(
        "nul-bytes",
        "NULs in comments, ids and names",
        whole("ignored with the lines they are in"),
        stream(*_before_each(b": \0\0\nid: \0\nx\0: \0\n")),
    ),
    _case(
        "nul-in-data",
        "a raw NUL inside a JSON string",
        whole(
            "illegal in JSON: that event is dropped and counted, no other", fragments=7, dropped_events=1, text=_lost(1)
        ),
        stream(*_instead(T[1].replace(b"quick", b"qu\0ck"))),
    ),
    _case(
        "invalid-utf-8",
        "bytes that are no UTF-8 inside a token",
        whole("they decode to U+FFFD, and the token stands", text=TEXT.replace("quick", "qu\ufffdck")),
        stream(*_instead(T[1].replace(b"quick", b"qu\xffck"))),
    ),
    _case(
        "lone-surrogates",
        "`\\ud83d` in one token and its other half in the next, then a half alone",
        whole(
            "legal JSON; what cannot be stored is replaced, nothing is lost",
            text="The\U0001f600\ufffd" + "".join(sse.WORDS[4:]),
        ),
        stream(*_instead(*(T[1].replace(b" quick", half) for half in (b"\\ud83d", b"\\ude00", b"\\ud83d")))),
    ),
    _case(
        "surrogate-bytes",
        "a surrogate encoded as if it were a character",
        whole("invalid UTF-8: replaced, and the token stands", text=None),
        stream(*_instead(T[1].replace(b"quick", b"\xed\xa0\xbd"))),
    ),
    _case(
        "broken-json",
        "one event cut short by the server, in one write with good ones",
        whole("one event is dropped, none beside it", dropped_events=1),
        stream(*_with(b'data: {"choices":[{"delta":{"content":"x\n\n')),
    ),
    _case(
        "json-not-an-object",
        'events `null`, `17`, `"x"` and `[]`',
        whole("each is dropped and counted", dropped_events=4),
        stream(*_with(b'data: null\n\ndata: 17\n\ndata: "x"\n\ndata: []\n\n')),
    ),
    _case(
        "data-in-words",
        "`data: ping`",
        whole("no JSON: dropped and counted", dropped_events=1),
        stream(*_with(b"data: ping\n\n")),
    ),
    _case(
        "deep-json",
        "an event nested two hundred thousand levels deep",
        whole("dropped, without taking the client down", dropped_events=1),
        stream(*_with(b"data: " + b"[" * 200_000 + b"]" * 200_000 + b"\n\n")),
    ),
    _case(
        "infinity",
        "`-Infinity` and `NaN` beside a token (log probabilities, as some servers write them)",
        whole("no JSON by the letter, but the token was generated and can be read"),
        stream(*_instead(T[1].replace(b'"delta"', b'"logprobs":{"a":-Infinity,"b":NaN},"delta"'))),
    ),
    _case(
        "huge-numbers",
        "integers of thirty digits and `1e999` beside a token",
        whole("numbers nobody needs spoil nothing"),
        stream(*_instead(T[1].replace(b'"delta"', b'"a":123456789012345678901234567890,"b":1e999,"delta"'))),
    ),
    _case(
        "blank-line-missing",
        "two tokens' events without a blank line between them",
        whole(
            "one event whose data is two objects: no JSON, dropped as one", fragments=6, dropped_events=1, text=_lost(2)
        ),
        stream(*_instead(T[1][:-1] + T[2], b": nothing\n\n")),
    ),
    _case(
        "event-stream-all-broken",
        "every event is broken JSON",
        failed("bad_stream", "nothing of it can be read", dropped_events=9),
        stream(*(e[:-3] + b"\n\n" for e in REPLY[:9]), DONE),
    ),
    _case(
        "json-lines",
        "a JSON object a line, without `data:`",
        failed("not_a_stream", "another format; it holds no field `data`"),
        stream(*_every(b"data: ", b""), headers=("Content-Type: application/x-ndjson", STREAM[1])),
    ),
]
