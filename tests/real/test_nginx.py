"""A proxy that holds replies back must be found out, and speculation through one that does not must not be mistaken.

Each server is swept through nginx: with its buffers as it comes (`held`), with buffers for a whole reply (`whole`),
with chunks that pass its buffers by (`chunked`), and without buffers (`open`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from endpoints.simulator.options import SimulatorOptions
from endpoints.simulator.process import SimulatorProcess
from tests.real.engines.nginx import nginx
from tests.real.engines.servers import Engine
from tests.real.sweeping import faults, points, sweep, verdicts

pytestmark = pytest.mark.timeout(900)
LEVELS, REQUESTS, TOKENS = [1, 2], 40, 96
PACE = {"decode_base_ms": 1.0, "decode_ms_per_sequence": 0.1, "prefill_base_ms": 2.0}
SIMULATED = {
    "plain": SimulatorOptions(**PACE),
    "bursts": SimulatorOptions(**PACE, speculation="k=4,p=0.7", burst=True),  # an event a token
    "steps": SimulatorOptions(**PACE, speculation="k=4,p=0.7"),  # an event a step, of several tokens
}
SPECULATING = ("bursts", "steps", "llamacpp-on")
NAMES = (*SIMULATED, "llamacpp-off", "llamacpp-on")
SPEC = """\
name: nginx
arms:
{arms}
workload: {{use: chat-short, max_tokens: {tokens}}}
load: {{concurrency: {levels}, requests: {requests}}}
"""


@pytest.fixture(scope="module")
def proxy(llamacpp: tuple[Engine, Engine]) -> Iterator[str]:
    roots = {"llamacpp-off": llamacpp[0].root, "llamacpp-on": llamacpp[1].root}
    with ExitStack() as stack:
        for name, options in SIMULATED.items():
            roots[name] = stack.enter_context(SimulatorProcess(options)).root
        yield stack.enter_context(nginx(roots))


def arms(proxy: str, way: str, names: tuple[str, ...], declared: Mapping[str, Any]) -> str:
    lines = []
    for name in names:
        model = "tiny" if name.startswith("llamacpp") else "sim"
        speculation = f", speculation: {{method: draft, draft_tokens: {declared[name]}}}" if name in declared else ""
        lines.append(f'  {name}: {{url: "{proxy}/{way}/{name}/v1", model: {model}{speculation}}}')
    return "\n".join(lines)


def swept(folder: Path, proxy: str, way: str, names: tuple[str, ...], declared: bool) -> list[dict]:
    text = arms(proxy, way, names, dict.fromkeys(SPECULATING, 4) if declared else {})
    run = sweep(folder, SPEC.format(arms=text, tokens=TOKENS, levels=LEVELS, requests=REQUESTS))
    found = points(run)
    assert len(found) == len(names) * len(LEVELS)
    for point in found:
        assert point["counts"]["completed"] == REQUESTS
        assert point["counts_all"]["failed"] == 0
    return found


@pytest.mark.parametrize("way", ["held", "whole"])
def test_a_proxy_that_holds_replies_back_is_found_out(proxy: str, way: str, tmp_path: Path) -> None:
    for point in swept(tmp_path, proxy, way, NAMES, declared=True):
        assert verdicts(point).get("buffered") == "invalid", (point["arm"], point["concurrency"], point["verdicts"])


@pytest.mark.parametrize(
    ("way", "names", "declared"), [("open", NAMES, True), ("open", SPECULATING, False), ("chunked", SPECULATING, True)]
)
def test_one_that_passes_them_on_is_not(
    proxy: str, way: str, names: tuple[str, ...], declared: bool, tmp_path: Path
) -> None:
    for point in swept(tmp_path, proxy, way, names, declared):
        assert "buffered" not in faults(point), (point["arm"], point["concurrency"], point["verdicts"])
