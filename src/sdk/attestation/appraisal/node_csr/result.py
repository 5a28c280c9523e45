"""What is said of a certification request of a node: the decision, its reason, and every check behind it."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import IntEnum, StrEnum
from typing import Final

from attestation.evidence.key_certification import KeyMode
from attestation.results import AttestationResult, Check, Outcome, Passed, Undecided

MAX_MESSAGE_BYTES: Final = 1024
"""Of a condition of a CertificateSigningRequest, as far as anybody reads it (fixture k)."""


class Decision(StrEnum):
    """What the approver is to do."""

    APPROVE = "approve"
    DENY = "deny"
    UNDECIDED = "undecided"
    """Nothing, now: what the judgement needs is not known. It is asked again."""


class Reason(StrEnum):
    """Why; reasons of conditions of a CertificateSigningRequest (HSM-AND-KUBERNETES §22)."""

    TPM_ATTESTED = "TpmAttested"
    EVIDENCE_MISSING = "EvidenceMissing"
    EVIDENCE_MALFORMED = "EvidenceMalformed"
    EVIDENCE_STALE = "EvidenceStale"
    SIGNATURE_INVALID = "SignatureInvalid"
    KEY_MISMATCH = "KeyMismatch"
    KEY_NOT_RESIDENT = "KeyNotResident"
    IDENTITY_MISMATCH = "IdentityMismatch"
    NOT_MEMBER = "NotMember"
    MACHINE_NOT_ADMITTED = "MachineNotAdmitted"
    POLICY_FAILED = "PolicyFailed"
    SUBJECT_INVALID = "SubjectInvalid"


class KeyTier(IntEnum):
    """What is known of the key, the last arc of the OID in the certificate (TPM.md §6)."""

    EXTERNAL_UNFRESH = 1
    """A software key that the machine vouched for, some day."""
    EXTERNAL = 2
    """A software key that the machine vouched for, now."""
    RESIDENT = 3
    """A key that cannot leave the TPM."""
    RESIDENT_AND_QUOTED = 4
    """Likewise, and the request itself says what booted."""

    @property
    def word(self) -> str:
        """The name of the tier."""
        return _TIERS[self]


_TIERS: Final = {
    KeyTier.EXTERNAL_UNFRESH: "external-unfresh",
    KeyTier.EXTERNAL: "external",
    KeyTier.RESIDENT: "resident",
    KeyTier.RESIDENT_AND_QUOTED: "resident+quote",
}

# The steps of §19, in their order. Their names are in messages that strangers read.
CONTAINER: Final = Check(name="container")
REQUEST: Final = Check(name="request")
REQUESTER: Final = Check(name="requester")
MACHINE: Final = Check(name="machine")
CHALLENGE: Final = Check(name="challenge")
SIGNATURE: Final = Check(name="certify-signature")
HEADER: Final = Check(name="certify-header")
BINDING: Final = Check(name="certify-binding")
SIGNER: Final = Check(name="certify-signer")
KEY: Final = Check(name="certified-key")
MODE: Final = Check(name="key-mode")
SAME_KEY: Final = Check(name="request-key")
SUBJECT: Final = Check(name="subject")
BOOT: Final = Check(name="boot")
IDENTITY: Final = Check(name="identity")
MEMBERSHIP: Final = Check(name="membership")
NODE: Final = Check(name="node")

_WORDS: Final = {
    CONTAINER.name: "the evidence in the request is missing or cannot be read",
    REQUEST.name: "the certification request is not signed by its key, or is for a key of a kind not allowed here",
    REQUESTER.name: "this requester may not ask for such a certificate",
    MACHINE.name: "no machine that may have a certificate here now",
    CHALLENGE.name: "not for a fresh challenge of this machine",
    SIGNATURE.name: "not signed by the activated attestation key of this machine",
    HEADER.name: "not a statement of a TPM",
    BINDING.name: "made for another challenge or another request",
    SIGNER.name: "the signer stands outside of the TPM",
    KEY.name: "another key was certified, or one that is too weak",
    MODE.name: "the key stands to its TPM in a way that is not allowed here",
    SAME_KEY.name: "the certified key is not the key of the request",
    SUBJECT.name: "names or usages are not those of this node",
    BOOT.name: "what booted is not shown to be as the policy of this machine expects",
    IDENTITY.name: "the identity shown is not that of this machine",
    MEMBERSHIP.name: "not a member of this cluster",
    NODE.name: "a Node of that name is there, and is not labelled as this machine's",
}
"""Check -> what it means that it failed, for anybody: no measured value stands here, and none is added."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCSRResult:
    """The judgement over one request.

    Args:
        result_id: Names it, in the message and in the audit log.
        at: The instant of the judgement, UTC.
        decision: What to do.
        reason: Why; None where nothing is decided.
        outcomes: Every check made, in order. The first that failed decided; behind it nothing was looked at.
        tier: What is known of the key; None unless approved, and for a serving certificate.
        mode: How the key stands to its TPM, where the attestation key of the machine said so.
        spki: SubjectPublicKeyInfo, DER, of the key that was approved; else None.
        fresh: It answers a challenge of the service; False for a bucket of time, or no nonce at all.
        boot: The appraisal of the quote, where one was judged.
    """

    result_id: str
    at: datetime
    decision: Decision
    reason: Reason | None
    outcomes: tuple[Outcome, ...]
    tier: KeyTier | None = None
    mode: KeyMode | None = None
    spki: bytes | None = field(default=None, repr=False)
    fresh: bool = False
    boot: AttestationResult | None = None

    @property
    def check(self) -> str:
        """The name of the check that decided: the last one where all passed."""
        open_ones = [o.check for o in self.outcomes if isinstance(o, Undecided)]
        return open_ones[0] if self.decision is Decision.UNDECIDED else self.outcomes[-1].check

    @property
    def message(self) -> str:
        """For the condition of the request, 1 to 1024 bytes of ASCII: check and result, no measured value."""
        if self.decision is Decision.APPROVE:
            said = f"attested, tier {self.tier.word}" if self.tier is not None else "of an attested machine"
        elif self.decision is Decision.DENY:
            said = f"{self.check}: {_WORDS[self.check]}"
        else:
            said = f"{self.check}: could not be decided now"
        return f"{said}; result {self.result_id}"

    @property
    def passed(self) -> tuple[str, ...]:
        """The names of the checks that held."""
        return tuple(o.check for o in self.outcomes if isinstance(o, Passed))
