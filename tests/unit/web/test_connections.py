"""Connections and threads: strangers who open them and say nothing, or read nothing, keep nobody out."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from attestation_web import main
from attestation_web.border import bodies, connections, server, turns

Message = MutableMapping[str, Any]
PATIENCE_SECONDS = 60
ASKED = b"GET / HTTP/1.1\r\nHost: here\r\n\r\n"
BIG = b"x" * (1 << 20)


@contextlib.asynccontextmanager
async def _served(body: bytes = b"ok") -> AsyncIterator[Callable[[], Awaitable[Any]]]:
    """Serve *body* through the protocol, and yield what opens a connection."""
    async with contextlib.AsyncExitStack() as stack:

        async def app(scope: Any, receive: Any, send: Any) -> None:
            length = str(len(body)).encode()
            headers = [(b"content-length", length)]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": body})

        config = uvicorn.Config(app, http=connections.Protocol, ws="none", lifespan="off", log_config=None)
        config.load()
        state = ServerState()
        listening = await asyncio.get_running_loop().create_server(
            lambda: connections.Protocol(config=config, server_state=state, app_state={}), "127.0.0.1", 0
        )
        stack.callback(listening.close)

        async def opened() -> Any:
            reader, writer = await asyncio.open_connection(*listening.sockets[0].getsockname())
            stack.callback(writer.close)
            return reader, writer

        yield opened


async def _ended(reader: asyncio.StreamReader) -> bool:
    """Wait until the other side ends a connection."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        try:
            while await reader.read(1 << 16):
                pass
        except ConnectionResetError:
            return True
    return True


async def _answered(connection: Any) -> bool:
    reader, writer = connection
    writer.write(ASKED)
    async with asyncio.timeout(PATIENCE_SECONDS):
        return bool((await reader.readline()).startswith(b"HTTP/1.1 200"))


@pytest.mark.threat("T277")
def test_connections_that_say_nothing_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that waited longest goes; who comes is answered, and so is who has just asked."""
    monkeypatch.setattr(connections, "MOST", 3)
    monkeypatch.setattr(connections, "HEAD_SECONDS", 3600.0)

    async def run() -> None:
        async with _served() as opened:
            first = await opened()
            for _ in range(6):
                await opened()
            assert await _ended(first[0])
            assert await _answered(await opened())

    asyncio.run(run())


@pytest.mark.threat("T277")
def test_a_head_that_does_not_end_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not on a new connection, and not on one that was used before, however it dribbles."""
    monkeypatch.setattr(connections, "HEAD_SECONDS", 0.1)

    async def run() -> None:
        async with _served() as opened:
            for used in (False, True):
                reader, writer = await opened()
                if used:
                    assert await _answered((reader, writer))
                writer.write(b"GET / HTTP/1.1\r\n")
                assert await _ended(reader)

    asyncio.run(run())


@pytest.mark.threat("T277")
def test_an_answer_that_nobody_reads_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its connection ends, and what wrote it goes on."""
    monkeypatch.setattr(connections, "WRITE_SECONDS", 0.1)

    async def run() -> None:
        async with _served(BIG * 16) as opened:
            reader, writer = await opened()
            reader.set_exception(ConnectionResetError())  # nothing is read: the buffers fill up
            writer.transport.pause_reading()
            writer.write(ASKED)
            async with asyncio.timeout(PATIENCE_SECONDS):
                await lost.wait()

    lost = asyncio.Event()
    kept = connections.Protocol.connection_lost

    def told(self: connections.Protocol, exc: Exception | None) -> None:
        lost.set()
        kept(self, exc)

    monkeypatch.setattr(connections.Protocol, "connection_lost", told)
    asyncio.run(run())


class _Asking:
    """Requests through `Turns` to an application that answers when it is told to."""

    def __init__(self, threads: int) -> None:
        self.go, self._news, self.served = asyncio.Event(), asyncio.Event(), 0
        self._turns = turns.Turns(self._app, threads)

    async def _app(self, scope: Message, receive: Any, send: Any) -> None:
        self.served += 1
        self._news.set()
        assert (await receive())["body"] == b"a=1"
        await self.go.wait()
        await send({"type": "http.response.start", "status": 204, "headers": []})

    def ask(self, *, by_itself: bool = False, left: bool = False) -> asyncio.Task[int | None]:
        """Send a request; its status, or None where it was not answered."""
        waiting: list[Message] = [{"type": "http.request", "body": b"a=1", "more_body": False}]
        if left:
            waiting.append({"type": "http.disconnect"})

        async def receive() -> Message:
            if not waiting:
                await asyncio.Event().wait()
            return waiting.pop(0)

        answers: list[Message] = []

        async def send(message: Message) -> None:
            answers.append(message)

        async def asked() -> int | None:
            headers = [(b"hx-request", b"true")] if by_itself else []
            await self._turns({"type": "http", "headers": headers}, receive, send)
            return answers[0]["status"] if answers else None

        return asyncio.ensure_future(asked())

    async def settled(self, served: int) -> None:
        """Wait until so many are being served, and see that they are not more."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while self.served < served:
                self._news.clear()
                await self._news.wait()
        for _ in range(20):
            await asyncio.sleep(0)
        assert self.served == served


