import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiles.errors import Refusal
from profiles.levels import HIGHEST, parse_levels

levels = st.integers(1, HIGHEST)


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ("1,2,4", (1, 2, 4)),
        ("1..64", (1, 2, 4, 8, 16, 32, 64)),
        ("1..100", (1, 2, 4, 8, 16, 32, 64, 100)),
        ("3..20", (3, 4, 8, 16, 20)),
        ("7..7", (7,)),
        ("1, 4..16", (1, 4, 8, 16)),
        ("auto", (1, 2, 4, 8, 16, 32, 64)),
        ([4, 1, 4], (1, 4)),
        (8, (8,)),
        ({"from": 1, "to": 256, "points": 9}, (1, 2, 4, 8, 16, 32, 64, 128, 256)),
        ({"from": 1, "to": 4, "points": 50}, (1, 2, 3, 4)),
        ({"from": 5, "to": 5, "points": 1}, (5,)),
    ],
)
def test_spellings(asked: object, expected: tuple[int, ...]) -> None:
    assert parse_levels(asked) == expected


@pytest.mark.parametrize(
    "asked",
    [
        *("", "x", "1..", "4..2", "0", "0..4", "1;2", "1,,2", "-1", "1.5", "65537", "1..99999999999", "Auto", "٣"),
        *(0, -1, 1.0, True, None, [], ["1"], [1, None], [True], [HIGHEST + 1], 10**400),
        *({}, {"from": 1, "to": 4}, {"from": 1, "to": 4, "points": 1}, {"from": 4, "to": 1, "points": 3}),
        *({"from": "1", "to": 4, "points": 3}, {"from": 1, "to": 4, "points": 2.0}, {"from": 1, "to": 4, "step": 3}),
    ],
)
def test_refusals(asked: object) -> None:
    with pytest.raises(Refusal):
        parse_levels(asked)


@given(levels, levels)
def test_a_range_has_both_ends_and_every_power_of_two_between(a: int, b: int) -> None:
    low, high = sorted((a, b))
    found = parse_levels(f"{low}..{high}")
    assert found[0] == low
    assert found[-1] == high
    assert list(found) == sorted(set(found))
    assert set(found[1:-1]) == {2**n for n in range(17) if low < 2**n < high}


@given(levels, levels, st.integers(2, 60))
def test_a_spread_has_both_ends_and_no_more_points_than_asked(a: int, b: int, points: int) -> None:
    low, high = sorted((a, b))
    found = parse_levels({"from": low, "to": high, "points": points})
    assert (found[0], found[-1]) == (low, high)
    assert len(found) <= points
    assert list(found) == sorted(set(found))


@given(st.lists(levels, min_size=1, max_size=20))
def test_a_list_is_the_same_as_its_text(asked: list[int]) -> None:
    assert parse_levels(asked) == parse_levels(",".join(map(str, asked))) == tuple(sorted(set(asked)))
