"""A small witness: keeps what it cosigned last, cosigns what only adds to it, speaks C2SP tlog-witness over HTTP.

One process, one directory, one lock. The new state is on the disk before a signature leaves: after a crash the
witness may have kept a checkpoint that nobody got a signature for, never the other way round.
"""

# Algorithms for: audit-note
from __future__ import annotations

import fcntl
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final, Self

from attestation.audit.checkpoint import Checkpoint, parse_text, signed_message
from attestation.audit.note import KeyType, VerifierKey, signature_line
from attestation.audit.witness import MAX_REQUEST_BYTES, TEXT_MEDIA_TYPE, Refuse, consider
from attestation.errors import KeyUnusable, MalformedEvidence, RequestInvalid
from attestation.keys.notes import NoteKey, load_ed25519, load_mldsa44
from attestation_cli.login.errors import CacheUnsafe
from attestation_cli.login.private_files import open_directory, read, write

STATE: Final = "state.json"
STATE_FORMAT: Final = "itl-witness-state-v1"
PATH: Final = "/add-checkpoint"

MAX_CONNECTIONS: Final = 32
"""Connections served at once; more of them wait in the queue of the system."""

CONNECTION_SECONDS: Final = 15.0
"""Longest life of a connection, however it trickles."""


class WitnessUnusable(RequestInvalid):
    """The directory or keys of the witness cannot be used, or its state cannot be believed."""

    code = "witness-unusable"


@dataclass(frozen=True, slots=True)
class CosigningKey:
    """A private key with the name under which it cosigns."""

    public: VerifierKey
    private: NoteKey


def make(directory: Path, name: str) -> tuple[CosigningKey, ...]:
    """Make the keys and the empty state of a new witness; what exists is left as it is.

    Raises:
        WitnessUnusable: The directory cannot be made, or is not the user's alone, or its keys cannot be used.
    """
    with _Directory(directory, create=True) as opened:
        keys = _keys(opened.path, name, create=True)
        if opened.read(STATE) is None:
            opened.write(STATE, _state_text({}))
        return keys


def public_keys(directory: Path, name: str) -> tuple[VerifierKey, ...]:
    """Return the keys under which the witness *name* in *directory* cosigns.

    Raises:
        WitnessUnusable: There is no such directory, it is not the user's alone, or has no keys that can be used.
    """
    with _Directory(directory, create=False) as opened:
        return tuple(key.public for key in _keys(opened.path, name, create=False))


