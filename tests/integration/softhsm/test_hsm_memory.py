"""No byte of a CA key that was made on a token is in the controller's memory (issue of CA keys in hardware).

The token is SoftHSM in another process (p11-kit), as a device of its own is: the number that the key is, taken from the
token's files with its PIN, is looked for in all that the controller's process has in memory.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from attestation.wire import b64decode
from tests.fixtures.softhsm import PIN, RemoteHSM, SoftHSM, remote_hsm, softhsm
from tests.fixtures.softhsm_files import private_number

__all__ = ["remote_hsm", "softhsm"]

pytestmark = pytest.mark.softhsm
PIECE = 16
"""Bytes of a key that are looked for together: any that stand in it one after the other at such a place."""


class Process:
    """A process that did what the controller does."""

    def __init__(self, running: subprocess.Popen[str]) -> None:
        self._running = running
        told = self._line()
        assert told["issued"] == 20
        public = x509.load_der_x509_certificate(b64decode(told["certificate"], "it")).public_key()
        assert isinstance(public, ec.EllipticCurvePublicKey)
        self.public = public

    def _line(self) -> dict[str, Any]:
        assert self._running.stdout is not None
        line = self._running.stdout.readline()
        assert line, "the process ended"
        said: dict[str, Any] = json.loads(line)
        return said

    def hold(self, data: bytes) -> None:
        """Have it keep *data*."""
        assert self._running.stdin is not None
        self._running.stdin.write(json.dumps({"hold": data.hex()}) + "\n")
        self._running.stdin.flush()
        self._line()

    def memory(self) -> Iterator[bytes]:
        """Yield all that it has in memory and can be read, region by region."""
        place = Path("/proc") / str(self._running.pid)
        with (place / "mem").open("rb", buffering=0) as memory:
            for line in (place / "maps").read_text().splitlines():
                span, rights, *_, name = [*line.split(maxsplit=5), ""][:6]
                begin, end = (int(each, 16) for each in span.split("-"))
                if "r" not in rights or name.startswith(("[vvar", "[vsyscall")):
                    continue
                memory.seek(begin)
                parts, left = [], end - begin
                while left and (part := memory.read(left)):
                    parts.append(part)
                    left -= len(part)
                yield b"".join(parts)

    def finds(self, pieces: set[bytes]) -> int:
        """Return how many of *pieces* stand somewhere in its memory."""
        left = set(pieces)
        for region in self.memory():
            left -= {piece for piece in left if piece in region}
        return len(pieces) - len(left)


@contextmanager
def process(module: Path, hsm: SoftHSM) -> Iterator[Process]:
    """Run one, its key made on the token."""
    command = [sys.executable, "-m", "tests.integration.softhsm.hsm_process", str(module), str(hsm.pin_file)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as running:
        try:
            yield Process(running)
        finally:
            running.kill()


def pieces(number: int) -> set[bytes]:
    """Return what a key looks like in memory: parts of its bytes, either way round, and written down."""
    data = number.to_bytes(48)
    found = {way[at : at + PIECE] for way in (data, data[::-1]) for at in range(0, 48, PIECE)}
    return found | {data.hex().encode()[:32], data.hex().upper().encode()[:32], str(number).encode()[:32]}


def test_a_key_of_another_process_is_nowhere_in_the_controllers_memory(remote_hsm: RemoteHSM) -> None:
    """Made, proven, used for a CA certificate, leaves, a list and test signatures; and the search is awake."""
    with process(remote_hsm.module, remote_hsm.hsm) as controller:
        wanted = pieces(private_number(remote_hsm.hsm.tokens, PIN, controller.public))
        assert controller.finds(wanted) == 0
        data = private_number(remote_hsm.hsm.tokens, PIN, controller.public).to_bytes(48)
        controller.hold(data)
        assert controller.finds(wanted) >= len(data) // PIECE
