"""Latencies paired by prompt, what stands beside a comparison, and how both are said."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from reports.beside import acceptance, length_bias, notes, shared_trials
from reports.build import build, build_many
from reports.compared import category_table, level_table, sentences, speed_table
from reports.comparison import compare
from reports.pairs import Pairs, Sample, pair, paired, read_sample
from reports.summary import stored_samples
from sweeps.columns import SCHEMA, write_parquet
from sweeps.frontier import frontier


def sample(
    names: list[str], ttft: list[float], tpot: list[float], *, kinds: list[str] | None = None, workload: str = "w"
) -> Sample:
    """Requests in order of issue, all of the first pass."""
    words = list(dict.fromkeys(names))
    categories = kinds or ["chat"] * len(names)
    labels = list(dict.fromkeys(categories))
    return Sample(
        workload,
        np.array([words.index(n) for n in names]),
        words,
        np.zeros(len(names), np.int64),
        np.array([labels.index(c) for c in categories]),
        labels,
        {"ttft_ms": np.array(ttft, float), "tpot_ms": np.array(tpot, float)},
    )


def test_requests_are_paired_by_prompt_however_they_are_ordered():
    base = sample(["a", "b", "c"], [10, 20, 30], [1, 2, 4])
    arm = sample(["c", "x", "a"], [60, 1, 5], [2, 1, 1])
    found = pair(base, arm, 1)
    assert np.exp(found.logs["ttft_ms"]) == pytest.approx([0.5, 2.0])  # a, then c: the base's order
    assert np.exp(found.logs["tpot_ms"]) == pytest.approx([1.0, 0.5])
    assert found.n_blocks == 2


def test_a_prompt_of_another_pass_or_workload_is_another_prompt():
    base = sample(["a", "a", "b"], [10, 20, 30], [1, 1, 1])
    base.passes[:] = [0, 1, 0]
    arm = sample(["a", "b"], [40, 30], [1, 1])
    arm.passes[:] = [1, 0]
    assert np.exp(pair(base, arm, 1).logs["ttft_ms"]) == pytest.approx([2.0, 1.0])
    other = sample(["a", "b"], [40, 30], [1, 1], workload="v")
    assert len(pair(base, other, 1).logs["ttft_ms"]) == 0
    assert paired([pair(base, other, 1)])["ttft_ms"]["reason"].startswith("no request")


def test_speed_up_is_the_geometric_mean_over_pairs_with_a_reason_where_blocks_are_few():
    base = sample(["a", "b"], [10, 10], [1, 1])
    found = paired([pair(base, sample(["a", "b"], [20, 5], [2, 8]), 1)])
    assert found["ttft_ms"]["ratio"] == pytest.approx(1.0)
    assert found["tpot_ms"]["ratio"] == pytest.approx(4.0)
    assert found["tpot_ms"]["interval"] is None
    assert found["tpot_ms"]["reason"] == "20 blocks of as many pairs as users are needed, there are 2"


def clustered(rng: np.random.Generator, n: int = 240, users: int = 6, kinds: int = 3) -> Pairs:
    """Pairs whose neighbours share half of their noise: as many clusters as blocks."""
    shared = np.repeat(rng.normal(0, 0.1, n // users), users)
    log = math.log(0.6) + shared + rng.normal(0, 0.1, n)
    categories = np.array([f"kind{i}" for i in rng.integers(0, kinds, n)], object)
    return Pairs({"ttft_ms": log, "tpot_ms": log}, categories, np.arange(n) // users, n // users)


def test_blocks_hold_the_true_speed_up_of_requests_that_share_their_fate():
    rng = np.random.default_rng(4)
    whole, parts, alone = [], [], []
    for _ in range(400):
        pairs = clustered(rng)
        found = paired([pairs])
        whole.append(found["ttft_ms"]["interval"])
        parts += [c["ttft_ms"]["interval"] for c in found["by_category"].values()]
        log = pairs.logs["ttft_ms"]
        alone.append(abs(log.mean() - math.log(0.6)) <= 1.96 * log.std() / math.sqrt(len(log)))
    assert all(i["method"] == "paired_blocks" and i["n"] == 40 for i in whole)
    for intervals in (whole, parts):
        assert 0.925 <= np.mean([i["low"] <= 0.6 <= i["high"] for i in intervals]) <= 0.975
    assert np.mean(alone) < 0.85  # what independent requests would claim


def test_three_trials_are_as_many_means():
    rng = np.random.default_rng(2)
    found = paired([clustered(rng) for _ in range(3)])["tpot_ms"]
    assert (found["interval"]["scope"], found["interval"]["n"]) == ("between_trials", 3)
    assert found["n"] == 720


def test_a_category_in_few_blocks_has_no_interval():
    rng = np.random.default_rng(2)
    pairs = clustered(rng)
    pairs.categories[:] = "chat"
    pairs.categories[:12] = "code"
    found = paired([pairs])["by_category"]
    assert found["chat"]["ttft_ms"]["interval"] is not None
    assert found["code"]["ttft_ms"]["reason"] == "only 2 of the 40 blocks hold such a pair, 8 are needed"


def test_a_missing_or_foreign_file_of_requests_is_no_sample(tmp_path):
    assert read_sample(tmp_path / "requests.parquet") is None
    (tmp_path / "requests.parquet").write_bytes(b"not parquet")
    assert read_sample(tmp_path / "requests.parquet") is None
    write_parquet(SCHEMA.empty_table().drop_columns(["category"]), tmp_path / "requests.parquet")
    assert read_sample(tmp_path / "requests.parquet") is None


def test_lengths_that_differ_are_named(make):
    base, arm = make.point("off", 8), make.point("on", 8)
    assert length_bias([(base, arm)]) is None
    longer = make.point("on", 8, output_tokens={"mean": 136.0, "total": 1})
    found = length_bias([(base, longer)])
    assert found["code"] == "length_bias"
    assert "136 output tokens a request against 128" in found["text"]
    assert length_bias([(base, make.point("on", 8, output_tokens={"mean": 134.0, "total": 1}))]) is None
    stopped = make.point("on", 8, finish_reasons={"length": 30, "stop": 10})
    assert "25 % of the requests ended by 'stop' against 0 %" in length_bias([(base, stopped)])["text"]
    assert length_bias([(make.null_point("off"), arm)]) is None


def test_notes_stand_beside_the_pair(make):
    points = [make.point("off", 8), make.point("on", 8, output_tokens={"mean": 200.0, "total": 1})]
    (found,) = compare(points, ["off", "on"], frontier(points))["pairs"]
    bias, rate, once = found["notes"]
    assert (once["code"], once["levels"]) == ("one_trial", [8])
    assert (bias["code"], bias["levels"]) == ("length_bias", [8])
    assert rate["code"] == "prompt_rate"
    assert "A faster arm also takes more prompts a second" in rate["text"]
    assert notes("off", "on", []) == []


def test_trials_are_paired_by_number_where_they_share_some(make):
    points = [make.point("off", 8, t) for t in (1, 2, 3)] + [make.point("on", 8, t) for t in (2, 3, 4)]
    pairs = shared_trials(points, "off", "on")[8]
    assert [(b["trial"], a["trial"]) for b, a in pairs] == [(2, 2), (3, 3)]
    (lone,) = shared_trials([make.point("off", 8, 1), make.point("on", 8, 2)], "off", "on")[8]
    assert (lone[0]["trial"], lone[1]["trial"]) == (1, 2)


def spoken(make: SimpleNamespace, arm: str, level: int, **by_category: dict[str, Any]) -> dict[str, Any]:
    point = make.point(arm, level)
    point["speculation"]["by_category"] = by_category
    return point  # type: ignore[no-any-return]


def test_acceptance_is_pooled_by_category(make):
    points = [
        make.point("off", 8),
        spoken(make, "on", 8, code={"n": 3, "drafted": 100, "accepted": 60}, chat={"n": 1, "tokens_per_step": 2.0}),
        spoken(make, "on", 16, code={"n": 1, "drafted": 300, "accepted": 100}, chat={"n": 3, "tokens_per_step": 3.0}),
    ]
    found = acceptance(points, ["off", "on"])
    assert list(found) == ["on"]
    code, chat = found["on"]["by_category"]["code"], found["on"]["by_category"]["chat"]
    assert code == {"drafted": 400, "accepted": 160, "n": 4, "acceptance_rate": 0.4, "tokens_per_step": None}
    assert (chat["acceptance_rate"], chat["tokens_per_step"]) == (None, 2.75)
    assert found["on"]["acceptance_length"] == {"mean": 2.4, "low": 2.4, "high": 2.4}


def stored_requests(path: Path, tokens_ms: float) -> None:
    """60 requests of 11 tokens, so many ms apart, after 20 ms; code and dialogue by turns."""
    rows = [
        {
            "index": i,
            "prompt_id": f"p{i}",
            "category": ("code", "dialogue")[i % 2],
            "super_pass": 0,
            "counted": True,
            "outcome": "ok",
            "chunks": 11,
            "sent_ns": 100_000_000 * i,
            "first_token_ns": 100_000_000 * i + 20_000_000,
            "last_token_ns": 100_000_000 * i + 20_000_000 + round(1e7 * tokens_ms),
            "output_tokens_after_first_chunk": 10,
        }
        for i in range(60)
    ]
    write_parquet(pa.Table.from_pylist(rows, pa.schema([SCHEMA.field(name) for name in rows[0]])), path)


def test_a_run_with_requests_shows_what_was_paired_everywhere(make, tmp_path):
    points = make.points(levels=(1, 2))
    run = make.run(tmp_path / "run", points)
    for p in points:
        folder = run / "points" / make.manifest()["arms"][p["arm"]]["slug"] / f"c{p['concurrency']:05d}-t1"
        stored_requests(folder / "requests.parquet", 5.0 if p["arm"] == "off" else 4.0)
    summary = build(run)
    (found,) = summary["comparison"]["pairs"]
    at_1 = found["levels"][0]["paired"]
    assert at_1["tpot_ms"]["ratio"] == pytest.approx(0.8)
    assert (at_1["ttft_ms"]["ratio"], at_1["ttft_ms"]["apart"]) == (1.0, False)
    assert set(at_1["by_category"]) == {"code", "dialogue"}
    json.dumps(summary, allow_nan=False)
    headings, rows = level_table(found)
    assert headings == ["Users", "Total throughput", "Speed per user", "TTFT by prompt", "TTFT p90"]
    assert rows[0][3] == "±0 % (±0 to ±0) ≈"
    categories = category_table(found, summary["comparison"]["acceptance"])
    assert categories is not None and categories[1][0] == ["code", "+25 % (+25 to +25)", "+25 % (+25 to +25)"]
    assert speed_table(summary["comparison"])[1][-1][1] == "on"
    assert any(s.startswith("Speed by category of prompt at 1 user") for s in sentences(summary["comparison"]))
    for name in ("report.html", "report.md"):
        text = (run / name).read_text()
        assert "TTFT by prompt" in text and "dialogue" in text and "more prompts a second" in text


def test_arms_of_two_runs_are_paired_where_the_workload_is_the_same(make, tmp_path):
    def stored(name: str, arm: str, pace: float, workload: str) -> Path:
        manifest = make.manifest()
        manifest["arms"] = {arm: manifest["arms"][arm]}
        manifest["workload"]["hash"] = workload
        run: Path = make.run(tmp_path / name, [make.point(arm, 1)], manifest=manifest)
        stored_requests(run / "points" / arm / "c00001-t1" / "requests.parquet", pace)
        return run

    base, same, other = (
        stored("a", "off", 5.0, "w"),
        stored("b", "on", 4.0, "w"),
        stored("c", "on", 4.0, "another workload"),
    )
    for run, ratio in ((same, 0.8), (other, None)):
        (pair_found,) = build_many([base, run], tmp_path / f"with {run.name}")["comparison"]["pairs"]
        found = pair_found["levels"][0]["paired"]["tpot_ms"]["ratio"]
        assert found == (pytest.approx(ratio) if ratio else None)


def test_an_anchor_is_not_taken_for_the_point_it_repeats(make, tmp_path):
    stored_requests(tmp_path / "requests.parquet", 5.0)
    point = make.point("off", 1)
    samples = stored_samples([(tmp_path, point), (tmp_path / "anchor", {**point, "kind": "anchor"})], make.manifest())
    assert samples(point) is not None
