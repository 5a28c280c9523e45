"""What a unit of `Type=notify` is told: sd_notify(3). So who starts a service waits until it serves."""

from __future__ import annotations

import os
import socket
from typing import Final

import structlog

log = structlog.get_logger("attestation_service")

VARIABLE: Final = "NOTIFY_SOCKET"
READY: Final = "READY=1"
STOPPING: Final = "STOPPING=1"


def tell(state: str) -> None:
    """Tell the service manager, where one listens; that it does not hear is no reason to end."""
    place = os.environ.get(VARIABLE)
    if not place:
        return
    # The first character of an abstract address is a zero byte, which no variable can hold.
    address = f"\0{place[1:]}" if place.startswith("@") else place
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as manager:
            manager.sendto(state.encode(), address)
    except OSError as e:
        log.warning("service.manager_not_told", state=state, reason=e.strerror)


def leave_it_to_the_supervisor() -> None:
    """Tell nothing from now on: a worker is not the service."""
    os.environ.pop(VARIABLE, None)
