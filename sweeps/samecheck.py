"""The check for equal answers within a run: arms are asked whenever they are up, and what is stored is compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from endpoints.target import Target
from endpoints.transport import Call, Exchange
from profiles.loading import ResolvedArm, Sweep
from profiles.workloads import Prompt
from sweeps.answers import answers_path, read_answers
from sweeps.asking import ask, chosen, questions
from sweeps.budget import Budget
from sweeps.equality import DIFFERENT, Cuts, because_synthetic, compare, with_meaningless
from sweeps.events import Listener, Note
from sweeps.files import write_json
from sweeps.plan import PlannedCheck, plan_checks, prices_of
from sweeps.point import SCHEMA_VERSION
from sweeps.records import read_journal
from sweeps.store import RunStore

ASKED = "equality_asked"  # the journal's event: an arm was asked


@dataclass(slots=True)
class _Spent:
    """What asking took, as far as the server stated tokens."""

    requests: int = 0
    input_tokens: int = 0
    output_tokens: int = 0

    def add(self, exchange: Exchange) -> None:
        self.requests += 1
        self.input_tokens += exchange.input_tokens or 0
        self.output_tokens += exchange.output_tokens or 0

    def as_json(self, prices: tuple[float, float] | None) -> dict[str, Any]:
        usd = None if prices is None else self.input_tokens * prices[0] + self.output_tokens * prices[1]
        tokens = {"input_tokens": self.input_tokens, "output_tokens": self.output_tokens}
        return {"requests": self.requests, **tokens, "usd": usd}


@dataclass(slots=True)
class SameCheck:
    """`ask` and `conclude` may be called for each arm at another time, since launched arms are not up together."""

    sweep: Sweep
    measured: Sequence[Prompt]
    store: RunStore
    budget: Budget
    listen: Listener
    _prompts: list[Prompt] = field(init=False)
    _plans: dict[str, PlannedCheck] = field(init=False)
    _synthetic: dict[str, str] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._prompts = chosen(self.measured, self.sweep.check_equal, self.sweep.seed)
        self._plans = {check.arm: check for check in plan_checks(self.sweep, self.measured)}

    def missing(self, arm: ResolvedArm) -> int:
        """How many answers of an arm are not stored yet."""
        have = {answer.key for answer in read_answers(answers_path(self.store.path, arm.slug)) if answer.answered}
        wanted = questions(self._prompts, self.sweep.workload.system, self._plans[arm.name].repeats)
        return sum((q.prompt_id, q.repeat) not in have for q in wanted)

    async def ask(self, arm: ResolvedArm, target: Target) -> int:
        """Ask an arm what it has not answered yet; how many requests that took. Raises OSError.

        A cancellation passes through, with what was answered stored and what was spent in the journal.
        """
        if target.synthetic is not None:
            self._synthetic[arm.name] = because_synthetic(target.synthetic)
        path, plan = answers_path(self.store.path, arm.slug), self._plans[arm.name]
        spent, prices = _Spent(), prices_of(arm)
        wanted = questions(self._prompts, self.sweep.workload.system, plan.repeats)
        missing = self.missing(arm)
        if not missing:
            return 0
        whole = missing == len(wanted)
        if barred := self.budget.cannot_afford(plan) if whole else self.budget.used_up():
            self._ended(arm, barred, spent, prices)
            return 0
        self.listen(Note(f"{arm.name}: {missing} greedy requests, to compare answers (uncounted)"))

        def spend(call: Call, exchange: Exchange) -> None:
            spent.add(exchange)
            self.budget.count(call, exchange, prices)

        why: str | None = "it was interrupted"
        try:
            why = await ask(
                target,
                wanted,
                path,
                spend=spend,
                limits=self.budget.used_up,
                seconds=self.budget.seconds_left(),
                say=lambda text: self.listen(Note(text)),
            )
        finally:
            self._ended(arm, why, spent, prices)
        return spent.requests

    def conclude(self) -> dict[str, Any]:
        """Compare whatever is stored, and write `equality.json`. Raises OSError."""
        run, arms = self.store.path, self.sweep.arms
        lines = [line for line in read_journal(run) if line["event"] == ASKED]
        ended = {line["arm"]: line["reason"] for line in lines}  # the last of each
        found = compare(
            {arm.name: read_answers(answers_path(run, arm.slug)) for arm in arms},
            [p.id for p in self._prompts],
            {arm: why for arm, why in ended.items() if why},
            self._cuts(),
        )
        found = with_meaningless(found, self._synthetic)
        asked = {"schema_version": SCHEMA_VERSION, "wanted": self.sweep.check_equal}
        write_json(run / "equality.json", asked | found)
        self.listen(Note(found["text"], "warn" if found["status"] == DIFFERENT else "info"))
        return found

    def _cuts(self) -> Cuts:
        declared = [arm.speculation.draft_tokens for arm in self.sweep.arms if arm.speculation is not None]
        drafts = [k for k in declared if k is not None]
        tokens = self.sweep.workload.max_tokens
        return Cuts(tokens, max(drafts) + 1) if drafts and len(drafts) == len(declared) else Cuts(tokens)

    def _ended(self, arm: ResolvedArm, why: str | None, spent: _Spent, prices: tuple[float, float] | None) -> None:
        self.store.note(ASKED, arm=arm.name, reason=why, spent=spent.as_json(prices))
        if why:
            self.listen(Note(f"{arm.name}: not asked to the end whether it answers as the others do: {why}", "warn"))
