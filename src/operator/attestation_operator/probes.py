"""/healthz, /readyz and /metrics, for kubelet and Prometheus. Nothing there is secret, and nothing can be changed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from aiohttp import web

from attestation_operator.health import Health
from attestation_operator.metrics import CONTENT_TYPE, Metrics

MAX_REQUEST_BYTES: Final = 1024


@asynccontextmanager
async def answering(host: str, port: int, *, health: Health, metrics: Metrics) -> AsyncIterator[int]:
    """Answer while the block runs; yield the port.

    Raises:
        OSError: Somebody else listens there.
    """

    async def healthz(_: web.Request) -> web.Response:
        # That it answers at all says that the loop turns.
        return web.json_response({"status": "ok"})

    async def readyz(_: web.Request) -> web.Response:
        ready = health.ready
        facts = {
            name: {"well": fact.well, "said": fact.said, "holds_back": fact.holds_back}
            for name, fact in health.facts.items()
        }
        body = {"status": "ok" if ready else "unready", "facts": facts}
        return web.json_response(body, status=200 if ready else 503)

    async def told(_: web.Request) -> web.Response:
        return web.Response(body=metrics.text(), headers={"Content-Type": CONTENT_TYPE})

    app = web.Application(client_max_size=MAX_REQUEST_BYTES)
    app.router.add_get("/healthz", healthz)
    app.router.add_get("/readyz", readyz)
    app.router.add_get("/metrics", told)
    runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=2.0)
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port)
        await site.start()
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()
