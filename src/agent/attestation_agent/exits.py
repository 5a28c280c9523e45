"""How the agent ends, and which error means which end."""

from __future__ import annotations

from enum import IntEnum

from attestation.client import APIError
from attestation.errors import (
    AttestationError,
    DeviceError,
    MachineChanged,
    MachineRejected,
    RateLimited,
    RequestInvalid,
    Unavailable,
)
from attestation.keys import JWSRejected


class Exit(IntEnum):
    """Exit codes; the numbers are documented in docs/operate/agent.md and do not change."""

    OK = 0
    PENDING_APPROVAL = 10
    LOCKED = 11
    REVOKED = 12
    REJECTED = 13
    NOT_AFFIRMED = 14
    NOT_DELIVERED = 15
    TPM_UNAVAILABLE = 20
    UNREACHABLE = 21
    REFUSED = 22
    NOT_AUTHENTIC = 23
    CONFIG_NOT_OPENED = 24
    APPLY_FAILED = 25
    WIPE_FAILED = 26
    NO_CERTIFICATE = 27
    STATE_NOT_KEPT = 28
    USAGE = 64


class AgentError(AttestationError):
    """Something on this node ended an attempt."""

    code = "agent-error"


class UsageError(AgentError):
    """The agent was started in a way that cannot work."""

    code = "usage"


class DirectiveRejected(AgentError):
    """An order was not proven to come from the service, to be for this machine, and to be fresh."""

    code = "directive-rejected"


class ServiceKeysChanged(AgentError):
    """The service shows other keys than those pinned at first use."""

    code = "service-keys-changed"


class ServiceTooOld(AgentError):
    """The service does not know the nonce that binds its statements to this machine; nothing of it can be obeyed."""

    code = "service-too-old"


class AnswerRefused(AgentError):
    """The service's answer contradicts what was asked."""

    code = "answer-refused"


class StateNotKept(AgentError):
    """The state directory cannot be written: full, read-only, or not ours."""

    code = "state-not-kept"


class ConfigNotDelivered(AgentError):
    """The machine is attested, and the service has no configuration for it that it could send."""

    code = "config-not-delivered"


class ConfigNotOpened(AgentError):
    """The configuration could not be opened in the TPM, or is not the one announced."""

    code = "config-not-opened"


class ApplyFailed(AgentError):
    """The configuration could not be written, or the apply command failed."""

    code = "apply-failed"


class WipeFailed(AgentError):
    """The wipe command failed; it is tried again."""

    code = "wipe-failed"


class NoNodeCertificate(AgentError):
    """The cluster gave this node no certificate: denied, not decided in time, or not what was asked for."""

    code = "no-node-certificate"


# The first class that matches decides: narrower ones stand above wider ones.
_EXITS: tuple[tuple[type[AttestationError], Exit], ...] = (
    (MachineRejected, Exit.REJECTED),
    (UsageError, Exit.USAGE),
    (DirectiveRejected, Exit.NOT_AUTHENTIC),
    (JWSRejected, Exit.NOT_AUTHENTIC),
    (ServiceKeysChanged, Exit.NOT_AUTHENTIC),
    (StateNotKept, Exit.STATE_NOT_KEPT),
    (ConfigNotDelivered, Exit.NOT_DELIVERED),
    (ConfigNotOpened, Exit.CONFIG_NOT_OPENED),
    (ApplyFailed, Exit.APPLY_FAILED),
    (WipeFailed, Exit.WIPE_FAILED),
    (NoNodeCertificate, Exit.NO_CERTIFICATE),
    (DeviceError, Exit.TPM_UNAVAILABLE),
    (RateLimited, Exit.UNREACHABLE),
    (Unavailable, Exit.UNREACHABLE),
    (MachineChanged, Exit.UNREACHABLE),
    (RequestInvalid, Exit.REFUSED),
    (APIError, Exit.REFUSED),
)


def exit_of(error: AttestationError) -> Exit:
    """Return the exit code that tells *error*."""
    for kind, code in _EXITS:
        if isinstance(error, kind):
            return code
    return Exit.REFUSED


def is_passing(error: AttestationError) -> bool:
    """True where the same attempt may succeed a moment later, so that even `--once` tries again."""
    return exit_of(error) is Exit.UNREACHABLE
