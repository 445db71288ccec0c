"""The page, the pictures and the tables of a run, written by a process of its own after the answer is given: what
measures never loads what draws.

`python -m reports.drawing RUN` is that process.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from reports.summary import ReportError, read_summary

_ROOT = Path(__file__).resolve().parents[1]
_FAREWELL_S = 5.0  # the renderer lets go of a picture only when it is done


class DrawingError(Exception):
    """What was asked is not drawn, or not all of it; the reason, without a full stop."""


def draw(run: Path) -> None:
    """Write what belongs to a run's `summary.json` beside it, in a child process, and wait for that to end.

    For the main thread. Raises DrawingError. However the wait ends, also by a signal, the child ends with it and leaves
    no half-written file.
    """
    came: list[int] = []  # while the child is being started, when an exception would lose it
    before = {number: signal.signal(number, lambda n, _: came.append(n)) for number in (signal.SIGINT, signal.SIGTERM)}
    path = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")]))
    try:
        child = subprocess.Popen(
            [sys.executable, "-P", "-m", "reports.drawing", str(run)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path},
            start_new_session=True,  # Ctrl-C is for the parent
        )
    except OSError as exc:
        _heed(before)
        raise DrawingError(f"no process can be started for it: {exc.strerror or exc}") from None
    try:
        _heed(before)
        for number in came:
            signal.raise_signal(number)
        said = child.communicate()[1].decode("utf-8", "replace").strip()
    finally:
        _end(child)
        for half in run.glob(f".*.{child.pid}.tmp"):
            half.unlink(missing_ok=True)
    if child.returncode:
        raise DrawingError(_why(child.returncode, said))


def _heed(handlers: Mapping[signal.Signals, Any]) -> None:
    for number, handler in handlers.items():
        signal.signal(number, handler)


def _end(child: subprocess.Popen[bytes]) -> None:
    if child.poll() is not None:
        return
    child.send_signal(signal.SIGINT)
    try:
        child.wait(_FAREWELL_S)
    except subprocess.TimeoutExpired:
        pass
    finally:
        child.kill()
        child.wait()


def _why(code: int, said: str) -> str:
    if code < 0:
        return f"its process was ended by {signal.Signals(-code).name}"
    return said.splitlines()[-1] if said else f"its process ended with exit code {code}"


def main() -> None:
    from reports.build import read_series, write_pages

    run = Path(sys.argv[1])
    try:
        write_pages(run, read_summary(run), read_series(run))
    except ReportError as exc:
        sys.exit(str(exc).removesuffix("."))
    except OSError as exc:
        sys.exit(f"cannot write it into {run}: {exc.strerror or exc}")


if __name__ == "__main__":
    main()
