"""The one thread of a process that enters a PKCS#11 module.

python-pkcs11 calls C_Initialize(NULL): it promises the module that one thread uses it. So one thread owns the
library, the logins, one session per token and all handles (`attestation.keys.owned`). What the module answers
decides how far back the thread begins again
(`attestation.keys.pkcs11.ladder`); each key is proven by a test signature before its handle is used again.

A process that was forked from one with a thread is refused: the standard forbids that it uses the library
(PKCS #11 3.0 §5.6.1), and SoftHSM would let it sign.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import pkcs11
from pkcs11 import PKCS11Error

from attestation.errors import (
    AttestationError,
    KeyNotFound,
    KeyUnsupported,
    ModuleUnusable,
    PINRejected,
    SignerUnavailable,
    TokenAbsent,
)
from attestation.keys import refusals
from attestation.keys.delegated import delegated
from attestation.keys.owned import QUEUE_JOBS, Job, OwnedThread, Threads
from attestation.keys.pkcs11.ladder import PIN_ERRORS, UNSUPPORTED, Breaker, Step, name_of, step_for
from attestation.keys.pkcs11.modules import alone
from attestation.keys.pkcs11.objects import HandleSigner, KeyName, find_private, load_spki
from attestation.keys.pkcs11.tokens import Library, TokenName, find_token, may_log_in
from attestation.keys.selftest import self_test

T = TypeVar("T")

DEADLINE_SECONDS: Final = 5.0
KEEP_ALIVE_SECONDS: Final = 15.0
"""Idle connections of a YubiHSM die after 30 to 40 seconds."""
STILL_MISSING_SECONDS: Final = 5.0
"""How long a key that was not found is not looked for again: looking restarts the library for all keys."""

_GONE: Final = frozenset(("SessionHandleInvalid", "SessionClosed", "CryptokiNotInitialized"))
"""Errors of closing a session that is closed already."""

LOGIN_WAIT_SECONDS: Final = 1.0

Load = Callable[[str], Library]


class TokenSession:
    """One session on one token, logged in, with the handles found in it. Only the module's thread has one."""

    def __init__(self, session: pkcs11.Session, *, writes: bool) -> None:
        self.session = session
        self.writes = writes
        self.handles: dict[KeyName, pkcs11.SignMixin] = {}

    def signer(self, name: KeyName) -> HandleSigner:
        """Return the signer of the key *name*, found and proven unless it was before in this session.

        Raises:
            KeyNotFound: It is not there.
            KeyMismatch: Another key is there.
        """
        handle = self.handles.get(name)
        if handle is None:
            handle = find_private(self.session, name)
            signer = HandleSigner(handle)
            if name.spki is not None:
                public = load_spki(name.spki)
                self_test(delegated(signer, public, name.shown), public)
            self.handles[name] = handle
        return HandleSigner(handle)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class KeyInUse:
    """A key that somebody has open.

    Args:
        token: Its token.
        key: The key, with its public half.
        test: The key that makes the test signatures in its place.
    """

    token: TokenName
    key: KeyName
    test: KeyName | None = None

    def prove(self, connection: TokenSession) -> None:
        """Make a test signature. With a test key, the key itself only makes one where its handle is new.

        Raises:
            KeyNotFound: One of the two is not there.
            KeyMismatch: Another key is there.
        """
        signer, name = connection.signer(self.key), self.key
        if self.test is not None:
            signer, name = connection.signer(self.test), self.test
        assert name.spki is not None
        public = load_spki(name.spki)
        self_test(delegated(signer, public, name.shown), public)


@dataclasses.dataclass(slots=True, kw_only=True, eq=False)
class _Job(Job[T]):
    """Something to do on a token.

    Args:
        token: Which.
        key: The key it needs; None while one is being opened or made.
        expires: When nobody waits any more, by the thread's clock.
        writes: It needs a session that may write.
    """

    token: TokenName
    key: KeyName | None
    expires: float
    writes: bool


