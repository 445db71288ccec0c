"""llama.cpp behind two other servers: an embedded one in C, and one on Python's http.server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.real.engines.environments import environment
from tests.real.engines.llamacpp import tiny_gguf
from tests.real.engines.pythons import python_of
from tests.real.engines.servers import Engine, Server, free_port

CONTEXT = 2048


@contextmanager
def cyllama(kind: str) -> Iterator[Engine]:
    """`kind`: embedded (HTTP/1.1, chunked) or python (HTTP/1.0, a body that ends as the connection does)."""
    python = environment(
        "cyllama", ["cyllama==0.7.0"], python_of((3, 12))
    )  # older Pythons: a version that cannot stream
    port = free_port()
    command = [python, "-m", "cyllama.llama.server", "-m", tiny_gguf(), "--host", "127.0.0.1", "--port", str(port)]
    with Server(f"cyllama-{kind}", [*command, "--server-type", kind, "--ctx-size", str(CONTEXT)], port) as server:
        yield server.ready()
