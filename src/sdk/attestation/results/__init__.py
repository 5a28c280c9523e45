"""What a relying party may believe: every check with expected and found, one verdict, an assurance level."""

from attestation.results.ar4si import TrustClaim
from attestation.results.assurance import Assurance
from attestation.results.codes import Code
from attestation.results.result import (
    AttestationResult,
    Check,
    Failed,
    Flagged,
    Outcome,
    Passed,
    Reported,
    Subject,
    Undecided,
    Verdict,
    conclude,
)

__all__ = [
    "Assurance",
    "AttestationResult",
    "Check",
    "Code",
    "Failed",
    "Flagged",
    "Outcome",
    "Passed",
    "Reported",
    "Subject",
    "TrustClaim",
    "Undecided",
    "Verdict",
    "conclude",
]
