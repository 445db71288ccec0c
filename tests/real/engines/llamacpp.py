"""llama.cpp's own server, from a wheel."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.real.engines.environments import environment, model
from tests.real.engines.servers import Engine, Server, free_port

PACKAGES = ["xllamacpp==2026.10.11549", "gguf>=0.17", "numpy>=2"]
DRAFT_TOKENS, ACCEPTANCE_LENGTH = 4, 2.5


@contextmanager
def llamacpp_pair() -> Iterator[tuple[Engine, Engine]]:
    """llama.cpp twice, over the same model: without speculation, and with synthetic acceptance of a known length."""
    with _server("off") as off, _server("on") as on:
        yield off.ready(), on.ready()


@contextmanager
def llamacpp_ngram() -> Iterator[Engine]:
    """llama.cpp over the same model, drafting from the text itself: acceptance is real."""
    with _server("ngram") as server:
        yield server.ready()


def command(arm: str, port: str) -> list[str]:
    """What serves the arm, `off`, `on` or `ngram`, at a port."""
    python = environment("llamacpp", PACKAGES)
    words = [python, Path(__file__).with_name("serve_llamacpp.py"), tiny_gguf(), port]
    if arm == "on":
        draft = _gguf(python, "draft", layers=1, width=128, heads=2, seed=2)
        words += ["--draft", draft, "--draft-tokens", DRAFT_TOKENS, "--acceptance-length", ACCEPTANCE_LENGTH]
    if arm == "ngram":
        words.append("--ngram")
    return [str(word) for word in words]


def tiny_gguf() -> Path:
    """The model that the others serve too."""
    python = environment("llamacpp", PACKAGES)
    return _gguf(python, "tiny", layers=4, width=256, heads=4, seed=1)


def _gguf(python: Path, name: str, **shape: int) -> Path:
    options = [word for key, value in shape.items() for word in (f"--{key}", value)]
    return model(python, "tiny_gguf.py", f"{name}.gguf", *options)


def _server(arm: str) -> Server:
    port = free_port()
    return Server("llamacpp", command(arm, str(port)), port)
