"""NVIDIA Dynamo's frontend over its mocker: a real server's HTTP, a simulated engine behind it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from tests.real.engines.environments import environment, model
from tests.real.engines.servers import Engine, Server, free_port

MODEL, DRAFT_TOKENS = "m", 3
# The chance of each drafted token, given those before it: 1 + .8 + .8*.6 + .8*.6*.4 = 2.472 tokens a step.
MTP = ["--aic-nextn", str(DRAFT_TOKENS), "--aic-nextn-accept-rates", "0.8,0.6,0.4"]
TOKENS_PER_STEP = 2.472


@contextmanager
def dynamo(options: list[str]) -> Iterator[Engine]:
    """One frontend and one mocker; `options` are the mocker's."""
    python = environment("dynamo", ["ai-dynamo==1.4.2"])
    folder = model(python, "tiny_hf.py", "tokenizer")
    port, metrics = free_port(), free_port()
    planes = ["--discovery-backend", "file", "--request-plane", "tcp", "--event-plane", "zmq"]
    with tempfile.TemporaryDirectory() as registry:  # where the two find each other
        env = {
            "DYN_FILE_KV": registry,
            "DYN_TCP_RPC_HOST": "127.0.0.1",
            "DYN_TCP_RESPONSE_STREAM_HOST": "lo",  # the name of an interface
            "HF_HUB_OFFLINE": "1",
        }
        front = [python, "-m", "dynamo.frontend", "--http-host", "127.0.0.1", "--http-port", str(port), *planes]
        mocker = [python, "-m", "dynamo.mocker", "--model-path", folder, "--model-name", MODEL, *planes]
        mocker += ["--max-num-seqs", "16", "--max-model-len", "2048", *options]
        # Without a port of its own the mocker's model card is not shared, and the frontend looks for it on a hub.
        own = {"DYN_SYSTEM_HOST": "127.0.0.1", "DYN_SYSTEM_PORT": str(metrics)}
        with (
            Server("dynamo-front", front, port, env) as server,
            Server("dynamo-mocker", mocker, metrics, env | own) as engine,
        ):
            yield server.ready("/v1/models", holds=f'"{MODEL}"'.encode(), needs=(engine,))
