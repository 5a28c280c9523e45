"""Ways to a TPM, named by URI. One command goes out, one response comes back, or `DeviceError`.

- `device:/dev/tpmrm0`: the kernel's resource manager; also `device:/dev/tpm0`, which has none.
- `unix:/path/to/socket` and `tcp:host:port`: a software TPM that takes raw commands, such as `swtpm socket`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import time
from types import TracebackType
from typing import Final, Protocol, Self

from attestation.device.faults import fault_of
from attestation.errors import DeviceError
from attestation.tpm.commands import HEADER_BYTES, MAX_COMMAND_BYTES, MAX_RESPONSE_BYTES

CONNECT_TIMEOUT_SECONDS: Final = 5.0


_MEANINGS: Final = {
    errno.ENOENT: ". There is no such device here: switch the TPM on in the firmware's setup, load its driver "
    "(`modprobe tpm_tis` or `tpm_crb`), and see `ls /dev/tpm*`; one in another place is named with --tpm or ITL_TPM",
    errno.EACCES: ". Run this as root, or as a user in the group tss: `usermod -aG tss USER`, then log in again",
    errno.EBUSY: ". Another program holds it alone: use /dev/tpmrm0, which programs share",
}
"""What it means that a device cannot be opened, and what to do, after the words of the system."""


_ONE_AT_A_TIME: Final = "a software TPM serves one program at a time: try again, or end the one that holds it"


class Transport(Protocol):
    """Carries commands to one TPM."""

    exclusive: bool
    """Nobody else uses this TPM while we do and nothing manages its memory: what is loaded is ours or left over."""

    def transmit(self, command: bytes, timeout_seconds: float) -> bytes:
        """Send *command* and return the whole response, at most 4096 bytes.

        Raises:
            DeviceError: Not answered in time, cut short, too long, or the transport is broken. It stays broken:
                a late answer must never be taken for that of the next command.
        """
        ...

    def close(self) -> None:
        """Let go of the TPM; may be called twice."""
        ...


def open_transport(uri: str) -> Transport:
    """Open the TPM that *uri* names.

    Raises:
        DeviceError: No such device, nobody listens, or the URI has none of the known forms.
    """
    scheme, _, rest = uri.partition(":")
    if scheme == "device" and rest:
        return DeviceTransport(rest)
    if scheme == "unix" and rest:
        return SocketTransport.unix(rest)
    if scheme == "tcp" and rest:
        host, _, port = rest.rpartition(":")
        if host and port.isdecimal() and 0 < int(port) < 65536:
            return SocketTransport.tcp(host.strip("[]"), int(port))
    raise DeviceError(
        f"TPM {uri[:100]!r}: expected device:PATH, unix:PATH or tcp:HOST:PORT, e.g. device:/dev/tpmrm0"
    )


class _StreamTransport:
    """What files and sockets have in common: write all, then read until the size in the header is reached."""

    exclusive = False
    silence = "no answer in time"

    def __init__(self, fd: int, name: str) -> None:
        self._fd = fd
        self._name = name
        self._broken = ""
        self._fault = "failed"
        self._poll = select.poll()
        self._poll.register(fd, select.POLLIN)

    def transmit(self, command: bytes, timeout_seconds: float) -> bytes:
        if self._fd < 0:
            raise DeviceError(f"TPM {self._name} is closed")
        if self._broken:
            raise DeviceError(f"TPM {self._name} failed before: {self._broken}", fault=self._fault)
        if len(command) > MAX_COMMAND_BYTES:
            raise DeviceError(f"command of {len(command)} bytes, at most {MAX_COMMAND_BYTES} allowed")
        try:
            return self._exchange(command, time.monotonic() + timeout_seconds)
        except OSError as e:
            self._broken, self._fault = e.strerror or str(e), fault_of(e)
            raise DeviceError(f"TPM {self._name}: {self._broken}", fault=self._fault) from e
        except DeviceError as e:
            self._broken, self._fault = str(e), e.fault
            raise

    def _exchange(self, command: bytes, deadline: float) -> bytes:
        self._write(command, deadline)
        response = b""
        size = HEADER_BYTES
        while len(response) < size:
            self._wait(select.POLLIN, deadline)
            # Ask for more than is expected: a device driver hands out one response per read.
            part = self._read(MAX_RESPONSE_BYTES + 1 - len(response))
            if not part:
                raise DeviceError(f"TPM {self._name}: connection closed after {len(response)} bytes")
            response += part
            if len(response) >= HEADER_BYTES:
                size = int.from_bytes(response[2:6])
                if not HEADER_BYTES <= size <= MAX_RESPONSE_BYTES:
                    raise DeviceError(f"TPM {self._name}: response says {size} bytes", fault="malformed")
        if len(response) != size:
            raise DeviceError(
                f"TPM {self._name}: response of {len(response)} bytes says {size}", fault="malformed"
            )
        return response

    def _wait(self, event: int, deadline: float) -> None:
        self._poll.modify(self._fd, event)
        left = deadline - time.monotonic()
        if left <= 0 or not self._poll.poll(left * 1000):
            raise DeviceError(f"TPM {self._name}: {self.silence}", fault="busy")

    def _write(self, data: bytes, deadline: float) -> None:
        raise NotImplementedError

    def _read(self, size_bytes: int) -> bytes:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class DeviceTransport(_StreamTransport):
    """A character device of the kernel. A command is one write; the response can be polled for.

    Args:
        path: `/dev/tpmrm0` or `/dev/tpm0`.
    """

    def __init__(self, path: str) -> None:
        try:
            # O_NONBLOCK: the kernel (5.0 and later) then works in the background, so that poll() can time out.
            fd = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as e:
            raise DeviceError(
                f"TPM {path}: {e.strerror}", fault=fault_of(e), hint=_MEANINGS.get(e.errno or 0, "")
            ) from e
        super().__init__(fd, path)

    def _write(self, data: bytes, deadline: float) -> None:  # noqa: ARG002 -- the driver takes all or nothing
        if os.write(self._fd, data) != len(data):
            raise DeviceError(f"TPM {self._name}: command was not taken whole")

    def _read(self, size_bytes: int) -> bytes:
        return os.read(self._fd, size_bytes)

    def close(self) -> None:
        """Close the device; the kernel then flushes what we left loaded."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class SocketTransport(_StreamTransport):
    """A stream socket on which a software TPM takes raw commands, from one client at a time."""

    exclusive = True
    silence = f"no answer in time; {_ONE_AT_A_TIME}"

    def __init__(self, connection: socket.socket, name: str) -> None:
        super().__init__(connection.fileno(), name)
        self._socket = connection
        self._socket.setblocking(False)

    @classmethod
    def unix(cls, path: str) -> Self:
        """Connect to the socket at *path*."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.settimeout(CONNECT_TIMEOUT_SECONDS)
            _connect(connection, path)
        except BlockingIOError as e:
            connection.close()
            raise DeviceError(f"TPM {path}: too many wait for it; {_ONE_AT_A_TIME}", fault=fault_of(e)) from e
        except OSError as e:
            connection.close()
            raise DeviceError(f"TPM {path}: {e.strerror or e}", fault=fault_of(e)) from e
        return cls(connection, path)

    @classmethod
    def tcp(cls, host: str, port: int) -> Self:
        """Connect to *port* of *host*."""
        try:
            connection = socket.create_connection((host, port), CONNECT_TIMEOUT_SECONDS)
        except OSError as e:
            raise DeviceError(f"TPM {host}:{port}: {e.strerror or e}", fault=fault_of(e)) from e
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return cls(connection, f"{host}:{port}")

    def _write(self, data: bytes, deadline: float) -> None:
        while data:
            self._wait(select.POLLOUT, deadline)
            data = data[self._socket.send(data) :]

    def _read(self, size_bytes: int) -> bytes:
        return self._socket.recv(size_bytes)

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()
        self._fd = -1


def _connect(connection: socket.socket, path: str) -> None:
    """Connect, again while too many others wait there: AF_UNIX then says EAGAIN instead of waiting."""
    give_up_at = time.monotonic() + CONNECT_TIMEOUT_SECONDS
    while True:
        try:
            connection.connect(path)
        except BlockingIOError:
            if time.monotonic() > give_up_at:
                raise
            time.sleep(0.01)
        else:
            return
