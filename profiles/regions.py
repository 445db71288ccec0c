"""The rules' regions of a curve: how (C_min, C_max] splits into bands of concurrency."""

from __future__ import annotations

import math

FIXED_LOW = 32  # ultra low concurrency: 1 to 32, whatever the curve


def regions(c_min: int, c_max: int) -> dict[str, tuple[int, int] | None]:
    """Inclusive bounds of each region, None for an empty one.

    MLPerf Endpoints rules v1.0, section 5.5: three parts of (C_min, C_max] equal in log2(c - C_min), each end rounded
    half to even, in the floating-point form the rules give (bit for bit). Raises ValueError outside 1 <= C_min <= 32 <
    C_max, where the rules define none.
    """
    if not (1 <= c_min <= FIXED_LOW < c_max):
        raise ValueError(f"regions are defined for 1 <= C_min <= 32 < C_max, not for {c_min} and {c_max}")
    third = math.log2(c_max - c_min) / 3
    low_end = round(c_min + 2**third)
    med_end = round(c_min + 2 ** (2 * third))
    bounds = {
        "low_latency": (1, c_min),
        "low_concurrency": (c_min + 1, low_end),
        "med_concurrency": (low_end + 1, med_end),
        "high_concurrency": (med_end + 1, c_max),
        "margin": (c_max + 1, math.ceil(1.10 * c_max)),
    }
    return {name: (low, high) if low <= high else None for name, (low, high) in bounds.items()}


def region_of(concurrency: int, bounds: dict[str, tuple[int, int] | None]) -> str | None:
    """The first region, from low to high, that holds a concurrency."""
    return next((name for name, b in bounds.items() if b is not None and b[0] <= concurrency <= b[1]), None)
