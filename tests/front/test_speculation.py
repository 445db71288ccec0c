"""Arms that are not what they say, and counters that lie: each gets its verdict, none a wrong number."""

from __future__ import annotations

import asyncio
import json
import re
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from aiohttp import web

from endpoints.simulator.options import SimulatorOptions
from endpoints.simulator.process import SimulatorProcess
from endpoints.simulator.theory import acceptance_length

from .conftest import FAST, Cli
from .serving import serving_routes

K, P = 4, 0.7
REQUESTS, TOKENS = 40, 64
Change = Callable[[str, bool], str | None]
"""A page of metrics, and whether it has shown requests running yet -> the page as served; None: 503."""


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[SimulatorProcess, SimulatorProcess]]:
    """Without speculation, and with it."""
    on = SimulatorOptions(**FAST, speculation=f"k={K},p={P},draft_ms=0.1,verify_ms=0.02")
    with SimulatorProcess(SimulatorOptions(**FAST)) as plain, SimulatorProcess(on) as speculating:
        yield plain, speculating


@contextmanager
def doctored(root: str, change: Change) -> Iterator[str]:
    """A page that shows a server's metrics as `change` has them."""
    seen: list[str] = []

    async def page(_: web.Request) -> web.Response:
        text = await asyncio.to_thread(lambda: urllib.request.urlopen(f"{root}/metrics").read().decode())
        seen.extend(re.findall(r"num_requests_running\S* [1-9]", text))
        served = change(text, bool(seen))
        return web.Response(status=503) if served is None else web.Response(text=served)

    with serving_routes(web.get("/metrics", page)) as at:
        yield f"{at}/metrics"


def swept(cli: Cli, folder: Path, arms: dict[str, Any], *words: str, **load: Any) -> dict[str, dict[str, Any]]:
    """Each arm's one point."""
    spec = {
        "arms": arms,
        "workload": {"use": "chat-short", "max_tokens": TOKENS},
        "load": {"concurrency": [4], "requests": REQUESTS} | load,
    }
    (folder / "sweep.yaml").write_text(json.dumps(spec))
    cli("run", "sweep.yaml", "--out", "run", *words, code=None)
    found = [json.loads(path.read_text()) for path in sorted((folder / "run").glob("points/*/*/point.json"))]
    return {point["arm"]: point for point in found}


def codes(point: dict[str, Any]) -> dict[str, str]:
    """Without those that only say that this machine is busy."""
    return {v["code"]: v["severity"] for v in point["verdicts"] if v["code"] not in ("client_bound", "drifting")}


def test_counters_are_read_without_being_asked_for(cli: Cli, tmp_path: Path, pair: Any) -> None:
    off, on = pair
    cli("run", "--arm", f"off={off.url}", "--arm", f"on={on.url}", "--concurrency", "4", "--requests", "120",
        "--max-tokens", str(TOKENS), "--out", "run", code=None)  # fmt: skip
    points = {p["arm"]: p for p in map(_load, sorted((tmp_path / "run").glob("points/*/*/point.json")))}
    told = points["on"]["speculation"]
    assert told["source"] == "counters"
    assert told["acceptance_length"] == 1 + told["accepted_tokens"] / told["drafts"]
    assert told["acceptance_length"] == pytest.approx(
        acceptance_length(on.options.engine_config().speculation), rel=0.1
    )
    assert told["draft_tokens"] == K * told["drafts"]
    assert sum(told["per_position"]) == told["accepted_tokens"]
    assert 1 < told["tokens_per_step"] <= told["acceptance_length"] * 1.1
    assert points["off"]["speculation"] | {"tokens_per_step": 1.0, "source": "none"} == points["off"]["speculation"]
    assert points["off"]["server"]["engine"] == "vllm"
    for arm, point in points.items():
        assert "speculating" not in " ".join(codes(point)), point["verdicts"]
        stored = pq.read_table(tmp_path / f"run/points/{arm}/c00004-t1/telemetry.parquet").to_pylist()
        assert {"running", "generated_tokens"} <= {row["quantity"] for row in stored}
        assert stored[0]["at_ns"] == -1
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert summary["arms"]["on"]["server"]["metrics_url"] == [f"{on.root}/metrics"]


def test_an_on_arm_that_does_not_speculate(cli: Cli, tmp_path: Path, pair: Any) -> None:
    off, _ = pair
    points = swept(cli, tmp_path, {"off": {"url": off.url}, "on": {"url": off.url}})
    assert codes(points["on"])["not_speculating"] == "invalid"
    assert "not_speculating" not in codes(points["off"])


def test_an_off_arm_that_does(cli: Cli, tmp_path: Path, pair: Any) -> None:
    _, on = pair
    arms = {"plain": {"url": on.url}, "fast": {"url": on.url, "speculation": {"method": "ngram", "draft_tokens": K}}}
    points = swept(cli, tmp_path, arms)
    assert codes(points["plain"])["unexpected_speculation"] == "invalid"
    assert "unexpected_speculation" not in codes(points["fast"])


