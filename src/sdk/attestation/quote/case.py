"""What an issuer asked for, and what a judge of one type of evidence finds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from attestation.quote.envelope import Envelope, Purpose
from attestation.reference import Policy
from attestation.report_data import quote_binding
from attestation.results import Check, Outcome
from attestation.tpm import Public

NULL: Final = "null"
"""The type of no evidence at all."""
OF_A_TPM: Final = frozenset({"tpm-certify", "tpm-quote"})
"""Types whose binding is the qualifyingData of a TPM, 32 bytes."""

AK: Final = Check(name="quote-attestation-key")
POLICY: Final = Check(name="quote-policy")
RESIDENT: Final = Check(name="quote-key-resident")


@dataclass(frozen=True, slots=True, kw_only=True)
class QuoteCase:
    """What the issuer asked for, and what vouches for its hardware.

    Args:
        evidence_type: The one type that the issuer takes.
        purpose: What it asks for.
        signer_uid: Its UID.
        nonce: The nonce that was given to it, 32 bytes.
        policy: By which it is judged; None leaves the verdict open.
        endorsements: Of confidential hardware: as its kind wants them, `endorsements.intel` or `.amd`. Of an HSM: the
            roots of makers that are pinned, a `CertificateIndex`.
        ak: Of a TPM: the AK that is the machine's.
        ek: The EK it was activated with.
        accept_null: No evidence at all is accepted: for trying out, where somebody said so in so many words.
    """

    evidence_type: str
    purpose: Purpose
    signer_uid: str
    nonce: bytes = field(repr=False)
    policy: Policy | None
    endorsements: Any = None
    ak: Public | None = None
    ek: Public | None = None
    accept_null: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """What the judge of a type found in authentic evidence.

    Args:
        outcomes: Of what it compared.
        claims: What the evidence proves, in words.
        tier: How much it proves.
        shown: What rules of a policy may read, by name; each has `key`.
        answers: Blocks of a policy that such evidence is judged by.
        uncompared: Why the policy compares nothing that matters, in words; empty where it does.
    """

    outcomes: Sequence[Outcome]
    claims: Mapping[str, str]
    tier: str
    shown: Mapping[str, Mapping[str, object]]
    answers: frozenset[str] = frozenset()
    uncompared: str = ""


Judge = Callable[[Envelope, QuoteCase, datetime], Judged]


def binding_of(envelope: Envelope, case: QuoteCase) -> bytes:
    """Return what the evidence must be bound by: the key of the envelope, all else of the question."""
    return quote_binding(
        case.evidence_type,
        case.purpose.value,
        case.signer_uid,
        case.nonce,
        envelope.spki,
        tpm=case.evidence_type in OF_A_TPM,
    )


def key_shown(case: QuoteCase, tier: str, *, resident: bool, **more: object) -> Mapping[str, object]:
    """Return what rules of a policy read of the bound key, under the name `key`.

    Args:
        case: The question.
        tier: How much the evidence proves.
        resident: The hardware itself says that it made the key and never lets it go.
        more: What else it says.
    """
    return {
        "type": case.evidence_type,
        "purpose_asked": case.purpose.value,
        "tier": tier,
        "resident": resident,
        **more,
    }


def in_words(shown: Mapping[str, object]) -> dict[str, str]:
    """Return what is shown as claims, without what is not known."""
    found: dict[str, str] = {}
    for name, value in shown.items():
        if isinstance(value, bool):
            found[name] = "true" if value else "false"
        elif isinstance(value, list | tuple):
            found[name] = ", ".join(map(str, value))
        elif value is not None:
            found[name] = str(value)
    return found
