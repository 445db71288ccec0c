"""Preflight and probe against endpoints of every temper: what is asked, found, negotiated, and said in one sentence."""

from __future__ import annotations

import json
import socket
from dataclasses import replace
from typing import Any

import pytest

from endpoints.attempts import Timeouts
from endpoints.dialects import CHAT, COMPLETIONS, RequestShape
from endpoints.findings import PreflightError, as_json
from endpoints.outcomes import Outcome
from endpoints.preflight import preflight
from endpoints.target import Target, at_root, beside, join, target_of
from endpoints.tls import context_of
from endpoints.transport import Call, Exchange
from profiles.errors import ProfileError
from profiles.loading import ResolvedArm
from profiles.models import Auth, Tls

KEY = "sk-a/secret+key=0123456789"
MODELS = b'{"object": "list", "data": [{"id": "m"}]}'


class Endpoint:
    """Answers of an OpenAI-style server; each test changes what is different about its own."""

    def __init__(self, wire: Any, **differs: Any) -> None:
        self.wire = wire
        self.models: bytes = wire.response("200 OK", MODELS, "Server: tiny")
        self.refuses: dict[str, str] = {}  # field -> body of the 400 that names it
        self.served: tuple[str, ...] = ("m",)
        self.reply: bytes = wire.whole
        self.routes = ("/v1/chat/completions", "/v1/completions")
        for name, value in differs.items():
            setattr(self, name, value)

    async def __call__(self, peer: Any, request: Any) -> bool:
        await peer.write(self.answer(request))
        return True

    def answer(self, request: Any) -> bytes:
        said: bytes
        if request.path == "/v1/models":
            return self.models
        if request.path not in self.routes:
            said = self.wire.response("404 Not Found", b'{"detail": "Not Found"}')
            return said
        for name, why in self.refuses.items():
            if name in request.json:
                said = self.wire.response("400 Bad Request", why.encode())
                return said
        if request.json["model"] not in self.served:
            body = {"error": {"message": f"The model `{request.json['model']}` does not exist.", "code": 404}}
            said = self.wire.response("404 Not Found", json.dumps(body).encode())
            return said
        return self.reply


def target(url: str, key: str | None = KEY, **shape: Any) -> Target:
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    asked: dict[str, Any] = {"api": CHAT, "model": "m", "max_tokens": 256, "sampling": {}, "extra_body": {}} | shape
    secrets = () if key is None else (key,)
    waits = Timeouts(2.0, 2.0, 2.0)
    return Target("default", url + "/v1", headers, RequestShape(**asked), context_of(Tls()), False, secrets, waits)


def _last_post(server: Any) -> Any:
    return [r for r in server.requests if r.method == "POST"][-1]


async def refused(at: Target) -> str:
    """The one sentence with which a preflight fails."""
    with pytest.raises(PreflightError) as caught:
        await preflight(at)
    said = str(caught.value)
    assert said.isprintable()
    assert "Traceback" not in said and not any(KEY[i : i + 8] in said for i in range(len(KEY) - 8))
    assert caught.value.__cause__ is None and caught.value.__suppress_context__
    return said


async def test_an_endpoint_that_is_ready(wire: Any) -> None:
    async with wire.serve(Endpoint(wire)) as server:
        found = await preflight(target(server.url))
    assert found.shape == target("").shape  # what a run will send, not the probe's few tokens
    assert (found.models, found.server, found.refusals) == (["m"], "tiny", [])
    assert found.round_trip_ms is not None and found.round_trip_ms > 0
    (asked,) = [r for r in server.requests if r.method == "POST"]
    assert (asked.json["model"], asked.json["max_tokens"], asked.json["stream"]) == ("m", 16, True)
    assert asked.json["stream_options"] == {"include_usage": True}
    assert {r.headers["authorization"] for r in server.requests} == {f"Bearer {KEY}"}
    assert [f.what for f in found.findings] == ["/models", "/chat/completions", "usage in the stream"]
    assert json.loads(json.dumps(as_json(found)))["findings"][2]["seen"] == "stated"


async def test_the_only_model_is_taken_when_none_is_named(wire: Any) -> None:
    async with wire.serve(Endpoint(wire)) as server:
        found = await preflight(target(server.url, model=""))
        assert (found.shape.model, _last_post(server).json["model"]) == ("m", "m")


