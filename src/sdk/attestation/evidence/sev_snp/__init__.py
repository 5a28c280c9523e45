"""Attestation reports of AMD SEV-SNP, versions 2 to 5 (AMD 56860 §7.3; CONFIDENTIAL.md §8).

A report is signed by the processor's security processor: who made it, what was launched, how the guest may be watched.
"""

from typing import Final

from attestation.evidence.sev_snp.report import (
    NO_MIGRATION_AGENT,
    REPORT_BYTES,
    Report,
    SigningKey,
    parse_report,
)
from attestation.evidence.sev_snp.verify import (
    BINDING,
    CHAIN,
    PLATFORM,
    REPORT,
    SIGNATURE,
    VEK_CHECK,
    SevSnpClaims,
    UnverifiedSevSnp,
    parse,
    verify,
    wanted,
)

MEDIA_TYPE: Final = "application/vnd.itl.sev-snp"

__all__ = [
    "BINDING",
    "CHAIN",
    "MEDIA_TYPE",
    "NO_MIGRATION_AGENT",
    "PLATFORM",
    "REPORT",
    "REPORT_BYTES",
    "SIGNATURE",
    "VEK_CHECK",
    "Report",
    "SevSnpClaims",
    "SigningKey",
    "UnverifiedSevSnp",
    "parse",
    "parse_report",
    "verify",
    "wanted",
]
