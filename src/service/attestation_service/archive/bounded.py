"""A bound for all that is asked of an object storage: one that sends a byte at a time lets no read time out.

The timeouts of botocore are those of one read each. So the sockets of who asks are remembered, and shut from beside
when the time is over: the thread that waits finds their end and is free, whatever the server does.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Lock, Timer
from typing import Any, Final

from botocore.awsrequest import (
    AWSHTTPConnection,
    AWSHTTPConnectionPool,
    AWSHTTPSConnection,
    AWSHTTPSConnectionPool,
)


class TookTooLong(Exception):
    """The time was over before it was done; whatever was read may be cut off."""


class _Sockets:
    """Those of one block, each a second time: a connection may close or wrap its own while it is read."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._held: list[socket.socket] = []
        self.is_over = False

    def hold(self, sock: socket.socket) -> None:
        with self._lock:
            # Of the descriptor: one of TLS cannot be copied, and is shut below TLS.
            self._held.append(socket.socket(fileno=os.dup(sock.fileno())))
            if self.is_over:
                _shut(self._held[-1])

    def end(self) -> None:
        with self._lock:
            self.is_over = True
            for each in self._held:
                _shut(each)

    def close(self) -> None:
        with self._lock:
            while self._held:
                self._held.pop().close()


_SOCKETS: Final[ContextVar[_Sockets | None]] = ContextVar("sockets", default=None)


@contextmanager
def bounded(seconds: float) -> Iterator[None]:
    """End what the block asks by a client of `bind` when so many seconds are over.

    Raises:
        TookTooLong: They were, however the block ended.
    """
    sockets = _Sockets()
    token = _SOCKETS.set(sockets)
    timer = Timer(seconds, sockets.end)
    timer.daemon = True
    timer.start()
    try:
        yield
    except Exception as e:  # whatever a read of a socket that was shut is told as
        if sockets.is_over:
            raise TookTooLong(f"not done in {seconds:.0f} s") from e
        raise
    else:
        # An answer that was cut off may look like a whole one.
        if sockets.is_over:
            raise TookTooLong(f"not done in {seconds:.0f} s")
    finally:
        timer.cancel()
        sockets.close()
        _SOCKETS.reset(token)


def bind(client: Any) -> Any:
    """Return *client*, of botocore, with connections that a block of `bounded` ends."""
    # botocore lets nobody choose them. Where another version keeps them elsewhere, a test with a server that trickles
    # says so.
    session = client._endpoint.http_session  # noqa: SLF001 -- as said
    session._pool_classes_by_scheme.update(http=_Pool, https=_TLSPool)  # noqa: SLF001 -- as said
    return client


def _hold(sock: socket.socket | None) -> None:
    sockets = _SOCKETS.get()
    if sock is not None and sockets is not None:
        sockets.hold(sock)


def _shut(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)


class _Held:
    """Mixed into a connection of urllib3: what it reads from is held, from before a handshake on."""

    sock: socket.socket | None

    def _new_conn(self) -> socket.socket:
        sock: socket.socket = super()._new_conn()  # type: ignore[misc]  # of what it is mixed into
        _hold(sock)
        return sock

    def request(self, *args: Any, **kwargs: Any) -> Any:
        _hold(self.sock)  # of a request before
        return super().request(*args, **kwargs)  # type: ignore[misc]  # likewise


class _Connection(_Held, AWSHTTPConnection):  # type: ignore[misc]  # botocore has no types
    pass


class _TLSConnection(_Held, AWSHTTPSConnection):  # type: ignore[misc]  # botocore has no types
    pass


class _Pool(AWSHTTPConnectionPool):  # type: ignore[misc]  # botocore has no types
    ConnectionCls = _Connection


class _TLSPool(AWSHTTPSConnectionPool):  # type: ignore[misc]  # botocore has no types
    ConnectionCls = _TLSConnection