@pytest.mark.threat("T277")
def test_pages_that_ask_by_themselves_leave_threads_to_people() -> None:
    """Half of them; and each that is answered lets the next one in."""

    async def run() -> None:
        asking = _Asking(threads=4)
        polls = [asking.ask(by_itself=True) for _ in range(8)]
        await asking.settled(2)
        people = [asking.ask() for _ in range(4)]
        await asking.settled(4)
        asking.go.set()
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert set(await asyncio.gather(*polls, *people)) == {204}

    asyncio.run(run())


@pytest.mark.threat("T277")
def test_who_has_left_takes_no_thread_and_who_waits_too_long_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """And neither keeps the turn that it did not have."""
    monkeypatch.setattr(turns, "SECONDS", 0.2)

    async def run() -> None:
        asking = _Asking(threads=1)
        first = asking.ask()
        await asking.settled(1)
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert await asking.ask(left=True) is None
            assert await asking.ask() == 503
            assert await asking.ask(by_itself=True) == 503
            asking.go.set()
            assert await first == 204
            assert await asking.ask(by_itself=True) == 204
            assert await asking.ask() == 204
        assert asking.served == 3

    asyncio.run(run())


def test_there_are_no_more_connections_than_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some are kept for the service, the provider and our own; who may not ask has as many as usual."""
    limit = (200, 4096)
    monkeypatch.setattr("resource.getrlimit", lambda _: limit)
    assert connections.most() == 200 - connections.FILES_OF_OURS
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr("resource.setrlimit", lambda _, wanted: asked.append(wanted))
    connections.ask_for_files()
    assert asked == [(4096, 4096)]

    def forbidden(*_: object) -> Any:
        raise PermissionError("not permitted")

    monkeypatch.setattr("resource.getrlimit", forbidden)
    assert connections.most() == connections.MOST
    connections.ask_for_files()


def test_where_it_serves_is_told_once_it_does() -> None:
    """With the port that was free."""
    told: list[int] = []

    async def run() -> None:
        config = uvicorn.Config(
            lambda: None, port=0, lifespan="off", log_config=None, http=connections.Protocol
        )
        serving = server.Server(config, told.append)
        serving.config.load()
        serving.lifespan = config.lifespan_class(config)
        await serving.startup()
        assert told == [serving.servers[0].sockets[0].getsockname()[1]]
        await serving.shutdown()

    asyncio.run(run())
    assert told[0] > 0


def test_a_thread_that_waits_does_not_keep_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is ended; where every thread ends by itself, so does the process."""
    ended: list[int] = []
    monkeypatch.setattr("os._exit", ended.append)
    monkeypatch.setattr(main, "THREADS", "pages-of-this-test")
    monkeypatch.setattr(main, "LAST_SECONDS", PATIENCE_SECONDS)
    idle = ThreadPoolExecutor(1, thread_name_prefix=main.THREADS)
    idle.submit(int).result()
    main._end(idle)
    assert ended == []
    monkeypatch.setattr(main, "LAST_SECONDS", 0.05)
    busy, go = ThreadPoolExecutor(1, thread_name_prefix=main.THREADS), threading.Event()
    busy.submit(go.wait)
    main._end(busy)
    go.set()
    assert ended == [0]


@pytest.mark.threat("T277")
def test_bodies_that_are_held_count_until_they_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two at once one is refused; after both there is room again."""
    monkeypatch.setattr(bodies, "MOST_LARGE_BYTES", 3 << 19)
    long = {"type": "http.request", "body": b"x" * (1 << 20), "more_body": False}

    async def run() -> None:
        go = asyncio.Event()

        async def app(scope: Any, receive: Any, send: Any) -> None:
            await go.wait()
            await send({"type": "http.response.start", "status": 204, "headers": []})

        border = bodies.Bodies(app)

        async def asked() -> int:
            answers: list[Message] = []

            async def receive() -> Message:
                return long

            async def send(message: Message) -> None:
                answers.append(message)

            await border({"type": "http"}, receive, send)
            return int(answers[0]["status"])

        first = asyncio.ensure_future(asked())
        await asyncio.sleep(0)
        assert await asked() == 503
        go.set()
        assert await first == 204
        assert await asked() == 204

    asyncio.run(run())