@pytest.mark.parametrize(
    ("listed", "said"),
    [
        (b'{"data": [{"id": "m"}, {"id": "n"}]}', "it lists m, n"),
        (b'{"data": []}', "it lists none"),
        (b"what?", "it lists none"),
        (b'{"data": [{"id": "m\\u001b[2J"}, {"id": "n"}]}', "it lists m\\x1b[2J, n"),
    ],
)
async def test_no_model_named_and_not_one_to_take(wire: Any, listed: bytes, said: str) -> None:
    async with wire.serve(Endpoint(wire, models=wire.response("200 OK", listed))) as server:
        why = await refused(target(server.url, model=""))
    assert "no model was named" in why and "--model NAME" in why and said in why
    assert all(r.method == "GET" for r in server.requests)


async def test_a_long_list_of_models_comes_in_pieces(wire: Any) -> None:
    names = [f"org/model-{i}" for i in range(3000)] + ["m"]
    whole = wire.response("200 OK", json.dumps({"data": [{"id": n, "about": "x" * 50} for n in names]}).encode())
    async with wire.serve(Endpoint(wire, models=whole)) as server:
        found = await preflight(target(server.url))
    assert found.models == names


@pytest.mark.parametrize(
    "models", ["404 Not Found", "405 No", "429 Slow down", "500 Oh", "401 Not for you", "403 Nor you"]
)
async def test_without_a_list_of_models_the_request_itself_decides(wire: Any, models: str) -> None:
    async with wire.serve(Endpoint(wire, models=wire.response(models, b"no"))) as server:
        found = await preflight(target(server.url))
    assert found.models is None
    assert found.findings[0].effect == "the model's name cannot be checked"


async def test_a_served_model_that_is_not_listed_is_a_finding(wire: Any) -> None:
    async with wire.serve(Endpoint(wire, served=("alias",))) as server:
        found = await preflight(target(server.url, model="alias"))
    assert (found.findings[-1].what, "'alias' is not listed" in found.findings[-1].seen) == ("model", True)


# --- refusals


@pytest.mark.parametrize("status", ["401 Unauthorized", "403 Forbidden"])
async def test_a_key_that_is_refused(wire: Any, status: str) -> None:
    no = wire.response(status, f'{{"error": {{"message": "Incorrect API key: {KEY}"}}}}'.encode())
    async with wire.serve(Endpoint(wire, models=no, reply=no)) as server:
        assert "check the key" in await refused(target(server.url))
        assert "check the key" in await refused(target(server.url, model=""))
        by_header = replace(target(server.url), headers={"api-key": KEY})
        assert "check the key" in await refused(by_header)
    no = wire.response(status, b'{"error": "who are you?"}')
    async with wire.serve(Endpoint(wire, models=no, reply=no)) as server:
        assert "--key-env NAME" in await refused(target(server.url, key=None))


async def test_a_model_that_is_not_served(wire: Any) -> None:
    async with wire.serve(Endpoint(wire)) as server:
        why = await refused(target(server.url, model="other"))
        assert "does not serve model 'other'" in why and "it offers m: give --model NAME" in why
    other_way = wire.response("400 Bad Request", b'{"error": "Invalid model name passed in model=other"}')
    async with wire.serve(Endpoint(wire, served=("other",), reply=other_way)) as server:
        assert "does not serve model 'other'" in await refused(target(server.url, model="other"))


async def test_a_refusal_that_names_the_model_may_be_about_something_else(wire: Any) -> None:
    no = wire.response("400 Bad Request", b'{"error": "the context of model m is 8 tokens"}')
    async with wire.serve(Endpoint(wire, reply=no)) as server:
        why = await refused(target(server.url))
    assert "does not serve" not in why and "the context of model m is 8 tokens" in why


async def test_a_route_that_is_not_there(wire: Any) -> None:
    async with wire.serve(Endpoint(wire, routes=())) as server:
        why = await refused(target(server.url))
    assert f"{server.url}/v1/chat/completions does not exist" in why and "--api chat" in why
    async with wire.serve(Endpoint(wire, routes=("/v1/completions",))) as server:
        why = await refused(target(server.url))
    assert f"{server.url}/v1/completions does: give --api completions" in why


async def test_unreachable() -> None:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    assert "connection refused" in await refused(target(f"http://127.0.0.1:{port}"))
    assert "its host name is not known" in await refused(target("http://endsweep-test.invalid"))


async def test_a_server_that_is_no_http_or_never_answers(wire: Any) -> None:
    async def other(peer: Any, request: Any) -> bool:
        await peer.write(b"220 mail ready\r\n\r\n")
        return False

    async def silent(peer: Any, request: Any) -> bool:
        await peer.reader.read()
        return False

    async def closing(peer: Any, request: Any) -> bool:
        return False

    async with wire.serve(other) as server:
        assert "cannot reach" in await refused(target(server.url))
    async with wire.serve(closing) as server:
        assert "it closed the connection" in await refused(target(server.url))
    async with wire.serve(silent) as server:
        impatient = replace(target(server.url), timeouts=Timeouts(0.2, 0.2, 0.2))
        assert "no answer in time" in await refused(impatient)


