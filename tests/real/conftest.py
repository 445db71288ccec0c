"""Fixtures over the real engines."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.real.engines import Engine, llamacpp_pair


@pytest.fixture(scope="session")
def llamacpp() -> Iterator[tuple[Engine, Engine]]:
    with llamacpp_pair() as pair:
        yield pair
