"""vLLM on the CPU, without speculation, with n-grams and with a drafting model: several tokens an event."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.real.engines.servers import Engine
from tests.real.engines.vllm import DRAFT_TOKENS, MODEL, drafter, launch, vllm
from tests.real.sweeping import assert_sound, command, faults, points, rows, sweep

pytestmark = pytest.mark.timeout(1800)
LEVELS, REQUESTS, TOKENS = [1, 4], 40, 64
SPECULATING = ("ngram-ids", "ngram-usage", "ngram-total", "draft-ids")
SPEC = """\
name: vllm
endpoint: {{model: {model}}}
arms:
  off:
    url: "{off}"
    extra_body: {{return_token_ids: true}}
  ngram-ids:
    url: "{ngram}"
    extra_body: {{return_token_ids: true}}
    speculation: {{method: ngram, draft_tokens: {draft_tokens}}}
  ngram-usage:
    url: "{ngram}"
    extra_body: {{stream_options: {{include_usage: true, continuous_usage_stats: true}}}}
    speculation: {{method: ngram, draft_tokens: {draft_tokens}}}
  ngram-total:
    url: "{ngram}"
    speculation: {{method: ngram, draft_tokens: {draft_tokens}}}
  draft-ids:
    url: "{draft}"
    extra_body: {{return_token_ids: true}}
    speculation: {{method: draft, draft_tokens: {draft_tokens}}}
