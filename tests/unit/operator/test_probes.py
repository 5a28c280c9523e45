"""Where probes and metrics answer."""

from __future__ import annotations

import asyncio
from unittest import mock

import httpx2 as httpx
from aiohttp import web

from attestation_operator.health import Fact, Health
from attestation_operator.metrics import Metrics
from attestation_operator.probes import answering
from attestation_operator.settings import Address

HERE = Address(host="127.0.0.1", port=0)
ELSEWHERE = Address(host="127.0.0.2", port=0)


def _paths(probes: Address, metrics_at: Address) -> list[dict[str, int]]:
    """Return, for each listener, the status of each path."""
    sites: list[web.TCPSite] = []

    class Noted(web.TCPSite):
        async def start(self) -> None:
            await super().start()
            sites.append(self)

    health = Health()
    health.say("cluster", Fact(well=True, said="answers"))

    async def go() -> list[dict[str, int]]:
        with mock.patch.object(web, "TCPSite", Noted):
            async with (
                answering(probes, metrics_at, health=health, metrics=Metrics()) as port,
                httpx.AsyncClient(trust_env=False) as http,
            ):
                places = [site._server.sockets[0].getsockname() for site in sites]  # type: ignore[union-attr]
                assert port == places[-1][1]
                return [
                    {
                        path: (await http.get(f"http://{host}:{number}/{path}")).status_code
                        for path in ("healthz", "readyz", "metrics")
                    }
                    for host, number in places
                ]

    return asyncio.run(go())


def test_metrics_are_with_the_probes_or_apart() -> None:
    """Who may read metrics need not reach the probes, and the other way round."""
    assert _paths(HERE, HERE) == [{"healthz": 200, "readyz": 200, "metrics": 200}]
    assert _paths(HERE, ELSEWHERE) == [
        {"healthz": 404, "readyz": 404, "metrics": 200},
        {"healthz": 200, "readyz": 200, "metrics": 404},
    ]
