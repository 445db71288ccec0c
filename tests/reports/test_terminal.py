"""What the terminal shows: the final answer and the live view."""

from __future__ import annotations

import io
import itertools
import re
import subprocess
import sys
from pathlib import Path

import pytest

from reports.live import LiveView, outcome
from reports.summary import assemble
from reports.terminal import best_marks, plain, print_report, print_result
from sweeps.events import (
    Note,
    PointFinished,
    PointKey,
    PointProgress,
    PointSkipped,
    PointStarted,
    SweepFinished,
    SweepStarted,
)

REPORT = Path("/tmp/run/report.html")
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def summary(make):
    points = make.points()
    points[0]["verdicts"] = [
        {
            "code": "too_few",
            "severity": "warn",
            "evidence": "22 counted successes",
            "threshold": "36",
            "remedy": "raise --requests",
        }
    ]
    return assemble(make.manifest(), points, [])


def terminal(monkeypatch, width: int) -> Terminal:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    return Terminal()


@pytest.mark.parametrize("width", [80, 120])
def test_table_fits(summary, monkeypatch, width):
    out = terminal(monkeypatch, width)
    print_result(summary, out)
    lines = ESCAPES.sub("", out.getvalue()).splitlines()
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    assert "…" not in text
    assert "1,653 *" in text
    assert "too_few" in text
    assert "raise --requests" in text


def test_no_color_is_honoured(summary, monkeypatch):
    out = terminal(monkeypatch, 80)
    monkeypatch.setenv("NO_COLOR", "1")
    print_result(summary, out)
    assert not re.search(r"\x1b\[[0-9;]*3[0-7]m", out.getvalue())


def test_plain_lines_elsewhere(summary):
    out = io.StringIO()
    print_result(summary, out)
    text = out.getvalue()
    assert text == plain(summary)
    assert "\x1b" not in text
    lines = text.splitlines()
    assert len([line for line in lines if re.match(r" +\d+  (off|on) ", line)]) == 12
    assert "on gives more total throughput up to about 11 concurrent users" in text
    assert "too_few: off at 1: 22 counted successes (threshold 36) -> raise --requests" in text
    print_report(REPORT, out)
    assert out.getvalue() == f"{text}\nreport: {REPORT}\n"


def test_best_arm_is_marked(summary, make):
    marks = best_marks(summary)
    assert marks["on", 8] == "*"
    assert marks["off", 16] == "*"
    assert ("off", 8) not in marks
    wide = assemble(make.manifest(), make.points(levels=(8,), width=0.2), [])
    assert best_marks(wide) == {("off", 8): "~", ("on", 8): "~"}


def test_control_characters_and_markup_are_inert(make, monkeypatch):
    bad = "\x1b]0;owned\x07[red]x[/red]\x1b[2J"
    point = make.point("off", 1, verdicts=[{"code": bad, "severity": "warn", "evidence": bad, "remedy": bad}])
    found = assemble(make.manifest(), [point], [])
    assert "\x1b" not in plain(found)
    out = terminal(monkeypatch, 120)
    print_result(found, out)
    assert "\x1b]" not in out.getvalue()
    assert "\x1b[2J" not in out.getvalue()
    assert "[red]x[/red]" in ESCAPES.sub("", out.getvalue())


def test_points_of_nulls_are_shown(make, monkeypatch):
    found = assemble(make.manifest(), [make.null_point("off", 1), make.null_point("on", 1)], [])
    assert "No valid point was measured (errors)" in plain(found)
    out = terminal(monkeypatch, 80)
    print_result(found, out)
    assert "invalid: errors" in ESCAPES.sub("", out.getvalue())


def test_terminal_and_live_do_not_import_the_drawing_libraries():
    heavy = ("altair", "pandas", "vl_convert", "jinja2")
    code = f"import sys, reports.terminal, reports.live; print([m for m in {heavy} if m in sys.modules])"
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def events(make):
    keys = tuple(PointKey(arm, 4, 1) for arm in ("off", "on", "third"))
    yield SweepStarted("demo", "/tmp/run", keys, 0)
    yield Note("order is shuffled by seed 7")
    yield PointStarted(keys[0], 1, 3)
    for n in range(40):
        yield PointProgress(keys[0], "measure", n / 10, 4, n, 40, 0, 812.0)
    yield PointFinished(keys[0], 1, 3, make.point("off", 4))
    yield PointStarted(keys[1], 2, 3)
    yield PointFinished(keys[1], 2, 3, make.null_point("on", 4))
    yield PointSkipped(keys[2], 3, 3, "the budget is spent\x1b[2J")
    yield SweepFinished("/tmp/run", 2, 1, False, 25.0)


def test_plain_live_lines(make):
    out = io.StringIO()
    with LiveView(out) as view:
        for event in events(make):
            view(event)
    lines = out.getvalue().splitlines()
    assert lines == [
        "demo: 3 points, into /tmp/run",
        "order is shuffled by seed 7",
        "[1/3] off C=4 ...",
        "[1/3] off C=4 ... 620 tok/s, 167 tok/s/user, ttft p90 50.4 ms, 40 ok",
        "[2/3] on C=4 ...",
        "[2/3] on C=4 ... – tok/s, – tok/s/user, ttft p90 – ms, 0 ok, 40 failed  invalid [errors]",
        "[3/3] third C=4 skipped: the budget is spent[2J",
        "finished after 25 s: 2 points measured, 1 skipped",
    ]


def test_live_view_on_a_terminal_redraws_seldom(make, monkeypatch):
    out = terminal(monkeypatch, 80)
    now = [0.0]
    view = LiveView(out, clock=lambda: now[0])
    drawn = []
    assert view._live is not None
    monkeypatch.setattr(view._live, "update", lambda *a, **k: drawn.append(now[0]))
    key = PointKey("off", 4, 1)
    with view:
        view(SweepStarted("demo", "/tmp/run", (key,), 0))
        view(PointStarted(key, 1, 1))
        before = len(drawn)
        for n in range(100):  # ten events a second for ten seconds
            now[0] = 1 + n / 10
            view(PointProgress(key, "measure", n / 10, 4, n, 100, 0, 812.0))
        assert 20 <= len(drawn) - before <= 41


def test_live_view_on_a_terminal_keeps_finished_points_and_cleans_up(make, monkeypatch):
    out = terminal(monkeypatch, 100)
    ticks = itertools.count()
    with LiveView(out, clock=lambda: float(next(ticks))) as view:
        for event in events(make):
            view(event)
    text = ESCAPES.sub("", out.getvalue())
    assert "[1/3] off C=4 ... 620 tok/s" in text
    assert "39/40 counted" in text
    assert out.getvalue().count("\x1b[?25l") == out.getvalue().count("\x1b[?25h")  # the cursor is shown again


def test_time_left_comes_from_finished_points(make):
    now = [0.0]
    view = LiveView(io.StringIO(), clock=lambda: now[0])
    keys = tuple(PointKey("off", c, 1) for c in (1, 2, 4, 8))
    view(SweepStarted("demo", "/tmp/run", keys, 0))
    view(PointStarted(keys[0], 1, 4))
    assert view.eta() is None
    now[0] = 10.0
    view(PointFinished(keys[0], 1, 4, make.point("off", 1)))
    assert view.eta() == pytest.approx(30)
    view(PointStarted(keys[1], 2, 4))
    now[0] = 14.0
    assert view.eta() == pytest.approx(26)


def test_outcome_names_a_cut_point(make):
    assert outcome(make.point("off", 1, status="interrupted")).endswith("invalid: interrupted")
