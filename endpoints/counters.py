"""A server's counters as one reading: what it drafted, accepted and generated, under any known engine's names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import isfinite
from typing import Any

import orjson
from prometheus_client.parser import text_string_to_metric_families

COUNTERS = (
    "drafts",
    "draft_tokens",
    "accepted_tokens",
    "generated_tokens",
    "prefix_queries",
    "prefix_hits",
    "prefix_misses",
)
"""Quantities that only grow. Tokens but for `drafts`: how often a draft was verified."""
PER_POSITION = "accepted_per_position"
"""The same of one draft position each (from 0)."""
GAUGES = ("running", "waiting", "kv_use", "acceptance_gauge", "tokens_per_step_gauge")
"""Quantities of the moment: requests running and waiting, the share of the KV space in use (0 to 1), and where an
engine shows nothing better, its own mean of the last steps of accepted ÷ drafted, and of tokens a step."""
QUANTITIES = (*COUNTERS, PER_POSITION, *GAUGES)

# By quantity the names of its series, newest first; the first that a page has is read. Counters may lack `_total`.
_SERIES: Mapping[str, tuple[str, ...]] = {
    "drafts": ("vllm:spec_decode_num_drafts", "llamacpp:spec_decode_num_drafts"),
    "draft_tokens": (
        "vllm:spec_decode_num_draft_tokens",
        "llamacpp:spec_decode_num_draft_tokens",
        "trtllm_spec_decode_num_draft_tokens",
    ),
    "accepted_tokens": (
        "vllm:spec_decode_num_accepted_tokens",
        "llamacpp:spec_decode_num_accepted_tokens",
        "trtllm_spec_decode_num_accepted_tokens",
    ),
    PER_POSITION: (
        "vllm:spec_decode_num_accepted_tokens_per_pos",
        "llamacpp:spec_decode_num_accepted_tokens_per_pos",
    ),
    "generated_tokens": (
        "vllm:generation_tokens",
        "sglang:generation_tokens",
        "sglang_generation_tokens",
        "llamacpp:tokens_predicted",
        "dynamo_frontend_output_tokens",
        "tgi_request_generated_tokens_sum",
    ),
    "prefix_queries": ("vllm:prefix_cache_queries", "vllm:gpu_prefix_cache_queries"),
    "prefix_misses": ("llamacpp:prompt_tokens",),  # those that were cached are not in it
    "prefix_hits": ("vllm:prefix_cache_hits", "vllm:gpu_prefix_cache_hits", "llamacpp:prompt_tokens_cached"),
    "running": (
        "vllm:num_requests_running",
        "sglang:num_running_reqs",
        "sglang_num_running_reqs",
        "llamacpp:requests_processing",
        "trtllm_num_requests_running",
        "dynamo_frontend_inflight_requests",
        "tgi_batch_current_size",
    ),
    "waiting": (
        "vllm:num_requests_waiting",
        "sglang:num_queue_reqs",
        "sglang_num_queue_reqs",
        "llamacpp:requests_deferred",
        "trtllm_num_requests_waiting",
        "dynamo_frontend_queued_requests",
        "tgi_queue_size",
    ),
    "kv_use": (
        "vllm:kv_cache_usage_perc",
        "vllm:gpu_cache_usage_perc",
        "sglang:token_usage",
        "sglang_token_usage",
        "llamacpp:kv_cache_usage_ratio",
        "trtllm_kv_cache_utilization",
    ),
    "acceptance_gauge": (
        "sglang:spec_accept_rate",
        "vllm:spec_decode_draft_acceptance_rate",
    ),
    "tokens_per_step_gauge": (
        "sglang:spec_accept_length",
        "sglang_spec_accept_length",
        "trtllm_spec_decode_acceptance_length",
    ),
}
_MODEL_LABELS = ("model_name", "model")
_POSITION_LABELS = ("position", "token_position")
_BORN = "_created"  # the twin of a counter: when it was set to zero

_ENDS = re.compile(rb"[{ \t]")  # of a series' name
_PREFIX = re.compile(r"(vllm|sglang|llamacpp|trtllm|dynamo|tgi)[:_]")

Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Reading:
    """One look at a server. `values`: quantity -> labels of a series -> value; `born`: the same labels -> when the
    counter began (Unix seconds), where a server says it. `added`: counts since the last look, from engines that hand
    each count out once.
    """

    values: Mapping[str, Mapping[Labels, float]] = field(default_factory=dict)
    born: Mapping[str, Mapping[Labels, float]] = field(default_factory=dict)
    added: Mapping[str, float] = field(default_factory=dict)
    engine: str | None = None  # by the prefix of its series: vllm, sglang, llamacpp, trtllm, …

    def total(self, quantity: str) -> float | None:
        """Sum over the series; None where there is none."""
        found = self.values.get(quantity)
        return sum(found.values()) if found else None

    @property
    def busy(self) -> float:
        """Requests running and waiting, as far as the server says."""
        return (self.total("running") or 0.0) + (self.total("waiting") or 0.0)


def wanted_lines(page: bytes, names: Mapping[str, str] | None = None) -> bytes:
    """The lines of a page, or of a part of it, that are of known quantities: pages of a busy server have thousands of
    others, and this runs beside the load. JSON is passed through."""
    if page.lstrip()[:1] == b"[":
        return page
    wanted = _wanted(tuple(sorted((names or {}).items())))
    return b"\n".join(line for line in page.split(b"\n") if _ENDS.split(line, maxsplit=1)[0] in wanted.lines)


def reading_of(page: bytes, names: Mapping[str, str] | None = None) -> Reading | None:
    """What a page of metrics says, or None when it holds nothing of this kind.

    `names`: the profile's own mapping, quantity -> series name, laid over the known ones. What is not finite is
    passed over.
    """
    if page.lstrip()[:1] == b"[":
        return _iterations(page)
    wanted = _wanted(tuple(sorted((names or {}).items())))
    text = wanted_lines(page, names).decode("utf-8", "replace")
    try:
        families = list(text_string_to_metric_families(text + "\n"))
    except ValueError:
        return None
    samples = [s for family in families for s in family.samples if isfinite(s.value)]
    values: dict[str, dict[Labels, float]] = {}
    born: dict[str, dict[Labels, float]] = {}
    for quantity, choices in wanted.series.items():
        for name in choices:
            mine = [s for s in samples if s.name in (name, f"{name}_total")]
            if not mine:
                continue
            values[quantity] = _by_labels(mine)
            born[quantity] = _by_labels([s for s in samples if s.name == name.removesuffix("_total") + _BORN])
            break
    engine = next((found[1] for s in samples if (found := _PREFIX.match(s.name))), None)
    return Reading(values, born, {}, engine) if values else None


def of_model(readings: Sequence[Reading], model: str) -> list[Reading]:
    """The readings of one server with only this model's series, where its last reading tells series apart by model and
    has one of this name; a router's page holds those of all its models."""
    own = {
        quantity
        for quantity, series in readings[-1].values.items()
        if any((name, model) in labels for labels in series for name in _MODEL_LABELS)
    }

    def kept(quantities: Mapping[str, Mapping[Labels, float]]) -> dict[str, dict[Labels, float]]:
        return {
            quantity: {
                labels: value
                for labels, value in series.items()
                if quantity not in own or any((name, model) in labels for name in _MODEL_LABELS)
            }
            for quantity, series in quantities.items()
        }

    return [replace(reading, values=kept(reading.values), born=kept(reading.born)) for reading in readings]


