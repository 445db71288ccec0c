"""A Python of the versions that an engine's wheels are made for.

pythons.py LOWEST [BELOW]: prints its path and exits 0, or says that there is none and exits 1.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

Version = tuple[int, int]


def python_of(lowest: Version, below: Version = (4, 0)) -> Path:
    """Our own Python if it will do, else one that is installed here. Raises AssertionError when there is none."""
    for path in _candidates():
        if (version := version_of(path)) and lowest <= version < below:
            return path
    wanted = _text(lowest) + (" or newer" if below == (4, 0) else f" (below {_text(below)})")
    raise AssertionError(f"no Python {wanted} was found on the path: install one, python{_text(lowest)} for example")


def version_of(python: Path) -> Version | None:
    """Its version, or None when it does not run (a version manager's stand-in for one that is not chosen, say)."""
    ask = "import sys; print(*sys.version_info[:2])"
    done = subprocess.run([str(python), "-c", ask], capture_output=True, text=True, check=False)
    if done.returncode:
        return None
    major, minor = done.stdout.split()
    return int(major), int(minor)


def _candidates() -> Iterator[Path]:
    yield Path(sys.executable)
    folders = [Path(folder) for folder in os.environ.get("PATH", "").split(os.pathsep) if folder]
    # pyenv keeps its Pythons beside the stand-ins that it puts on the path.
    folders += sorted(v / "bin" for f in folders if f.name == "shims" for v in f.parent.glob("versions/3.*"))
    for minor in (11, 12, 13, 14):
        yield from (p for folder in folders if (p := folder / f"python3.{minor}").is_file())


def _text(version: Version) -> str:
    return ".".join(map(str, version))


def main() -> int:
    try:
        print(python_of(*(tuple(map(int, word.split("."))) for word in sys.argv[1:])))  # noqa: T201
    except AssertionError as none:
        print(none, file=sys.stderr)  # noqa: T201
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
