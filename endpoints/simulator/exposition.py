"""The server's counters in Prometheus' text format, under vLLM's names."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from endpoints.simulator.engine import Snapshot


class EngineCollector(Collector):
    """Reads the engine at every scrape. Series on speculation exist only with speculation, as in vLLM."""

    def __init__(
        self,
        model: str,
        speculating: bool,
        snapshot: Callable[[], Snapshot],
        finished: Callable[[], Mapping[str, int]],
    ):
        self._labels = {"model_name": model, "engine": "0"}
        self._speculating, self._snapshot, self._finished = speculating, snapshot, finished
        self._created_s = time.time()

    def collect(self) -> Iterable[Metric]:
        snapshot = self._snapshot()
        counters = snapshot.counters
        yield self._gauge("vllm:num_requests_running", "Requests in the batch.", snapshot.running)
        yield self._gauge("vllm:num_requests_waiting", "Requests waiting for a place.", snapshot.waiting)
        used = snapshot.kv_tokens / snapshot.kv_capacity_tokens
        yield self._gauge("vllm:kv_cache_usage_perc", "KV space in use, 1 is all.", used)
        yield self._counter("vllm:prompt_tokens", "Prompt tokens prefilled.", counters.prompt_tokens)
        yield self._counter("vllm:generation_tokens", "Tokens generated.", counters.generated_tokens)
        yield self._counters("vllm:request_success", "Requests finished.", "finished_reason", self._finished())
        if self._speculating:
            name = "vllm:spec_decode_num_"
            yield self._counter(name + "drafts", "Drafts.", counters.drafts)
            yield self._counter(name + "draft_tokens", "Tokens drafted.", counters.draft_tokens)
            yield self._counter(name + "accepted_tokens", "Draft tokens accepted.", counters.accepted)
            per_position = {str(j): n for j, n in enumerate(counters.accepted_per_position)}
            text = "Draft tokens accepted, by position."
            yield self._counters(name + "accepted_tokens_per_pos", text, "position", per_position)

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(name, text, labels=list(self._labels))
        family.add_metric(list(self._labels.values()), value)
        return family

    def _counter(self, name: str, text: str, value: int) -> Metric:
        family = CounterMetricFamily(name, text, labels=list(self._labels))
        family.add_metric(list(self._labels.values()), value, created=self._created_s)
        return family

    def _counters(self, name: str, text: str, label: str, values: Mapping[str, int]) -> Metric:
        family = CounterMetricFamily(name, text, labels=[*self._labels, label])
        for key, value in values.items():
            family.add_metric([*self._labels.values(), key], value, created=self._created_s)
        return family


def exposition(collector: Collector) -> bytes:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    return generate_latest(registry)
