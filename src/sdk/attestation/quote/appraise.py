"""Judging a QuoteAttestation: that one key lives in hardware which is as a policy expects (HSM-AND-KUBERNETES §11).

Every type of evidence is judged by the code that judges machines: confidential hardware by its kind's `verify`,
`follow` and `judge`, a certification of a TPM by `evidence.key_certification`. What is added here is the binding
`itl-qa-v1`, and the question: type, scheme, purpose, issuer and nonce are those of `QuoteCase`, never of the evidence.

A verdict starts from the worst: no check is not success, a policy that is missing leaves it open, and what is open
hands over nothing.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from types import MappingProxyType
from typing import Any, Final

from attestation.appraisal.confidential import Expected
from attestation.appraisal.kind import Kind
from attestation.appraisal.sev_snp import SEV_SNP
from attestation.appraisal.sgx import SGX
from attestation.appraisal.tdx import TDX
from attestation.errors import (
    EndorsementMissing,
    EvidenceRejected,
    HardwareEvidenceRejected,
    MalformedEvidence,
    NotAuthentic,
)
from attestation.evidence import key_certification, tcs_kmra
from attestation.evidence.key_certification import KeyMode
from attestation.quote.envelope import Envelope, Purpose, evidence_digest, key_fingerprint
from attestation.reference import Policy
from attestation.report_data import quote_binding
from attestation.results import Check, Code, Outcome, Verdict, conclude
from attestation.tpm import Public
from attestation.wire import Reader, b64encode

SCHEME: Final = "itl-qa-v1"
COMPAT: Final = "tcs-kmra-v1"
"""Scheme and type of what somebody else made: read, and of the lowest tier."""

QUESTION: Final = Check(name="quote-question", code=Code.REFERENCE_MISMATCH)
TIME: Final = Check(name="quote-expiry")
AUTHENTIC: Final = Check(name="quote-evidence", code=Code.REFERENCE_MISMATCH)
POLICY: Final = Check(name="quote-policy")
RESIDENT: Final = Check(name="quote-key-resident")
CHECKS: Final = (QUESTION, TIME, AUTHENTIC, POLICY, RESIDENT)


@dataclass(frozen=True, slots=True, kw_only=True)
class QuoteCase:
    """What the issuer asked for, and what vouches for its hardware.

    Args:
        evidence_type: The one type that the issuer takes.
        purpose: What it asks for.
        signer_uid: Its UID.
        nonce: The nonce that was given to it, 32 bytes.
        policy: By which it is judged; None leaves the verdict open.
        endorsements: Of confidential hardware: as its kind wants them, `endorsements.intel` or `.amd`.
        ak: Of a TPM: the AK that is the machine's.
        ek: The EK it was activated with.
    """

    evidence_type: str
    purpose: Purpose
    signer_uid: str
    nonce: bytes = field(repr=False)
    policy: Policy | None
    endorsements: Any = None
    ak: Public | None = None
    ek: Public | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QuoteResult:
    """How a QuoteAttestation was judged.

    Args:
        verdict: Only VERIFIED hands anything over.
        outcomes: Every check.
        claims: What the evidence proves, in words; empty unless it is authentic.
        evidence_digest: Of `envelope.evidence_digest`, 48 bytes.
        bound_key_fingerprint: SHA-384 of the bound key, 48 bytes.
        tier: `hardware`, `tpm-resident` or `compat`; empty unless the evidence is authentic.
    """

    verdict: Verdict
    outcomes: tuple[Outcome, ...]
    claims: Mapping[str, str]
    evidence_digest: bytes
    bound_key_fingerprint: bytes
    tier: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Judged:
    """What the judge of a type found in authentic evidence."""

    outcomes: Sequence[Outcome]
    claims: Mapping[str, str]
    tier: str


_Judge = Callable[[Envelope, QuoteCase, datetime], _Judged]


def appraise_quote(envelope: Envelope, case: QuoteCase, at: datetime) -> QuoteResult:
    """Judge *envelope* for *case* at the instant *at*; raise nothing that can be expressed."""
    outcomes = [*_question(envelope, case), _time(envelope, at)]
    judged: _Judged | None = None
    judge = TYPES.get(case.evidence_type)
    if judge is None:
        outcomes.append(AUTHENTIC.failed("evidence of a type that is judged", case.evidence_type))
    else:
        try:
            judged = judge(envelope, case, at)
            outcomes.append(AUTHENTIC.passed())
            outcomes += judged.outcomes
        except HardwareEvidenceRejected as e:
            outcomes += e.failed
        except (NotAuthentic, MalformedEvidence) as e:
            outcomes.append(AUTHENTIC.failed("evidence of this key, for this question", f"{e.code}: {e}"))
        except EndorsementMissing as e:
            # Neither believed nor refused: asked again when what vouches for it is at hand.
            outcomes += e.undecided
    return QuoteResult(
        verdict=conclude(outcomes),
        outcomes=tuple(outcomes),
        claims=MappingProxyType(dict(judged.claims)) if judged is not None else MappingProxyType({}),
        evidence_digest=evidence_digest(envelope),
        bound_key_fingerprint=key_fingerprint(envelope.spki),
        tier=judged.tier if judged is not None else "",
    )


def _question(envelope: Envelope, case: QuoteCase) -> list[Outcome]:
    """Compare what the envelope says of the question with what was asked: or it would choose its own judge."""
    scheme, hash_name = SCHEME, "sha256" if case.evidence_type in _OF_A_TPM else "sha512"
    if case.evidence_type == COMPAT:
        scheme, hash_name = COMPAT, "sha256"
    compared = (
        ("type", envelope.evidence_type, case.evidence_type),
        ("scheme", envelope.scheme, scheme),
        ("hash", envelope.hash_name, hash_name),
        ("purpose", envelope.purpose.value, case.purpose.value),
        ("signer", envelope.signer_uid, case.signer_uid),
    )
    found = [
        QUESTION.failed(f"{what} {wanted}", given) for what, given, wanted in compared if given != wanted
    ]
    if not hmac.compare_digest(envelope.nonce, case.nonce):
        found.append(QUESTION.failed("the nonce of the question", "another one"))
    return [*found] if found else [QUESTION.passed()]


def _time(envelope: Envelope, at: datetime) -> Outcome:
    if at > envelope.expires_at:
        return TIME.failed(
            "a QuoteAttestation that is still open", f"expired at {envelope.expires_at:%Y-%m-%d %H:%M}"
        )
    return TIME.passed()


def binding_of(envelope: Envelope, case: QuoteCase) -> bytes:
    """Return what the evidence must be bound by: the key of the envelope, all else of the question."""
    return quote_binding(
        case.evidence_type,
        case.purpose.value,
        case.signer_uid,
        case.nonce,
        envelope.spki,
        tpm=case.evidence_type in _OF_A_TPM,
    )


def _confidential(kind: Kind[Any, Any, Any], member: str) -> _Judge:
    """Return the judge of confidential hardware: its kind's, under the binding of a QuoteAttestation.

    Args:
        kind: Of `appraisal.kinds`.
        member: What its evidence is called there: `quote` or `report`.
    """

    def judge(envelope: Envelope, case: QuoteCase, at: datetime) -> _Judged:
        item = {member: b64encode(envelope.data)}
        if member == "report" and envelope.chain:
            item["vek"] = b64encode(envelope.chain[0])
        return _hardware(kind, item, binding_of(envelope, case), case, at)

    return judge


def _hardware(
    kind: Kind[Any, Any, Any], item: Mapping[str, str], report_data: bytes, case: QuoteCase, at: datetime
) -> _Judged:
    """Judge evidence of confidential hardware over *report_data* as that of a machine is judged."""
    evidence = kind.parse(item)
    expected = Expected(
        at=at, report_data=report_data, endorsements=case.endorsements, approved=None, nonce=case.nonce
    )
    claims = kind.verify(evidence, expected)
    followed, found = kind.follow(claims, expected, case.policy)
    # Nobody approved a platform for a key: where it matters which it is, the policy names it.
    outcomes = [each for each in followed if each.check not in _IDENTITY]
    if case.policy is None:
        outcomes.append(POLICY.undecided("no policy says which hardware is expected"))
    elif kind.name not in case.policy.blocks:
        outcomes.append(POLICY.undecided(f"the policy says nothing of {kind.name}"))
    else:
        judged, compared = kind.judge(claims, evidence, expected, case.policy)
        outcomes += judged
        if not compared and conclude(judged) is not Verdict.FAILED:
            # Genuine hardware with anybody's program in it holds a key for anybody.
            outcomes.append(POLICY.undecided("the policy compares no reference value of what runs there"))
    return _Judged(outcomes=outcomes, claims=_words(kind.shown(found)), tier="hardware")


def _tcs_kmra(envelope: Envelope, case: QuoteCase, at: datetime) -> _Judged:
    """Judge what Intel's issuer published: nothing but the time in its nonce binds it to now (§12)."""
    answer = tcs_kmra.parse(envelope.data)
    if not hmac.compare_digest(answer.spki, envelope.spki):
        raise EvidenceRejected("the answer is about another key")
    tcs_kmra.check_nonce(envelope.nonce, at=at)
    item = {"quote": b64encode(answer.quote)}
    judged = _hardware(SGX, item, tcs_kmra.report_data(answer, envelope.nonce), case, at)
    return replace(judged, tier="compat")


