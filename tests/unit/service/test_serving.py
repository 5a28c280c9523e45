"""How a server stops listening: whoever is connected already is answered, whatever they had sent by then."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import closing
from typing import Any

import pytest
import uvicorn

from attestation_service.app import create_app
from attestation_service.border import connections
from attestation_service.process import serving
from tests.unit.service.conftest import HeldClock, Starter, settings_for

pytestmark = pytest.mark.anyio

REQUEST = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"


class _NoTimer:
    """The last resort of a process that hangs would end this one."""

    daemon = False

    def __init__(self, *_: Any) -> None: ...

    def start(self) -> None:
        """Do nothing."""


@pytest.fixture
async def server(start: Starter, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[serving.Server]:
    """One that listens in this process."""
    monkeypatch.setattr("attestation_service.process.serving.threading.Timer", _NoTimer)
    app = create_app(settings_for(start.directory), HeldClock())
    config = uvicorn.Config(app, port=0, log_config=None, access_log=False, http=connections.PROTOCOL)
    config.load()
    made = serving.Server(config, app.state.life)
    made.lifespan = config.lifespan_class(config)
    await made.startup()
    yield made
    assert not made.server_state.connections


def connected(server: serving.Server) -> socket.socket:
    """Connect; the system does so without the server."""
    [listening] = server.servers[0].sockets
    found = socket.create_connection(listening.getsockname(), timeout=60)
    found.setblocking(False)
    return found


async def let_in(server: serving.Server) -> None:
    """Wait until a connection is."""
    while not server.server_state.connections:  # noqa: ASYNC110 -- nothing tells of it
        await asyncio.sleep(0)


async def answer(client: socket.socket) -> bytes:
    """Read to the end of the connection."""
    read = b""
    while piece := await asyncio.get_running_loop().sock_recv(client, 65_536):
        read += piece
    return read


async def test_who_was_connected_and_not_let_in_yet_is_answered(server: serving.Server) -> None:
    """A host that is busy lets in late: to close the door alone would reset them, with a request that is sent."""
    [listening] = server.servers[0].sockets
    asyncio.get_running_loop().remove_reader(listening.fileno())
    with closing(connected(server)) as client:
        client.sendall(REQUEST)
        await server.shutdown()
        told = await answer(client)
    assert told.startswith(b"HTTP/1.1 200 ")
    assert b"connection: close" in told


async def test_a_request_that_is_on_the_way_is_answered(server: serving.Server) -> None:
    """A connection that never asked is kept for a moment."""
    with closing(connected(server)) as client:
        await let_in(server)
        stops = asyncio.create_task(server.shutdown())
        while server.servers[0].is_serving():  # noqa: ASYNC110 -- as above
            await asyncio.sleep(0)
        for _ in range(10):  # rounds in which it could be ended
            await asyncio.sleep(0)
        await asyncio.get_running_loop().sock_sendall(client, REQUEST)
        told = await answer(client)
        await stops
    assert told.startswith(b"HTTP/1.1 200 ")
    assert b"connection: close" in told


async def test_who_never_asks_keeps_nobody(server: serving.Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not beyond that moment."""
    monkeypatch.setattr(connections, "HELLO_SECONDS", 0.0)
    with closing(connected(server)) as client:
        await let_in(server)
        await server.shutdown()
        assert await answer(client) == b""
