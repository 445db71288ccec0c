import dataclasses
import json
import subprocess
import sys
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiles.errors import ProfileError
from profiles.loading import ResolvedWorkload
from profiles.workloads import (
    Message,
    Prompt,
    list_ready,
    load_prompts,
    load_workload,
    ready_names,
    ready_path,
    split,
    workload_hash,
)


def workload_of(source: Path, **changes: Any) -> ResolvedWorkload:
    fields: dict[str, Any] = {"max_tokens": 64, "salt": True, "system": None, "sampling": {}, **changes}
    return ResolvedWorkload(name="w", prompts_source=source, **fields)


def prompts_in(folder: Path, text: str) -> tuple[Prompt, ...]:
    path = folder / "p.jsonl"
    path.write_text(text, encoding="utf-8")
    return load_prompts(workload_of(path))


def made(categories: list[str]) -> tuple[Prompt, ...]:
    return tuple(
        Prompt(f"p{number}", category, (Message("user", f"text {number}"),))
        for number, category in enumerate(categories)
    )


def test_lines_of_prompts_and_of_messages(tmp_path: Path) -> None:
    first, second, third = prompts_in(
        tmp_path,
        "\ufeff"
        '{"id": "a", "category": "c", "prompt": "é\\nx\u2028y"}\r\n'
        "\n  \n"
        '{"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"},'
        ' {"role": "assistant", "content": "v"}, {"role": "user", "content": "w"}]}\n'
        '{"prompt": "last"}',
    )
    assert first == Prompt("a", "c", (Message("user", "é\nx\u2028y"),))
    assert (second.id, second.category) == ("p-4", "general")
    assert [message.role for message in second.messages] == ["system", "user", "assistant", "user"]
    assert second.text == "s\n\nu\n\nv\n\nw"
    assert third.id == "p-5"


def test_a_system_message_goes_first_unless_the_prompt_has_one() -> None:
    plain = Prompt("a", "c", (Message("user", "u"),))
    own = Prompt("b", "c", (Message("system", "mine"), Message("user", "u")))
    assert plain.with_system("s") == (Message("system", "s"), Message("user", "u"))
    assert plain.with_system(None) == plain.messages
    assert own.with_system("s") == own.messages


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ("{", "JSON object"),
        ("[1]", "JSON object"),
        ("5", "JSON object"),
        ('{"prompt": "x", "prompt": "y"}', "distinct keys"),
        ('{"promt": "x"}', 'did you mean "prompt"'),
        ('{"id": "x"}', "either prompt or messages"),
        ('{"prompt": "x", "messages": []}', "either prompt or messages"),
        ('{"prompt": ""}', "not empty"),
        ('{"prompt": 5}', "not empty"),
        ('{"prompt": "x", "id": 5}', "id should be text"),
        ('{"prompt": "x", "category": null}', "category should be text"),
        ('{"prompt": "\\ud800"}', "surrogate"),
        ('{"messages": []}', "list of objects"),
        ('{"messages": "x"}', "list of objects"),
        ('{"messages": [{"role": "user"}]}', "role and content"),
        ('{"messages": [{"role": "wizard", "content": "x"}]}', "unknown role"),
        ('{"messages": [{"role": ["user"], "content": "x"}]}', "unknown role"),
        ('{"messages": [{"role": "system", "content": "x"}]}', "last message"),
        ("[" * 100_000, "JSON object"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, bad: str, words: str) -> None:
    with pytest.raises(ProfileError) as error:
        prompts_in(tmp_path, f'{{"prompt": "fine"}}\n\n{bad}\n{{"prompt": "fine too"}}\n')
    assert error.value.where == str(tmp_path / "p.jsonl")
    assert error.value.key == "line 3"
    assert words in str(error.value)


