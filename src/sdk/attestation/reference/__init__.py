"""What we expect of a machine (RATS Reference Values): named, versioned, immutable policies."""

from attestation.reference.compose import EFFECTIVE_FORMAT, compose, compose_guarded, effective_document
from attestation.reference.diff import Change, PolicyDiff, diff
from attestation.reference.document import FORMAT, FORMAT_2
from attestation.reference.identifier import identifier
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
from attestation.reference.schema import schema

__all__ = [
    "DEFAULT_SELECTION",
    "EFFECTIVE_FORMAT",
    "FORMAT",
    "FORMAT_2",
    "IDENTITY_ONLY",
    "BootRules",
    "Change",
    "Demand",
    "FirmwareRules",
    "IMARules",
    "PCRRule",
    "Policy",
    "PolicyDiff",
    "SecureBootRules",
    "Source",
    "compose",
    "compose_guarded",
    "default_minimum",
    "diff",
    "effective_document",
    "identifier",
    "parse_policy",
    "schema",
]
