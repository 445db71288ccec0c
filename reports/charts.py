"""The charts, as declarations: each function takes the summary (and the series it draws) and returns an Altair chart,
or None where there is nothing to draw. Foreign names enter as data only, never inside an expression."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import Any, TypeVar, cast

import altair as alt

from reports.formats import clean, number, users
from reports.headline import title
from reports.labels import SIDES, Anchor, place
from reports.points import METRICS, combine, get, is_measured, num, verdicts
from sweeps.frontier import is_valid, step_line

Summary = Mapping[str, Any]
Rows = list[dict[str, Any]]
Chart = TypeVar("Chart", alt.LayerChart, alt.FacetChart)

# Okabe-Ito, in an order whose neighbours differ most in lightness; yellow is left out (too faint on white).
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
SHAPES = ("circle", "square", "triangle-up", "diamond", "triangle-down", "triangle-right", "triangle-left")
GREY = "#767676"
INK = "#1b1f24"
FONT = "Helvetica, Arial, 'Liberation Sans', sans-serif"
CHARTED = ("system_tps", "tps_per_user", "ttft_ms_p90")
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
    arms = _arms(summary)
    marks, trials, invalid = (_with(rows, "tps_per_user", "system_tps") for rows in _rows(summary, arms))
    everything = [*marks, *trials, *invalid]
    if not everything:
        return None
    x_scale, y_scale = (_scale([r[m] for r in everything]) for m in ("tps_per_user", "system_tps"))
    x = alt.X("tps_per_user:Q", title=SPEED_AXIS, scale=x_scale, axis=_axis(x_scale))
    y = alt.Y("system_tps:Q", title=TOTAL_AXIS, scale=y_scale, axis=_axis(y_scale))
    colour = _colour(summary)
    lines = {arms[arm]: step_line(fps) for arm, fps in summary["frontier"]["arms"].items() if fps}
    steps: Rows = [
        {"arm": arm, "n": n, "tps_per_user": px, "system_tps": py}
        for arm, line in lines.items()
        for n, (px, py) in enumerate(_down_to_the_axes(line, x_scale, y_scale))
    ]
    _add_sides(marks, lines, x_scale, y_scale, width, height)
    layers: list[alt.Chart | None] = [
        alt.Chart(_data(steps))
        .mark_line(interpolate="step-after", strokeWidth=2, opacity=0.75)
        .encode(x, y, color=colour, order="n:Q"),
        alt.Chart(_data(_with(marks, "system_tps_low", "system_tps_high")))
        .mark_rule(strokeWidth=1.5, opacity=0.6)
        .encode(x, alt.Y("system_tps_low:Q", title=TOTAL_AXIS), y2="system_tps_high:Q", color=colour),
        alt.Chart(_data(_with(marks, "tps_per_user_low", "tps_per_user_high")))
        .mark_rule(strokeWidth=1.5, opacity=0.6)
        .encode(alt.X("tps_per_user_low:Q", title=SPEED_AXIS), y, x2="tps_per_user_high:Q", color=colour),
        _trial_dots(trials, x, y, colour),
        _points(marks, x, y, summary, 80),
        _cross(invalid, x, y),
    ]
    for side, (dx, dy) in SIDES.items():
        layers.append(
            alt.Chart(_data([r for r in marks if r["side"] == side]))
            .mark_text(dx=dx, dy=dy, align="left" if dx > 0 else "right", fontSize=12)
            .encode(x, y, text="concurrency:N", color=colour)
        )
    once = list({(r["arm"], r["concurrency"]): r for r in invalid}.values())
    layers.append(
        alt.Chart(_data(once)).mark_text(dx=9, align="left", fontSize=12, color=GREY).encode(x, y, text="concurrency:N")
    )
    subtitle = "Numbers are concurrent users. Up and to the right is better."
    if _with(marks, "system_tps_low") or _with(marks, "tps_per_user_low"):
        subtitle += " Bars: 95 % intervals."
    if trials:
        subtitle += " Small dots: single trials."
    if invalid:
        subtitle += " Grey crosses: invalid points."
    return _dress(layers, title(summary), subtitle, width, height)


def against_concurrency(summary: Summary, metric: str, width: int = 380, height: int = 280) -> alt.LayerChart | None:
    """One metric ('system_tps', 'tps_per_user' or 'ttft_ms_p90') against concurrency, the crossover marked."""
    heading, axis_title = {
        "system_tps": ("Total throughput", "Output tokens/s"),
        "tps_per_user": ("Speed per user", "Tokens/s/user"),
        "ttft_ms_p90": ("Time to first token, p90", "Milliseconds"),
    }[metric]
    marks, trials, invalid = (_with(rows, metric) for rows in _rows(summary, _arms(summary)))
    everything = [*marks, *trials, *invalid]
    if not everything:
        return None
    levels = sorted({r["concurrency"] for r in everything})
    x = alt.X(
        "concurrency:Q",
        title="Concurrent users",
        scale=alt.Scale(type="log", base=2, domain=[levels[0] / 1.15, levels[-1] * 1.15], nice=False),
        axis=alt.Axis(values=_spread_ticks(levels), grid=False, format="d", labelOverlap=True),
    )
    scale = _scale([r[metric] for r in everything])
    y = alt.Y(f"{metric}:Q", title=axis_title, scale=scale, axis=_axis(scale, 5))
    colour = _colour(summary)
    layers: list[alt.Chart | None] = [
        alt.Chart(_data(marks)).mark_line(strokeWidth=2, opacity=0.75).encode(x, y, color=colour),
        alt.Chart(_data(_with(marks, f"{metric}_low", f"{metric}_high")))
        .mark_rule(strokeWidth=1.5, opacity=0.6)
        .encode(x, alt.Y(f"{metric}_low:Q", title=axis_title), y2=f"{metric}_high:Q", color=colour),
        _trial_dots(trials, x, y, colour),
        _points(marks, x, y, summary, 60),
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
        shared=False,
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
    shared: bool = True,
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
        title=alt.Title(heading, subtitle=[subtitle], anchor="start"),
    )
    if not shared:
        chart = chart.resolve_scale(x="independent", y="independent")
    return _configured(chart)


def _load_key(load: str) -> float:
    try:
        return float(load.removesuffix("/s"))
    except ValueError:
        return math.inf


def _dress(
    layers: Sequence[alt.Chart | None], heading: str, subtitle: str | None, width: int, height: int
) -> alt.LayerChart:
    words: dict[str, Any] = {"text": wrap(heading, width // 9), "anchor": "start"}
    if subtitle:
        words |= {"subtitle": wrap(subtitle, width // 6)}
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


def _add_sides(
    marks: Rows,
    lines: Mapping[str, Sequence[tuple[float, float]]],
    x_scale: alt.Scale,
    y_scale: alt.Scale,
    width: int,
    height: int,
) -> None:
    """Give each mark the `side` of its label (None: no room).

    The step line leaves its points to the left and downwards, so up right is free of it, and down left is inside it;
    a point that another arm's line passes above is labelled inside, so that labels keep apart from both lines. Labels
    near a curve's ends have the best claim to room: they say from where to where it goes.
    """
    anchors = []
    for r in marks:
        levels = sorted(m["concurrency"] for m in marks if m["arm"] == r["arm"])
        place_in_curve = levels.index(r["concurrency"])
        under = any(
            px >= r["tps_per_user"] and py > r["system_tps"]
            for arm, line in lines.items()
            if arm != r["arm"]
            for px, py in line
        )
        at = _share(x_scale, r["tps_per_user"]) * width, (1 - _share(y_scale, r["system_tps"])) * height
        anchors.append(
            Anchor(
                *at,
                str(r["concurrency"]),
                "in" if under else "out",
                min(place_in_curve, len(levels) - 1 - place_in_curve),
            )
        )
    for r, side in zip(marks, place(anchors), strict=True):
        r["side"] = side


def _share(scale: alt.Scale, value: float) -> float:
    low, high = scale["domain"]
    return math.log(value / low) / math.log(high / low) if scale["type"] == "log" else (value - low) / (high - low)


def _with(rows: Rows, *columns: str) -> Rows:
    """The rows that have a positive number in each column, which is what a chart can place."""
    return [r for r in rows if all(r[c] is not None and r[c] > 0 for c in columns)]


def _points(rows: Rows, x: alt.X, y: alt.Y, summary: Summary, size: int) -> alt.Chart:
    mark = alt.Chart(_data(rows)).mark_point(filled=True, size=size, opacity=1, stroke="white", strokeWidth=1)
    points: alt.Chart = mark.encode(x, y, color=_colour(summary), shape=_shape(summary), tooltip=_tooltip())
    return points


def _trial_dots(rows: Rows, x: alt.X, y: alt.Y, colour: alt.Color) -> alt.Chart | None:
    if not rows:
        return None
    dots: alt.Chart = (
        alt.Chart(_data(rows)).mark_circle(size=14, opacity=0.45).encode(x, y, color=colour, tooltip=_tooltip())
    )
    return dots


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
    known = [c["interval"] for c in crossings if (c.get("interval") or {}).get("low") is not None]
    bands = alt.Chart(_data([{"concurrency": i["low"], "high": i["high"]} for i in known]))
    band = [bands.mark_rect(color="#4a515a", opacity=0.14).encode(x, x2="high:Q")] if known else []
    return [
        *band,
        base.mark_rule(strokeDash=[4, 3], color="#4a515a").encode(x),
        base.mark_text(align="right", dx=-5, fontSize=12, color="#4a515a", baseline="top").encode(
            x, y=alt.value(2), text="text:N"
        ),
    ]


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


def _rows(summary: Summary, arms: Mapping[str, str]) -> tuple[Rows, Rows, Rows]:
    """(one row for each arm and load with its trials combined, the single trials where there are several, invalid
    points)."""
    points = [p for p in summary["points"] if is_measured(p)]
    valid = [p for p in points if is_valid(p)]
    marks, trials = [], []
    for arm, by_level in combine(valid).items():
        for level, combined in by_level.items():
            mine = [p for p in valid if p["arm"] == arm and p["concurrency"] == level]
            middle = sorted(mine, key=lambda p: num(p, "system_tps") or 0)[(len(mine) - 1) // 2]
            row = _row(middle, arms)
            for metric in CHARTED:
                estimate = combined.estimates.get(metric)
                row[metric] = estimate.value if estimate else None
                row[f"{metric}_low"] = estimate.low if estimate else None
                row[f"{metric}_high"] = estimate.high if estimate else None
            row |= {"t_total": number(row["system_tps"]), "t_user": number(row["tps_per_user"])}
            if len(mine) > 1:
                row["trial"] = f"median of {len(mine)}"
                trials += [_row(p, arms) for p in mine]
            marks.append(row)
    order = list(arms.values())
    marks.sort(key=lambda r: (order.index(r["arm"]), r["concurrency"]))
    return marks, trials, [_row(p, arms) for p in points if not is_valid(p)]


def _row(point: Mapping[str, Any], arms: Mapping[str, str]) -> dict[str, Any]:
    counts = point.get("counts") or {}
    return {
        "arm": arms[point["arm"]],
        "concurrency": point["concurrency"],
        "trial": str(point.get("trial") or 1),
        **{metric: num(point, *METRICS[metric][0]) for metric in CHARTED},
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
