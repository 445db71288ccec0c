"""python -m endpoints.simulator.hostile: play one case, or write all of them down."""

from __future__ import annotations

import argparse
import sys

from endpoints.simulator.hostile.cases import names
from endpoints.simulator.hostile.server import serve
from endpoints.simulator.hostile.table import table


def main(arguments: list[str] | None = None) -> int:
    """0: done, or stopped as told; 2: no such case, or it cannot listen."""
    parser = argparse.ArgumentParser("python -m endpoints.simulator.hostile", description="A server of one bad habit.")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("case", nargs="?", help="the case to play")
    what.add_argument("--list", action="store_true", help="print the names of all cases")
    what.add_argument("--table", action="store_true", help="print the page about all cases, in Markdown")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)")
    parser.add_argument("--port", type=int, default=0, help="port; 0 takes any free one")
    chosen = parser.parse_args(arguments)
    if chosen.list or chosen.table:
        sys.stdout.write(table() if chosen.table else "\n".join(names()) + "\n")
        return 0
    try:
        serve(chosen.case, chosen.host, chosen.port)
    except (OSError, ValueError) as error:
        sys.stderr.write(f"endsweep hostile: {error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
