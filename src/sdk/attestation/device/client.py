"""A TPM to run commands on: nonces, sessions, resubmission, and nothing left behind.

A TPM without a resource manager holds as few as three objects and three sessions. Hence every handle that a
command makes is remembered until it is flushed, and a scope flushes what was made inside it, whatever happens.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Iterator
from types import TracebackType
from typing import Final, Self, TypeVar

from attestation.device.transport import Transport, open_transport
from attestation.errors import DeviceError, MalformedEvidence, TPMResponseError
from attestation.tpm import commands, response_codes, sessions
from attestation.tpm.commands import CC, Command, Entity, SessionType
from attestation.tpm.public import Public
from attestation.tpm.sessions import Password, Session, SessionUse

T = TypeVar("T")

COMMAND_TIMEOUT_SECONDS: Final = 30.0
KEY_TIMEOUT_SECONDS: Final = 300.0
"""RSA keys take discrete TPMs minutes in the worst case; the kernel's own limit is the same."""
RESUBMIT_SECONDS: Final = 20.0
"""How long a TPM may go on saying RETRY or TESTING."""
_FIRST_PAUSE_SECONDS: Final = 0.005
_LONGEST_PAUSE_SECONDS: Final = 0.5
_SLOW: Final = frozenset({CC.CREATE_PRIMARY, CC.CREATE, CC.SELF_TEST, CC.CLEAR})


class LiveSession:
    """A session of this client; it always stands for the latest nonce.

    Raises:
        DeviceError: On use, when it has ended.
    """

    __slots__ = ("_session", "handle")

    def __init__(self, session: Session) -> None:
        self._session: Session | None = session
        self.handle = session.handle

    def use(
        self,
        *,
        auth_value: bytes = b"",
        encrypt_command: bool = False,
        encrypt_response: bool = False,
        keep: bool = True,
    ) -> LiveUse:
        """Return one use of the session for one command; arguments as `sessions.SessionUse`."""
        if self._session is None:
            raise DeviceError("the session has ended")
        return LiveUse(
            self,
            SessionUse(
                session=self._session,
                auth_value=auth_value,
                encrypt_command=encrypt_command,
                encrypt_response=encrypt_response,
                keep=keep,
            ),
        )

    def advance(self, session: Session | None) -> None:
        """Go on with what the exchange returned; None if the command ended the session."""
        self._session = session


class LiveUse:
    """One use of a `LiveSession`, for one command."""

    __slots__ = ("live", "use")

    def __init__(self, live: LiveSession, use: SessionUse) -> None:
        self.live = live
        self.use = use


