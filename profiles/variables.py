"""`${NAME}` in the strings of a profile; `$$` stands for one dollar sign."""

from __future__ import annotations

import re
from collections.abc import Mapping

from profiles.errors import Refusal

_DOLLAR = re.compile(r"\$(?:(?P<escape>\$)|\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)\}|(?P<broken>\{))")


def expand(text: str, env: Mapping[str, str]) -> str:
    """`text` with every `${NAME}` replaced by its value in `env`. Raises Refusal on an unset or malformed one."""

    def value(match: re.Match[str]) -> str:
        if match["escape"]:
            return "$"
        if match["broken"]:
            raise Refusal(
                'there is a "${" without a variable\'s name and "}"', 'write ${NAME}, or "$${" for the text itself'
            )
        if match["name"] not in env:
            raise Refusal(f"the environment variable {match['name']} is not set", f"export {match['name']}")
        return env[match["name"]]

    return _DOLLAR.sub(value, text)


def escape(text: str) -> str:
    """The text that `expand` turns into `text`."""
    return text.replace("$", "$$")


def without_variables(text: str) -> str:
    """What is left of `text` when its `${NAME}` are taken out."""
    return _DOLLAR.sub(lambda match: "" if match["name"] else match[0], text)
