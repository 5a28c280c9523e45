"""How the kiosk has its machine admitted: introduced and activated as the agent does, then waited for (PROTOCOL §§1-2).

It never attests: it runs another system than the disk will, whose PCRs must not become this machine's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from attestation.api import ActivateRequest, ActivateResponse, IntroduceRequest
from attestation.errors import AttestationError
from attestation.machines import Status
from attestation_agent.exits import is_passing
from attestation_agent.introduction import Introducing
from attestation_agent.kiosk.exits import KioskExit, NotAdmitted
from attestation_agent.state import KnownAs

T = TypeVar("T")

POLL_SECONDS: Final = 30
SLOWEST_POLL_SECONDS: Final = 120
_REFUSED: Final = {
    Status.LOCKED: KioskExit.LOCKED,
    Status.REVOKED: KioskExit.REVOKED,
    Status.REJECTED: KioskExit.REJECTED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Identified:
    """Who this TPM is.

    Args:
        ek_fingerprint: SHA-384 of the EK's SPKI DER, 96 hex.
        ek_source: `cert` where a certificate for it is in NV, else `pub`.
    """

    ek_fingerprint: str
    ek_source: str

    @property
    def short_code(self) -> str:
        """The beginning, in fours: to compare with what an operator sees."""
        return " ".join(self.ek_fingerprint[at : at + 4] for at in range(0, 16, 4))


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    """What the service answered to a machine that it knows and lets in.

    Args:
        machine_id: What it calls us; signed.
        image_url: Where it says that an image is; not signed, and believed no more than any address.
        service_keys: The keys that are pinned.
    """

    machine_id: str
    image_url: str | None
    service_keys: dict[str, Any]


class Registering(Introducing):
    """A machine that is to be installed."""

    _status: Status = Status.PENDING_APPROVAL
    _image_url: str | None = None

    def admitted(self, *, wait_seconds: float) -> Admitted:
        """Introduce this machine, and wait until an operator approves it where no token admits it.

        Args:
            wait_seconds: How long an approval is waited for.

        Raises:
            NotAdmitted: Refused, or not approved in that time.
            AttestationError: The service refused, cannot be reached again and again, or is not the one to believe.
        """
        # A rack that is switched on at once does not arrive at once.
        if self._settings.splay_seconds:
            self._edge.wait(self._edge.rhythm.uniform(0.0, self._settings.splay_seconds))
        known = self._insisting(lambda: self._enrol(presents_token=True))
        waited, pause = 0.0, self._pause(0.0)
        while self._status is Status.PENDING_APPROVAL:
            self._edge.log.info("waits.for_approval", machine_id=known.machine_id)
            if waited >= wait_seconds or self._edge.wait(pause):
                raise NotAdmitted("no operator approved this machine in time", KioskExit.PENDING_APPROVAL)
            waited += pause
            try:
                # What it says now is not signed: it decides when we prove ourselves again, and nothing else.
                if self._asked() is not Status.PENDING_APPROVAL:
                    known = self._enrol()
                pause = self._pause(waited)
            except AttestationError as e:
                # An approval may take hours, in which a service is restarted: who waits goes on waiting.
                if not is_passing(e):
                    raise
                pause = self._again(e, 1)
        code = _REFUSED.get(self._status)
        if code is not None:
            raise NotAdmitted(f"an operator decided: {self._status}", code)
        return Admitted(
            machine_id=known.machine_id, image_url=self._image_url, service_keys=self._pinned_keys()
        )

    def let_go(self) -> None:
        """Give the TPM back."""
        self._close_tpm(announce=True)

    def _pause(self, waited: float) -> float:
        """Return when to ask again: who has waited for an hour can wait two minutes more."""
        seconds = min(max(POLL_SECONDS, int(waited / POLL_SECONDS)), SLOWEST_POLL_SECONDS)
        return self._edge.rhythm.after_answer(seconds)

    def _asked(self) -> Status:
        """Ask what became of us: an introduction costs the service a row that ends in a minute, and no audit entry."""
        members = self._told_of_us(self._identify(), self._open_tpm().ak_public())
        return self._client.introduce(IntroduceRequest.model_validate(members)).status

    def _insisting(self, ask: Callable[[], T]) -> T:
        """Return what *ask* does; while the service does not answer it is asked again, with the agent's pauses."""
        failures = 0
        while True:
            try:
                return ask()
            except AttestationError as e:
                failures += 1
                if not is_passing(e) or failures >= self._settings.attempts:
                    raise
                if self._edge.wait(self._again(e, failures)):
                    raise

    def _again(self, error: AttestationError, failures: int) -> float:
        """Return after which pause is asked again."""
        self._edge.log.warning("service.again", code=error.code, reason=str(error))
        return self._edge.rhythm.after_failure(failures, getattr(error, "retry_after_seconds", None))

    def _activate(self, machine_id: str, request: ActivateRequest) -> ActivateResponse:
        activated = super()._activate(machine_id, request)
        self._image_url = activated.iso_url
        return activated

    def _remember(self, known: KnownAs, status: Status) -> None:
        # Of a welcome that is verified by now.
        self._status = status
        super()._remember(known, status)
