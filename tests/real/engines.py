"""Real engines for the tests: installed into an environment of their own, started, waited for, and stopped.

Nothing here is skipped: where the engine cannot be had, its tests fail and say why.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
CACHE = HERE.parent.parent / ".cache" / "real"
ENGINE = ["xllamacpp==2026.10.11549", "gguf>=0.17", "numpy>=2"]
DRAFT_TOKENS, ACCEPTANCE_LENGTH = 4, 2.5


@dataclass(frozen=True)
class Engine:
    """One running server: its base URL and its root."""

    root: str

    @property
    def url(self) -> str:
        return f"{self.root}/v1"

    def metric(self, name: str) -> float:
        """One of llama.cpp's counters (it adds to them when a request ends)."""
        with urllib.request.urlopen(f"{self.root}/metrics", timeout=30) as reply:
            for line in reply.read().decode().splitlines():
                if line.startswith(f"llamacpp:{name} "):
                    return float(line.rpartition(" ")[2])
        raise AssertionError(f"the server has no metric {name}")


@contextmanager
def llamacpp_pair() -> Iterator[tuple[Engine, Engine]]:
    """llama.cpp twice, over the same model: without speculation, and with synthetic acceptance of a known length."""
    python = _environment()
    tiny, draft = CACHE / "tiny.gguf", CACHE / "draft.gguf"
    _model(python, tiny, layers=4, width=256, heads=4, seed=1)
    _model(python, draft, layers=1, width=128, heads=2, seed=2)
    speculate = ["--draft", str(draft), "--draft-tokens", str(DRAFT_TOKENS)]
    speculate += ["--acceptance-length", str(ACCEPTANCE_LENGTH)]
    with _Server(python, tiny, []) as off, _Server(python, tiny, speculate) as on:
        yield off.ready(), on.ready()


def _environment() -> Path:
    """The engine's own environment, made once; its packages are not ours."""
    venv = CACHE / f"llamacpp-{sys.version_info.major}.{sys.version_info.minor}"
    python, mark = venv / "bin" / "python", venv / ".ready"
    if not mark.exists() or mark.read_text() != " ".join(ENGINE):
        subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *ENGINE], check=True)
        mark.write_text(" ".join(ENGINE))
    return python


def _model(python: Path, out: Path, **shape: int) -> None:
    if out.exists():
        return
    part = out.with_suffix(".part")
    options = [word for name, value in shape.items() for word in (f"--{name}", str(value))]
    subprocess.run([str(python), str(HERE / "tiny_model.py"), str(part), *options], check=True)
    part.rename(out)


class _Server:
    def __init__(self, python: Path, model: Path, options: list[str]) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = probe.getsockname()[1]
        self._command = [str(python), str(HERE / "serve_llamacpp.py"), str(model), str(self._port), *options]
        self._log = CACHE / f"llamacpp-{self._port}.log"

    def __enter__(self) -> _Server:
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=subprocess.STDOUT)
        return self

    def ready(self, within_s: float = 60.0) -> Engine:
        engine = Engine(f"http://127.0.0.1:{self._port}")
        end = time.monotonic() + within_s
        while time.monotonic() < end:
            if self._process.poll() is not None:
                break
            try:
                with urllib.request.urlopen(f"{engine.root}/health", timeout=5) as reply:
                    if reply.status == 200:
                        return engine
            except (urllib.error.URLError, OSError):
                time.sleep(0.1)
        raise AssertionError(f"the engine did not come up; its log ends: {self._log.read_text()[-2000:]}")

    def __exit__(self, *exc: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.unlink(missing_ok=True)
