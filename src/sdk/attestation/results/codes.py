"""The codes of failed checks on confidential hardware's evidence (CONFIDENTIAL.md §12.4): API."""

from __future__ import annotations

from enum import StrEnum


class Code(StrEnum):
    """Why a check failed. `COLLATERAL_UNAVAILABLE` leaves it undecided; every other one is a failure."""

    ENVELOPE_INVALID = "envelope-invalid"
    REPORT_INVALID = "report-invalid"
    SIGNATURE_INVALID = "signature-invalid"
    CHAIN_INVALID = "chain-invalid"
    COLLATERAL_UNAVAILABLE = "collateral-unavailable"
    COLLATERAL_INVALID = "collateral-invalid"
    REVOKED = "revoked"
    TCB_NOT_ALLOWED = "tcb-not-allowed"
    GUEST_POLICY = "guest-policy"
    BINDING_MISMATCH = "binding-mismatch"
    MACHINE_NOT_ALLOWED = "machine-not-allowed"
    REFERENCE_MISMATCH = "reference-mismatch"
    REPLAY_MISMATCH = "replay-mismatch"
    LOG_INVALID = "log-invalid"
    PLATFORM_UNSUPPORTED = "platform-unsupported"
    POLICY_INVALID = "policy-invalid"
