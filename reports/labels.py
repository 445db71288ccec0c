"""Where the labels beside a chart's points go, so that they cover neither each other nor another point. Pure geometry
in pixels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

# Offset of the text's near edge from the point, and how the text is aligned there: up right and down left.
SIDES: dict[str, tuple[int, int]] = {"out": (7, -9), "in": (-7, 11)}
CHARACTER, LINE, POINT = 7.0, 13.0, 5.0


@dataclass(frozen=True, slots=True)
class Anchor:
    """A point at (x, y) px with its label; `side` is where the label would rather be, low ranks choose first."""

    x: float
    y: float
    text: str
    side: str
    rank: int = 0


def place(anchors: Sequence[Anchor]) -> list[str | None]:
    """The side for each label, or None where it would cover something; placed by rank."""
    points = [(a.x - POINT, a.y - POINT, a.x + POINT, a.y + POINT) for a in anchors]
    taken: list[tuple[float, float, float, float]] = []
    sides: list[str | None] = [None] * len(anchors)
    for i in sorted(range(len(anchors)), key=lambda i: anchors[i].rank):
        anchor = anchors[i]
        other = next(side for side in SIDES if side != anchor.side)
        for side in (anchor.side, other):
            box = _box(anchor, side)
            blocked = any(_overlap(box, b) for b in taken) or any(_overlap(box, p) for p in points)
            if not blocked:
                sides[i] = side
                taken.append(box)
                break
    return sides


def _box(anchor: Anchor, side: str) -> tuple[float, float, float, float]:
    dx, dy = SIDES[side]
    near, width, middle = anchor.x + dx, CHARACTER * len(anchor.text), anchor.y + dy
    left, right = (near, near + width) if dx > 0 else (near - width, near)
    return left, middle - LINE / 2, right, middle + LINE / 2


def _overlap(a: tuple[float, float, float, float], b: tuple[float, float, float, float]) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]
