"""An engine's own environment: its packages are not ours, and it is made once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.real.engines.pythons import version_of

SCRIPTS = Path(__file__).parent
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


def model(python: Path, script: str, out: Path, *options: object) -> Path:
    """Have an engine's environment write a model, unless it is there already."""
    if not out.exists():
        part = out.with_name(f"{out.name}.part")
        words = [str(word) for word in options]
        run([python, SCRIPTS.parent / "models" / script, part, *words], f"the model {out.name} cannot be written")
        part.rename(out)
    return out
