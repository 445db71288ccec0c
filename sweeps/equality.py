"""Same answers? Two arms' greedy answers to the same prompts, compared; what differs, beyond what chance may do.

Speculation is to change the speed of greedy decoding, never its text. But a server may not answer twice alike even by
itself (another batch, another kernel, another order of sums), so the base arm answers each prompt a second time: that
is the noise floor. Servers that are started for the arms give that second answer after another start, since what an
engine settles as it starts (its kernels) is no arm's fault. Where an arm answers as the base does, its answer and the
base's second one are alike in distribution given the base's first, so of the prompts in which just one of these two
differs from it, either is the one as often as the other: the exact McNemar test (McNemar, Psychometrika 12, 1947; a
binomial test on the discordant pairs), one-sided, the prompts taken as independent. Of several arms each is tested at
its share of the level (Bonferroni). Shares have exact binomial intervals (Clopper and Pearson, Biometrika 26, 1934).
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sweeps.answers import Answer
from sweeps.distributions import beta_quantile

LEVEL, ALPHA = 0.95, 0.05
TEST = "exact McNemar test, one-sided"
MISSING = 0.05  # share of the prompts that may lack an answer without any doubt about the others
LENGTH = "length"  # the finish reason of a reply that max_tokens cut
EQUAL, CUT, OTHER_END, DIVERGED, EMPTY = "equal", "cut", "other_end", "diverged", "empty"
SAME, NOISE, CANNOT_TELL, DIFFERENT, UNKNOWN, MEANINGLESS = (
    "equal",
    "noise",
    "cannot_tell",
    "different",
    "unknown",
    "meaningless",
)
_WORST_FIRST = (DIFFERENT, UNKNOWN, CANNOT_TELL, NOISE, SAME, MEANINGLESS)
_EXAMPLES, _BEFORE, _AFTER = 10, 40, 60  # differences shown, and characters around where they begin
_BROKEN = re.compile("\ufffd{1,3}$")  # what is left of a character that was cut: one, or one for each of its bytes
_CHARACTERS_A_TOKEN = 4.0  # of a usual one, where a server's own are shorter


@dataclass(frozen=True, slots=True)
class Cuts:
    """Where replies may be cut. `max_tokens`: the length asked for, None where it is not known; `step`: the most tokens
    that one step may bring (draft tokens and one more; of eight drafts, where none are declared)."""

    max_tokens: int | None = None
    step: int = 9

    def explain(self, shorter: int | None, longer: int | None) -> bool:
        """Whether an answer of so many tokens may be the other one, cut in another place of its last step."""
        if shorter is None:
            return False
        if longer is not None and abs(longer - shorter) <= self.step:
            return True
        return self.max_tokens is not None and abs(self.max_tokens - shorter) <= self.step


@dataclass(frozen=True, slots=True)
class Difference:
    """How two answers to one prompt compare.

    `equal`; `cut`: one is the beginning of the other, was ended by max_tokens, and is no more than a step shorter (a
    last step of several tokens may be cut or not); `other_end`: the same text, another finish reason; `diverged`:
    another text from `at_character` on (and from `at_token`, where both list token ids), counted from 0, or no text at
    all where the other has some; `empty`: neither has any, so that there is nothing to compare.
    """

    kind: str
    at_character: int | None = None
    at_token: int | None = None

    @property
    def diverged(self) -> bool:
        return self.kind == DIVERGED


def difference(one: Answer, other: Answer, cuts: Cuts = Cuts()) -> Difference:
    """Compare two answers: by token ids where both list them, and by text."""
    if one.empty or other.empty:
        return Difference(EMPTY) if one.empty and other.empty else Difference(DIVERGED, 0)
    texts = _texts_part(one, other, cuts)
    if one.token_ids and other.token_ids:
        kind, token = _tokens_part(one, other, cuts)
        if kind == DIVERGED:
            return Difference(DIVERGED, texts[1], token)
    elif texts[0] == DIVERGED:
        return Difference(*texts)
    else:
        kind = texts[0]
    if kind == EQUAL and one.finish_reason != other.finish_reason:
        kind = OTHER_END
    return Difference(kind)


def _texts_part(one: Answer, other: Answer, cuts: Cuts) -> tuple[str, int | None]:
    """(equal | cut | diverged, characters of the common beginning or None)."""
    if one.text == other.text:
        return EQUAL, None
    short, long = sorted((one, other), key=lambda a: (len(_unbroken(a)), a.finish_reason != LENGTH))
    a, b = _unbroken(short), _unbroken(long)
    common, tokens = _common(a, b), (_tokens(short), _tokens(long))
    begins = short.finish_reason == LENGTH and common == len(a) > 0
    if begins and a != short.text and len(b) > common:
        begins = not b[common].isascii()  # such a character has nothing to be cut off
    if not begins or not cuts.explain(*tokens):
        return DIVERGED, common
    # Tokens are counted by the server, which may have lost their text: what is missing of it must be no longer than
    # the tokens that are missing (and one, of which a part may be held back), twice as long as they are on average.
    missing = cuts.step if tokens[1] is None else max(0, tokens[1] - (tokens[0] or 0))
    usual = max(_CHARACTERS_A_TOKEN, len(b) / (tokens[1] or math.inf))
    return (CUT, None) if len(b) - len(a) <= 2 * usual * (missing + 1) else (DIVERGED, common)


def _tokens_part(one: Answer, other: Answer, cuts: Cuts) -> tuple[str, int | None]:
    """(equal | cut | diverged, tokens of the common beginning or None)."""
    short, long = sorted((one, other), key=lambda a: len(a.token_ids or ()))
    a, b = short.token_ids or [], long.token_ids or []
    if a == b:
        return EQUAL, None
    common = _common(a, b)
    begins = short.finish_reason == LENGTH and common == len(a) > 0
    return (CUT, None) if begins and cuts.explain(len(a), len(b)) else (DIVERGED, common)


def _unbroken(answer: Answer) -> str:
    """The text without what is left of a character that max_tokens has cut."""
    return _BROKEN.sub("", answer.text) if answer.finish_reason == LENGTH else answer.text


def _common(a: Sequence[Any], b: Sequence[Any]) -> int:
    """How long the common beginning is, of which `a` is no longer than `b`."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), len(a))


