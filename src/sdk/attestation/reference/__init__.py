"""What we expect of a machine (RATS Reference Values): named, versioned, immutable policies."""

from attestation.reference.policy import (
    DEFAULT_SELECTION,
    IDENTITY_ONLY,
    PCRRule,
    Policy,
    parse_policy,
)

__all__ = ["DEFAULT_SELECTION", "IDENTITY_ONLY", "PCRRule", "Policy", "parse_policy"]
