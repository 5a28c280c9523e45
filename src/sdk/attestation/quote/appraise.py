"""Judging a QuoteAttestation: that one key lives in hardware which is as a policy expects (HSM-AND-KUBERNETES §11).

Every type of evidence is judged by the code that judges machines: confidential hardware and quotes of a TPM by their
kind's `verify`, `follow` and `judge`, a certification of a TPM by `evidence.key_certification`, a certificate of an
HSM by `evidence.hsm_key`. What is added here is the binding `itl-qa-v1`, and the question: type, scheme, purpose,
issuer and nonce are those of `QuoteCase`, never of the evidence.

A verdict starts from the worst: no check is not success, a policy that is missing leaves it open, and what is open
hands over nothing. A policy holds whole, as for a machine: what it says of evidence that did not come is not met.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from types import MappingProxyType
from typing import Any, Final

from attestation.appraisal.appraise import EVIDENCE
from attestation.appraisal.confidential import Expected
from attestation.appraisal.kind import Kind
from attestation.appraisal.ruled import judge_rules
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
from attestation.evidence import tcs_kmra
from attestation.quote.case import (
    AK,
    NULL,
    OF_A_TPM,
    POLICY,
    RESIDENT,
    Judge,
    Judged,
    QuoteCase,
    binding_of,
    in_words,
    key_shown,
)
from attestation.quote.envelope import Envelope, evidence_digest, key_fingerprint
from attestation.quote.hsm import ROOT, USE, judge_hsm
from attestation.quote.tpm import judge_certification, judge_quote
from attestation.results import Check, Code, Outcome, Verdict, conclude
from attestation.wire import b64encode

SCHEME: Final = "itl-qa-v1"
COMPAT: Final = "tcs-kmra-v1"
"""Scheme and type of what somebody else made: read, and of the lowest tier."""

QUESTION: Final = Check(name="quote-question", code=Code.REFERENCE_MISMATCH)
TIME: Final = Check(name="quote-expiry")
AUTHENTIC: Final = Check(name="quote-evidence", code=Code.REFERENCE_MISMATCH)
HARDWARE_TIER: Final = "hardware"
COMPAT_TIER: Final = "compat"
NO_TIER: Final = "none"
"""Of no evidence at all."""
CHECKS: Final = (QUESTION, TIME, AUTHENTIC, AK, POLICY, RESIDENT, ROOT, USE)


@dataclass(frozen=True, slots=True, kw_only=True)
class QuoteResult:
    """How a QuoteAttestation was judged.

    Args:
        verdict: Only VERIFIED hands anything over.
        outcomes: Every check.
        claims: What the evidence proves, in words; empty unless it is authentic.
        evidence_digest: Of `envelope.evidence_digest`, 48 bytes.
        bound_key_fingerprint: SHA-384 of the bound key, 48 bytes.
        tier: `hardware`, `hsm-resident`, `tpm-resident`, `tpm-machine`, `compat` or `none`; empty unless the
            evidence is authentic.
    """

    verdict: Verdict
    outcomes: tuple[Outcome, ...]
    claims: Mapping[str, str]
    evidence_digest: bytes
    bound_key_fingerprint: bytes
    tier: str


def appraise_quote(envelope: Envelope, case: QuoteCase, at: datetime) -> QuoteResult:
    """Judge *envelope* for *case* at the instant *at*; raise nothing that can be expressed."""
    outcomes = [*_question(envelope, case), _time(envelope, at)]
    judged: Judged | None = None
    judge = TYPES.get(case.evidence_type)
    if judge is None:
        outcomes.append(AUTHENTIC.failed("evidence of a type that is judged", case.evidence_type))
    else:
        try:
            judged = judge(envelope, case, at)
            if judged.tier != NO_TIER:
                outcomes.append(AUTHENTIC.passed())
            outcomes += judged.outcomes
            outcomes += _policy(judged, case)
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
    scheme, hash_name = SCHEME, "sha256" if case.evidence_type in OF_A_TPM else "sha512"
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


def _policy(judged: Judged, case: QuoteCase) -> list[Outcome]:
    """Hold the whole policy against what came, as for a machine."""
    policy = case.policy
    if policy is None:
        return [POLICY.undecided("no policy says which hardware is expected")]
    outcomes: list[Outcome] = []
    if judged.uncompared and conclude(judged.outcomes) is not Verdict.FAILED:
        # Genuine hardware with anybody's program in it holds a key for anybody.
        outcomes.append(POLICY.undecided(judged.uncompared))
    # Rules about evidence that did not come hold for nobody.
    absent = sorted(policy.kinds.keys() - judged.answers)
    outcomes += [EVIDENCE.told(name, "absent", report=policy.kinds[name]) for name in absent]
    if policy.assurance is not None and not policy.assurance.report:
        outcomes.append(POLICY.undecided("the policy asks how well a machine is vouched for; this is a key"))
    return [*outcomes, *judge_rules(policy, judged.shown)]


def _confidential(kind: Kind[Any, Any, Any], member: str) -> Judge:
    """Return the judge of confidential hardware: its kind's, under the binding of a QuoteAttestation.

    Args:
        kind: Of `appraisal.kinds`.
        member: What its evidence is called there: `quote` or `report`.
    """

    def judge(envelope: Envelope, case: QuoteCase, at: datetime) -> Judged:
        item = {member: b64encode(envelope.data)}
        if member == "report" and envelope.chain:
            item["vek"] = b64encode(envelope.chain[0])
        return _hardware(kind, item, binding_of(envelope, case), case, at)

    return judge


def _hardware(
    kind: Kind[Any, Any, Any], item: Mapping[str, str], report_data: bytes, case: QuoteCase, at: datetime
) -> Judged:
    """Judge evidence of confidential hardware over *report_data* as that of a machine is judged."""
    evidence = kind.parse(item)
    expected = Expected(
        at=at, report_data=report_data, endorsements=case.endorsements, approved=None, nonce=case.nonce
    )
    claims = kind.verify(evidence, expected)
    followed, found = kind.follow(claims, expected, case.policy)
    # Nobody approved a platform for a key: where it matters which it is, the policy names it.
    outcomes = [each for each in followed if each.check not in _IDENTITY]
    uncompared = ""
    if case.policy is not None and kind.name not in case.policy.blocks:
        uncompared = f"the policy says nothing of {kind.name}"
    elif case.policy is not None:
        judged, compared = kind.judge(claims, evidence, expected, case.policy)
        outcomes += judged
        uncompared = "" if compared else "the policy compares no reference value of what runs there"
    shown = kind.shown(found)
    key = key_shown(case, HARDWARE_TIER, resident=False)
    return Judged(
        outcomes=outcomes,
        claims=in_words(shown),
        tier=HARDWARE_TIER,
        shown={"key": key, kind.name: dict(shown)},
        answers=kind.answers(claims),
        uncompared=uncompared,
    )


def _tcs_kmra(envelope: Envelope, case: QuoteCase, at: datetime) -> Judged:
    """Judge what Intel's issuer published: nothing but the time in its nonce binds it to now (§12)."""
    answer = tcs_kmra.parse(envelope.data)
    if not hmac.compare_digest(answer.spki, envelope.spki):
        raise EvidenceRejected("the answer is about another key")
    tcs_kmra.check_nonce(envelope.nonce, at=at)
    item = {"quote": b64encode(answer.quote)}
    judged = _hardware(SGX, item, tcs_kmra.report_data(answer, envelope.nonce), case, at)
    key = key_shown(case, COMPAT_TIER, resident=False)
    return replace(judged, tier=COMPAT_TIER, shown={**judged.shown, "key": key})


