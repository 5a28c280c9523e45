"""Who vouches for hardware (RATS Endorsements).

Vendor chains are not built yet; the interface is `ChainVerifier`, and until somebody implements it nothing is
vouched for by a vendor: the assurance of a machine is `ek-allowlist` or `tofu`.
"""

from attestation.endorsements.ek_trust import (
    ChainVerdict,
    ChainVerifier,
    EKTrust,
    NoVendorAnchors,
    PathCertificate,
    judge_ek_trust,
)
from attestation.endorsements.vendors import VENDOR_NAMES, vendor_name

__all__ = [
    "VENDOR_NAMES",
    "ChainVerdict",
    "ChainVerifier",
    "EKTrust",
    "NoVendorAnchors",
    "PathCertificate",
    "judge_ek_trust",
    "vendor_name",
]