def _tokens(answer: Answer) -> int | None:
    return len(answer.token_ids) if answer.token_ids else answer.output_tokens


def compare(
    answers: Mapping[str, Sequence[Answer]],
    prompts: Sequence[str],
    ended: Mapping[str, str] | None = None,
    cuts: Cuts = Cuts(),
    apart: Collection[str] = (),
) -> dict[str, Any]:
    """What `equality.json` holds of the answers of all arms, the base first, to `prompts` (ids, in order).

    `ended`: why an arm was not asked to the end; `cuts`: where replies may be cut; `apart`: arms that are
    served by another process than the base.
    """
    ended = ended or {}
    of = {arm: {a.key: a for a in mine} for arm, mine in answers.items()}
    base, *others = answers
    first, second = _repeats(of[base], prompts)
    floor = _differences(first, second, prompts, cuts)
    alpha = ALPHA / max(1, len(others))
    restarted = bool(floor) and all(first[prompt].start != second[prompt].start for prompt in floor)
    arms = {}
    for arm in others:
        mine, _ = _repeats(of[arm], prompts)
        found = _differences(first, mine, prompts, cuts)
        row = arms[arm] = _verdict(arm, base, found, floor, (first, mine), prompts, alpha)
        doubted = row["status"] == DIFFERENT or (row["status"] == CANNOT_TELL and not row["incomplete"])
        if doubted and row["tested"] and arm in apart and not restarted:
            row["text"] += (
                f" {base} has answered twice within one start of its server, so what a restart by itself changes is "
                "not in its own noise, and may be part of this."
            )
    failures = [row for arm in answers for row in _failures(arm, of[arm], prompts, ended.get(arm), 1 + (arm == base))]
    alone = _floor_said(base, floor, restarted)
    itself = {
        "restarted": restarted,
        **_counts(floor),
        **_where(floor),
        "examples": _examples(floor, (first, second), prompts),
    }
    return {
        "asked": len(prompts),
        "base": base,
        "level": LEVEL,
        "test": TEST,
        "floor": itself | {"text": alone},
        "arms": arms,
        "failures": failures,
    } | _overall(arms, alone)


