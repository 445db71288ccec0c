from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from profiles.merging import displace, merge, overlay_sweep

keys = st.sampled_from("abcd")
leaves = st.none() | st.booleans() | st.integers() | st.text("xy", max_size=3) | st.lists(st.integers(), max_size=3)
trees = st.dictionaries(
    keys, st.recursive(leaves, lambda below: st.dictionaries(keys, below, max_size=3), max_leaves=6), max_size=4
)


def without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_nulls(below) for key, below in value.items() if below is not None}
    return value


def test_maps_merge_lists_and_scalars_replace_null_deletes() -> None:
    base = {"map": {"kept": 1, "changed": 1, "deleted": 1}, "list": [1, 2], "scalar": 1, "gone": {"x": 1}}
    overlay = {
        "map": {"changed": 2, "deleted": None, "new": {"n": None}},
        "list": [3],
        "scalar": {"a": 1},
        "gone": None,
    }
    assert merge(base, overlay) == {
        "map": {"kept": 1, "changed": 2, "new": {}},
        "list": [3],
        "scalar": {"a": 1},
    }


@given(trees, trees)
def test_merging_changes_neither_document(base: dict[str, Any], overlay: dict[str, Any]) -> None:
    before = repr(base), repr(overlay)
    merge(base, overlay)
    assert (repr(base), repr(overlay)) == before


@given(trees)
def test_nothing_over_a_document_is_that_document(base: dict[str, Any]) -> None:
    assert merge(base, {}) == base


@given(trees)
def test_a_document_over_nothing_loses_its_nulls_only(overlay: dict[str, Any]) -> None:
    assert merge({}, overlay) == without_nulls(overlay)


@given(trees, trees)
def test_merging_twice_is_merging_once(base: dict[str, Any], overlay: dict[str, Any]) -> None:
    once = merge(base, overlay)
    assert merge(once, overlay) == once


def test_exclusive_keys_replace_each_other() -> None:
    base = {
        "endpoint": {"auth": {"env": "A"}, "headers": {"X-Key": "1", "Other": "2"}},
        "arms": {"on": {"auth": {"file": "f"}}, "off": {}},
        "workload": {"use": "chat-short", "max_tokens": 5},
    }
    overlay = {
        "endpoint": {"auth": {"file": "k"}, "headers": {"x-key": "3"}},
        "arms": {"on": {"auth": {"env": "B"}}},
        "workload": {"prompts": "p.jsonl"},
    }
    assert overlay_sweep(base, overlay) == {
        "endpoint": {"auth": {"file": "k"}, "headers": {"Other": "2", "x-key": "3"}},
        "arms": {"on": {"auth": {"env": "B"}}, "off": {}},
        "workload": {"prompts": "p.jsonl", "max_tokens": 5},
    }


def test_displacing_keeps_what_is_not_replaced() -> None:
    base = {"auth": {"env": "A"}, "headers": {"a": "1"}}
    assert displace(base, {"auth": None, "headers": {"b": "2"}}) == base