class Witness:
    """The witness in one directory, which no other process uses meanwhile; a context manager.

    Args:
        directory: Where keys and state are.
        name: Name of the witness, under which it cosigns.
        logs: Keys of the logs that it watches.
        now: Seconds since 1970.
    """

    def __init__(
        self, directory: Path, name: str, logs: Sequence[VerifierKey], now: Callable[[], float] = time.time
    ) -> None:
        self._directory = _Directory(directory, create=False)
        self._name = name
        self._logs = tuple(logs)
        self._now = now
        self._lock = threading.Lock()
        self._newest: dict[str, Checkpoint] = {}
        self._keys: tuple[CosigningKey, ...] = ()

    def __enter__(self) -> Self:
        """Take the directory, the keys and the state.

        Raises:
            WitnessUnusable: Another process has it, or keys or state are missing or damaged.
        """
        self._directory.__enter__()
        try:
            self._directory.lock()
            self._keys = _keys(self._directory.path, self._name, create=False)
            self._newest = _parse_state(self._directory.read(STATE))
        except BaseException:
            self._directory.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Give the directory back."""
        self._directory.close()

    @property
    def vkeys(self) -> tuple[VerifierKey, ...]:
        """The keys under which it cosigns."""
        return tuple(key.public for key in self._keys)

    def add_checkpoint(self, data: bytes) -> tuple[int, str, str, str]:
        """Answer one request: status, media type, body, and a word for the log of the witness.

        Raises:
            WitnessUnusable: The new state could not be kept; nothing was signed.
        """
        # One at a time, from the decision to the disk: two requests could otherwise both follow the same last one.
        with self._lock:
            decision = consider(data, logs=self._logs, newest=self._newest)
            if isinstance(decision, Refuse):
                return decision.status, decision.media_type, decision.body, decision.why
            new = decision.checkpoint
            if self._newest.get(new.origin) != new:
                newest = {**self._newest, new.origin: new}
                self._directory.write(STATE, _state_text(newest))
                self._newest = newest
        seconds = int(self._now())
        lines = [
            signature_line(key.public, key.private.sign(signed_message(key.public, new, seconds)), seconds)
            for key in self._keys
        ]
        return 200, TEXT_MEDIA_TYPE, "".join(f"{line}\n" for line in lines), f"{new.origin} {new.size}"


class Server(ThreadingHTTPServer):
    """Serves one witness.

    Args:
        address: Host and port; port 0 takes a free one.
        witness: Whom it serves.
        log: Takes a line for each request.
    """

    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(self, address: tuple[str, int], witness: Witness, log: Callable[[str], None]) -> None:
        self.witness = witness
        self.log = log
        self._room = threading.BoundedSemaphore(MAX_CONNECTIONS)
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        super().__init__(address, _Handler)

    @property
    def url(self) -> str:
        """Where it listens."""
        host, port = self.server_address[:2]
        name = host.decode() if isinstance(host, bytes) else str(host)
        return f"http://[{name}]:{port}" if ":" in name else f"http://{name}:{port}"

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection on a thread of its own, once there is room."""
        self._room.acquire()
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._room.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve a connection, and end it when its time is over."""
        guard = threading.Timer(CONNECTION_SECONDS, _hang_up, (request,))
        guard.daemon = True
        guard.start()
        try:
            super().process_request_thread(request, client_address)
        finally:
            guard.cancel()
            self._room.release()

    def handle_error(self, request: object, client_address: object) -> None:  # noqa: ARG002 -- the base's signature
        """Say that a connection broke; whoever broke it gets no answer."""
        self.log(f"{_host(client_address)} connection failed")


class _Handler(BaseHTTPRequestHandler):
    """One connection, one request."""

    server: Server
    server_version = "itl-witness"
    sys_version = ""
    timeout = CONNECTION_SECONDS

    def do_POST(self) -> None:
        """Answer `add-checkpoint`."""
        if self.path != PATH:
            self._answer(404, TEXT_MEDIA_TYPE, f"this witness has POST {PATH} only\n", self.path[:80])
            return
        length = self.headers.get("Content-Length", "")
        if "Transfer-Encoding" in self.headers or not (length.isascii() and length.isdigit()):
            self._answer(411, TEXT_MEDIA_TYPE, "a Content-Length is needed\n", "no length")
            return
        if len(length) > 9 or int(length) > MAX_REQUEST_BYTES:
            self._answer(413, TEXT_MEDIA_TYPE, f"at most {MAX_REQUEST_BYTES} bytes\n", "too long")
            return
        data = self.rfile.read(int(length))
        if len(data) != int(length):
            return
        try:
            self._answer(*self.server.witness.add_checkpoint(data))
        except WitnessUnusable as e:
            self._answer(503, TEXT_MEDIA_TYPE, "the state could not be kept; nothing was signed\n", str(e))

    def _answer(self, status: int, media_type: str, body: str, why: str) -> None:
        data = body.encode()
        self.send_response(status)
        self.send_header("Content-Type", media_type)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(data)
        self.server.log(f"{_host(self.client_address)} {status} {why}")

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 -- the base's signature
        """Stay silent: `_answer` says more."""


class _Directory:
    """A private directory, mode 0700, opened once; files in it are replaced whole and synced."""

    def __init__(self, path: Path, *, create: bool) -> None:
        self.path = path.expanduser().absolute()
        self._create = create
        self._fd: int | None = None
        self._lock_fd: int | None = None

    def __enter__(self) -> Self:
        try:
            self._fd = open_directory(self.path, create=self._create)
        except CacheUnsafe as e:
            raise WitnessUnusable(str(e)) from e
        if self._fd is None:
            raise WitnessUnusable(f"{self.path} does not exist; `attestation witness keygen` makes it")
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close it, and let others have it."""
        for fd in (self._lock_fd, self._fd):
            if fd is not None:
                os.close(fd)
        self._fd = self._lock_fd = None

    def lock(self) -> None:
        """Keep every other witness out until `close`."""
        assert self._fd is not None
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            self._lock_fd = os.open(".lock", flags, 0o600, dir_fd=self._fd)
            fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as e:
            raise WitnessUnusable(f"another witness uses {self.path}, or it cannot be locked") from e

    def read(self, name: str) -> bytes | None:
        """Return the content of the file *name*; None where there is none."""
        assert self._fd is not None
        try:
            return read(self.path, self._fd, name)
        except CacheUnsafe as e:
            raise WitnessUnusable(str(e)) from e

    def write(self, name: str, data: bytes) -> None:
        """Put *data* in the place of the file *name*, durably."""
        assert self._fd is not None
        try:
            write(self.path, self._fd, name, data)
        except CacheUnsafe as e:
            raise WitnessUnusable(str(e)) from e


def _keys(directory: Path, name: str, *, create: bool) -> tuple[CosigningKey, ...]:
    """Load both keys: whoever breaks one algorithm has not yet forged a cosignature of the other."""
    try:
        ed25519 = load_ed25519(f"file:{directory}/ed25519.pem", create=create)
        mldsa = load_mldsa44(f"file:{directory}/ml-dsa-44.pem", create=create)
    except KeyUnusable as e:
        raise WitnessUnusable(str(e)) from e
    return tuple(
        CosigningKey(VerifierKey(name=name, type=kind, key=key.public_key), key)
        for kind, key in ((KeyType.ED25519_COSIGNATURE, ed25519), (KeyType.ML_DSA_44, mldsa))
    )


def _state_text(newest: Mapping[str, Checkpoint]) -> bytes:
    """Write the state: by origin the text of the last checkpoint cosigned."""
    logs = {origin: str(newest[origin]) for origin in sorted(newest)}
    return json.dumps({"format": STATE_FORMAT, "logs": logs}, indent=2).encode() + b"\n"


def _parse_state(data: bytes | None) -> dict[str, Checkpoint]:
    """Read the state.

    Raises:
        WitnessUnusable: It is missing or damaged; only a person may decide what to do then.
    """
    if data is None:
        # A witness that forgot would cosign another history, so it does not start from nothing by itself.
        raise WitnessUnusable(f"{STATE} is missing: this witness does not know what it cosigned")
    try:
        state = json.loads(data)
        newest = {origin: parse_text(text) for origin, text in state.pop("logs").items()}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, MalformedEvidence) as e:
        raise WitnessUnusable(
            f"{STATE} is damaged ({type(e).__name__}); put nothing older in its place"
        ) from e
    if state != {"format": STATE_FORMAT} or any(name != head.origin for name, head in newest.items()):
        raise WitnessUnusable(f"{STATE} is not of format {STATE_FORMAT}; put nothing older in its place")
    return newest


def _hang_up(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # it is closed already


def _host(client_address: object) -> str:
    return str(client_address[0]) if isinstance(client_address, tuple) else "?"
