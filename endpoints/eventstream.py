"""The event-stream format, decoded as it arrives.

Follows the parsing rules of the WHATWG HTML standard, section "Interpreting an event stream": lines end with LF, CRLF
or CR; a leading byte order mark is dropped; lines that begin with a colon are comments; one space after a field's colon
is dropped; several `data` fields join with LF; a blank line dispatches; what is incomplete at the body's end is lost.
Everything stays bytes: splitting text would also split at U+2028 or U+0085, which are legal inside JSON.
"""

from __future__ import annotations

from dataclasses import dataclass

_LINE_BYTES = 56  # what a line costs beside its text: an event of tiny lines must not hold twenty times its bound
MAX_EVENT_BYTES = 64 * 1024 * 1024
_BOM = b"\xef\xbb\xbf"


class EventTooLarge(ValueError):
    """One event grew beyond the decoder's bound."""


@dataclass(frozen=True, slots=True)
class ServerEvent:
    """One dispatched event: its `data` (bytes, without the final LF) and its `event` type ('' when none was named)."""

    data: bytes
    kind: bytes = b""


class EventStreamDecoder:
    """Feed bytes as they come; get whole events. Linear in the bytes fed, however they are cut.

    `max_event_bytes` bounds what one unfinished event may hold in memory; beyond it `feed` raises `EventTooLarge`.
    """

    __slots__ = ("_data", "_held", "_kind", "_partial", "_skip_lf", "_started", "max_event_bytes")

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self.max_event_bytes = max_event_bytes
        self._partial = bytearray()  # a line that has not ended yet
        self._data: list[bytes] = []  # data lines of the event being built
        self._kind = b""
        self._held = 0  # bytes in the two above
        self._skip_lf = False  # the last byte was a CR that ended a line: a following LF belongs to it
        self._started = False

    def feed(self, block: bytes) -> list[ServerEvent]:
        """Decode one block (any cut, also inside a character). Raises EventTooLarge."""
        datas = self.whole(block)
        return self.lines(block) if datas is None else [ServerEvent(data) for data in datas]

    @property
    def between(self) -> bool:
        """Whether no event has begun, so that the next byte begins a line of a new one."""
        return self._started and not (self._held or self._kind or self._partial or self._skip_lf)

    def whole(self, block: bytes) -> list[bytes] | None:
        """What nearly every block of nearly every server is: whole unnamed events of one line each, as their data.

        None, and nothing is taken, when the block may be anything else: `lines` reads any.
        """
        if self._held or self._kind or self._partial or not block.startswith(b"data: "):
            return None
        if block.endswith(b"\n\n"):
            datas = block[6:-2].split(b"\n\ndata: ")
        elif block.endswith(b"\r\n\r\n"):
            datas = block[6:-4].split(b"\r\n\r\ndata: ")
        else:
            return None
        for data in datas:
            if b"\n" in data or b"\r" in data:
                return None
        self._started, self._skip_lf = True, False
        return datas

    def lines(self, block: bytes) -> list[ServerEvent]:
        """Decode one block line by line. Raises EventTooLarge."""
        if not block:
            return []
        if not self._started:
            # The mark may itself be cut: wait until three bytes are there or it cannot be one.
            block = bytes(self._partial) + block
            self._partial.clear()
            if len(block) < 3 and _BOM.startswith(block):
                self._partial += block
                return []
            self._started = True
            if block.startswith(_BOM):
                block = block[3:]
        if self._skip_lf and block:
            self._skip_lf = False
            if block[0] == 0x0A:
                block = block[1:]
        events: list[ServerEvent] = []
        for line in block.splitlines(keepends=True):  # bytes.splitlines knows LF, CR and CRLF only
            last = line[-1]
            if last != 0x0A and last != 0x0D:
                self._partial += line
                self._hold(len(line))
                break
            body = line.rstrip(b"\r\n")
            if self._partial:
                self._held -= len(self._partial)
                body = bytes(self._partial) + body
                self._partial.clear()
            self._line(body, events)
        self._skip_lf = block.endswith(b"\r")
        return events

    def _line(self, line: bytes, events: list[ServerEvent]) -> None:
        if not line:
            if self._data:
                events.append(ServerEvent(b"\n".join(self._data), self._kind))
            self._data.clear()
            self._held = 0
            self._kind = b""
            return
        name, _, value = line.partition(b":")
        if value.startswith(b" "):
            value = value[1:]
        if name == b"data":
            self._data.append(value)
            self._hold(len(value) + _LINE_BYTES)
        elif name == b"event":
            self._kind = value

    def _hold(self, size: int) -> None:
        self._held += size
        if self._held > self.max_event_bytes:
            raise EventTooLarge(f"an event is larger than {self.max_event_bytes:,} bytes")
