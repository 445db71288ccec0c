"""report.md: the same facts as the page, as GitHub renders them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from reports import equality
from reports.compared import acceptance_lines, category_table, level_table, note_lines, speed_table
from reports.facts import arm_facts, run_facts
from reports.formats import clean, number
from reports.headline import grouped_skips, grouped_verdicts, headline, places, title, verdict_line
from reports.rows import FORMULAS, SAME, TEXT_COLUMNS, point_rows, ratio_cell


def render(summary: Mapping[str, Any], picture: str | None = "frontier.png") -> str:
    """The report as Markdown; `picture` is the relative name of the frontier chart, None without one."""
    first, *more = headline(summary)
    parts = [
        f"# {escape(clean(summary['name'] or 'endsweep report', 120))}",
        *([f"**{escape(warning)}**"] if (warning := equality.alarm(summary)) else []),
        f"**{escape(first)}**",
        *map(escape, more),
    ]
    parts += [f"Verdict: {escape(verdict_line(summary))}.", *_verdict_lines(summary)]
    if picture:
        parts.append(f"![{escape(title(summary))}]({picture})")
    headings, rows = point_rows(summary)
    right = [c not in TEXT_COLUMNS for c in headings]
    parts.append("## All points")
    if rows:
        parts.append(_table(list(headings.values()), ([row[c] for c in headings] for row in rows), right))
    else:
        parts.append("No point was stored.")
    if summary["comparison"]:
        parts += _comparison(summary["comparison"])
    if answers := equality.rows(summary):
        right = [c != "arm" for c in equality.HEADINGS]
        parts += ["## Same answers?", escape(clean(summary["equality"]["text"]))]
        parts.append(
            _table(list(equality.HEADINGS.values()), ([r[c] for c in equality.HEADINGS] for r in answers), right)
        )
    parts += ["## What was run", _arms(summary)]
    parts.append("\n".join(f"- **{label}**: {escape(text)}" for label, text in run_facts(summary)))
    parts += ["## How the numbers are defined", "\n".join(f"- **{t}**: {escape(text)}" for t, text in FORMULAS.items())]
    return "\n\n".join(parts) + "\n"


def escape(text: str) -> str:
    """Text that Markdown shows as it is: its own signs get a backslash, HTML's become entities, so links and tags
    stay inert."""
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    text = re.sub(r"([\\`*_\[\]|#~!@])", r"\\\1", text)
    # GitHub makes bare addresses clickable; a word joiner's entity after the scheme keeps what a server said from
    # being a link.
    return re.sub(r"(?i)\b(https?|ftp|www|mailto|xmpp)([:.])", r"\1\2&#8288;", text)


def code(text: str) -> str:
    """Text to be copied, as code in a table's cell: nothing in it is a link or a tag, and no bar ends the cell."""
    return "`" + text.replace("`", "'").replace("\\", "/").replace("|", "\\|") + "`"


def _verdict_lines(summary: Mapping[str, Any]) -> list[str]:
    lines = []
    for g in grouped_verdicts(summary):
        line = "- " + escape(f"{g['code']} ({g['severity']}), {places(g)}: {g['evidence']}")
        line += f" (threshold {escape(g['threshold'])})" if g["threshold"] else ""
        lines.append(line + (f". Remedy: {escape(g['remedy'])}" if g["remedy"] else ""))
    for arm, loads, reason in grouped_skips(summary):
        lines.append(f"- {escape(arm)} at {loads} not measured: {escape(reason)}")
    lines += [f"- {escape(text)}" for _, text in equality.remarks(summary)]
    lines += [f"- {escape(c)}" for c in summary["caveats"]]
    return ["\n".join(lines)] if lines else []


def _comparison(comparison: Mapping[str, Any]) -> list[str]:
    parts = ["## Comparison"]
    for pair in comparison["pairs"]:
        base, arm = clean(pair["base"], 60), clean(pair["arm"], 60)
        parts.append(f"### {escape(arm)} against {escape(base)}")
        for crossing in pair["crossover"].values():
            parts.append(escape(" ".join(t for t in (crossing["text"], crossing["caveat"]) if t)))
        if pair["levels"]:
            headings, rows = level_table(pair)
            parts.append(
                "Change at each concurrency (for TTFT, lower is better; in brackets a 95 % interval; "
                f"{SAME} cannot be told apart):"
            )
            parts.append(_table(headings, rows, [True] * len(headings)))
        parts += [escape(line) for line in note_lines(pair)]
        if found := category_table(pair, comparison["acceptance"]):
            parts.append("Change in speed per user by category of prompt, paired by prompt:")
            parts.append(_table(*found, [i > 0 for i in range(len(found[0]))]))
        if pair["equal_speed"]:
            equal = (
                [f"{r['tps_per_user']:g}", number(r["base_system_tps"]), number(r["arm_system_tps"]), ratio_cell(r)]
                for r in pair["equal_speed"]
            )
            parts.append(
                f"At equal speed per user (interpolated between frontier points; {SAME} cannot be told apart):"
            )
            parts.append(
                _table(["Tokens/s/user", f"{base} (tokens/s)", f"{arm} (tokens/s)", "Change"], equal, [True] * 4)
            )
    parts += [escape(line) for line in acceptance_lines(comparison)]
    if comparison["best"]["by_speed"]:
        parts.append("Which arm gives the most total throughput when each user must get at least so many tokens/s:")
        parts.append(_table(*speed_table(comparison), [True, False, False]))
    return parts


def _arms(summary: Mapping[str, Any]) -> str:
    columns = {
        "name": "Arm",
        "url": "URL",
        "model": "Model",
        "api": "API",
        "speculation": "Speculation",
        "end": "End of the curve",
    }
    rows = [[code(arm[c]) if c in ("url", "model") else escape(arm[c]) for c in columns] for arm in arm_facts(summary)]
    return _lines(list(columns.values()), rows, [False] * len(columns))


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[bool]) -> str:
    return _lines(headings, ([escape(cell) for cell in row] for row in rows), right)


def _lines(headings: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[bool]) -> str:
    """A table whose cells are Markdown already; headings are text."""
    rule = "|" + "|".join("---:" if r else "---" for r in right) + "|"
    head, *body = ("| " + " | ".join(cells) + " |" for cells in ([escape(h) for h in headings], *rows))
    return "\n".join([head, rule, *body])