def because_synthetic(how: object) -> str:
    """Why answers cannot be compared where acceptance is made up; `how` it is known, where that is a text."""
    return "the server accepts drafts by a rule, not by its model" + (f" ({how})" if isinstance(how, str) else "")


def with_meaningless(equality: Mapping[str, Any], reasons: Mapping[str, str]) -> dict[str, Any]:
    """The same with arms (by name) whose answers cannot be compared, each for its reason; for the base's reason all.
    What is missing of their answers is no failure."""
    base = equality["base"]
    arms = {}
    for arm, row in equality["arms"].items():
        why = reasons.get(arm) or reasons.get(base)
        said = f"Whether {arm} answers as {base} does cannot be told: {why}."
        said += "" if row["compared"] else " No answers were compared."
        arms[arm] = row | {"status": MEANINGLESS, "meaningless": why, "incomplete": False, "text": said} if why else row
    in_vain = bool(arms) and all(row["meaningless"] for row in arms.values())
    failures = [row for row in equality["failures"] if not (in_vain or reasons.get(row["arm"]))]
    return {**equality, "arms": arms, "failures": failures} | _overall(arms, equality["floor"]["text"])


def _overall(arms: Mapping[str, Mapping[str, Any]], alone: str) -> dict[str, Any]:
    found = sorted((row for row in arms.values()), key=lambda row: _WORST_FIRST.index(row["status"]))
    return {
        "status": found[0]["status"] if found else None,
        "text": " ".join(row["text"] for row in found) if found else alone,
    }


def _repeats(
    mine: Mapping[tuple[str, int], Answer], prompts: Sequence[str]
) -> tuple[dict[str, Answer], dict[str, Answer]]:
    """Answers by prompt: the first ones, the second ones."""

    def answered(repeat: int) -> dict[str, Answer]:
        found = {prompt: mine.get((prompt, repeat)) for prompt in prompts}
        return {prompt: answer for prompt, answer in found.items() if answer is not None and answer.answered}

    return answered(1), answered(2)


def _differences(
    one: Mapping[str, Answer], other: Mapping[str, Answer], prompts: Sequence[str], cuts: Cuts
) -> dict[str, Difference]:
    return {
        prompt: difference(one[prompt], other[prompt], cuts) for prompt in prompts if prompt in one and prompt in other
    }


def _verdict(
    arm: str,
    base: str,
    found: Mapping[str, Difference],
    floor: Mapping[str, Difference],
    answers: tuple[Mapping[str, Answer], Mapping[str, Answer]],
    prompts: Sequence[str],
    alpha: float,
) -> dict[str, Any]:
    tested = [prompt for prompt in found if prompt in floor]
    only_arm = sum(found[p].diverged and not floor[p].diverged for p in tested)
    only_base = sum(floor[p].diverged and not found[p].diverged for p in tested)
    p_value = _p_value(only_arm, only_base)
    counts = _counts(found)
    compared, diverged = counts["compared"], counts[DIVERGED]
    here, there = (sum(d[p].diverged for p in tested) for d in (found, floor))
    sizes = _Sizes(len(prompts), compared, diverged, len(tested), there)
    if not compared:
        status = UNKNOWN
    elif diverged and p_value <= alpha:
        status = DIFFERENT
    elif sizes.incomplete:
        status = CANNOT_TELL
    elif not diverged:
        status = SAME
    else:
        status = NOISE if tested and here <= there else CANNOT_TELL
    return {
        "status": status,
        "text": _said(status, arm, base, sizes, p_value, alpha) + _asides(counts),
        "meaningless": None,
        "missing": sizes.missing,
        "incomplete": sizes.incomplete,
        **counts,
        "tested": len(tested),
        "only_arm": only_arm,
        "only_base": only_base,
        "p_value": p_value if tested else None,
        "alpha": alpha,
        "compared_by": "token_ids" if _by_ids(answers, found) else "text",
        **_where(found),
        "examples": _examples(found, answers, prompts),
    }


