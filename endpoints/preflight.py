"""What every run begins with: the list of models and one small request, put anew where a field is refused."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, Protocol, TypeVar

import aiohttp
import orjson
from tenacity import AsyncRetrying, RetryCallState, retry_if_result

from endpoints.dialects import CHAT, COMPLETIONS, MAX_COMPLETION_TOKENS, MAX_TOKENS, ROUTES, RequestShape
from endpoints.findings import PreflightError, Probed, Say
from endpoints.look import looking, read
from endpoints.outcomes import Outcome, of_exception
from endpoints.pages import look_beside
from endpoints.target import Target, join
from endpoints.telemetry import find_metrics
from endpoints.transport import Call, Exchange
from profiles.errors import printable
from profiles.secrets import looks_secret

QUESTION = "In one short sentence, say what a lighthouse is for."
PROBE_TOKENS = 16
_MOST_MODELS = 4 * 1024 * 1024  # bytes
_CHANGES = 2  # how often a request is put anew in another shape
_TRIPS = 3
_MORE_TRIES, _MOST_WAIT_S = 3, 60.0
_UNSAID_S = 1.0  # the first wait when a rate limit does not say how long; doubled each time


class Limited(Protocol):
    """What a rate limit shows in."""

    @property
    def status(self) -> int | None: ...
    @property
    def pause_s(self) -> float | None: ...


L = TypeVar("L", bound=Limited)


async def preflight(target: Target, say: Say | None = None) -> Probed:
    """One look at the models and one real request. Raises PreflightError when the arm cannot be measured.

    `say` is told when a rate limit makes us wait.
    """
    found = Probed(target.shape, scrub=target.scrub)
    await first_look(target, found, say)
    await look_at_server(replace(target, shape=found.shape), found)
    return found


def seen(target: Target, found: Probed) -> Target:
    """The target as a look at it would have it: the requests' shape, where its counters are, what it admits."""
    shape = replace(found.shape, max_tokens=target.shape.max_tokens)
    return replace(target, shape=shape, metrics_url=found.metrics_url, synthetic=target.synthetic or found.synthetic)


async def look_at_server(target: Target, found: Probed) -> None:
    """Where the server's counters are; and of a server that has any, its version and settings. Never fatal."""
    found.metrics_url = await find_metrics(target)
    if found.metrics_url:
        async with looking(target) as (session, _):
            await look_beside(session, target, found)


async def first_look(
    target: Target, found: Probed, say: Say | None = None, *, undeclared: bool = False
) -> tuple[Target, Exchange]:
    """What `preflight` does; returns the target in the shape that was taken, and the exchange that was.

    `undeclared`: take an endpoint also in the other dialect, or without streams, although the profile does not say so.
    Raises PreflightError.
    """
    try:
        await _models(target, found)
        if not found.shape.model:
            found.shape = replace(found.shape, model=_only_model(target, found))
        return await _first_request(replace(target, shape=found.shape), found, say, undeclared)
    except PreflightError as exc:
        # Whatever a server said may hold the key, or what steers a terminal.
        raise PreflightError(printable(target.scrub(str(exc)))) from None


# -- rate limits ------------------------------------------------------------------------------------------------------


async def patiently(asking: Callable[[], Awaitable[L]], target: Target, found: Probed, say: Say | None) -> L:
    """The reply to a request, asked again after a wait where a rate limit refuses it.

    At most 3 times, and with no more than 60 s of waiting for all requests of one look.
    """

    async def once() -> L:
        return await asking()

    def enough(state: RetryCallState) -> bool:
        return state.attempt_number > _MORE_TRIES or found.waited_s + state.upcoming_sleep > _MOST_WAIT_S

    def announce(state: RetryCallState) -> None:
        found.waited_s += state.upcoming_sleep
        if say is not None:
            status = state.outcome.result().status if state.outcome else None
            say(f"{_at(target)} answers {status}, over its rate limit: trying again in {state.upcoming_sleep:.3g} s")

    retrying = AsyncRetrying(
        retry=retry_if_result(limited),
        wait=_wait,
        stop=enough,
        before_sleep=announce,
        retry_error_callback=lambda state: state.outcome.result() if state.outcome else None,
        sleep=asyncio.sleep,
    )
    return await retrying(once)


def limited(reply: Limited) -> bool:
    """Whether a rate limit refused it: 429, or 503 with a time to come back."""
    return reply.status == 429 or (reply.status == 503 and reply.pause_s is not None)


def _wait(state: RetryCallState) -> float:
    pause: float | None = state.outcome.result().pause_s if state.outcome else None
    return _UNSAID_S * 2 ** (state.attempt_number - 1) if pause is None else pause


# -- models -----------------------------------------------------------------------------------------------------------


