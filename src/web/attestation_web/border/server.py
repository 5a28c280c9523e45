"""uvicorn's server, which says where it serves once it does: the port may be any that was free."""

from __future__ import annotations

import socket
from collections.abc import Callable

import uvicorn


class Server(uvicorn.Server):
    """Serves one application.

    Args:
        config: What is served, and where.
        serves: Told the port as soon as it listens.
    """

    def __init__(self, config: uvicorn.Config, serves: Callable[[int], object]) -> None:
        super().__init__(config)
        self._serves = serves

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and say so."""
        await super().startup(sockets)
        if self.started:
            self._serves(self.servers[0].sockets[0].getsockname()[1])
