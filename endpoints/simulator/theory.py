"""What the engine must give in simple settings, by formula: the yardstick for whoever measures it.

The setting: a closed loop of C requests, each with P prompt and N >= 2 output tokens; a client that sends the next
request the instant one ends, so a replacement is admitted at the boundary at which its predecessor ended. A real client
is late by its turnaround and its request waits for the end of the step in progress; these formulas leave that out.

Notation: b = sequences that fit at once, d = decode_ns(b), n = decode steps a request needs,
g = prefill steps per cycle of b requests, B and w = prefill base and per-token cost.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from endpoints.simulator.engine import EngineConfig, SpeculationConfig


@dataclass(frozen=True, slots=True)
class Steady:
    """The closed loop in its steady state; times are means in ns, rates are per second."""

    system_tps: float
    request_rate: float
    tpot_ns: float
    ttft_ns: float
    e2e_ns: float
    batch: int
    decode_steps_per_request: float


def acceptance_length(spec: SpeculationConfig | None) -> float:
    """1 + accepted / drafts, in expectation: 1 + p + … + p**k = (1 - p**(k+1)) / (1 - p).

    Draft token j counts if all of 1..j are accepted, which has probability p**j; the verified token itself adds the 1.
    The server's counters hold it exactly, whatever the request lengths, since a sequence decides to stop only after a
    step (Wald). Tokens *delivered* per step are fewer, see `expected_steps`: the last step is cut to the tokens wanted.
    """
    if spec is None:
        return 1.0
    return math.fsum(spec.acceptance**j for j in range(spec.draft_tokens + 1))


def expected_steps(tokens: int, spec: SpeculationConfig | None) -> float:
    """Decode steps that `tokens` tokens take, in expectation, exactly.

    T(m) = 1 + sum over a = 0..k of P(a accepted) * T(m - 1 - a), with T(m) = 0 for m <= 0, P(a) = p**a * (1 - p) for
    a < k and P(k) = p**k. The short cut tokens / acceptance_length ignores that the last step may overshoot and so is
    too low, by less than one step.
    """
    if spec is None:
        return float(tokens)
    k, p = spec.draft_tokens, spec.acceptance
    chance = [p**a * (1 - p) for a in range(k)] + [p**k]
    steps = [0.0]
    for m in range(1, tokens + 1):
        steps.append(1.0 + math.fsum(chance[a] * steps[m - 1 - a] for a in range(min(k + 1, m))))
    return steps[tokens]


def tokens_per_step(output_tokens: int, spec: SpeculationConfig | None) -> float:
    """Tokens delivered per decode step of a request of `output_tokens` (the first of them comes from prefill)."""
    return (output_tokens - 1) / expected_steps(output_tokens - 1, spec)


def fitting_batch(config: EngineConfig, concurrency: int, prompt_tokens: int, output_tokens: int) -> int:
    """Requests that run at once: limited by concurrency, slots and KV space."""
    return min(concurrency, config.max_batch, config.kv_capacity_tokens // (prompt_tokens + output_tokens))


def mixed(config: EngineConfig, concurrency: int, prompt_tokens: int, output_tokens: int) -> Steady:
    """The closed loop whose requests are spread over their phases: by starts apart, or by speculation's randomness.

    Engine time is all prefill or decode steps, and every decode step carries b sequences: per request that is n * d / b
    of decode steps. In a cycle each of the b slots is prefilled once: b * P tokens, in g steps. Slots that finish with
    the same step share a prefill step. With independent phases a slot finishes with a given step with probability 1/n,
    so a decode step is followed by a prefill step with probability 1 - (1 - 1/n)**b, and g = n * (1 - (1 - 1/n)**b).
    Without speculation the phases never change; evenly spread at the start, they stay so, and g = min(b, n). Then

        request_rate X = b / (n * d + g * B + b * P * w),     system_tps = N * X.

    By Little's law a request takes C / X in all, of which b / X in a slot and the rest in the queue. In its slot it
    first sits through its own prefill step, of B + P * w * (mean prompts in it: 1 + (b - 1) / n, or b / g without
    speculation); the rest is decoding and the prefill of others:

        ttft = (C - b) / X + own prefill,     tpot = (b / X - own prefill) / (N - 1).

    Approximate only in how finishes coincide: g weighs B, the mean prompts weigh the ttft.
    Raises ValueError for N < 2 or a request that cannot fit.
    """
    b = _checked_batch(config, concurrency, prompt_tokens, output_tokens)
    n = expected_steps(output_tokens - 1, config.speculation)
    w, base = config.prefill_ns_per_token, config.prefill_base_ns
    if config.speculation is None:
        groups = min(b, n)
        prompts = b / groups
    else:
        groups, prompts = n * (1 - (1 - 1 / n) ** b), 1 + (b - 1) / n
    cycle = n * config.decode_ns(b) + groups * base + b * prompt_tokens * w
    own = base + prompts * prompt_tokens * w
    return _steady(cycle, own, b, concurrency, output_tokens, n)


def lockstep(config: EngineConfig, concurrency: int, prompt_tokens: int, output_tokens: int) -> Steady:
    """The closed loop without speculation whose requests all start at once: they end at once too, so for ever.

    Exact. Each cycle is as many prefill steps as the budget asks for, then n = N - 1 decode steps:

        cycle = n * d + sum of prefill steps,     X = C / cycle.

    Requests of the j-th prefill step have ttft = the first j steps' durations and stall for the later ones, so the
    means weight each prefill step by the requests in it. Raises ValueError with speculation (lengths in steps differ
    and the requests mix) or if the C requests do not fit at once.
    """
    b = _checked_batch(config, concurrency, prompt_tokens, output_tokens)
    if config.speculation is not None:
        raise ValueError("with speculation requests do not stay in lockstep")
    if b < concurrency:
        raise ValueError(f"only {b} of {concurrency} requests fit at once, so they cannot stay in lockstep")
    n = output_tokens - 1
    at_once = max(1, config.prefill_budget_tokens // prompt_tokens)
    sizes = [min(at_once, b - i) for i in range(0, b, at_once)]
    elapsed, ttft = 0, 0.0
    for size in sizes:
        elapsed += config.prefill_ns(size * prompt_tokens)
        ttft += elapsed * size / b
    return _steady(n * config.decode_ns(b) + elapsed, ttft, b, concurrency, output_tokens, n)


def crossover(config: EngineConfig, output_tokens: int | None = None) -> float:
    """The batch size from which speculation no longer pays, as a real number; inf if it goes on paying.

    It pays while E * plain(b) > speculating(b), where E is the tokens per step. With decode_base A,
    decode_ns_per_sequence s, draft cost f and verification cost v: E * (A + s*b) > A + s*b + k*f + k*v*b, so up to

        b = ((E - 1) * A - k * f) / (k * v - (E - 1) * s).

    Prefill costs both the same and drops out. E is the acceptance length, or the tokens delivered per step for requests
    of `output_tokens`. A result below 1 means it never pays; 0 also stands for a loss at batch 1 that shrinks with
    b, where it might begin to pay instead. Slots are not considered: compare with max_batch.
    Raises ValueError without speculation.
    """
    spec = config.speculation
    if spec is None:
        raise ValueError("a crossover needs a speculating configuration")
    k = spec.draft_tokens
    gain = (acceptance_length(spec) if output_tokens is None else tokens_per_step(output_tokens, spec)) - 1
    head_start = gain * config.decode_base_ns - k * spec.draft_ns_per_token
    growth = k * spec.verify_ns_per_sequence_token - gain * config.decode_ns_per_sequence
    if growth > 0:
        return max(0.0, head_start / growth)
    return math.inf if head_start > growth else 0.0


def _checked_batch(config: EngineConfig, concurrency: int, prompt_tokens: int, output_tokens: int) -> int:
    if output_tokens < 2 or prompt_tokens < 1 or concurrency < 1:
        raise ValueError("the formulas need concurrency >= 1, prompt tokens >= 1 and output tokens >= 2")
    b = fitting_batch(config, concurrency, prompt_tokens, output_tokens)
    if b < 1:
        raise ValueError("such a request does not fit into the KV capacity")
    return b


def _steady(
    cycle_ns: float, own_prefill_ns: float, b: int, concurrency: int, output_tokens: int, steps: float
) -> Steady:
    return Steady(
        system_tps=1e9 * b * output_tokens / cycle_ns,
        request_rate=1e9 * b / cycle_ns,
        tpot_ns=(cycle_ns - own_prefill_ns) / (output_tokens - 1),
        ttft_ns=(concurrency - b) * cycle_ns / b + own_prefill_ns,
        e2e_ns=concurrency * cycle_ns / b,
        batch=b,
        decode_steps_per_request=steps,
    )
