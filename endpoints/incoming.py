"""One HTTP/1.1 reply as its bytes come (RFC 9112): head, body and end, whatever the cut. Parsed by llhttp."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

_MOST_HEAD = 64 * 1024  # bytes of one head
_MOST_HEADERS = 256
_MOST_VAIN = 16 * 2**20  # bytes on end that are no body: extensions of a chunk, trailers
_PIECE = 2**20  # bytes that are unpacked at once
_CODINGS = {"gzip": 31, "x-gzip": 31, "deflate": 15}  # zlib's wbits
_RAW = -15


class Unreadable(ValueError):
    """A body whose content coding cannot be undone."""


class Incoming:
    """Feed what arrives; read `status` and `headers` (names in lower case) once they are there.

    Interim replies (1xx) are passed over, but for 101. `whole`: the reply has ended as HTTP says, and `reusable`: so
    that its connection can serve again. `error`: why it is not read any further, and `stalled`: that this is because
    bytes go on coming, none of which is of the body.
    """

    __slots__ = (
        "_excess",
        "_head_bytes",
        "_head_lines",
        "_keeps",
        "_packed",
        "_parser",
        "_pieces",
        "_told",
        "_vain",
        "error",
        "headers",
        "on_body",
        "stalled",
        "status",
        "whole",
    )

    def __init__(self) -> None:
        self.status: int | None = None
        self.headers: dict[str, str] = {}
        self.whole = False
        self.error: str | None = None
        self.stalled = False
        self._keeps = False
        self._excess = False  # bytes behind the reply
        self._vain = self._head_bytes = self._head_lines = 0
        self._told = False  # the parser has called back since the last bytes that came to nothing
        self._packed: _Unpacker | None = None
        self._pieces: list[bytes] = []
        self.on_body: Callable[[bytes], None] = self._pieces.append
        self._parser: HttpResponseParser | None = HttpResponseParser(self)
        # A line may end with LF alone (RFC 9112, 2.2), and one that is folded is read as one (5.2).
        self._parser.set_dangerous_leniencies(lenient_headers=True, lenient_optional_cr_before_lf=True)

    def feed(self, data: bytes) -> Iterable[bytes]:
        """Take what came; the blocks of body in it, unpacked as they are asked for, which raises Unreadable."""
        if self._parser is None:
            return ()
        try:
            self._parser.feed_data(data)
        except HttpParserUpgrade:
            self._excess = True
        except HttpParserError as exc:
            if not self.whole:
                self.error = str(exc.__context__ or exc) or type(exc).__name__
            self._excess = True
        pieces = self._pieces
        if not pieces:
            self._check(len(data))
            return ()
        block = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        return (block,) if self._packed is None else self._packed.unpack(block)

    def _check(self, size: int) -> None:
        """Bound what comes to nothing: a head or a line without an end."""
        self._vain = 0 if self._told else self._vain + size
        self._told = False
        if self._vain > (_MOST_HEAD if self.status is None else _MOST_VAIN) and self.error is None:
            self.stalled = self.status is not None
            self.error = f"{self._vain:,} bytes came to nothing"

    @property
    def reusable(self) -> bool:
        return self._keeps and not self._excess

    @property
    def ends_with_the_connection(self) -> bool:
        """Whether nothing but the close can end this body."""
        coded = self.headers.get("transfer-encoding", "").lower().endswith("chunked")
        return self.status is not None and not coded and "content-length" not in self.headers

    def close(self) -> None:
        """Drop the parser, which would otherwise live on in a cycle."""
        self._parser = None

    # -- what the parser calls ---------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._excess = self._excess or self.whole

    def on_header(self, name: bytes, value: bytes) -> None:
        self._told = True
        self._head_bytes += len(name) + len(value)
        self._head_lines += 1
        if self._head_bytes > _MOST_HEAD or self._head_lines > _MOST_HEADERS:
            raise ValueError(f"a head of more than {_MOST_HEAD:,} bytes or {_MOST_HEADERS} headers")
        if b"\0" in value:
            raise ValueError("a NUL in a header")
        if self.status is None:
            self.headers.setdefault(name.decode("latin-1").lower(), value.decode("latin-1").strip())

    def on_headers_complete(self) -> None:
        assert self._parser is not None
        status = self._parser.get_status_code()
        if 100 <= status < 200 and status != 101:
            self.headers.clear()
            self._head_bytes = self._head_lines = 0
            self._told = True
            return
        self.status = status
        coding = self.headers.get("content-encoding", "").lower()
        if coding not in ("", "identity"):
            self._packed = _Unpacker(coding)

    def on_message_complete(self) -> None:
        if self.status is not None and not self.whole:
            assert self._parser is not None
            self.whole, self._keeps = True, self._parser.should_keep_alive()


class _Unpacker:
    """Undoes a content coding that nobody asked for, in bounded pieces."""

    def __init__(self, coding: str) -> None:
        self._coding = coding
        self._inflate = zlib.decompressobj(_CODINGS[coding]) if coding in _CODINGS else None
        self._begun = False

    def unpack(self, block: bytes) -> Iterator[bytes]:
        """The plain bytes. Raises Unreadable."""
        if self._inflate is None:
            raise Unreadable(f"the content coding {self._coding!r} was not asked for, and cannot be read")
        if not self._begun and self._coding == "deflate" and block[0] & 0x0F != 8:
            self._inflate = zlib.decompressobj(_RAW)  # what some servers take deflate for
        self._begun = True
        try:
            while block:
                if plain := self._inflate.decompress(block, _PIECE):
                    yield plain
                block = self._inflate.unconsumed_tail
        except zlib.error as exc:
            raise Unreadable(f"the body is not {self._coding}: {exc}") from None
