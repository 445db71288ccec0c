"""Latencies of two arms, paired by prompt: every arm is sent the same prompts in the same order, so a request of one is
held against the other's with the same prompt, and what is particular to the prompt cancels out."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from reports.points import Point
from reports.speedup import LEAST_TRIALS, LEVEL, paired_trials
from sweeps.arrow import Ints
from sweeps.distributions import student_t
from sweeps.intervals import LEAST_BLOCKS
from sweeps.metrics import tpot_ms, ttft_ms
from sweeps.requests import Floats, Requests, read_requests

LATENCIES = ("ttft_ms", "tpot_ms")
METHOD = "paired_blocks"
_COLUMNS = (
    *("index", "prompt_id", "category", "super_pass", "counted", "outcome", "chunks"),
    *("sent_ns", "first_token_ns", "last_token_ns", "output_tokens_after_first_chunk"),
)
_MOST_BLOCKS = 30  # Schmeiser, Operations Research 30, 1982: more gain little, and are shorter, so less independent
_LEAST_HELD = 8  # blocks that a category must be in


@dataclass(frozen=True, slots=True)
class Sample:
    """The successful counted requests of one point in order of issue, n of them.

    `prompts` (n,): which of `names` each was sent, `passes` (n,): in which pass over them; `categories` (n,): which of
    `kinds`, -1 for none; `latencies`: by name, (n,) in ms, NaN where there is none.
    """

    workload: str
    prompts: Ints
    names: Sequence[str]
    passes: Ints
    categories: Ints
    kinds: Sequence[str]
    latencies: Mapping[str, Floats]


@dataclass(frozen=True, slots=True)
class Pairs:
    """n requests of either arm with the same prompts, in order of issue. `logs`: by latency, (n,) of log(arm ÷ base);
    `blocks` (n,): which block each is in, of `n_blocks`; `categories` as texts, None for none."""

    logs: Mapping[str, Floats]
    categories: npt.NDArray[np.object_]
    blocks: Ints
    n_blocks: int


Samples = Callable[[Point], Sample | None]


def read_sample(path: Path, workload: str = "") -> Sample | None:
    """From a stored point's `requests.parquet`; None where it is not there, or no such file."""
    try:
        return sample_of(read_requests(path, _COLUMNS), workload)
    except (OSError, pa.ArrowException, KeyError):
        return None


def sample_of(r: Requests, workload: str = "") -> Sample:
    """Of a point's requests. `workload`: what must be the same for prompts of one name to be the same prompts."""
    keep = r.counted & r.ok
    (prompts, names), (categories, kinds) = r.codes("prompt_id"), r.codes("category")
    return Sample(
        workload,
        prompts[keep].astype(np.int64),
        names.to_pylist(),
        r.ints("super_pass")[keep],
        categories[keep].astype(np.int64),
        kinds.to_pylist(),
        {"ttft_ms": ttft_ms(r)[keep], "tpot_ms": tpot_ms(r)[keep]},
    )


def pair(base: Sample, arm: Sample, concurrency: int) -> Pairs:
    """Requests of both with the same prompt in the same pass. Blocks are of `concurrency` pairs or more, so about one
    request long or longer, and 30 at most; none is left out at the end, so the last ones may be one pair longer."""
    number = {name: i for i, name in enumerate(base.names)}
    here = np.array([number.get(name, -1) for name in arm.names] or [-1], np.int64)[arm.prompts]
    width = 1 + max(base.passes.max(initial=0), arm.passes.max(initial=0))
    mine, theirs = base.prompts * width + base.passes, np.where(here >= 0, here * width + arm.passes, -1)
    same = base.workload == arm.workload
    _, b, a = np.intersect1d(mine, theirs, return_indices=True) if same else (None, *np.empty((2, 0), np.int64))
    order = np.argsort(b)
    b, a = b[order], a[order]
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = {name: np.log(arm.latencies[name][a] / base.latencies[name][b]) for name in LATENCIES}
    blocks = min(_MOST_BLOCKS, len(b) // concurrency)
    kinds = np.array([*base.kinds, None], object)
    return Pairs(logs, kinds[base.categories[b]], np.arange(len(b)) * blocks // max(1, len(b)), blocks)


def paired(trials: Sequence[Pairs]) -> dict[str, Any]:
    """By latency, and `by_category` for each category of prompt: {ratio, interval, apart, n, reason}, the ratio arm ÷
    base being the geometric mean over pairs."""
    names = sorted({str(c) for t in trials for c in t.categories if c})
    found: dict[str, Any] = {name: _speed_up(trials, name, None) for name in LATENCIES}
    found["by_category"] = {c: {name: _speed_up(trials, name, c) for name in LATENCIES} for c in names}
    return found


def _speed_up(trials: Sequence[Pairs], latency: str, category: str | None) -> dict[str, Any]:
    """Of one latency, in one category (None: all). Three trials or more are taken as so many means, one or two as so
    many blocks."""
    means: list[float] = []
    sums: list[Floats] = []
    sizes: list[Ints] = []
    blocks = 0
    for t in trials:
        use = np.isfinite(t.logs[latency])
        if category is not None:
            use &= t.categories == category
        if not use.any():
            continue
        means.append(float(t.logs[latency][use].mean()))
        sums.append(np.bincount(t.blocks[use], t.logs[latency][use]).astype(float))
        sizes.append(np.bincount(t.blocks[use]))
        blocks += t.n_blocks
    n = int(sum(s.sum() for s in sizes))
    result: dict[str, Any] = {"ratio": None, "interval": None, "apart": None, "n": n, "reason": None}
    if not n:
        return result | {"reason": "no request of the one has the same prompt as one of the other"}
    if len(means) >= LEAST_TRIALS:
        middle, low, high = paired_trials(means)
        scope, method, units = "between_trials", "paired_trials", len(means)
    else:
        total, size = np.concatenate(sums), np.concatenate(sizes)
        middle, held = float(total.sum() / n), int((size > 0).sum())
        scope, method, units = "within_run", METHOD, held
        result["ratio"] = math.exp(middle)
        if blocks < LEAST_BLOCKS:
            reason = f"{LEAST_BLOCKS} blocks of as many pairs as users are needed, there are {blocks}"
            return result | {"reason": reason}
        if held < _LEAST_HELD:
            return result | {"reason": f"only {held} of the {blocks} blocks hold such a pair, {_LEAST_HELD} are needed"}
        half = _half_width(total[size > 0], size[size > 0])
        low, high = middle - half, middle + half
    span = {"low": math.exp(low), "high": math.exp(high), "level": LEVEL, "method": method, "n": units, "scope": scope}
    return result | {"ratio": math.exp(middle), "interval": span, "apart": not low <= 0 <= high}


def _half_width(total: Floats, size: Ints) -> float:
    """Of the mean's 95 % interval, from the sums and sizes of k blocks: Student's t with k - 1 degrees of freedom over
    the blocks' residuals (the ratio estimator's variance: Cochran, Sampling Techniques, 3rd ed., section 6.3)."""
    k, n = len(total), size.sum()
    residuals = total - size * (total.sum() / n)
    spread = math.sqrt(float((residuals**2).sum()) * k / (k - 1)) / float(n)
    return student_t(k - 1, (1 + LEVEL) / 2) * spread