class ModuleThread(OwnedThread):
    """The thread of one module, and what callers may do: `run` and `close`.

    Args:
        name: The module's name in the deployment's list.
        path: The module.
        load: Loads and initializes it: `pkcs11.lib`; another one in tests.
        clock: Monotonic seconds.
        jitter: A number from 0 to 1.
        queue_jobs: Jobs that may wait.
        keep_alive_seconds: After so long without a job, each key in use makes a test signature.
    """

    def __init__(
        self,
        name: str,
        path: Path,
        *,
        load: Load | None = None,
        clock: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = random.random,
        queue_jobs: int = QUEUE_JOBS,
        keep_alive_seconds: float = KEEP_ALIVE_SECONDS,
    ) -> None:
        super().__init__(path, f"the PKCS#11 module {name}", clock, queue_jobs)
        self.path = path
        self._load: Load = load or pkcs11.lib
        self._keep_alive = keep_alive_seconds
        self._breaker = Breaker(jitter=jitter)
        self._why = ""
        self._library: Library | None = None
        self._up = False
        self._connections: dict[TokenName, TokenSession] = {}
        self._missing: dict[tuple[TokenName, KeyName], float] = {}
        self._in_use: Counter[KeyInUse] = Counter()
        self._broken: tuple[TokenName, KeyName | None] | None = None
        self._proven = 0.0
        self._counting = threading.Lock()
        self._thread.start()

    # What callers do.

    def run(
        self,
        token: TokenName,
        work: Callable[[TokenSession], T],
        *,
        key: KeyName | None = None,
        writes: bool = False,
        deadline_seconds: float = DEADLINE_SECONDS,
    ) -> T:
        """Have *work* done in the module's thread and return its result. Blocks; never call it on an event loop.

        Where *key* is None, a key is being opened: whatever is wrong is said at once, and not waited for.

        Raises:
            SignerBusy: Too many jobs wait.
            SignerUnavailable: The token does not answer, or not in time. A job that was not begun in time never is.
            KeyUnusable: A subclass says what is wrong with module, token, PIN or key.
        """
        if self._breaker.open:
            raise SignerUnavailable(self._why)
        expires = self._clock() + deadline_seconds
        job = _Job(token=token, key=key, work=work, expires=expires, writes=writes)
        return self._answer_to(job, deadline_seconds)

    @property
    def trouble(self) -> str:
        """Why the token cannot be used now; empty while nothing is wrong."""
        return self._why if self._breaker.failures else ""

    def use(self, key: KeyInUse, *, more: int = 1) -> None:
        """Count who has a key open: only such keys make test signatures. *more* is 1, or -1 when it is closed."""
        with self._counting:
            self._in_use[key] += more
            self._in_use = +self._in_use  # a new one: the thread may be walking through the old one

    # What the thread does.

    def _patience_seconds(self) -> float:
        """Return the time until a test signature or a new attempt is due."""
        until = self._breaker.due if self._breaker.failures else self._proven + self._keep_alive
        return max(0.0, until - self._clock())

    def _do(self, job: _Job[T]) -> T:
        """Do a job; after an error that the ladder knows, climb it and do the job once more."""
        self._in_time(job)
        if self._breaker.open:
            raise SignerUnavailable(self._why)
        if self._breaker.failures:
            self._climb(job, Step.RESTART)
        self._not_missing(job)
        fresh = job.token not in self._connections
        try:
            return self._once(job)
        except (TokenAbsent, ModuleUnusable) as e:
            if isinstance(e, ModuleUnusable) and job.key is None:
                raise
            step = Step.RESTART
        except KeyNotFound:
            # Without a login private keys are invisible, and a token that vanished leaves its session behind: only
            # a search after a new login says that something is not there.
            if fresh and job.key is None:
                raise
            step = Step.NEW_SESSION
        except PKCS11Error as e:
            known = step_for(e)
            if known is None:
                raise self._ours(e, job) from e
            step = known
        self._climb(job, step)
        self._in_time(job)
        try:
            return self._once(job)
        except PKCS11Error as e:
            raise self._ours(e, job) from e

    def _once(self, job: _Job[T]) -> T:
        try:
            result = job.work(self._connect(job))
        finally:
            if job.writes:  # nobody else needs a session that may
                self._disconnect(job.token)
        self._proven = self._clock()
        return result

    def _climb(self, job: _Job[Any], step: Step) -> None:
        """Begin again from *step*, higher where that fails; wait and repeat the last step while the job has time.

        Raises:
            SignerUnavailable: In vain.
            KeyUnusable: It says what is wrong.
        """
        while True:
            if self._breaker.failures and not self._wait(job):
                raise SignerUnavailable(self._why)
            at_least = Step.FIND_KEY
            try:
                self._begin_again(job, step)
            except (KeyNotFound, TokenAbsent, ModuleUnusable) as e:
                if step is Step.RESTART:
                    self._say(job, e)
                    self._failed(e, job)
            except PKCS11Error as e:
                higher = step_for(e)
                ours = self._ours(e, job)
                if higher is None:
                    raise ours from e
                if step is Step.RESTART:
                    if job.key is None:
                        raise ours from e
                    self._failed(ours, job)
                at_least = higher
            else:
                self._breaker.succeeded()
                return
            step = Step(max(at_least, min(step + 1, Step.RESTART)))

    def _say(self, job: _Job[Any], error: AttestationError) -> None:
        """Raise *error* where waiting for something better would help nobody."""
        if isinstance(error, KeyNotFound) and job.key is not None:
            self._missing[job.token, job.key] = self._clock() + STILL_MISSING_SECONDS
            self._breaker.succeeded()
            raise error
        if job.key is None:
            raise error

    def _begin_again(self, job: _Job[Any], step: Step) -> None:
        if step is Step.RESTART:
            self._let_go()
        elif step is Step.NEW_SESSION:
            self._disconnect(job.token)
        elif job.token in self._connections:
            self._connections[job.token].handles.clear()
        connection = self._connect(job)
        if job.key is not None:
            connection.signer(job.key)

    def _failed(self, error: AttestationError, job: _Job[Any]) -> None:
        self._breaker.failed(self._clock())
        self._broken = (job.token, job.key)
        self._why = f"the token of {job.key.shown if job.key else job.token} cannot be used now: {error}"

    def _wait(self, job: _Job[Any]) -> bool:
        """Wait for the next attempt; False where the job has no time for that, or nobody may wait any more."""
        if self._breaker.open or self._breaker.due > job.expires:
            return False
        return not self._stopping.wait(max(0.0, self._breaker.due - self._clock()))

    def _idle(self) -> None:
        """Without a job: make sure that the keys in use still sign, or try whether they do again."""
        self._proven = self._clock()
        used = list(self._in_use)
        known = self._broken in [(each.token, each.key) for each in used]
        for each in used:
            probe: _Job[None] = _Job(
                token=each.token,
                key=each.key,
                work=each.prove,
                expires=self._clock() + DEADLINE_SECONDS,
                writes=False,
            )
            if not self._breaker.failures:
                with contextlib.suppress(AttestationError):  # the next caller hears of it
                    self._do(probe)
            elif not known or (each.token, each.key) == self._broken:
                # Half open: one attempt of our own, with a test signature, before anybody's job.
                try:
                    self._begin_again(probe, Step.RESTART)
                except (AttestationError, PKCS11Error) as e:
                    self._failed(e if isinstance(e, AttestationError) else self._ours(e, probe), probe)
                else:
                    self._breaker.succeeded()
                return

    def _in_time(self, job: _Job[Any]) -> None:
        if self._clock() >= job.expires:
            raise SignerUnavailable(f"{self.shown} had no time for a job; it was dropped")

    def _not_missing(self, job: _Job[Any]) -> None:
        if job.key is None:
            return
        until = self._missing.pop((job.token, job.key), 0.0)
        if until > self._clock():
            self._missing[job.token, job.key] = until
            raise KeyNotFound(f"no private key {job.key.shown} on the token")

    # Library, login, session.

    def _connect(self, job: _Job[Any]) -> TokenSession:
        """Return the session on the job's token, opened and logged in where it is not."""
        connection = self._connections.get(job.token)
        if connection is not None and job.writes and not connection.writes:
            self._disconnect(job.token)
            connection = None
        if connection is None:
            connection = TokenSession(self._log_in(job), writes=job.writes)
            self._connections[job.token] = connection
        return connection

    def _log_in(self, job: _Job[Any]) -> pkcs11.Session:
        """Open a session; where the token has a PIN, with exactly one attempt for each PIN that its source gives."""
        library = self._loaded()
        name = job.token
        token = find_token(library, name)
        pin = name.pin() if name.pin is not None else None
        if pin is None:
            return token.open(rw=job.writes)
        try:
            text = pin.decode()
        except UnicodeDecodeError:
            raise PINRejected(f"the PIN of {name} is no UTF-8") from None
        place, marked = f"{self.path} {name}", refusals.mark(pin)
        if refusals.known(place, marked):
            raise PINRejected(
                f"the PIN of {name} was refused; it is not tried again until its source changes"
            )
        try:
            # One after another: several processes with the same wrong PIN would lock a token before it says so.
            # Whoever makes a key is alone already.
            with (
                contextlib.nullcontext() if job.writes else alone(self.path, wait_seconds=LOGIN_WAIT_SECONDS)
            ):
                may_log_in(find_token(library, name), name)
                session = token.open(rw=job.writes, user_pin=text)
        except PKCS11Error as e:
            refused = name_of(e) in PIN_ERRORS
            if refused:
                refusals.remember(place, marked)
            self._let_go()  # the binding leaves the session open where the login fails
            if refused:
                raise PINRejected(
                    f"the token refused the PIN of {name} ({name_of(e)}); "
                    "it is not tried again until its source changes"
                ) from None
            raise
        refusals.forget(place)
        return session

    def _loaded(self) -> Library:
        try:
            if self._library is None:
                self._library = self._load(str(self.path))
            elif not self._up:
                self._library.initialize()
        except PKCS11Error as e:
            raise ModuleUnusable(
                f"{self.shown} ({self.path}) cannot be used: {name_of(e)} {e}".rstrip() + _hint(self.path)
            ) from e
        self._up = True
        return self._library

    def _disconnect(self, token: TokenName) -> None:
        connection = self._connections.pop(token, None)
        if connection is None:
            return
        try:
            connection.session.close()
        except PKCS11Error as e:
            if name_of(e) not in _GONE:
                self._let_go()  # a session that cannot be closed would stay open

    def _let_go(self) -> None:
        """Log out everywhere and finalize the library; it is initialized again when it is needed."""
        self._connections.clear()
        if self._library is not None and self._up:
            self._up = False
            with contextlib.suppress(PKCS11Error):
                self._library.finalize()

    def _ours(self, error: PKCS11Error, job: _Job[Any]) -> AttestationError:
        """Return the error of ours that says what *error* does."""
        name = name_of(error)
        where = job.key.shown if job.key else str(job.token)
        if name in UNSUPPORTED:
            return KeyUnsupported(f"the token of {where} does not do this: {name}")
        text = "" if str(error) == "" else f" {error}"
        return SignerUnavailable(f"the token of {where} failed: {name}{text}")


def _hint(path: Path) -> str:
    """Return what SoftHSM does not say: which of its files is wrong."""
    if "softhsm" not in path.name or not path.exists():
        return ""
    named = os.environ.get("SOFTHSM2_CONF")
    file = Path(named or "/etc/softhsm/softhsm2.conf")
    says = f"SOFTHSM2_CONF={named}" if named else f"SOFTHSM2_CONF is not set, so {file}"
    try:
        lines = file.read_text(errors="replace").splitlines()
    except OSError as e:
        return f"; {says} cannot be read: {e.strerror}"
    for line in lines:
        key, _, value = line.partition("=")
        if key.strip() == "directories.tokendir":
            folder = Path(value.strip())
            usable = folder.is_dir() and os.access(folder, os.R_OK | os.W_OK | os.X_OK)
            return f"; {says} names the token directory {folder}" + (
                "" if usable else ", which cannot be used"
            )
    return f"; {says} names no directories.tokendir"


_threads: Final = Threads[ModuleThread]()
release = _threads.release


def acquire(name: str, path: Path) -> ModuleThread:
    """Return the thread of a module: one per process, started when its first key is opened."""
    return _threads.acquire(path, lambda: ModuleThread(name, path))
