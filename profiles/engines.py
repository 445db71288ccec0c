"""Ready-made arm profiles of serving engines: the command that serves a model, and how a declared speculation becomes
the engine's own flags. Off is the command without them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from profiles.errors import Refusal, did_you_mean

if TYPE_CHECKING:
    from profiles.models import Speculation

NEEDED, OPTIONAL, NONE = "needed", "optional", "none"


@dataclass(frozen=True, slots=True)
class Told:
    """What an engine is told: words of its command, and entries of its options file."""

    flags: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Method:
    """A way of drafting. `tell` takes the drafter and the number of drafted tokens."""

    drafter: str  # needed | optional | none
    tell: Callable[[str, int], Told]


@dataclass(frozen=True, slots=True)
class Engine:
    """`program` starts it; behind it come model, address and flags. `reset`: the route that empties its prefix
    cache. `options`: of an engine that has an options file, what stands in it for every arm."""

    title: str
    program: tuple[str, ...]
    serve: tuple[str, ...]  # {model}, {port} and, with an options file, {options}
    methods: Mapping[str, Method]
    reset: str | None = None
    options: Mapping[str, Any] | None = None


def _vllm(method: str, drafter: str = NEEDED, **fixed: Any) -> Method:
    def tell(model: str, tokens: int) -> Told:
        named = {"model": model} if model else {}
        config = {"method": method, **named, "num_speculative_tokens": tokens, **fixed}
        return Told(("--speculative-config", json.dumps(config)))

    return Method(drafter, tell)


def _sglang(algorithm: str, drafter: str = NEEDED) -> Method:
    """A chain: one candidate a step. SGLang counts the token that is verified anyway among the drafted ones."""

    def tell(model: str, tokens: int) -> Told:
        flags = ["--speculative-algorithm", algorithm]
        flags += ["--speculative-draft-model-path", model] if model else []
        if algorithm == "NGRAM":
            flags += ["--speculative-ngram-max-bfs-breadth", "1"]
        else:
            flags += ["--speculative-num-steps", str(tokens), "--speculative-eagle-topk", "1"]
        return Told((*flags, "--speculative-num-draft-tokens", str(tokens + 1)))

    return Method(drafter, tell)


def _tensorrt(decoding: str, drafter: str = NEEDED, length: str = "max_draft_len") -> Method:
    def tell(model: str, tokens: int) -> Told:
        named = {"speculative_model": model} if model else {}
        return Told(options={"speculative_config": {"decoding_type": decoding, length: tokens, **named}})

    return Method(drafter, tell)


def _llamacpp(kind: str, drafter: str = NEEDED, length: str = "--spec-draft-n-max") -> Method:
    def tell(model: str, tokens: int) -> Told:
        return Told(("--spec-type", kind, *(("-md", model) if model else ()), length, str(tokens)))

    return Method(drafter, tell)


_AT = ("--host", "127.0.0.1", "--port", "{port}")

ENGINES: dict[str, Engine] = {
    "vllm": Engine(
        "vLLM",
        ("vllm", "serve"),
        ("{model}", *_AT),
        {
            "ngram": _vllm("ngram", NONE, prompt_lookup_min=2, prompt_lookup_max=4),
            "draft_model": _vllm("draft_model"),
            "eagle": _vllm("eagle"),
            "eagle3": _vllm("eagle3"),
            "mtp": _vllm("mtp", OPTIONAL),
        },
        reset="/reset_prefix_cache",
    ),
    "sglang": Engine(
        "SGLang",
        ("python3", "-m", "sglang.launch_server"),
        ("--model-path", "{model}", *_AT, "--enable-metrics"),
        {
            "ngram": _sglang("NGRAM", NONE),
            "draft_model": _sglang("STANDALONE"),
            "eagle": _sglang("EAGLE"),
            "eagle3": _sglang("EAGLE3"),
            "mtp": _sglang("NEXTN", OPTIONAL),
        },
        reset="/flush_cache",
    ),
    "trtllm": Engine(
        "TensorRT-LLM",
        ("trtllm-serve",),
        ("{model}", *_AT, "--extra_llm_api_options", "{options}"),
        {
            "ngram": _tensorrt("NGram", NONE),
            "draft_model": _tensorrt("DraftTarget"),
            "eagle3": _tensorrt("Eagle3"),
            "mtp": _tensorrt("MTP", NONE, "num_nextn_predict_layers"),
        },
        # Its pages of metrics are empty without: iterations with their drafts as JSON, and requests for Prometheus.
        options={"enable_iter_perf_stats": True, "return_perf_metrics": True},
    ),
    "llamacpp": Engine(
        "llama.cpp",
        ("llama-server",),
        ("-m", "{model}", *_AT, "--metrics"),
        {
            "ngram": _llamacpp("ngram-simple", NONE, "--spec-ngram-simple-size-m"),
            "draft_model": _llamacpp("draft-simple"),
            "eagle3": _llamacpp("draft-eagle3"),
            "mtp": _llamacpp("draft-mtp", OPTIONAL),
        },
    ),
}

_SAME = {
    "draft": "draft_model",
    "draft-simple": "draft_model",
    "standalone": "draft_model",
    "nextn": "mtp",
    "ngram-simple": "ngram",
}
"""Other names of methods, as engines spell them."""


def told(name: str, speculation: Speculation | None) -> Told:
    """What the engine `name` is told of a declared speculation; nothing without one.

    Raises Refusal, with the key inside the declaration, on a method it does not have, and on what is missing or too
    much of drafter and draft_tokens.
    """
    if speculation is None:
        return Told()
    engine, asked = ENGINES[name], speculation.method
    method = engine.methods.get(_SAME.get(asked.lower(), asked.lower()))
    if method is None:
        raise Refusal(
            f"the profile of {engine.title} has no such method", did_you_mean(asked, engine.methods), "method"
        )
    if speculation.draft_tokens is None:
        raise Refusal(f"{engine.title} has to be told how many tokens to draft", "add draft_tokens: 4", "draft_tokens")
    if method.drafter == NEEDED and speculation.drafter is None:
        raise Refusal(f"{asked} needs a drafter", "add drafter: NAME or PATH", "drafter")
    if method.drafter == NONE and speculation.drafter is not None:
        raise Refusal(f"{asked} has no drafter", "leave drafter out", "drafter")
    return method.tell(speculation.drafter or "", speculation.draft_tokens)
