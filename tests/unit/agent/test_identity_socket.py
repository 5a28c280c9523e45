"""The socket for tokens: who may ask, for whom, and when a token is given again."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from attestation.errors import Unavailable
from attestation_agent import identity_socket
from attestation_agent.exits import UsageError
from attestation_agent.identity import Token
from attestation_agent.identity_socket import Endpoint, Tokens, serving, user_ids
from tests.unit.agent.world import Clock, Events

AT = datetime(2026, 11, 23, 12, tzinfo=UTC)
LIFE = timedelta(minutes=10)
LONG_SECONDS = 60.0


def until_broken(connection: socket.socket) -> None:
    """Send on until the other side has closed it."""
    end = time.monotonic() + LONG_SECONDS / 2
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        while True:
            connection.sendall(b"G")
            assert time.monotonic() < end, "it is still open"
            time.sleep(0.02)


class Desk:
    """An endpoint that answers, and what it has."""

    def __init__(self, folder: Path) -> None:
        self.clock, self.status = Clock(), "attested"
        self.clock.at = AT
        self.path, self.log = folder / "own/socket", Events()
        self.asked: list[str] = []
        self.failure: Exception | None = None
        self.users: list[int] = []

    def ask(self, audience: str) -> Token:
        """Give a token, as the service would."""
        if self.failure is not None:
            raise self.failure
        self.asked.append(audience)
        return Token(token=f"{audience}-{len(self.asked)}", expires_at=self.clock.now() + LIFE)

    def endpoint(self) -> Endpoint:
        """Return one."""
        tokens = Tokens(self.ask, ["openbao", "vault"], status=lambda: self.status, clock=self.clock)
        return Endpoint(self.path, tokens, self.users, self.log)

    def get(self, target: str = "/token?audience=openbao") -> tuple[int, dict[str, Any]]:
        """Ask as a program does."""
        connection = http.client.HTTPConnection("localhost", timeout=LONG_SECONDS)
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.connect(str(self.path))
        connection.request("GET", target)
        answer = connection.getresponse()
        body = answer.read()
        connection.close()
        return answer.status, json.loads(body) if body else {}


@pytest.fixture
def desk() -> Iterator[Desk]:
    """A desk whose path is short enough for a socket."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Desk(Path(folder))


def test_a_token_is_given_again_for_half_of_its_life(desk: Desk) -> None:
    """One for each audience; then there is a new one."""
    with serving(desk.endpoint()):
        assert desk.get() == (200, {"token": "openbao-1", "expires_at": "2026-11-23T12:10:00.000000Z"})
        desk.clock.at += timedelta(seconds=299)
        assert desk.get()[1]["token"] == "openbao-1"
        assert desk.get("/token?audience=vault")[1]["token"] == "vault-2"
        desk.clock.at += timedelta(seconds=1)
        assert desk.get()[1]["token"] == "openbao-3"


@pytest.mark.threat("T253")
@pytest.mark.parametrize("status", ["locked", "revoked"])
def test_a_machine_that_was_told_that_it_is_locked_gives_none(desk: Desk, status: str) -> None:
    """Nor the one that it has; after that it asks anew."""
    with serving(desk.endpoint()):
        assert desk.get()[0] == 200
        desk.status = status
        assert desk.get()[0] == 403
        desk.status = "attested"
        assert desk.get()[1]["token"] == "openbao-2"


@pytest.mark.parametrize(
    ("target", "status"),
    [
        ("/token?audience=other", 403),
        ("/token?audience=", 403),
        ("/token", 404),
        ("/token?audience=openbao&audience=vault", 404),
        ("/token?audience=openbao&more=1", 404),
        ("/", 404),
    ],
)
def test_there_is_nothing_else(desk: Desk, target: str, status: int) -> None:
    """What is not on the list never reaches the service."""
    with serving(desk.endpoint()):
        assert desk.get(target)[0] == status
    assert desk.asked == []


def test_a_service_that_gives_none_is_told(desk: Desk) -> None:
    """With its words; nothing is kept."""
    desk.failure = Unavailable("the service rests")
    with serving(desk.endpoint()):
        assert desk.get() == (503, {"error": "unavailable", "detail": "the service rests"})
        desk.failure = None
        assert desk.get()[0] == 200