@pytest.mark.parametrize("text", ["", "\n", '{"prompt": "x"}', '{"prompt": "x"}\n{"prompt": "x"}'])
def test_two_different_prompts_are_needed(tmp_path: Path, text: str) -> None:
    with pytest.raises(ProfileError, match="fewer than two"):
        prompts_in(tmp_path, text)


def test_ids_are_distinct(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match='"a" is given twice'):
        prompts_in(tmp_path, '{"id": "a", "prompt": "x"}\n{"id": "a", "prompt": "y"}')


def test_missing_and_undecodable_files(tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").write_bytes(b'{"prompt": "a"}\n\xff\n')
    with pytest.raises(ProfileError, match="line 2 is not UTF-8"):
        load_prompts(workload_of(tmp_path / "bad.jsonl"))
    for path in (tmp_path, tmp_path / "none.jsonl"):
        with pytest.raises(ProfileError):
            load_prompts(workload_of(path))


def test_a_tenth_is_kept_apart_and_every_category_is_on_both_sides() -> None:
    prompts = made(["a"] * 120 + ["b"] * 60 + ["c"] * 18 + ["d"] * 2)
    measured, warmup = split(prompts)
    assert len(warmup) == 20
    counts = {category: sum(prompt.category == category for prompt in warmup) for category in "abcd"}
    assert counts == {"a": 12, "b": 6, "c": 1, "d": 1} or counts == {"a": 11, "b": 6, "c": 2, "d": 1}
    assert {prompt.category for prompt in measured} == set("abcd")
    assert split(prompts) == (measured, warmup)
    assert sorted(measured + warmup, key=prompts.index) == list(prompts)


@given(st.lists(st.tuples(st.integers(0, 30), st.sampled_from(["a", "b", "c", "d", ""])), min_size=2, max_size=80))
def test_any_prompts_are_split_without_sharing_a_text(rows: list[tuple[int, str]]) -> None:
    prompts = tuple(
        Prompt(str(n), kind or f"own{n}", (Message("user", f"t{text}"),)) for n, (text, kind) in enumerate(rows)
    )
    texts = {prompt.text for prompt in prompts}
    if len(texts) < 2:
        with pytest.raises(ValueError, match="two different"):
            split(prompts)
        return
    measured, warmup = split(prompts)
    assert {prompt.text for prompt in measured} | {prompt.text for prompt in warmup} == texts
    assert not {prompt.text for prompt in measured} & {prompt.text for prompt in warmup}
    assert len({prompt.text for prompt in warmup}) == max(1, len(texts) // 10)
    assert measured
    assert len(measured) + len(warmup) == len(prompts)


def test_the_hash_covers_what_is_sent_and_nothing_else(tmp_path: Path) -> None:
    prompts = made(["a", "b"])
    base = workload_of(tmp_path)
    first = workload_hash(prompts, base)
    assert len(bytes.fromhex(first)) == 32
    same = dataclasses.replace(base, name="other", prompts_source=tmp_path / "else")
    renamed = tuple(dataclasses.replace(prompt, id="x" + prompt.id) for prompt in prompts)
    assert workload_hash(renamed, same) == first
    others = [
        *(dataclasses.replace(base, **change) for change in ({"max_tokens": 65}, {"salt": False}, {"system": "s"})),
        dataclasses.replace(base, sampling={"temperature": 0.0}),
    ]
    hashes = {first, *(workload_hash(prompts, other) for other in others)}
    hashes |= {
        workload_hash(prompts[::-1], base),
        workload_hash(made(["a", "a"]), base),
        workload_hash(prompts[:1], base),
    }
    assert len(hashes) == 8


def composed(folder: Path, per_prompt: int, count: int, categories: str = "ab", passages: int = 4) -> Path:
    rows = [{"id": f"{c}{n}", "category": c, "text": f"passage {c}{n}."} for c in categories for n in range(passages)]
    questions = [
        {"id": "q1", "category": "any", "prompt": "What?"},
        {"id": "q2", "category": "a", "prompt": "Why a?"},
    ]
    for name, lines in (("passages", rows), ("questions", questions)):
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, lines)))
    source = folder / "long.yaml"
    source.write_text(
        "description: d\nmax_tokens: 8\ncompose:\n  passages: passages.jsonl\n  questions: questions.jsonl\n"
        f"  per_prompt: {per_prompt}\n  count: {count}\n"
    )
    return source


