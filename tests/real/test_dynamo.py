"""NVIDIA Dynamo's frontend: speculation off, and multi-token prediction that comes as bursts of one-token events."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from tests.real.engines.dynamo import DRAFT_TOKENS, MODEL, MTP, TOKENS_PER_STEP, dynamo
from tests.real.engines.servers import Engine
from tests.real.sweeping import assert_sound, command, faults, points, rows, sweep

pytestmark = pytest.mark.timeout(900)
LEVELS, REQUESTS, TOKENS = [1, 4, 16], 40, 48
SPEC = """\
name: dynamo
endpoint: {{model: {model}}}
arms:
  off: {{url: "{off}"}}
  mtp:
    url: "{on}"
    speculation: {{method: mtp, draft_tokens: {draft_tokens}}}
workload: {{use: chat-short, max_tokens: {tokens}}}
load: {{concurrency: {levels}, requests: {requests}}}
"""


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[Engine, Engine]]:
    with dynamo([]) as off, dynamo(MTP) as on:
        yield off, on


def spec(pair: tuple[Engine, Engine], model: str = MODEL) -> str:
    return SPEC.format(
        model=model,
        off=pair[0].url,
        on=pair[1].url,
        draft_tokens=DRAFT_TOKENS,
        tokens=TOKENS,
        levels=LEVELS,
        requests=REQUESTS,
    )


@pytest.fixture(scope="module")
def swept(pair: tuple[Engine, Engine], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sweep(tmp_path_factory.mktemp("dynamo"), spec(pair))


def test_every_point_is_valid_and_no_request_failed(swept: Path) -> None:
    assert len(points(swept)) == 2 * len(LEVELS)
    for point in points(swept):
        assert_sound(point, REQUESTS)


def test_tokens_are_as_asked_and_the_servers_own(swept: Path) -> None:
    for point in points(swept):
        assert point["token_source"] == "usage"
        assert point["output_tokens"] == {"mean": TOKENS, "total": TOKENS * REQUESTS}


def test_declared_speculation_is_not_called_buffered(swept: Path) -> None:
    for point in points(swept):
        assert "buffered" not in faults(point), (point["arm"], point["concurrency"], point["verdicts"])


def test_a_steps_tokens_come_as_a_burst_of_events(swept: Path) -> None:
    """So the check before this one had bursts to judge."""
    for arm, low, high in (("off", 1.0, 1.3), ("mtp", 0.7 * TOKENS_PER_STEP, 1.2 * TOKENS_PER_STEP)):
        sizes = [_per_burst(row["chunk_offsets_us"]) for row in rows(swept, arm) if row["outcome"] == "ok"]
        assert low <= sum(sizes) / len(sizes) <= high, arm


def _per_burst(offsets_us: list[int]) -> float:
    return len(offsets_us) / (1 + sum(b - a > 1000 for a, b in pairwise(offsets_us)))


def test_an_unknown_model_is_refused_in_one_sentence(pair: tuple[Engine, Engine], tmp_path: Path) -> None:
    done, run = command(tmp_path, spec(pair, model="nope"))
    assert done.returncode == 2
    (line,) = done.stderr.strip().splitlines()
    assert "'nope'" in line and f"it offers {MODEL}" in line and "--model" in line
    assert not run.exists()
