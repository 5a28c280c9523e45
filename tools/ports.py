"""Ports for servers that are started here: found before, listened on later, and nobody comes between."""

from __future__ import annotations

import socket
from pathlib import Path
from random import SystemRandom
from typing import Final

FIRST: Final = 10_000
_CLAIMS: Final[list[int]] = []
"""Descriptors that stay open."""


def claim(port: int) -> bool:
    """Keep *port* of the loopback interface from every other `free_port` until this process ends; False: one has it.

    The claim is an abstract socket: it is known where the port is, and goes with the process.
    """
    held = socket.socket(socket.AF_UNIX)
    try:
        held.bind(f"\0itl-port-{port}")
    except OSError:
        held.close()
        return False
    _CLAIMS.append(held.detach())
    return True


def free_port(wanted: int = 0) -> int:
    """Return a TCP port on loopback that nobody listens on, and that nobody else gets here: *wanted* if it is one.

    The kernel would choose one of those that it also gives to connections, any of which may take it before the server
    has started. The generator is not the one that every worker of the tests seeds alike.
    """
    end = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    port = wanted
    while not (port and claim(port) and _is_free(port)):
        port = SystemRandom().randrange(FIRST, end)
    return port


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