@pytest.mark.threat("T253")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can ask as somebody else")
def test_only_those_may_ask_who_are_named(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the word of the kernel, before a byte is read."""
    monkeypatch.setattr(identity_socket, "REQUEST_SECONDS", LONG_SECONDS)

    def as_user(user: int) -> str:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(30)
            os.seteuid(user)
            try:
                connection.connect(str(desk.path))
            finally:
                os.seteuid(0)
            connection.sendall(b"GET /token?audience=openbao HTTP/1.0\r\n\r\n")
            return connection.recv(100).split()[1].decode()

    desk.users = user_ids(["4711"])
    with serving(desk.endpoint()):
        assert as_user(4711) == "200"
        # Anybody may try, as often as they like: that is one line.
        assert [as_user(4712) for _ in range(20)] == ["403"] * 20
        assert desk.get()[0] == 200
    assert [members["user"] for name, members in desk.log.entries if name == "identity.refused"] == [4712]
    with pytest.raises(UsageError, match="no user nobody-like-this"):
        user_ids(["nobody-like-this"])


@pytest.mark.threat("T253")
def test_the_directory_is_nobody_elses(desk: Desk) -> None:
    """Whoever could write it could put a socket of their own there."""
    desk.path.parent.mkdir()
    desk.path.parent.chmod(0o777)
    with pytest.raises(UsageError, match="mode 0755 at most"):
        desk.endpoint()
    with pytest.raises(UsageError, match="at most 107 bytes"):
        Endpoint(Path("/" + "x" * 120), Tokens(desk.ask, [], status=str, clock=desk.clock), [], desk.log)


@pytest.fixture
def one_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """One request at once; who has the place keeps it until a test says otherwise."""
    monkeypatch.setattr(identity_socket, "AT_ONCE", 1)
    monkeypatch.setattr(identity_socket, "REQUEST_SECONDS", LONG_SECONDS)
    monkeypatch.setattr(identity_socket._Handler, "timeout", LONG_SECONDS)


@pytest.mark.usefixtures("one_at_once")
def test_one_too_many_is_told_to_come_again(desk: Desk) -> None:
    """Until there is a place: the one before went away."""
    with serving(desk.endpoint()), socket.socket(socket.AF_UNIX) as silent:
        silent.connect(str(desk.path))
        assert desk.get()[0] == 503
        silent.shutdown(socket.SHUT_WR)
        assert silent.recv(1) == b""
        assert desk.get()[0] == 200


def test_who_is_sent_away_may_send_on(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a client that is slow finds the pipe broken instead of its answer; not without end, and not too many."""
    monkeypatch.setattr(identity_socket, "AT_ONCE", 0)
    monkeypatch.setattr(identity_socket, "SENT_AWAY", 2)
    with serving(desk.endpoint()), contextlib.ExitStack() as stack:

        def connected() -> socket.socket:
            connection = stack.enter_context(socket.socket(socket.AF_UNIX))
            connection.settimeout(LONG_SECONDS)
            connection.connect(str(desk.path))
            return connection

        monkeypatch.setattr(identity_socket, "REQUEST_SECONDS", 0.0)
        until_broken(connected())
        monkeypatch.setattr(identity_socket, "REQUEST_SECONDS", LONG_SECONDS)
        first = connected()
        assert first.recv(100).startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
        assert first.recv(1) == b""
        first.sendall(b"GET /token?audience=openbao HTTP/1.1\r\n")
        second, _third = connected(), connected()
        until_broken(first)
        second.sendall(b"G")


@pytest.mark.usefixtures("one_at_once")
def test_who_says_nothing_is_sent_away(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each read has a time of its own."""
    with serving(desk.endpoint()), socket.socket(socket.AF_UNIX) as silent:
        monkeypatch.setattr(identity_socket._Handler, "timeout", 0.1)
        silent.settimeout(LONG_SECONDS / 2)
        silent.connect(str(desk.path))
        assert silent.recv(1) == b""
        monkeypatch.setattr(identity_socket._Handler, "timeout", LONG_SECONDS)
        assert desk.get()[0] == 200


@pytest.mark.threat("T253")
@pytest.mark.usefixtures("one_at_once")
def test_who_drips_is_sent_away(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time is that of the whole request: else one listed user keeps the others out."""
    with serving(desk.endpoint()), socket.socket(socket.AF_UNIX) as dripping:
        monkeypatch.setattr(identity_socket, "REQUEST_SECONDS", 0.5)
        dripping.settimeout(LONG_SECONDS)
        dripping.connect(str(desk.path))
        until_broken(dripping)
        # Nothing more is heard of it; then it is answered, and closed.
        with contextlib.suppress(ConnectionResetError):
            while dripping.recv(1000):
                pass
        monkeypatch.setattr(identity_socket, "REQUEST_SECONDS", LONG_SECONDS)
        assert desk.get()[0] == 200
