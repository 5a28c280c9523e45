"""The steps of a judgement so far, and how it ends."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import NoReturn

from attestation.appraisal.node_csr.result import REQUEST, Decision, KeyTier, NodeCSRResult, Reason
from attestation.errors import AlgorithmForbidden, AttestationError, CSRInvalid, SignatureInvalid
from attestation.evidence.key_certification import KeyMode
from attestation.results import AttestationResult, Check, Outcome, Undecided


class Denied(Exception):
    """A step that failed; carries why, to the one place that ends the judgement."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason)
        self.reason = reason


class Steps:
    """The outcomes so far."""

    def __init__(self) -> None:
        self.outcomes: list[Outcome] = []

    def passed(self, check: Check, note: str = "") -> None:
        """Keep that *check* held."""
        self.outcomes.append(check.passed(note))

    def undecided(self, check: Check, why: str) -> None:
        """Keep that *check* could not be made; the judgement goes on."""
        self.outcomes.append(check.undecided(why))

    def deny(self, check: Check, reason: Reason, expected: str, found: str) -> NoReturn:
        """Keep that *check* failed, and end the judgement."""
        self.outcomes.append(check.failed(expected, found))
        raise Denied(reason)


@dataclass(slots=True, kw_only=True)
class Found:
    """What the steps establish for what comes after them."""

    mode: KeyMode | None = None
    tier: KeyTier | None = None
    spki: bytes | None = None
    fresh: bool = False
    boot: AttestationResult | None = None


def conclude_steps(
    result_id: str, at: datetime, steps: Steps, found: Found, reason: Reason | None
) -> NodeCSRResult:
    """Return what the steps amount to; *reason* is why one of them failed, or None."""
    decision = Decision.DENY if reason is not None else Decision.APPROVE
    if reason is None and any(isinstance(outcome, Undecided) for outcome in steps.outcomes):
        decision = Decision.UNDECIDED
    good = decision is Decision.APPROVE
    return NodeCSRResult(
        result_id=result_id,
        at=at,
        decision=decision,
        reason=Reason.TPM_ATTESTED if good else reason,
        outcomes=tuple(steps.outcomes),
        tier=found.tier if good else None,
        mode=found.mode,
        spki=found.spki if good else None,
        fresh=found.fresh,
        boot=found.boot,
    )


def deny_request(error: AttestationError, steps: Steps) -> NoReturn:
    """End the judgement over a request that is not signed by its key, or whose key is none that is certified."""
    reason = Reason.EVIDENCE_MALFORMED
    if isinstance(error, AlgorithmForbidden):
        reason = Reason.POLICY_FAILED
    elif isinstance(error, CSRInvalid) and isinstance(error.__cause__, SignatureInvalid):
        reason = Reason.SIGNATURE_INVALID
    steps.deny(REQUEST, reason, "a request signed by its key, of a kind that is allowed", str(error))
