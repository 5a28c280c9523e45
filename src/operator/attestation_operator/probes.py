"""/healthz, /readyz and /metrics, for kubelet and Prometheus. Nothing there is secret, and nothing can be changed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

from aiohttp import web

from attestation_operator.health import Health
from attestation_operator.metrics import CONTENT_TYPE, Metrics
from attestation_operator.settings import Address

MAX_REQUEST_BYTES: Final = 1024


@asynccontextmanager
async def answering(
    probes: Address, metrics_at: Address, *, health: Health, metrics: Metrics
) -> AsyncIterator[int]:
    """Answer while the block runs; yield the port of the probes. One address is one listener.

    Raises:
        OSError: Somebody else listens there.
    """
    async with AsyncExitStack() as stack:
        routes = _probes(health)
        if metrics_at == probes:
            routes.append(_metrics(metrics))
        else:
            await stack.enter_async_context(_listening(metrics_at, [_metrics(metrics)]))
        yield await stack.enter_async_context(_listening(probes, routes))


@asynccontextmanager
async def _listening(at: Address, routes: Sequence[web.RouteDef]) -> AsyncIterator[int]:
    app = web.Application(client_max_size=MAX_REQUEST_BYTES)
    app.router.add_routes(routes)
    runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=2.0)
    await runner.setup()
    try:
        site = web.TCPSite(runner, at.host or None, at.port)
        await site.start()
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


def _probes(health: Health) -> list[web.RouteDef]:
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

    return [web.get("/healthz", healthz), web.get("/readyz", readyz)]


def _metrics(metrics: Metrics) -> web.RouteDef:
    async def told(_: web.Request) -> web.Response:
        return web.Response(body=metrics.text(), headers={"Content-Type": CONTENT_TYPE})

    return web.get("/metrics", told)
