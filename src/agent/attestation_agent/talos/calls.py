"""One call of gRPC over a Unix socket: HTTP/2 by h2, one message there, one back, in bounded time and memory.

gRPC over HTTP/2: github.com/grpc/grpc, doc/PROTOCOL-HTTP2.md. A connection lives for one call: what machined does
may end it, and there are a few calls in the life of a machine.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import (
    DataReceived,
    Event,
    ResponseReceived,
    StreamEnded,
    StreamReset,
    TrailersReceived,
)
from h2.exceptions import H2Error
from h2.settings import SettingCodes, Settings

from attestation.client.text import clean
from attestation_agent.local_socket import user_of
from attestation_agent.talos.errors import (
    MachinedAnswerRefused,
    MachinedDenied,
    MachinedFailed,
    MachinedRefused,
    MachinedTooOld,
    MachinedUnavailable,
)

MAX_ANSWER_BYTES: Final = 8 << 20
"""Of a message that comes back: a dry run quotes the configuration of before and the one of after it."""
MAX_RECEIVED_BYTES: Final = MAX_ANSWER_BYTES + (1 << 20)
"""Of all that comes back, frames of HTTP/2 that carry nothing included."""
MAX_HEADER_BYTES: Final = 32 << 10
MAX_TOLD: Final = 200
POLL_SECONDS: Final = 0.5
"""How soon a call ends when the agent is to stop."""
_STREAM: Final = 1
"""The first of a client, and the only one of this connection."""
_PREFIX_BYTES: Final = 5
"""Of a message: whether it is compressed, and its length, 32 bits big endian."""
_HEADER_BYTES: Final = 9
"""Of a frame: length, 24 bits big endian, type, flags, stream (RFC 9113 §4.1)."""
_GOAWAY: Final = 7
_NAMES: Final = (
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
)
_KINDS: Final[Mapping[str, type[MachinedFailed]]] = {
    "CANCELLED": MachinedUnavailable,
    "DEADLINE_EXCEEDED": MachinedUnavailable,
    "PERMISSION_DENIED": MachinedDenied,
    "RESOURCE_EXHAUSTED": MachinedUnavailable,
    "UNIMPLEMENTED": MachinedTooOld,
    "UNAVAILABLE": MachinedUnavailable,
    "UNAUTHENTICATED": MachinedDenied,
}
"""What a status means; another one than these is a refusal."""
_STATUS: Final = re.compile(r"\d{1,2}")


def call(
    path: Path,
    method: str,
    message: bytes,
    *,
    metadata: Mapping[str, str],
    timeout_seconds: float,
    stopping: Callable[[], bool] = lambda: False,
) -> bytes:
    """Return the message that *method* answers.

    Args:
        path: Of the socket.
        method: `/package.Service/Method`.
        message: The request.
        metadata: Sent as headers.
        timeout_seconds: From here to the answer.
        stopping: Asked again and again; once True, the call is given up.

    Raises:
        MachinedFailed: One of its leaves, without words of the other side.
    """
    ends_at = time.monotonic() + timeout_seconds
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(timeout_seconds)
        try:
            connection.connect(os.fspath(path))
        except OSError as e:
            raise MachinedUnavailable(f"{path}: {e.strerror or 'no answer in time'}") from e
        # Who else could make a socket there would be given the configuration.
        if (user := user_of(connection)) not in (0, os.geteuid()):
            raise MachinedDenied(f"{path} is served by user {user}, not by root")
        wire = _Wire(connection, ends_at, stopping)
        answer = Answer()
        conversation = Conversation(answer, method, message, metadata, timeout_seconds)
        try:
            wire.send(conversation.begin())
            while not answer.ended:
                wire.send(conversation.received(wire.receive()))
        except TimeoutError as e:
            raise MachinedUnavailable("machined did not answer in time") from e
        except OSError as e:
            raise MachinedUnavailable("machined hung up") from e
        return answer.message()


class _Wire:
    """A socket with an end in time."""

    def __init__(self, connection: socket.socket, ends_at: float, stopping: Callable[[], bool]) -> None:
        self._connection = connection
        self._ends_at = ends_at
        self._stopping = stopping
        self._received = 0

    def send(self, data: bytes) -> None:
        """Send it, where somebody still reads: what was said before they hung up is there to be heard."""
        self._connection.settimeout(self._left())
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._connection.sendall(data)

    def receive(self) -> bytes:
        """Return what came; nothing where the other side hung up."""
        while True:
            if self._stopping():
                raise MachinedUnavailable("the agent stops")
            self._connection.settimeout(min(self._left(), POLL_SECONDS))
            try:
                data = self._connection.recv(65_536)
            except TimeoutError:
                continue
            self._received += len(data)
            if self._received > MAX_RECEIVED_BYTES:
                raise MachinedAnswerRefused(f"machined sends more than {MAX_RECEIVED_BYTES} bytes")
            return data

    def _left(self) -> float:
        left = self._ends_at - time.monotonic()
        if left <= 0:
            raise MachinedUnavailable("machined did not answer in time")
        return left


class Answer:
    """What came back so far: nothing of it is believed before the stream has ended with a status."""

    def __init__(self) -> None:
        self.headers: dict[str, str] = {}
        self.data = bytearray()
        self.ended = False

    def add(self, data: bytes) -> None:
        """Keep a part of the message.

        Raises:
            MachinedAnswerRefused: It is too long.
        """
        self.data += data
        if len(self.data) > MAX_ANSWER_BYTES + _PREFIX_BYTES:
            raise MachinedAnswerRefused(f"machined answers more than {MAX_ANSWER_BYTES} bytes")

    def message(self) -> bytes:
        """Return the message, once there is a status and it is a success.

        Raises:
            MachinedFailed: There is none, or it is another one.
        """
        if self.headers.get(":status") != "200" or "grpc-status" not in self.headers:
            raise MachinedAnswerRefused("what answers at the socket does not speak gRPC")
        status = self.headers["grpc-status"]
        number = int(status) if _STATUS.fullmatch(status) and status.isascii() else -1
        if not 0 <= number < len(_NAMES):
            raise MachinedAnswerRefused("the answer of machined has a status that gRPC does not know")
        if number:
            name = _NAMES[number]
            told = clean(unquote(self.headers.get("grpc-message", "")[: 8 * MAX_TOLD]))[:MAX_TOLD]
            raise _KINDS.get(name, MachinedRefused)(f"machined answers {name}", told=told)
        prefix, message = bytes(self.data[:_PREFIX_BYTES]), bytes(self.data[_PREFIX_BYTES:])
        # Compressed, or two messages, or part of one: none was asked for.
        if prefix != b"\0" + len(message).to_bytes(4, "big"):
            raise MachinedAnswerRefused("the answer of machined is not one message")
        return message


class Conversation:
    """What is sent in answer to what came: HTTP/2 with a request in it, without a socket."""

    def __init__(
        self,
        answer: Answer,
        method: str,
        message: bytes,
        metadata: Mapping[str, str],
        timeout_seconds: float,
    ) -> None:
        self._answer = answer
        self._headers = (
            (":method", "POST"),
            (":scheme", "http"),
            (":path", method),
            (":authority", "localhost"),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
            ("user-agent", "itl-attestation-agent"),
            ("grpc-timeout", f"{max(1, min(int(timeout_seconds * 1000), 99_999_999))}m"),
            *metadata.items(),
        )
        self._left = memoryview(b"\0" + len(message).to_bytes(4, "big") + message)
        self._unread = bytearray()
        self._h2 = H2Connection(H2Configuration(client_side=True, header_encoding="utf-8"))
        # Nothing is pushed to us, and headers are unpacked no further than this.
        self._h2.local_settings = Settings(
            client=True,
            initial_values={SettingCodes.ENABLE_PUSH: 0, SettingCodes.MAX_HEADER_LIST_SIZE: MAX_HEADER_BYTES},
        )
        self._h2.decoder.max_header_list_size = MAX_HEADER_BYTES

    def begin(self) -> bytes:
        """Return what is sent first."""
        self._h2.initiate_connection()
        self._h2.send_headers(_STREAM, self._headers)
        self._send()
        return self._h2.data_to_send()

    def received(self, data: bytes) -> bytes:
        """Take what came, and return what is sent next.

        Args:
            data: Empty where the other side hung up.

        Raises:
            MachinedUnavailable: It hung up, or ended the call, before there was an answer.
            MachinedAnswerRefused: It is no HTTP/2, or too much.
        """
        if not data:
            raise MachinedUnavailable("machined hung up")
        try:
            for frame in self._frames(data):
                for event in self._h2.receive_data(frame):
                    self._heard(event)
            if not self._answer.ended:
                self._send()
        except (H2Error, UnicodeDecodeError) as e:
            raise MachinedAnswerRefused("what answers at the socket does not speak HTTP/2") from e
        return self._h2.data_to_send()

    def _frames(self, data: bytes) -> Iterator[bytes]:
        """Yield the frames that are complete, without those that end the connection after our call.

        A server that stops says so first and answers what it has begun afterwards (RFC 9113 §6.8); h2 would hear
        nothing more.

        Raises:
            MachinedUnavailable: Our call is not among those that it answers.
        """
        self._unread += data
        while len(self._unread) >= _HEADER_BYTES:
            size = _HEADER_BYTES + int.from_bytes(self._unread[:3], "big")
            if size > self._h2.max_inbound_frame_size + _HEADER_BYTES:
                raise MachinedAnswerRefused("machined sends a frame that is longer than may be sent")
            if len(self._unread) < size:
                return
            frame = bytes(self._unread[:size])
            del self._unread[:size]
            if frame[3] != _GOAWAY:
                yield frame
            elif int.from_bytes(frame[_HEADER_BYTES : _HEADER_BYTES + 4], "big") & 0x7FFF_FFFF < _STREAM:
                raise MachinedUnavailable("machined ended the call")

    def _heard(self, event: Event) -> None:
        if self._answer.ended:
            return
        if isinstance(event, ResponseReceived | TrailersReceived):
            self._answer.headers.update((str(name), str(value)) for name, value in event.headers)
        elif isinstance(event, DataReceived):
            self._answer.add(event.data)
            self._h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        elif isinstance(event, StreamEnded):
            self._answer.ended = True
        elif isinstance(event, StreamReset):
            raise MachinedUnavailable("machined ended the call")

    def _send(self) -> None:
        """Send as much of the request as the other side has room for."""
        while self._left:
            room = min(
                self._h2.local_flow_control_window(_STREAM),
                self._h2.max_outbound_frame_size,
                len(self._left),
            )
            if room <= 0:
                return
            self._h2.send_data(_STREAM, bytes(self._left[:room]), end_stream=room == len(self._left))
            self._left = self._left[room:]
