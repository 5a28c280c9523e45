"""What is done about an error of a PKCS#11 module: how far back to begin again, how long to wait, when to give up.

Errors are known by the names that python-pkcs11 gives them, so this module needs neither it nor a token. What is
in no table here is not mended by beginning again, and is reported as it is. HSM-AND-KUBERNETES §3.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import Final


class Step(IntEnum):
    """How far back to begin again; each step includes the ones before it."""

    FIND_KEY = 1
    """Look for the object again: its handle is stale."""
    NEW_SESSION = 2
    """Open a new session and log in."""
    RESTART = 3
    """C_Finalize, C_Initialize: the only thing that helps when a connection died or a token came back."""


STEPS: Final[Mapping[str, Step]] = {
    "ObjectHandleInvalid": Step.FIND_KEY,
    "KeyHandleInvalid": Step.FIND_KEY,
    "SessionHandleInvalid": Step.NEW_SESSION,
    "SessionClosed": Step.NEW_SESSION,
    "UserNotLoggedIn": Step.NEW_SESSION,
    "DeviceError": Step.RESTART,
    "DeviceRemoved": Step.RESTART,
    "TokenNotPresent": Step.RESTART,
    "NoSuchToken": Step.RESTART,
    "CryptokiNotInitialized": Step.RESTART,
    "GeneralError": Step.RESTART,
    "UserAlreadyLoggedIn": Step.RESTART,  # a login that outlived its session; the thread has one only
}

PIN_ERRORS: Final = frozenset(
    ("PinIncorrect", "PinInvalid", "PinLenRange", "PinLocked", "PinExpired", "UserPinNotInitialized")
)
"""The PIN is wrong, locked or expired: another attempt could lock it."""

UNSUPPORTED: Final = frozenset(
    (
        "MechanismInvalid",
        "MechanismParamInvalid",
        "KeyFunctionNotPermitted",
        "KeyTypeInconsistent",
        "KeySizeRange",
        "DataInvalid",
        "DataLenRange",
        "FunctionNotSupported",
        "ArgumentsBad",
    )
)
"""The token will never do this."""

_BY_TEXT: Final = {
    "not initialized": "CryptokiNotInitialized",
    "error code 0x190": "CryptokiNotInitialized",
    "error code 0x68": "KeyFunctionNotPermitted",
}
"""Errors for which python-pkcs11 0.10 has no class of its own, by a part of its text."""

FIRST_DELAY_SECONDS: Final = 0.2
MAX_DELAY_SECONDS: Final = 30.0
JITTER: Final = 0.25
FAILURES_TO_OPEN: Final = 5


def name_of(error: BaseException) -> str:
    """Return the PKCS#11 name of *error* without its prefix, e.g. `SessionHandleInvalid`."""
    name = type(error).__name__
    if name != "PKCS11Error":
        return name
    return next((known for text, known in _BY_TEXT.items() if text in str(error)), name)


def step_for(error: BaseException) -> Step | None:
    """Return how far back to begin again after *error*; None: that would not help."""
    return STEPS.get(name_of(error))


@dataclasses.dataclass(slots=True)
class Breaker:
    """Counts the restarts that failed in a row, says how long to wait, and when to answer without trying.

    Args:
        jitter: Returns a number from 0 to 1, so that processes that failed together do not retry together.
    """

    jitter: Callable[[], float]
    failures: int = 0
    due: float = 0.0
    """When to try again, by the clock of `failed`."""

    @property
    def open(self) -> bool:
        """True where callers are refused at once; only the thread's own attempts go on."""
        return self.failures >= FAILURES_TO_OPEN

    def failed(self, at: float) -> None:
        """Count a restart that failed at *at*, seconds; `due` is the next attempt.

        The delay is 0.2 s, then twice the last, at most 30 s; up to a quarter less by jitter.
        """
        delay = min(MAX_DELAY_SECONDS, FIRST_DELAY_SECONDS * 2.0 ** min(self.failures, 20))
        self.failures += 1
        self.due = at + delay * (1 - JITTER * self.jitter())

    def succeeded(self) -> None:
        """Begin anew: it works."""
        self.failures = 0
