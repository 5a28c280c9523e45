"""What quotes of SGX and TDX are judged by in common: collateral, revocation, and what a TCB is worth."""

from attestation.appraisal.dcap.judge import (
    Judged,
    changed,
    collateral_in_date,
    judge_tcb,
    judge_vouched,
    judged,
    tcb_state,
)

__all__ = [
    "Judged",
    "changed",
    "collateral_in_date",
    "judge_tcb",
    "judge_vouched",
    "judged",
    "tcb_state",
]
