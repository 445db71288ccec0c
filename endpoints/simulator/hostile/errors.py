"""Errors: inside a stream that began with 200, instead of one, and by status. None may look like a success."""

from __future__ import annotations

import json
from typing import Any

from endpoints.simulator.hostile.expected import Case, Expected, failed, whole
from endpoints.simulator.hostile.sse import (
    BODY,
    DONE,
    FINISH,
    REPLY,
    ROLE,
    TAIL,
    TOKENS,
    USAGE,
    WORDS,
    chat,
    choice,
    event,
    frame,
)
from endpoints.simulator.hostile.wire import STREAM, Play, body, flood, head, raw, stream

KIND = "errors"
T = TOKENS
JSON = "Content-Type: application/json"
HTML = "Content-Type: text/html; charset=utf-8"
_boom = {"message": "the engine has died", "type": "server_error", "param": None, "code": 500}
_said = json.dumps({"error": _boom}).encode()
_slow = b'{"error":{"message":"slow down","type":"rate_limit","code":429}}'
_page = b"<!DOCTYPE html>\n<html><head><title>502 Bad Gateway</title></head><body>bad gateway</body></html>\n"


def _case(name: str, what: str, expected: Expected, play: Play) -> Case:
    return Case(name, KIND, what, expected, play)


def _after_three(*events: bytes) -> Play:
    """Three tokens, these events, and the stream ends."""
    return stream(ROLE, *T[:3], *events)


def _three(why: str, **but: Any) -> Expected:
    return failed("error_event", why, fragments=3, text="".join(WORDS[:3]), **but)


def _refusal(
    name: str, status: str, said: bytes, outcome: str, what: str, *headers: str, why: str = "", **but: Any
) -> Case:
    expected = failed(outcome, why or "the status decides, whatever the body", status=int(status[:3]), **but)
    return _case(name, f"{status}, {what}", expected, body(status, said, *headers))


def _instead(name: str, said: bytes, expected: Expected, what: str, *headers: str) -> Case:
    return _case(name, f"200, and {what}", expected, body("200 OK", said, *headers))


