"""What is printed before anything is measured: a plan, and what a probe found."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from reports.formats import clean, integer, seconds, usd


def print_plan(plan: Mapping[str, Any]) -> None:
    """The points in the order they run, and the totals with what they assume."""
    console = Console(highlight=False)
    priced = plan["totals"]["usd"] is not None
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("arm", "region"):
        table.add_column(name)
    for name in ("concurrency", "requests", "passes", "time", "tokens", *(["cost"] if priced else [])):
        table.add_column(name, justify="right")
    for point in plan["points"]:
        row = [
            clean(point["arm"], 40),
            point["region"] or "-",
            str(point["concurrency"]),
            integer(point["requests"]),
            f"{point['passes']:.2f}",
            seconds(point["seconds"]),
            integer(point["tokens"]),
        ]
        table.add_row(*row, *([usd(point["usd"])] if priced else []))
    console.print(table)
    totals, assumed = plan["totals"], plan["assumptions"]
    cost = f", {usd(totals['usd'])}" if priced else ""
    console.print(
        f"{len(plan['points'])} points: about {integer(totals['requests'])} requests, "
        f"{integer(totals['tokens'])} tokens{cost}, {seconds(totals['seconds'])}."
    )
    console.print(
        f"Estimated at {assumed['tokens_per_s_per_user']:g} tokens/s per user and "
        f"{assumed['ttft_s']:g} s to the first token; warmup and filler included."
    )


def print_probe(found: Mapping[str, Any], profile: str) -> None:
    """What was looked at, what was seen, its effect, each refusal, and the profile that a run would use."""
    console = Console(highlight=False)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("looked at", "seen", "effect"):
        table.add_column(name, overflow="fold")
    for finding in found["findings"]:
        table.add_row(*(Text(clean(finding[name])) for name in ("what", "seen", "effect")))
    console.print(table)
    for refusal in found["refusals"]:
        console.print(Text(f"refused: {clean(refusal)}"))
    if found["round_trip_ms"] is not None:
        console.print(f"round trip: {found['round_trip_ms']:.1f} ms")
    console.print()
    console.print(Text(profile.rstrip()))
