"""How true the comparison is: 200 seeded settings of speculation, swept in virtual time against their own truth.

Each setting draws a draft length, an acceptance and a batch cost, and sweeps speculation off and on over six levels by
the client's own load loop, metrics, intervals and comparison. The truth comes from the engine alone, without the
client: runs of thousands of requests at whole concurrencies, and the root of their ratio between the two whole numbers
where it changes sides. Replies have lengths of their own, the same in both arms.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections import Counter, deque
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np

from endpoints.counters import Reading
from endpoints.simulator import theory
from endpoints.simulator.engine import Engine, EngineConfig, Finish, SpeculationConfig
from endpoints.simulator.options import SimulatorOptions
from endpoints.transport import Call, Exchange, Progress
from endpoints.virtual import VirtualTransport, prompt_tokens
from profiles.loading import Sweep, load_sweep
from profiles.workloads import load_prompts, split
from reports.comparison import compare
from sweeps.evidence import Evidence, evidence_of
from sweeps.frontier import frontier
from sweeps.measure import Prompts
from sweeps.plan import plan_sweep
from sweeps.prompts import SALT_BYTES
from sweeps.requests import Requests
from sweeps.virtual import virtual_point
from sweeps.watch import Observed

PLAIN = SimulatorOptions(max_batch=256, kv_tokens=10_000_000).engine_config()
LEVELS = [1, 2, 4, 8, 16, 32]
SECONDS = 30  # of each window: 20 blocks or more at most levels
METRICS = ("system_tps", "tps_per_user")
SHORTEST, LONGEST = 24, 72  # tokens of a reply
REQUESTS = 5000  # of each run that the truth is taken from


@dataclass(frozen=True, slots=True)
class Outcome:
    """One setting. `true` and `found` by metric: the true root (None: no crossing over the levels), and the
    comparison's own crossover."""

    setting: SpeculationConfig
    acceptance_length: float
    true: dict[str, float | None]
    found: dict[str, dict[str, Any]]

    @property
    def acceptance_error(self) -> float:
        return self.acceptance_length / theory.acceptance_length(self.setting) - 1


class OwnLengths(VirtualTransport):
    """Replies end by themselves, at a length that depends on the request alone, so it is the same in both arms."""

    async def send(self, call: Call, exchange: Exchange, on_progress: Progress | None = None) -> None:
        length = SHORTEST + call.seed % (LONGEST - SHORTEST + 1)
        await super().send(replace(call, requested_tokens=length), exchange, on_progress)


def setting(number: int) -> SpeculationConfig:
    """Drafts of 1 to 8 tokens, acceptance 0.4 to 0.9, batch cost 0.05 to 0.8 ms a sequence and drafted token
    (log-uniform)."""
    rng = np.random.default_rng((20, number))
    return SpeculationConfig(
        draft_tokens=int(rng.integers(1, 9)),
        acceptance=float(rng.uniform(0.4, 0.9)),
        draft_ns_per_token=int(rng.uniform(0.05, 0.3) * 1e6),
        verify_ns_per_sequence_token=int(math.exp(rng.uniform(math.log(0.05), math.log(0.8))) * 1e6),
    )


def settle(number: int, levels: Sequence[int] = LEVELS, seconds: float = SECONDS, requests: int = REQUESTS) -> Outcome:
    """Sweep one setting, compare its arms, and find the truth by runs of so many requests."""
    points, acceptance_length = swept(number, levels, seconds)
    comparison = compare(points, ["off", "on"], frontier(points))
    assert comparison is not None
    on = speculating(number)
    found = comparison["pairs"][0]["crossover"]
    truth = {m: true_root(on, m, levels, requests, found[m]["at"]) for m in METRICS}
    return Outcome(setting(number), acceptance_length, truth, found)


