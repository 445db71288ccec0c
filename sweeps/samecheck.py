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
from sweeps.asking import Question, ask, chosen, questions
from sweeps.budget import Budget
from sweeps.equality import DIFFERENT, MISSING, Cuts, because_synthetic, compare, with_meaningless
from sweeps.events import Listener, Note
from sweeps.files import write_json
from sweeps.plan import PlannedCheck, is_synthetic, plan_checks, prices_of
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
    _asked: dict[str, Target] = field(init=False, default_factory=dict)  # whom last
    _done: set[str] = field(init=False, default_factory=set)
    concluded: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        self._prompts = chosen(self.measured, self.sweep.check_equal, self.sweep.seed)
        self._plans = {check.arm: check for check in plan_checks(self.sweep, self.measured)}
        for arm in self.sweep.arms:
            probe = (self.store.manifest["arms"].get(arm.name) or {}).get("probe") or {}
            if how := "declared in the profile" if is_synthetic(arm) else probe.get("synthetic"):
                self._synthetic[arm.name] = because_synthetic(how)

    @property
    def done(self) -> bool:
        """Every arm was asked what it is to be asked in this run."""
        return all(arm.name in self._done or self._why_meaningless(arm) for arm in self.sweep.arms)

    def owes(self, arm: ResolvedArm) -> bool:
        """Whether answers of an arm are not stored yet and another start of its server may give them."""
        base, *others = self.sweep.arms
        in_vain = all(self._why_meaningless(other) for other in (others if arm is base and others else [arm]))
        return arm.name not in self._done and not in_vain and bool(self._unanswered(arm, None))

    async def ask(self, arm: ResolvedArm, target: Target) -> int:
        """Ask an arm what it has not answered yet; how many requests that took. Raises OSError.

        For each `target` that is done once. What a server that the run starts has answered is asked a second time of
        another start. A cancellation passes through, with what was answered stored and what was spent in the journal.
        """
        if arm.name in self._done or self._asked.get(arm.name) is target:
            return 0
        self._asked[arm.name] = target
        if target.synthetic is not None:
            self._synthetic[arm.name] = because_synthetic(target.synthetic)
        elif not is_synthetic(arm):
            self._synthetic.pop(arm.name, None)  # an earlier start of its server may have been
        if why := self._why_meaningless(arm):
            self.listen(Note(f"{arm.name}: not asked for answers to compare: {why}"))
            return 0
        path = answers_path(self.store.path, arm.slug)
        spent, prices = _Spent(), prices_of(arm)
        start = self._start_of(arm)
        wanted = self._unanswered(arm, start)
        if not wanted:
            self._see_done(arm, start)
            return 0
        if self.barred(arm):
            return 0
        self.listen(Note(f"{arm.name}: {len(wanted)} greedy requests, to compare answers (uncounted)"))

        def spend(call: Call, exchange: Exchange) -> None:
            spent.add(exchange)
            self.budget.count(call, exchange, prices)

        why = "it was interrupted"
        try:
            why = await ask(
                target,
                wanted,
                path,
                spend=spend,
                limits=self.budget.used_up,
                seconds=self.budget.seconds_left(),
                say=lambda text: self.listen(Note(text)),
                start=start,
            )
        finally:
            self._ended(arm, why, spent, prices)
        self._see_done(arm, start)
        return spent.requests

    def barred(self, arm: ResolvedArm) -> bool:
        """Whether the limits have no room for asking an arm, which is then noted."""
        whole = not any(answer.answered for answer in read_answers(answers_path(self.store.path, arm.slug)))
        why = self.budget.cannot_afford(self._plans[arm.name]) if whole else self.budget.used_up()
        if why:
            self._ended(arm, why, _Spent(), prices_of(arm))
        return why is not None

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
            self._apart(),
        )
        found = with_meaningless(found, self._synthetic)
        asked = {"schema_version": SCHEMA_VERSION, "wanted": self.sweep.check_equal}
        write_json(run / "equality.json", asked | found)
        self.concluded = True
        self.listen(Note(found["text"], "warn" if found["status"] == DIFFERENT else "info"))
        return found

    def _why_meaningless(self, arm: ResolvedArm) -> str | None:
        """Why nothing would be learnt from an arm's answers: it, or the base, is known to make them up."""
        base = self.sweep.arms[0].name
        own, others = self._synthetic.get(arm.name), self._synthetic.get(base)
        return own or (others and f"of {base}, {others}")

    def _unanswered(self, arm: ResolvedArm, start: int | None) -> list[Question]:
        """What is not answered yet, and may be asked of this start of the arm's server; None: of a later one."""
        have = {a.key: a for a in read_answers(answers_path(self.store.path, arm.slug)) if a.answered}
        wanted = questions(self._prompts, self.sweep.workload.system, self._plans[arm.name].repeats)
        missing = [q for q in wanted if (q.prompt_id, q.repeat) not in have]
        if not self._restarts(arm):
            return missing
        first = {prompt: answer.start for (prompt, repeat), answer in have.items() if repeat == 1}
        return [q for q in missing if q.repeat == 1 or first.get(q.prompt_id, start) != start]

    def _restarts(self, arm: ResolvedArm) -> bool:
        """Whether second answers are to come from another start: where there is another arm to compare with."""
        return arm.launch is not None and len(self.sweep.arms) > 1

    def _start_of(self, arm: ResolvedArm) -> int | None:
        """Which start of the arm's server, of all in this folder, is up; None where the run starts none."""
        if arm.launch is None:
            return None
        lines = read_journal(self.store.path)
        return len([line for line in lines if line["event"] == "server_ready" and line.get("arm") == arm.name])

    def _see_done(self, arm: ResolvedArm, start: int | None) -> None:
        """An arm is done, but for second answers that wait for another start; a few bring no server up again."""
        waiting = len(self._unanswered(arm, None)) - len(self._unanswered(arm, start))
        if waiting <= MISSING * len(self._prompts):
            self._done.add(arm.name)

    def _apart(self) -> set[str]:
        base, *others = self.sweep.arms
        return {
            arm.name
            for arm in others
            if arm.launch is not None or base.launch is not None or (arm.url, arm.model) != (base.url, base.model)
        }

    def _cuts(self) -> Cuts:
        declared = [arm.speculation.draft_tokens for arm in self.sweep.arms if arm.speculation is not None]
        drafts = [k for k in declared if k is not None]
        tokens = self.sweep.workload.max_tokens
        return Cuts(tokens, max(drafts) + 1) if drafts and len(drafts) == len(declared) else Cuts(tokens)

    def _ended(self, arm: ResolvedArm, why: str | None, spent: _Spent, prices: tuple[float, float] | None) -> None:
        self.store.note(ASKED, arm=arm.name, reason=why, spent=spent.as_json(prices))
        if why:
            self._done.add(arm.name)
            self.listen(Note(f"{arm.name}: not asked to the end whether it answers as the others do: {why}", "warn"))
