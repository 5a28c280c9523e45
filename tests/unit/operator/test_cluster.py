"""Connections to the API server."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, Final

import httpx2 as httpx
import pytest
from lightkube.config.kubeconfig import SingleConfig
from lightkube.config.models import Cluster, Context, User

from attestation_operator import cluster
from attestation_operator.cluster import KubernetesCluster
from attestation_operator.errors import ClusterUnavailable, ObjectChanged, ObjectExists
from attestation_operator.objects import NODE, RUN, Key, Target

RUNS: Final = "/apis/security.ugallu.io/v1alpha1"
TEAM: Final = f"{RUNS}/namespaces/team/confidentialattestationruns"
FOUND: Final = {"metadata": {"name": "r", "uid": "u-1", "resourceVersion": "7"}, "items": []}
TARGET: Final = Target(kind=RUN, name="r", uid="u-1", resource_version="7", namespace="team")


def config(url: str) -> SingleConfig:
    """Return how to reach an API server at *url*."""
    return SingleConfig(
        context_name="test",
        context=Context(cluster="test", user="test"),
        cluster=Cluster(server=url),
        user=User(),
    )


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
            client = KubernetesCluster(config(f"https://127.0.0.1:{silent.getsockname()[1]}"))
            reading = asyncio.create_task(client.read(Key(kind=NODE, name="n1")))
            connection, _ = await asyncio.to_thread(silent.accept)
            stack.enter_context(connection).settimeout(30)
            assert await asyncio.to_thread(connection.recv, 1) == b"\x16"
            reading.cancel()
            await asyncio.wait([reading])
            await client.aclose()
            await asyncio.to_thread(_read_to_its_end, connection)

        asyncio.run(read())


def _read_to_its_end(connection: socket.socket) -> None:
    while connection.recv(4096):
        pass


def test_many_requests_share_a_few_connections() -> None:
    """Each request looks at all connections before it takes one: with as many of them as workers that was its cost."""
    opened = 0

    async def ask() -> None:
        full, go = asyncio.Event(), asyncio.Event()

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal opened
            opened += 1
            if opened == cluster.MAX_CONNECTIONS:
                full.set()
            with contextlib.suppress(asyncio.IncompleteReadError):
                while await reader.readuntil(b"\r\n\r\n"):
                    await go.wait()
                    body = json.dumps(FOUND).encode()
                    head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
                    writer.write(head.encode() + body)
            writer.close()

        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            client = KubernetesCluster(config(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"))
            count = 3 * cluster.MAX_CONNECTIONS
            reading = [asyncio.create_task(client.read(Key(kind=NODE, name=f"n{i}"))) for i in range(count)]
            await full.wait()
            go.set()
            await asyncio.gather(*reading)
            await client.aclose()

    asyncio.run(asyncio.wait_for(ask(), 60))
    assert opened == cluster.MAX_CONNECTIONS


Asking = Callable[[KubernetesCluster], Coroutine[Any, Any, Any]]


def ask(asking: Asking, status: int = 200, body: Any = None) -> tuple[Any, httpx.Request]:
    """Return what a request ended with, and the request."""
    seen: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(status, json=FOUND if body is None else body)

    async def go() -> Any:
        client = KubernetesCluster(config("https://api"), transport=httpx.MockTransport(answer))
        try:
            return await asking(client)
        except ObjectChanged as e:
            return e
        finally:
            await client.aclose()

    found = asyncio.run(go())
    [request] = seen
    return found, request


@pytest.mark.parametrize(
    ("asking", "method", "path"),
    [
        (lambda c: c.read(TARGET.key), "GET", f"{TEAM}/r"),
        (lambda c: c.list(RUN, fields={"spec.targetNodeName": "n1"}), "GET", f"{RUNS}/{RUN.plural}"),
        (lambda c: c.list(RUN, namespace="team"), "GET", TEAM),
        (lambda c: c.create(RUN, {"metadata": {"name": "r", "namespace": "team"}}), "POST", TEAM),
        (lambda c: c.replace(TARGET, {"spec": {}}), "PUT", f"{TEAM}/r"),
        (lambda c: c.merge(TARGET, {"status": {}}, action="status"), "PATCH", f"{TEAM}/r/status"),
        (lambda c: c.apply_status(TARGET, {}, manager="m"), "PATCH", f"{TEAM}/r/status"),
        (lambda c: c.delete(TARGET), "DELETE", f"{TEAM}/r"),
        (lambda c: c.read(Key(kind=NODE, name="a b?c")), "GET", "/api/v1/nodes/a%20b%3Fc"),
        (lambda c: c.list(NODE), "GET", "/api/v1/nodes"),
    ],
)
def test_a_request_goes_where_the_object_is(asking: Asking, method: str, path: str) -> None:
    """In its namespace where it has one; a list over all of them where none is named."""
    _, request = ask(asking)
    assert (request.method, request.url.raw_path.split(b"?")[0].decode()) == (method, path)


@pytest.mark.parametrize(
    ("reason", "error"), [("AlreadyExists", ObjectExists), ("Conflict", ObjectChanged), (None, ObjectChanged)]
)
def test_that_an_object_is_there_is_told_from_other_conflicts(reason: str | None, error: type) -> None:
    """A quota answers 409 too; what is there is read, and judged."""
    body = {"reason": reason, "message": "m"}
    raw = {"metadata": {"name": "r", "namespace": "team"}}
    found, _ = ask(lambda c: c.create(RUN, raw), 409, body)
    assert type(found) is error


@pytest.mark.parametrize(
    "name", ["a/b", "../nodes", "..", ".", "%2e%2e", "node-1/proxy", "n" * 65_536], ids=lambda name: name[:16]
)
def test_under_a_name_that_no_object_has_nothing_is_read(name: str) -> None:
    """A stranger's run may name it: asked for it, the API server takes it for a path, and refuses for ever."""

    async def go() -> Any:
        client = KubernetesCluster(config("https://api"), transport=httpx.MockTransport(_never_asked))
        try:
            return await client.read(Key(kind=NODE, name=name))
        finally:
            await client.aclose()

    assert asyncio.run(go()) is None


