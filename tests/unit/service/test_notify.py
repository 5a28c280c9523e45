"""systemd is told when the service serves and when it ends, as sd_notify(3) says; workers tell nothing."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from attestation_service.process import notify


@pytest.fixture
def manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """Where a service manager listens."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(tmp_path / "notify"))
        listening.setblocking(False)
        monkeypatch.setenv(notify.VARIABLE, str(tmp_path / "notify"))
        yield listening


def test_the_manager_is_told(manager: socket.socket) -> None:
    """One datagram for each state."""
    notify.tell(notify.READY)
    notify.tell(notify.STOPPING)
    assert [manager.recv(100), manager.recv(100)] == [b"READY=1", b"STOPPING=1"]


def test_an_abstract_address_begins_with_a_zero_byte(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The variable has an @ there."""
    name = f"itl-{tmp_path.parent.name}-{tmp_path.name}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(f"\0{name}")
        monkeypatch.setenv(notify.VARIABLE, f"@{name}")
        notify.tell(notify.READY)
        assert listening.recv(100) == b"READY=1"


def test_a_worker_is_not_the_service(manager: socket.socket) -> None:
    """It says nothing in its name."""
    notify.leave_it_to_the_supervisor()
    notify.tell(notify.READY)
    with pytest.raises(BlockingIOError):
        manager.recv(100)


def test_who_cannot_be_told_is_no_reason_to_end(manager: socket.socket) -> None:
    """Nobody there: one line in the log. None asked to be told: none."""
    manager.close()
    with structlog.testing.capture_logs() as said:
        notify.tell(notify.READY)
        notify.leave_it_to_the_supervisor()
        notify.tell(notify.READY)
    assert [each["event"] for each in said] == ["service.manager_not_told"]
