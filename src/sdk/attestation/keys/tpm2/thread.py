"""The one thread of a process that talks to a TPM for its keys.

A TPM runs one command at a time, has as few as three slots for objects, and a software TPM serves one client at a
time. So one thread per TPM connects, loads a key, signs, and lets go again when nothing is left to do: of the slot,
and where nothing manages the TPM for several clients, of the connection too. A TPM that went away is looked for anew
by the next signature; nobody needs to restart anything.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, TypeVar

from attestation.device import TPM, open_transport
from attestation.device.keys import Loaded, find_key, load_key
from attestation.errors import (
    AttestationError,
    DeviceError,
    KeyMismatch,
    KeyNotFound,
    KeyUnsupported,
    KeyUnusable,
    PINRejected,
    SignerBusy,
    SignerUnavailable,
    TPMResponseError,
)
from attestation.keys import refusals
from attestation.keys.owned import QUEUE_JOBS, Job, OwnedThread, Threads
from attestation.keys.secrets import SecretSource
from attestation.tpm import response_codes
from attestation.tpm.key_file import TPMKey
from attestation.wire import sized

T = TypeVar("T")

DEADLINE_SECONDS: Final = 10.0
COMMAND_TIMEOUT_SECONDS: Final = 10.0
"""Discrete TPMs take up to two seconds for a signature with RSA 3072."""
LINGER_SECONDS: Final = 2.0
"""How long a key stays loaded without a signature, where a resource manager serves others meanwhile."""
LINGER_EXCLUSIVE_SECONDS: Final = 0.05
HOLD_EXCLUSIVE_SECONDS: Final = 0.5
"""How long we keep others waiting for a TPM that serves one client at a time."""
SLOW_SECONDS: Final = 1.0
BACK_OFF_SECONDS: Final = 5.0
"""A TPM that hangs is not asked again for so long: those who wait for it hear at once."""

MAX_AUTH_BYTES: Final = 32
"""An authValue is no longer than the digest of the key's nameAlg (Part 1, 19.6.4.3), SHA-256."""

_AUTH: Final = frozenset({0x08E, 0x0A2})
"""AUTH_FAIL and BAD_AUTH."""
_STALE: Final = frozenset({0x08B, 0x910, 0x918})
"""HANDLE, REFERENCE_H0, REFERENCE_S0: what was loaded is not there any more, as after a reset."""
_FULL: Final = frozenset({0x902, 0x903, 0x904, 0x905, 0x906})
_INTEGRITY: Final = 0x09F
_NEVER: Final = frozenset({0x081, 0x082, 0x083, 0x084, 0x087, 0x08A, 0x092, 0x09C, 0x0A6})
"""ASYMMETRIC, ATTRIBUTES, HASH, VALUE, KEY_SIZE, TYPE, SCHEME, KEY, CURVE: this key or TPM will never do it."""


class AuthValues:
    """The authValues of a key and of its TPM's owner: read when they are needed, and not tried again once refused.

    Args:
        shown: The key's URI without the query.
        key: Of the key; None where it is empty.
        owner: Of the hierarchy; None where it is empty.
        tpm: Which TPM, as its thread is called.
    """

    def __init__(self, shown: str, key: SecretSource | None, owner: SecretSource | None, *, tpm: str) -> None:
        self._shown, self._key, self._owner = shown, key, owner
        self._place = f"{tpm} {shown}"
        self._tried = b""

    @property
    def of_key(self) -> bool:
        """True where the key has one."""
        return self._key is not None

    def read(self) -> tuple[bytes, bytes]:
        """Return both, of the key and of the owner.

        Raises:
            PINRejected: Just these were refused before; another attempt could lock the TPM.
            KeyUnusable: One cannot be read, or is too long.
        """
        values = [source() if source else b"" for source in (self._key, self._owner)]
        if max(map(len, values)) > MAX_AUTH_BYTES:
            raise KeyUnusable(f"an authValue of {self._shown} has more than {MAX_AUTH_BYTES} bytes")
        self._tried = refusals.mark(b"".join(map(sized, values)))
        if refusals.known(self._place, self._tried):
            raise PINRejected(f"the authValue of {self._shown}, or of the TPM's owner, was refused before")
        return values[0], values[1]

    def refuse(self) -> None:
        """Remember that what was read last is wrong."""
        refusals.remember(self._place, self._tried)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StoredKey:
    """A key as the thread must find it each time.

    Args:
        shown: Its URI without the query.
        where: The handle of a persistent key, or a wrapped one.
        name: The Name that was found when it was opened.
        auth: What authorises its use.
    """

    shown: str
    where: int | TPMKey
    name: bytes
    auth: AuthValues = field(repr=False)


class HeldTPM:
    """The TPM while it is ours, with one key loaded at most. Only the TPM's thread has one."""

    def __init__(self, tpm: TPM, *, exclusive: bool) -> None:
        self.tpm = tpm
        self.exclusive = exclusive
        self._key: StoredKey | None = None
        self._loaded: Loaded | None = None
        self._auth_value = b""

    def use(self, key: StoredKey) -> tuple[Loaded, bytes]:
        """Return *key*, loaded, and its authValue.

        Raises:
            KeyMismatch: Another key is there now.
            TPMResponseError: The TPM refused.
        """
        if self._key is not key or self._loaded is None:
            self.forget()
            self._auth_value, owner_auth = key.auth.read()
            if isinstance(key.where, int):
                self._loaded = find_key(self.tpm, key.where, with_session=key.auth.of_key)
            else:
                self._loaded = load_key(self.tpm, key.where, owner_auth, with_session=key.auth.of_key)
            self._key = key
            if self._loaded.entity.name != key.name:
                raise KeyMismatch(f"another key is at {key.shown} than when it was opened")
        return self._loaded, self._auth_value

    def forget(self) -> None:
        """Flush what is loaded."""
        self._key, self._loaded, self._auth_value = None, None, b""
        self.tpm.flush_since(())

    def close(self) -> None:
        """Let go of the TPM; its failure is nobody's business any more."""
        with contextlib.suppress(DeviceError):
            self.tpm.close()