def test_one_arm_that_says_nothing_may_do_either(cli: Cli, tmp_path: Path, pair: Any) -> None:
    points = swept(cli, tmp_path, {"mine": {"url": pair[1].url}})
    assert not {"unexpected_speculation", "not_speculating"} & codes(points["mine"]).keys()
    assert points["mine"]["speculation"]["acceptance_length"] > 2


def _reset(text: str, under_way: bool) -> str:
    """Every counter near zero again from the middle of the point on: the server was restarted."""
    if not under_way:
        return text
    return re.sub(r"^(\S+_total\S*) (\S+)$", lambda m: f"{m[1]} {float(m[2]) / 1e6:.6f}", text, flags=re.MULTILINE)


def _loses_a_replica(text: str, under_way: bool) -> str:
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    twins = [line.replace('engine="0"', 'engine="1"') for line in lines]
    return "\n".join([*lines, *([] if under_way else twins), ""])


def _gone(text: str, under_way: bool) -> str | None:
    return None if under_way else text


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (_reset, "went back"),
        (_loses_a_replica, "disappeared"),
        (_gone, "could not be read afterwards"),
    ],
)
def test_counters_that_break(cli: Cli, tmp_path: Path, pair: Any, change: Change, why: str) -> None:
    with doctored(pair[1].root, change) as page:
        points = swept(cli, tmp_path, {"on": {"url": pair[1].url, "metrics_url": page}}, requests=400)
    point = points["on"]
    assert codes(point)["counters_broken"] == "warn"
    assert why in point["speculation"]["reason"]
    for name in ("acceptance_length", "acceptance_rate", "draft_tokens"):
        assert point["speculation"][name] is None
    assert point["speculation"]["source"] == "inferred"  # from several tokens a chunk, and named so
    assert not {"not_speculating", "foreign_traffic"} & codes(point).keys()


def test_someone_elses_traffic(cli: Cli, tmp_path: Path, pair: Any) -> None:
    _, on = pair
    body = json.dumps({"model": "sim", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 400}).encode()
    stop = threading.Event()

    def others() -> None:
        while not stop.is_set():
            ask = urllib.request.Request(f"{on.url}/chat/completions", body, {"Content-Type": "application/json"})
            urllib.request.urlopen(ask).read()

    threads = [threading.Thread(target=others, daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        point = swept(cli, tmp_path, {"on": {"url": on.url}})["on"]
    finally:
        stop.set()
        for thread in threads:
            thread.join(20)
    assert codes(point)["foreign_traffic"] == "warn"
    assert point["speculation"]["acceptance_length"] is None
    assert "another client" in point["speculation"]["reason"]


def test_names_that_only_the_profile_knows(cli: Cli, tmp_path: Path, pair: Any) -> None:
    names = {"drafts": "mine:drafts", "draft_tokens": "mine:drafted", "accepted_tokens": "mine:accepted",
             "generated_tokens": "mine:made"}  # fmt: skip
    theirs = ("spec_decode_num_drafts", "spec_decode_num_draft_tokens", "spec_decode_num_accepted_tokens",
              "generation_tokens")  # fmt: skip

    def renamed(text: str, _: bool) -> str:
        for old, new in zip(theirs, names.values(), strict=True):
            text = re.sub(rf"^vllm:{old}(?=_total|_created)", new, text, flags=re.MULTILINE)
        return re.sub(r"^vllm:.*\n", "", text, flags=re.MULTILINE)

    with doctored(pair[1].root, renamed) as page:
        points = swept(cli, tmp_path, {"on": {"url": pair[1].url, "metrics_url": [page], "metrics": names}})
    assert points["on"]["speculation"]["source"] == "counters"
    assert points["on"]["speculation"]["draft_tokens"] == K * points["on"]["speculation"]["drafts"]


def test_tokens_of_each_chunk_are_told_where_they_are_asked_for(cli: Cli, tmp_path: Path, pair: Any) -> None:
    asked = swept(cli, tmp_path, {"on": {"url": pair[1].url, "chunk_tokens": "usage"}})["on"]
    assert asked["tpot_ms"]["divisor"] == "tokens_after_first_chunk"
    assert 1 < asked["tokens_per_chunk"]["p50"] <= K + 1
    assert asked["peak_tps"] >= asked["system_tps"] > 0
    arms = {"off": {"url": pair[0].url}, "on": {"url": pair[1].url, "chunk_tokens": "usage"}}
    (tmp_path / "sweep.yaml").write_text(json.dumps({"arms": arms}))
    refused = cli("run", "sweep.yaml", "--out", "other", code=2)
    assert "arms.on.chunk_tokens" in refused.stderr and "give it once, to the endpoint" in refused.stderr


def test_synthetic_acceptance_is_recorded(cli: Cli, tmp_path: Path, pair: Any) -> None:
    speculation = {"method": "draft", "draft_tokens": K, "synthetic": True}
    point = swept(cli, tmp_path, {"on": {"url": pair[1].url, "speculation": speculation}})["on"]
    assert point["speculation"]["synthetic"] == "declared in the profile"
    assert codes(point)["synthetic_acceptance"] == "warn"


def _load(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found
