"""The audit log as rules: one canonical form, one hash chain. Storage is somebody else's matter."""

from attestation.audit.chain import ChainVerifier, ChainWalk, verify_chain
from attestation.audit.entry import (
    FORMAT,
    GENESIS_HASH,
    MAX_DETAIL_BYTES,
    AuditEntry,
    AuditEvent,
    canonical_bytes,
    canonical_members,
    chain,
    entry_hash,
    leaf_hash_of,
    linked,
)

__all__ = [
    "FORMAT",
    "GENESIS_HASH",
    "MAX_DETAIL_BYTES",
    "AuditEntry",
    "AuditEvent",
    "ChainVerifier",
    "ChainWalk",
    "canonical_bytes",
    "canonical_members",
    "chain",
    "entry_hash",
    "leaf_hash_of",
    "linked",
    "verify_chain",
]
