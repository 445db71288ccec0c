"""A handful of cheap requests: is the endpoint there, does it know the model, and what does it accept and send?"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field, replace
from typing import Any

import aiohttp
import orjson

from endpoints.dialects import CHAT, COMPLETIONS, ROUTES, RequestShape
from endpoints.http import read_some
from endpoints.outcomes import Outcome, of_exception
from endpoints.target import Target, join
from endpoints.transport import Call, Exchange
from profiles.errors import printable
from profiles.secrets import looks_secret

_QUESTION = "In one short sentence, say what a lighthouse is for."
_PROBE_TOKENS = 16
_MOST_BODY = 4 * 1024 * 1024
_TRIES = 3


class PreflightError(Exception):
    """The endpoint cannot be measured as asked; the text is one sentence with the remedy."""


@dataclass(frozen=True, slots=True)
class Finding:
    """`what` was looked at, what was `seen`, and its `effect` on a run."""

    what: str
    seen: str
    effect: str


@dataclass(slots=True)
class Probed:
    """What a probe found. `shape`: how requests must be put for this endpoint; `models`: None where none are listed."""

    shape: RequestShape
    models: list[str] | None = None
    round_trip_ms: float | None = None
    server: str | None = None
    findings: list[Finding] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)

    def add(self, what: str, seen: str, effect: str) -> None:
        self.findings.append(Finding(what, seen, effect))


async def preflight(target: Target) -> Probed:
    """One look at the models and one real request. Raises PreflightError when the arm cannot be measured."""
    try:
        return await _preflight(target)
    except PreflightError as exc:
        # Whatever a server said may hold the key, or what steers a terminal.
        raise PreflightError(printable(target.scrub(str(exc)))) from None


async def _preflight(target: Target) -> Probed:
    found = Probed(target.shape)
    await _models(target, found)
    if not found.shape.model:
        found.shape = replace(found.shape, model=_only_model(target, found))
    await _first_request(replace(target, shape=found.shape), found)
    return found


async def probe(target: Target) -> Probed:
    """What `preflight` does, and whether the other dialect works too. Raises PreflightError as `preflight` does."""
    found = await preflight(target)
    other = COMPLETIONS if target.shape.api == CHAT else CHAT
    exchange = await _ask(replace(target, shape=replace(found.shape, api=other, max_tokens_field="max_tokens")))
    seen = "works" if exchange.outcome is Outcome.OK else (exchange.error or str(exchange.outcome))
    found.add(ROUTES[other], seen, f"--api {other} {'can' if exchange.outcome is Outcome.OK else 'cannot'} be used")
    return found


async def _models(target: Target, found: Probed) -> None:
    timeout = aiohttp.ClientTimeout(total=target.timeouts.connect, sock_connect=target.timeouts.connect)
    url = join(target.url, "/models")
    trips = []
    try:
        options: dict[str, Any] = {"timeout": timeout, "headers": dict(target.headers), "trust_env": target.proxy}
        async with aiohttp.ClientSession(**options) as session:
            for _ in range(3):
                began = time.monotonic()
                async with session.get(url, allow_redirects=False, ssl=target.tls) as response:
                    raw = await read_some(response.content, _MOST_BODY)
                    trips.append((time.monotonic() - began) * 1e3)
                    status, found.server = response.status, target.scrub(response.headers.get("Server", "")) or None
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as exc:
        raise PreflightError(_unreachable(target, exc)) from None
    found.round_trip_ms = min(trips)
    if status in (401, 403) and not found.shape.model:  # a key may be good for requests and not for the list
        raise PreflightError(_refused_key(target, status, None))
    found.models = _listed(raw) if status == 200 else None
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


async def _first_request(target: Target, found: Probed) -> None:
    """One small streamed request, put again in another way where the endpoint refuses a field."""
    asked = target.shape
    for _ in range(_TRIES):
        exchange = await _ask(target)
        changed = _negotiated(exchange, target.shape, asked)
        if changed is None:
            break
        found.refusals.append(exchange.error or "")
        target = replace(target, shape=changed)
    if exchange.outcome is Outcome.EMPTY and exchange.finish_reason == "length":
        exchange = await _ask(target, target.shape.max_tokens)  # thought unseen until it was cut
    if exchange.outcome is not Outcome.OK:
        raise PreflightError(_explain(target, found, exchange))
    found.shape = target.shape
    seen = f"{len(exchange.chunk_ns)} fragments, {exchange.output_tokens or 'no count of'} tokens"
    found.add(ROUTES[target.shape.api], seen, f"--api {target.shape.api} is used")
    usage = exchange.output_tokens is not None
    found.add(
        "usage in the stream",
        "stated" if usage else "not stated",
        "tokens are counted by the server" if usage else "each fragment counts as one token (estimated_tokens)",
    )
    if found.models and target.shape.model not in found.models:
        found.add(
            "model",
            f"{target.shape.model!r} is not listed, and was served as {exchange.model!r}",
            "make sure that this is the model you mean",
        )


async def _ask(target: Target, tokens: int = _PROBE_TOKENS) -> Exchange:
    shape = replace(target.shape, max_tokens=min(tokens, target.shape.max_tokens))
    body = shape.body([{"role": "user", "content": _QUESTION}])
    transport = replace(target, shape=shape).transport()
    exchange = Exchange(issued_ns=time.monotonic_ns())
    try:
        async with asyncio.timeout(target.timeouts.first_byte):
            await transport.send(Call(body, shape.max_tokens, len(_QUESTION), 0), exchange)
    except TimeoutError:
        exchange.outcome, exchange.error = Outcome.FIRST_BYTE_TIMEOUT, f"no answer in {target.timeouts.first_byte:g} s"
    finally:
        await transport.close()
    return exchange


def _negotiated(exchange: Exchange, shape: RequestShape, asked: RequestShape) -> RequestShape | None:
    """The shape to try next after a refusal that names a field we can put otherwise; None when there is none.

    Each field is changed once from how it was `asked`.
    """
    if exchange.status not in (400, 422) or not exchange.error:
        return None
    said = exchange.error
    if "stream_options" in said and shape.include_usage:
        return replace(shape, include_usage=False)
    if shape.api == CHAT and shape.max_tokens_field == asked.max_tokens_field and shape.max_tokens_field in said:
        other = "max_completion_tokens" if shape.max_tokens_field == "max_tokens" else "max_tokens"
        return replace(shape, max_tokens_field=other)
    return None


def _explain(target: Target, found: Probed, exchange: Exchange) -> str:
    status, said = exchange.status, exchange.error or str(exchange.outcome)
    model = target.shape.model
    if status in (401, 403):
        return _refused_key(target, status, said)
    # A refusal that names the model may be about its parameters or its context; not so where it is not listed.
    unlisted = status in (400, 422) and model in said and model not in (found.models or ())
    if unlisted or (status == 404 and "model" in said.lower()):
        offers = ", ".join(found.models[:8]) if found.models else "no list of models"
        return f"{_at(target)} does not serve model {model!r} ({said}); it offers {offers}: give --model NAME"
    if status in (404, 405):
        return f"{target.route} does not exist ({said}): is the URL right, and does it serve --api {target.shape.api}?"
    if exchange.outcome is Outcome.RATE_LIMITED:
        return f"{_at(target)} is over its rate limit already ({said}): wait, or ask for a higher limit"
    if status is None:
        return f"cannot reach {_at(target)}: {said}; is the server running, and is the URL right?"
    return f"{_at(target)} does not answer a small streamed request: {said}"


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


def as_json(found: Probed) -> dict[str, Any]:
    """Findings as programs read them."""
    return {
        "findings": [{"what": f.what, "seen": f.seen, "effect": f.effect} for f in found.findings],
        "refusals": found.refusals,
        "round_trip_ms": found.round_trip_ms,
    }
