"""Keys: reading them from where the user named, and keeping them out of everything that is written."""

from __future__ import annotations

import base64
import html
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from string import ascii_letters, digits
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, quote_plus

from profiles.errors import ProfileError
from profiles.files import read_text, user_path
from profiles.variables import without_variables

if TYPE_CHECKING:
    from profiles.models import Auth

REDACTED = "<redacted>"
LONGEST_KEY = 65_536  # bytes

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_ALWAYS = {
    *("authorization", "authentication", "auth", "password", "passwords", "passwd", "pwd", "passphrase"),
    *("secret", "secrets", "credential", "credentials", "cookie", "cookies", "bearer", "jwt", "apikey", "apikeys"),
    *("signature", "sig", "authtoken", "accesstoken", "accesskey", "secretkey", "privatekey"),
}
# Words before "token" or "key" that make it a word of language models or of caching, not a secret.
_INNOCENT = {
    "token": {
        *(
            "eos",
            "bos",
            "pad",
            "unk",
            "sep",
            "cls",
            "mask",
            "stop",
            "special",
            "per",
            "image",
            "audio",
            "video",
            "start",
        ),
        *(
            "end",
            "think",
            "first",
            "next",
            "last",
            "max",
            "min",
            "bad",
            "draft",
            "prompt",
            "output",
            "input",
            "by",
            "new",
        ),
    },
    "key": {"cache", "idempotency", "routing", "route", "sort", "group", "primary", "public", "affinity"},
}
_SCHEME = re.compile(r"\s*(?:(?:bearer|basic|token|key|apikey)(?:\s+|\Z))?", re.IGNORECASE)
_BASE64 = ascii_letters + digits + "+/_-"
_RUN_ON = re.compile(r"[A-Za-z0-9+/_-]*=*")
_SHORTEST_LINE = 8  # characters; of a secret of several lines, a shorter one would be found by chance
_USERINFO = re.compile(r"(?<=://)[^/?#\s]*@")
_QUERY_VALUE = re.compile(r"(?P<name>(?<=[?&;])[^=?&;#\s]+)=(?P<value>[^&;#\s]+)")


def looks_secret(name: str) -> bool:
    """True when a header, query or body field of this name is likely to hold a credential."""
    words = [word.lower() for word in _WORD.findall(name)]
    if words[:1] == ["x"]:
        words = words[1:]
    if _ALWAYS.intersection(words):
        return True
    pairs = zip(["", *words], words, strict=False)
    if any((before, word) in {("api", "key"), ("api", "keys"), ("access", "key")} for before, word in pairs):
        return True
    last = words[-1] if words else ""
    return last in _INNOCENT and (words[-2] if len(words) > 1 else "") not in _INNOCENT[last]


def read_key(auth: Auth | None, env: Mapping[str, str]) -> str | None:
    """The key `auth` names, in `env` or in a file (without its last line end); None without auth.

    Raises ProfileError, naming the variable or the file and never the content, when there is no key there, or one
    that cannot go into an HTTP header.
    """
    if auth is None:
        return None
    if auth.env is not None:
        where = f"environment variable {auth.env}"
        if auth.env not in env:
            raise ProfileError(where, None, "it is not set", "export it with the key, or name another")
        return _usable_key(env[auth.env], where)
    where = str(auth.file)
    text = read_text(user_path(where), LONGEST_KEY)
    return _usable_key(re.sub(r"\r?\n\Z", "", text), where)


def _usable_key(key: str, where: str) -> str:
    if not key.strip():
        raise ProfileError(where, None, "the key is empty", "put the key there")
    if "\n" in key or "\r" in key:
        raise ProfileError(where, None, "the key has more than one line", "leave only the key itself")
    if any(ord(c) < 32 or 127 <= ord(c) < 160 for c in key):
        raise ProfileError(where, None, "the key holds a control character", "leave only the key itself")
    if key != key.strip():
        raise ProfileError(where, None, "the key begins or ends with a blank", "leave only the key itself")
    try:
        key.encode("latin-1")
    except UnicodeEncodeError:
        raise ProfileError(
            where, None, "the key holds a character that no HTTP header can carry", "copy the key again, as plain text"
        ) from None
    return key


def secrets_in(headers: Mapping[str, str], extra_body: Mapping[str, Any]) -> tuple[str, ...]:
    """Values that must not be shown: those of credential-like headers and body fields."""
    found = [_SCHEME.sub("", value, count=1) for name, value in headers.items() if looks_secret(name)]
    todo: list[tuple[Any, bool]] = [(extra_body, False)]
    while todo:
        value, secret = todo.pop()
        if isinstance(value, Mapping):
            todo.extend((below, secret or looks_secret(name)) for name, below in value.items())
        elif isinstance(value, list):
            todo.extend((below, secret) for below in value)
        elif secret and isinstance(value, str):
            found.append(value)
    return tuple(dict.fromkeys(value for value in found if value))


