"""What is printed before anything is measured: a plan, and what a probe found."""

from __future__ import annotations

import sys
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
    blocks = any(point["block"] is not None for point in plan["points"])
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in (*(["block"] if blocks else []), "arm", "region"):
        table.add_column(name)
    for name in ("concurrency", "requests", "passes", "time", "tokens", *(["cost"] if priced else [])):
        table.add_column(name, justify="right")
    for point in plan["points"]:
        anchor = " (anchor)" if point["kind"] == "anchor" else ""
        row = [
            *([str(point["block"])] if blocks else []),
            clean(point["arm"], 40) + anchor,
            point["region"] or "-",
            str(point["concurrency"]),
            integer(point["requests"]),
            f"{point['passes']:.2f}",
            seconds(point["seconds"]),
            integer(point["tokens"]),
        ]
        table.add_row(*row, *([usd(point["usd"])] if priced else []))
    console.print(table)
    for check in plan["checks"]:
        cost = f", {usd(check['usd'])}" if priced else ""
        console.print(
            f"{clean(check['arm'], 40)}, before the points: {integer(check['prompts'])} greedy prompts"
            f"{', twice' if check['repeats'] == 2 else ''}, to compare answers: {integer(check['requests'])} requests, "
            f"{integer(check['tokens'])} tokens{cost}, {seconds(check['seconds'])}.",
            soft_wrap=True,
        )
    totals, assumed = plan["totals"], plan["assumptions"]
    cost = f", {usd(totals['usd'])}" if priced else ""
    console.print(
        f"{len(plan['points'])} points: about {integer(totals['requests'])} requests, "
        f"{integer(totals['tokens'])} tokens{cost}, {seconds(totals['seconds'])}."
    )
    if blocks:
        console.print("Arms run in blocks: they share this machine, and only one server is up at a time.")
    if any(point["kind"] == "anchor" for point in plan["points"]):
        console.print("An anchor is a point measured once more at the end, to see what drifted; it is on no curve.")
    console.print(
        f"Estimated at {assumed['tokens_per_s_per_user']:g} tokens/s per user and "
        f"{assumed['ttft_s']:g} s to the first token; warmup and filler included."
    )


def print_probe(found: Mapping[str, Any], profile: str) -> None:
    """What was looked at, what was seen, its effect, each refusal and the cost, as comments above the profile in YAML.

    So the whole output is a sweep file that a run accepts.
    """
    terminal = Console()
    console = Console(highlight=False, width=max(40, terminal.width - 2) if terminal.is_terminal else 140)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("looked at", "seen", "effect"):
        table.add_column(name, overflow="fold")
    for finding in found["findings"]:
        table.add_row(*(Text(clean(finding[name])) for name in ("what", "seen", "effect")))
    trip, cost = found["round_trip_ms"], found["cost"]
    lines = [f"refused: {clean(refusal)}" for refusal in found["refusals"]]
    lines += [f"round trip: {trip:.1f} ms"] if trip is not None else []
    lines.append(
        f"cost: {cost['requests']} requests with {integer(cost['input_tokens'])} input and "
        f"{integer(cost['output_tokens'])} output tokens, and {cost['pages']} pages read"
    )
    with console.capture() as captured:
        console.print(table)
        for line in lines:
            console.print(Text(line), soft_wrap=True)
    comments = [f"# {line}".rstrip() for line in captured.get().splitlines()]
    sys.stdout.write("\n".join([*comments, "", profile.rstrip(), ""]))
