"""A continuous-batching engine as a pure discrete-event model: integer nanoseconds, no clock, no I/O.

One step at a time. At every step boundary waiting requests are admitted in order while a slot and their KV space are
free. If any was admitted, a prefill step runs and gives each of them its first token, while the running batch stalls;
otherwise one decode step gives every running sequence a token, with speculation one plus the accepted draft tokens.

A request that arrives exactly at a boundary is admitted there: a step is only fixed once time has moved past its start.

Between two finishes with nothing to admit all decode steps last equally long, so the engine jumps over them. Decode
steps have global numbers, and the line "number -> end" is kept in pieces, so the token times of a finished sequence are
a vectorised look-up.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections import deque
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt
from numpy.random import default_rng

MAX_TOKENS = 1_000_000
MAX_DRAFT_TOKENS = 64

State = Literal["waiting", "prefill", "running", "finished", "cancelled"]


@dataclass(frozen=True, slots=True)
class SpeculationConfig:
    """Draft tokens per step and their price. One is accepted with probability `acceptance` if all before it were.

    A decode step of b sequences lasts draft_ns_per_token * k + verify_ns_per_sequence_token * b * k longer.
    """

    draft_tokens: int
    acceptance: float
    draft_ns_per_token: int = 0
    verify_ns_per_sequence_token: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.draft_tokens <= MAX_DRAFT_TOKENS:
            raise ValueError(f"draft_tokens must be 1 to {MAX_DRAFT_TOKENS}, not {self.draft_tokens}")
        if not 0.0 <= self.acceptance <= 1.0:
            raise ValueError(f"acceptance must be a probability from 0 to 1, not {self.acceptance}")
        for name in ("draft_ns_per_token", "verify_ns_per_sequence_token"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative, not {getattr(self, name)}")


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """What a step costs and how much fits. A prompt longer than `prefill_budget_tokens` is prefilled alone in one step.

    Raises ValueError, naming the field, for settings with which time could stand still or nothing could ever run.
    """

    prefill_ns_per_token: int
    prefill_base_ns: int
    decode_base_ns: int
    decode_ns_per_sequence: int
    max_batch: int
    kv_capacity_tokens: int
    prefill_budget_tokens: int
    speculation: SpeculationConfig | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("prefill_ns_per_token", "prefill_base_ns", "decode_base_ns", "decode_ns_per_sequence", "seed"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative, not {getattr(self, name)}")
        for name, least in (("max_batch", 1), ("kv_capacity_tokens", 2), ("prefill_budget_tokens", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, not {getattr(self, name)}")
        if self.decode_base_ns + self.decode_ns_per_sequence < 1:
            raise ValueError("a decode step must take time: raise decode_base_ns or decode_ns_per_sequence")
        if self.prefill_base_ns + self.prefill_ns_per_token < 1:
            raise ValueError("a prefill step must take time: raise prefill_base_ns or prefill_ns_per_token")

    def prefill_ns(self, prompt_tokens: int) -> int:
        """Duration of a prefill step over `prompt_tokens` tokens in all, ns."""
        return self.prefill_base_ns + self.prefill_ns_per_token * prompt_tokens

    def decode_ns(self, batch: int) -> int:
        """Duration of a decode step of `batch` sequences, ns."""
        plain = self.decode_base_ns + self.decode_ns_per_sequence * batch
        if (s := self.speculation) is None:
            return plain
        return plain + s.draft_tokens * (s.draft_ns_per_token + s.verify_ns_per_sequence_token * batch)


@dataclass(slots=True, eq=False)
class Sequence:
    """One request. When it ends, `chunk_ns` and `chunk_tokens` have one entry a step that gave it tokens."""

    id: int
    prompt_tokens: int
    output_tokens: int
    seed: int
    watched: bool
    arrived_ns: int
    state: State = "waiting"
    first_ns: int | None = None
    ended_ns: int | None = None
    chunk_ns: npt.NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    chunk_tokens: npt.NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))
    steps: int = 0  # decode steps it needs
    base: int = 0  # global number of its first decode step
    accepted: npt.NDArray[np.uint8] | None = (
        None  # per decode step, before the cap at its last one; None: no speculation
    )
    step_tokens: npt.NDArray[np.uint8] | None = None  # per decode step, capped; None: one each

    def tokens_in(self, step: int) -> int:
        """Tokens that its `step`-th decode step (from 0) gives."""
        return 1 if self.step_tokens is None else int(self.step_tokens[step])

    def tokens_after(self, steps: int) -> npt.NDArray[np.int32]:
        """Tokens per chunk, shape (steps + 1,): the first token, then each of the first `steps` decode steps."""
        chunks = np.ones(steps + 1, np.int32)
        if self.step_tokens is not None:
            chunks[1:] = self.step_tokens[:steps]
        return chunks


@dataclass(frozen=True, slots=True)
class Progress:
    """A watched sequence got `tokens` at the end of a step; more will come."""

    ns: int
    sequence: Sequence
    tokens: int


@dataclass(frozen=True, slots=True)
class Finish:
    """A sequence got its last `tokens` at the end of a step; for a watched one this replaces its last Progress."""

    ns: int
    sequence: Sequence
    tokens: int


@dataclass(frozen=True, slots=True)
class Counters:
    """Since the start. `accepted` is what verification let through, as engines count it; `accepted_emitted` leaves out
    what the last step of a sequence threw away because only so many tokens were wanted."""

    prompt_tokens: int
    generated_tokens: int
    prefill_steps: int
    decode_steps: int
    drafts: int
    draft_tokens: int
    accepted: int
    accepted_emitted: int
    accepted_per_position: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The engine as of the last time it was told. `running` includes the sequences being prefilled."""

    ns: int
    counters: Counters
    running: int
    waiting: int
    kv_tokens: int
    kv_capacity_tokens: int


