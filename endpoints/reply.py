"""One streamed reply, built up as its bytes arrive: stamps, counts and the verdict on whether it was whole."""

from __future__ import annotations

import hashlib
from array import array
from itertools import accumulate, pairwise
from typing import Any

from endpoints import dialects
from endpoints.eventstream import MAX_EVENT_BYTES, EventStreamDecoder, EventTooLarge
from endpoints.outcomes import Outcome
from endpoints.template import Template, learn

_KEEP_HEAD = 65_536  # bytes of a body without events kept for the error text
_HASHED = 4096  # bytes of text that are hashed at once
_LEARN = 4  # at most every so many events
_NONE = range(0)


class Reply:
    """Feed blocks with their arrival stamps (ns, any monotonic origin); read the fields when the body has ended.

    `chunk_ns`: arrival of each fragment with text (content, reasoning, tool calls); `chunk_tokens()`: tokens in each,
    where the server tells. `usage` holds the last count of each kind. `dropped` counts events that were no JSON.
    `likely`: the sizes of a block that, by its size, is one more fragment and no news else.
    """

    __slots__ = (
        "_between",
        "_cumulative",
        "_decoder",
        "_framed",
        "_hash",
        "_ids",
        "_kept",
        "_kept_ids",
        "_learnt",
        "_sizes",
        "_template",
        "_text",
        "_textless",
        "chunk_ns",
        "done",
        "drafting",
        "dropped",
        "error",
        "events",
        "fingerprint",
        "finish_reason",
        "first_visible_ns",
        "head",
        "likely",
        "model",
        "reasoned",
        "request_id",
        "text_bytes",
        "usage",
    )

    def __init__(self, *, keep_text: bool = False, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._decoder = EventStreamDecoder(max_event_bytes)
        self._hash = hashlib.blake2b(digest_size=8)
        self._text = bytearray()  # not hashed yet
        self._kept = bytearray() if keep_text else None
        self._sizes: list[int] | None = [] if keep_text else None  # bytes of each fragment
        self._kept_ids: list[Any] = []  # of a reply whose text is kept
        self._template: Template | None = None
        self._framed: Template | None = None  # the same, as a block by itself
        self._between = False  # no event has begun
        self.likely = _NONE
        self._learnt = 0
        self._cumulative: list[int | None] = []
        self._ids: list[int | None] = []
        self._textless = 0  # token ids since the last fragment
        self.chunk_ns = array("q")
        self.first_visible_ns: int | None = None
        self.text_bytes = 0
        self.events = 0
        self.dropped = 0
        self.done = False
        self.reasoned = False
        self.finish_reason: str | None = None
        self.usage: dialects.Usage | None = None
        self.drafting: dialects.Drafting | None = None
        self.error: str | None = None
        self.model: str | None = None
        self.fingerprint: str | None = None
        self.request_id: str | None = None
        self.head = bytearray()

    def feed(self, block: bytes, at_ns: int) -> int:
        """Take one block; return how many fragments with text it held. Raises EventTooLarge."""
        if not self.events and len(self.head) < _KEEP_HEAD:
            self.head += block[: _KEEP_HEAD - len(self.head)]
        if self._framed is not None and self._between and not self.done:
            text = self._framed.text_in(block)
            if text is not None:  # what nearly every block is: one event, and only its text is news
                self.events += 1
                self.chunk_ns.append(at_ns)
                self.text_bytes += len(text)
                self._text += text
                if self._sizes is not None:
                    self._sizes.append(len(text))
                if len(self._text) >= _HASHED:
                    self._settle()
                return 1
        before = len(self.chunk_ns)
        datas = self._decoder.whole(block)
        if datas is None:
            for event in self._decoder.lines(block):
                self._event(event.data, event.kind, at_ns)
            self._between, self.likely = self._decoder.between, _NONE
            return len(self.chunk_ns) - before
        self._between = True
        for data in datas:
            text = self._template.text_in(data) if self._template is not None else None
            if text is None or self.done:
                self._event(data, b"", at_ns)
            else:
                self.events += 1
                self._fragment(text, at_ns)
        if self._framed is None and self._template is not None:
            self._framed = self._template.framed(b"\r\n" if block.endswith(b"\r\n") else b"\n")
        self.likely = self._framed.sizes if self._framed is not None and not self.done else _NONE
        return len(self.chunk_ns) - before

    def _event(self, data: bytes, kind: bytes, at_ns: int) -> None:
        if self.done or not data:
            return
        self.events += 1
        if data == b"[DONE]" or data.strip() == b"[DONE]":
            self.done = True
            return
        try:
            delta = dialects.interpret(dialects.parse(data), kind)
        except dialects.NotAnEvent:
            self.dropped += 1
            if kind == b"error":
                self.error = self.error or " ".join(data.decode("utf-8", "replace").split())
            return
        self._take(delta, at_ns)
        if (delta.visible or delta.hidden) and self._learnt * _LEARN <= self.events:
            self._learnt += 1
            if (template := learn(data, delta)) is not None:
                self._template, self._framed = template, None

    def _fragment(self, text: bytes, at_ns: int) -> None:
        self.chunk_ns.append(at_ns)
        self.text_bytes += len(text)
        self._text += text
        if self._sizes is not None:
            self._sizes.append(len(text))
        if len(self._text) >= _HASHED:
            self._settle()

    def _settle(self) -> None:
        self._hash.update(self._text)
        if self._kept is not None:
            self._kept += self._text
        self._text.clear()

    def _take(self, delta: dialects.Delta, at_ns: int) -> None:
        if delta.visible or delta.hidden:
            self._fragment((delta.hidden + delta.visible).encode("utf-8", "surrogatepass"), at_ns)
            self._cumulative.append(delta.usage.output_tokens if delta.usage else None)
            # Tokens without text (a character not yet whole) belong to the fragment that they complete.
            self._ids.append(None if delta.token_ids is None else self._textless + len(delta.token_ids))
            self._textless = 0
            if delta.visible and self.first_visible_ns is None:
                self.first_visible_ns = at_ns
        else:
            self._textless += len(delta.token_ids or ())
        if delta.token_ids and self._kept is not None:
            self._kept_ids += delta.token_ids
        if delta.usage is not None:
            self.usage = delta.usage.after(self.usage)
        self.drafting = delta.drafting or self.drafting
        self.reasoned = self.reasoned or delta.reasoned
        self.finish_reason = delta.finish_reason or self.finish_reason
        self.error = self.error or delta.error
        self.model = self.model or delta.model
        self.fingerprint = self.fingerprint or delta.fingerprint
        self.request_id = self.request_id or delta.request_id

    @property
    def text_hash(self) -> str:
        self._settle()
        return self._hash.hexdigest()

    @property
    def text(self) -> str | None:
        if self._kept is None:
            return None
        self._settle()
        # Halves of a surrogate pair may have come apart; one without the other cannot be stored.
        halves = self._kept.decode("utf-8", "surrogatepass")
        return halves.encode("utf-16", "surrogatepass").decode("utf-16", "replace")

    @property
    def fragments(self) -> list[str] | None:
        """The text of each fragment, where text is kept."""
        if self._kept is None or self._sizes is None:
            return None
        self._settle()
        ends = [0, *accumulate(self._sizes)]
        return [self._kept[a:b].decode("utf-8", "replace") for a, b in pairwise(ends)]

    def token_ids(self) -> list[int] | None:
        """All token ids of a reply whose text is kept; None where the server lists none, or not those of every text."""
        whole = None not in self._ids and all(type(i) is int and 0 <= i < 2**63 for i in self._kept_ids)
        return self._kept_ids if self._kept_ids and whole and len(self._ids) == len(self.chunk_ns) else None

    def chunk_tokens(self) -> list[int] | None:
        """Tokens in each fragment, or None where they cannot be known.

        From running usage when it rises with every fragment (a server that repeats its final usage on every event
        tells nothing about fragments), else from the token ids listed. Tokens that came after the last fragment without
        text (an end-of-text token, say) are in none. (Fragments read by template are in neither list: one that told
        nothing of its tokens, from which it was learnt, is in both.)
        """
        running = [c for c in self._cumulative if c is not None]
        if running and len(running) == len(self._cumulative) and all(b > a for a, b in pairwise([0, *running])):
            return [b - a for a, b in pairwise([0, *running])]
        ids = [i for i in self._ids if i is not None]
        return ids if ids and len(ids) == len(self._ids) and all(ids) else None

    def verdict(self) -> tuple[Outcome, str | None]:
        """Whether a 2xx body that ended in order was a whole, successful reply; else the class and one line why."""
        if self.error is not None:
            return Outcome.ERROR_EVENT, self.error
        if not self.events:
            return self._not_a_stream()
        if self.dropped and not self.chunk_ns:
            return (
                Outcome.BAD_STREAM,
                f"{self.dropped} of {self.events} events are no JSON objects, and none held text",
            )
        if not (self.done or self.finish_reason):
            if self.dropped:
                return Outcome.BAD_STREAM, f"{self.dropped} events are not JSON, and no finish reason or [DONE] came"
            return Outcome.TRUNCATED, "the body ended without a finish reason or [DONE]"
        if not self.chunk_ns:
            return Outcome.EMPTY, f"no text came (finish reason: {self.finish_reason or 'none'})"
        return Outcome.OK, None

    def _not_a_stream(self) -> tuple[Outcome, str]:
        body = bytes(self.head).strip()
        if not body:
            return Outcome.EMPTY, "the body is empty"
        try:
            error = dialects.error_of(dialects.parse(body))
        except dialects.NotAnEvent:
            error = None
        if error is not None:
            return Outcome.ERROR_EVENT, error
        if body.startswith((b"data:", b":", b"event:", b"id:", b"retry:")):
            return Outcome.TRUNCATED, "the body ended inside its first event"
        return Outcome.NOT_A_STREAM, "not an event stream: " + " ".join(body.decode("utf-8", "replace").split())


class WholeReply(Reply):
    """A reply in one JSON body, from an endpoint that is declared not to stream: its text is one arrival, its end."""

    __slots__ = ("_at_ns", "_body", "_most")

    def __init__(self, *, keep_text: bool = False, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        super().__init__(keep_text=keep_text)
        self._body = bytearray()
        self._most = max_event_bytes
        self._at_ns = 0

    def feed(self, block: bytes, at_ns: int) -> int:
        """Take one block; nothing is known before the body has ended. Raises EventTooLarge."""
        self._body += block
        if len(self._body) > self._most:
            raise EventTooLarge(f"the reply is larger than {self._most:,} bytes")
        self._at_ns = at_ns
        return 0

    def verdict(self) -> tuple[Outcome, str | None]:
        """See `Reply.verdict`; to be asked once, when the body has ended."""
        self.head[:] = self._body[:_KEEP_HEAD]
        try:
            document = dialects.parse(bytes(self._body))
        except dialects.NotAnEvent:
            if self.head.lstrip().startswith((b"data:", b"event:")):
                return Outcome.BAD_STREAM, "an event stream, from an endpoint declared with stream: false"
            return (Outcome.TRUNCATED, "the JSON body is cut") if self.head[:1] == b"{" else self._not_a_stream()
        self._take(dialects.interpret(document, whole=True), self._at_ns)
        if self.error is not None:
            return Outcome.ERROR_EVENT, self.error
        if not self.finish_reason:
            return Outcome.TRUNCATED, "the reply has no finish reason"
        if not self.chunk_ns:
            return Outcome.EMPTY, f"no text came (finish reason: {self.finish_reason})"
        return Outcome.OK, None


__all__ = ["EventTooLarge", "Reply", "WholeReply"]
