"""Many threads, one token: every signature verifies, and the process lives."""

from __future__ import annotations

import threading
import time

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from tests.fixtures.effort import often
from tests.fixtures.softhsm import SoftHSM

pytestmark = [pytest.mark.softhsm, pytest.mark.slow]
SCHEME = ec.ECDSA(hashes.SHA384())


def run(hsm: SoftHSM, threads: int, *, signatures: int = 1_000_000, seconds: float = 170.0) -> int:
    """Sign in *threads* threads so often, or so long; verify all; return how many."""
    key = hsm.create()
    private, public = key.private_key, key.public_key
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    assert isinstance(public, ec.EllipticCurvePublicKey)
    made: list[list[tuple[bytes, bytes]]] = [[] for _ in range(threads)]
    failed: list[BaseException] = []
    until = time.monotonic() + seconds

    def work(mine: list[tuple[bytes, bytes]], number: int) -> None:
        try:
            while len(mine) < signatures and time.monotonic() < until:
                message = f"{number}/{len(mine)}".encode()
                mine.append((message, private.sign(message, SCHEME)))
        except BaseException as e:
            failed.append(e)

    workers = [threading.Thread(target=work, args=(mine, number)) for number, mine in enumerate(made)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert failed == []
    for mine in made:
        for message, signature in mine:
            public.verify(signature, message, SCHEME)
    return sum(map(len, made))


def test_two_threads_thousands_of_signatures(softhsm: SoftHSM) -> None:
    """Two threads, more than a thousand signatures each, which meet in the queue all the time: all verify."""
    each = often(1_200, 5_000)
    assert run(softhsm, 2, signatures=each) == 2 * each


@pytest.mark.threat("T91")
def test_sixteen_threads(softhsm: SoftHSM) -> None:
    """Sixteen threads for three seconds, ten before a release: all verify, and nobody starves."""
    assert run(softhsm, 16, seconds=often(3, 10)) > 160
