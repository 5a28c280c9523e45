"""How the kiosk ends. Codes of the agent keep their meaning; those from 30 on are of the kiosk alone."""

from __future__ import annotations

from enum import IntEnum

from attestation.errors import AttestationError
from attestation_agent.exits import AgentError, Exit, exit_of


class KioskExit(IntEnum):
    """Exit codes; the numbers are documented in docs/operate/kiosk.md and do not change."""

    WRITTEN = 0
    PENDING_APPROVAL = Exit.PENDING_APPROVAL
    LOCKED = Exit.LOCKED
    REVOKED = Exit.REVOKED
    REJECTED = Exit.REJECTED
    TPM_UNAVAILABLE = Exit.TPM_UNAVAILABLE
    UNREACHABLE = Exit.UNREACHABLE
    REFUSED = Exit.REFUSED
    NOT_AUTHENTIC = Exit.NOT_AUTHENTIC
    STATE_NOT_KEPT = Exit.STATE_NOT_KEPT
    NO_IMAGE = 30
    IMAGE_REJECTED = 31
    NO_DISK = 32
    NOT_CONFIRMED = 33
    WRITE_FAILED = 34
    USAGE = Exit.USAGE
    STOPPED = 130


class NoImage(AgentError):
    """There is no image to be had: no address, no medium that holds one, or it broke off again and again."""

    code = "no-image"


class ImageRejected(AgentError):
    """The list, or the image, is not what a pinned key signed, or is none that can be installed."""

    code = "image-rejected"


class NoDisk(AgentError):
    """There is no disk that may be written."""

    code = "no-disk"


class NotConfirmed(AgentError):
    """Nobody confirmed that the disk is erased."""

    code = "not-confirmed"


class WriteFailed(AgentError):
    """The disk does not take or give back what is written to it; it holds nothing that boots."""

    code = "write-failed"


class NotAdmitted(AgentError):
    """The service has not admitted this machine.

    Args:
        message: Why.
        exit_code: Which of the answers it was.
    """

    code = "not-admitted"

    def __init__(self, message: str, exit_code: KioskExit) -> None:
        super().__init__(message)
        self.exit_code = exit_code


_EXITS: tuple[tuple[type[AttestationError], KioskExit], ...] = (
    (NoImage, KioskExit.NO_IMAGE),
    (ImageRejected, KioskExit.IMAGE_REJECTED),
    (NoDisk, KioskExit.NO_DISK),
    (NotConfirmed, KioskExit.NOT_CONFIRMED),
    (WriteFailed, KioskExit.WRITE_FAILED),
)


def kiosk_exit_of(error: AttestationError) -> int:
    """Return the exit code that tells *error*."""
    if isinstance(error, NotAdmitted):
        return error.exit_code
    for kind, code in _EXITS:
        if isinstance(error, kind):
            return code
    return exit_of(error)
