"""The documents of one stream differ, nearly always, in one string: learn the rest by heart, and skip the JSON.

Sound because of what JSON and `interpret` are. A string without quotes, backslashes and control characters may be put
in the place of another such string and leaves every other token as it was. And `interpret` does with a fragment's text
nothing but pass it on: what it makes of one string there, it makes of any.
"""

from __future__ import annotations

import re
from dataclasses import fields

from endpoints.dialects import Delta, interpret, parse

_PLAIN = bytes(c for c in range(0x20, 0x7F) if c not in b'"\\')
_HIGH = bytes(range(0x80, 0x100))  # of characters beyond ASCII, in UTF-8
_STRING = re.compile(rb'"(?:content|text|reasoning_content|reasoning)": ?"([ !#-\[\]-~\x80-\xff]+)"')
_SHORT, _SMALL = 33, 4096  # bytes
_CONSTANT = [f.name for f in fields(Delta) if f.name not in ("visible", "hidden")]


class Template:
    """What stands before and behind the one string that changes; the meanings differ in their text alone."""

    __slots__ = ("head", "size", "sizes", "start", "stop", "tail")

    def __init__(self, head: bytes, tail: bytes) -> None:
        self.head, self.tail = head, tail
        self.start, self.stop = len(head), -len(tail)
        self.size = len(head) + len(tail)
        self.sizes = range(self.size + 1, self.size + _SHORT if self.size < _SMALL else 0)  # of data with a short text

    def framed(self, end: bytes) -> Template:
        """The same for a whole block of one event, whose lines end so."""
        return Template(b"data: " + self.head, self.tail + end + end)

    def text_in(self, data: bytes) -> bytes | None:
        """The string (never empty) with which `data` is this document; None when it is another one."""
        if len(data) > self.size and data.startswith(self.head) and data.endswith(self.tail):
            text = data[self.start : self.stop]
            unusual = text.translate(None, _PLAIN)
            if not unusual or (not unusual.translate(None, _HIGH) and _is_utf8(text)):
                return text
        return None


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def learn(data: bytes, delta: Delta) -> Template | None:
    """The template of an event's data and of what it meant; None where more than one string of text is news."""
    told = (delta.token_ids, delta.finish_reason, delta.usage, delta.drafting, delta.error)
    if any(fact is not None for fact in told) or bool(delta.visible) == bool(delta.hidden):
        return None
    strings = list(_STRING.finditer(data))
    if len(strings) != 1 or (delta.visible or delta.hidden).encode("utf-8", "surrogatepass") != strings[0][1]:
        return None
    start, end = strings[0].span(1)
    head, tail, text = data[:start], data[end:], delta.visible + delta.hidden + "~"
    seen = interpret(parse(head + text.encode() + tail))
    same = all(getattr(seen, name) == getattr(delta, name) for name in _CONSTANT)
    if not same or (seen.visible, seen.hidden) != ((text, "") if delta.visible else ("", text)):
        return None
    return Template(head, tail)
