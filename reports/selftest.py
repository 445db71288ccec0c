"""A selftest in the terminal: a row a level, and what follows from them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

from reports.formats import MISSING, integer, number


def print_selftest(document: Mapping[str, Any], stored: str | None) -> None:
    """The levels, the limits, and where they are kept (None: they could not be stored)."""
    terminal = Console()
    console = Console(highlight=False, width=terminal.width if terminal.is_terminal else 140)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("streams", "chunks/s", "ttft ms", "error", "p99 error", "tpot ms", "error"):
        table.add_column(name, justify="right")
    for name in ("client lag", "loop lag", "cpu", "waited", "exact"):
        table.add_column(name, justify="right")
    for row in document["levels"]:
        table.add_row(
            integer(row["streams"]),
            integer(row["chunks_per_s"]),
            number(row["ttft_ms"]),
            share(row["ttft_error"]),
            share(row["ttft_p99_error"]),
            number(row["tpot_ms"]),
            share(row["tpot_error"]),
            number(row["client_lag_ms_p99"]),
            number(row["loop_lag_ms_p99"]),
            share(row["cpu_fraction"], signed=False),
            share(row["cpu_wait_fraction"], signed=False),
            ("yes" if row["exact"] else "no") + (f", {row['lost']} lost" if row["lost"] else ""),
        )
    console.print(table)
    bulk, limits = document["bulk"], document["limits"]
    console.print(
        f"Replies in one piece: {integer(bulk['requests_per_s'])} requests/s, "
        f"{integer(bulk['chunks_per_s'])} chunks/s, {bulk['failed']} failed."
    )
    if limits["streams"] is None:
        console.print("No level was exact: this machine is too busy, or too slow, to measure from.")
    else:
        least = "at least " if limits["at_least"] else ""
        console.print(
            f"One process is exact up to {least}{integer(limits['streams'])} streams "
            f"({integer(limits['chunks_per_s'])} chunks/s), with transport {document['transport']}."
        )
    if stored is not None:
        console.print(f"Kept for runs to go by: {stored}", soft_wrap=True)


def share(value: float | None, *, signed: bool = True) -> str:
    """A share in percent, to two digits after the point where it is an error."""
    if value is None:
        return MISSING
    return f"{value:+.2%}" if signed else f"{value:.0%}"
