"""The written files: complete, strict, offline, safe against hostile strings, and standing when there is nothing to
show."""

from __future__ import annotations

import csv
import io
import json
import re
from html.parser import HTMLParser

import pytest

from reports import charts, markdown, page, pictures, tables
from reports.build import build, build_many, read_series
from reports.summary import ReportError, assemble, write
from reports.terminal import plain

HOSTILE = "</script><img src=http://evil.example/x onerror=alert(1)><b>\x1b[31m\u202e'\"&|`[a](http://evil.example)"
FILES = ("summary.json", "points.csv", "report.md", "report.html", "frontier.png", "frontier.svg")


class Page(HTMLParser):
    """What a browser would see: tags with attributes, text by element."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.text = ""
        self._inside = ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self._inside = tag
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag):
        self._inside = ""

    def handle_data(self, data):
        if self._inside == "script":
            self.scripts[-1] += data
        elif self._inside != "style":
            self.text += data


@pytest.fixture(scope="module")
def built(make, tmp_path_factory):
    points = make.points()
    points[3]["verdicts"] = [
        {"code": "too_few", "severity": "warn", "evidence": "22", "threshold": "36", "remedy": "more"}
    ]
    run = make.run(tmp_path_factory.mktemp("built") / "run", points)
    return run, build(run)


@pytest.fixture(scope="module")
def hostile(make):
    arm = make.manifest()["arms"]["off"] | {"model": HOSTILE, "url": HOSTILE, "probe": {HOSTILE: HOSTILE}}
    names = ("off" + HOSTILE, HOSTILE)
    verdict = {"code": HOSTILE, "severity": "warn", "evidence": HOSTILE, "threshold": HOSTILE, "remedy": HOSTILE}
    points = [
        make.point("off", c)
        | {"arm": name, "verdicts": [verdict], "errors": [{"outcome": HOSTILE, "example": HOSTILE}]}
        for name in names
        for c in (1, 8)
    ]
    manifest = make.manifest(
        name=HOSTILE, arms=dict.fromkeys(names, arm), workload={"name": HOSTILE}, host={HOSTILE: HOSTILE}
    )
    journal = [make.event("point_skipped", arm=names[0], concurrency=64, trial=1, reason=HOSTILE)]
    return assemble(manifest, points, journal)


def test_every_file_is_written_and_no_temporary_one_stays(built):
    run, summary = built
    for name in FILES:
        assert (run / name).stat().st_size > 200, name
    assert not [p for p in run.iterdir() if p.name.startswith(".")]

    def refuse(name):
        raise AssertionError(name)

    assert json.loads((run / "summary.json").read_text(), parse_constant=refuse) == summary
    png = (run / "frontier.png").read_bytes()
    assert png.startswith(b"\x89PNG")
    width = int.from_bytes(png[16:20], "big")
    assert width > 1600  # two pixels for each of the chart's own
    assert (run / "frontier.svg").read_text().startswith("<svg")


def test_building_again_gives_the_same_summary(built):
    run, summary = built
    assert build(run) == summary


def test_page_loads_nothing(built):
    seen = Page((built[0] / "report.html").read_text())
    for tag, attrs in seen.tags:
        assert tag not in ("link", "iframe", "object", "embed", "base"), tag
        for name in ("src", "href", "srcset", "action", "poster"):
            value = attrs.get(name)
            assert value is None or value.startswith("data:image/svg+xml;base64,"), (tag, value)
    policy = next(a["content"] for t, a in seen.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'")
    assert "http" not in policy
    style = (built[0] / "report.html").read_text().split("<style>")[1].split("</style>")[0]
    assert "url(" not in style
    assert "@import" not in style


def test_page_is_one_file_of_sensible_size_with_the_renderer_once(built):
    html = (built[0] / "report.html").read_text()
    assert 500_000 < len(html) < 3_000_000
    assert html.count("window.vegaEmbed") == 1


def test_page_says_what_was_found(built):
    text = " ".join(Page((built[0] / "report.html").read_text()).text.split())
    assert "on gives more total throughput up to about 11 concurrent users, off above that" in text
    assert "12 points: 1 with warnings" in text
    assert "at least so many tokens/s" in text
    assert "1000 / TPOT p90" in text


def test_page_tables_have_captions_and_scopes(built):
    seen = Page((built[0] / "report.html").read_text())
    tags = [tag for tag, _ in seen.tags]
    assert tags.count("caption") == tags.count("table") >= 4
    assert all(attrs.get("scope") in ("col", "row") for tag, attrs in seen.tags if tag == "th")
    assert all(attrs.get("alt") for tag, attrs in seen.tags if tag == "img")
    assert tags.count("h1") == 1


def test_chart_declarations_on_the_page_are_strict_json_without_addresses(built):
    seen = Page((built[0] / "report.html").read_text())
    specs = [json.loads(s) for s in seen.scripts if s.startswith("{")]
    assert len(specs) == 6
    for spec in specs:
        assert "url" not in json.dumps(spec)


def test_hostile_strings_stay_text_on_the_page(hostile):
    html = page.render(hostile, [])
    assert "<img src=http" not in html
    assert "</script><img" not in html
    seen = Page(html)
    assert all("onerror" not in attrs for _, attrs in seen.tags)
    assert len(seen.scripts) == html.count("<script")
    assert "onerror=alert(1)" in seen.text  # it is shown, as text
    assert "\x1b" not in html
    assert "\u202e" not in html


def test_hostile_strings_stay_text_in_markdown(hostile):
    text = markdown.render(hostile)
    outside = re.sub(r"`[^`\n]*`", "", text.replace("\\`", ""))  # of code, where nothing is read as markup
    assert "<img" not in outside
    assert re.findall(r"(?<!\\)\[", outside) == ["["]  # the chart's own
    assert "http://" not in outside
    assert "\x1b" not in text
    tables_found = [block.splitlines() for block in text.split("\n\n") if block.startswith("|")]
    assert len(tables_found) >= 3
    for table in tables_found:
        assert len({row.replace("\\|", "").count("|") for row in table}) == 1  # no cell broke its row


def test_csv_has_one_row_a_point_and_flat_columns(built):
    rows = list(csv.DictReader(io.StringIO((built[0] / "points.csv").read_text())))
    assert len(rows) == 12
    first = rows[0]
    for column in (
        "arm",
        "concurrency",
        "trial",
        "system_tps",
        "tps_per_user",
        "ttft_ms_p90",
        "tpot_ms_p50",
        "duration_s",
    ):
        assert first[column], column
    assert float(first["system_tps"]) == pytest.approx(built[1]["points"][0]["system_tps"])
    assert first["concurrency"] == "1"
    assert first["valid"] == "True"
    assert rows[3]["verdicts"] == "too_few"
    assert all(name == name.lower() and " " not in name for name in first)


def test_csv_cell_cannot_be_a_formula(make):
    frame = tables.points_frame({"points": [make.point("=cmd()", 1)]})
    assert frame["arm"][0] == "'=cmd()"


def test_nothing_but_failures_still_gives_a_report(make, tmp_path):
    points = [make.null_point(arm, c) for arm in ("off", "on") for c in (1, 8)]
    run = make.run(tmp_path / "run", points, series=False)
    summary = build(run)
    assert summary["totals"]["valid"] == 0
    assert not (run / "frontier.png").exists()
    html = (run / "report.html").read_text()
    assert "No valid point was measured (errors)" in html
    assert "HTTP 503: overloaded" in html
    assert "frontier.png" not in (run / "report.md").read_text()


def test_run_without_points_gives_a_report(make, tmp_path):
    run = make.run(tmp_path / "run", [])
    assert build(run)["points"] == []
    assert "No point was stored" in (run / "report.html").read_text()


def test_null_points_beside_good_ones(make, tmp_path):
    points = [*make.points(levels=(1, 4)), make.null_point("off", 8), make.null_point("on", 8)]
    points[0]["tps_per_user"] = None  # one token a request: no speed per user, yet valid
    summary = build(make.run(tmp_path / "run", points))
    (pair,) = summary["comparison"]["pairs"]
    assert pair["levels"][0]["ratios"]["tps_per_user"] is None
    assert pair["levels"][0]["ratios"]["system_tps"]["ratio"] > 1


def test_points_of_an_open_loop_are_listed_but_not_on_the_curve(make, tmp_path):
    load = {"pattern": "poisson", "concurrency": None, "rate": 12.5}
    summary = assemble(
        make.manifest(), [*make.points(levels=(1, 4)), make.point("off", 1, load=load) | {"concurrency": None}], []
    )
    assert len(summary["frontier"]["arms"]["off"]) == 2
    assert "12.5/s" in Page(page.render(summary, [])).text
    assert "12.5/s" in plain(summary)


def test_one_arm_and_three_arms(make):
    one = assemble(make.manifest(), make.points(arms=("off",)), [])
    assert one["comparison"] is not None  # the manifest names two arms, one of them without points
    only = make.manifest(arms={"off": make.manifest()["arms"]["off"]})
    alone = assemble(only, make.points(arms=("off",)), [])
    assert alone["comparison"] is None
    assert "Comparison" not in Page(page.render(alone, [])).text
    third = make.points() + [p | {"arm": "third"} for p in make.points(arms=("on",))]
    three = assemble(make.manifest(), third, [])
    assert "third against off" in Page(page.render(three, [])).text


def test_several_runs_on_one_page(make, tmp_path):
    runs = [make.run(tmp_path / name, make.points(levels=(1, 8))) for name in ("monday", "tuesday")]
    summary = build_many(runs, tmp_path / "both")
    assert list(summary["arms"]) == ["monday/off", "monday/on", "tuesday/off", "tuesday/on"]
    html = (tmp_path / "both" / "report.html").read_text()
    assert "tuesday/on" in html
    specs = [json.loads(s) for s in Page(html).scripts if s.startswith("{")]
    names = {
        r["arm"]
        for s in specs
        if "facet" in s
        for rows in s.get("datasets", {"": s["data"].get("values", [])}).values()
        for r in rows
    }
    assert names == set(summary["arms"])
    assert (tmp_path / "both" / "frontier.svg").exists()


def test_corrupt_series_is_one_sentence(make, tmp_path):
    run = make.run(tmp_path / "run", make.points(levels=(1,)))
    (run / "points" / "off" / "c00001-t1" / "series.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(ReportError, match=r"series\.parquet is corrupt"):
        read_series(run)


def test_series_is_thinned_for_the_page(make):
    rows = [("tokens_per_s", float(s), s + 1.0, 10.0) for s in range(1000)]
    summary = assemble(make.manifest(), make.points(levels=(1,)), [])
    chart = charts.timelines(summary, [charts.Series("off", "1", 1, rows)])
    values = (
        chart.to_dict()["data"]["values"]
        if "values" in chart.to_dict()["data"]
        else next(iter(chart.to_dict()["datasets"].values()))
    )
    assert 100 <= len(values) <= charts.TIMELINE_BINS
    assert all(v["y"] == pytest.approx(10) for v in values)


def test_steps_of_the_frontier_reach_both_axes(make):
    summary = assemble(make.manifest(), make.points(), [])
    spec = charts.pareto(summary).to_dict()
    line = next(layer for layer in spec["layer"] if layer["mark"]["type"] == "line")
    assert line["mark"]["interpolate"] == "step-after"
    rows = line["data"].get("values") or spec["datasets"][line["data"]["name"]]
    off = [(r["tps_per_user"], r["system_tps"]) for r in rows if r["arm"] == "off"]
    assert off[0][1] == 0
    assert off[-1][0] == 0
    assert [x for x, _ in off] == sorted((x for x, _ in off), reverse=True)


def test_pictures_do_not_load_addresses():
    encoding = {"x": {"field": "a", "type": "quantitative"}}
    spec = {"data": {"url": "http://127.0.0.1:9/x.json"}, "mark": "point", "encoding": encoding}
    with pytest.raises(ValueError, match="not allowed"):
        pictures.svg(spec)


def test_writing_leaves_the_old_file_when_it_fails(tmp_path):
    target = tmp_path / "summary.json"
    target.write_text("old")
    with pytest.raises(TypeError):
        write(target, 5)
    assert target.read_text() == "old"
    write(target, "new")
    assert target.read_text() == "new"
    assert [p.name for p in tmp_path.iterdir()] == ["summary.json"]
