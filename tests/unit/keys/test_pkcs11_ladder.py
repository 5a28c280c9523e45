"""The ladder: which error leads how far back, how long is waited, when callers are refused at once."""

from __future__ import annotations

import pkcs11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attestation.keys.pkcs11.ladder import (
    FAILURES_TO_OPEN,
    PIN_ERRORS,
    STEPS,
    UNSUPPORTED,
    Breaker,
    Step,
    name_of,
    step_for,
)

TABLE = [
    (pkcs11.ObjectHandleInvalid(), Step.FIND_KEY),
    (pkcs11.KeyHandleInvalid(), Step.FIND_KEY),
    (pkcs11.SessionHandleInvalid(), Step.NEW_SESSION),
    (pkcs11.SessionClosed(), Step.NEW_SESSION),
    (pkcs11.UserNotLoggedIn(), Step.NEW_SESSION),
    (pkcs11.DeviceError(), Step.RESTART),
    (pkcs11.DeviceRemoved(), Step.RESTART),
    (pkcs11.TokenNotPresent(), Step.RESTART),
    (pkcs11.NoSuchToken(), Step.RESTART),
    (pkcs11.GeneralError(), Step.RESTART),
    (pkcs11.UserAlreadyLoggedIn(), Step.RESTART),
    (pkcs11.PKCS11Error("Initialisation error (not initialized). Should never see this."), Step.RESTART),
    (pkcs11.PKCS11Error("Unmapped error code 0x190"), Step.RESTART),
    (pkcs11.PinIncorrect(), None),
    (pkcs11.PinLocked(), None),
    (pkcs11.PinExpired(), None),
    (pkcs11.MechanismInvalid(), None),
    (pkcs11.PKCS11Error("Unmapped error code 0x68"), None),
    (pkcs11.DataLenRange(), None),
    (pkcs11.KeySizeRange(), None),
    (pkcs11.PKCS11Error("something new"), None),
]


@pytest.mark.parametrize(("error", "step"), TABLE, ids=lambda value: str(value) or type(value).__name__)
def test_the_table(error: Exception, step: Step | None) -> None:
    """HSM-AND-KUBERNETES §3, row by row; what is not there is not mended by beginning again."""
    assert step_for(error) is step


def test_every_row_is_in_the_table() -> None:
    """No step without a row above, and no error that is both mended and permanent."""
    assert {name_of(error) for error, step in TABLE if step is not None} == set(STEPS)
    assert not set(STEPS) & (PIN_ERRORS | UNSUPPORTED)
    assert not PIN_ERRORS & UNSUPPORTED


@pytest.mark.parametrize("name", sorted(set(STEPS) | PIN_ERRORS | UNSUPPORTED))
def test_names_are_those_of_the_binding(name: str) -> None:
    """A name that python-pkcs11 does not have would match nothing; two it tells by text only."""
    assert hasattr(pkcs11, name) or name in ("CryptokiNotInitialized", "KeyFunctionNotPermitted")


def test_delays() -> None:
    """0.2 s, doubled, at most 30 s; open after five, closed by the first success."""
    breaker = Breaker(jitter=lambda: 0.0)
    found = []
    for count in range(1, 12):
        breaker.failed(100.0)
        found.append(round(breaker.due - 100.0, 3))
        assert breaker.open is (count >= FAILURES_TO_OPEN)
    assert found == [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30.0, 30.0, 30.0]
    breaker.succeeded()
    assert not breaker.open
    breaker.failed(0.0)
    assert breaker.due == pytest.approx(0.2)


@given(st.integers(0, 10_000), st.floats(0, 1))
def test_jitter_takes_at_most_a_quarter(failures: int, jitter: float) -> None:
    """Workers that failed together do not come back together; none waits longer than 30 s, however often it failed."""
    breaker = Breaker(jitter=lambda: jitter, failures=failures)
    breaker.failed(0.0)
    full = min(30.0, 0.2 * 2 ** min(failures, 20))
    assert 0.75 * full <= breaker.due <= full <= 30.0
