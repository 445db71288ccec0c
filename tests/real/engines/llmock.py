"""A mock server that breaks its replies as it is told to, and keeps a journal of what it did."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.real.engines.environments import environment
from tests.real.engines.servers import Engine, Server, free_port


class Mock:
    """A running mock and its control routes."""

    def __init__(self, engine: Engine) -> None:
        self.url = engine.url
        self._engine = engine

    def queue(self, *behaviors: dict[str, Any]) -> None:
        """What it is to do to the next requests, in this order, each with the first that it fits."""
        self._post("/_llmock/scenario", {"behaviors": list(behaviors)})

    @property
    def pending(self) -> int:
        """How many of them wait for a request still."""
        return len(json.loads(self._engine.get("/_llmock/scenario"))["pending"])

    def journal(self) -> list[dict[str, Any]]:
        """Every streamed request since the last reset."""
        served = json.loads(self._engine.get("/_llmock/requests"))["requests"]
        return [request for request in served if request["stream"]]

    def reset(self) -> None:
        self._post("/_llmock/reset", {})

    def _post(self, path: str, body: dict[str, Any]) -> None:
        request = urllib.request.Request(f"{self._engine.root}{path}", json.dumps(body).encode(), method="POST")
        with urllib.request.urlopen(request, timeout=30) as reply:
            reply.read()


@contextmanager
def llmock() -> Iterator[Mock]:
    """A fragment every 5 ms."""
    python, port = environment("llmock", ["llmock==0.2.2"]), free_port()
    command = [python.with_name("llmock"), "serve", "--host", "127.0.0.1", "--port", str(port)]
    with Server("llmock", [*command, "--latency-ms", "10", "--stream-chunk-delay-ms", "5"], port) as server:
        yield Mock(server.ready("/_llmock/scenario"))
