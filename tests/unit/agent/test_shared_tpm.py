"""One TPM for several threads: one call at a time, attesting first, and broken connections closed."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from attestation.errors import DeviceError, MalformedEvidence, TPMResponseError
from attestation.tpm import PCRSelection
from attestation_agent.shared_tpm import SharedTPM
from attestation_testing import SoftwareNode


class Counting(SoftwareNode):
    """A machine that notices two calls at a time."""

    def __init__(self) -> None:
        super().__init__(1)
        self.inside = 0
        self.most = 0
        self.calls: list[str] = []
        self.seconds = 0.0
        self.fails: Exception | None = None
        self.closed = 0

    def sign(self, key: Any, digest: bytes, *, pss: bool = False) -> bytes:
        """Take a while."""
        self._note("sign")
        return super().sign(key, digest, pss=pss)

    def ak_public(self) -> bytes:
        """Take a while."""
        self._note("attest")
        return super().ak_public()

    def _note(self, what: str) -> None:
        self.inside += 1
        self.most = max(self.most, self.inside)
        self.calls.append(what)
        time.sleep(self.seconds)
        self.inside -= 1
        if self.fails is not None:
            raise self.fails

    def shutdown(self) -> None:
        """Note it."""
        self.calls.append("shutdown")

    def close(self) -> None:
        """Note it."""
        self.closed += 1


@pytest.fixture
def tpm() -> Counting:
    """The machine."""
    return Counting()


@pytest.fixture
def shared(tpm: Counting) -> SharedTPM:
    """The machine, shared."""
    return SharedTPM(lambda: tpm)


def test_everything_reaches_the_tpm(tpm: Counting, shared: SharedTPM) -> None:
    """Each call, with its arguments, to the same answer."""
    shared.open()
    assert shared.identify() == tpm.identify()
    assert shared.ak_public() == tpm.ak_public()
    key = shared.keys.create_signing_key()
    assert shared.keys.certify_key(key, bytes(32)).certify_info
    assert shared.keys.sign(key, bytes(32))
    assert shared.quote(bytes(32), PCRSelection.from_names({"sha256": [0]})).attest
    with pytest.raises(MalformedEvidence):
        shared.activate(b"", b"")
    with pytest.raises(MalformedEvidence):
        shared.certify_ak(b"", b"", b"", b"")


def test_one_call_at_a_time(tpm: Counting, shared: SharedTPM) -> None:
    """Whoever asks, from however many threads."""
    tpm.seconds = 0.001
    key = shared.keys.create_signing_key()

    def ask() -> None:
        for _ in range(10):
            shared.keys.sign(key, bytes(32))
            shared.ak_public()

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert tpm.most == 1
    assert len(tpm.calls) == 160


@pytest.mark.threat("T111")
def test_attesting_waits_for_one_call_at_most(tpm: Counting, shared: SharedTPM) -> None:
    """However many others stand in line, and stood there before: the call that runs, and then its turn."""
    key = shared.keys.create_signing_key()
    running, go_on = threading.Event(), threading.Event()

    def hold(_: object) -> None:
        running.set()
        assert go_on.wait(60)

    def wait_for(waiting: int) -> None:
        give_up_at = time.monotonic() + 60
        while len(shared._turn._waiters) < waiting:  # type: ignore[attr-defined]  # of threading.Condition
            assert time.monotonic() < give_up_at
            time.sleep(0.001)

    threads = [threading.Thread(target=shared.run, args=(hold,), kwargs={"first": False})]
    threads[0].start()
    assert running.wait(60)
    threads += [threading.Thread(target=shared.keys.sign, args=(key, bytes(32))) for _ in range(6)]
    for thread in threads[1:]:
        thread.start()
    wait_for(6)
    threads.append(threading.Thread(target=shared.ak_public))
    threads[-1].start()
    wait_for(7)
    tpm.calls.clear()
    go_on.set()
    for thread in threads:
        thread.join(60)
    assert tpm.calls == ["attest", *["sign"] * 6]


def test_what_is_broken_is_opened_again(tpm: Counting) -> None:
    """By the next, whoever that is; an answer of the TPM breaks nothing."""
    opened = []

    def open_tpm() -> Counting:
        opened.append(tpm)
        return tpm

    shared = SharedTPM(open_tpm)
    key = shared.keys.create_signing_key()
    tpm.fails = TPMResponseError("TPM2_Load", 0x1DF, "integrity")
    with pytest.raises(TPMResponseError):
        shared.keys.sign(key, bytes(32))
    assert (len(opened), tpm.closed) == (1, 0)
    tpm.fails = DeviceError("gone")
    with pytest.raises(DeviceError):
        shared.keys.sign(key, bytes(32))
    assert (len(opened), tpm.closed) == (1, 1)
    tpm.fails = None
    assert shared.ak_public()
    assert len(opened) == 2


def test_a_tpm_that_does_not_open_is_tried_again(tpm: Counting) -> None:
    """And nobody is kept waiting for it."""
    there: list[int] = []

    def open_tpm() -> Counting:
        if not there:
            raise DeviceError("none")
        return tpm

    shared = SharedTPM(open_tpm)
    for _ in range(2):
        with pytest.raises(DeviceError):
            shared.open()
    there.append(1)
    assert shared.open() is shared


def test_after_the_shutdown_nobody_uses_it(tpm: Counting, shared: SharedTPM) -> None:
    """TPM2_Shutdown is the last command: after another one the next power loss would count as a cut."""
    key = shared.keys.create_signing_key()
    shared.shutdown()
    shared.close()
    with pytest.raises(DeviceError, match="ends"):
        shared.keys.sign(key, bytes(32))
    assert tpm.calls == ["shutdown"]
    assert tpm.closed == 1
