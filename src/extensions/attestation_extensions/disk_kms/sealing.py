"""Disk keys sealed for one machine (AES-256-GCM), and what a sealed one looks like. Pure.

    blob = version (1 byte, 0x01) ‖ key id (8) ‖ nonce (12) ‖ ciphertext (32) ‖ tag (16): 69 bytes

The key is the machine's own, random; the additional data name the machine and the SMBIOS UUID that its node says. So a
blob of one machine opens for no other.
"""

# Algorithms for: kept-secret
from __future__ import annotations

import secrets
import uuid
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from attestation.errors import NotAuthentic

VERSION: Final = b"\x01"
KEY_ID_BYTES: Final = 8
NONCE_BYTES: Final = 12
KEY_BYTES: Final = 32
"""Of a machine's key, and of the disk key that Talos makes."""
TAG_BYTES: Final = 16
BLOB_BYTES: Final = len(VERSION) + KEY_ID_BYTES + NONCE_BYTES + KEY_BYTES + TAG_BYTES
_CONTEXT: Final = b"itl-disk-kms/1"


class BlobRejected(NotAuthentic):
    """What is to be opened was not sealed by us for this machine, or not under this key."""

    code = "disk-key-rejected"


def readings_of(node_uuid: str) -> tuple[str, str]:
    """Return the two ways to write what *node_uuid* names, 36 lower-case characters each, always in the same order.

    SMBIOS 2.6 has the first three fields little-endian; what is older, and who does not look, reads them as they stand.
    So one board may have two texts: one in Talos, another in the agent.

    Raises:
        ValueError: No UUID in its usual form, or one that names no board: only zeros, only ones.
    """
    if len(node_uuid) != 36 or not node_uuid.isascii():
        raise ValueError("a node's UUID has 36 characters")
    found = uuid.UUID(node_uuid)
    if str(found) != node_uuid.lower():
        raise ValueError("a node's UUID is written 8-4-4-4-12")
    if found.int in (0, (1 << 128) - 1):
        raise ValueError("this UUID names no board")
    one, other = sorted((str(found), str(uuid.UUID(bytes_le=found.bytes))))
    return one, other


def additional_data(machine_id: str, node_uuid: str) -> bytes:
    """Return what a blob is bound to.

    Args:
        machine_id: UUID text, 36 characters.
        node_uuid: The first of `readings_of`, 36 characters: lengths are fixed, so nothing runs into another.
    """
    return b"\0".join((_CONTEXT, machine_id.encode("ascii"), node_uuid.encode("ascii")))


def new_key_id() -> bytes:
    """Return a fresh name for a key; it says nothing of whose it is."""
    return secrets.token_bytes(KEY_ID_BYTES)


def seal(disk_key: bytes, *, key: bytes, key_id: bytes, bound_to: bytes) -> bytes:
    """Return the blob of *disk_key*, 32 bytes.

    The nonce is random: at the rate that one machine may ask, 2^32 of them under one key take longer than its disks
    last.
    """
    nonce = secrets.token_bytes(NONCE_BYTES)
    return VERSION + key_id + nonce + AESGCM(key).encrypt(nonce, disk_key, bound_to)


def new_key() -> bytes:
    """Return a fresh key of a machine."""
    return secrets.token_bytes(KEY_BYTES)


def key_id_of(blob: bytes) -> bytes | None:
    """Return the name of the key that *blob* says it lies under; None where it is no blob of ours."""
    if len(blob) != BLOB_BYTES or not blob.startswith(VERSION):
        return None
    return blob[1 : 1 + KEY_ID_BYTES]


def unseal(blob: bytes, *, key: bytes, bound_to: bytes) -> bytes:
    """Return the disk key of *blob*.

    Raises:
        BlobRejected: Not ours, of another machine or UUID, or changed.
    """
    if key_id_of(blob) is None:
        raise BlobRejected("not a sealed disk key")
    head = 1 + KEY_ID_BYTES
    nonce, sealed = blob[head : head + NONCE_BYTES], blob[head + NONCE_BYTES :]
    try:
        return AESGCM(key).decrypt(nonce, sealed, bound_to)
    except InvalidTag:
        raise BlobRejected("not sealed under this key for this machine") from None
