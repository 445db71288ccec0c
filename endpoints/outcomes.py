"""How a request can end: one class for each kind of ending, and the rules that sort exceptions into them."""

from __future__ import annotations

import errno
import socket
import ssl
from enum import StrEnum

import aiohttp


class Outcome(StrEnum):
    """`OK`, or the class of the failure (the names stand in every stored file)."""

    OK = "ok"
    HTTP_4XX = "http_4xx"
    HTTP_5XX = "http_5xx"
    RATE_LIMITED = "rate_limited"
    REFUSED = "refused"
    RESET = "reset"
    DNS = "dns"
    TLS = "tls"
    CONNECT_TIMEOUT = "connect_timeout"
    FIRST_BYTE_TIMEOUT = "first_byte_timeout"
    IDLE_TIMEOUT = "idle_timeout"
    DEADLINE = "deadline"
    TRUNCATED = "truncated"
    BAD_STREAM = "bad_stream"
    ERROR_EVENT = "error_event"
    NOT_A_STREAM = "not_a_stream"
    EMPTY = "empty"
    CLIENT_RESOURCE = "client_resource"
    CANCELLED = "cancelled"


# What our own machine ran out of: descriptors, memory, buffers, local ports.
_CLIENT_ERRNOS = frozenset(
    {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.EADDRNOTAVAIL, errno.EADDRINUSE}
)

# What aiohttp calls a body that ended before its last chunk or its length; any other fault of it cannot be read at all.
_CUT_SHORT = aiohttp.http_exceptions.TransferEncodingError | aiohttp.http_exceptions.ContentLengthError


def of_status(status: int) -> Outcome:
    """The class of a reply whose status is not 2xx. A redirect is never followed with a key, so it is no stream."""
    if status == 429:
        return Outcome.RATE_LIMITED
    if 400 <= status < 500:
        return Outcome.HTTP_4XX
    if status >= 500:
        return Outcome.HTTP_5XX
    return Outcome.NOT_A_STREAM


def of_exception(exc: BaseException, *, reply_began: bool) -> Outcome:
    """Sort what the HTTP library raised.

    `reply_began`: bytes of the reply had come before. A reply that breaks off is `truncated` when the peer closed in
    an orderly way, and `reset` when the connection was torn down.
    """
    number = _errno(exc)
    if number in _CLIENT_ERRNOS:
        return Outcome.CLIENT_RESOURCE
    if isinstance(exc, aiohttp.ClientConnectorDNSError | socket.gaierror):
        return Outcome.DNS
    if isinstance(exc, aiohttp.ClientSSLError | ssl.SSLError):
        return Outcome.TLS
    if isinstance(exc, aiohttp.ConnectionTimeoutError):
        return Outcome.CONNECT_TIMEOUT
    if isinstance(exc, aiohttp.ClientConnectorError):
        return of_dialling(exc.os_error)
    if isinstance(exc, aiohttp.ClientPayloadError):
        why = exc.__cause__
        if isinstance(why, aiohttp.http_exceptions.HttpProcessingError) and not isinstance(why, _CUT_SHORT):
            return Outcome.BAD_STREAM
        return Outcome.RESET if number == errno.ECONNRESET else Outcome.TRUNCATED
    if isinstance(exc, aiohttp.ServerDisconnectedError):
        return Outcome.TRUNCATED if reply_began else Outcome.RESET
    if isinstance(exc, aiohttp.ClientResponseError | aiohttp.http_exceptions.HttpProcessingError):
        return Outcome.BAD_STREAM
    if isinstance(exc, ConnectionError | aiohttp.ClientOSError):
        return Outcome.RESET
    if isinstance(exc, TimeoutError):
        return Outcome.IDLE_TIMEOUT if reply_began else Outcome.FIRST_BYTE_TIMEOUT
    return Outcome.BAD_STREAM


def of_dialling(exc: OSError | UnicodeError) -> Outcome:
    """Sort what the operating system, the resolver or TLS raised while a connection was being made."""
    number = _errno(exc)
    if number in _CLIENT_ERRNOS:
        return Outcome.CLIENT_RESOURCE
    if isinstance(exc, socket.gaierror | UnicodeError):
        return Outcome.DNS
    if isinstance(exc, ssl.SSLError):
        return Outcome.TLS
    if isinstance(exc, ConnectionResetError | ConnectionAbortedError):
        return Outcome.RESET  # taken up, and dropped before TLS stood
    return Outcome.CONNECT_TIMEOUT if isinstance(exc, TimeoutError) or number == errno.ETIMEDOUT else Outcome.REFUSED


def _errno(exc: BaseException) -> int | None:
    """The operating system's number behind an exception, through the chain of causes."""
    seen: set[int] = set()
    at: BaseException | None = exc
    while at is not None and id(at) not in seen:
        seen.add(id(at))
        if isinstance(at, OSError) and at.errno is not None and not isinstance(at, ssl.SSLError | socket.gaierror):
            return at.errno
        at = getattr(at, "os_error", None) or at.__cause__ or at.__context__
    return None
