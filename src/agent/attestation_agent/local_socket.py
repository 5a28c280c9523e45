"""Unix sockets for other programs of this machine: where they may be made, and who stands at the other end."""

from __future__ import annotations

import os
import socket
import stat
import struct
from pathlib import Path
from typing import Final

from attestation_agent.exits import UsageError

MAX_PATH_BYTES: Final = 107
"""Of a socket's path, without the zero at its end (unix(7), `sun_path`)."""
_UCRED: Final = struct.Struct("iII")
"""Process, user, group (unix(7), `struct ucred`)."""


def clear_place(path: Path, *, directory_mode: int) -> None:
    """Make the directory of a socket where it is absent, and remove what is left of an earlier socket.

    Args:
        path: Of the socket.
        directory_mode: What others may do in the directory at most: any user who could write there could put a socket
            of their own in the place of ours.

    Raises:
        UsageError: The path is too long, or the directory belongs to another user or lets others do more.
        OSError: It cannot be made or read.
    """
    if (size_bytes := len(os.fsencode(path))) > MAX_PATH_BYTES:
        raise UsageError(
            f"socket {path}: a path of at most {MAX_PATH_BYTES} bytes is expected, not {size_bytes}"
        )
    directory = path.parent
    directory.mkdir(mode=directory_mode, parents=True, exist_ok=True)
    found = directory.stat()
    mode = stat.S_IMODE(found.st_mode)
    if found.st_uid != os.geteuid() or mode & 0o777 & ~directory_mode:
        raise UsageError(
            f"directory {directory} of the socket must be of user {os.geteuid()}, mode {directory_mode:04o} at most; "
            f"it is of user {found.st_uid}, mode {mode:04o}"
        )
    path.unlink(missing_ok=True)


def user_of(connection: socket.socket) -> int:
    """Return the id of the user who connected, as the kernel says it."""
    sent = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    user: int = _UCRED.unpack(sent)[1]
    return user