async def _models(target: Target, found: Probed) -> None:
    url, seconds = join(target.url, "/models"), target.timeouts.connect
    pages = []
    try:
        async with looking(target, reuse=True) as (session, connector):
            for _ in range(_TRIPS):
                found.cost.pages += 1
                pages.append(await read(session, target, url, most=_MOST_MODELS, seconds=seconds))
            found.address = connector.address()
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as exc:
        raise PreflightError(_unreachable(target, exc)) from None
    last = pages[-1]
    found.round_trip_ms = min(page.seconds for page in pages) * 1e3
    found.server = target.scrub(last.headers.get("Server", "")) or None
    if last.status in (401, 403) and not found.shape.model:  # a key may be good for requests and not for the list
        raise PreflightError(_refused_key(target, last.status, None))
    found.models = _listed(last.body) if last.status == 200 else None
    seen = "not listed" if found.models is None else ", ".join(map(target.scrub, found.models[:10])) or "none"
    effect = "the model's name is checked against it" if found.models else "the model's name cannot be checked"
    found.add("/models", seen, effect)


def _listed(raw: bytes) -> list[str] | None:
    try:
        doc = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return None
    data = doc.get("data") if isinstance(doc, dict) else None
    if not isinstance(data, list):
        return None
    return [m["id"] for m in data if isinstance(m, dict) and isinstance(m.get("id"), str)]


def _only_model(target: Target, found: Probed) -> str:
    models = found.models or []
    if len(models) == 1:
        return models[0]
    listed = f" it lists {', '.join(models[:8])}" if models else ""
    raise PreflightError(f"no model was named for {_at(target)}: give --model NAME;{listed or ' it lists none'}")


# -- the first request ------------------------------------------------------------------------------------------------


async def _first_request(target: Target, found: Probed, say: Say | None, undeclared: bool) -> tuple[Target, Exchange]:
    """One small request as a run would send it, put again in another way where the endpoint refuses a field."""
    asked = target.shape

    async def asking(shape: RequestShape, tokens: int = PROBE_TOKENS) -> Exchange:
        return await patiently(lambda: _ask(replace(target, shape=shape), found, tokens), target, found, say)

    shape = asked
    exchange = await asking(shape)
    for _ in range(_CHANGES):
        changed = _negotiated(exchange, shape, asked)
        if changed is None:
            break
        found.refuse(exchange.error)
        shape = changed
        exchange = await asking(shape)
    if exchange.status in (404, 405):
        there = replace(shape, api=COMPLETIONS if shape.api == CHAT else CHAT, max_tokens_field=MAX_TOKENS)
        other = await asking(there)
        if other.outcome is Outcome.OK:
            if not undeclared:
                raise PreflightError(_other_route(replace(target, shape=shape), exchange, there.api))
            found.refuse(exchange.error)
            exchange, shape = other, there
    if shape.stream and _does_not_stream(exchange):
        whole = await asking(replace(shape, stream=False))
        if whole.outcome is Outcome.OK:
            if not undeclared:
                raise PreflightError(_undeclared(target))
            exchange, shape = whole, replace(shape, stream=False)
    if exchange.outcome is Outcome.EMPTY and exchange.finish_reason == "length":
        exchange = await asking(shape, shape.max_tokens)  # thought unseen until it was cut
    target = replace(target, shape=shape)
    if exchange.outcome is not Outcome.OK:
        raise PreflightError(_explain(target, found, exchange))
    found.shape = shape
    _describe(found, exchange)
    return target, exchange


async def _ask(target: Target, found: Probed, tokens: int) -> Exchange:
    shape = replace(target.shape, max_tokens=min(tokens, target.shape.max_tokens))
    body = shape.body([{"role": "user", "content": QUESTION}])
    transport = replace(target, shape=shape).transport()
    exchange = Exchange(issued_ns=time.monotonic_ns())
    try:
        async with asyncio.timeout(target.timeouts.first_byte):
            await transport.send(Call(body, shape.max_tokens, len(QUESTION), 0), exchange)
    except TimeoutError:
        exchange.outcome, exchange.error = Outcome.FIRST_BYTE_TIMEOUT, f"no answer in {target.timeouts.first_byte:g} s"
    finally:
        await transport.close()
    found.cost.requests += 1
    if exchange.outcome is Outcome.OK:
        found.cost.input_tokens += exchange.input_tokens or len(QUESTION) // 4
        found.cost.output_tokens += exchange.output_tokens or len(exchange.chunk_ns)
    return exchange


def _negotiated(exchange: Exchange, shape: RequestShape, asked: RequestShape) -> RequestShape | None:
    """The shape to try next after a refusal that names a field we can put otherwise; None when there is none.

    Each field is changed once from how it was `asked`.
    """
    if exchange.status not in (400, 422) or not exchange.error:
        return None
    said = exchange.error
    if "continuous_usage_stats" in said or "return_token_ids" in said:
        return None  # asked for by name
    if ("stream_options" in said or "include_usage" in said) and shape.include_usage and shape.stream:
        return replace(shape, include_usage=False)
    if shape.api == CHAT and shape.max_tokens_field == asked.max_tokens_field and shape.max_tokens_field in said:
        return replace(shape, max_tokens_field=other_length(shape))
    return None


def other_length(shape: RequestShape) -> str:
    """The other name of the field that bounds the reply."""
    return MAX_COMPLETION_TOKENS if shape.max_tokens_field == MAX_TOKENS else MAX_TOKENS


