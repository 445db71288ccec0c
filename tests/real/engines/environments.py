"""An engine's own environment: its packages are not ours, and it is made once."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

from tests.real.engines.pythons import version_of

MODELS = Path(__file__).parents[1] / "models"
CACHE = Path(__file__).parents[3] / ".cache" / "real"


def environment(name: str, packages: list[str], python: Path | None = None, without: tuple[str, ...] = ()) -> Path:
    """The Python of an environment with `packages`, made under .cache/real unless it is there already.

    `without`: what they bring along that is to be taken out again. Raises AssertionError with the installer's words.
    """
    base = python or Path(sys.executable)
    version = version_of(base)
    assert version is not None, f"{base} does not run"
    venv = CACHE / f"{name}-{version[0]}.{version[1]}"
    inside, mark, recipe = venv / "bin" / "python", venv / ".ready", " ".join([*packages, *(f"-{w}" for w in without)])
    if mark.exists() and mark.read_text() == recipe:
        return inside
    made = f"the environment of {name} cannot be made"
    run([base, "-m", "venv", "--clear", venv], made)
    run([inside, "-m", "pip", "install", "--quiet", "--upgrade", "pip"], made)
    run([inside, "-m", "pip", "install", "--quiet", *packages], made)
    if without:
        run([inside, "-m", "pip", "uninstall", "--quiet", "--yes", *without], made)
    mark.write_text(recipe)
    return inside


def run(command: list[str | Path], otherwise: str, env: dict[str, str] | None = None) -> None:
    """Run it to its end. Raises AssertionError: what went wrong, and the last of what it said."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    if done.returncode:
        said = "\n".join((done.stdout + done.stderr).strip().splitlines()[-15:])
        raise AssertionError(f"{otherwise}: {' '.join(map(str, command))} ended with {done.returncode}:\n{said}")


def model(python: Path, script: str, name: str, *options: object) -> Path:
    """A model that an engine's environment writes with one of the scripts in models, unless it is there already."""
    words = [str(word) for word in options]
    written_by = b"".join((MODELS / source).read_bytes() for source in (script, "tiny_words.py"))
    digest = hashlib.blake2b(written_by + " ".join(words).encode(), digest_size=4).hexdigest()
    out = CACHE / f"{digest}-{name}"
    if not out.exists():
        part = CACHE / f"part-{name}"
        run([python, MODELS / script, part, *words], f"the model {name} cannot be written")
        part.rename(out)
    return out