class TPMThread(OwnedThread):
    """The thread of one TPM, and what callers may do: `run` and `close`.

    Args:
        uri: Transport, as `open_transport` takes it.
        clock: Monotonic seconds.
        queue_jobs: Jobs that may wait.
    """

    def __init__(
        self, uri: str, *, clock: Callable[[], float] = time.monotonic, queue_jobs: int = QUEUE_JOBS
    ) -> None:
        super().__init__(_place(uri), f"the TPM {uri}", clock, queue_jobs)
        self.uri = uri
        self._connection: HeldTPM | None = None
        self._since = 0.0
        self._not_before = 0.0
        self._why = ""
        self._thread.start()

    # What callers do.

    def run(
        self,
        work: Callable[[HeldTPM], T],
        *,
        shown: str,
        deadline_seconds: float = DEADLINE_SECONDS,
    ) -> T:
        """Have *work* done in the TPM's thread and return its result. Blocks; never call it on an event loop.

        Args:
            work: What. It may be done twice.
            shown: The key that it is about, for messages.
            deadline_seconds: A job that was not begun by then never is.

        Raises:
            SignerBusy: Too many jobs wait, or the TPM has no slot left.
            SignerUnavailable: The TPM does not answer, or not in time.
            KeyUnusable: A subclass says what is wrong with key or authValue.
        """
        try:
            return self._answer_to(Job(work=work), deadline_seconds)
        except TPMResponseError as e:
            raise _ours(e, shown) from e
        except DeviceError as e:
            raise SignerUnavailable(f"{shown} does not answer: {e}") from e

    # What the thread does.

    def _patience_seconds(self) -> float | None:
        """Return how long a key stays loaded without a signature; None where nothing of ours is in the TPM."""
        connection = self._connection
        if connection is None:
            return None
        if connection.exclusive and self._clock() - self._since > HOLD_EXCLUSIVE_SECONDS:
            self._let_go()
        return LINGER_EXCLUSIVE_SECONDS if connection.exclusive else LINGER_SECONDS

    def _idle(self) -> None:
        """Let go of the TPM."""
        self._let_go()

    def _do(self, job: Job[T]) -> T:
        """Do a job; once more with a new connection where the TPM was lost, or forgot what was loaded."""
        begun = self._clock()
        try:
            return self._once(job)
        except TPMResponseError as e:
            if response_codes.without_position(e.response_code) not in _STALE:
                raise
        except DeviceError as e:
            if self._hangs(e, begun):
                raise
        return self._once(job)

    def _once(self, job: Job[T]) -> T:
        begun = self._clock()
        try:
            connection = self._connect()
            return job.work(connection)
        except TPMResponseError:
            self._forget()
            raise
        except DeviceError as e:
            self._hangs(e, begun)
            self._let_go()
            raise
        except AttestationError:
            self._forget()
            raise

    def _connect(self) -> HeldTPM:
        if self._connection is not None:
            return self._connection
        if self._clock() < self._not_before:
            raise DeviceError(self._why)
        transport = open_transport(self.uri)
        try:
            tpm = TPM(transport, timeout_seconds=COMMAND_TIMEOUT_SECONDS)
            tpm.startup()
        except BaseException:
            transport.close()
            raise
        self._connection = HeldTPM(tpm, exclusive=transport.exclusive)
        self._since = self._clock()
        return self._connection

    def _hangs(self, error: DeviceError, begun: float) -> bool:
        """True where the failure took long: then nobody waits for this TPM again for a while."""
        now = self._clock()
        if now - begun < SLOW_SECONDS:
            return False
        self._not_before, self._why = now + BACK_OFF_SECONDS, str(error)
        return True

    def _forget(self) -> None:
        """Flush what is loaded after a refusal: its session may be out of step."""
        if self._connection is not None:
            try:
                self._connection.forget()
            except DeviceError:
                self._let_go()

    def _let_go(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def _ours(error: TPMResponseError, shown: str) -> AttestationError:
    """Return what a refusal of the TPM means for whoever wanted a signature."""
    code = response_codes.without_position(error.response_code)
    if code in _AUTH:
        return PINRejected(f"the authValue of {shown}, or of the TPM's owner, is another: {error}")
    if code in _STALE:
        return KeyNotFound(f"nothing is at {shown}: {error}")
    if code == _INTEGRITY:
        return KeyMismatch(f"{shown} was made by another TPM, or before this one was cleared: {error}")
    if code in _FULL:
        return SignerBusy(f"the TPM has no room for {shown} now: {error}")
    if code in _NEVER:
        return KeyUnsupported(f"the TPM does not do this with {shown}: {error}")
    return SignerUnavailable(f"{shown} does not answer: {error}")


_threads: Final = Threads[TPMThread]()
release = _threads.release


def acquire(uri: str) -> TPMThread:
    """Return the thread for the TPM at *uri*: one per process, started when its first key is opened."""
    return _threads.acquire(_place(uri), lambda: TPMThread(uri))


def _place(uri: str) -> tuple[int, str]:
    # A forked process has its own connection, where the TPM serves several.
    return os.getpid(), uri
