"""Where requests of one arm go and what they carry: URL, headers, secrets, and the shape of every request."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import urlsplit, urlunsplit

from endpoints.dialects import ROUTES, RequestShape
from endpoints.http import HttpTransport, ReusePolicy, Timeouts
from endpoints.tls import context_of
from profiles.loading import ResolvedArm
from profiles.secrets import read_key, redact, redact_urls, secrets_in


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

    @property
    def route(self) -> str:
        """Where requests are POSTed."""
        return join(self.url, ROUTES[self.shape.api])

    def scrub(self, text: str) -> str:
        """The text without this arm's secrets, wherever a server may have echoed them, and without those of URLs."""
        return redact_urls(redact(text, self.secrets))

    def transport(self, policy: ReusePolicy | None = None, *, keep_text: bool = False) -> HttpTransport:
        """A new transport, with connections of its own."""
        return HttpTransport(
            self.route,
            self.headers,
            timeouts=self.timeouts,
            policy=policy,
            tls=self.tls,
            proxy=self.proxy,
            streamed=self.shape.stream,
            keep_text=keep_text,
            scrub=lru_cache(64)(self.scrub),  # most of what is scrubbed says the same in every reply
        )

    def __repr__(self) -> str:
        return f"Target({self.name!r}, {self.url!r})"


def target_of(
    arm: ResolvedArm,
    max_tokens: int,
    sampling: Mapping[str, int | float],
    timeouts: Timeouts,
    env: Mapping[str, str],
) -> Target:
    """Read the arm's key and put its requests together. Raises ProfileError when the key is not where it was named."""
    key = read_key(arm.auth, env)
    headers = dict(arm.headers)
    if key is not None:
        headers["Authorization"] = f"Bearer {key}"
    secrets = tuple(s for s in (key, *secrets_in(arm.headers, arm.extra_body)) if s)
    shape = RequestShape(arm.api, arm.model or "", max_tokens, dict(sampling), dict(arm.extra_body), stream=arm.stream)
    return Target(arm.name, arm.url, headers, shape, context_of(arm.tls), arm.proxy == "env", secrets, timeouts)


def join(base: str, route: str) -> str:
    """The base URL with a route appended to its path; a query stays behind it."""
    parts = urlsplit(base)
    return urlunsplit(parts._replace(path=parts.path.rstrip("/") + route))
