"""Evidence + endorsements + reference values + policy -> attestation result (RATS Verifier)."""

from attestation.appraisal.appraise import (
    Appraisal,
    Case,
    Evidence,
    FirmwareJudge,
    appraise,
    no_advisories,
    recalled,
)

__all__ = ["Appraisal", "Case", "Evidence", "FirmwareJudge", "appraise", "no_advisories", "recalled"]
