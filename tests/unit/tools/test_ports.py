"""Ports of demos and tests: two that start at once do not get the same, else one would talk to the other's server."""

from __future__ import annotations

import socket
import subprocess
import sys

from tests.docs.pages import ROOT
from tools.ports import claim, free_port

ASK = "from tools.ports import free_port; import sys; print(free_port(int(sys.argv[1])), flush=True); input()"


def test_two_that_ask_for_the_same_port_get_two() -> None:
    """Neither listens yet; the second gets another, and the first leaves it when it ends."""
    wanted = free_port()
    command = [sys.executable, "-c", ASK]
    with subprocess.Popen(
        [*command, str(wanted)], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        given = int(other.stdout.readline())
        assert given != wanted  # it is ours
        assert not claim(given)
        other.communicate("\n")
    assert claim(given)


def test_a_port_where_somebody_listens_is_not_given() -> None:
    """Also where they never asked here."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert free_port(server.getsockname()[1]) != server.getsockname()[1]
