"""Evidence + endorsements + reference values + policy -> attestation result (RATS Verifier)."""

from attestation.appraisal.appraise import Appraisal, Case, Evidence, appraise

__all__ = ["Appraisal", "Case", "Evidence", "appraise"]
