"""Where servers put their token counts, and what they put there instead.

A count is a JSON number that is whole and not negative. Each field's last count stands; null, {} and nonsense never
take one back. What the server does not say is unknown: a requested length is no count, nor is a number of fragments.
"""

from __future__ import annotations

from typing import Any

from endpoints.simulator.hostile import sse
from endpoints.simulator.hostile.expected import Case, Expected, uncounted, whole
from endpoints.simulator.hostile.sse import (
    DONE,
    FINISH,
    ROLE,
    TOKENS,
    USAGE,
    WORDS,
    chat,
    choice,
    counts,
    event,
    frame,
    token,
    usage,
)
from endpoints.simulator.hostile.wire import Play, stream

KIND = "usage"
T = TOKENS


def _case(name: str, what: str, expected: Expected, play: Play) -> Case:
    return Case(name, KIND, what, expected, play)


def _last(stated: object) -> Play:
    """The ordinary reply with this in the place of its usage."""
    return stream(ROLE, *T, FINISH, usage(stated), DONE)


def _each(stated: list[Any], last: object = None, words: tuple[str, ...] = WORDS) -> Play:
    """Usage beside every token, and at the end (nowhere at the end when None)."""
    tokens = [token(word, usage=u) for word, u in zip(words, stated, strict=True)]
    return stream(ROLE, *tokens, FINISH, *([] if last is None else [usage(last)]), DONE)


_hidden = counts(20, completion_tokens_details={"reasoning_tokens": 12})
_thought = [chat({"reasoning": w}) for w in WORDS[:4]]

