"""The charts, as declarations: each function takes the summary (and the series it draws) and returns an Altair chart,
or None where there is nothing to draw. Foreign names enter as data only, never inside an expression."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, cast

import altair as alt

from reports.formats import clean, number, users
from reports.headline import title
from reports.points import get, interval, is_measured, is_valid, load_label, num, verdicts
from sweeps.frontier import step_line

Summary = Mapping[str, Any]
Rows = list[dict[str, Any]]
Chart = TypeVar("Chart", alt.LayerChart, alt.FacetChart)

# Okabe-Ito, in an order whose neighbours differ most in lightness; yellow is left out (too faint on white).
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
SHAPES = ("circle", "square", "triangle-up", "diamond", "triangle-down", "triangle-right", "triangle-left")
GREY = "#767676"
INK = "#1b1f24"
FONT = "Helvetica, Arial, 'Liberation Sans', sans-serif"
TIMELINE_BINS = 120  # per point: more cannot be seen at this size

SPEED_AXIS = "Speed per user (tokens/s/user, 1000 / TPOT p90)"
TOTAL_AXIS = "Total throughput (output tokens/s)"


@dataclass(frozen=True, slots=True)
class Series:
    """The binned series of one point: rows (series, x0, x1, y) as stored in series.parquet."""

    arm: str
    load: str
    trial: int
    rows: Sequence[tuple[str, float, float, float]]


def pareto(summary: Summary, width: int = 820, height: int = 460) -> alt.LayerChart | None:
    """Total throughput against speed per user: a step line per arm, its points labelled by concurrency."""
    points = [
        p
        for p in summary["points"]
        if is_measured(p) and (num(p, "tps_per_user") or 0) > 0 and (num(p, "system_tps") or 0) > 0
    ]
    if not points:
        return None
    arms = _arms(summary)
    x_scale, y_scale = _scale([p["tps_per_user"] for p in points]), _scale([p["system_tps"] for p in points])
    lines = {arm: step_line(fps) for arm, fps in summary["frontier"]["arms"].items() if fps}
    x = alt.X("tps_per_user:Q", title=SPEED_AXIS, scale=x_scale, axis=_axis(x_scale))
    y = alt.Y("system_tps:Q", title=TOTAL_AXIS, scale=y_scale, axis=_axis(y_scale))
    colour = _colour(summary)

    steps: Rows = [
        {"arm": arms[arm], "n": n, "tps_per_user": px, "system_tps": py}
        for arm, line in lines.items()
        for n, (px, py) in enumerate(_down_to_the_axes(line, x_scale, y_scale))
    ]
    rows = [_row(p, arms) | {"label": load_label(p)} for p in points]
    for row, point in zip(rows, points, strict=True):
        # The step line leaves its points to the left and downwards, so up right is free of it, and down left is
        # inside it; a point that another arm's line passes above is labelled inside, so that the lines keep apart
        # from the labels.
        row["side"] = "in" if _under_another(point, lines) else "out"
    valid, invalid = [r for r in rows if r["valid"]], [r for r in rows if not r["valid"]]

    layers: list[alt.Chart | None] = [
        alt.Chart(_data(steps))
        .mark_line(interpolate="step-after", strokeWidth=2, opacity=0.75)
        .encode(x, y, color=colour, order="n:Q"),
        alt.Chart(_data([r for r in valid if r["system_low"] is not None]))
        .mark_rule(strokeWidth=1.5, opacity=0.6)
        .encode(x, alt.Y("system_low:Q", title=TOTAL_AXIS), y2="system_high:Q", color=colour),
        alt.Chart(_data([r for r in valid if r["user_low"] is not None]))
        .mark_rule(strokeWidth=1.5, opacity=0.6)
        .encode(alt.X("user_low:Q", title=SPEED_AXIS), y, x2="user_high:Q", color=colour),
        alt.Chart(_data(valid))
        .mark_point(filled=True, size=80, opacity=1, stroke="white", strokeWidth=1)
        .encode(x, y, color=colour, shape=_shape(summary), tooltip=_tooltip()),
        _cross(invalid, x, y),
    ]
    sides: tuple[tuple[str, int, int, Literal["left", "right"]], ...] = (
        ("out", 7, -9, "left"),
        ("in", -7, 11, "right"),
    )
    for side, dx, dy, align in sides:
        here = [r for r in _first_trials(valid) if r["side"] == side]
        layers.append(
            alt.Chart(_data(here))
            .mark_text(dx=dx, dy=dy, align=align, fontSize=12)
            .encode(x, y, text="label:N", color=colour)
        )
    layers.append(
        alt.Chart(_data(_first_trials(invalid)))
        .mark_text(dx=9, align="left", fontSize=12, color=GREY)
        .encode(x, y, text="label:N")
    )
    subtitle = "Numbers are concurrent users. Up and to the right is better."
    if any(r["system_low"] is not None or r["user_low"] is not None for r in valid):
        subtitle += " Bars: 95 % intervals."
    if invalid:
        subtitle += " Grey crosses: invalid points."
    return _dress(layers, title(summary), subtitle, width, height)


def against_concurrency(summary: Summary, metric: str, width: int = 380, height: int = 280) -> alt.LayerChart | None:
    """One metric ('system_tps', 'tps_per_user' or 'ttft_ms_p90') against concurrency, the crossover marked."""
    heading, axis_title, path = {
        "system_tps": ("Total throughput", "Output tokens/s", ("system_tps",)),
        "tps_per_user": ("Speed per user", "Tokens/s/user", ("tps_per_user",)),
        "ttft_ms_p90": ("Time to first token, p90", "Milliseconds", ("ttft_ms", "p90")),
    }[metric]
    points = [p for p in summary["points"] if is_measured(p) and (num(p, *path) or 0) > 0]
    if not points:
        return None
    arms = _arms(summary)
    rows = [_row(p, arms) | {"y": num(p, *path)} for p in points]
    for row, point in zip(rows, points, strict=True):
        row["low"], row["high"] = interval(point, metric) or (None, None)
    levels = sorted({p["concurrency"] for p in points})
    x = alt.X(
        "concurrency:Q",
        title="Concurrent users",
        scale=alt.Scale(type="log", base=2, domain=[levels[0] / 1.15, levels[-1] * 1.15], nice=False),
        axis=alt.Axis(values=_spread_ticks(levels), grid=False, format="d", labelOverlap=True),
    )
    scale = _scale([r["y"] for r in rows])
    y = alt.Y("y:Q", title=axis_title, scale=scale, axis=_axis(scale, 5))
    colour = _colour(summary)
    valid, invalid = [r for r in rows if r["valid"]], [r for r in rows if not r["valid"]]
    means = _median_by_level(valid)
    layers: list[alt.Chart | None] = [
        alt.Chart(_data(means)).mark_line(strokeWidth=2, opacity=0.75).encode(x, y, color=colour),
        alt.Chart(_data([r for r in valid if r["low"] is not None]))
        .mark_rule(strokeWidth=1.5, opacity=0.6)
        .encode(x, alt.Y("low:Q", title=axis_title), y2="high:Q", color=colour),
        alt.Chart(_data(valid))
        .mark_point(filled=True, size=60, opacity=1, stroke="white", strokeWidth=1)
        .encode(x, y, color=colour, shape=_shape(summary), tooltip=_tooltip()),
        _cross(invalid, x, y),
        *_crossover_marks(summary, metric, x),
    ]
    return _dress(layers, heading, None, width, height)


def timelines(summary: Summary, series: Sequence[Series], width: int = 210, height: int = 100) -> alt.FacetChart | None:
    """Tokens/s over the time of each point, as small multiples by concurrency: is each point steady?"""
    arms = _arms(summary)
    rows: Rows = [
        {"arm": arms[s.arm], "load": s.load, "trial": s.trial, "t": (x0 + x1) / 2, "y": y}
        for s in series
        if s.arm in arms
        for x0, x1, y in _rebinned([(x0, x1, y) for name, x0, x1, y in s.rows if name == "tokens_per_s"])
    ]
    if not rows:
        return None
    lines = (
        alt.Chart()
        .mark_line(strokeWidth=1.5, opacity=0.85)
        .encode(
            x=alt.X("t:Q", title="Seconds in the window", axis=alt.Axis(tickCount=4, grid=False)),
            y=alt.Y("y:Q", title=None, axis=alt.Axis(tickCount=3), scale=alt.Scale(zero=True)),
            color=_colour(summary),
            detail="trial:N",
            tooltip=[
                alt.Tooltip("arm:N", title="Arm"),
                alt.Tooltip("load:N", title="Load"),
                alt.Tooltip("trial:N", title="Trial"),
                alt.Tooltip("t:Q", title="Second", format=".1f"),
                alt.Tooltip("y:Q", title="Tokens/s", format=",.0f"),
            ],
        )
    )
    start = alt.Chart().mark_rule(color=GREY, strokeDash=[3, 3]).encode(x=alt.datum(0))
    return _facet(
        cast(alt.LayerChart, alt.layer(lines, start)),
        rows,
        width,
        height,
        "Output tokens/s over time, by concurrency",
        "Dashed: the start of the measured window; before it is warmup. A flat line is a steady point.",
        independent="y",
    )


def ttft_distribution(
    summary: Summary, series: Sequence[Series], width: int = 210, height: int = 100
) -> alt.FacetChart | None:
    """Share of requests whose first token came within x ms, by concurrency (cumulative, so bin widths do not
    matter)."""
    arms = _arms(summary)
    rows: Rows = []
    for s in series:
        bins = sorted((x0, x1, y) for name, x0, x1, y in s.rows if name == "ttft_ms")
        whole = sum(y for *_, y in bins)
        if s.arm not in arms or not whole:
            continue
        key = {"arm": arms[s.arm], "load": s.load, "trial": s.trial}
        so_far = 0.0
        first = next(x0 for x0, _, y in bins if y)
        rows.append(key | {"t": first, "y": 0.0})
        for _, x1, y in bins:
            if y:
                so_far += y
                rows.append(key | {"t": x1, "y": so_far / whole})
    if not rows:
        return None
    scale = _scale([r["t"] for r in rows], log_from=5)
    ticks: dict[str, Any] = {"tickCount": 4}
    if scale["type"] == "log":
        (low, high), wide = scale["domain"], 30
        ticks = {
            "values": _log_ticks(scale, (1, 2, 5) if high / low < wide else (1,) if high / low > wide**2 else (1, 3))
        }
    axis = alt.Axis(format=",~r", grid=False, labelOverlap=True, **ticks)
    base = (
        alt.Chart()
        .mark_line(strokeWidth=1.5, opacity=0.85)
        .encode(
            x=alt.X(
                "t:Q",
                title="TTFT (ms)",
                scale=scale,
                axis=axis,
            ),
            y=alt.Y("y:Q", title=None, axis=alt.Axis(values=[0, 0.5, 0.9], format=".0%")),
            color=_colour(summary),
            detail="trial:N",
            tooltip=[
                alt.Tooltip("arm:N", title="Arm"),
                alt.Tooltip("load:N", title="Load"),
                alt.Tooltip("t:Q", title="TTFT up to (ms)", format=",.4~r"),
                alt.Tooltip("y:Q", title="Share of requests", format=".0%"),
            ],
        )
    )
    return _facet(
        base,
        rows,
        width,
        height,
        "How soon the first token came, by concurrency",
        "Share of requests whose first token came within so many milliseconds.",
    )


def _facet(
    base: alt.Chart | alt.LayerChart,
    rows: Rows,
    width: int,
    height: int,
    heading: str,
    subtitle: str,
    independent: str | None = None,
) -> alt.FacetChart:
    loads = dict.fromkeys(sorted((r["load"] for r in rows), key=lambda load: (_load_key(load), load)))
    words = {load: f"{load} user{'' if load == '1' else 's'}" if load.isdigit() else load for load in loads}
    rows = [r | {"load": words[r["load"]]} for r in rows]
    chart = base.properties(width=width, height=height).facet(
        facet=alt.Facet(
            "load:N", sort=list(words.values()), title=None, header=alt.Header(labelFontSize=12, labelColor=INK)
        ),
        columns=4,
        data=_data(rows),
        title=alt.Title(heading, subtitle=subtitle, anchor="start"),
    )
    if independent:
        chart = chart.resolve_scale(y="independent")
    return _configured(chart)


def _load_key(load: str) -> float:
    try:
        return float(load.removesuffix("/s"))
    except ValueError:
        return math.inf


def _dress(
    layers: Sequence[alt.Chart | None], heading: str, subtitle: str | None, width: int, height: int
) -> alt.LayerChart:
    words: dict[str, Any] = {"text": heading, "anchor": "start"}
    if subtitle:
        words |= {"subtitle": subtitle}
    chart = cast(alt.LayerChart, alt.layer(*[c for c in layers if c is not None]))
    return _configured(chart.properties(width=width, height=height, title=alt.Title(**words)))


def _configured(chart: Chart) -> Chart:
    configured: Chart = (
        chart.configure(background="white", font=FONT, padding=8)
        .configure_view(stroke=None)
        .configure_axis(
            labelFontSize=12,
            titleFontSize=12,
            titleFontWeight="normal",
            labelColor=INK,
            titleColor=INK,
            gridColor="#e6e8eb",
            domainColor="#8a9099",
            tickColor="#8a9099",
        )
        .configure_title(
            fontSize=16, subtitleFontSize=12, subtitleColor="#4a515a", color=INK, offset=12, subtitlePadding=5
        )
        .configure_legend(
            labelFontSize=13, titleFontSize=12, orient="top", title=None, symbolSize=90, symbolOpacity=1, labelLimit=260
        )
    )
    return configured


def _arms(summary: Summary) -> dict[str, str]:
    """Arm name -> the name shown; cleaned names stay distinct."""
    shown: dict[str, str] = {}
    for arm in summary["arms"]:
        name = clean(arm, 60) or "(no name)"
        while name in shown.values():
            name += "′"
        shown[arm] = name
    return shown


def _colour(summary: Summary) -> alt.Color:
    names = list(_arms(summary).values())
    return alt.Color("arm:N", scale=alt.Scale(domain=names, range=_cycled(COLOURS, len(names))), legend=_legend(names))


def _shape(summary: Summary) -> alt.Shape:
    names = list(_arms(summary).values())
    return alt.Shape("arm:N", scale=alt.Scale(domain=names, range=_cycled(SHAPES, len(names))), legend=_legend(names))


def _legend(names: list[str]) -> alt.Legend | None:
    return alt.Legend(title=None, columns=min(len(names), 4)) if len(names) > 1 else None


def _cycled(values: Sequence[str], count: int) -> list[str]:
    return [values[i % len(values)] for i in range(count)]


def _data(rows: Rows) -> alt.InlineData:
    return alt.InlineData(values=rows)


def _scale(values: Sequence[float], log_from: float = 30) -> alt.Scale:
    """Linear from zero; logarithmic when the values span more than a factor `log_from`, where zero would hide the
    small ones."""
    low, high = min(values, default=1.0), max(values, default=1.0)
    if low > 0 and high / low > log_from:
        return alt.Scale(type="log", domain=[low / 1.25, high * 1.25], nice=False)
    return alt.Scale(type="linear", domain=[0, high * 1.1], nice=True)


def _axis(scale: alt.Scale, count: int = 7) -> alt.Axis:
    if scale["type"] == "log":
        return alt.Axis(values=_log_ticks(scale, (1, 2, 5)), format=",.3~r", labelOverlap=True)
    return alt.Axis(tickCount=count, format=",.6~r")


def _log_ticks(scale: alt.Scale, steps: tuple[int, ...]) -> list[float]:
    low, high = scale["domain"]
    decades = range(math.floor(math.log10(low)), math.floor(math.log10(high)) + 1)
    return [v for d in decades for s in steps if low <= (v := round(s * 10.0**d, 9)) <= high]


def _down_to_the_axes(
    corners: Sequence[tuple[float, float]], x_scale: alt.Scale, y_scale: alt.Scale
) -> list[tuple[float, float]]:
    """The corners, from fast to slow users, with the staircase's two ends: down to the x axis and left to the y
    axis."""
    (bottom, _), (left, _) = y_scale["domain"], x_scale["domain"]
    return [(corners[0][0], bottom), *corners, (left, corners[-1][1])]


def _spread_ticks(levels: list[int], most: int = 9) -> list[int]:
    """The measured levels as ticks, thinned on the log axis so that labels stay apart."""
    if len(levels) <= most:
        return levels
    gap = math.log(levels[-1] / levels[0]) / most
    kept = levels[:1]
    for level in levels[1:]:
        if math.log(level / kept[-1]) >= gap:
            kept.append(level)
    return kept


def _under_another(point: Mapping[str, Any], lines: Mapping[str, Sequence[tuple[float, float]]]) -> bool:
    return any(
        px >= point["tps_per_user"] and py > point["system_tps"]
        for arm, line in lines.items()
        if arm != point["arm"]
        for px, py in line
    )


def _cross(rows: Rows, x: alt.X, y: alt.Y) -> alt.Chart | None:
    if not rows:
        return None
    mark = alt.Chart(_data(rows)).mark_point(
        shape="cross", angle=45, size=90, filled=False, color=GREY, strokeWidth=1.5
    )
    cross: alt.Chart = mark.encode(x, y, tooltip=_tooltip())
    return cross


def _crossover_marks(summary: Summary, metric: str, x: alt.X) -> list[alt.Chart]:
    """A rule and its number where the curves of a pair cross (the first pair only: more would clutter)."""
    comparison = summary["comparison"]
    if not comparison or metric not in ("system_tps", "tps_per_user"):
        return []
    crossings = comparison["pairs"][0]["crossover"][metric]["crossings"]
    rows: Rows = [{"concurrency": c["at"], "text": f"cross at {users(c['at'])}"} for c in crossings]
    if not rows:
        return []
    base = alt.Chart(_data(rows))
    return [
        base.mark_rule(strokeDash=[4, 3], color="#4a515a").encode(x),
        base.mark_text(align="right", dx=-5, fontSize=12, color="#4a515a", baseline="top").encode(
            x, y=alt.value(2), text="text:N"
        ),
    ]


def _first_trials(rows: Rows) -> Rows:
    """One row an (arm, concurrency), so that trials of one load are labelled once."""
    return list({(r["arm"], r["concurrency"]): r for r in reversed(rows)}.values())


def _median_by_level(rows: Rows) -> Rows:
    groups: dict[tuple[str, int], list[float]] = {}
    for r in rows:
        groups.setdefault((r["arm"], r["concurrency"]), []).append(r["y"])
    out: Rows = []
    for (arm, level), values in groups.items():
        values.sort()
        middle = len(values) // 2
        y = values[middle] if len(values) % 2 else (values[middle - 1] + values[middle]) / 2
        out.append({"arm": arm, "concurrency": level, "y": y})
    return out


def _rebinned(bins: list[tuple[float, float, float]]) -> list[tuple[float, float, float]]:
    """At most TIMELINE_BINS bins: neighbours averaged, weighted by their width."""
    bins = sorted(b for b in bins if all(math.isfinite(v) for v in b))
    step = math.ceil(len(bins) / TIMELINE_BINS) or 1
    out = []
    for start in range(0, len(bins), step):
        group = bins[start : start + step]
        width = sum(x1 - x0 for x0, x1, _ in group)
        mean = sum(y * (x1 - x0) for x0, x1, y in group) / width if width > 0 else group[0][2]
        out.append((group[0][0], group[-1][1], mean))
    return out


def _row(point: Mapping[str, Any], arms: Mapping[str, str]) -> dict[str, Any]:
    system, user = interval(point, "system_tps"), interval(point, "tps_per_user")
    counts = point.get("counts") or {}
    return {
        "arm": arms[point["arm"]],
        "concurrency": point["concurrency"],
        "trial": point.get("trial") or 1,
        "valid": is_valid(point),
        "tps_per_user": num(point, "tps_per_user"),
        "system_tps": num(point, "system_tps"),
        "system_low": system[0] if system else None,
        "system_high": system[1] if system else None,
        "user_low": user[0] if user else None,
        "user_high": user[1] if user else None,
        "t_total": number(num(point, "system_tps")),
        "t_user": number(num(point, "tps_per_user")),
        "t_ttft": f"{number(num(point, 'ttft_ms', 'p50'))} / {number(num(point, 'ttft_ms', 'p90'))} ms",
        "t_tpot": f"{number(num(point, 'tpot_ms', 'p50'))} / {number(num(point, 'tpot_ms', 'p90'))} ms",
        "t_e2e": f"{number(num(point, 'e2e_latency_ms', 'p90'))} ms",
        "t_requests": f"{counts.get('completed') or 0} ok, {counts.get('failed') or 0} failed",
        "t_accept": number(num(point, "speculation", "acceptance_length")),
        "t_verdicts": ", ".join(clean(get(v, "code"), 40) for v in verdicts(point)) or "valid",
    }


def _tooltip() -> list[alt.Tooltip]:
    titles = {
        "arm": "Arm",
        "concurrency": "Concurrency",
        "trial": "Trial",
        "t_total": "Tokens/s",
        "t_user": "Tokens/s/user",
        "t_ttft": "TTFT p50 / p90",
        "t_tpot": "TPOT p50 / p90",
        "t_e2e": "E2E p90",
        "t_requests": "Requests",
        "t_accept": "Acceptance length",
        "t_verdicts": "Verdicts",
    }
    return [alt.Tooltip(f"{name}:N", title=text) for name, text in titles.items()]
