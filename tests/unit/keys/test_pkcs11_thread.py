"""The thread of a module on a token in Python that fails as SoftHSM never does.

That the token is otherwise like another is shown by `tests/contract/test_pkcs11_tokens.py`; the same calls on
SoftHSM are in `tests/integration/softhsm`.
"""

from __future__ import annotations

import contextlib
import pickle
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pkcs11
import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given
from hypothesis import strategies as st
from pkcs11 import Attribute, KeyType, ObjectClass, TokenFlag

from attestation.errors import (
    AttestationError,
    KeyMismatch,
    KeyNotFound,
    KeyUnsupported,
    KeyUnusable,
    ModuleUnusable,
    PINRejected,
    SignerBusy,
    SignerUnavailable,
    TokenAbsent,
)
from attestation.keys import refusals
from attestation.keys.open import KeyOptions, OpenKey, create_key, open_key
from attestation.keys.owned import QUEUE_JOBS
from attestation.keys.pkcs11 import thread as threads
from attestation.keys.pkcs11.objects import KeyName, describe, find_private, generate
from attestation.keys.pkcs11.thread import ModuleThread
from tests.fixtures import pkcs11_double
from tests.fixtures.pkcs11_double import Faults, SoftwareLibrary

PIN = "1234"


class Clock:
    """Seconds that pass when a test says so; waiting takes no time."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        """Return the instant."""
        return self.now


class Bench:
    """A token, faults in front of it, one key."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.token = SoftwareLibrary(pin=PIN)
        self.faults = Faults()
        self.module = folder / "module.so"
        self.module.write_bytes(b"")
        self.pin = folder / "pin"
        self.pin.write_text(PIN)
        self.patch = patch
        self.opened: list[OpenKey] = []
        patch.setattr(pkcs11, "lib", lambda path: self.faults.load(path, self.token.load))
        # An idle worker makes no signature of its own where a test counts them, however slow the machine is.
        defaults = ModuleThread.__init__.__kwdefaults__ or {}
        patch.setitem(defaults, "keep_alive_seconds", 3600.0)

    @property
    def options(self) -> KeyOptions:
        """The list of modules."""
        return KeyOptions(modules={"double": self.module})

    def uri(self, label: str = "ca") -> str:
        """Return the URI of a key."""
        return f"pkcs11:token=hsm;object={label}?module-name=double&pin-source=file:{self.pin}"

    def create(self, label: str = "ca", algorithm: Any = "ecdsa-p384") -> OpenKey:
        """Make a key, sign once, and forget what was counted."""
        self.opened.append(create_key(self.uri(label), algorithm, self.options))
        sign(self.opened[-1])
        self.faults.calls.clear()
        return self.opened[-1]

    def open(self, label: str = "ca") -> OpenKey:
        """Open a key."""
        self.opened.append(open_key(self.uri(label), self.options))
        return self.opened[-1]

    @property
    def worker(self) -> ModuleThread:
        """The worker of the module."""
        return threads._threads[self.module]

    def counted(self, *names: str) -> tuple[int, ...]:
        """Return how often these were called."""
        return tuple(self.faults.calls[name] for name in names)

    def close(self) -> None:
        """Close the keys."""
        if self.faults.gate is not None:
            self.faults.gate.set()
        for key in self.opened:
            key.close()


def sign(key: OpenKey) -> None:
    """Sign and verify."""
    key.self_test(key.public_key)


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    """A token without keys."""
    made = Bench(tmp_path, monkeypatch)
    yield made
    made.close()
    assert made.module not in threads._threads
    assert not [each for each in threading.enumerate() if "PKCS#11" in each.name]


