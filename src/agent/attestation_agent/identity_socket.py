"""Tokens for other programs of this machine, on a unix socket: HTTP, so that any of them can ask.

    curl --unix-socket /run/itl-identity/socket 'http://localhost/token?audience=openbao'
    {"token": "eyJ…", "expires_at": "2026-11-23T12:00:00Z"}

Who may ask is decided by the user that the kernel says stands at the other end, and for what by a list of audiences. A
token is given again for half of its life. Once the agent was told that its machine is locked or revoked, none is.
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import socket
import socketserver
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

from attestation.clock import Clock, rfc3339
from attestation.errors import AttestationError
from attestation_agent.edge import Log
from attestation_agent.exits import UsageError
from attestation_agent.identity import Token
from attestation_agent.local_socket import clear_place, user_of

REQUEST_SECONDS: Final = 5.0
"""For a request, from the connection to its last byte."""
TOLD_SECONDS: Final = 60.0
"""So often the log is told that users were refused: anybody here may connect, as often as they like."""
AT_ONCE: Final = 16
SENT_AWAY: Final = 64
"""So many of those that were sent away are kept open at most."""
ENDED: Final = frozenset({"locked", "revoked"})
"""What the state directory says of a machine that gets no token."""


@dataclass(frozen=True, slots=True)
class _Given:
    token: Token
    given_at: datetime


class Tokens:
    """Tokens that were given, and may be given again.

    Args:
        ask: Gets a new one from the service.
        audiences: For whom.
        status: What the agent was told last about this machine.
        clock: Tells the time.
    """

    def __init__(
        self,
        ask: Callable[[str], Token],
        audiences: Sequence[str],
        *,
        status: Callable[[], str | None],
        clock: Clock,
    ) -> None:
        self._ask, self._audiences, self._status, self._clock = ask, frozenset(audiences), status, clock
        self._given: dict[str, _Given] = {}
        # One at a time: there is one TPM.
        self._lock = threading.Lock()

    def get(self, audience: str) -> Token | None:
        """Return a token for *audience*; None where this machine gives none for it.

        Raises:
            AttestationError: The service gives none now.
        """
        if audience not in self._audiences:
            return None
        with self._lock:
            if self._status() in ENDED:
                self._given.clear()
                return None
            now, known = self._clock.now(), self._given.get(audience)
            if known is not None and known.given_at <= now < _middle(known):
                return known.token
            self._given.pop(audience, None)
            made = self._ask(audience)
            self._given[audience] = _Given(made, now)
            return made


def _middle(given: _Given) -> datetime:
    return given.given_at + (given.token.expires_at - given.given_at) / 2


class Endpoint(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    """The server.

    Args:
        path: Of the socket, in a directory that other users cannot write.
        tokens: What it gives.
        users: Ids of users that may ask, beside its own and root.
        log: Where events go.

    Raises:
        UsageError: The socket cannot be made there.
    """

    daemon_threads = True
    block_on_close = False
    request_queue_size = AT_ONCE

    def __init__(self, path: Path, tokens: Tokens, users: Sequence[int], log: Log) -> None:
        self.tokens, self.log = tokens, log
        self._users = {0, os.geteuid(), *users}
        self._path = path
        self._busy = threading.BoundedSemaphore(AT_ONCE)
        self._refused, self._told_at = 0, -TOLD_SECONDS
        self._sent_away: deque[tuple[float, socket.socket]] = deque()
        try:
            # Who swaps the socket gives out tokens of another machine.
            clear_place(path, directory_mode=0o755)
            super().__init__(str(path), _Handler)
            # Anybody may connect: who stands there is looked at before a byte is read.
            path.chmod(0o666)
        except OSError as e:
            raise UsageError(f"socket {path}: {e.strerror}") from e

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer who may ask, in a thread; send others away."""
        user = user_of(request)
        if user not in self._users:
            self._tell_refused(user)
            self._send_away(request, HTTPStatus.FORBIDDEN)
        elif not self._busy.acquire(blocking=False):
            self._send_away(request, HTTPStatus.SERVICE_UNAVAILABLE)
        else:
            super().process_request(request, client_address)

    def _send_away(self, request: socket.socket, status: HTTPStatus) -> None:
        """Say so, and close *request* only after the time that a request may take.

        A client that still sends would find the pipe broken, and never read why.
        """
        with contextlib.suppress(OSError):
            request.setblocking(False)
            request.sendall(
                f"HTTP/1.1 {status} {status.phrase}\r\nConnection: close\r\nContent-Length: 0\r\n\r\n".encode()
            )
            request.shutdown(socket.SHUT_WR)
        self._sent_away.append((time.monotonic() + REQUEST_SECONDS, request))

    def service_actions(self) -> None:
        """Close those that were sent away long enough ago, and the oldest where there are too many."""
        while self._sent_away and (
            len(self._sent_away) > SENT_AWAY or self._sent_away[0][0] <= time.monotonic()
        ):
            self.close_request(self._sent_away.popleft()[1])

    def _tell_refused(self, user: int) -> None:
        """Log that *user* was refused, and how many were since the last line."""
        self._refused += 1
        if (now := time.monotonic()) - self._told_at >= TOLD_SECONDS:
            self.log.warning("identity.refused", user=user, times=self._refused)
            self._refused, self._told_at = 0, now

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer one, in its thread."""
        # The library's timeout is that of each read: a client that drips would keep its place.
        deadline = threading.Timer(REQUEST_SECONDS, _hear_no_more, (request,))
        deadline.daemon = True
        deadline.start()
        try:
            super().process_request_thread(request, client_address)
        finally:
            deadline.cancel()

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Read one and answer it; a client that sees its end finds a place again."""
        try:
            super().finish_request(request, client_address)
        finally:
            self._busy.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away in the middle needs no answer, and no trace in the log."""

    def close(self) -> None:
        """Stop listening."""
        self.server_close()
        while self._sent_away:
            self.close_request(self._sent_away.popleft()[1])
        self._path.unlink(missing_ok=True)


def _hear_no_more(request: socket.socket) -> None:
    # Its answer may still be on the way.
    with contextlib.suppress(OSError):
        request.shutdown(socket.SHUT_RD)


class _Handler(BaseHTTPRequestHandler):
    server: Endpoint
    timeout = REQUEST_SECONDS
    server_version, sys_version = "attestation-agent", ""

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        query = parse_qsl(parts.query, keep_blank_values=True)
        if parts.path != "/token" or [name for name, _ in query] != ["audience"]:
            self._say(404, {"error": "not-found", "detail": "GET /token?audience=… is all there is"})
            return
        try:
            found = self.server.tokens.get(query[0][1])
        except AttestationError as e:
            self.server.log.warning("identity.not_given", code=e.code, reason=str(e))
            self._say(503, {"error": e.code, "detail": str(e)})
            return
        if found is None:
            self._say(403, {"error": "forbidden", "detail": "this machine gives no token for that audience"})
            return
        self._say(200, {"token": found.token, "expires_at": rfc3339(found.expires_at)})

    def _say(self, status: int, members: dict[str, str]) -> None:
        body = json.dumps(members).encode("ascii") + b"\n"
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Cache-Control", "no-store")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 -- the library's name
        """No line for each request."""


@contextlib.contextmanager
def serving(endpoint: Endpoint) -> Iterator[None]:
    """Let *endpoint* answer in a thread of its own."""
    thread = threading.Thread(target=endpoint.serve_forever, args=(0.1,), name="identity", daemon=True)
    thread.start()
    try:
        yield
    finally:
        endpoint.shutdown()
        endpoint.close()


def user_ids(names: Sequence[str]) -> list[int]:
    """Return the ids of users that are named, or numbered.

    Raises:
        UsageError: There is no such user.
    """
    found = []
    for name in names:
        try:
            found.append(int(name) if name.isdecimal() else pwd.getpwnam(name).pw_uid)
        except KeyError:
            raise UsageError(f"--users: there is no user {name}") from None
    return found