@dataclass(frozen=True, slots=True)
class _Sizes:
    """Prompts: `asked`; `compared` with the base, of which `diverged`; `tested`, which have the base's second answer
    too, of which it has diverged in `floor`."""

    asked: int
    compared: int
    diverged: int
    tested: int
    floor: int

    @property
    def missing(self) -> int:
        """Prompts without what the verdict needs: an answer of both, and of the base a second one where any differs."""
        return self.asked - (min(self.compared, self.tested) if self.diverged else self.compared)

    @property
    def incomplete(self) -> bool:
        return self.missing > MISSING * self.asked


def _said(status: str, arm: str, base: str, sizes: _Sizes, p_value: float, alpha: float) -> str:
    """The verdict in words."""
    n, diverged = sizes.compared, sizes.diverged
    itself = f"{sizes.floor} of {sizes.tested}"
    differ = f"{arm} differs from {base} in {diverged} of {n} greedy answers"
    if status == UNKNOWN:
        return f"Whether {arm} answers as {base} does is not known: no prompt has an answer of both."
    if status == CANNOT_TELL and sizes.incomplete:
        twice = f" ({sizes.tested} with a second one of {base})" if diverged else ""
        return (
            f"Whether {arm} answers as {base} does cannot be told, since too many answers are missing: of "
            f"{_prompts(sizes.asked)} {n} have an answer of both{twice}, and {diverged} of these differ. Mend "
            "what made them fail, and go on with --resume."
        )
    if status == SAME:
        most = 100 * (1 - ALPHA ** (1 / n))  # upper end of the one-sided exact interval, of none in n
        of = f" that both answered, of {sizes.asked}" if sizes.missing else ""
        return (
            f"{arm} gives the same greedy answers as {base} to all {_prompts(n)}{of} (so with {LEVEL:.0%} confidence "
            f"it differs in fewer than {most:.2g} % of such prompts)."
        )
    if status == DIFFERENT:
        return (
            f"{arm} does not answer as {base} does: {diverged} of {n} greedy answers differ, where {base} differs from "
            f"itself in {itself} ({TEST}: p = {p_value:.2g}). If only its speed should differ, look for the fault "
            "before trusting it."
        )
    if status == NOISE:
        return f"{differ}, which is no more than {base} differs from itself ({itself})."
    least = math.ceil(-math.log2(alpha))
    never = f"; with fewer than {least} prompts nothing can be" if sizes.tested < least else ""
    return (
        f"{differ}, {base} from itself in {itself}: too few to tell from chance (p = {p_value:.2g}, {alpha:.2g} is "
        f"wanted{never}). Ask more prompts (--check-equal)."
    )


def _counts(found: Mapping[str, Difference]) -> dict[str, Any]:
    """How many of each kind; of those with anything to compare the share that did not diverge, with its exact interval
    (null without any)."""
    kinds = [d.kind for d in found.values()]
    n = len(kinds) - kinds.count(EMPTY)
    alike = n - kinds.count(DIVERGED)
    share: dict[str, Any] = {"share_equal": None, "share_low": None, "share_high": None}
    if n:
        low, high = _interval(alike, n)
        share = {"share_equal": alike / n, "share_low": low, "share_high": high}
    return {"compared": n, **{kind: kinds.count(kind) for kind in (EQUAL, CUT, OTHER_END, DIVERGED, EMPTY)}, **share}


