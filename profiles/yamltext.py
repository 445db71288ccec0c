"""YAML 1.2 text to plain values and back."""

from __future__ import annotations

import io
import math
import re
from typing import Any

from profiles.errors import ProfileError, printable

MOST_VALUES = 100_000  # aliases make a small text into a huge tree
DEEPEST = 50


def parse(text: str, where: str) -> Any:
    """The one document in `text`: maps with string keys, lists, strings, finite numbers, booleans and null.

    `on`, `off`, `yes`, `no` and dates are strings. Raises ProfileError, with the line where the YAML is malformed or
    gives a key twice; its text never quotes the file's values.
    """
    from ruamel.yaml.constructor import DuplicateKeyError
    from ruamel.yaml.error import MarkedYAMLError, YAMLError
    from ruamel.yaml.reader import ReaderError

    try:
        value = _yaml().load(text)
    except DuplicateKeyError as error:
        key = re.match(r'found duplicate key "(.*?)" with value', error.problem or "", re.DOTALL)
        named = f'the key "{key[1]}"' if key else "a key"
        raise ProfileError(where, None, f"line {_line(error)} gives {named} twice", "keep one of them") from None
    except ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise ProfileError(where, None, f"line {line} has a character YAML does not allow", "remove it") from None
    except MarkedYAMLError as error:
        problem = _without_quotes(error.problem or "it cannot be read")
        raise ProfileError(where, None, f"line {_line(error)} is not YAML ({problem})", "correct that line") from None
    except YAMLError:
        raise ProfileError(where, None, "this is not YAML", "correct it") from None
    except RecursionError:
        raise ProfileError(where, None, "it is nested too deeply", "flatten it") from None
    check_values(value, where)
    return value


def dump(document: dict[str, Any]) -> str:
    """`document` as YAML text that `parse` reads back as the same values, keys in their order."""
    from ruamel.yaml.representer import SafeRepresenter

    class Representer(SafeRepresenter):
        def ignore_aliases(self, data: Any) -> bool:
            return True

    Representer.add_representer(str, _quoted_when_odd)
    yaml = _yaml()
    yaml.Representer = Representer
    yaml.default_flow_style = False
    yaml.sort_base_mapping_type_on_output = False
    yaml.width = 120
    out = io.StringIO()
    yaml.dump(document, out)
    return out.getvalue()


def check_values(value: Any, where: str) -> None:
    """Raises ProfileError unless `value` holds only what JSON can hold, at a sane size and depth."""
    todo: list[tuple[Any, tuple[str, ...]]] = [(value, ())]
    seen = 0
    while todo:
        item, path = todo.pop()
        seen += 1
        key = ".".join(path) or None
        if seen > MOST_VALUES or len(path) > DEEPEST:
            raise ProfileError(where, None, "it holds too many values or is nested too deeply", "simplify it")
        if isinstance(item, dict):
            for name, below in item.items():
                if not isinstance(name, str):
                    shown = printable(str(name)[:40])
                    raise ProfileError(where, key, f"the key {shown} is not text", "write it in quotes")
                _check_text(name, where, key)
                todo.append((below, (*path, name)))
        elif isinstance(item, list):
            todo.extend((below, (*path, str(number))) for number, below in enumerate(item))
        elif isinstance(item, str):
            _check_text(item, where, key)
        elif isinstance(item, float) and not math.isfinite(item):
            raise ProfileError(where, key, "the number is not finite", "write a finite number")
        elif type(item) is int and not -(2**63) <= item < 2**64:
            raise ProfileError(where, key, "the number is too large to be sent", "write one of 64 bits at most")
        elif item is not None and not isinstance(item, bool | int | float):
            raise ProfileError(where, key, f"a {type(item).__name__} has no place here", "write text or a number")


def _check_text(text: str, where: str, key: str | None) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ProfileError(
            where, key, "the text holds half of a surrogate pair", "write the character itself"
        ) from None


def _yaml() -> Any:
    from ruamel.yaml import YAML
    from ruamel.yaml.constructor import ConstructorError, SafeConstructor

    class Constructor(SafeConstructor):
        def construct_object(self, node: Any, deep: bool = False) -> Any:
            try:
                return super().construct_object(node, deep=deep)
            except (ValueError, LookupError, TypeError, ArithmeticError):
                raise ConstructorError(None, None, "a value does not fit its type", node.start_mark) from None

    for tag in ("timestamp", "value"):  # no types of YAML 1.2's core schema
        Constructor.add_constructor(f"tag:yaml.org,2002:{tag}", SafeConstructor.construct_yaml_str)
    yaml = YAML(typ="safe", pure=True)
    yaml.Constructor = Constructor
    return yaml


def _quoted_when_odd(representer: Any, text: str) -> Any:
    # Line ends other than a newline survive in double quotes only.
    style = None if text.isprintable() else '"'
    return representer.represent_scalar("tag:yaml.org,2002:str", text, style=style)


def _line(error: Any) -> int:
    mark = error.problem_mark or error.context_mark
    return 1 if mark is None else int(mark.line) + 1


def _without_quotes(problem: str) -> str:
    """The loader's reason without quotations of the file, which may be secrets; marks such as '<stream end>' stay."""
    return re.sub(r"""(['"])(?!<[a-z ]+>\1).{2,}\1""", "some text", problem.splitlines()[0] if problem else problem)
