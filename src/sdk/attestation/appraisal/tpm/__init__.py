"""TPM evidence: a quote, with what explains it."""

from attestation.appraisal.tpm.kind import TPM, found_in, parse_quote
from attestation.appraisal.tpm.records import Evidence, Expected, FirmwareJudge, Found, no_advisories

__all__ = [
    "TPM",
    "Evidence",
    "Expected",
    "FirmwareJudge",
    "Found",
    "found_in",
    "no_advisories",
    "parse_quote",
]
