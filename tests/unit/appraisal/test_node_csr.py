"""Judging certification requests of nodes: each of the fourteen steps, in order."""

from __future__ import annotations

from attestation.appraisal.node_csr import Decision, KeyTier, Reason
from tests.unit.appraisal.node_csr_kit import container, judged


def test_a_good_request_is_approved() -> None:
    """All steps hold: the key is resident, the boot is quoted."""
    result = judged(container())
    assert result.decision is Decision.APPROVE, result.outcomes
    assert result.reason is Reason.TPM_ATTESTED
    assert result.tier is KeyTier.RESIDENT_AND_QUOTED
