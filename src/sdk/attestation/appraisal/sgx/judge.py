"""What a policy expects of an enclave, check by check (CONFIDENTIAL.md §§2.3, 9.3 steps 11 to 13)."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from attestation.appraisal.confidential import demanded, one_of, rules
from attestation.appraisal.dcap import judge_tcb, judged
from attestation.evidence.dcap import EnclaveReport, QuoteClaims
from attestation.reference import Policy
from attestation.reference.confidential import SgxRules
from attestation.results import Check, Code, Failed, Outcome, Reported, Subject, TrustClaim

NAMES: Final = judged("SGX")
_EXECUTABLES: Final = TrustClaim.EXECUTABLES


def _reference(name: str, **says: int) -> Check:
    return Check(name=name, code=Code.REFERENCE_MISMATCH, claim=_EXECUTABLES, if_failed=33, **says)


MEMORY: Final = Check(name="sgx-memory", code=Code.GUEST_POLICY, claim=TrustClaim.RUNTIME_OPAQUE, if_passed=2)
DEBUG: Final = Check(name="sgx-debug", code=Code.GUEST_POLICY, claim=TrustClaim.CONFIGURATION, if_flagged=32)
MRENCLAVE: Final = _reference("sgx-mrenclave")
MRSIGNER: Final = _reference("sgx-mrsigner")
PRODUCT: Final = _reference("sgx-product")
SVN: Final = _reference("sgx-svn")
LAUNCH: Final = _reference("sgx-launch", if_passed=3)
CHECKS: Final = (*NAMES.all, MEMORY, DEBUG, MRENCLAVE, MRSIGNER, PRODUCT, SVN, LAUNCH)
"""All of them."""
_DEFAULTS: Final = SgxRules()


def judge_claims(
    claims: QuoteClaims, at: datetime, policy: Policy
) -> tuple[list[Outcome], tuple[Subject, ...]]:
    """Return every outcome, and `launch` where a reference value is enforced and matched.

    Collateral and revocation are judged apart, `appraisal.dcap.judge_vouched`: they are also without a policy.
    """
    report = enclave_of(claims)
    stated = rules(policy, "sgx", _DEFAULTS)
    outcomes = [*judge_tcb(claims, at, policy, NAMES), *_memory(report, stated)]
    launched = [
        *one_of(MRENCLAVE, stated.mrenclave, report.mr_enclave, "MRENCLAVE"),
        *one_of(MRSIGNER, stated.mrsigner, report.mr_signer, "MRSIGNER"),
    ]
    product, svn = stated.isv_prod_id, stated.min_isv_svn
    if product is not None:
        holds = report.isv_prod_id == product.value
        launched += demanded(PRODUCT, product, holds, f"ISVPRODID {product.value}", str(report.isv_prod_id))
    if svn is not None:
        holds = report.isv_svn >= svn.value
        launched += demanded(SVN, svn, holds, f"ISVSVN at least {svn.value}", str(report.isv_svn))
    outcomes += launched
    if not stated.has_reference:
        words = "which enclave runs is not compared: the policy names no reference value"
        return [*outcomes, LAUNCH.flagged(words)], ()
    if any(isinstance(each, Failed | Reported) for each in launched):
        return outcomes, ()
    return [*outcomes, LAUNCH.passed()], (Subject.LAUNCH,)


def enclave_of(claims: QuoteClaims) -> EnclaveReport:
    """Return what the enclave reports; a quote of another TEE is refused before."""
    assert isinstance(claims.quote.body, EnclaveReport)
    return claims.quote.body


def _memory(report: EnclaveReport, stated: SgxRules) -> list[Outcome]:
    if not report.debug:
        return [MEMORY.passed()]
    if stated.allow_debug.value:
        return [DEBUG.flagged("a debug enclave is accepted: whoever runs the host can read its memory")]
    words = "a debug enclave: whoever runs the host can read its memory"
    return [
        check.told("an enclave that cannot be debugged", words, report=stated.allow_debug.report)
        for check in (DEBUG, MEMORY)
    ]
