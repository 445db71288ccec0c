"""Numbers and foreign strings as they are written."""

from __future__ import annotations

import pytest

from reports.formats import clean, listing, number, percent_change, seconds, usd, users


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (float("nan"), "–"),
        (float("inf"), "–"),
        (0, "0"),
        (12345.6, "12,346"),
        (812.4, "812"),
        (83.26, "83.3"),
        (5.256, "5.26"),
        (0.01234, "0.0123"),
        (-5.256, "-5.26"),
    ],
)
def test_number(value, text):
    assert number(value) == text


@pytest.mark.parametrize(
    ("ratio", "text"),
    [
        (1.23, "+23 %"),
        (0.8, "−20 %"),
        (1.067, "+6.7 %"),
        (1.0, "±0 %"),
        (0.9999, "±0 %"),
        (4.0, "+300 %"),
        (12.0, "× 12.0"),
        (None, "–"),
    ],
)
def test_percent_change(ratio, text):
    assert percent_change(ratio) == text


def test_words():
    assert listing([]) == ""
    assert listing(["a"]) == "a"
    assert listing(["a", "b", "c"]) == "a, b and c"
    assert [seconds(s) for s in (3.21, 48, 200, 3900)] == ["3.2 s", "48 s", "3 min 20 s", "1 h 05 min"]
    assert [usd(v) for v in (0, 0.0123, 4.5, None)] == ["$0.00", "$0.012", "$4.50", "–"]
    assert [users(v) for v in (3.14, 10.57, 1234.5)] == ["3.1", "11", "1,234"]


def test_clean_takes_away_what_cannot_be_shown():
    assert clean("a\x00b\x1b[1mc\u202ed\ud800e\nf\u2028g") == "ab[1mcde f g"
    assert clean("x" * 600) == "x" * 499 + "…"
    assert clean(None) == "None"
