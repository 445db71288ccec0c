"""report.html: the whole answer as one file that needs neither the network nor a server.

Everything foreign goes through the template's autoescaping or into JSON whose '<' is escaped; a content security
policy in the page forbids loading anything, so even a mistake could not fetch. Each chart is there twice: as a
picture for readers and printers without scripts, and as a declaration that the inlined renderer turns into the
interactive chart.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from reports import charts, equality, pictures
from reports.charts import Series
from reports.compared import acceptance_lines, category_table, level_table, speed_table
from reports.facts import arm_facts, run_facts
from reports.formats import clean, number, percent_change
from reports.headline import grouped_skips, grouped_verdicts, headline, places, severity, title, verdict_line
from reports.points import load_label
from reports.rows import FORMULAS, TEXT_COLUMNS, point_rows, ratio_cell

HEADINGS = {
    "system_tps": "Total throughput",
    "tps_per_user": "Speed per user",
    "ttft_ms_p90": "Time to first token, p90",
}


@dataclass(frozen=True, slots=True)
class Figure:
    """One chart on the page: its declaration, the same as a picture, and in words."""

    name: str
    heading: str
    note: str
    spec: Markup
    picture: str
    words: str
    facet: bool


def render(summary: Mapping[str, Any], series: Sequence[Series]) -> str:
    """The page as a string. Draws every chart, so it takes a second or two."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "clean": clean,
        "number": number,
        "change": percent_change,
        "ratio": ratio_cell,
        "levels": level_table,
        "categories": category_table,
        "speeds": speed_table,
        "accepted": acceptance_lines,
    }
    columns, rows = point_rows(summary)
    return environment.get_template("page.html.jinja").render(
        title=clean(summary["name"] or "endsweep report", 120),
        summary=summary,
        sentences=headline(summary),
        banner=verdict_line(summary),
        severity=severity(summary),
        alarm=equality.alarm(summary),
        remarks=[text for _, text in equality.remarks(summary)],
        answer_headings=equality.HEADINGS,
        answer_rows=equality.rows(summary),
        answer_examples=equality.examples(summary),
        groups=[g | {"places": places(g)} for g in grouped_verdicts(summary)],
        skips=grouped_skips(summary),
        errors=_errors(summary),
        columns=columns,
        rows=rows,
        text_columns=TEXT_COLUMNS,
        pareto=_figures(_pareto(summary)),
        loads=_figures(_against(summary)),
        times=_figures(_over_time(summary, series)),
        arms=arm_facts(summary),
        facts=run_facts(summary),
        formulas=FORMULAS,
        javascript=Markup(pictures.javascript()),
    )


def _pareto(summary: Mapping[str, Any]) -> list[tuple[str, str, str, Any]]:
    points = [
        f"{clean(p['arm'], 60)} at {p['concurrency']}: {number(p['tps_per_user'])} tokens/s/user, "
        f"{number(p['system_tps'])} tokens/s"
        for fps in summary["frontier"]["arms"].values()
        for p in fps
    ]
    return [
        (
            "frontier",
            title(summary),
            f"Total throughput against speed per user. {'; '.join(points)}.",
            charts.pareto(summary),
        )
    ]


def _against(summary: Mapping[str, Any]) -> list[tuple[str, str, str, Any]]:
    pairs = (summary["comparison"] or {}).get("pairs") or []
    found = []
    for metric, heading in HEADINGS.items():
        crossings = [p["crossover"][metric]["text"] for p in pairs if metric in p["crossover"]]
        words = f"{heading} against concurrent users. {' '.join(crossings)}".strip()
        found.append((f"by-{metric}", heading, words, charts.against_concurrency(summary, metric)))
    return found


def _over_time(summary: Mapping[str, Any], series: Sequence[Series]) -> list[tuple[str, str, str, Any]]:
    return [
        (
            "timelines",
            "Output tokens/s over the time of each point",
            "Small line charts of tokens per second over time, one for each concurrency; flat is steady. "
            "The dashed line is the start of the measured window; before it is warmup.",
            charts.timelines(summary, series),
        ),
        (
            "ttft",
            "How soon the first token came",
            "Small charts, one for each concurrency: the share of requests whose first token came within a time.",
            charts.ttft_distribution(summary, series),
        ),
    ]


def _figures(found: list[tuple[str, str, str, Any]]) -> list[Figure]:
    return [_figure(*one) for one in found if one[3] is not None]


def _figure(name: str, heading: str, words: str, chart: Any) -> Figure:
    spec = chart.to_dict()
    # On the page the title is a heading, which wraps on a narrow screen and is read aloud; the chart need not repeat
    # it.
    own = spec.pop("title")
    note = " ".join(own.get("subtitle", []))
    spec.pop("$schema", None)
    picture = base64.b64encode(pictures.svg(spec).encode()).decode()
    return Figure(
        name, heading, note, script_json(spec), f"data:image/svg+xml;base64,{picture}", words, "facet" in spec
    )


def script_json(value: Any) -> Markup:
    """Strict JSON that is safe inside a script element: no '<', '>' or '&' is left that could end it or open a
    comment."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)


def _errors(summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [
        {
            "where": f"{clean(point['arm'], 60)} at {load_label(point)}",
            "outcome": clean(error.get("outcome"), 60),
            "count": error.get("count"),
            "example": clean(error.get("example") or "", 300),
        }
        for point in summary["points"]
        for error in point.get("errors") or []
        if isinstance(error, dict)
    ]