def _words(shown: Mapping[str, object]) -> dict[str, str]:
    return {name: str(value) for name, value in shown.items() if value is not None}


def _tpm_certify(envelope: Envelope, case: QuoteCase, at: datetime) -> _Judged:  # noqa: ARG001 -- of every judge
    """Judge a certification of the bound key by the AK of a machine (§19 steps 5 to 9)."""
    if case.ak is None or case.ek is None:
        raise EvidenceRejected("no attestation key is known whose certifications count")
    public, attest, signature = split_certification(envelope.data)
    claims = key_certification.verify(
        key_certification.parse(public, attest, signature),
        ak=case.ak,
        ek=case.ek,
        binding=binding_of(envelope, case),
        spki=envelope.spki,
        modes=_MODES[envelope.purpose],
    )
    return _Judged(
        outcomes=[RESIDENT.passed()],
        claims={"mode": claims.mode.value, "name": claims.name.hex(), "ak_parent": str(claims.ak_parent)},
        tier="tpm-resident",
    )


def split_certification(data: bytes) -> tuple[bytes, bytes, bytes]:
    """Return TPM2B_PUBLIC, TPMS_ATTEST and TPMT_SIGNATURE of `evidence.data`: LP of each, nothing behind.

    Raises:
        MalformedEvidence: The only way to fail.
    """
    reader = Reader(data, "tpm-certify")
    public, attest, signature = (reader.take(reader.u32()) for _ in range(3))
    reader.end()
    return public, attest, signature


_MODES: Final[Mapping[Purpose, frozenset[KeyMode]]] = {
    Purpose.KEY_PROVISIONING: frozenset({KeyMode.RESIDENT_DECRYPT}),
    Purpose.CSR_ATTESTATION: frozenset({KeyMode.RESIDENT}),
}
_IDENTITY: Final = frozenset({"sgx-platform", "tdx-platform", "snp-chip"})
_OF_A_TPM: Final = frozenset({"tpm-certify"})

TYPES: Final[Mapping[str, _Judge]] = MappingProxyType(
    {
        "sgx": _confidential(SGX, "quote"),
        "tdx": _confidential(TDX, "quote"),
        "sev-snp": _confidential(SEV_SNP, "report"),
        "tpm-certify": _tpm_certify,
        COMPAT: _tcs_kmra,
    }
)
"""Every type that is judged. What is not here fails."""