def test_long_prompts_are_composed_of_one_category_and_always_the_same(tmp_path: Path) -> None:
    source = composed(tmp_path, per_prompt=2, count=20)
    prompts = load_prompts(workload_of(source))
    assert prompts == load_prompts(workload_of(source))
    assert len({prompt.text for prompt in prompts}) == 20
    assert len({prompt.id for prompt in prompts}) == 20
    firsts = set()
    for prompt in prompts:
        one, two, question = prompt.text.split("\n\n")
        assert one != two
        assert one.startswith(f"passage {prompt.category}")
        assert two.startswith(f"passage {prompt.category}")
        assert question == "What?" or (question, prompt.category) == ("Why a?", "a")
        firsts.add(one)
    assert len(firsts) == 8


def test_composing_more_than_the_parts_allow_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="different prompts"):
        load_prompts(workload_of(composed(tmp_path, per_prompt=1, count=50)))
    with pytest.raises(ProfileError, match="no category has 5 passages"):
        load_prompts(workload_of(composed(tmp_path, per_prompt=5, count=2)))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not a workload"),
        ("description: d\nmax_tokens: 5\n", "neither prompts nor compose"),
        ("description: d\nmax_tokens: 5\nprompts: []\n", "neither prompts nor compose"),
        ("description: d\nprompts: chat.jsonl\n", "max_tokens: this key is missing"),
        ("description: d\nmax_tokens: 5\nprompts: [5]\n", "prompts.0: this should be text"),
        ("description: d\nmax_tokens: 5\nprompts: {a: 1}\n", "prompts: this should be a list"),
        ("description: d\nmax_tokens: 5\npromts: x\n", 'did you mean "prompts"'),
        ("description: d\nmax_tokens: 5\ncompose: {passages: p, per_prompt: 2}\n", "compose.questions"),
    ],
)
def test_a_bad_workload_file_is_refused(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "w.yaml").write_text(text)
    with pytest.raises(ProfileError) as error:
        load_workload(tmp_path / "w.yaml")
    assert words in str(error.value)


@pytest.mark.parametrize("name", ["chat-short", "long-prompt", "long-answer", "code"])
def test_ready_made_workloads_are_large_varied_and_keep_warmup_apart(name: str) -> None:
    prompts = load_prompts(workload_of(ready_path(name)))
    texts = [prompt.text for prompt in prompts]
    assert len(set(texts)) == len(texts) >= 200
    assert max(map(len, texts)) <= 30_000
    assert not {c for text in texts for c in text if unicodedata.category(c) == "Cc"} - {"\n", "\t"}
    measured, warmup = split(prompts)
    assert len(warmup) == len(prompts) // 10
    assert not {prompt.text for prompt in measured} & {prompt.text for prompt in warmup}
    assert {prompt.category for prompt in measured} == {prompt.category for prompt in prompts}


def test_the_list_of_ready_made_workloads() -> None:
    ready = {row.name: row for row in list_ready()}
    assert set(ready) == set(ready_names()) >= {"chat-short", "long-prompt", "long-answer", "code"}
    assert len(ready["chat-short"].categories) >= 8
    assert len({category for row in ready.values() for category in row.categories}) >= 8
    assert all(row.description and row.prompts >= 200 and row.max_tokens > 0 for row in ready.values())


def test_the_room_is_light_to_import() -> None:
    heavy = "{'aiohttp', 'numpy', 'ruamel.yaml'}"
    code = f"import sys, profiles.loading, profiles.starters; print(sorted({heavy} & set(sys.modules)))"
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
