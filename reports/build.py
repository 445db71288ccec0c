"""Writes the answer beside what was measured: summary.json, points.csv, report.md, report.html, frontier.png and
frontier.svg.

The one module that imports the drawing libraries (with those it imports): a sweep's process never does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

from reports import charts, markdown, page, pictures, tables
from reports.charts import Series
from reports.points import is_anchor, load_label
from reports.summary import (
    ReportError,
    merge,
    read_manifest,
    read_points,
    stored_samples,
    summarise,
    write,
    write_summary,
)

DRAWN = ("tokens_per_s", "ttft_ms")


def build(run: Path) -> dict[str, Any]:
    """Write every report file of one run into its folder; returns the summary. Raises ReportError on a corrupt run."""
    summary = summarise(run)
    write_report(run, summary, read_series(run))
    return summary


def build_many(runs: Sequence[Path], out: Path) -> dict[str, Any]:
    """Several runs on one page, in the folder `out`. Arms that two runs share are called run/arm, after the run's
    folder."""
    if not runs:
        raise ReportError("There is no run to report.")
    names = _distinct([run.resolve().name for run in runs])
    summaries = [summarise(run) for run in runs]
    samples = [stored_samples(read_points(run), read_manifest(run)) for run in runs]
    merged = merge(list(zip(names, summaries, strict=True)), samples)
    # merge() keeps order: each run's arms stand together, so their new names follow from counting.
    new_names = iter(merged["arms"])
    series = []
    for run, summary in zip(runs, summaries, strict=True):
        renamed = {arm: next(new_names) for arm in summary["arms"]}
        series += [Series(renamed[s.arm], s.load, s.trial, s.rows) for s in read_series(run)]
    out.mkdir(parents=True, exist_ok=True)
    write_report(out, merged, series)
    return merged


def write_report(folder: Path, summary: Mapping[str, Any], series: Sequence[Series]) -> None:
    """All of it."""
    write_summary(folder, summary)
    write_pages(folder, summary, series)


def write_pages(folder: Path, summary: Mapping[str, Any], series: Sequence[Series]) -> None:
    """What is made of a summary for people: tables, pictures, pages."""
    write(folder / "points.csv", tables.points_csv(summary))
    chart = charts.pareto(summary)
    if chart is not None:
        spec = chart.to_dict()
        write(folder / "frontier.png", pictures.png(spec))
        write(folder / "frontier.svg", pictures.svg(spec))
    write(folder / "report.md", markdown.render(summary, "frontier.png" if chart is not None else None))
    write(folder / "report.html", page.render(summary, series))


def read_series(run: Path) -> list[Series]:
    """What the charts draw, of every stored point but anchors. A point without a series (killed while writing) is left
    out."""
    found = []
    for folder, point in read_points(run):
        path = folder / "series.parquet"
        if is_anchor(point) or not path.is_file():
            continue
        try:
            table = pyarrow.parquet.read_table(
                path, columns=["series", "x0", "x1", "y"], filters=[("series", "in", DRAWN)]
            )
        except (pyarrow.ArrowException, OSError, ValueError) as error:
            raise ReportError(f"{path} is corrupt: it cannot be read as a table of series.") from error
        rows = list(zip(*(table.column(c).to_pylist() for c in ("series", "x0", "x1", "y")), strict=True))
        kept = [row for row in rows if None not in row]
        found.append(Series(point["arm"], load_label(point), point.get("trial") or 1, kept))
    return found


def _distinct(names: Sequence[str]) -> list[str]:
    """Folder names, numbered where two runs lie in folders of the same name."""
    return [f"{name}-{names[: i + 1].count(name)}" if names.count(name) > 1 else name for i, name in enumerate(names)]