def redact(text: str, secrets: Iterable[str]) -> str:
    """`text` with every occurrence of the secrets replaced by `<redacted>`: plain, percent-encoded, JSON- or
    HTML-escaped, or inside a base64 run (as in `Authorization: Basic`); one of several lines by each line, too.

    Takes time in proportion to the text, whatever is in it.
    """
    spans: list[tuple[int, int]] = []
    for secret in {piece for each in secrets for piece in _pieces(each)}:
        for form in _forms(secret):
            spans += [(start, start + len(form)) for start in _places(text, form)]
        for core in _in_base64(secret):
            spans += _runs(text, core)
    shown, done = [], 0
    for start, end in sorted(spans):
        if start >= done:
            shown += [text[done:start], REDACTED]
        done = max(done, end)
    return "".join([*shown, text[done:]])


def _pieces(secret: str) -> set[str]:
    """The secret, and its lines where it has several, since it may be printed indented, or only one line be looked
    at."""
    return {piece for piece in (secret, *secret.splitlines()) if piece == secret or len(piece) >= _SHORTEST_LINE} - {""}


@lru_cache(256)
def _forms(secret: str) -> tuple[str, ...]:
    forms = {
        *(secret, html.escape(secret), quote_plus(secret, errors="replace")),
        *(quote(secret, safe=safe, errors="replace") for safe in ("", "/", "/:=+@,;")),
        *(json.dumps(secret, ensure_ascii=ascii_only)[1:-1] for ascii_only in (True, False)),
    }
    forms |= {form.replace("/", "\\/") for form in forms}
    return tuple(forms | {re.sub(r"%[0-9A-F]{2}|\\u[0-9a-f]{4}", _other_case, form) for form in forms})


def _other_case(match: re.Match[str]) -> str:
    code = match[0]
    return code.lower() if code.startswith("%") else "\\u" + code[2:].upper()


@lru_cache(256)
def _in_base64(secret: str) -> tuple[str, ...]:
    """What a base64 run that holds `secret` has in it, whatever stands before it: one for each of three alignments."""
    data = secret.encode("utf-8", "replace")
    if len(data) < 6:  # its characters would be found by chance
        return ()
    cores = set()
    for shift in range(3):
        run = base64.b64encode(b"\0" * shift + data).decode("ascii").rstrip("=")
        # Only the characters made of the secret's own bits, whatever stands around it.
        core = run[-(-shift * 8 // 6) : (shift + len(data)) * 8 // 6]
        cores |= {core, core.replace("+", "-").replace("/", "_")}
    return tuple(cores)


def _places(text: str, part: str) -> Iterator[int]:
    at = text.find(part)
    while at >= 0:
        yield at
        at = text.find(part, at + len(part))


def _runs(text: str, core: str) -> Iterator[tuple[int, int]]:
    """The base64 runs with `core` in them. The core is looked for first: a pattern that began with the run would look
    through a long one again from each of its characters."""
    end, at = 0, text.find(core)
    while at >= 0:
        start = end + len(text[end:at].rstrip(_BASE64))
        match = _RUN_ON.match(text, at)
        assert match is not None  # it may be empty
        end = match.end()
        yield start, end
        at = text.find(core, end)


def redact_urls(text: str) -> str:
    """`text` without the user:password and the key-like query values of the URLs in it."""
    if "://" not in text:
        return text

    def query(match: re.Match[str]) -> str:
        shown = REDACTED if looks_secret(match["name"]) and without_variables(match["value"]) else match["value"]
        return f"{match['name']}={shown}"

    return _QUERY_VALUE.sub(query, _USERINFO.sub(f"{REDACTED}@", text))


def redact_sweep(document: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of a sweep document without secrets: key-like fields of `headers` and `extra_body`, and URLs everywhere.

    A value made only of `${NAME}` (after an authentication scheme) holds no secret and stays.
    """
    copy = _map_text(document, redact_urls)
    arms = copy.get("arms")
    for section in (copy.get("endpoint"), *(arms.values() if isinstance(arms, dict) else ())):
        if isinstance(section, dict):
            section |= {name: _redact_fields(section[name]) for name in ("headers", "extra_body") if name in section}
    return dict(copy)


def _map_text(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, Mapping):
        return {name: _map_text(below, change) for name, below in value.items()}
    if isinstance(value, list):
        return [_map_text(below, change) for below in value]
    return change(value) if isinstance(value, str) else value


def _redact_fields(value: Any, secret: bool = False) -> Any:
    if isinstance(value, Mapping):
        return {name: _redact_fields(below, secret or looks_secret(name)) for name, below in value.items()}
    if isinstance(value, list):
        return [_redact_fields(below, secret) for below in value]
    if not secret or value is None or isinstance(value, bool):
        return value
    kept = isinstance(value, str) and not _SCHEME.sub("", without_variables(value), count=1).strip()
    return value if kept else REDACTED
