from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiles.errors import ProfileError
from profiles.yamltext import dump, parse

odd = st.sampled_from(
    [
        *(
            "1e3",
            "1_000",
            "0x1F",
            "0o7",
            "010",
            "on",
            "no",
            "~",
            "null",
            "",
            "=",
            "<<",
            "2020-01-01",
            "1:30",
            ".5",
            ".inf",
        ),
        *(
            "- a",
            "# x",
            "a: b",
            " x",
            "x ",
            "\n",
            "a\nb",
            "a\n",
            "\t",
            "!x",
            "&a",
            "*a",
            "%a",
            "@a",
            "`a",
            "?",
            "-",
            ":",
        ),
        *("true", "+1", "\u2028", "\ufeff", "\x85", "a\x85b", "\x00", "\x7f", "[", "{", "'", '"', "...", "---", "😀"),
        *("<redacted>", "$$", "word " * 60, "x" * 300),
    ]
)
leaves = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | odd
    | st.floats(allow_nan=False, allow_infinity=False)
)
documents = st.dictionaries(
    odd,
    st.recursive(
        leaves, lambda below: st.lists(below, max_size=3) | st.dictionaries(odd, below, max_size=3), max_leaves=6
    ),
    max_size=4,
)


def test_yaml_1_2_semantics() -> None:
    assert parse("on: yes\noff: no\ny: n\ndate: 2020-01-31\ntime: 1:30\noct: 0o10\nsum: =\nt: true\nn: ~", "f") == {
        "on": "yes",
        "off": "no",
        "y": "n",
        "date": "2020-01-31",
        "time": "1:30",
        "oct": 8,
        "sum": "=",
        "t": True,
        "n": None,
    }


@given(documents)
def test_what_is_dumped_is_read_back(document: dict[str, Any]) -> None:
    text = dump(document)
    assert parse(text, "f") == document
    assert list(parse(text, "f")) == list(document)


def test_shared_values_are_dumped_without_anchors() -> None:
    shared = {"a": 1}
    assert parse(dump({"x": shared, "y": shared}), "f") == {"x": {"a": 1}, "y": {"a": 1}}
    assert "&" not in dump({"x": shared, "y": shared})


@pytest.mark.parametrize(
    ("text", "line"),
    [
        *(
            ("a: 1\na: 2", 2),
            ("a: {b: 1, b: 2}", 1),
            ("a: [1", 1),
            ("a:\n\tb: 1", 2),
            ("a: 1\nb: *x", 2),
            ("x: 1\n---\ny: 2", 2),
        ),
        *(("a: !!python/object:os.system x", 1), ("a: 1\nb: !!int abc", 2), ("a: !!bool x", 1), ("a: 1\nb: \x07", 2)),
        *(("a: !!binary x", 1), ("a: 1\n\nb: ._", 3), ("? {a: b}\n: c", 1), ("a: " + "9" * 5000, 1), ("a: -", 1)),
    ],
)
def test_malformed_text_is_refused_with_its_line(text: str, line: int) -> None:
    with pytest.raises(ProfileError, match=f"line {line} ") as error:
        parse(text, "sweep.yaml")
    assert str(error.value).startswith("sweep.yaml: ")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "text",
    [
        *("a: .inf", "a: .nan", "a: 1e999", "a: 99999999999999999999", "1: 2", "[a]: 1", "null: 1", "a: !!set {x}"),
        *("a: &x [*x]", "a: " + "[" * 3000, "a: " + "{b: " * 60 + "1" + "}" * 60, 'a: "\\ud800"'),
        "a0: &a0 [1,1,1,1,1,1,1,1,1,1]\n"
        + "\n".join(f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)),
    ],
)
def test_what_no_profile_can_hold_is_refused(text: str) -> None:
    with pytest.raises(ProfileError):
        parse(text, "f")


@pytest.mark.parametrize("text", ["k: pa55word\nk: pa55word2", "k: 'pa55word", "k: *pa55word", "k: !pa55word x"])
def test_values_are_never_quoted(text: str) -> None:
    with pytest.raises(ProfileError) as error:
        parse(text, "f")
    assert "pa55" not in str(error.value)
