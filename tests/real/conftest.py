"""The engine that more than one file tests against."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.real.engines.llamacpp import llamacpp_pair
from tests.real.engines.servers import Engine


@pytest.fixture(scope="session")
def llamacpp() -> Iterator[tuple[Engine, Engine]]:
    with llamacpp_pair() as pair:
        yield pair
