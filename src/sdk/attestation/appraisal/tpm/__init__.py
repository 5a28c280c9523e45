"""TPM evidence: a quote, with what explains it."""

from attestation.appraisal.tpm.kind import TPM, found_in, parse_quote
from attestation.appraisal.tpm.records import (
    Expected,
    FirmwareJudge,
    Found,
    UnverifiedEvidence,
    no_advisories,
)

__all__ = [
    "TPM",
    "Expected",
    "FirmwareJudge",
    "Found",
    "UnverifiedEvidence",
    "found_in",
    "no_advisories",
    "parse_quote",
]
