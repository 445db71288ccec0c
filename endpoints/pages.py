"""What stands beside the API: metrics, health, version and settings of the known engines, by GET. Never fatal."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

import aiohttp
import orjson
from aiohttp.client import ClientSession

from endpoints.engines import (
    HEALTH_PAGES,
    INFO_PAGES,
    METRICS_PAGES,
    OWNERS,
    Facts,
    declared,
    engines_of,
    facts_of,
    series_in,
    synthetic_in,
)
from endpoints.findings import Probed
from endpoints.look import Page, looking, read
from endpoints.target import Target, at_root, beside, join
from profiles.errors import printable

_MOST_PAGE, _MOST_METRICS = 256 * 1024, 4 * 1024 * 1024  # bytes
_PAGE_S = 3.0
_MOST_SAID = 120  # characters of a setting that are kept
_AT_ONCE = 4


async def look_beside(session: ClientSession, target: Target, found: Probed) -> None:
    """Read the pages and add what they tell to `found`; `session` carries the target's headers."""

    async def get(urls: Iterable[str], of: ClientSession = session, at: Target = target) -> dict[str, Page | None]:
        wanted = list(dict.fromkeys(urls))
        found.cost.pages += len(wanted)
        return dict(zip(wanted, await _get(of, at, wanted), strict=True))

    url = target.url
    urls = {route: beside(url, route) for route in (*INFO_PAGES, *HEALTH_PAGES, *METRICS_PAGES)}
    models = join(url, "/models")
    pages = await get([models, *urls.values()])
    metrics = {urls[route]: pages[urls[route]] for route in METRICS_PAGES}
    for named in target.metrics_url:
        async with looking(at := target.towards(named)) as (own, _):
            metrics = await get([named], own, at) | metrics
    if not any(map(_series, metrics.values())):
        metrics |= await get({at_root(url, "/metrics"), join(url, "/metrics").partition("?")[0]} - metrics.keys())
    facts = {route: facts_of(_json(pages[urls[route]])) for route in INFO_PAGES}
    card = _card(_json(pages[models]), found.shape.model)
    engines = _metrics(found, metrics)
    _engine(found, engines, str(card.get("owned_by")), facts)
    _settings(found, [facts_of(card), *facts.values()])
    well = [f"{route} {page.status}" for route in HEALTH_PAGES if (page := pages[urls[route]]) and page.status == 200]
    found.add("health", ", ".join(well) or "no page", "not used by a run")


async def _get(session: ClientSession, target: Target, urls: list[str]) -> list[Page | None]:
    at_once = asyncio.Semaphore(_AT_ONCE)
    seconds = min(_PAGE_S, target.timeouts.first_byte)

    async def one(url: str) -> Page | None:
        async with at_once:
            try:
                return await read(session, target, url, most=_MOST_METRICS, seconds=seconds)
            except (aiohttp.ClientError, OSError, TimeoutError, ValueError):
                return None

    return await asyncio.gather(*map(one, urls))


def _metrics(found: Probed, pages: Mapping[str, Page | None]) -> list[str]:
    """The first page that holds metrics is the one; returns the engines that its series name."""
    for url, page in pages.items():
        series = _series(page)
        if not series:
            continue
        engines = engines_of(series)
        told = [f"{name}: {own} series, {about} about speculative decoding" for name, (own, about) in engines.items()]
        speculative = any(about for _, about in engines.values())
        effect = "its counters could check the acceptance" if speculative else "no counters of speculative decoding"
        found.add("metrics", f"{url}: {'; '.join(told) or f'{len(series)} series of no engine known here'}", effect)
        if engines:
            found.profile["metrics_url"] = url
        return list(engines)
    refused = [f"{url} {page.status}" for url, page in pages.items() if page and page.status in (401, 403, 501)]
    seen = f"no page of metrics ({', '.join(refused)})" if refused else "no page of metrics"
    found.add("metrics", seen, "speed is seen from outside only")
    return []


def _engine(found: Probed, by_metrics: list[str], owner: str, facts: Mapping[str, Facts]) -> None:
    by_page = [name for route, name in INFO_PAGES.items() if name and facts[route]]
    names = dict.fromkeys([*by_metrics, *([OWNERS[owner]] if owner in OWNERS else []), *by_page])
    versions = {f.version: route for route, f in facts.items() if f.version}
    told = [", ".join(names) or "not known", *(f"{route} says {version}" for version, route in versions.items())]
    found.add("engine", "; ".join(told), "not used by a run; compare arms of one version")


def _settings(found: Probed, facts: list[Facts]) -> None:
    limits: dict[str, int] = {}
    speculation: dict[str, Any] = {}
    for f in reversed(facts):  # the first to tell has the last word
        limits |= f.limits
        speculation |= f.speculation
    if "at once" in limits:
        found.add("requests at once", str(limits["at once"]), "beyond it requests wait at the server (server_capped)")
    if "context" in limits:
        found.add("context", f"{limits['context']} tokens", "prompt and reply have to fit into it")
    if found.synthetic is None and (admitted := synthetic_in(speculation)) is not None:
        found.synthetic = printable(found.scrub(admitted))[:_MOST_SAID]
    if speculation:
        seen = "; ".join(f"{name}: {value}" for name, value in speculation.items())
        given = orjson.dumps(declared(speculation), default=str).decode()
        found.add("speculation", seen, f"declare speculation: {given}")


def _card(listed: Any, model: str) -> Mapping[str, Any]:
    """What the list of models says of this one."""
    data = listed.get("data") if isinstance(listed, dict) else None
    cards = [card for card in data if isinstance(card, dict)] if isinstance(data, list) else []
    return next((card for card in cards if card.get("id") == model), {})


def _series(page: Page | None) -> frozenset[str]:
    return series_in(page.body.decode("utf-8", "replace")) if page is not None and page.status == 200 else frozenset()


def _json(page: Page | None) -> Any:
    if page is None or page.status != 200 or len(page.body) > _MOST_PAGE:
        return None
    try:
        return orjson.loads(page.body)
    except orjson.JSONDecodeError:
        return None
