"""Facts of serving engines: the names of their metrics, the pages that tell their version and settings."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

_SERIES = re.compile(r"^([A-Za-z_:][A-Za-z0-9_:]*)(?:\{[^\n]*\})?[ \t]+[-+0-9.NI]\S*", re.MULTILINE)
_DEEPEST = 3


@dataclass(frozen=True, slots=True)
class Engine:
    """`prefixes` of its Prometheus series, and what those about speculative decoding have in their names."""

    name: str
    prefixes: tuple[str, ...]
    speculation: tuple[str, ...] = ("spec_decode",)


ENGINES = (
    Engine("vLLM", ("vllm:",)),
    Engine("SGLang", ("sglang:", "sglang_"), ("spec_",)),
    Engine("llama.cpp", ("llamacpp:",)),
    Engine("TensorRT-LLM", ("trtllm_", "nv_trt_llm_")),
    Engine("Triton", ("nv_inference_",)),
    Engine("Dynamo", ("dynamo_",), ("spec_",)),
    Engine("Text Generation Inference", ("tgi_",), ("skipped_tokens",)),
    Engine("LMDeploy", ("lmdeploy:",)),
)
OWNERS = {"vllm": "vLLM", "sglang": "SGLang", "llamacpp": "llama.cpp", "lmdeploy": "LMDeploy"}
"""`owned_by` in a list of models, and the engine that writes it."""

# TensorRT-LLM keeps its Prometheus text at the second; at the first it has JSON.
METRICS_PAGES = ("/metrics", "/prometheus/metrics")
HEALTH_PAGES = ("/health", "/v2/health/ready", "/health_generate")
INFO_PAGES = {
    "/version": None,  # vLLM, TensorRT-LLM
    "/server_info": "SGLang",
    "/get_server_info": "SGLang",  # its name in older versions
    "/props": "llama.cpp",
    "/info": "Text Generation Inference",
    "/api/version": "Ollama",
    "/v2": "Triton",
}
"""Pages that tell version and settings as JSON, and the engine where only one has such a page."""

_VERSION = ("version", "build_info")
_LIMITS = {
    "max_model_len": "context",
    "context_length": "context",
    "n_ctx": "context",
    "max_running_requests": "at once",
    "max_num_seqs": "at once",
    "max_concurrent_requests": "at once",
    "total_slots": "at once",
}
_SPECULATION = (
    "speculative_algorithm",
    "speculative_num_draft_tokens",
    "speculative_num_steps",
    "speculative_eagle_topk",
    "speculative_draft_model_path",
    "speculative_config",
    "speculative.synth_len",
    "speculative.synth_rates",
    "simulate_acc_len",
)


@dataclass(frozen=True, slots=True)
class Facts:
    """What a page told. `limits`: "context" (tokens) and "at once" (requests); `speculation`: its settings as named."""

    version: str | None
    limits: Mapping[str, int]
    speculation: Mapping[str, Any]

    def __bool__(self) -> bool:
        return bool(self.version or self.limits or self.speculation)


def series_in(text: str) -> frozenset[str]:
    """Names of the Prometheus series in `text`, without the `_created` twins of counters."""
    return frozenset(name for name in _SERIES.findall(text) if not name.endswith("_created"))


def engines_of(series: frozenset[str]) -> dict[str, tuple[int, int]]:
    """Engine -> (its series, those about speculative decoding), by their names."""
    found = {}
    for engine in ENGINES:
        own = [name for name in series if name.startswith(engine.prefixes)]
        if own:
            found[engine.name] = (len(own), sum(any(part in name for part in engine.speculation) for name in own))
    return found


def facts_of(page: Any) -> Facts:
    """What is worth knowing of a JSON page; only fields known by name are taken, so nothing else can leak."""
    version: str | None = None
    limits: dict[str, int] = {}
    speculation: dict[str, Any] = {}
    for name, value in _fields(page):
        if name in _VERSION and isinstance(value, str) and value:
            version = version or value
        elif name in _LIMITS and type(value) is int and value > 0:
            limits.setdefault(_LIMITS[name], value)
        elif name in _SPECULATION and value:
            speculation.setdefault(name, value if isinstance(value, int | dict) else str(value))
    return Facts(version, limits, speculation)


def declared(speculation: Mapping[str, Any]) -> dict[str, Any]:
    """What a profile's `speculation` should say for an engine's own settings."""
    config = speculation.get("speculative_config")
    config = config if isinstance(config, Mapping) else {}
    method = speculation.get("speculative_algorithm") or config.get("method")
    drafter = speculation.get("speculative_draft_model_path") or config.get("model")
    tokens = config.get("num_speculative_tokens") or speculation.get("speculative_num_draft_tokens")
    said = {"method": str(method).lower() if method else None, "drafter": drafter, "draft_tokens": tokens}
    return {name: value for name, value in said.items() if value}


def synthetic_in(settings: Any) -> str | None:
    """The setting by which a server accepts drafts by a rule rather than by its model, `name: value`; None without."""
    for name, value in _fields(settings):
        if re.search("synth|simulate_acc", f"{name} {value}" if isinstance(value, str) else name) and value:
            return f"{name}: {value}"
    return None


def _fields(value: Any, depth: int = 0) -> Iterator[tuple[str, Any]]:
    """(name, value) of every field, the outer ones first."""
    if isinstance(value, Mapping):
        yield from ((str(name), below) for name, below in value.items())
        below_it = list(value.values())
    else:
        below_it = value[:4] if isinstance(value, list) else []
    if depth < _DEEPEST:
        for below in below_it:
            yield from _fields(below, depth + 1)
