"""Evidence + endorsements + reference values + policy -> attestation result (RATS Verifier)."""

from attestation.appraisal.appraise import Case, appraise, recalled
from attestation.appraisal.kind import Appraisal
from attestation.appraisal.kinds import KINDS

__all__ = ["KINDS", "Appraisal", "Case", "appraise", "recalled"]
