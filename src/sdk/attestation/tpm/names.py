"""Qualified Names (TPM 2.0 Part 1, 16): who is whose parent, in a digest."""

from __future__ import annotations

from attestation.tpm.constants import Hierarchy
from attestation.tpm.hashes import hash_new
from attestation.wire import u16, u32


def qualified_name_of_primary(hierarchy: Hierarchy, name: bytes) -> bytes:
    """Return QN of a primary key: nameAlg ‖ H_nameAlg(hierarchy handle u32 ‖ Name).

    Args:
        hierarchy: Where the key is a primary.
        name: Its Name, nameAlg u16 ‖ digest.
    """
    alg = int.from_bytes(name[:2])
    return u16(alg) + hash_new(alg, u32(hierarchy) + name).digest()


def qualified_name_of_child(parent_qualified_name: bytes, name: bytes) -> bytes:
    """Return QN of a child key: nameAlg ‖ H_nameAlg(QN(parent) ‖ Name), with the child's nameAlg."""
    alg = int.from_bytes(name[:2])
    return u16(alg) + hash_new(alg, parent_qualified_name + name).digest()
