"""What is done before a point: a POST to a route of the server, or a command. It works, or the point does not start."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import aiohttp

from endpoints.http import read_some
from endpoints.launching import ENDED_WELL, Launched, LaunchError
from endpoints.look import looking
from endpoints.target import Target, beside
from profiles.models import Hook

_MOST, _LOOKED_AT = 262_144, 2048  # bytes of what a server says, characters of it when it was scrubbed


class HookError(Exception):
    """The hook failed; one sentence."""


async def do_before_point(hook: Hook, target: Target, concurrency: int, log: Path) -> None:
    """Do it, and see that it worked. A command's output goes to `log`, and its environment tells the point by
    ENDSWEEP_ARM, ENDSWEEP_URL and ENDSWEEP_CONCURRENCY. Raises HookError."""
    try:
        if hook.post is not None:
            await _post(hook, target)
        else:
            await _command(hook, target, concurrency, log)
    except HookError as exc:
        raise HookError(target.scrub(f"the hook before the point failed: {exc}")) from None


async def _post(hook: Hook, target: Target) -> None:
    url = beside(target.url, str(hook.post))
    timeout = aiohttp.ClientTimeout(total=hook.seconds)
    try:
        async with (
            looking(target) as (session, _),
            session.post(url, allow_redirects=False, ssl=target.tls, timeout=timeout) as response,
        ):
            said = target.scrub((await read_some(response.content, _MOST)).decode("utf-8", "replace"))[:_LOOKED_AT]
    except TimeoutError:
        raise HookError(f"POST {url} had no answer within {hook.seconds:g} s") from None
    except (aiohttp.ClientError, OSError, ValueError) as exc:
        raise HookError(f"POST {url}: {exc}") from None
    if not 200 <= response.status < 300:
        raise HookError(f"POST {url} answers {response.status}: {' '.join(said.split())[:200]}")


async def _command(hook: Hook, target: Target, concurrency: int, log: Path) -> None:
    env = {
        "ENDSWEEP_ARM": target.name,
        "ENDSWEEP_URL": target.url,
        "ENDSWEEP_CONCURRENCY": str(concurrency),
    }
    program = Launched(hook.command or (), env, None, log, 1.0)
    try:
        await program.start()
        how = await program.wait_up_to(hook.seconds)
    except LaunchError as exc:
        raise HookError(str(exc)) from None
    finally:
        with suppress(OSError):
            await program.stop()
    if how != ENDED_WELL:
        lines = program.last_lines(target.scrub)
        raise HookError(f"{(hook.command or ('',))[0]}: {how}" + (f"; it said: {lines}" if lines else ""))