def _does_not_stream(exchange: Exchange) -> bool:
    """Whether it may be that only a stream was too much: one body came in its place, or a refusal names streaming."""
    if exchange.outcome is Outcome.NOT_A_STREAM:
        return exchange.status == 200
    return exchange.status in (400, 404, 422, 501) and bool(re.search(r"(?i)\bstream(ing|ed)?\b", exchange.error or ""))


def _describe(found: Probed, exchange: Exchange) -> None:
    shape, usage = found.shape, exchange.output_tokens is not None
    count = f"{exchange.output_tokens or 'no count of'} tokens"
    came = f"{len(exchange.chunk_ns)} fragments, {count}" if shape.stream else f"one body, {count}"
    found.add(ROUTES[shape.api], came, f"--api {shape.api} is used")
    found.add(
        "usage in the stream" if shape.stream else "usage in the reply",
        "stated" if usage else "not stated",
        "tokens are counted by the server" if usage else "each fragment counts as one token (estimated_tokens)",
    )
    if found.models and shape.model not in found.models:
        found.add(
            "model",
            f"{shape.model!r} is not listed, and was served as {exchange.model!r}",
            "make sure that this is the model you mean",
        )
    if found.waited_s:
        found.add("rate limit", f"refused at first; waited {found.waited_s:.3g} s", "a sweep pauses when it is refused")


# -- what went wrong, in one sentence ---------------------------------------------------------------------------------


def _explain(target: Target, found: Probed, exchange: Exchange) -> str:
    status, said = exchange.status, exchange.error or str(exchange.outcome)
    model = target.shape.model
    if status in (401, 403):
        return _refused_key(target, status, said)
    if status in (400, 422) and (field := _refused_field(said, target.shape)):
        return f"{_at(target)} refuses {field} ({said}): leave it out"
    # A refusal that names the model may be about its parameters or its context; not so where it is not listed.
    unlisted = status in (400, 422) and model in said and model not in (found.models or ())
    if unlisted or (status == 404 and "model" in said.lower()):
        offers = ", ".join(found.models[:8]) if found.models else "no list of models"
        return f"{_at(target)} does not serve model {model!r} ({said}); it offers {offers}: give --model NAME"
    if status in (404, 405):
        return f"{target.route} does not exist ({said}): is the URL right, and does it serve --api {target.shape.api}?"
    if limited(exchange):
        waited = f"after {found.waited_s:.3g} s of waiting" if found.waited_s else "already"
        long = exchange.pause_s is not None and found.waited_s + exchange.pause_s > _MOST_WAIT_S
        remedy = f"try again in {exchange.pause_s:.0f} s" if long else "wait"
        return f"{_at(target)} is over its rate limit {waited} ({said}): {remedy}, or ask for a higher limit"
    if status is None:
        return f"cannot reach {_at(target)}: {said}; is the server running, and is the URL right?"
    return f"{_at(target)} does not answer a small {'streamed ' if target.shape.stream else ''}request: {said}"


def _refused_field(said: str, shape: RequestShape) -> str | None:
    """The field of the request that a refusal names, and where it comes from."""
    said = re.sub(_word(shape.model), "", said)  # which may be named like a field
    if shape.chunk_tokens != "none" and re.search("continuous_usage_stats|return_token_ids", said):
        return f"chunk_tokens: {shape.chunk_tokens}"
    sections: dict[str, Any] = {"workload.sampling": shape.sampling, "extra_body": shape.extra_body}
    for section, fields in sections.items():
        for name in fields:
            if re.search(_word(name), said):
                return f"the field {name} of {section}"
    return None


def _word(word: str) -> str:
    return rf"(?<!\w){re.escape(word)}(?!\w)"


def _other_route(target: Target, exchange: Exchange, other: str) -> str:
    return f"{target.route} does not exist ({exchange.error}), and {target.route_of(other)} does: give --api {other}"


def _undeclared(target: Target) -> str:
    return (
        f"{_at(target)} answers in one body where a stream was asked for: put stream: false into its profile "
        "(`endsweep probe` prints one), and only whole replies are timed"
    )


def _refused_key(target: Target, status: int, said: str | None) -> str:
    why = f" ({said})" if said else ""
    known = any(map(looks_secret, target.headers))
    remedy = "check the key" if known else "name the key with --key-env NAME or --key-file FILE"
    return f"{_at(target)} refuses the request with {status}{why}: {remedy}"


def _unreachable(target: Target, exc: BaseException) -> str:
    outcome = of_exception(exc, reply_began=False)
    reason = {
        Outcome.REFUSED: "connection refused",
        Outcome.DNS: "its host name is not known",
        Outcome.TLS: f"TLS failed ({exc})",
        Outcome.CONNECT_TIMEOUT: "no connection in time",
        Outcome.FIRST_BYTE_TIMEOUT: "no answer in time",
        Outcome.RESET: "it closed the connection",
    }.get(outcome, f"{type(exc).__name__}: {exc}")
    return f"cannot reach {_at(target)}: {reason}; is the server running, and is the URL right?"


def _at(target: Target) -> str:
    return f"{target.url}" + ("" if target.name == "default" else f" (arm {target.name})")
