"""An HSM that goes away and comes back under a process that holds its keys."""

from __future__ import annotations

import threading
import time

import pytest

from attestation.errors import SignerUnavailable
from attestation.keys.open import OpenKey, create_key
from tests.fixtures.softhsm import RemoteHSM, SoftHSM

pytestmark = pytest.mark.softhsm


def sign(key: OpenKey) -> None:
    """Sign something, and verify it."""
    key.self_test(key.public_key)


def signs_again(key: OpenKey, seconds: float) -> None:
    """Wait until the key signs."""
    until = time.monotonic() + seconds
    while True:
        try:
            return sign(key)
        except SignerUnavailable:
            assert time.monotonic() < until
            time.sleep(0.1)


@pytest.fixture
def key(remote_hsm: RemoteHSM) -> OpenKey:
    """A key in the other process."""
    made = create_key(remote_hsm.uri(), "ecdsa-p384", remote_hsm.options)
    remote_hsm.hsm.opened.append(made)
    sign(made)
    return made


def test_a_restart_is_not_noticed(remote_hsm: RemoteHSM, key: OpenKey) -> None:
    """The process of the HSM is killed and started again: the next signature is one like others."""
    for _ in range(3):
        remote_hsm.kill()
        remote_hsm.start()
        sign(key)


def test_a_restart_while_signing(remote_hsm: RemoteHSM, key: OpenKey) -> None:
    """Nobody who signs notices a restart of a second, and every signature verifies."""
    ended = threading.Event()
    signed, failed = [0], []

    def work() -> None:
        while not ended.is_set():
            try:
                sign(key)
                signed[0] += 1
            except Exception as e:
                failed.append(e)
                return

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(2):
        time.sleep(0.5)
        remote_hsm.kill()
        time.sleep(0.3)
        remote_hsm.start()
    before = signed[0]
    until = time.monotonic() + 120
    while signed[0] <= before and failed == []:
        assert time.monotonic() < until
        time.sleep(0.05)
    ended.set()
    for thread in threads:
        thread.join()
    assert failed == []


def test_away_and_back(remote_hsm: RemoteHSM, key: OpenKey) -> None:
    """While it is away callers are refused, soon at once; afterwards it signs without a restart of this process."""
    remote_hsm.kill()
    with pytest.raises(SignerUnavailable):
        sign(key)
    for _ in range(50):
        # Who waited for the token would hear that it did not answer.
        with pytest.raises(SignerUnavailable, match="cannot be used now"):
            sign(key)
    worker = remote_hsm.hsm.worker(remote_hsm.module)
    assert "no token" in worker.trouble
    remote_hsm.start()
    signs_again(key, 120)
    assert worker.trouble == ""


def test_the_token_directory_moves(softhsm: SoftHSM) -> None:
    """SoftHSM whose files are gone for a while: refused, then as before."""
    key = softhsm.create()
    sign(key)
    away = softhsm.folder / "away"
    softhsm.tokens.rename(away)
    for _ in range(3):
        with pytest.raises(SignerUnavailable, match="cannot be used now"):
            sign(key)
    away.rename(softhsm.tokens)
    signs_again(key, 120)
