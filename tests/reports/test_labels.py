"""Label placement: no label covers a point or another label."""

from __future__ import annotations

from reports.labels import Anchor, place


def test_labels_with_room_stay_where_they_want_to_be():
    assert place([Anchor(0, 0, "1", "out"), Anchor(200, 200, "2", "in")]) == ["out", "in"]


def test_a_label_goes_to_the_other_side_of_a_point_in_its_way():
    assert place([Anchor(0, 100, "64", "out"), Anchor(12, 91, "96", "out")]) == ["in", "out"]


def test_a_crowd_keeps_the_ends_and_drops_the_middle():
    crowd = [Anchor(4.0 * i, 100, "128", "out", min(i, 6 - i)) for i in range(7)]
    sides = place(crowd)
    assert sides[0] is not None
    assert sides[-1] is not None
    assert None in sides


def test_nothing_to_place():
    assert place([]) == []
