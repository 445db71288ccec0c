"""Every case by its name."""

from __future__ import annotations

import difflib
from itertools import chain

from endpoints.simulator.hostile import endings, errors, fragments, framing, http_faults, pacing, usage
from endpoints.simulator.hostile.expected import Case

GROUPS = (framing, fragments, usage, errors, endings, http_faults, pacing)
CASES: dict[str, Case] = {case.name: case for case in chain.from_iterable(group.CASES for group in GROUPS)}
GOOD = CASES["good"]


def names() -> list[str]:
    """The names of all cases, by kind."""
    return list(CASES)


def case_of(name: str) -> Case:
    """Raises ValueError, with the nearest names, when there is no such case."""
    if name in CASES:
        return CASES[name]
    near = difflib.get_close_matches(name, CASES, 3)
    raise ValueError(f"there is no hostile case {name!r}" + (f": did you mean {' or '.join(near)}?" if near else ""))
