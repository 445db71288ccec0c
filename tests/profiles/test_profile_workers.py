"""How many client processes a sweep file may ask for."""

from __future__ import annotations

import pytest

from profiles.errors import ProfileError
from profiles.loading import load_sweep


def workers_of(value: object) -> int | str:
    endpoint = {"url": "http://h:1", "model": "m"}
    return load_sweep(None, {"endpoint": endpoint, "load": {"workers": value}}, {}).load.workers


def test_a_number_or_auto() -> None:
    assert workers_of(None) == "auto"
    assert workers_of("auto") == "auto"
    assert workers_of(3) == 3


@pytest.mark.parametrize("value", [0, 257, -1, 1.5, True, "many", [2]])
def test_anything_else_is_refused(value: object) -> None:
    with pytest.raises(ProfileError, match=r"--workers.*a whole number from 1 to 256"):
        workers_of(value)
