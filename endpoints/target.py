"""Where requests of one arm go and what they carry: URL, headers, secrets, and the shape of every request."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from endpoints.attempts import Attempts, Bounds, ReusePolicy, Timeouts
from endpoints.dialects import MAX_TOKENS, ROUTES, RequestShape
from endpoints.fast import FastTransport
from endpoints.http import HttpTransport
from endpoints.tls import context_of
from endpoints.tokens import counter_of
from profiles.hosts import origin
from profiles.loading import ResolvedArm
from profiles.models import Limits, Tls
from profiles.secrets import read_key, redact, redact_urls, secrets_in

_SHORTEST_SECRET = 8  # characters; a shorter value of the environment would be found by chance


@dataclass(frozen=True, slots=True)
class Target:
    """One arm as the client sees it. `headers` hold the key, so a target is never printed or stored."""

    name: str
    url: str
    headers: Mapping[str, str]
    shape: RequestShape
    tls: ssl.SSLContext
    proxy: bool  # go through the environment's proxy
    secrets: tuple[str, ...]
    timeouts: Timeouts
    metrics_url: tuple[str, ...] = ()  # pages of metrics, one a replica
    metrics: Mapping[str, str] = field(default_factory=dict)  # the profile's own names, quantity -> series
    tokenizer: str | None = None  # the path of one that counts what the server does not tell
    synthetic: str | None = None  # how it is known that the server accepts drafts by a rule
    trust: Tls = field(default_factory=Tls)  # what `tls` was made from

    def __reduce__(self) -> tuple[Any, ...]:
        """For worker processes: an SSL context cannot travel, so it is made anew at the other end."""
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "tls"}
        return _unpickled, (values,)

    @property
    def route(self) -> str:
        """Where requests are POSTed."""
        return self.route_of(self.shape.api)

    def route_of(self, api: str) -> str:
        """Where requests of a dialect are POSTed."""
        return join(self.url, ROUTES[api])

    def towards(self, url: str) -> Target:
        """The target for a page of its own at `url`; on another origin it brings nothing that is meant for the
        endpoint: no header, no key, no certificate."""
        if origin(url) == origin(self.url):
            return self
        return replace(self, headers={}, tls=ssl.create_default_context())

    def scrub(self, text: str) -> str:
        """The text without this arm's secrets, wherever a server may have echoed them, and without those of URLs."""
        return redact_urls(redact(text, self.secrets))

    def transport(
        self, policy: ReusePolicy | None = None, *, keep_text: bool = False, bounds: Bounds | None = None
    ) -> Attempts:
        """A new transport, with connections of its own."""
        options: dict[str, Any] = {
            "timeouts": self.timeouts,
            "bounds": bounds,
            "policy": policy,
            "tls": self.tls,
            "streamed": self.shape.stream,
            "keep_text": keep_text,
            "counter": counter_of(self.tokenizer) if self.tokenizer else None,
            "scrub": lru_cache(64)(self.scrub),  # most of what is scrubbed says the same in every reply
        }
        if self.proxy:
            return HttpTransport(self.route, self.headers, proxy=True, **options)
        return FastTransport(self.route, self.headers, **options)

    def __repr__(self) -> str:
        return f"Target({self.name!r}, {self.url!r})"


def target_of(
    arm: ResolvedArm,
    max_tokens: int,
    sampling: Mapping[str, int | float],
    timeouts: Timeouts,
    env: Mapping[str, str],
) -> Target:
    """Read the arm's key and put its requests together.

    Raises ProfileError when the key, or a tokenizer, is not where it was named.
    """
    key = read_key(arm.auth, env)
    headers = dict(arm.headers)
    if key is not None:
        headers["Authorization"] = f"Bearer {key}"
    secrets = tuple(s for s in (key, *secrets_in(arm.headers, arm.extra_body), *_programs_own(arm, env)) if s)
    shape = RequestShape(
        arm.api,
        arm.model or "",
        max_tokens,
        dict(sampling),
        dict(arm.extra_body),
        max_tokens_field=MAX_TOKENS if arm.max_tokens_field == "auto" else arm.max_tokens_field,
        stream=arm.stream,
        chunk_tokens=arm.chunk_tokens,
    )
    tls, proxy = context_of(arm.tls), arm.proxy == "env"
    synthetic = "declared in the profile" if arm.speculation is not None and arm.speculation.synthetic else None
    if arm.tokenizer is not None:
        counter_of(arm.tokenizer)
    told = arm.metrics_url, arm.metrics, arm.tokenizer, synthetic
    return Target(arm.name, arm.url, headers, shape, tls, proxy, secrets, timeouts, *told, arm.tls)


def _programs_own(arm: ResolvedArm, env: Mapping[str, str]) -> tuple[str, ...]:
    """What programs that we start must not give away in their logs: secrets of their environment, which begins as
    ours."""
    hooked = arm.before_point is not None and arm.before_point.command is not None
    if arm.launch is None and not hooked:
        return ()
    # PWD and SSH_AUTH_SOCK are named like secrets, and are paths.
    inherited = {n: value for n, value in env.items() if len(value) >= _SHORTEST_SECRET and not value.startswith("/")}
    return secrets_in({**inherited, **(arm.launch.env if arm.launch else {})}, {})


def _unpickled(values: dict[str, Any]) -> Target:
    return Target(**values, tls=context_of(values["trust"]))


def timeouts_of(limits: Limits) -> Timeouts:
    """The waits a request may take."""
    return Timeouts(limits.connect_seconds, limits.first_byte_seconds, limits.idle_seconds)


def join(base: str, route: str) -> str:
    """The base URL with a route appended to its path; a query stays behind it."""
    parts = urlsplit(base)
    return urlunsplit(parts._replace(path=parts.path.rstrip("/") + route))


def beside(base: str, route: str) -> str:
    """The route next to the last part of the base URL's path, where servers put what is not of the API."""
    parts = urlsplit(base)
    return urlunsplit(parts._replace(path=parts.path.rstrip("/").rpartition("/")[0] + route, query=""))


def at_root(base: str, route: str) -> str:
    """The route at the root of the base URL's origin."""
    return urlunsplit(urlsplit(base)._replace(path=route, query=""))
