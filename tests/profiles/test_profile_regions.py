"""The rules' regions, against their worked examples."""

from __future__ import annotations

import pytest

from profiles.regions import region_of, regions

# C_min, C_max, ends of Low, Medium and High, end of the margin.
EXAMPLES = [
    (1, 64, 5, 17, 64, 71),
    (2, 64, 6, 18, 64, 71),
    (1, 100, 6, 22, 100, 111),  # 1.10 * 100 = 110.00000000000001 in floating point
    (1, 128, 6, 26, 128, 141),
    (2, 128, 7, 27, 128, 141),
    (1, 200, 7, 35, 200, 221),
    (1, 256, 7, 41, 256, 282),
    (2, 256, 8, 42, 256, 282),
    (8, 256, 14, 47, 256, 282),
    (16, 256, 22, 55, 256, 282),
    (1, 512, 9, 65, 512, 564),
    (8, 512, 16, 71, 512, 564),
    (16, 512, 24, 79, 512, 564),
    (1, 1000, 11, 101, 1000, 1100),
    (1, 1024, 11, 103, 1024, 1127),
    (8, 1024, 18, 109, 1024, 1127),
    (16, 1024, 26, 117, 1024, 1127),
    (32, 1024, 42, 131, 1024, 1127),
    (16, 2048, 29, 176, 2048, 2253),
    (32, 2048, 45, 192, 2048, 2253),
    (1, 4096, 17, 257, 4096, 4506),
    (32, 4096, 48, 287, 4096, 4506),
    (32, 8192, 52, 437, 8192, 9012),
    (32, 16384, 57, 676, 16384, 18023),
    (1, 40, 4, 13, 40, 44),
    (32, 40, 34, 36, 40, 44),
]


@pytest.mark.parametrize(("c_min", "c_max", "low", "medium", "high", "margin"), EXAMPLES)
def test_worked_examples(c_min: int, c_max: int, low: int, medium: int, high: int, margin: int) -> None:
    bounds = regions(c_min, c_max)
    assert bounds == {
        "low_latency": (1, c_min),
        "low_concurrency": (c_min + 1, low),
        "med_concurrency": (low + 1, medium),
        "high_concurrency": (medium + 1, high),
        "margin": (c_max + 1, margin),
    }
    # Together they hold every concurrency once.
    names = [region_of(c, bounds) for c in range(1, min(margin, 600) + 1)]
    assert None not in names
    assert names == sorted(names, key=list(bounds).index)
    assert region_of(margin + 1, bounds) is None


def test_the_narrowest_curve_has_empty_regions() -> None:
    assert regions(32, 33) == {
        "low_latency": (1, 32),
        "low_concurrency": (33, 33),
        "med_concurrency": None,
        "high_concurrency": None,
        "margin": (34, 37),
    }


@pytest.mark.parametrize(("c_min", "c_max"), [(0, 64), (33, 64), (1, 32), (8, 8)])
def test_where_the_rules_define_none(c_min: int, c_max: int) -> None:
    with pytest.raises(ValueError, match="1 <= C_min <= 32 < C_max"):
        regions(c_min, c_max)
