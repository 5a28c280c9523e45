"""NV memory of a TPM: read what others wrote, write a file of ours once."""

# Algorithms for: tpm-parent
from __future__ import annotations

from typing import Final

from attestation.device.client import TPM
from attestation.tpm import commands
from attestation.tpm.commands import NVAttr, NVPublic
from attestation.tpm.constants import Alg, Hierarchy
from attestation.tpm.sessions import Password

CHUNK_BYTES: Final = 512
"""Every TPM has TPM_PT_NV_BUFFER_MAX ≥ 512 (PC Client Platform TPM Profile)."""

FILE_ATTRIBUTES: Final = int(NVAttr.OWNER_WRITE | NVAttr.OWNER_READ | NVAttr.AUTH_READ | NVAttr.NO_DA)
"""The owner writes, everybody reads: for what is no secret."""


def read_nv(tpm: TPM, index: int, most_bytes: int) -> bytes | None:
    """Return the content of an NV index; None if it is not written, too long, or not ours to read.

    Raises:
        TPMResponseError: There is no such index.
        DeviceError: The TPM failed.
    """
    public = tpm.execute(commands.nv_read_public(index))
    if not public.attributes & NVAttr.WRITTEN or public.size_bytes > most_bytes:
        return None
    if public.attributes & NVAttr.AUTH_READ:
        authority = public.entity
    elif public.attributes & NVAttr.OWNER_READ:
        authority = commands.permanent(Hierarchy.OWNER)
    else:
        return None
    data = b""
    while len(data) < public.size_bytes:
        size = min(CHUNK_BYTES, public.size_bytes - len(data))
        data += tpm.execute(commands.nv_read(authority, public.entity, size, len(data)), Password())
    return data


def is_written(tpm: TPM, index: int) -> bool | None:
    """Tell whether an NV index was written; None where there is no such index."""
    if tpm.handles(index)[:1] != [index]:
        return None
    return bool(tpm.execute(commands.nv_read_public(index)).attributes & NVAttr.WRITTEN)


def write_nv_file(tpm: TPM, index: int, data: bytes, owner_auth: bytes = b"") -> None:
    """Make *index* hold *data*, which everybody may read.

    Raises:
        TPMResponseError: 0x14C where somebody else defined it first; or the owner has another authValue.
        DeviceError: The TPM failed.
    """
    public = NVPublic(
        index=index,
        name_alg=Alg.SHA256,
        attributes=FILE_ATTRIBUTES,
        auth_policy=b"",
        size_bytes=len(data),
    )
    owner = commands.permanent(Hierarchy.OWNER)
    tpm.execute(commands.nv_define_space(Hierarchy.OWNER, public), Password(owner_auth))
    for offset in range(0, len(data), CHUNK_BYTES):
        # Its Name changes with the first write.
        entity = tpm.execute(commands.nv_read_public(index)).entity
        chunk = data[offset : offset + CHUNK_BYTES]
        tpm.execute(commands.nv_write(owner, entity, chunk, offset), Password(owner_auth))


def remove_nv(tpm: TPM, index: int, owner_auth: bytes = b"") -> None:
    """Remove *index*.

    Raises:
        TPMResponseError: There is none, or the owner has another authValue.
        DeviceError: The TPM failed.
    """
    entity = tpm.execute(commands.nv_read_public(index)).entity
    tpm.execute(commands.nv_undefine_space(Hierarchy.OWNER, entity), Password(owner_auth))
