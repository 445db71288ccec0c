"""`endsweep selftest`, and what runs make of it."""

from __future__ import annotations

import json
from pathlib import Path

from endpoints.simulator.process import SimulatorProcess
from tests.front.conftest import Cli


def test_selftest_measures_and_keeps_the_limits(cli: Cli, tmp_path: Path) -> None:
    state = {"XDG_STATE_HOME": str(tmp_path / "state")}
    done = cli("selftest", "--quick", "--json", env=state)
    found = json.loads(done.stdout)
    assert found == json.loads((tmp_path / "state" / "endsweep" / "selftest.json").read_text())
    assert found["schema_version"] == 1
    assert [row["streams"] for row in found["levels"]] == [16, 128, 512]
    for row in found["levels"]:
        assert row["lost"] == 0
        assert row["requests"] == 2 * row["streams"]
        assert row["in_flight_max"] == row["streams"]
        assert row["ttft_ms"] > 100 and row["tpot_ms"] > 15  # the server's own times
    assert found["bulk"]["failed"] == 0
    assert found["limits"]["streams"] in (None, 16, 128, 512)
    assert found["host"]["cpus"] and found["libraries"]["uvloop"] and found["tool"]["version"]


def test_a_run_beyond_the_limits_is_warned_before_it_starts(
    cli: Cli, simulator: SimulatorProcess, tmp_path: Path
) -> None:
    from sweeps.selftest import _identity

    folder = tmp_path / "state" / "endsweep"
    folder.mkdir(parents=True)
    limits = {"streams": 1, "chunks_per_s": 60.0, "at_least": False}
    document = {"schema_version": 1, **_identity(), "limits": limits}
    (folder / "selftest.json").write_text(json.dumps(document))
    state = {"XDG_STATE_HOME": str(tmp_path / "state")}
    words = ["run", simulator.url, "--max-tokens", "4", "--requests", "12", "--concurrency", "2", "--workers", "1"]
    done = cli(*words, "--out", "r", env=state)
    assert "client_bound" in done.stderr and "selftest" in done.stderr
    (folder / "selftest.json").write_text(json.dumps({**document, "host": {}}))  # of another machine
    assert "selftest" not in cli(*words, "--out", "s", env=state).stderr


def test_workers_that_are_asked_for(cli: Cli, simulator: SimulatorProcess, tmp_path: Path) -> None:
    words = ["run", simulator.url, "--max-tokens", "4", "--requests", "12", "--concurrency", "4"]
    cli(*words, "--workers", "2", "--out", "r")
    point = json.loads((tmp_path / "r/points/default/c00004-t1/point.json").read_text())
    client = point["client"]
    assert client["workers"] == 2 and len(client["per_worker"]) == 2
    assert point["counts"]["completed"] == 12
    assert client["parent"]["loop_lag_ms_p99"] is not None
    assert "workers: 2" in (tmp_path / "r" / "sweep.yaml").read_text()
    done = cli(*words, "--workers", "0", "--out", "s", code=2)
    assert "--workers" in done.stderr and "1 to 256" in done.stderr
