"""Small fake endpoints over aiohttp.web, on a loop of their own while the command line runs beside them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

from aiohttp import web

Handler = Callable[[web.Request], Coroutine[Any, Any, web.StreamResponse]]


@contextmanager
def serving(models: Handler, chat: Handler) -> Iterator[str]:
    """The root URL of a server with these two routes under /v1, which ends with the block."""
    with serving_routes(web.get("/v1/models", models), web.post("/v1/chat/completions", chat)) as root:
        yield root


@contextmanager
def serving_routes(*routes: web.RouteDef) -> Iterator[str]:
    """The root URL of a server with these routes, which ends with the block."""
    ready: list[str] = []
    started, loop = threading.Event(), asyncio.new_event_loop()

    async def serve() -> None:
        app = web.Application()
        app.router.add_routes(routes)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        ready.append(f"http://127.0.0.1:{runner.addresses[0][1]}")
        started.set()

    thread = threading.Thread(target=lambda: (loop.run_until_complete(serve()), loop.run_forever()), daemon=True)
    thread.start()
    assert started.wait(10)
    yield ready[0]
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10)