def swept(number: int, levels: Sequence[int], seconds: float) -> tuple[list[dict[str, Any]], float]:
    """(`point.json` of every point, 1 + accepted / drafts by the engine's counters over all of them)."""
    engines = {"off": PLAIN, "on": speculating(number)}
    sweep = a_sweep(number, levels, seconds)
    measured, warmup = split(load_prompts(sweep.workload))
    points, drafts, accepted = [], 0.0, 0.0
    for planned in plan_sweep(sweep, measured):
        transport = OwnLengths(engines[planned.key.arm])
        found = virtual_point(sweep, planned, Prompts(measured, warmup), transport)
        points.append(found.point)
        if planned.key.arm == "on":
            told = counted(found.requests, transport.engine)
            drafts, accepted = drafts + (told.drafts or 0), accepted + (told.accepted_tokens or 0)
    return points, 1 + accepted / drafts


def counted(r: Requests, engine: Engine) -> Evidence:
    """What the sweep makes of the engine's own counters before and after a point."""
    c = engine.snapshot().counters
    now = {
        "drafts": c.drafts,
        "draft_tokens": c.draft_tokens,
        "accepted_tokens": c.accepted,
        "generated_tokens": c.generated_tokens,
    }
    before, after = (Reading({name: {(): float(n * times)} for name, n in now.items()}) for times in (0, 1))
    evidence = evidence_of(r, np.zeros(len(r), np.int64), Observed(before, after))
    assert evidence.source == "counters", evidence.reason
    return evidence


def speculating(number: int) -> EngineConfig:
    return replace(PLAIN, speculation=setting(number), seed=number)


def a_sweep(seed: int, levels: Sequence[int], seconds: float) -> Sweep:
    arms = {name: {"url": f"http://127.0.0.1:{port}", "model": "virtual"} for port, name in enumerate(("off", "on"), 1)}
    asked = {
        "arms": arms,
        "workload": {"use": "chat-short", "max_tokens": LONGEST},
        "load": {"concurrency": list(levels), "seconds": seconds},
        "seed": seed,
    }
    return load_sweep(None, asked, {})


def true_root(
    on: EngineConfig, metric: str, levels: Sequence[int], requests: int, guess: float | None = None
) -> float | None:
    """Where the true ratio changes sides: between two neighbouring whole numbers, and there log-linear; None where it
    does not between the outermost levels. Speculation pays the less the fuller the batch, so the ratio falls.

    `guess` is only where the search begins.
    """

    def at(concurrency: int) -> float:
        i = METRICS.index(metric)
        return math.log(true_curve(on, concurrency, requests)[i] / true_curve(PLAIN, concurrency, 4 * requests)[i])

    first, last = min(levels), max(levels)
    low, high, step = first - 1, last + 1, 1  # known to be below, and above
    middle = first if guess is None else min(max(int(guess), first), last)
    while high - low > 1:
        if at(middle) > 0:
            low, middle = middle, min(middle + step, last) if high > last else (middle + high) // 2
        else:
            high, middle = middle, max(middle - step, first) if low < first else (middle + low) // 2
        step *= 2
    if low < first or high > last:
        return None
    y_low, y_high = at(low), at(high)
    return math.exp(math.log(low) + math.log(high / low) * y_low / (y_low - y_high))


@cache
def true_curve(config: EngineConfig, concurrency: int, requests: int) -> tuple[float, float]:
    """(output tokens/s, tokens/s per user at the p90 of the pace) of a closed loop straight on the engine."""
    engine, rng = Engine(config), np.random.default_rng(concurrency)
    prompts, order = prompt_sizes(), deque[int]()
    starts = deque(round(i * LONGEST * config.decode_ns(1) / concurrency) for i in range(concurrency))
    warmup, done, tokens, began, now = 4 * concurrency, 0, 0, 0, 0
    pace = []
    while done < warmup + requests:
        upcoming = engine.next_ns()
        starting = starts and (upcoming is None or starts[0] <= upcoming)
        now = max(now, starts.popleft()) if starting else (upcoming or 0)
        ended = [e.sequence for e in engine.advance(now) if isinstance(e, Finish)]
        for s in ended:
            done += 1
            if done == warmup:
                began = now
            elif done > warmup:
                tokens += s.output_tokens
                pace.append((s.chunk_ns[-1] - s.chunk_ns[0]) / (s.output_tokens - 1))
        for _ in range(len(ended) + bool(starting)):
            if not order:
                order.extend(int(i) for i in rng.permutation(len(prompts)))
            length = int(rng.integers(SHORTEST, LONGEST + 1))
            engine.submit(now, prompts[order.popleft()], length, int(rng.integers(2**62)))
    return tokens / (now - began) * 1e9, 1e9 / float(np.percentile(pace, 90, method="lower"))