# This build draws tokens that have no probability when it speculates at a temperature, and then nothing is accepted.
workload: {{use: chat-short, max_tokens: {tokens}, sampling: {{temperature: 0}}}}
load: {{concurrency: {levels}, requests: {requests}}}
"""


@pytest.fixture(scope="module")
def servers() -> Iterator[dict[str, Engine]]:
    with vllm() as running:
        yield running


@pytest.fixture(scope="module")
def swept(servers: dict[str, Engine], tmp_path_factory: pytest.TempPathFactory) -> Path:
    urls = {arm: engine.url for arm, engine in servers.items()}
    numbers = {"draft_tokens": DRAFT_TOKENS, "tokens": TOKENS, "levels": LEVELS, "requests": REQUESTS}
    return sweep(tmp_path_factory.mktemp("vllm"), SPEC.format(model=MODEL, **urls, **numbers))


def test_every_point_is_valid_and_no_request_failed(swept: Path) -> None:
    assert len(points(swept)) == (1 + len(SPECULATING)) * len(LEVELS)
    for point in points(swept):
        assert_sound(point, REQUESTS)
        assert "buffered" not in faults(point), (point["arm"], point["verdicts"])


def test_tokens_are_as_asked_and_the_servers_own(swept: Path) -> None:
    for point in points(swept):
        assert point["token_source"] == "usage"
        assert point["output_tokens"] == {"mean": TOKENS, "total": TOKENS * REQUESTS}
        assert point["finish_reasons"] == {"length": REQUESTS}


def test_one_token_an_event_without_speculation(swept: Path) -> None:
    for point in points(swept, "off"):
        assert point["tokens_per_chunk"]["p50"] == 1
        assert point["tokens_per_chunk"]["mean"] == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize("arm", SPECULATING)
def test_several_tokens_an_event_with_it(swept: Path, arm: str) -> None:
    for point in points(swept, arm):
        per_chunk = point["tokens_per_chunk"]
        assert 1.5 < per_chunk["mean"] <= DRAFT_TOKENS + 1
        # With only a total, how they are spread cannot be known.
        assert (per_chunk["max"] is None) == (arm == "ngram-total")


@pytest.mark.parametrize("arm", ["off", "ngram-ids", "ngram-usage", "draft-ids"])
def test_each_events_tokens_sum_to_the_total(swept: Path, arm: str) -> None:
    for row in [row for row in rows(swept, arm) if row["outcome"] == "ok"]:
        assert sum(row["chunk_tokens"]) == row["output_tokens"] == TOKENS
        assert row["chunks"] == len(row["chunk_tokens"])
        assert row["output_tokens_after_first_chunk"] == TOKENS - row["chunk_tokens"][0]


def test_the_two_ways_of_telling_agree(swept: Path) -> None:
    """Nearly: on a busy machine vLLM writes what two steps brought as one event."""
    ids, usage = (points(swept, arm)[0]["tokens_per_chunk"] for arm in ("ngram-ids", "ngram-usage"))
    assert ids["mean"] == pytest.approx(usage["mean"], rel=0.15)


@pytest.mark.parametrize("arm", ["ngram", "draft"])
def test_the_server_did_speculate(swept: Path, servers: dict[str, Engine], arm: str) -> None:
    drafts = servers[arm].metric("vllm:spec_decode_num_drafts_total")
    accepted = servers[arm].metric("vllm:spec_decode_num_accepted_tokens_total")
    assert 1.5 < 1 + accepted / drafts <= DRAFT_TOKENS + 1


@pytest.mark.parametrize("arm", SPECULATING)
def test_every_point_has_the_evidence(swept: Path, arm: str) -> None:
    """vLLM counts what it drafted and accepted, also what the last step of an answer threw away."""
    for point in points(swept, arm):
        told = point["speculation"]
        assert told["source"] == "counters", told
        assert told["acceptance_length"] == 1 + told["accepted_tokens"] / told["drafts"]
        assert told["draft_tokens"] <= DRAFT_TOKENS * told["drafts"]
        assert sum(told["per_position"]) == told["accepted_tokens"]
        assert point["server"]["engine"] == "vllm"
        # Of the tokens after the first, each is a step's own or an accepted one.
        after_first = told["server_tokens"] - point["counts_all"]["issued"]
        assert told["accepted_tokens"] + told["drafts"] >= 0.9 * after_first or arm.startswith("ngram")
        if arm.startswith("draft"):
            assert told["tokens_per_step"] <= 1.02 * told["acceptance_length"]
        assert not {"not_speculating", "counters_broken", "foreign_traffic"} & {v["code"] for v in point["verdicts"]}


def test_the_off_arm_shows_no_drafts(swept: Path) -> None:
    for point in points(swept, "off"):
        assert point["speculation"]["draft_tokens"] is None
        assert point["speculation"]["tokens_per_step"] == pytest.approx(1, abs=0.1)
        assert "unexpected_speculation" not in {v["code"] for v in point["verdicts"]}
        assert point["server"]["engine"] == "vllm"


# -- started by the sweep, by the profile of vLLM ---------------------------------------------------------------------


def test_vllm_is_started_off_and_on_by_its_profile(tmp_path: Path) -> None:
    spec = {
        "endpoint": {"launch": launch(), "before_point": {"post": "/reset_prefix_cache"}},
        "arms": {
            "off": {},
            "ngram": {"speculation": {"method": "ngram", "draft_tokens": DRAFT_TOKENS}},
            "draft": {"speculation": {"method": "draft_model", "drafter": drafter(), "draft_tokens": DRAFT_TOKENS}},
        },
        "workload": {"use": "chat-short", "max_tokens": TOKENS, "sampling": {"temperature": 0}},
        "load": {"concurrency": [1, 4], "requests": REQUESTS, "anchor": False},
    }
    run = sweep(tmp_path, json.dumps(spec))
    assert len(points(run)) == 6
    for point in points(run):
        assert_sound(point, REQUESTS)
    for arm in ("ngram", "draft"):
        assert all(1.5 < p["speculation"]["acceptance_length"] <= DRAFT_TOKENS + 1 for p in points(run, arm))
        assert "speculative_config" in (run / "servers" / f"{arm}.log").read_text()
        assert "POST /reset_prefix_cache" in (run / "servers" / f"{arm}.log").read_text()
    manifest = json.loads((run / "manifest.json").read_text())
    assert "0.32.0" in json.dumps(manifest["arms"]["off"]["probe"]["findings"])


def test_one_that_is_healthy_and_dies_of_its_first_request(tmp_path: Path) -> None:
    """This build's sampling on the CPU knows no synthetic acceptance, and finds out when it is asked."""
    config = {
        "method": "draft_model",
        "model": drafter(),
        "num_speculative_tokens": DRAFT_TOKENS,
        "rejection_sample_method": "synthetic",
        "synthetic_acceptance_length": 2.5,
    }
    own = launch()
    own["args"] = [*own["args"], "--speculative-config", json.dumps(config)]
    spec = {"arms": {"on": {"launch": own}}, "load": {"concurrency": [1], "requests": 10}}
    done, run = command(tmp_path, json.dumps(spec))
    assert done.returncode == 1, done.stderr
    assert "it was ready, and" in done.stderr
    assert points(run) == []
    (failed,) = [line for line in (run / "journal.jsonl").read_text().splitlines() if '"server_failed"' in line]
    assert "the last lines of its log" in json.loads(failed)["reason"]
