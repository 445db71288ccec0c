"""python -m endpoints.simulator: the embedded endpoint alone."""

from __future__ import annotations

import argparse
import sys
from dataclasses import fields

from endpoints.simulator.options import SimulatorOptions
from endpoints.simulator.process import serve


def main(arguments: list[str] | None = None) -> int:
    """0: stopped as told; 2: bad settings, or it cannot listen."""
    parser = argparse.ArgumentParser(
        "python -m endpoints.simulator", description="An OpenAI-compatible endpoint, simulated."
    )
    for f in fields(SimulatorOptions):
        flag, text = "--" + f.name.replace("_", "-"), f.metadata["help"]
        if isinstance(f.default, bool):
            parser.add_argument(flag, action="store_true", help=text)
        else:
            kind = str if f.default is None else type(f.default)
            parser.add_argument(flag, type=kind, default=f.default, help=f"{text} (default: {f.default})")
    parser.add_argument("--watch-stdin", action="store_true", help="stop when standard input ends")
    chosen = vars(parser.parse_args(arguments))
    watch_stdin = chosen.pop("watch_stdin")
    try:
        serve(SimulatorOptions(**chosen), watch_stdin)
    except (OSError, ValueError) as error:
        sys.stderr.write(f"endsweep simulator: {error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
