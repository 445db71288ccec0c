"""The long look at an endpoint: what it accepts, what it ignores, what it sends, and the profile that follows from it.

At most `MOST_REQUESTS` requests of `MOST_TOKENS` output tokens, beside those that a rate limit refuses, and some pages.
Each function adds its findings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from aiohttp.client import ClientSession

from endpoints.dialects import CHAT, COMPLETIONS, MAX_TOKENS, ROUTES, RequestShape, usage_of
from endpoints.findings import PreflightError, Probed, Say, as_json
from endpoints.look import Look, ask, looking
from endpoints.pages import look_beside
from endpoints.preflight import PROBE_TOKENS, QUESTION, first_look, limited, other_length, patiently, preflight
from endpoints.target import Target
from endpoints.transport import Exchange
from profiles.loading import ResolvedArm, Sweep
from profiles.merging import displace, merge
from profiles.variables import escape

MOST_REQUESTS = 12
MOST_TOKENS = 32
_FEW_TOKENS = 8
_ONE_WORD = "Answer with the one word yes, and nothing else."
_SERVER_HEADERS = (
    "server",
    "via",
    "x-powered-by",
    "x-served-by",
    "cf-ray",
    "x-azure-ref",
    "apim-request-id",
    "x-ms-region",
)
_TEXT_FIELDS = ("content", "reasoning", "reasoning_content", "reasoning_details")


@dataclass(slots=True)
class _Probing:
    """A probe under way: `shape` is what works so far, `looks` are the requests made."""

    target: Target
    found: Probed
    session: ClientSession
    shape: RequestShape
    say: Say | None
    looks: list[Look] = field(default_factory=list)

    async def ask(self, shape: RequestShape, tokens: int, question: str = QUESTION, **extra: Any) -> Look | None:
        """One small request with `extra` fields in its body; None when the probe has made all that it may."""
        shape = replace(shape, max_tokens=tokens, extra_body={**shape.extra_body, **extra})

        async def asking() -> Look:
            self.found.cost.requests += 1
            return await ask(self.session, self.target, shape, question)

        if self.found.cost.requests >= MOST_REQUESTS:
            return None
        look = await patiently(asking, self.target, self.found, self.say)
        if look.ok:
            stated = look.reply.usage.input_tokens if look.reply.usage else None
            self.found.cost.input_tokens += stated or len(question) // 4
            self.found.cost.output_tokens += look.tokens
        self.looks.append(look)
        return look

    def turned_down(self, what: str, look: Look | None, effect: str) -> bool:
        """Whether the request came to nothing; if so that is the finding about `what`."""
        if look is not None and look.ok:
            return False
        if look is None:
            self.found.add(what, f"not looked at: the probe's {MOST_REQUESTS} requests are made", "unknown")
        elif look.refused:
            self.found.refuse(look.error)
            self.found.add(what, f"refused ({look.error})", effect)
        else:
            why = "over the rate limit" if limited(look) else look.error or str(look.outcome)
            self.found.add(what, f"no answer to tell by ({why})", "unknown")
        return True


async def probe(target: Target, say: Say | None = None) -> Probed:
    """What `preflight` does, and all that is worth knowing beside it. Raises PreflightError as `preflight` does.

    `say` is told when a rate limit makes us wait.
    """
    found = Probed(target.shape, scrub=target.scrub)
    asked = target.shape
    target, first = await first_look(target, found, say, undeclared=True)
    async with looking(target) as (session, _):
        p = _Probing(target, found, session, target.shape, say)
        _streaming(p, first, asked.stream)
        await _other_dialect(p)
        await _length_names(p, first)
        await _length(p)
        await _sampling(p)
        await _tokens_per_chunk(p)
        _reply_fields(p)
        _rate_limit_headers(p)
        await look_beside(session, target, found)
        _connection(p)
    found.shape = p.shape
    if p.shape.max_tokens_field != asked.max_tokens_field:
        found.profile["max_tokens_field"] = p.shape.max_tokens_field
    return found


# -- what requests may say --------------------------------------------------------------------------------------------


def _streaming(p: _Probing, first: Exchange, asked: bool) -> None:
    if not p.shape.stream:
        seen = "refused or ignored: the reply is one body" if asked else "not asked for, by the profile"
        p.found.add("stream", seen, "only whole replies can be timed")
        if asked:
            p.found.profile["stream"] = False
        return
    p.found.add("stream", "a stream of events", "time to first token and pace can be measured")
    if not p.shape.include_usage:
        seen, effect = "refused", "it is left out"
    elif first.output_tokens is None:
        seen, effect = "ignored", "tokens have to be estimated from fragments"
    else:
        seen, effect = "accepted", "it is sent with every request"
    p.found.add("stream_options.include_usage", seen, effect)


async def _other_dialect(p: _Probing) -> None:
    other = COMPLETIONS if p.shape.api == CHAT else CHAT
    look = await p.ask(replace(p.shape, api=other, max_tokens_field=MAX_TOKENS), PROBE_TOKENS)
    works = look is not None and look.ok
    seen = "works" if works else "not looked at" if look is None else (look.error or str(look.outcome))
    p.found.add(ROUTES[other], seen, f"--api {other} {'can' if works else 'cannot'} be used")


async def _length_names(p: _Probing, first: Exchange) -> None:
    """Both names of the field that bounds the reply: known, and kept to?"""
    got = first.output_tokens or len(first.chunk_ns)
    kept = got <= PROBE_TOKENS
    name, other = p.shape.max_tokens_field, other_length(p.shape)
    p.found.add(name, _bound(PROBE_TOKENS, got), "it is used" if kept else "it does not bound the reply")
    if p.shape.api == CHAT:
        look = await p.ask(replace(p.shape, max_tokens_field=other), _FEW_TOKENS)
        if not p.turned_down(other, look, f"{name} is used") and look is not None:
            better = not kept and look.tokens <= _FEW_TOKENS
            effect = "it does not bound the reply" if look.tokens > _FEW_TOKENS else f"could be used in place of {name}"
            effect = "it is used, since the other is ignored" if better else effect
            p.found.add(other, _bound(_FEW_TOKENS, look.tokens), effect)
            if better:
                p.shape = replace(p.shape, max_tokens_field=other)


def _bound(asked: int, got: int) -> str:
    return f"accepted: at most {asked} tokens asked for, {got} came" + ("" if got <= asked else ", so it is ignored")


async def _length(p: _Probing) -> None:
    """Whether replies are as long as was asked, and which field makes them so."""
    plain = replace(
        p.shape, extra_body={k: v for k, v in p.shape.extra_body.items() if k not in ("ignore_eos", "min_tokens")}
    )
    look = await p.ask(plain, MOST_TOKENS, _ONE_WORD)
    if p.turned_down("length of replies", look, "unknown") or look is None:
        return
    short = look.tokens < MOST_TOKENS
    effect = "replies end before max_tokens: points may be osl_mismatch" if short else "lengths are as asked"
    p.found.add("length of replies", _stopped(look), effect)
    fixed = await _fixes_length(p, plain, "ignore_eos", True, short)
    if fixed:
        p.found.profile["extra_body"] = {"ignore_eos": True}
    await _fixes_length(p, plain, "min_tokens", MOST_TOKENS, short)


async def _fixes_length(p: _Probing, plain: RequestShape, name: str, value: Any, short: bool) -> bool:
    look = await p.ask(plain, MOST_TOKENS, _ONE_WORD, **{name: value})
    if p.turned_down(name, look, "it cannot be sent") or look is None:
        return False
    full = look.tokens >= MOST_TOKENS
    if not short:
        p.found.add(name, f"accepted: {_stopped(look)}", "cannot be told: replies are as long as asked without it")
        return False
    seen = f"accepted and {'honoured' if full else 'ignored'}: {_stopped(look)}"
    given = f"{name}: {'true' if value is True else 'N'}"
    p.found.add(name, seen, f"extra_body: {{{given}}} fixes the length" if full else "it does not fix the length")
    return full


def _stopped(look: Look) -> str:
    """What came of a length that was asked for; the verdict `osl_mismatch` speaks in the same words."""
    reason = look.reply.finish_reason or "none"
    if look.reply.usage is None:
        reason += ", counted in fragments"
    if look.tokens == look.asked:
        return f"asked for {look.asked} tokens and got as many (finish reason {reason})"
    went = "it stopped at" if look.tokens < look.asked else "it went on to"
    return f"asked for {look.asked} tokens and {went} {look.tokens} (finish reason {reason})"


async def _sampling(p: _Probing) -> None:
    """Temperature and seed together, and one by one only where that is refused."""
    fields: dict[str, Any] = {"temperature": 0, "seed": 1}
    look = await p.ask(p.shape, _FEW_TOKENS, **fields)
    looks = dict.fromkeys(fields, look)
    if look is not None and look.refused:
        looks = {name: await p.ask(p.shape, _FEW_TOKENS, **{name: value}) for name, value in fields.items()}
    for name, own in looks.items():
        if not p.turned_down(name, own, f"workload.sampling.{name} cannot be sent"):
            p.found.add(name, "accepted", f"workload.sampling.{name} can be sent")


async def _tokens_per_chunk(p: _Probing) -> None:
    """Whether the server can tell how many tokens each fragment holds."""
    if not p.shape.stream:
        return
    asked: dict[str, Any] = {"return_token_ids": True}
    if p.shape.include_usage:
        asked["stream_options"] = {"include_usage": True, "continuous_usage_stats": True}
    names = {"stream_options": "stream_options.continuous_usage_stats", "return_token_ids": "return_token_ids"}
    look = await p.ask(p.shape, PROBE_TOKENS, **asked)
    looks = dict.fromkeys(asked, look)
    if look is not None and look.refused and len(asked) > 1:
        looks = {name: await p.ask(p.shape, PROBE_TOKENS, **{name: value}) for name, value in asked.items()}
    for key, own in looks.items():
        if p.turned_down(names[key], own, "it cannot be sent") or own is None:
            continue
        told = _has_ids(own) if key == "return_token_ids" else _has_running_usage(own)
        p.found.add(
            names[key],
            "accepted, and tells the tokens of each fragment" if told else "accepted, and ignored",
            "in extra_body it shows bursts for what they are" if told else "fragments are taken as they come",
        )


def _has_running_usage(look: Look) -> bool:
    return sum(bool(doc.get("choices")) and usage_of(doc.get("usage")) is not None for doc in look.docs) > 1


def _has_ids(look: Look) -> bool:
    return any(isinstance(choice.get("token_ids"), list) for doc in look.docs for choice in _choices(doc))


# -- what replies say -------------------------------------------------------------------------------------------------


def _reply_fields(p: _Probing) -> None:
    docs = [doc for look in p.looks if look.ok for doc in look.docs]
    parts = [
        part for doc in docs for choice in _choices(doc) for part in (_map(choice, "delta"), _map(choice, "message"))
    ]
    texts = [name for name in _TEXT_FIELDS if any(part.get(name) for part in parts)]
    texts += ["text"] if any(choice.get("text") for doc in docs for choice in _choices(doc)) else []
    reasons = any(name.startswith("reasoning") for name in texts)
    effect = "reasoning counts as output; the first visible text is a column of its own" if reasons else "read as text"
    p.found.add("text fields", ", ".join(texts) or "none", effect)
    usages = [usage for doc in docs if isinstance(usage := doc.get("usage"), dict)]
    details = {
        f"{kind}.{name}"
        for usage in usages
        for kind in ("prompt_tokens_details", "completion_tokens_details")
        for name, count in _map(usage, kind).items()
        if name in ("cached_tokens", "reasoning_tokens") and type(count) is int
    }
    cached = any(name.endswith("cached_tokens") for name in details)
    effect = "cached input is watched" if cached else "cached input cannot be seen from outside"
    p.found.add("usage details", ", ".join(sorted(details)) or "none", effect)
    if any("prompt_filter_results" in doc or "content_filter_results" in str(_choices(doc)) for doc in docs):
        p.found.add("content filter", "its results come with the reply", "they hold no text, and start no clock")


def _choices(doc: Mapping[str, Any]) -> list[dict[str, Any]]:
    choices = doc.get("choices")
    return [choice for choice in choices if isinstance(choice, dict)] if isinstance(choices, list) else []


def _map(doc: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = doc.get(name)
    return value if isinstance(value, Mapping) else {}


def _rate_limit_headers(p: _Probing) -> None:
    said: dict[str, str] = {}
    for look in p.looks:
        said |= {
            n.lower(): v for n, v in look.headers.items() if "ratelimit" in n.lower() or n.lower() == "retry-after"
        }
    effect = "a sweep pauses when they say that nothing remains" if said else "a quota shows only when it refuses"
    p.found.add("rate-limit headers", "; ".join(f"{n}: {v}" for n, v in sorted(said.items())[:12]) or "none", effect)


# -- the way there ----------------------------------------------------------------------------------------------------


def _connection(p: _Probing) -> None:
    first = p.looks[0].headers if p.looks else {}
    said = [f"{name}: {first[name]}" for name in _SERVER_HEADERS if first.get(name)]
    effect = "something stands between us and the server" if first.get("via") else "not used by a run"
    p.found.add("server headers", "; ".join(said) or "none", effect)
    found = p.found
    if found.address is not None:
        version = "IPv6" if found.address.startswith("[") else "IPv4"
        through = ", the proxy" if p.target.proxy else ""
        trip = f", {found.round_trip_ms:.1f} ms there and back" if found.round_trip_ms is not None else ""
        found.add("address", f"{found.address} ({version}{through}){trip}", "the way is a part of every ttft")


# -- the profile ------------------------------------------------------------------------------------------------------


def profile_of(sweep: Sweep, arm: ResolvedArm, found: Probed) -> dict[str, Any]:
    """The sweep document with which a run uses what was found; secrets stay redacted, `${NAME}` and `auth` as named."""
    endpoint: Mapping[str, Any] = sweep.stored.get("endpoint") or {}
    own: Mapping[str, Any] = (sweep.stored.get("arms") or {}).get(arm.name) or {}
    asked = merge(displace(endpoint, own), own)
    first = {
        "url": asked["url"] if "$" in asked["url"] else escape(arm.url),
        "model": asked.get("model") or escape(found.shape.model),
        "api": found.shape.api,
    }
    rest = {name: value for name, value in asked.items() if name not in (*first, "speculation")}
    for name in ("auth", "metrics_url"):  # not inherited on another origin
        if not getattr(arm, name):
            rest.pop(name, None)
    for name in ("headers", "extra_body"):
        rest[name] = {field: value for field, value in rest.get(name, {}).items() if field in getattr(arm, name)}
    learnt = {name: escape(value) if isinstance(value, str) else value for name, value in found.profile.items()}
    if "metrics_url" in rest:
        learnt.pop("metrics_url", None)
    profile = merge({**first, **rest}, learnt)
    return {"endpoint": {name: value for name, value in profile.items() if value != {}}}


__all__ = ["MOST_REQUESTS", "MOST_TOKENS", "PreflightError", "Probed", "as_json", "preflight", "probe", "profile_of"]
