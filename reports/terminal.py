"""The answer in the terminal: one row a point, the best arm at each load marked, the crossover in words, verdicts
with remedies. Imports none of the drawing libraries."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from reports import equality
from reports.compared import level_table, note_lines, sentences
from reports.formats import clean, integer, number
from reports.headline import grouped_skips, grouped_verdicts, headline, places, severity, verdict_line
from reports.points import is_measured, load_label, load_order, num, verdicts
from reports.rows import RATIO_HEADINGS
from sweeps.frontier import is_valid

Summary = Mapping[str, Any]

NARROW = {
    "users": "Users",
    "arm": "Arm",
    "system_tps": "tok/s",
    "tps_per_user": "tok/s/user",
    "ttft": "TTFT p90 ms",
    "tpot": "TPOT p90 ms",
    "requests": "ok/failed",
    "verdict": "Verdict",
}
WIDE = {
    "users": "Users",
    "arm": "Arm",
    "system_tps": "tok/s",
    "tps_per_user": "tok/s/user",
    "ttft": "TTFT p50/p90 ms",
    "tpot": "TPOT p50/p90 ms",
    "e2e": "E2E p90 ms",
    "requests": "ok/failed",
    "verdict": "Verdict",
}
LEFT = ("arm", "verdict")
STYLES = {"invalid": "red", "warn": "yellow", "ok": "green"}
LEGEND = {"*": "* most tok/s at this load", "~": "~ cannot be told apart from the best"}


def print_report(report: Path, file: TextIO | None = None) -> None:
    """Where the page is: one line, which comes when it is there."""
    print(f"\nreport: {clean(report, 4000)}", file=file or sys.stdout, flush=True)


def print_result(summary: Summary, file: TextIO | None = None) -> None:
    """Print the answer to stdout (or `file`): as a table on a terminal, as plain lines elsewhere."""
    console = Console(file=file or sys.stdout, highlight=False)
    if not console.is_terminal or console.is_dumb_terminal:
        console.file.write(plain(summary))
        console.file.flush()
        return
    if warning := equality.alarm(summary):
        console.print(Text(warning, style="bold red"))
    console.print(_table(summary, console.width))
    legend = _legend(summary)
    if legend:
        console.print(Text(legend, style="dim"))
    console.print()
    for sentence in headline(summary):
        console.print(Text(sentence, style="bold"))
    for found in _compared(summary, console.width):
        console.print(_ratios(*found) if isinstance(found, tuple) else Text(found))
    console.print(Text(verdict_line(summary) + ".", style=STYLES[severity(summary)]))
    for style, line in _remarks(summary):
        console.print(Padding(Text(line, style=style), (0, 0, 0, 2)))
    console.file.flush()


def plain(summary: Summary) -> str:
    """The same without colour and boxes, columns aligned by spaces, sentences unwrapped."""
    columns = WIDE
    rows = [[row[c] for c in columns] for row in _rows(summary, columns)]
    table = [list(columns.values()), *rows]
    widths = [max(len(line[i]) for line in table) for i in range(len(columns))]
    lines = [warning, ""] if (warning := equality.alarm(summary)) else []
    for cells in table:
        padded = [
            cell.ljust(w) if name in LEFT else cell.rjust(w)
            for name, cell, w in zip(columns, cells, widths, strict=True)
        ]
        lines.append("  ".join(padded).rstrip())
    lines += [line for line in (_legend(summary),) if line]
    lines += ["", *headline(summary)]
    for found in _compared(summary):
        lines += _aligned([found[1], *found[2]], found[0]) if isinstance(found, tuple) else [found]
    lines += [verdict_line(summary) + "."]
    lines += [f"  {line}" for _, line in _remarks(summary)]
    return "\n".join(lines) + "\n"


def _compared(summary: Summary, width: int = 120) -> Iterator[tuple[str, list[str], list[list[str]]] | str]:
    """Below the headline: of each pair a table (title, headings, rows) of its ratios and what must be said beside it,
    then sentences."""
    comparison = summary["comparison"]
    if not comparison:
        return
    for pair in comparison["pairs"]:
        headings, rows = level_table(pair)
        kept = [i for i, h in enumerate(headings) if width >= 110 or h != RATIO_HEADINGS["ttft_ms_p90"]]
        if rows:
            title = f"{clean(pair['arm'], 60)} against {clean(pair['base'], 60)}, 95 % intervals in brackets:"
            yield title, [headings[i] for i in kept], [[row[i] for i in kept] for row in rows]
        yield from note_lines(pair)
    yield from sentences(comparison)


def _ratios(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
        header_style="bold",
        title=Text(title),
        title_style="",
        title_justify="left",
    )
    for heading in headings:
        table.add_column(Text(heading), justify="right")
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def _aligned(lines: Sequence[Sequence[str]], title: str) -> list[str]:
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return [title, *("  ".join(cell.rjust(w) for cell, w in zip(line, widths, strict=True)) for line in lines)]


def _table(summary: Summary, width: int) -> Table:
    columns = WIDE if width >= 110 else NARROW
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for name, heading in columns.items():
        # A heading may take two lines, a number must not.
        heading = heading.replace(" p", "\np", 1) if width < 110 else heading
        table.add_column(
            Text(heading),
            justify="left" if name in LEFT else "right",
            vertical="bottom" if name != "verdict" else "top",
            no_wrap=name != "verdict",
            min_width=10 if name == "verdict" else None,
        )
    previous = None
    for row in _rows(summary, columns):
        shown = row | {"users": "" if row["users"] == previous else row["users"]}
        styles = {"verdict": STYLES[row["state"]], "system_tps": "bold" if "*" in row["system_tps"] else ""}
        table.add_row(
            *(Text(shown[c], style=styles.get(c, "")) for c in columns),
            style="dim" if row["state"] == "invalid" else "",
        )
        previous = row["users"]
    return table


def _rows(summary: Summary, columns: Mapping[str, str]) -> list[dict[str, str]]:
    """One row a point by load, arms of one load together. `state` (ok | warn | invalid) comes besides the columns."""
    order = list(summary["arms"])
    marks = best_marks(summary)
    several = any((p.get("trial") or 1) > 1 for p in summary["points"])
    both = columns is WIDE
    rows = []
    for p in sorted(summary["points"], key=lambda p: (load_order(p), order.index(p["arm"]), p.get("trial") or 1)):
        codes = ", ".join(dict.fromkeys(clean(v.get("code"), 30) for v in verdicts(p)))
        state = "invalid" if not is_valid(p) else "warn" if codes else "ok"
        curve = state != "invalid" and is_measured(p)
        mark = marks.get((p["arm"], p.get("concurrency")), " ") if curve else " "
        rows.append(
            {
                "users": load_label(p) + (f" (t{p.get('trial') or 1})" if several else ""),
                "arm": clean(p["arm"], 24),
                "system_tps": f"{number(num(p, 'system_tps'))} {mark}",
                "tps_per_user": number(num(p, "tps_per_user")),
                "ttft": _latency(p, "ttft_ms", both),
                "tpot": _latency(p, "tpot_ms", both),
                "e2e": number(num(p, "e2e_latency_ms", "p90")),
                "requests": f"{integer(num(p, 'counts', 'completed') or 0)}/{integer(num(p, 'counts', 'failed') or 0)}",
                "verdict": codes
                if state == "warn"
                else "valid"
                if state == "ok"
                else f"invalid: {codes or p.get('status')}",
                "state": state,
            }
        )
    return rows


def best_marks(summary: Summary) -> dict[tuple[str, int], str]:
    """(arm, concurrency) -> '*' for the arm with most throughput, '~' for each of those that cannot be told apart."""
    comparison = summary["comparison"]
    if not comparison:
        return {}
    return {
        (arm, level): "*" if band["best"] else "~"
        for band in comparison["best"]["by_concurrency"]["system_tps"]
        for level in band["levels"]
        for arm in band["among"]
    }


def _latency(point: Mapping[str, Any], metric: str, both: bool) -> str:
    p90 = number(num(point, metric, "p90"))
    return f"{number(num(point, metric, 'p50'))}/{p90}" if both else p90


def _legend(summary: Summary) -> str:
    seen = set(best_marks(summary).values())
    return ", ".join(text for mark, text in LEGEND.items() if mark in seen)


def _remarks(summary: Summary) -> list[tuple[str, str]]:
    """(style, line): verdicts as code: evidence (threshold) -> remedy, points left out, ends of curves, caveats."""
    lines = []
    for g in grouped_verdicts(summary):
        threshold = f" (threshold {g['threshold']})" if g["threshold"] else ""
        remedy = f" -> {g['remedy']}" if g["remedy"] else ""
        lines.append((STYLES.get(g["severity"], ""), f"{g['code']}: {places(g)}: {g['evidence']}{threshold}{remedy}"))
    for arm, loads, reason in grouped_skips(summary):
        lines.append(("yellow", f"skipped: {arm} at {loads}: {reason}"))
    for arm, end in summary["ends"].items():
        if end["reason"] not in ("highest level asked", "points invalid above", "skipped"):
            lines.append(("", f"end of {clean(arm, 60)}: {clean(end['text'])}"))
    lines += [("yellow" if how == "warn" else "", text) for how, text in equality.remarks(summary)]
    return lines + [("yellow", c) for c in summary["caveats"]]
