"""A server to be started, worked out: its command, its options file, where it will be found; nothing secret in it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from profiles.engines import ENGINES, told
from profiles.errors import ProfileError, Refusal
from profiles.merging import merge
from profiles.models import Launch, Speculation, clean_url
from profiles.secrets import looks_secret, redact_urls
from profiles.variables import without_variables
from profiles.yamltext import dump

HERE = "http://127.0.0.1:{port}/v1"
_KNOWN_KEYS = re.compile(r"\b(?:sk|hf|nvapi|ghp|xox[bp])[-_][A-Za-z0-9_-]{16,}")
_VARIABLE = re.compile(r"(?<!\$)\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
# A field of JSON, or of what is written like it: {"name": "value"}, {name: value}; not one that is empty or yes or no.
_FIELD = re.compile(
    r"""[{,]\s*\\?["']?([A-Za-z0-9_.-]+)\\?["']?\s*:\s*(?!(?:null|true|false|None|True|False)\b)\\?["']?[^\s"'\\,}\]]"""
)
_NAMES_A_FILE = re.compile(r"(?i)[-_](?:file|path|dir)\Z")

Path_ = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ResolvedLaunch:
    """`{port}` in command, env and url is yet to be chosen, `{options}` in the command is the path of a file with
    `options` (YAML) in it. Times in seconds."""

    command: tuple[str, ...]
    options: str | None
    env: dict[str, str]
    cwd: str | None
    url: str
    ready_seconds: float
    stop_seconds: float
    engine: str | None

    @property
    def shown_url(self) -> str:
        """Where it will be found, without a port that is yet to be chosen."""
        parts = urlsplit(self.url.replace(":{port}", ""))
        return clean_url(urlunsplit(parts))

    def at(self, port: int) -> str:
        """Its URL when it is given this port."""
        return clean_url(self.url.replace("{port}", str(port)))


def resolve_launch(asked: Launch, speculation: Speculation | None) -> ResolvedLaunch:
    """The whole command. Raises Refusal, with a key inside `speculation`, where an engine cannot be told of it."""
    options: str | None = None
    if asked.engine is None:
        command = asked.command or ()
    else:
        engine, more = ENGINES[asked.engine], told(asked.engine, speculation)
        serve = tuple(word.replace("{model}", asked.model or "") for word in engine.serve)
        if engine.options is not None:
            options = dump(merge(merge(engine.options, more.options), asked.options))
        command = (*(asked.program or engine.program), *serve, *more.flags, *asked.args)
    return ResolvedLaunch(
        command,
        options,
        dict(asked.env),
        asked.cwd,
        asked.url or HERE,
        asked.ready_seconds,
        asked.stop_seconds,
        asked.engine,
    )


def refuse_secrets(document: Mapping[str, Any], place: Callable[[Path_], tuple[str, str | None]]) -> None:
    """Look through the launches and hooks of a sweep document whose `${NAME}` are not expanded yet.

    A command line is seen by everyone on the machine, so no secret may come into it even by `${NAME}`; into the
    environment it may. Raises ProfileError.
    """
    arms = document.get("arms")
    sections: list[tuple[Path_, Any]] = [(("endpoint",), document.get("endpoint"))]
    sections += [(("arms", name), arm) for name, arm in arms.items()] if isinstance(arms, Mapping) else []
    for path, section in sections:
        for key in ("launch", "before_point"):
            asked = section.get(key) if isinstance(section, Mapping) else None
            asked = {"command": asked} if isinstance(asked, list) else asked
            if isinstance(asked, Mapping):
                _refuse_in(asked, (*path, key), place)


def check_command(words: Sequence[str]) -> None:
    """Look once more through the words of a command, as it will be started. Raises Refusal."""
    if any("\0" in word for word in words):
        raise Refusal("a word of the command holds a null character", "remove it")
    _refuse_words(words, expanded=True)


def _refuse_in(asked: Mapping[str, Any], path: Path_, place: Callable[[Path_], tuple[str, str | None]]) -> None:
    for name in ("command", "program", "args"):
        words = asked.get(name)
        try:
            _refuse_words([str(word) for word in words] if isinstance(words, list) else [])
        except Refusal as refusal:
            raise ProfileError(*place((*path, name)), refusal.problem, refusal.remedy) from None
    for below, value in _entries(asked.get("options")):
        text = value if isinstance(value, str) else ""
        named = any(_secret_name(name) for name in below) and value not in (None, True, False)
        if named or _KNOWN_KEYS.search(text) or redact_urls(text) != text or _secret_variable(text):
            problem = "it is written into a file of the run, and a secret does not belong there"
            remedy = "give it to the server by its environment"
            raise ProfileError(*place((*path, "options", *below)), problem, remedy)
    env = asked.get("env")
    for name, value in env.items() if isinstance(env, Mapping) else ():
        if not isinstance(value, str) or not without_variables(value).strip():
            continue  # nothing of it is stored but the names of variables
        if looks_secret(str(name)) or _KNOWN_KEYS.search(value) or redact_urls(value) != value:
            problem = f"the environment variable {name} seems to hold a secret, which the run would store"
            raise ProfileError(*place((*path, "env", str(name))), problem, f'write "${{{name}}}" and export it')


def _entries(value: Any, path: Path_ = ()) -> Iterator[tuple[Path_, Any]]:
    """Whatever is no map and no list in `value`, with its path."""
    if isinstance(value, Mapping | list):
        for name, below in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from _entries(below, (*path, str(name)))
    else:
        yield path, value


def _refuse_words(words: Sequence[str], expanded: bool = False) -> None:
    if what := _secret_in(words, expanded):
        problem = f"there is a secret in a command line ({what}), which everyone on the machine can read"
        raise Refusal(problem, "give it to the server by its environment or a file")


def _secret_in(words: Sequence[str], expanded: bool) -> str | None:
    """What gives a secret away: the name of its flag, field or variable, never the secret."""
    fields: list[str] = [name for word in words for name in _FIELD.findall(word)]
    if found := next(filter(_secret_name, fields), None):
        return found
    pieces = list(_pieces(words))
    for number, piece in enumerate(pieces):
        if not expanded and (variable := _secret_variable(piece)):
            return f"${{{variable}}}"
        name, equals, value = piece.partition("=")
        following = pieces[number + 1] if number + 1 < len(pieces) else ""
        flag = name.startswith("-") or name.endswith(":")  # --api-key KEY, -H "Authorization: KEY"
        if _secret_name(name) and (value if equals else flag and following and not following.startswith("-")):
            return name
        if _KNOWN_KEYS.search(piece):
            return "a key"
        if redact_urls(piece) != piece:
            return "in a URL"
    return None


def _secret_variable(text: str) -> str | None:
    names: list[str] = _VARIABLE.findall(text)
    return next((name for name in names if _secret_name(name)), None)


def _pieces(words: Sequence[str]) -> Iterator[str]:
    """Words, and the words within those that hold a command line of their own (`sh -c "..."`)."""
    for word in words:
        yield from word.split() if not word.lstrip().startswith("{") else (word,)


def _secret_name(name: str) -> bool:
    bare = name.lstrip("-\"'").rstrip(":")
    return bool(re.fullmatch(r"[A-Za-z0-9_.-]+", bare)) and looks_secret(bare) and not _NAMES_A_FILE.search(bare)