class TPM:
    """Runs commands on one TPM. Not for several threads at once.

    Args:
        transport: Owned from now on: closed with this object.
        timeout_seconds: For one command, except those that make keys.
    """

    def __init__(self, transport: Transport, *, timeout_seconds: float = COMMAND_TIMEOUT_SECONDS) -> None:
        self._transport = transport
        self._timeout_seconds = timeout_seconds
        self._loaded: dict[int, None] = {}
        if transport.exclusive:
            self.flush_everything()

    @classmethod
    def open(cls, uri: str, *, timeout_seconds: float = COMMAND_TIMEOUT_SECONDS) -> Self:
        """Open the TPM at `device:PATH`, `unix:PATH` or `tcp:HOST:PORT`.

        Raises:
            DeviceError: It cannot be reached.
        """
        transport = open_transport(uri)
        try:
            return cls(transport, timeout_seconds=timeout_seconds)
        except BaseException:
            transport.close()
            raise

    @property
    def loaded(self) -> tuple[int, ...]:
        """Handles of objects and sessions that this client made and did not flush yet."""
        return tuple(self._loaded)

    def execute(self, command: Command[T], *authorisations: Password | LiveUse) -> T:
        """Run *command* and return its result.

        Args:
            command: From `attestation.tpm.commands`.
            authorisations: Those of the command's entities in order, then sessions for encryption only.

        Raises:
            TPMResponseError: The TPM refused.
            DeviceError: It did not answer, or answered what no TPM may answer.
        """
        exchange = sessions.begin(
            command,
            [a if isinstance(a, Password) else a.use for a in authorisations],
            [secrets.token_bytes(sessions.NONCE_BYTES) for _ in authorisations],
        )
        response = self._transmit(command.code, exchange.request)
        if command.makes_handle and len(response) >= 14 and response[6:10] == b"\0\0\0\0":
            # Before anything is judged: also what came with a wrong HMAC occupies a slot.
            self._loaded[int.from_bytes(response[10:14])] = None
        try:
            finished = exchange.finish(response)
        except MalformedEvidence as e:
            raise DeviceError(f"TPM answered what no TPM may answer: {e}", fault="malformed") from e
        for authorisation, session in zip(authorisations, finished.sessions, strict=True):
            if isinstance(authorisation, LiveUse):
                authorisation.live.advance(session)
                if session is None:
                    self._loaded.pop(authorisation.live.handle, None)
        return finished.value

    def _transmit(self, code: CC, request: bytes) -> bytes:
        """Send *request*, again where the TPM did not begin it, and return the response."""
        timeout_seconds = max(self._timeout_seconds, KEY_TIMEOUT_SECONDS if code in _SLOW else 0.0)
        pause_seconds = _FIRST_PAUSE_SECONDS
        give_up_at = time.monotonic() + RESUBMIT_SECONDS
        while True:
            response = self._transport.transmit(request, timeout_seconds)
            busy = int.from_bytes(response[6:10]) in response_codes.RESUBMIT
            if not busy or time.monotonic() + pause_seconds > give_up_at:
                return response
            time.sleep(pause_seconds)
            pause_seconds = min(2 * pause_seconds, _LONGEST_PAUSE_SECONDS)

    def start_session(self, kind: SessionType, salt_key: tuple[Entity, Public] | None) -> LiveSession:
        """Start a SHA-256 session with AES-128-CFB, salted to *salt_key* (loaded handle, verified public area)."""
        nonce = secrets.token_bytes(sessions.NONCE_BYTES)
        start = sessions.start(kind, nonce, salt_key=salt_key)
        return LiveSession(start.finish(self.execute(start.command)))

    def startup(self) -> None:
        """Send TPM2_Startup(CLEAR); firmware usually did already, which is fine."""
        try:
            self.execute(commands.startup())
        except TPMResponseError as e:
            if e.response_code != response_codes.INITIALIZE:
                raise

    def shutdown(self) -> None:
        """Flush what is ours and announce the power loss; the last thing to do before it.

        Without it, three unclean restarts lock out every key that lacks noDA (0x921).
        """
        self.flush_since(())
        self.execute(commands.shutdown())

    def flush(self, handle: int) -> None:
        """Flush an object or session of ours."""
        self.execute(commands.flush_context(handle))
        self._loaded.pop(handle, None)

    def flush_since(self, kept: tuple[int, ...]) -> None:
        """Flush everything of ours except *kept*, newest first.

        Raises:
            DeviceError: After all were tried, the first failure.
        """
        failure: DeviceError | None = None
        for handle in reversed([h for h in self._loaded if h not in kept]):
            try:
                self.flush(handle)
            except TPMResponseError as e:
                # Whatever the reason, this handle is not ours to flush again.
                self._loaded.pop(handle, None)
                failure = failure or e
        if failure is not None:
            raise failure

    def flush_everything(self) -> None:
        """Flush all objects and sessions, whoever left them: for TPMs that are ours alone.

        A client that was killed left its slots occupied; three of those and the TPM is full (0x902).
        """
        try:
            for first in (commands.TRANSIENT_FIRST, commands.LOADED_SESSION_FIRST):
                for handle in self.handles(first):
                    self.execute(commands.flush_context(handle))
        except TPMResponseError as e:
            # Not started yet: then nothing is loaded either.
            if e.response_code != response_codes.INITIALIZE:
                raise
        self._loaded.clear()

    @contextlib.contextmanager
    def scope(self) -> Iterator[None]:
        """Flush on the way out what was loaded inside, also when something failed."""
        kept = self.loaded
        try:
            yield
        except BaseException:
            # The first error is the one that matters.
            with contextlib.suppress(DeviceError):
                self.flush_since(kept)
            raise
        self.flush_since(kept)

    def handles(self, first: int) -> list[int]:
        """Return all handles of the type of *first* that are not below it, ascending."""
        found: list[int] = []
        while True:
            page = self.execute(commands.get_handles(first))
            # Only growing handles: a TPM that repeats itself must not hold us here.
            found += [h for h in page.handles if not found or h > found[-1]]
            if not page.more or not page.handles or found[-1] + 1 <= first:
                return found
            first = found[-1] + 1

    def properties(self) -> dict[int, int]:
        """Return the fixed properties, TPM_PT -> u32."""
        return self.execute(commands.get_properties(commands.Property.FIXED)).values

    def close(self) -> None:
        """Flush everything of ours and close the transport; may be called twice."""
        try:
            self.flush_since(())
        finally:
            self._loaded.clear()
            self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
            return
        with contextlib.suppress(DeviceError):
            self.close()
