"""Whether the service can listen where it is told to: asked before anything is made, and told in words."""

from __future__ import annotations

import errno
import socket
from typing import Final

_MEANINGS: Final = {
    errno.EADDRINUSE: "another program listens there: `ss -ltnp` shows which. End it, or take another port with --port",
    errno.EACCES: "a port below 1024 is for root: take one above with --port, or run the service with the capability "
    "CAP_NET_BIND_SERVICE",
    errno.EADDRNOTAVAIL: "this computer has no such address: `ip address` shows those that it has; --host takes one",
}


def obstacle(host: str, port: int) -> str | None:
    """Return why nobody can listen at *port* of *host*, and what to do; None where it can be done.

    Only words: between this look and the server's own attempt, another program may still be faster.
    """
    if not 0 <= port < 1 << 16:
        # The system would take the lower 16 bits.
        return f"cannot listen at port {port}: --port takes a number from 1 to 65535"
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            # As the server does: connections that have ended do not hold the port.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except socket.gaierror:
        return f"cannot listen at {host}: --host takes 0.0.0.0, or an address of this computer"
    except OSError as e:
        return f"cannot listen at port {port} of {host}: {_MEANINGS.get(e.errno or 0, e.strerror)}"
    return None