def _p_value(only_arm: int, only_base: int) -> float:
    """P(X >= only_arm) of X ~ Bin(only_arm + only_base, 1/2)."""
    n = only_arm + only_base
    return float(sum(math.comb(n, k) for k in range(only_base + 1)) / 2**n)  # by symmetry, and exact


def _interval(k: int, n: int) -> tuple[float, float]:
    """The exact interval of a share of which k in n were seen, by quantiles of the beta distribution."""
    low = beta_quantile(k, n - k + 1, ALPHA / 2) if k else 0.0
    high = beta_quantile(k + 1, n - k, 1 - ALPHA / 2) if k < n else 1.0
    return low, high


def _where(found: Mapping[str, Difference]) -> dict[str, Any]:
    """Where divergences begin: characters and tokens that are the same before it; null without any."""
    said: dict[str, Any] = {}
    for name in ("at_character", "at_token"):
        places = [place for d in found.values() if (place := getattr(d, name)) is not None]
        said[f"first_{name}"] = min(places) if places else None
        said[f"median_{name}"] = statistics.median_low(places) if places else None
    return said


def _examples(
    found: Mapping[str, Difference],
    answers: tuple[Mapping[str, Answer], Mapping[str, Answer]],
    prompts: Sequence[str],
) -> list[dict[str, Any]]:
    """The first differing prompts: where each begins, and both texts around it."""
    rows = []
    for prompt in [p for p in prompts if p in found and found[p].diverged][:_EXAMPLES]:
        d = found[prompt]
        ends = [side[prompt].finish_reason for side in answers]
        place = d.at_character or 0
        said = [side[prompt].text[max(0, place - _BEFORE) : place + _AFTER] for side in answers]
        rows.append(
            {
                "prompt_id": prompt,
                "at_character": d.at_character,
                "at_token": d.at_token,
                "base": said[0],
                "arm": said[1],
                "finish_reasons": ends,
                "output_tokens": [side[prompt].output_tokens for side in answers],
            }
        )
    return rows


def _failures(
    arm: str,
    mine: Mapping[tuple[str, int], Answer],
    prompts: Sequence[str],
    ended: str | None,
    repeats: int,
) -> list[dict[str, Any]]:
    """What is missing of an arm's answers: by outcome, and what was not asked at all. Empty ones are listed too."""
    wanted = [(prompt, repeat) for repeat in range(1, repeats + 1) for prompt in prompts]
    rows: dict[str, dict[str, Any]] = {}
    for key in wanted:
        answer = mine.get(key)
        if answer is not None and answer.ok:
            continue
        outcome = "not_asked" if answer is None else answer.outcome
        example = (ended or "not asked so far") if answer is None else answer.error
        row = rows.setdefault(outcome, {"arm": arm, "outcome": outcome, "count": 0, "example": example})
        row["count"] += 1
    return list(rows.values())


def _by_ids(answers: tuple[Mapping[str, Answer], Mapping[str, Answer]], found: Mapping[str, Difference]) -> bool:
    return bool(found) and all(side[prompt].token_ids for prompt in found for side in answers)


def _floor_said(base: str, floor: Mapping[str, Difference], restarted: bool) -> str:
    counts = _counts(floor)
    n = counts["compared"]
    if not n:
        return f"How far {base} answers as it did before is not known: no prompt was answered twice."
    how = "before and after a restart" if restarted else "twice"
    return f"{base} gives the same greedy answer {how} to {n - counts[DIVERGED]} of {_prompts(n)}."


def _asides(counts: Mapping[str, Any]) -> str:
    cut, end = counts[CUT], counts[OTHER_END]
    said = f" {cut} of them are alike as far as they go, and cut by max_tokens at another token." if cut else ""
    return said + (f" {end} of them have the same text and another finish reason." if end else "")


def _prompts(n: int) -> str:
    return f"{n} prompt" if n == 1 else f"{n} prompts"