@pytest.mark.parametrize(
    ("error", "restarts", "logins"),
    [
        (pkcs11.ObjectHandleInvalid(), 0, 0),
        (pkcs11.KeyHandleInvalid(), 0, 0),
        (pkcs11.SessionHandleInvalid(), 0, 1),
        (pkcs11.SessionClosed(), 0, 1),
        (pkcs11.UserNotLoggedIn(), 0, 1),
        (pkcs11.DeviceError(), 1, 1),
        (pkcs11.DeviceRemoved(), 1, 1),
        (pkcs11.TokenNotPresent(), 1, 1),
        (pkcs11.GeneralError(), 1, 1),
        (pkcs11.PKCS11Error("Unmapped error code 0x190"), 1, 1),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else str(value),
)
def test_one_error_is_mended(bench: Bench, error: Exception, restarts: int, logins: int) -> None:
    """The caller notices nothing; no more is begun again than the error asks for, and the handle is proven first."""
    key = bench.create()
    bench.faults.fail("sign", error)
    sign(key)
    assert bench.counted("finalize", "initialize", "login") == (restarts, restarts, logins)
    assert bench.counted("sign") == (3,)  # in vain, the proof, the job again
    assert bench.worker.trouble == ""


@pytest.mark.parametrize(
    ("first", "then", "restarts"),
    [
        ({"sign": pkcs11.ObjectHandleInvalid()}, {"random": pkcs11.SessionHandleInvalid()}, 0),
        ({"sign": pkcs11.ObjectHandleInvalid()}, {"find": pkcs11.DeviceError()}, 1),
        ({"sign": pkcs11.SessionHandleInvalid()}, {"open": pkcs11.SessionHandleInvalid()}, 1),
        ({"sign": pkcs11.SessionHandleInvalid()}, {"close": pkcs11.UserNotLoggedIn()}, 1),
        ({"sign": pkcs11.SessionHandleInvalid()}, {"close": pkcs11.SessionHandleInvalid()}, 1),
    ],
)
def test_a_step_that_fails_leads_to_the_next(
    bench: Bench, first: dict[str, Exception], then: dict[str, Exception], restarts: int
) -> None:
    """L1, L2, L3; a session that cannot be closed, or a login that outlived it, is a restart, too."""
    key = bench.create()
    for call, error in (first | then).items():
        bench.faults.fail(call, error)
    sign(key)
    assert bench.counted("finalize") == (restarts,)
    assert not any(bench.faults.script.values())  # each of them happened


@pytest.mark.parametrize(
    "error",
    [
        pkcs11.MechanismInvalid(),
        pkcs11.KeySizeRange(),
        pkcs11.DataLenRange(),
        pkcs11.PKCS11Error("Unmapped error code 0x68"),
    ],
    ids=str,
)
def test_what_a_token_never_does_is_not_tried_again(bench: Bench, error: Exception) -> None:
    """No step helps, so none is taken."""
    key = bench.create()
    bench.faults.fail("sign", error)
    with pytest.raises(KeyUnsupported):
        sign(key)
    assert bench.counted("sign", "login", "finalize", "find") == (1, 0, 0, 0)
    sign(key)


def test_an_unknown_error_is_reported(bench: Bench) -> None:
    """It is not mended, and counts as a token that does not sign now."""
    key = bench.create()
    bench.faults.fail("sign", pkcs11.DeviceMemory())
    with pytest.raises(SignerUnavailable, match="DeviceMemory"):
        sign(key)
    sign(key)


def test_a_job_is_repeated_once(bench: Bench) -> None:
    """A second error of the same job is the caller's; it is never signed a third time."""
    key = bench.create()
    bench.faults.fail("sign", pkcs11.DeviceError(), None, pkcs11.DeviceError())
    with pytest.raises(SignerUnavailable, match="DeviceError"):
        sign(key)
    assert bench.counted("sign") == (3,)
    sign(key)


def quick(bench: Bench) -> list[float]:
    """Let waiting for the next attempt take no time; return what would have been waited."""
    waited: list[float] = []
    worker = bench.worker

    def wait(timeout: float | None = None) -> bool:
        waited.append(round(timeout or 0.0, 2))
        worker._breaker.due = 0.0
        return False

    bench.patch.setattr(worker, "_stopping", _Event(wait))
    bench.patch.setattr(worker._breaker, "jitter", lambda: 0.0)
    return waited


class _Event:
    def __init__(self, wait: Callable[[float | None], bool]) -> None:
        self.wait = wait
        self.real = threading.Event()
        self.is_set, self.set = self.real.is_set, self.real.set


@pytest.mark.threat("T91")
def test_back_off_and_breaker(bench: Bench) -> None:
    """0.2, 0.4, 0.8, 1.6 s; after the fifth restart in vain callers are refused at once, without touching the token."""
    key = bench.create()
    waited = quick(bench)
    bench.faults.always["open"] = pkcs11.DeviceRemoved
    bench.faults.fail("sign", pkcs11.DeviceRemoved())
    with pytest.raises(SignerUnavailable, match=r"cannot be used now: .*DeviceRemoved"):
        sign(key)
    assert waited == [0.2, 0.4, 0.8, 1.6]
    assert bench.counted("finalize", "open") == (6, 5)
    assert "DeviceRemoved" in bench.worker.trouble
    bench.worker._breaker.due = bench.worker._clock() + 3600
    bench.worker._keep_alive = 0.001  # which is not the time of the next attempt
    for _ in range(100):
        with pytest.raises(SignerUnavailable):
            sign(key)
    with pytest.raises(SignerUnavailable):
        bench.open()
    assert bench.counted("open") == (5,)


def probe(bench: Bench) -> None:
    """Let it be time for the worker's own attempt."""
    bench.worker._breaker.due = 0.0
    bench.worker._queue.put(None)


def test_refused_while_the_worker_tries(bench: Bench) -> None:
    """An attempt of the worker may take long; callers are refused at once meanwhile."""
    key = bench.create()
    quick(bench)
    bench.faults.always["open"] = pkcs11.DeviceRemoved
    bench.faults.fail("sign", pkcs11.DeviceRemoved())
    with pytest.raises(SignerUnavailable):
        sign(key)
    tries, gate = threading.Event(), threading.Event()

    def hang_in_it() -> None:
        tries.set()
        assert gate.wait(60)

    bench.faults.always["open"] = hang_in_it
    probe(bench)
    assert tries.wait(60)
    with pytest.raises(SignerUnavailable, match="cannot be used now"):
        sign(key)
    gate.set()
    wait_for(lambda: not bench.worker.trouble)
    sign(key)


def wait_for(condition: Callable[[], bool]) -> None:
    """Wait until *condition* holds, at most a minute."""
    until = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_half_open(bench: Bench) -> None:
    """Now and then the worker tries by itself, with a test signature; callers come in again when that verifies."""
    key = bench.create()
    quick(bench)
    bench.faults.always["open"] = pkcs11.DeviceRemoved
    bench.faults.fail("sign", pkcs11.DeviceRemoved())
    with pytest.raises(SignerUnavailable):
        sign(key)
    before = bench.faults.calls["open"]
    probe(bench)
    bench.worker._keep_alive = 0.02
    wait_for(lambda: bench.faults.calls["open"] >= before + 1)
    with pytest.raises(SignerUnavailable):
        sign(key)
    # It opens again, but signs with another key: not before the right one is back.
    stored = next(each for each in bench.token.objects.values() if each.key is not None)
    right, stored.key = stored.key, _another()
    bench.faults.always.clear()
    signed = bench.faults.calls["sign"]
    probe(bench)
    wait_for(lambda: bench.faults.calls["sign"] > signed)
    assert bench.worker._breaker.open
    with pytest.raises(SignerUnavailable):
        sign(key)
    stored.key = right
    probe(bench)
    wait_for(lambda: not bench.worker._breaker.open)
    sign(key)
    assert bench.worker.trouble == ""


def _another() -> Any:
    return ec.generate_private_key(ec.SECP384R1())


def test_a_short_outage_is_waited_for(bench: Bench) -> None:
    """A job outlives a restart of the token that takes less than its deadline."""
    key = bench.create()
    bench.faults.fail("sign", pkcs11.DeviceRemoved())
    bench.faults.fail("open", pkcs11.DeviceRemoved(), pkcs11.TokenNotPresent())
    sign(key)
    assert bench.counted("finalize") == (3,)


def test_token_comes_back(bench: Bench) -> None:
    """A token that was pulled out and put in again signs on, without a restart of the process."""
    key = bench.create()
    quick(bench)
    bench.token.present = False
    bench.faults.fail("sign", pkcs11.DeviceRemoved())
    with pytest.raises(SignerUnavailable, match="no token"):
        sign(key)
    bench.token.present = True
    probe(bench)
    bench.worker._keep_alive = 0.02
    wait_for(lambda: not bench.worker._breaker.open)
    sign(key)


def test_an_opening_says_at_once_what_is_wrong(bench: Bench) -> None:
    """At the start of a service nobody waits for a token that may come: the error names what to change."""
    bench.token.present = False
    with pytest.raises(TokenAbsent, match="no token token=hsm; tokens that are there: none"):
        bench.open()
    bench.token.present = True
    with pytest.raises(KeyNotFound):
        bench.open()
    bench.faults.always["open"] = pkcs11.DeviceError
    with pytest.raises(SignerUnavailable, match="DeviceError"):
        bench.open()
    bench.faults.always.clear()
    bench.faults.always["load"] = lambda: pkcs11.PKCS11Error("OS exception while loading: wrong ELF class")
    with pytest.raises(ModuleUnusable, match="wrong ELF class"):
        bench.open()


def test_token_absent_only_after_a_restart(bench: Bench) -> None:
    """Another key's open library may know an old list of tokens."""
    bench.create()
    with pytest.raises(TokenAbsent):
        bench.opened.append(open_key(bench.uri().replace("hsm", "other"), bench.options))
    assert bench.counted("finalize") == (1,)


@pytest.mark.threat("T89")
def test_a_wrong_pin_is_one_attempt(bench: Bench) -> None:
    """Counted by the token: one, however many keys, callers and errors; then one for each new PIN in the file."""
    key = bench.create()
    bench.token.pin, bench.token.attempts = "changed", 0
    for error in (pkcs11.SessionHandleInvalid(), pkcs11.DeviceError(), pkcs11.UserNotLoggedIn()):
        bench.faults.fail("sign", error)
    for _ in range(10):
        with pytest.raises(PINRejected):
            sign(key)
        with pytest.raises(PINRejected):
            bench.open()
    assert bench.token.attempts == 1
    bench.faults.script.clear()
    bench.pin.write_text("changed")
    sign(key)
    assert bench.token.attempts == 2
    assert bench.token.wrong == 0


@pytest.mark.threat("T89")
def test_the_last_attempt_is_not_ours(bench: Bench) -> None:
    """With one attempt left, or none, nothing logs in by itself, whatever the PIN; a person's login mends it."""
    bench.create()
    bench.close()
    bench.opened.clear()
    for wrong, says in ((2, "one wrong PIN more would lock"), (3, "is locked")):
        bench.token.wrong, bench.token.attempts = wrong, 0
        with pytest.raises(PINRejected, match=says):
            bench.open()
        assert bench.token.attempts == 0
    bench.token.wrong = 0
    sign(bench.open())


@pytest.mark.threat("T124")
def test_who_asks_again_and_again_is_one_attempt(bench: Bench) -> None:
    """No worker is left between two tries to open a key; what was refused is remembered, also by our children."""
    bench.create()
    bench.close()
    bench.opened.clear()
    bench.pin.write_text("wrong")
    bench.token.attempts = 0
    for _ in range(3):
        with pytest.raises(PINRejected):
            bench.open()
        assert bench.module not in threads._threads
    handed = pickle.loads(pickle.dumps(refusals.hand_over()))
    bench.patch.setattr(refusals, "_marks", {})
    bench.patch.setattr(refusals, "_salt", bytes(32))
    refusals.take_over(handed)
    with pytest.raises(PINRejected, match="not tried again"):
        bench.open()
    assert bench.token.attempts == 1
    bench.pin.write_text(PIN)
    sign(bench.open())
    assert bench.token.attempts == 2


@pytest.mark.threat("T89")
def test_several_processes_do_not_lock_a_token(bench: Bench) -> None:
    """Each process tries once; of a token with three tries one is always left."""
    bench.create()
    bench.close()
    bench.opened.clear()
    bench.pin.write_text("wrong")
    bench.token.attempts = 0
    for _ in range(8):
        bench.patch.setattr(refusals, "_marks", {})  # as in a process that nobody of ours started
        with pytest.raises(PINRejected):
            bench.open()
    assert (bench.token.attempts, bench.token.wrong) == (2, 2)


@pytest.mark.parametrize(
    "error",
    [
        pkcs11.PinLocked(),
        pkcs11.PinExpired(),
        pkcs11.PinLenRange(),
        pkcs11.PinInvalid(),
        pkcs11.UserPinNotInitialized(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_other_errors_of_pins(bench: Bench, error: Exception) -> None:
    """All of them are permanent: one attempt, and the reason is said."""
    bench.create()
    bench.close()
    bench.opened.clear()
    bench.faults.always["login"] = lambda: error
    with pytest.raises(PINRejected, match=type(error).__name__):
        bench.open()
    assert bench.counted("login") == (1,)


def test_a_pin_that_is_no_text(bench: Bench) -> None:
    """It never reaches the token."""
    bench.pin.write_bytes(b"\xff\xfe")
    with pytest.raises(PINRejected, match="no UTF-8"):
        bench.open()
    assert bench.token.attempts == 0


def test_flags_are_those_of_the_moment(bench: Bench) -> None:
    """The flags are read right before the attempt."""
    bench.create()
    bench.close()
    bench.opened.clear()
    bench.faults.flags = TokenFlag.USER_PIN_FINAL_TRY
    with pytest.raises(PINRejected):
        bench.open()
    bench.faults.flags = TokenFlag.USER_PIN_COUNT_LOW
    sign(bench.open())


def test_a_failed_login_leaves_no_session(bench: Bench) -> None:
    """The binding leaves a session open where the login fails; a YubiHSM 2 has sixteen."""
    key = bench.create()
    bench.faults.fail("sign", pkcs11.UserNotLoggedIn())
    bench.token.pin = "changed"
    with pytest.raises(PINRejected):
        sign(key)
    assert not bench.token.sessions


def test_a_session_that_cannot_be_closed_is_not_leaked(bench: Bench) -> None:
    """C_Logout fails, so the binding does not close the session: only C_Finalize does."""
    key = bench.create()
    bench.token.logged_in = False
    bench.faults.fail("sign", pkcs11.UserNotLoggedIn())
    bench.faults.fail("close", pkcs11.UserNotLoggedIn())
    sign(key)
    assert len(bench.token.sessions) == 1
    assert bench.counted("finalize", "login") == (1, 1)


def test_sessions_that_write_are_short(bench: Bench) -> None:
    """Only the making of a key has a session that may write."""
    key = bench.create()
    assert [session.rw for session in bench.token.sessions] == [False]
    sign(key)
    bench.create("another")
    assert [session.rw for session in bench.token.sessions] == [False]


def test_many_errors_one_session(bench: Bench) -> None:
    """Whatever happens, there is one session at most."""
    key = bench.create()
    for error in (
        pkcs11.SessionHandleInvalid,
        pkcs11.DeviceError,
        pkcs11.ObjectHandleInvalid,
        pkcs11.GeneralError,
    ) * 20:
        bench.faults.fail("sign", error())
        sign(key)
        assert len(bench.token.sessions) == 1


def hang(bench: Bench) -> None:
    """Let signatures wait until the gate is opened."""
    bench.faults.gate = threading.Event()


@pytest.mark.threat("T91")
def test_a_token_that_hangs(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits longer than the deadline; what was not begun is never sent."""
    key = bench.create()
    hang(bench)
    failed: list[AttestationError] = []

    def ask() -> None:
        try:
            sign(key)
        except AttestationError as e:
            failed.append(e)

    threads = [threading.Thread(target=ask) for _ in range(5)]
    with monkeypatch.context() as patched:
        short = {**(ModuleThread.run.__kwdefaults__ or {}), "deadline_seconds": 1.0}
        patched.setattr(ModuleThread.run, "__kwdefaults__", short)
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted("dropped" in str(each) for each in failed) == [False, True, True, True, True]
    assert all(type(each) is SignerUnavailable for each in failed)
    assert bench.faults.gate is not None
    bench.faults.gate.set()
    wait_for(lambda: bench.worker._queue.empty())
    sign(key)
    assert bench.counted("sign") == (2,)


@pytest.mark.threat("T91")
def test_the_queue_is_bounded(bench: Bench) -> None:
    """The job after the last place is refused at once: 503, and the caller may come again."""
    key = bench.create()
    hang(bench)
    threads = [threading.Thread(target=lambda: _quietly(key)) for _ in range(QUEUE_JOBS + 1)]
    for thread in threads:
        thread.start()
    wait_for(lambda: bench.worker._queue.full())
    with pytest.raises(SignerBusy):
        sign(key)
    assert bench.faults.gate is not None
    bench.faults.gate.set()
    for thread in threads:
        thread.join()
    sign(key)


def _quietly(key: OpenKey) -> None:
    with contextlib.suppress(SignerUnavailable):
        sign(key)


@pytest.mark.threat("T91")
def test_a_job_that_got_late_on_the_ladder_is_not_repeated(bench: Bench) -> None:
    """Nobody waits for it any more: a certificate would be signed that nobody records."""
    key = bench.create()
    clock = Clock()
    clock.now = bench.worker._clock()
    bench.patch.setattr(bench.worker, "_clock", clock)
    bench.faults.fail("sign", pkcs11.SessionHandleInvalid())

    def late() -> None:
        clock.now += 6

    bench.faults.always["login"] = late
    with pytest.raises(SignerUnavailable, match="dropped"):
        sign(key)
    assert bench.counted("sign") == (2,)  # in vain, and the proof


def test_keep_alive(bench: Bench) -> None:
    """Without work each key in use makes a test signature: an idle connection lives, a dead one is noticed."""
    key = bench.create()
    bench.worker._keep_alive = 0.05
    sign(key)
    bench.faults.calls.clear()
    wait_for(lambda: bench.faults.calls["sign"] >= 3)
    assert bench.counted("login", "find") == (0, 0)
    # The session dies while nobody asks: mended before somebody does.
    bench.faults.fail("sign", pkcs11.DeviceError())
    wait_for(lambda: bench.faults.calls["finalize"] == 1)
    sign(key)


def test_keep_alive_notices_an_outage(bench: Bench) -> None:
    """Health tells of it before anybody needs a signature."""
    key = bench.create()
    bench.token.present = False
    bench.faults.always["sign"] = pkcs11.DeviceRemoved
    bench.worker._keep_alive = 0.05
    with contextlib.suppress(AttestationError):
        sign(key)
    wait_for(lambda: bench.worker.trouble != "")
    bench.faults.always.clear()
    bench.token.present = True
    wait_for(lambda: bench.worker.trouble == "")
    sign(key)


def test_a_test_key(bench: Bench) -> None:
    """Where one is named it makes the periodic signatures; the key itself makes one whenever it is found again."""
    bench.create("itl-self-test")
    options = replace(bench.options, test_key="itl-self-test")
    key = create_key(bench.uri(), "ecdsa-p384", options)
    bench.opened.append(key)
    by_key: list[str] = []
    real = pkcs11_double.SoftwareKey.sign

    def spy(signer: Any, data: Any, **named: Any) -> bytes:
        by_key.append(signer[Attribute.LABEL])
        return real(signer, data, **named)

    bench.patch.setattr(pkcs11_double.SoftwareKey, "sign", spy)
    key.self_test(key.public_key)
    assert by_key[-1] == "ca"
    key.self_test(key.public_key)
    by_key.clear()
    for _ in range(3):
        key.self_test(key.public_key)
    assert by_key == ["itl-self-test"] * 3
    with pytest.raises(KeyMismatch):
        key.self_test(_another().public_key())
    # The idle worker does the same; after a restart the key proves itself first.
    by_key.clear()
    bench.worker._keep_alive = 0.02
    bench.worker._queue.put(None)
    wait_for(lambda: len(by_key) >= 3)
    bench.worker._keep_alive = 3600.0
    # After it the worker waits an hour; before it, it may be about to make one more.
    key.self_test(key.public_key)
    assert set(by_key) == {"itl-self-test"}
    bench.faults.fail("sign", pkcs11.DeviceError())
    by_key.clear()
    key.self_test(key.public_key)
    assert by_key == ["ca", "itl-self-test", "itl-self-test"]


def test_a_test_key_that_is_not_there(bench: Bench) -> None:
    """It was named, so it must be."""
    bench.create()
    with pytest.raises(KeyNotFound, match="object=none"):
        open_key(bench.uri(), replace(bench.options, test_key="none"))


def test_a_foreign_public_key_beside_it(bench: Bench) -> None:
    """What stands beside a key under its names is hearsay until the key has signed for it."""
    bench.create()
    public = next(each for each in bench.token.objects.values() if each.key is None)
    point = _another().public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
    public.attributes[Attribute.EC_POINT] = bytes([4, len(point)]) + point
    with pytest.raises(KeyMismatch):
        bench.open()
    with pytest.raises(KeyMismatch):
        bench.create()


@pytest.mark.threat("T88")
def test_another_key_is_not_used(bench: Bench) -> None:
    """After a restart a token may hold another key under the same names."""
    key = bench.create()
    stored = next(each for each in bench.token.objects.values() if each.key is not None)
    stored.key = _another()
    bench.faults.fail("sign", pkcs11.DeviceError())
    private: Any = key.private_key
    with pytest.raises(KeyMismatch):
        private.sign(b"verified by nobody", ec.ECDSA(hashes.SHA384()))


@pytest.mark.threat("T88")
@pytest.mark.parametrize(
    ("name", "value"),
    [
        (Attribute.EXTRACTABLE, True),
        (Attribute.SENSITIVE, False),
        (Attribute.LOCAL, False),
        (Attribute.NEVER_EXTRACTABLE, False),
        (Attribute.DECRYPT, True),
    ],
)
def test_a_token_that_makes_loose_keys(bench: Bench, name: Attribute, value: bool) -> None:
    """What was made is read back; a key that may leave its token is destroyed and refused."""
    real = pkcs11_double.SoftwareSession.store

    def store(session: Any, *arguments: Any, **named: Any) -> Any:
        made = real(session, *arguments, **named)
        for each in bench.token.objects.values():
            each.attributes[name] = value
        return made

    bench.patch.setattr(pkcs11_double.SoftwareSession, "store", store)
    with pytest.raises(KeyUnusable, match=name.name):
        bench.create()
    assert not bench.token.objects


def test_a_token_that_numbers_keys_itself(bench: Bench) -> None:
    """A YubiHSM does not let CKA_ID be changed: the key is used with the id that it has."""

    def refuse(*_: object) -> None:
        raise pkcs11.AttributeReadOnly

    bench.patch.setattr(pkcs11_double.SoftwareObject, "__setitem__", refuse)
    key = bench.create()
    bench.faults.fail("sign", pkcs11.DeviceError())
    sign(key)


def test_a_crash_between_making_and_numbering(bench: Bench) -> None:
    """The key is there under its label, is opened, and gets its number when it is asked for again."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            pkcs11_double.SoftwareObject, "__setitem__", lambda *_: (_ for _ in ()).throw(MemoryError())
        )
        with pytest.raises(MemoryError):
            bench.create()
    public = bench.open().public_key
    again = bench.create()
    assert again.public_key == public
    assert len(bench.token.objects) == 2
    assert len({each.attributes[Attribute.ID] for each in bench.token.objects.values()}) == 1


def test_closing(bench: Bench) -> None:
    """The last key logs out, finalizes the library and ends the thread; a closed key signs no more; twice is fine."""
    one, two = bench.create("one"), bench.create("two")
    worker = bench.worker
    one.close()
    one.close()
    assert worker._thread.is_alive()
    sign(two)
    two.close()
    assert not worker._thread.is_alive()
    assert not bench.token.initialized
    with pytest.raises(SignerUnavailable, match="closed"):
        sign(two)


def test_a_closed_key_makes_no_test_signatures(bench: Bench) -> None:
    """A retired key may be destroyed on its token; nobody looks for it any more."""
    one, two = bench.create("one"), bench.create("two")
    one.close()
    for number in [n for n, each in bench.token.objects.items() if each.attributes[Attribute.LABEL] == "one"]:
        del bench.token.objects[number]
    bench.faults.calls.clear()
    bench.worker._keep_alive = 0.02
    bench.worker._queue.put(None)
    wait_for(lambda: bench.faults.calls["sign"] >= 3)
    assert bench.counted("finalize") == (0,)
    sign(two)


def test_a_module_that_breaks_while_it_is_used(bench: Bench) -> None:
    """A library that cannot be initialized again is an HSM that is away, not a wrong setting."""
    key = bench.create()
    quick(bench)
    bench.faults.always["initialize"] = pkcs11.GeneralError
    bench.faults.fail("sign", pkcs11.DeviceError())
    with pytest.raises(SignerUnavailable, match=r"cannot be used now.*GeneralError"):
        sign(key)
    bench.faults.always.clear()
    probe(bench)
    wait_for(lambda: not bench.worker.trouble)
    sign(key)


def test_a_library_that_is_down_is_brought_up_again(bench: Bench) -> None:
    """Also where the job is the first to notice."""
    key = bench.create()
    bench.faults.fail("sign", pkcs11.UserNotLoggedIn())
    bench.token.pin = "changed"
    with pytest.raises(PINRejected):
        sign(key)
    bench.pin.write_text("changed")
    bench.faults.fail("initialize", pkcs11.GeneralError())
    sign(key)


def test_a_module_whose_file_is_gone(bench: Bench) -> None:
    """A package is being exchanged: away for a moment, and nothing else."""
    key = bench.create()
    quick(bench)
    bench.module.rename(bench.module.with_suffix(".away"))
    bench.faults.fail("sign", pkcs11.SessionHandleInvalid())
    with pytest.raises(SignerUnavailable, match="cannot be read"):
        sign(key)
    with pytest.raises(ModuleUnusable, match="cannot be read: No such file"):
        create_key(bench.uri("new"), "ecdsa-p384", bench.options)
    bench.module.with_suffix(".away").rename(bench.module)
    probe(bench)
    wait_for(lambda: not bench.worker.trouble)
    sign(key)


def test_an_outage_that_outlives_its_job(bench: Bench) -> None:
    """Fewer failures than open the breaker: the worker goes on trying without anybody asking."""
    key = bench.create()
    bench.faults.fail("sign", pkcs11.DeviceRemoved())
    bench.faults.fail("open", pkcs11.DeviceRemoved(), pkcs11.DeviceRemoved(), pkcs11.DeviceRemoved())
    bench.patch.setattr(bench.worker._breaker, "jitter", lambda: 0.0)
    clock = Clock()
    clock.now = bench.worker._clock()
    bench.patch.setattr(bench.worker, "_clock", clock)

    def wait(_timeout: float | None = None) -> bool:
        clock.now += 3
        return False

    bench.patch.setattr(bench.worker, "_stopping", _Event(wait))
    with pytest.raises(SignerUnavailable, match="cannot be used now"):
        sign(key)
    assert bench.worker._breaker.failures == 3
    wait_for(lambda: not bench.worker.trouble)
    sign(key)


def test_a_new_worker_waits_for_the_last(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two threads are never in one module: while a closed worker hangs there, no other is started."""
    key = bench.create()
    hang(bench)
    thread = threading.Thread(target=lambda: _quietly(key))
    thread.start()
    wait_for(lambda: bench.faults.calls["sign"] == 1)
    worker = bench.worker
    close = worker.close
    monkeypatch.setattr(worker, "close", lambda: close(0.1))
    key.close()
    with pytest.raises(SignerUnavailable, match="still hangs"):
        bench.open()
    assert bench.faults.gate is not None
    bench.faults.gate.set()
    thread.join()
    wait_for(lambda: not worker.is_alive)
    bench.faults.gate = None
    sign(bench.open())


@given(
    attributes=st.dictionaries(
        st.sampled_from(
            [
                Attribute.KEY_TYPE,
                Attribute.EC_PARAMS,
                Attribute.EC_POINT,
                Attribute.MODULUS,
                Attribute.PUBLIC_EXPONENT,
                Attribute.VALUE,
                Attribute.ID,
                Attribute.LABEL,
            ]
        ),
        st.one_of(
            st.binary(max_size=120),
            st.just(bytes.fromhex("06052b81040022")),
            st.sampled_from([KeyType.EC, KeyType.RSA, KeyType.AES]),
        ),
        max_size=8,
    ),
    kind=st.sampled_from([ObjectClass.PUBLIC_KEY, ObjectClass.CERTIFICATE]),
)
def test_whatever_a_token_says_of_a_key(attributes: dict[Attribute, Any], kind: ObjectClass) -> None:
    """A public key of a kind that we know, or one of our errors."""
    token = SoftwareLibrary(pin=PIN)
    session: Any = token.get_slots()[0].get_token().open(rw=True, user_pin=PIN)
    name = KeyName(label="ca", id=None, shown="pkcs11:object=ca")
    generate(session, "ecdsa-p384", "ca", name.shown)
    public = next(each for each in token.objects.values() if each.key is None)
    private = next(each for each in token.objects.values() if each.key is not None)
    public.attributes |= {Attribute.CLASS: kind, **attributes}
    if Attribute.KEY_TYPE in attributes:
        private.attributes[Attribute.KEY_TYPE] = attributes[Attribute.KEY_TYPE]
    with contextlib.suppress(KeyUnusable):
        facts = describe(session, find_private(session, name), name)
        assert isinstance(facts.public_key, ec.EllipticCurvePublicKey | rsa.RSAPublicKey)


@pytest.mark.parametrize(
    ("attribute", "value", "says"),
    [
        (Attribute.SIGN, False, "not a key that signs"),
        (Attribute.KEY_TYPE, KeyType.AES, "neither an EC nor an RSA key"),
        (Attribute.KEY_TYPE, KeyType.EC_EDWARDS, "neither an EC nor an RSA key"),
    ],
)
def test_keys_of_other_kinds(bench: Bench, attribute: Attribute, value: object, says: str) -> None:
    """They sign nothing of ours."""
    bench.create()
    stored = next(each for each in bench.token.objects.values() if each.key is not None)
    stored.attributes[attribute] = value
    with pytest.raises(KeyUnsupported, match=says):
        bench.open()


def test_an_rsa_key_that_is_too_small(bench: Bench) -> None:
    """1024 bits are refused, whoever made them."""
    session: Any = bench.token.get_slots()[0].get_token().open(rw=True, user_pin=PIN)
    session.generate_keypair(KeyType.RSA, 1024, label="ca", id=b"1", store=True)
    session.close()
    with pytest.raises(KeyUnsupported, match="1024 bits"):
        bench.open()


def test_what_is_no_signature(bench: Bench) -> None:
    """An answer of odd length, or of a number that is none, is an error and never a certificate."""
    key = bench.create()
    for answer in (b"odd", bytes(96)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(pkcs11_double.SoftwareKey, "sign", lambda *_, answer=answer, **__: answer)
            with pytest.raises(SignerUnavailable, match="no signature"):
                sign(key)


def test_slots_that_do_not_answer(bench: Bench) -> None:
    """An empty or unreadable slot hides no token in another one."""
    key = bench.create()
    real = pkcs11_double.SoftwareLibrary.get_slots

    class Unreadable:
        def get_token(self) -> None:
            raise pkcs11.TokenNotRecognised

    bench.patch.setattr(
        pkcs11_double.SoftwareLibrary,
        "get_slots",
        lambda library, token_present=False: [Unreadable(), *real(library, token_present)],
    )
    bench.faults.fail("sign", pkcs11.DeviceError())
    sign(key)


def test_no_thread_but_the_workers(bench: Bench) -> None:
    """Opening, making, signing, closing: one thread enters the library."""
    keys = [bench.create(label) for label in ("one", "two")]
    threads = [threading.Thread(target=sign, args=(key,)) for key in keys * 4]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    bench.close()
    assert len(bench.faults.threads) == 1
    assert threading.get_ident() not in bench.faults.threads