def draw_accepted(config: EngineConfig, seed: int, tokens: int) -> npt.NDArray[np.uint8]:
    """Accepted draft tokens per decode step, as many steps as `tokens` tokens take; the last step may overshoot.

    The number accepted is the number of j in 1..k with u < p**j, for one uniform u a step: P(at least j) = p**j.
    """
    spec = config.speculation
    assert spec is not None
    rng = default_rng((config.seed, seed))
    powers = spec.acceptance ** np.arange(spec.draft_tokens, 0, -1)
    per_step = 1.0 + float(powers.sum())
    blocks: list[npt.NDArray[np.uint8]] = []
    missing = tokens
    while missing > 0:
        u = rng.random(int(missing / per_step) + 8)
        block = (spec.draft_tokens - np.searchsorted(powers, u, side="right")).astype(np.uint8)
        blocks.append(block)
        missing -= int(block.sum(dtype=np.int64)) + len(block)
    if not blocks:
        return np.empty(0, np.uint8)
    drawn = np.concatenate(blocks)
    reach = np.cumsum(drawn.astype(np.int64) + 1)
    return drawn[: int(np.searchsorted(reach, tokens)) + 1]


class Engine:
    """The engine. Times passed in must not go back; when a call returns, all up to and including its time is done."""

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self._now = 0  # the last time told
        self._edge = 0  # start of the step in progress, or of the step to be chosen
        self._kind: Literal["prefill", "decode"] | None = None  # None: not chosen yet, `now` has not passed `edge`
        self._end = 0  # of the prefill step, or of the run of decode steps
        self._step = 0  # duration of one step of the run
        self._next_id = 0
        self._waiting: deque[Sequence] = deque()
        self._prefilling: list[Sequence] = []
        self._running: dict[int, Sequence] = {}
        self._watched: dict[int, Sequence] = {}  # those running
        self._finishes: list[tuple[int, int]] = []  # heap of (global number of the last decode step, id)
        self._kv = 0
        self._pending: list[Finish | Progress] = []
        self._done_steps = 0  # decode steps completed = number of the next one
        self._piece_first: list[int] = []  # pieces of "decode step number -> end": first number, start, duration
        self._piece_start: list[int] = []
        self._piece_ns: list[int] = []
        self._prune_at = 64
        self._prefill_steps = 0
        self._prompt_tokens = 0
        self._generated = 0  # of sequences that have ended
        k = config.speculation.draft_tokens if config.speculation else 0
        self._accepted = np.zeros(k + 1, np.int64)  # of ended sequences: how many steps accepted 0, 1, … k
        self._accepted_emitted = 0

    def submit(self, now_ns: int, prompt_tokens: int, output_tokens: int, seed: int, watched: bool = False) -> Sequence:
        """Hand in a request. Raises ValueError if it can never fit, a length is out of 1..1e6, or time goes back."""
        for name, tokens in (("prompt_tokens", prompt_tokens), ("output_tokens", output_tokens)):
            if not 1 <= tokens <= MAX_TOKENS:
                raise ValueError(f"{name} must be 1 to {MAX_TOKENS}, not {tokens}")
        if seed < 0:
            raise ValueError(f"seed must not be negative, not {seed}")
        if prompt_tokens + output_tokens > self.config.kv_capacity_tokens:
            raise ValueError(
                f"{prompt_tokens} prompt and {output_tokens} output tokens exceed the KV capacity of "
                f"{self.config.kv_capacity_tokens} tokens"
            )
        self._settle(now_ns)
        sequence = Sequence(self._next_id, prompt_tokens, output_tokens, seed, watched, now_ns)
        if self.config.speculation is None:
            sequence.steps = output_tokens - 1
        else:
            accepted = draw_accepted(self.config, seed, output_tokens - 1)
            step_tokens = accepted + np.uint8(1)
            if len(accepted):
                step_tokens[-1] -= int(step_tokens.sum(dtype=np.int64)) - (output_tokens - 1)
            sequence.accepted, sequence.step_tokens, sequence.steps = accepted, step_tokens, len(accepted)
        self._next_id += 1
        self._waiting.append(sequence)
        if self._admissible():
            self._cut(now_ns)
        return sequence

    def cancel(self, now_ns: int, sequence: Sequence) -> None:
        """Take a request out; no effect once it has ended.

        Its slot and KV space are free at once, its tokens so far stay counted, the step in progress keeps its duration.
        """
        self._settle(now_ns)
        if sequence.state in ("finished", "cancelled"):
            return
        if sequence.state == "waiting":
            self._waiting.remove(sequence)
            if self._admissible():
                self._cut(now_ns)
        else:
            self._cut(now_ns)
            self._kv -= sequence.prompt_tokens + sequence.output_tokens
            if sequence.state == "prefill":
                self._prefilling.remove(sequence)
            else:
                del self._running[sequence.id]
                self._watched.pop(sequence.id, None)
                self._finishes = [f for f in self._finishes if f[1] != sequence.id]
                heapq.heapify(self._finishes)
                self._close(sequence, self._steps_by_now() - sequence.base)
        sequence.state = "cancelled"
        sequence.ended_ns = now_ns

    def next_ns(self) -> int | None:
        """The next time at which something happens if nothing is submitted or cancelled: None when idle."""
        return self._pending[0].ns if self._pending else self._boundary()

    def advance(self, to_ns: int) -> list[Finish | Progress]:
        """Let time pass to `to_ns`; what happened up to and including it, in time order, then in order of arrival."""
        self._settle(to_ns)
        events, self._pending = self._pending, []
        return events

    @property
    def step_ns(self) -> int:
        """Duration of the step in progress, or of the one that would begin now; 0 when idle."""
        if self._kind is not None:
            return self._step
        if chosen := self._admissible():
            return self.config.prefill_ns(sum(s.prompt_tokens for s in chosen))
        return self.config.decode_ns(len(self._running)) if self._running else 0

    def snapshot(self) -> Snapshot:
        """Counters and occupancy now. Costs O(tokens of the running sequences)."""
        done = self._steps_by_now()
        accepted, emitted, generated = self._accepted.copy(), self._accepted_emitted, self._generated
        for s in self._running.values():
            steps = done - s.base
            tokens = int(s.tokens_after(steps).sum(dtype=np.int64))
            generated += tokens
            if s.accepted is not None:
                accepted += np.bincount(s.accepted[:steps], minlength=len(accepted))
                emitted += tokens - 1 - steps
        drafts = int(accepted.sum())
        per_position = tuple(int(n) for n in accepted[::-1].cumsum()[::-1][1:])  # j: steps that accepted more than j
        spec = self.config.speculation
        counters = Counters(
            prompt_tokens=self._prompt_tokens,
            generated_tokens=generated,
            prefill_steps=self._prefill_steps,
            decode_steps=done,
            drafts=drafts,
            draft_tokens=drafts * (spec.draft_tokens if spec else 0),
            accepted=sum(per_position),
            accepted_emitted=emitted,
            accepted_per_position=per_position,
        )
        running = len(self._running) + len(self._prefilling)
        return Snapshot(self._now, counters, running, len(self._waiting), self._kv, self.config.kv_capacity_tokens)

    # The state machine: choose a step at `edge` (commit), let it end (complete), cut a run of steps short.

    def _settle(self, to_ns: int) -> None:
        if to_ns < self._now:
            raise ValueError(f"time goes back: {to_ns} ns after {self._now} ns")
        self._now = to_ns
        while (end := self._boundary()) is not None and end <= to_ns:
            if self._kind is None:
                self._commit()
            self._complete()
        if self._kind is None and to_ns > self._edge:
            if end is None:
                self._edge = to_ns
            else:
                self._commit()

    def _boundary(self) -> int | None:
        """End of the step or run in progress, or of the one that would begin at `edge`."""
        if self._kind is not None:
            return self._end
        if chosen := self._admissible():
            return self._edge + self.config.prefill_ns(sum(s.prompt_tokens for s in chosen))
        if not self._running:
            return None
        return self._edge + self._run_steps() * self.config.decode_ns(len(self._running))

    def _admissible(self) -> list[Sequence]:
        """The head of the queue that a prefill step beginning now would take."""
        chosen: list[Sequence] = []
        if not self._waiting:
            return chosen
        slots = self.config.max_batch - len(self._running) - len(self._prefilling)
        kv = self.config.kv_capacity_tokens - self._kv
        budget = self.config.prefill_budget_tokens
        for s in self._waiting:
            kv -= s.prompt_tokens + s.output_tokens
            budget -= s.prompt_tokens
            if len(chosen) == slots or kv < 0 or (chosen and budget < 0):
                break
            chosen.append(s)
        return chosen

    def _run_steps(self) -> int:
        """Decode steps until someone must look: the next finish, or the very next step while a sequence is watched."""
        return 1 if self._watched else self._finishes[0][0] - self._done_steps + 1

    def _commit(self) -> None:
        chosen = self._admissible()
        if chosen:
            for s in chosen:
                self._waiting.popleft()
                s.state = "prefill"
                self._kv += s.prompt_tokens + s.output_tokens
            self._prefilling = chosen
            self._kind = "prefill"
            self._step = self.config.prefill_ns(sum(s.prompt_tokens for s in chosen))
            self._end = self._edge + self._step
        else:
            self._kind = "decode"
            self._step = self.config.decode_ns(len(self._running))
            self._end = self._edge + self._run_steps() * self._step
            self._add_piece()

    def _complete(self) -> None:
        kind, self._kind = self._kind, None
        start, self._edge = self._edge, self._end
        if kind == "prefill":
            self._prefill_steps += 1
            chosen, self._prefilling = self._prefilling, []
            for s in chosen:
                self._begin(s)
            return
        self._done_steps += (self._end - start) // self._step
        events: list[Finish | Progress] = []
        while self._finishes and self._finishes[0][0] < self._done_steps:
            s = self._running.pop(heapq.heappop(self._finishes)[1])
            self._watched.pop(s.id, None)
            events.append(self._finish(s))
        if self._watched:
            last = self._done_steps - 1
            events += [Progress(self._edge, s, s.tokens_in(last - s.base)) for s in self._watched.values()]
            events.sort(key=lambda e: e.sequence.id)
        self._pending += events

    def _cut(self, now_ns: int) -> None:
        """End the run of decode steps with the one in progress: what is admitted or who is in it will change."""
        if self._kind == "decode":
            steps = -((self._edge - now_ns) // self._step)
            self._end = min(self._end, self._edge + steps * self._step)
            self._settle(now_ns)  # that end may be now

    def _steps_by_now(self) -> int:
        return self._done_steps + ((self._now - self._edge) // self._step if self._kind == "decode" else 0)

    # Sequences

    def _begin(self, s: Sequence) -> None:
        s.first_ns, s.base, s.state = self._edge, self._done_steps, "running"
        self._prompt_tokens += s.prompt_tokens
        if s.steps == 0:
            self._pending.append(self._finish(s))
            return
        self._running[s.id] = s
        heapq.heappush(self._finishes, (s.base + s.steps - 1, s.id))
        if s.watched:
            self._watched[s.id] = s
            self._pending.append(Progress(self._edge, s, 1))

    def _finish(self, s: Sequence) -> Finish:
        s.state, s.ended_ns = "finished", self._edge
        self._kv -= s.prompt_tokens + s.output_tokens
        self._close(s, s.steps)
        return Finish(self._edge, s, int(s.chunk_tokens[-1]))

    def _close(self, s: Sequence, steps: int) -> None:
        """Fix the token times of a sequence that has had `steps` decode steps, and count it."""
        assert s.first_ns is not None
        s.chunk_tokens = s.tokens_after(steps)
        s.chunk_ns = np.empty(steps + 1, np.int64)
        s.chunk_ns[0] = s.first_ns
        s.chunk_ns[1:] = self._ends(s.base, steps)
        tokens = int(s.chunk_tokens.sum(dtype=np.int64))
        self._generated += tokens
        if s.accepted is not None:
            self._accepted += np.bincount(s.accepted[:steps], minlength=len(self._accepted))
            self._accepted_emitted += tokens - 1 - steps

    # Decode step numbers to times

    def _ends(self, base: int, steps: int) -> npt.NDArray[np.int64]:
        """Ends of the decode steps base … base + steps - 1, ns, shape (steps,)."""
        if steps == 0:
            return np.empty(0, np.int64)
        low = bisect_right(self._piece_first, base) - 1
        high = bisect_right(self._piece_first, base + steps - 1)
        number = np.arange(base, base + steps)
        if high == low + 1:
            return self._piece_start[low] + (number - (self._piece_first[low] - 1)) * self._piece_ns[low]
        first = np.array(self._piece_first[low:high])
        piece = np.searchsorted(first, number, side="right") - 1
        start, duration = np.array(self._piece_start[low:high]), np.array(self._piece_ns[low:high])
        ends: npt.NDArray[np.int64] = start[piece] + (number - first[piece] + 1) * duration[piece]
        return ends

    def _add_piece(self) -> None:
        first, start, duration = self._piece_first, self._piece_start, self._piece_ns
        goes_on = first and duration[-1] == self._step
        if goes_on and start[-1] + (self._done_steps - first[-1]) * self._step == self._edge:
            return
        first.append(self._done_steps)
        start.append(self._edge)
        duration.append(self._step)
        if len(first) >= self._prune_at:
            oldest = next(iter(self._running.values())).base  # they are in order of admission
            unused = bisect_right(first, oldest) - 1
            del first[:unused], start[:unused], duration[:unused]
            self._prune_at = 2 * len(first) + 64
