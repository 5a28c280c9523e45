"""Qualified Names (TPM 2.0 Part 1, 16): who is whose parent, in a digest."""

from __future__ import annotations

from enum import StrEnum

from attestation.tpm.constants import Hierarchy
from attestation.tpm.hashes import hash_new
from attestation.tpm.public import Public
from attestation.wire import u16, u32


class AKParent(StrEnum):
    """Where the signer's Qualified Name says that an AK stands."""

    ENDORSEMENT = "endorsement"
    """A primary key of the endorsement hierarchy."""
    EK = "ek"
    """A child of the machine's EK."""
    OTHER = "other"
    """Somewhere else; then clock and firmware may be obfuscated and firmware is not claimed."""


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


def ak_qualified_names(ak: Public, ek: Public) -> dict[bytes, AKParent]:
    """Return the Qualified Names that *ak* has where its parent is one that we know, and which that is."""
    ek_qualified_name = qualified_name_of_primary(Hierarchy.ENDORSEMENT, ek.name)
    return {
        qualified_name_of_primary(Hierarchy.ENDORSEMENT, ak.name): AKParent.ENDORSEMENT,
        qualified_name_of_child(ek_qualified_name, ak.name): AKParent.EK,
    }
