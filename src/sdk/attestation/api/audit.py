"""The transparency log: proofs and keys (DELIVERY-AND-OPERATORS §19). Hashes are base64, 32 bytes each."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from attestation.api.base import Wire

__all__ = ["AuditKeys", "ConsistencyProof", "InclusionProof"]

Hash = Annotated[str, Field(min_length=44, max_length=44, description="32 bytes in standard base64")]
Hashes = Annotated[list[Hash], Field(max_length=64, description="Lowest first, as RFC 6962 §2.1 orders them")]


class InclusionProof(Wire):
    """That one entry is in the log (RFC 6962 §2.1.1); verified as RFC 9162 §2.1.3.2 says."""

    index: int = Field(description="Place of the entry, from 0: its id less one")
    size: int = Field(description="Entries in the tree")
    leaf_hash: Hash
    root: Hash
    hashes: Hashes


class ConsistencyProof(Wire):
    """That the log only grew (RFC 6962 §2.1.2); verified as RFC 9162 §2.1.4.2 says."""

    old_size: int
    new_size: int
    old_root: Hash
    new_root: Hash
    hashes: Hashes


class AuditKeys(Wire):
    """Who signs for the log, as vkeys (C2SP signed-note). A verifier pins them once, from a place it trusts."""

    origin: str = Field(description="Name of the log")
    vkeys: list[str] = Field(description="Every checkpoint is signed by each of them")
    retired: list[str] = Field(description="Keys that signed before and sign no more")
    witnesses: list[str] = Field(description="Whom the log asks to cosign")
