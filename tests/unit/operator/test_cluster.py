"""Connections to the API server."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
from collections.abc import Iterator

import pytest
from lightkube.config.kubeconfig import SingleConfig
from lightkube.config.models import Cluster, Context, User

from attestation_operator.cluster import KubernetesCluster
from attestation_operator.objects import NODE, Key


@pytest.fixture
def no_garbage_is_collected() -> Iterator[None]:
    """What nothing refers to stays as it is, so that only what is closed is closed."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@pytest.mark.usefixtures("no_garbage_is_collected")
def test_a_request_that_is_cancelled_in_its_handshake_leaves_no_connection() -> None:
    """Its socket would outlive the loop: the pool knows only of those that are through it."""
    with socket.create_server(("127.0.0.1", 0)) as silent, contextlib.ExitStack() as stack:
        silent.settimeout(30)

        async def read() -> None:
            cluster = KubernetesCluster(
                SingleConfig(
                    context_name="test",
                    context=Context(cluster="test", user="test"),
                    cluster=Cluster(server=f"https://127.0.0.1:{silent.getsockname()[1]}"),
                    user=User(),
                )
            )
            reading = asyncio.create_task(cluster.read(Key(kind=NODE, name="n1")))
            connection, _ = await asyncio.to_thread(silent.accept)
            stack.enter_context(connection).settimeout(30)
            assert await asyncio.to_thread(connection.recv, 1) == b"\x16"
            reading.cancel()
            await asyncio.wait([reading])
            await cluster.aclose()
            await asyncio.to_thread(_read_to_its_end, connection)

        asyncio.run(read())


def _read_to_its_end(connection: socket.socket) -> None:
    while connection.recv(4096):
        pass