def together(readings: Sequence[Reading]) -> Reading:
    """The readings of several replicas as one; each series gets a label for the replica it is of."""
    if len(readings) == 1:
        return readings[0]
    values, born = (_labelled([getattr(r, name) for r in readings]) for name in ("values", "born"))
    added: dict[str, float] = {}
    for reading in readings:
        for quantity, value in reading.added.items():
            added[quantity] = added.get(quantity, 0.0) + value
    return Reading(values, born, added, readings[0].engine)


def _labelled(each: Sequence[Mapping[str, Mapping[Labels, float]]]) -> dict[str, dict[Labels, float]]:
    found: dict[str, dict[Labels, float]] = {}
    for number, quantities in enumerate(each):
        for quantity, series in quantities.items():
            of = found.setdefault(quantity, {})
            of |= {(*labels, ("replica", str(number))): value for labels, value in series.items()}
    return found


def position_of(labels: Labels) -> int | None:
    """The draft position a series is about."""
    found = next((value for name, value in labels if name in _POSITION_LABELS), "")
    return int(found) if found.isascii() and found.isdigit() else None


@dataclass(frozen=True, slots=True)
class _Wanted:
    series: Mapping[str, tuple[str, ...]]
    lines: frozenset[bytes]  # what such a line begins with, up to its labels or value


@lru_cache(8)
def _wanted(names: tuple[tuple[str, str], ...]) -> _Wanted:
    series = {**_SERIES, **{quantity: (name,) for quantity, name in names}}
    every = {name for choices in series.values() for name in choices}
    return _Wanted(series, frozenset((name + end).encode() for name in every for end in ("", "_total", _BORN)))


def _by_labels(samples: Iterable[Any]) -> dict[Labels, float]:
    return {tuple(sorted(s.labels.items())): float(s.value) for s in samples}


def _iterations(page: bytes) -> Reading | None:
    """TensorRT-LLM's JSON: a list of iterations, each handed out once."""
    try:
        listed = orjson.loads(page)
    except orjson.JSONDecodeError:
        return None
    steps = [step for step in listed if isinstance(step, dict)]
    if len(steps) != len(listed) or (steps and not any("iter" in step for step in steps)):
        return None
    spec = [s for step in steps if isinstance(s := step.get("specDecodingStats"), dict)]
    added = {
        quantity: float(sum(_number(s, name) for s in spec))
        for quantity, name in (
            ("drafts", "numRequestsWithDraftTokens"),
            ("draft_tokens", "numDraftTokens"),
            ("accepted_tokens", "numAcceptedTokens"),
        )
        if spec
    }
    values: dict[str, dict[Labels, float]] = {}
    if steps:
        last = steps[-1]
        values["running"] = {(): _number(last, "numActiveRequests")}
        values["waiting"] = {(): _number(last, "numQueuedRequests")}
        kv = last.get("kvCacheStats")
        if isinstance(kv, dict) and _number(kv, "maxNumBlocks"):
            values["kv_use"] = {(): _number(kv, "usedNumBlocks") / _number(kv, "maxNumBlocks")}
    return Reading(values, {}, added, "trtllm")


def _number(of: Mapping[str, Any], name: str) -> float:
    value = of.get(name)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value) else 0.0