CASES = [
    _case("usage-last", "in the last event, whose choices are empty", whole("the ordinary place"), stream(*sse.REPLY)),
    _case(
        "usage-with-choices",
        "in a last event that has a choice",
        whole("both keys of every event are read"),
        stream(ROLE, *T, FINISH, chat({}, usage=counts()), DONE),
    ),
    _case(
        "usage-with-the-finish",
        "in the event with the finish reason",
        whole("both keys of every event are read"),
        stream(ROLE, *T, chat({}, "stop", usage=counts()), DONE),
    ),
    _case(
        "usage-with-the-last-token",
        "in the event with the last token and the finish reason",
        whole("all three are read"),
        stream(ROLE, *T[:-1], chat({"content": WORDS[-1]}, "stop", usage=counts()), DONE),
    ),
    _case(
        "usage-without-choices",
        "in a last event without `choices`",
        whole("usage needs no choices"),
        stream(ROLE, *T, FINISH, event(frame(usage=counts())), DONE),
    ),
    _case(
        "usage-choices-null",
        "in a last event with `choices: null`",
        whole("usage needs no choices"),
        stream(ROLE, *T, FINISH, event(frame(None, usage=counts())), DONE),
    ),
    _case(
        "usage-first",
        "in the first event, and nowhere else",
        whole("wherever it stands", tokens_per_fragment=None),
        stream(chat({"role": "assistant"}, usage=counts()), *T, FINISH, DONE),
    ),
    _case(
        "usage-in-the-choice",
        "inside the last choice instead of beside it",
        whole("the server did say it"),
        stream(ROLE, *T, event(frame([choice({}, "stop", usage=counts())])), DONE),
    ),
    _case(
        "usage-null-each",
        "`usage: null` in every event, the count in the last",
        whole("null is no count"),
        _each([None] * 8, counts()),
    ),
    _case(
        "usage-null-last",
        "the count with the finish, then `usage: null`",
        whole("null takes no count back"),
        stream(ROLE, *T, chat({}, "stop", usage=counts()), usage(None), DONE),
    ),
    _case(
        "usage-empty-last",
        "the count with the finish, then `usage: {}`",
        whole("{} takes no count back"),
        stream(ROLE, *T, chat({}, "stop", usage=counts()), usage({}), DONE),
    ),
    _case(
        "usage-zero-last",
        "the count with the finish, then zeros",
        whole("there is text, so zero is no count and takes none back"),
        stream(ROLE, *T, chat({}, "stop", usage=counts()), usage(counts(0, 0)), DONE),
    ),
    _case(
        "usage-zero-first",
        "zeros in the role event, the count in the last",
        whole("the last one stands"),
        stream(chat({"role": "assistant"}, usage=counts(0, 0)), *T, FINISH, USAGE, DONE),
    ),
    _case(
        "usage-zero-always",
        "no output tokens in every event",
        uncounted("there is text, so zero is no count", input_tokens=5),
        _each([counts(0)] * 8, counts(0)),
    ),
    _case(
        "usage-split",
        "input tokens in the first event, output tokens in the last",
        whole("each field for itself"),
        stream(
            chat({"role": "assistant"}, usage={"prompt_tokens": 5}), *T, FINISH, usage({"completion_tokens": 8}), DONE
        ),
    ),
    _case(
        "usage-null-output",
        "`completion_tokens: null`",
        uncounted("what is not said is unknown", input_tokens=5),
        _last(counts(None)),
    ),
    _case(
        "usage-output-only",
        "output tokens only",
        whole("what is not said is unknown", input_tokens=None),
        _last({"completion_tokens": 8}),
    ),
    _case("usage-total-only", "`total_tokens` only", uncounted("neither part is said"), _last({"total_tokens": 13})),
    _case(
        "usage-absent",
        "none",
        uncounted("unknown is unknown: never the length asked for"),
        stream(ROLE, *T, FINISH, DONE),
    ),
    _case("usage-empty", "`usage: {}`", uncounted("no count in it"), _last({})),
    _case("usage-text", 'counts as text: `"8"`', uncounted("text is no count"), _last(counts("8", "5"))),
    _case("usage-float", "counts as 8.0 and 5.0", whole("JSON does not tell 8.0 from 8"), _last(counts(8.0, 5.0))),
    _case("usage-fraction", "counts as 8.5 and 5.5", uncounted("no token is half"), _last(counts(8.5, 5.5))),
    _case("usage-negative", "counts of -1", uncounted("no count"), _last(counts(-1, -1))),
    _case(
        "usage-boolean",
        "counts of true",
        uncounted("no count, though it equals 1 in some languages"),
        _last(counts(True, True)),
    ),
    _case("usage-absurd", "counts of ten to the thirty", uncounted("no count"), _last(counts(10**30, 10**30))),
    _case(
        "usage-of-other-types",
        "usage that is a list, text, a number",
        uncounted("no count"),
        _each(["soon", 8, [8], True, [], "", 0, [counts()]]),
    ),
    _case(
        "usage-repeated",
        "the last event twice",
        whole("once or twice, the same"),
        stream(ROLE, *T, FINISH, USAGE, USAGE, DONE),
    ),
    _case(
        "usage-after-the-end",
        "after [DONE]",
        uncounted("[DONE] is the end of the reply; nothing after it counts"),
        stream(ROLE, *T, FINISH, DONE, USAGE),
    ),
    _case(
        "usage-running",
        "a running count in every event",
        whole("then the tokens of each fragment are known", tokens_per_fragment=(1,) * 8),
        _each([counts(n) for n in range(1, 9)], counts()),
    ),
    _case(
        "usage-running-by-steps",
        "a running count: 4, 5 and 8 tokens in three fragments (speculation)",
        whole("then speed can leave out the four of the first fragment", fragments=3, tokens_per_fragment=(4, 1, 3)),
        _each([counts(4), counts(5), counts(8)], words=("".join(WORDS[:4]), WORDS[4], "".join(WORDS[5:]))),
    ),
    _case(
        "usage-running-stalls",
        "a running count that repeats: 3, 3, 3, 6, 6, 6, 8, 8",
        whole("a count a step, not a fragment: the tokens of each are unknown"),
        _each([counts(n) for n in (3, 3, 3, 6, 6, 6, 8, 8)], counts()),
    ),
    _case(
        "usage-running-gaps",
        "a running count in every other event",
        whole("the tokens of each fragment are unknown"),
        _each([counts(n + 1) if n % 2 else None for n in range(8)], counts()),
    ),
    _case(
        "usage-final-each",
        "the final count in every event",
        whole("it says nothing of fragments, and is not to be summed"),
        _each([counts()] * 8, counts()),
    ),
    _case(
        "reasoning-hidden",
        "20 tokens, 12 of them reasoning that is never streamed",
        whole("only eight could be seen to arrive", output_tokens=20, streamed_tokens=8, reasoning_tokens=12),
        _last(_hidden),
    ),
    _case(
        "reasoning-streamed",
        "8 tokens, 4 of them reasoning, all streamed",
        whole("all eight could be seen to arrive", reasoning_tokens=4),
        stream(ROLE, *_thought, *T[4:], FINISH, usage(counts(completion_tokens_details={"reasoning_tokens": 4})), DONE),
    ),
    _case(
        "reasoning-beside-the-count",
        "8 tokens, and 12 of reasoning not among them (the total has both)",
        whole(
            "the total says that 20 were generated; eight could be seen to arrive",
            output_tokens=20,
            streamed_tokens=8,
            reasoning_tokens=12,
        ),
        _last(counts() | {"total_tokens": 25, "completion_tokens_details": {"reasoning_tokens": 12}}),
    ),
    _case(
        "reasoning-unnamed",
        "40 tokens for 8 fragments, and no word of reasoning",
        whole("reported as stated; which of them were streamed is not said", output_tokens=40),
        _last(counts(40)),
    ),
    _case(
        "reasoning-null",
        "`completion_tokens_details: null` and a null inside",
        whole("not said"),
        _each(
            [None] * 7 + [counts(completion_tokens_details=None)],
            counts(completion_tokens_details={"reasoning_tokens": None}),
        ),
    ),
    _case(
        "cached-tokens",
        "4 of 5 input tokens from the server's cache",
        whole("reported: a warm cache flatters", cached_tokens=4),
        _last(counts(prompt_tokens_details={"cached_tokens": 4})),
    ),
    _case(
        "details-of-other-types",
        "details that are a list, and text",
        whole("the counts beside them stand"),
        _last(counts(prompt_tokens_details=[4], completion_tokens_details="none")),
    ),
    _case(
        "usage-beside-no-text",
        "a count of zero output tokens, and no text",
        Expected("nothing was generated", "empty", input_tokens=5, finish_reason="stop"),
        stream(ROLE, FINISH, usage(counts(0)), DONE),
    ),
]