@cache
def prompt_sizes() -> list[int]:
    workload = a_sweep(0, LEVELS, SECONDS).workload
    measured, _ = split(load_prompts(workload))
    texts = ("".join(m.content for m in p.with_system(workload.system)) for p in measured)
    return [prompt_tokens(len(text.encode()) + SALT_BYTES) for text in texts]


def held(outcome: Outcome, metric: str) -> bool | None:
    """Does the interval of a stated crossover hold the true one? None where none is stated with an interval."""
    found, true = outcome.found[metric], outcome.true[metric]
    if found["kind"] not in ("crosses", "several"):
        return None
    spans = [c["interval"] for c in found["crossings"] if c["interval"]["low"] is not None]
    if not spans:
        return None
    return found["kind"] == "crosses" and true is not None and spans[0]["low"] <= true <= spans[0]["high"]


def report(outcomes: list[Outcome]) -> str:
    n = len(outcomes)
    errors = [abs(o.acceptance_error) for o in outcomes]
    lines = [
        f"{n} settings: acceptance length off by {max(errors):.2%} at most, {sum(e <= 0.02 for e in errors)} of {n} "
        "within 2 %"
    ]
    for metric in METRICS:
        kinds = Counter(o.found[metric]["kind"] for o in outcomes)
        judged = [h for o in outcomes if (h := held(o, metric)) is not None]
        wrong_never = sum(o.found[metric]["kind"] == "never" and o.true[metric] is not None for o in outcomes)
        widths = [math.log(i["high"] / i["low"]) for o in outcomes if (i := o.found[metric]["interval"]) and i["low"]]
        lines.append(
            f"{metric}: {', '.join(f'{k} {kinds[k]}' for k in ('crosses', 'never', 'several', 'cannot_tell'))} "
            f"({kinds['cannot_tell'] / n:.1%} cannot tell); {len(judged)} crossovers with an interval, "
            f"{sum(judged)} ({sum(judged) / max(1, len(judged)):.1%}) hold the true one; median high / low "
            f"{math.exp(float(np.median(widths or [0]))):.2f}; 'never' wrongly: {wrong_never}"
        )
    return "\n".join(lines)


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--settings", type=int, default=200)
    asked.add_argument("--processes", type=int, default=2)
    asked.add_argument("--all", action="store_true", help="print every setting")
    options = asked.parse_args()
    for c in range(LEVELS[0], LEVELS[-1] + 1):
        true_curve(PLAIN, c, 4 * REQUESTS)  # once, before the processes fork
    with ProcessPoolExecutor(options.processes) as pool:
        outcomes = list(pool.map(settle, range(options.settings), chunksize=5))
    for o in outcomes if options.all else ():
        s = o.setting
        print(
            f"k={s.draft_tokens} p={s.acceptance:.2f} draft={s.draft_ns_per_token / 1e6:.2f} ms "
            f"verify={s.verify_ns_per_sequence_token / 1e6:.2f} ms"
        )
        for metric in METRICS:
            f, i = o.found[metric], o.found[metric]["interval"] or {}
            print(
                f"  {metric}: true {o.true[metric]} {f['kind']} at {f['at']} [{i.get('low')}, {i.get('high')}] "
                f"{held(o, metric)} {i.get('reason') or ''}"
            )
    print(report(outcomes))


if __name__ == "__main__":
    main()
