"""The fixtures of HSM-AND-KUBERNETES §24, made by a software TPM: each comes to the reason that is listed for it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from attestation.appraisal.node_csr import (
    MAX_MESSAGE_BYTES,
    Answer,
    Decision,
    NodeCSRResult,
    Reason,
    missing,
)
from attestation.appraisal.node_csr import result as results
from attestation.node_csr import verify_csr
from attestation.results import Check, Undecided
from tests.unit.appraisal.node_csr_kit import AT, RESULT_ID
from tests.vectors import node_csr as vectors


@pytest.mark.parametrize("name", vectors.names())
def test_each_fixture(name: str) -> None:
    """Denied with exactly the reason listed; row h and the good ones are approved. Row k: the message."""
    result = verify_csr(vectors.fixture(name), vectors.case_of(name), AT)
    assert result.reason == vectors.expected(name), (result.check, result.outcomes[-1])
    assert (result.decision is Decision.APPROVE) == (result.reason == "TpmAttested")
    assert 1 <= len(result.message.encode("ascii")) <= MAX_MESSAGE_BYTES
    assert RESULT_ID in result.message


def test_each_reason_is_provoked() -> None:
    """Those of §22, no more: by a fixture, or by what stands beside the evidence."""
    good, its_case = vectors.fixture("good"), vectors.case_of("good")
    beside = {
        missing(RESULT_ID, AT).reason,
        verify_csr(good, replace(its_case, identity=Answer.NO), AT).reason,
        verify_csr(good, replace(its_case, membership=Answer.NO), AT).reason,
    }
    assert {Reason(vectors.expected(name)) for name in vectors.names()} | beside == set(Reason)
    assert set(Reason) - {Reason.TPM_ATTESTED} == {
        "EvidenceMissing",
        "EvidenceMalformed",
        "EvidenceStale",
        "SignatureInvalid",
        "KeyMismatch",
        "KeyNotResident",
        "IdentityMismatch",
        "NotMember",
        "MachineNotAdmitted",
        "PolicyFailed",
        "SubjectInvalid",
    }


def test_k_each_check_has_a_message_without_what_was_found() -> None:
    """Whichever step failed, and also where it could not be decided: 1 to 1024 bytes, nothing that was measured."""
    checks = [each for each in vars(results).values() if isinstance(each, Check)]
    assert len(checks) == 17
    secret = "feedface" * 1000
    for check in checks:
        for decision, outcome in (
            (Decision.DENY, check.failed(secret, secret)),
            (Decision.UNDECIDED, Undecided(check.name, secret)),
        ):
            judged = NodeCSRResult(
                result_id=RESULT_ID, at=AT, decision=decision, reason=None, outcomes=(outcome,)
            )
            assert 1 <= len(judged.message.encode("ascii")) <= MAX_MESSAGE_BYTES
            assert judged.message.startswith(check.name)
            assert "feedface" not in judged.message
