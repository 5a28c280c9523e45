"""What we expect of a machine (RATS Reference Values): named, versioned, immutable policies."""

from attestation.reference.document import FORMAT
from attestation.reference.policy import (
    DEFAULT_SELECTION,
    IDENTITY_ONLY,
    Policy,
    default_minimum,
    parse_policy,
)
from attestation.reference.rules import (
    BootRules,
    Demand,
    FirmwareRules,
    IMARules,
    PCRRule,
    SecureBootRules,
    Source,
)

__all__ = [
    "DEFAULT_SELECTION",
    "FORMAT",
    "IDENTITY_ONLY",
    "BootRules",
    "Demand",
    "FirmwareRules",
    "IMARules",
    "PCRRule",
    "Policy",
    "SecureBootRules",
    "Source",
    "default_minimum",
    "parse_policy",
]
