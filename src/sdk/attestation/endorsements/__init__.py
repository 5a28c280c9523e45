"""Who vouches for hardware (RATS Endorsements).

Certificates are read by `certificate`, paths found by `path`, revocation lists asked in `revocation`; `bundle` holds
what vendors have published and judges by it. `ek_trust` says what follows for a machine.
"""

from attestation.endorsements.ek_trust import (
    EKTrust,
    PathCertificate,
    PathValidation,
    PathValidator,
    judge_ek_trust,
)
from attestation.endorsements.vendors import VENDOR_NAMES, vendor_name

__all__ = [
    "VENDOR_NAMES",
    "EKTrust",
    "PathCertificate",
    "PathValidation",
    "PathValidator",
    "judge_ek_trust",
    "vendor_name",
]