def _never_asked(request: httpx.Request) -> httpx.Response:
    raise AssertionError(request.url)


async def _changes(c: KubernetesCluster) -> list[Any]:
    return [each async for each in c.watch(RUN, "1")]


@pytest.mark.parametrize("asking", [lambda c: c.read(TARGET.key), lambda c: c.listed(RUN), _changes])
@pytest.mark.parametrize(
    "body",
    [
        [],
        "text",
        {"metadata": None, "items": 1},
        {"metadata": {"resourceVersion": "1"}, "items": [7]},
        {"metadata": {"resourceVersion": 1}, "items": [{"metadata": {"name": "r"}}]},
        {"type": "ADDED", "object": {"metadata": {"resourceVersion": "1"}}},
        {"type": "BOOKMARK", "object": {}},
        {"type": "ERROR", "object": None},
        b"[" * 200_000,
        b'{"metadata": {"na',
    ],
)
def test_what_is_no_answer_of_an_api_server_is_one_that_is_away(asking: Asking, body: Any) -> None:
    """A proxy may answer in its place: an agent and a leader go on, and ask again."""

    def answer(_request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, content=body if isinstance(body, bytes) else json.dumps(body))

    async def go() -> None:
        client = KubernetesCluster(config("https://api"), transport=httpx.MockTransport(answer))
        try:
            await asking(client)
        finally:
            await client.aclose()

    with pytest.raises(ClusterUnavailable):
        asyncio.run(go())


@pytest.mark.parametrize(
    "asking",
    [
        lambda c: c.read(TARGET.key),
        lambda c: c.list(RUN),
        lambda c: c.create(RUN, {"metadata": {"name": "r", "namespace": "team"}}),
        lambda c: c.merge(TARGET, {}),
        lambda c: c.delete(TARGET),
    ],
)
def test_an_answer_that_comes_byte_by_byte_ends(asking: Asking, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is never silent for long: without an end of its own it held a worker for ever, and the runs behind it."""
    monkeypatch.setattr(cluster, "ANSWER_SECONDS", 0.05)

    class Trickle(httpx.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            while True:
                yield b" "
                await asyncio.sleep(0)

    async def go() -> None:
        transport = httpx.MockTransport(lambda _: httpx.Response(200, stream=Trickle()))
        client = KubernetesCluster(config("https://api"), transport=transport)
        try:
            async with asyncio.timeout(60):
                await asking(client)
        finally:
            await client.aclose()

    with pytest.raises(ClusterUnavailable):
        asyncio.run(go())
