"""A port at which nobody can listen is told before anything is made."""

from __future__ import annotations

import socket

import pytest

from attestation_service.process.listening import obstacle


def test_a_port_that_is_taken_and_one_that_is_free() -> None:
    """The one is told with what to do, the other is left free."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert "another program listens there" in (obstacle("127.0.0.1", port) or "")
    assert obstacle("127.0.0.1", port) is None
    socket.create_server(("127.0.0.1", port)).close()


@pytest.mark.parametrize(
    ("host", "port", "words"),
    [
        ("192.0.2.1", 8080, "this computer has no such address"),
        ("no such host", 8080, "--host takes 0.0.0.0"),
        ("127.0.0.1", 70_000, "--port takes a number from 1 to 65535"),
    ],
)
def test_addresses_at_which_nobody_can_listen(host: str, port: int, words: str) -> None:
    """Each with its own cause."""
    assert words in (obstacle(host, port) or "")