CASES = [
    _case(
        "error-event",
        'after three tokens `{"error": {"message": …}}`',
        _three("a failure, though it began well; what came is kept apart"),
        _after_three(event({"error": _boom})),
    ),
    _case(
        "error-event-then-done",
        "the same, and [DONE] after it",
        _three("[DONE] makes no success of it"),
        _after_three(event({"error": _boom}), DONE),
    ),
    _case(
        "error-event-then-all-is-well",
        "an error between tokens, then the rest of an ordinary reply",
        failed(
            "error_event",
            "an error is an error, whatever follows",
            fragments=8,
            output_tokens=8,
            input_tokens=5,
            token_source="usage",
            finish_reason="stop",
        ),
        stream(ROLE, *T[:3], event({"error": _boom}), *T[3:], *TAIL),
    ),
    _case(
        "error-event-first",
        "an error event before any token",
        failed("error_event", "not an empty reply, a failed one"),
        stream(event({"error": _boom}), DONE),
    ),
    _case(
        "error-text",
        '`{"error": "the engine has died"}`',
        _three("an error by any type"),
        _after_three(event({"error": "the engine has died"})),
    ),
    _case(
        "error-nested",
        '`{"error": {"error": {…}}}`',
        _three("an error, however deep its message"),
        _after_three(event({"error": {"error": _boom}})),
    ),
    _case("error-list", '`{"error": [{…}]}`', _three("an error by any type"), _after_three(event({"error": [_boom]}))),
    _case(
        "error-code-only",
        '`{"error": {"code": 500}}`',
        _three("an error without words"),
        _after_three(event({"error": {"code": 500}})),
    ),
    _case(
        "error-null",
        '`error: null`, `""` and `false` in every event',
        whole("these say that there is none"),
        stream(*(chat({"content": w}, error=no) for w, no in zip(WORDS, (None, "", False) * 3, strict=False)), *TAIL),
    ),
    _case(
        "error-with-choices",
        "an error beside empty choices",
        _three("both keys of every event are read"),
        _after_three(event(frame([], error=_boom)), DONE),
    ),
    _case(
        "error-in-the-choice",
        '`finish_reason: "error"`, with an error in the choice',
        _three("the reply was cut short by a fault", finish_reason="error"),
        _after_three(event(frame([choice({}, "error", error=_boom)])), DONE),
    ),
    _case(
        "error-finish",
        '`finish_reason: "error"` and nothing else',
        _three("the reply was cut short by a fault", finish_reason="error"),
        _after_three(chat({}, "error"), DONE),
    ),
    _case(
        "abort-finish",
        '`finish_reason: "abort"`',
        _three("the reply was cut short by a fault", finish_reason="abort"),
        _after_three(chat({"content": ""}, "abort"), DONE),
    ),
    _case(
        "error-named",
        "`event: error` with a message",
        _three("the name says it"),
        _after_three(event({"message": "overloaded"}, "error")),
    ),
    _case(
        "error-named-detail",
        "`event: error` with `detail`",
        _three("the name says it"),
        _after_three(event({"detail": "overloaded"}, "error")),
    ),
    _case(
        "error-named-in-words",
        "`event: error` with words that are no JSON",
        _three("the name says it", dropped_events=1),
        _after_three(b"event: error\ndata: overloaded\n\n"),
    ),
    _case(
        "error-bare",
        'a bare `{"message": …, "code": 500}`',
        _three("an error without its wrapper"),
        _after_three(event({"message": "overloaded", "code": 500})),
    ),
    _case(
        "error-object",
        '`{"object": "error", "message": …}`',
        _three("the object says it"),
        _after_three(event({"object": "error", "message": "no", "type": "x", "code": 400})),
    ),
    _case(
        "error-after-done",
        "an error after [DONE]",
        whole("[DONE] is the end of the reply; nothing after it counts"),
        stream(*REPLY, event({"error": _boom})),
    ),
    _case(
        "error-then-cut",
        "an error event, then the connection closes inside the body",
        _three("the error says why it was cut"),
        raw(head("200 OK", *STREAM), *(b"%x\r\n%s\r\n" % (len(e), e) for e in (ROLE, *T[:3], event({"error": _boom})))),
    ),
    _case(
        "error-then-reset",
        "an error event, then a reset",
        _three("the error says why it was torn"),
        raw(
            head("200 OK", *STREAM),
            *(b"%x\r\n%s\r\n" % (len(e), e) for e in (ROLE, *T[:3], event({"error": _boom}))),
            then="reset",
        ),
    ),
    _case(
        "error-then-silence",
        "an error event, then nothing, the connection open",
        _three("the error says why nothing more comes"),
        raw(
            head("200 OK", *STREAM),
            *(b"%x\r\n%s\r\n" % (len(e), e) for e in (ROLE, *T[:3], event({"error": _boom}))),
            then="open",
        ),
    ),
    _case(
        "error-long",
        "an error of a megabyte",
        _three("cut for show, not for meaning"),
        _after_three(event({"error": {"message": "why " * 250_000}})),
    ),
    _instead("json-error", _said, failed("error_event", "an error with a good status"), "a JSON error", JSON),
    _instead(
        "json-error-as-stream",
        _said,
        failed("error_event", "an error, whatever the content type calls it"),
        "a JSON error called an event stream",
        STREAM[0],
    ),
    _instead(
        "json-error-bare",
        b'{"object":"error","message":"no such model","code":404}',
        failed("error_event", "an error without its wrapper"),
        "a JSON error without `error`",
        JSON,
    ),
    _instead(
        "json-reply",
        json.dumps(
            {
                "choices": [{"message": {"content": "hi"}, "finish_reason": "stop"}],
                "usage": {"prompt_tokens": 5, "completion_tokens": 8},
            }
        ).encode(),
        failed("not_a_stream", "a stream was asked for: nothing can be timed in it"),
        "a whole reply in JSON, not streamed",
        JSON,
    ),
    _instead("html", _page, failed("not_a_stream", "somebody else answered"), "a page of HTML", HTML),
    _instead(
        "html-as-stream",
        _page,
        failed("not_a_stream", "no event in it, whatever the content type"),
        "HTML called an event stream",
        STREAM[0],
    ),
    _instead(
        "plain-text",
        b"upstream connect error or disconnect/reset before headers",
        failed("not_a_stream", "no event in it"),
        "plain text",
        "Content-Type: text/plain",
    ),
    _instead("empty-body", b"", failed("empty", "nothing came"), "a body of no bytes", STREAM[0]),
    _instead(
        "only-comments",
        b": hello\n\n: bye\n\n",
        failed("truncated", "a stream began, and ended without any event"),
        "a stream of comments alone",
        STREAM[0],
    ),
    _instead(
        "binary",
        bytes(range(256)) * 4,
        failed("not_a_stream", "no event in it"),
        "bytes of all kinds",
        "Content-Type: application/octet-stream",
    ),
    _instead(
        "content-type-plain",
        BODY,
        whole("an event stream by its content; some gateways relabel it"),
        "a good stream called text/plain",
        "Content-Type: text/plain",
    ),
    _instead("content-type-json", BODY, whole("an event stream by its content"), "a good stream called JSON", JSON),
    _instead(
        "content-type-none", BODY, whole("an event stream by its content"), "a good stream without a content type"
    ),
    _instead(
        "content-type-odd",
        BODY,
        whole("types are read in any case"),
        'a good stream called `TEXT/Event-Stream;Charset="UTF-8"`',
        'Content-Type: TEXT/Event-Stream;Charset="UTF-8"',
    ),
    _case("201", "201, and a good stream", whole("2xx is a success", status=201), stream(*REPLY, status="201 Created")),
    _case(
        "204",
        "204, and no body",
        failed("empty", "a success without a reply", status=204),
        raw(head("204 No Content"), then="keep"),
    ),
    _refusal("400", "400 Bad Request", _said, "http_4xx", "a JSON error", JSON),
    _refusal(
        "400-detail",
        "422 Unprocessable Entity",
        b'{"detail":[{"loc":["body","seed"],"msg":"extra fields not permitted"}]}',
        "http_4xx",
        "a list of details",
        JSON,
    ),
    _refusal("401", "401 Unauthorized", b"no key", "http_4xx", "plain text", "WWW-Authenticate: Bearer"),
    _refusal("403-empty", "403 Forbidden", b"", "http_4xx", "an empty body"),
    _refusal("404-html", "404 Not Found", _page, "http_4xx", "HTML", HTML),
    _refusal("408", "408 Request Timeout", b"", "http_4xx", "an empty body", "Connection: close"),
    _refusal("413-binary", "413 Payload Too Large", bytes(range(256)), "http_4xx", "bytes of all kinds"),
    _refusal("400-stream", "400 Bad Request", BODY, "http_4xx", "a good stream", STREAM[0]),
    _refusal("500", "500 Internal Server Error", _said, "http_5xx", "a JSON error", JSON),
    _refusal("502-html", "502 Bad Gateway", _page, "http_5xx", "HTML", HTML),
    _refusal("503-empty", "503 Service Unavailable", b"", "http_5xx", "an empty body"),
    _refusal(
        "503-retry-after",
        "503 Service Unavailable",
        _said,
        "http_5xx",
        "with Retry-After",
        JSON,
        "Retry-After: 30",
        retry_after="30",
    ),
    _refusal("500-done", "500 Internal Server Error", b"data: [DONE]\n\n", "http_5xx", "[DONE]", STREAM[0]),
    _refusal("529", "529 Overloaded", _said, "http_5xx", "a JSON error", JSON),
    _refusal(
        "799", "799 Strange", _said, "http_5xx", "a status out of range", JSON, why="RFC 9110 asks to treat it as a 5xx"
    ),
    _refusal(
        "429-seconds",
        "429 Too Many Requests",
        _slow,
        "rate_limited",
        "Retry-After in seconds",
        JSON,
        "Retry-After: 2",
        retry_after="2",
        why="neither slow nor failed: asked to wait",
    ),
    _refusal(
        "429-date",
        "429 Too Many Requests",
        _slow,
        "rate_limited",
        "Retry-After as a date",
        JSON,
        "Retry-After: Fri, 31 Dec 2100 23:59:59 GMT",
        retry_after="Fri, 31 Dec 2100 23:59:59 GMT",
        why="either form is legal",
    ),
    _refusal(
        "429-nonsense",
        "429 Too Many Requests",
        _slow,
        "rate_limited",
        "Retry-After in words",
        JSON,
        "Retry-After: -1 or so",
        retry_after="-1 or so",
        why="reported as said; nobody can wait so long",
    ),
    _refusal(
        "429-bare",
        "429 Too Many Requests",
        b"slow down",
        "rate_limited",
        "no Retry-After",
        why="neither slow nor failed: asked to wait",
    ),
    _refusal(
        "307-elsewhere",
        "307 Temporary Redirect",
        b"",
        "not_a_stream",
        "to another origin",
        "Location: http://elsewhere.invalid/v1/chat/completions",
        why="never followed: the request carries a key",
    ),
    _refusal(
        "302-to-itself",
        "302 Found",
        b"",
        "not_a_stream",
        "to the same place, for ever",
        "Location: /v1/chat/completions",
        why="never followed",
    ),
    _refusal(
        "302-html",
        "302 Found",
        _page,
        "not_a_stream",
        "to a page for signing in",
        "Location: /login",
        HTML,
        why="never followed",
    ),
    _refusal("304", "304 Not Modified", b"", "not_a_stream", "no body", why="no reply to a POST"),
    _case(
        "500-unfinished",
        "500, and less of its body than its length",
        failed("http_5xx", "the status decides", status=500),
        raw(head("500 Internal Server Error", "Content-Length: 900") + b"sorry"),
    ),
    _case(
        "500-silent",
        "500, and a body that never comes, the connection open",
        failed("http_5xx", "the status decides", status=500),
        raw(head("500 Internal Server Error", "Content-Length: 900"), then="open"),
    ),
    Case(
        "500-endless",
        KIND,
        "500, and a body without an end",
        failed("http_5xx", "the status decides, in bounded memory", status=500),
        flood(head("500 Internal Server Error"), b"sorry "),
        endless=True,
    ),
    _case(
        "finish-then-error",
        "the finish reason and the usage, then an error event",
        failed(
            "error_event",
            "the server says that it failed",
            fragments=8,
            output_tokens=8,
            input_tokens=5,
            token_source="usage",
            finish_reason="stop",
        ),
        stream(ROLE, *T, FINISH, USAGE, event({"error": _boom}), DONE),
    ),
]
