"""Pages of metrics of every known engine, old and new, and pages that are none."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from endpoints.counters import QUANTITIES, Labels, of_model, position_of, reading_of, together, wanted_lines
from profiles.models import MetricNames

VLLM = b"""\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_waiting{engine="0",model_name="m"} 1.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{engine="0",model_name="m"} 1234.0
vllm:generation_tokens_created{engine="0",model_name="m"} 1.7645e+09
vllm:prefix_cache_queries_total{engine="0",model_name="m"} 500.0
vllm:prefix_cache_hits_total{engine="0",model_name="m"} 20.0
vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 100.0
vllm:spec_decode_num_drafts_created{engine="0",model_name="m"} 1.7645e+09
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="m"} 400.0
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} 150.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="0"} 90.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="1"} 60.0
vllm:spec_decode_num_accepted_tokens_per_pos_created{engine="0",model_name="m",position="1"} 1.7645e+09
vllm:inter_token_latency_seconds_bucket{engine="0",le="0.01",model_name="m"} 7.0
"""
LLAMACPP = b"""\
# HELP llamacpp:prompt_tokens_total Number of prompt tokens processed.
# TYPE llamacpp:prompt_tokens_total counter
llamacpp:prompt_tokens_total 700
llamacpp:prompt_tokens_cached_total 7
llamacpp:tokens_predicted_total 4416
llamacpp:spec_decode_num_draft_tokens_total 3450
llamacpp:spec_decode_num_accepted_tokens_total 3450
llamacpp:spec_decode_num_drafts_total 897
llamacpp:requests_processing 2
llamacpp:requests_deferred 0
"""


def totals(page: bytes) -> dict[str, float | None]:
    found = reading_of(page)
    assert found is not None
    return {quantity: found.total(quantity) for quantity in QUANTITIES if found.total(quantity) is not None}


def test_vllm_and_the_twins_of_its_counters() -> None:
    assert totals(VLLM) == {
        "drafts": 100,
        "draft_tokens": 400,
        "accepted_tokens": 150,
        "generated_tokens": 1234,
        "prefix_queries": 500,
        "prefix_hits": 20,
        "accepted_per_position": 150,
        "running": 3,
        "waiting": 1,
        "kv_use": 0.25,
    }
    reading = reading_of(VLLM)
    assert reading is not None
    assert reading.engine == "vllm"
    assert reading.busy == 4
    assert list(reading.born["drafts"].values()) == [1.7645e9]
    by_position = {position_of(labels): value for labels, value in reading.values["accepted_per_position"].items()}
    assert by_position == {0: 90, 1: 60}


def test_llama_cpp_has_no_labels() -> None:
    found = totals(LLAMACPP)
    assert (found["drafts"], found["generated_tokens"], found["running"]) == (897, 4416, 2)
    assert (found["prefix_misses"], found["prefix_hits"]) == (700, 7)


@pytest.mark.parametrize(
    ("page", "quantity", "value"),
    [
        (b'vllm:gpu_cache_usage_perc{model_name="m"} 0.5\n', "kv_use", 0.5),
        (b"vllm:gpu_prefix_cache_queries_total 5\n", "prefix_queries", 5),
        (b"vllm:spec_decode_draft_acceptance_rate 0.7\n", "acceptance_gauge", 0.7),
        (b"vllm:spec_decode_num_drafts 12\n", "drafts", 12),  # before the names ended in _total
        (b'sglang:spec_accept_length{model_name="m",tp_rank="0"} 2.9\n', "tokens_per_step_gauge", 2.9),
        (b"sglang_num_running_reqs 4\n", "running", 4),
        (b"sglang:generation_tokens_total 7.557572e+06\n", "generated_tokens", 7557572),
        (b"trtllm_spec_decode_num_draft_tokens_total 9\n", "draft_tokens", 9),
        (b"dynamo_frontend_output_tokens_total 3\n", "generated_tokens", 3),
        (b"tgi_queue_size 2 1764500000000\n", "waiting", 2),
    ],
)
def test_other_engines_and_older_names(page: bytes, quantity: str, value: float) -> None:
    assert totals(page)[quantity] == value


def test_tensorrt_hands_each_iteration_out_once() -> None:
    step = {
        "iter": 1,
        "numActiveRequests": 3,
        "numQueuedRequests": 1,
        "kvCacheStats": {"maxNumBlocks": 100, "usedNumBlocks": 25},
        "specDecodingStats": {"numDraftTokens": 9, "numAcceptedTokens": 4, "numRequestsWithDraftTokens": 3},
    }
    found = reading_of(json.dumps([step, step]).encode())
    assert found is not None
    assert found.added == {"drafts": 6, "draft_tokens": 18, "accepted_tokens": 8}
    assert (found.busy, found.total("kv_use")) == (4, 0.25)
    quiet = reading_of(b"[]")
    assert quiet is not None and not quiet.added and not quiet.busy
    plain = reading_of(b'[{"iter": 5, "numActiveRequests": 0}]')
    assert plain is not None and not plain.added


@pytest.mark.parametrize(
    "page", [b"", b"<html>busy</html>", b"{}", b"[1, 2]", b'[{"no": "iteration"}]', b"up 1\n", b"[", b"\xff\xfe\x00"]
)
def test_pages_that_hold_nothing_known(page: bytes) -> None:
    assert reading_of(page) is None


def test_names_of_the_profile_come_first() -> None:
    page = b"mine_drafts 5\nmine_speed 7\nllamacpp:spec_decode_num_drafts_total 1\n"
    found = reading_of(page, {"drafts": "mine_drafts"})
    assert found is not None
    assert found.total("drafts") == 5


def test_a_server_of_several_models_is_read_for_ours() -> None:
    """Also where our model's series appear only with its first request."""
    names = [("a",), ("a", "b")]
    pages = [
        "".join(f'vllm:generation_tokens_total{{model_name="{m}"}} {5 + len(m)}\n' for m in some) for some in names
    ]
    readings = [found for page in pages if (found := reading_of(page.encode())) is not None]
    ours = of_model(readings, "b")
    assert [r.total("generated_tokens") for r in ours] == [None, 6]
    assert [r.total("generated_tokens") for r in of_model(readings, "an alias")] == [6, 12]


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf"])
def test_values_that_are_no_numbers_are_passed_over(value: str) -> None:
    found = reading_of(f"vllm:num_requests_running {value}\nvllm:generation_tokens_total 5\n".encode())
    assert found is not None
    assert (found.total("running"), found.total("generated_tokens")) == (None, 5)


def test_only_wanted_lines_are_looked_into() -> None:
    kept = wanted_lines(VLLM)
    assert b"inter_token_latency" not in kept and b"# HELP" not in kept
    assert reading_of(kept) == reading_of(VLLM)
    assert wanted_lines(b"[1]") == b"[1]"


def test_the_pages_of_replicas_are_one_reading() -> None:
    one, two = reading_of(VLLM), reading_of(VLLM)
    assert one is not None and two is not None
    both = together([one, two])
    assert both.total("generated_tokens") == 2 * 1234
    assert len(both.values["generated_tokens"]) == len(both.born["generated_tokens"]) == 2


def test_a_profile_can_name_every_quantity() -> None:
    assert set(MetricNames.model_fields) == set(QUANTITIES)


@given(st.binary(max_size=200))
def test_no_page_is_an_exception(page: bytes) -> None:
    for text in (page, b"vllm:num_requests_running" + page, b"[" + page):
        reading_of(text)


@given(st.lists(st.tuples(st.text(max_size=5), st.text(max_size=5)), max_size=3))
def test_positions_are_small_numbers(labels: list[tuple[str, str]]) -> None:
    found: Labels = tuple(labels)
    assert position_of((*found, ("position", "3"))) in (3, position_of(found))