def _null(envelope: Envelope, case: QuoteCase, at: datetime) -> Judged:  # noqa: ARG001 -- of every judge
    """Judge no evidence: refused, unless somebody accepted that for trying out; then it is of no tier at all."""
    if not case.accept_null:
        raise EvidenceRejected("no evidence at all")
    return Judged(
        outcomes=[AUTHENTIC.flagged("no evidence: nothing is known of where the key is")],
        claims={},
        tier=NO_TIER,
        shown={"key": key_shown(case, NO_TIER, resident=False)},
    )


_IDENTITY: Final = frozenset({"sgx-platform", "tdx-platform", "snp-chip"})

HARDWARE: Final[Mapping[str, tuple[Kind[Any, Any, Any], str]]] = MappingProxyType(
    {"sgx": (SGX, "quote"), "tdx": (TDX, "quote"), "sev-snp": (SEV_SNP, "report")}
)
"""Types of confidential hardware: the kind that judges each, and what its evidence is called there."""

TYPES: Final[Mapping[str, Judge]] = MappingProxyType(
    {
        **{name: _confidential(kind, member) for name, (kind, member) in HARDWARE.items()},
        "tpm-certify": judge_certification,
        "tpm-quote": judge_quote,
        "hsm-x509": judge_hsm,
        COMPAT: _tcs_kmra,
        NULL: _null,
    }
)
"""Every type that is judged. What is not here fails."""