async def test_a_request_that_is_never_answered(wire: Any) -> None:
    class Silent(Endpoint):
        async def __call__(self, peer: Any, request: Any) -> bool:
            if request.method == "POST":
                await peer.reader.read()
            return await super().__call__(peer, request)

    async with wire.serve(Silent(wire)) as server:
        impatient = replace(target(server.url), timeouts=Timeouts(2.0, 0.2, 0.2))
        assert "0.2 s" in await refused(impatient)


async def test_an_answer_that_is_no_stream(wire: Any) -> None:
    page = wire.response("200 OK", b"<html>Welcome</html>")
    async with wire.serve(Endpoint(wire, reply=page)) as server:
        assert "not an event stream" in await refused(target(server.url))


async def test_one_body_in_place_of_a_stream_has_to_be_declared(wire: Any) -> None:
    """A run without first tokens is another measurement: it is not slipped in."""
    choice = {"message": {"content": "hi"}, "finish_reason": "stop"}
    body = json.dumps({"choices": [choice], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}).encode()
    async with wire.serve(Endpoint(wire, reply=wire.response("200 OK", body))) as server:
        assert "put stream: false into its profile" in await refused(target(server.url))
        found = await preflight(target(server.url, stream=False))
    assert not found.shape.stream
    assert [f.seen for f in found.findings if f.what == "usage in the reply"] == ["stated"]
    assert "stream_options" not in _last_post(server).json and _last_post(server).json["stream"] is False


@pytest.mark.parametrize(
    ("section", "fields", "error"),
    [
        (
            "workload.sampling",
            {"sampling": {"temperature": 0}},
            {"message": "Unsupported value", "param": "temperature"},
        ),
        ("workload.sampling", {"sampling": {"seed": 1, "top_p": 1}}, {"detail": [{"loc": ["body", "seed"]}]}),
        ("extra_body", {"extra_body": {"ignore_eos": True}}, {"message": "Unknown field: ignore_eos"}),
    ],
)
async def test_a_refused_field_is_named(wire: Any, section: str, fields: dict[str, Any], error: Any) -> None:
    name = next(iter(next(iter(fields.values()))))
    said = json.dumps({"error": error}) if "message" in error else json.dumps(error)
    async with wire.serve(Endpoint(wire, refuses={name: said})) as server:
        why = await refused(target(server.url, **fields))
    assert f"refuses the field {name} of {section}" in why and "leave it out" in why


async def test_secrets_in_a_url_that_an_error_shows_are_taken_out(wire: Any) -> None:
    async def other(peer: Any, request: Any) -> bool:
        await peer.write(b"220 mail ready\r\n\r\n")
        return False

    async with wire.serve(other) as server:
        said = await refused(replace(target(server.url), url=f"{server.url}/v1?api_key={KEY}", secrets=()))
    assert "api_key=<redacted>" in said


# --- negotiation


async def test_stream_options_are_left_out_where_they_are_refused(wire: Any) -> None:
    no = '{"error": {"message": "Unrecognized request argument supplied: stream_options"}}'
    uncounted = wire.head + wire.chunked(wire.token("a", "stop"), wire.done)
    async with wire.serve(Endpoint(wire, refuses={"stream_options": no}, reply=uncounted)) as server:
        found = await preflight(target(server.url))
    assert (found.shape.include_usage, found.shape.max_tokens_field) == (False, "max_tokens")
    assert len(found.refusals) == 1 and "stream_options" in found.refusals[0]
    assert [f.seen for f in found.findings if f.what == "usage in the stream"] == ["not stated"]


@pytest.mark.parametrize(
    ("asked", "taken"), [("max_tokens", "max_completion_tokens"), ("max_completion_tokens", "max_tokens")]
)
@pytest.mark.parametrize("names_both", [True, False])
async def test_the_name_of_the_length_is_negotiated(wire: Any, asked: str, taken: str, names_both: bool) -> None:
    if names_both:
        message = f"Unsupported parameter: '{asked}' is not supported with this model. Use '{taken}' instead."
    else:
        message = "Unsupported parameter"
    no = json.dumps({"error": {"message": message, "param": asked, "code": "unsupported_parameter"}})
    async with wire.serve(Endpoint(wire, refuses={asked: no})) as server:
        found = await preflight(target(server.url, max_tokens_field=asked))
    assert found.shape.max_tokens_field == taken
    assert _last_post(server).json[taken] == 16 and asked not in _last_post(server).json


async def test_two_refusals_are_negotiated_one_after_the_other(wire: Any) -> None:
    strict = {
        "stream_options": '{"detail": [{"loc": ["body", "stream_options"], "msg": "Extra inputs are not permitted"}]}',
        "max_tokens": '{"detail": [{"loc": ["body", "max_tokens"], "msg": "Extra inputs are not permitted"}]}',
    }
    async with wire.serve(Endpoint(wire, refuses=strict)) as server:
        found = await preflight(target(server.url))
    assert (found.shape.include_usage, found.shape.max_tokens_field) == (False, "max_completion_tokens")
    assert len(found.refusals) == 2


async def test_negotiation_ends(wire: Any) -> None:
    both = dict.fromkeys(("max_tokens", "max_completion_tokens"), '{"error": "max_tokens? max_completion_tokens? no"}')
    async with wire.serve(Endpoint(wire, refuses=both)) as server:
        assert "max_tokens? max_completion_tokens? no" in await refused(target(server.url))
    assert sum(r.method == "POST" for r in server.requests) == 2


async def test_a_model_that_thinks_unseen_gets_the_length_of_the_run(wire: Any) -> None:
    """Sixteen tokens are gone before any text: that alone is no reason to refuse the endpoint."""

    class Thinker(Endpoint):
        def answer(self, request: Any) -> bytes:
            if request.method == "POST" and request.json["max_tokens"] < 100:
                cut: bytes = wire.head + wire.chunked(wire.token("", "length"), wire.done)
                return cut
            return super().answer(request)

    async with wire.serve(Thinker(wire)) as server:
        assert (await preflight(target(server.url))).shape.max_tokens == 256
        assert "no text came" in await refused(target(server.url, max_tokens=50))


# --- targets


def test_routes_are_joined_to_the_path() -> None:
    assert join("http://h/v1/", "/models") == "http://h/v1/models"
    assert join("http://h", "/models") == "http://h/models"
    assert beside("http://h/a/v1/", "/metrics") == "http://h/a/metrics"
    assert (
        beside("http://h/v1?api-version=1", "/metrics")
        == at_root("http://h/a/v1?b=1", "/metrics")
        == "http://h/metrics"
    )
    assert (
        join("https://h/openai?api-version=1", "/chat/completions") == "https://h/openai/chat/completions?api-version=1"
    )


def arm(**differs: Any) -> ResolvedArm:
    given: dict[str, Any] = dict.fromkeys(ResolvedArm.__dataclass_fields__)
    given |= {"name": "on", "url": "http://h/v1", "model": "m", "api": CHAT, "headers": {}, "extra_body": {}}
    return ResolvedArm(
        **(given | {"tls": Tls(), "proxy": "none", "stream": True, "max_tokens_field": "auto"} | differs)
    )


def test_a_target_holds_the_key_and_never_shows_it() -> None:
    asked = arm(auth=Auth(env="K"), headers={"X-Api-Key": "header-secret", "X-Tag": "plain"})
    made = target_of(asked, 256, {"temperature": 0}, Timeouts(), {"K": KEY})
    assert made.headers["Authorization"] == f"Bearer {KEY}"
    assert made.secrets == (KEY, "header-secret")
    assert made.scrub(f"{KEY} header-secret plain") == "<redacted> <redacted> plain"
    assert KEY not in repr(made) and "header-secret" not in repr(made)
    body = json.loads(made.shape.body([{"role": "user", "content": "x"}]))
    assert body["temperature"] == 0 and body["messages"] == [{"role": "user", "content": "x"}]
    with pytest.raises(ProfileError, match="it is not set"):
        target_of(asked, 256, {}, Timeouts(), {})


def test_bodies_of_both_dialects() -> None:
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    extra = {"logit_bias": {50256: -100}, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    chat = RequestShape(CHAT, "m", 9, {"temperature": None, "seed": 1}, extra)
    assert json.loads(chat.body(messages)) == {
        "model": "m",
        "messages": messages,
        "max_tokens": 9,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        "seed": 1,
        "logit_bias": {"50256": -100},
    }
    text = json.loads(RequestShape(COMPLETIONS, "m", 9, {}, {}, include_usage=False).body(messages))
    assert text == {"model": "m", "prompt": "s\n\nu", "max_tokens": 9, "stream": True}


async def test_a_targets_transport_scrubs(wire: Any) -> None:
    async with wire.serve(Endpoint(wire, reply=wire.response("400 No", f"no: {KEY}".encode()))) as server:
        transport = target(server.url).transport()
        exchange = Exchange()
        await transport.send(Call(b'{"model": "m"}', 1, 1, 0), exchange)
        await transport.close()
    assert (exchange.outcome, exchange.error) == (Outcome.HTTP_4XX, "HTTP 400: no: <redacted>")
