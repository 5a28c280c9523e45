"""Signed statements of a TPM: TPMS_ATTEST of the types quote, certify and creation (Part 2, 10.12)."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final, NamedTuple

from attestation.errors import MalformedEvidence
from attestation.tpm.constants import MAX_ATTEST_BYTES, Alg, AttestType
from attestation.tpm.hashes import digest_size
from attestation.tpm.pcr import PCRSelection
from attestation.wire import Reader, sized, u16

_HEAD: Final = struct.Struct(">IHH")
_U16: Final = struct.Struct(">H")
_CLOCK: Final = struct.Struct(">QIIBQ")


class QuoteInfo(NamedTuple):
    """TPMS_QUOTE_INFO: the PCRs that were quoted, and the digest over their values."""

    selection: PCRSelection
    pcr_digest: bytes


@dataclass(frozen=True, slots=True)
class CertifyInfo:
    """TPMS_CERTIFY_INFO: Name and Qualified Name of the certified object."""

    name: bytes
    qualified_name: bytes


@dataclass(frozen=True, slots=True)
class CreationInfo:
    """TPMS_CREATION_INFO: Name of the object and digest of its creation data."""

    object_name: bytes
    creation_hash: bytes


class Attest(NamedTuple):
    """A parsed TPMS_ATTEST. Until its signature was verified, no field is ours to believe.

    A named tuple, because one is made for every quote and a frozen dataclass of ten fields takes four times as long.

    Args:
        magic: u32; FF544347 if a TPM made the structure itself.
        type: u16, a TPM_ST of the attestation structures.
        qualified_signer: Qualified Name of the signing key.
        extra_data: The qualifyingData of the command.
        clock_ms: Milliseconds, u64.
        reset_count: u32.
        restart_count: u32.
        safe: The clock has not gone back since a power loss.
        firmware_version: u64.
        attested: What is stated, by `type`.
    """

    magic: int
    type: int
    qualified_signer: bytes
    extra_data: bytes
    clock_ms: int
    reset_count: int
    restart_count: int
    safe: bool
    firmware_version: int
    attested: QuoteInfo | CertifyInfo | CreationInfo

    def serialise(self) -> bytes:
        """Return the TPMS_ATTEST written from the fields."""
        head = _HEAD.pack(self.magic, self.type, len(self.qualified_signer)) + self.qualified_signer
        clock = _CLOCK.pack(
            self.clock_ms, self.reset_count, self.restart_count, self.safe, self.firmware_version
        )
        stated = self.attested
        if isinstance(stated, QuoteInfo):
            body = stated.selection.serialise() + sized(stated.pcr_digest)
        elif isinstance(stated, CertifyInfo):
            body = sized(stated.name) + sized(stated.qualified_name)
        else:
            body = sized(stated.object_name) + sized(stated.creation_hash)
        return head + sized(self.extra_data) + clock + body


def parse_attest(data: bytes) -> Attest:
    """Parse a TPMS_ATTEST without a size in front (`tpm2_quote -m`). At most 2 KiB.

    A type that we never accept is malformed; a wrong magic is left to `verify`, which may then say so.

    Raises:
        MalformedEvidence: The only way to fail.
    """
    if len(data) > MAX_ATTEST_BYTES:
        raise MalformedEvidence(f"TPMS_ATTEST of {len(data)} bytes, at most {MAX_ATTEST_BYTES} allowed")
    try:
        magic, kind, size = _HEAD.unpack_from(data)
        at = 8 + size
        qualified_signer = data[8:at]
        (size,) = _U16.unpack_from(data, at)
        extra_data = data[at + 2 : at + 2 + size]
        at += 2 + size
        clock_ms, reset_count, restart_count, safe, firmware_version = _CLOCK.unpack_from(data, at)
    except struct.error as e:
        raise MalformedEvidence("TPMS_ATTEST: ends inside its header") from e
    if safe > 1:
        raise MalformedEvidence(f"TPMS_ATTEST: safe is {safe}, 0 or 1 allowed")
    reader = Reader(data, "TPMS_ATTEST")
    reader.position = at + _CLOCK.size
    attested: QuoteInfo | CertifyInfo | CreationInfo
    if kind == AttestType.QUOTE:
        attested = QuoteInfo(PCRSelection.read(reader), reader.sized(64))
    elif kind == AttestType.CERTIFY:
        attested = CertifyInfo(reader.sized(66), reader.sized(66))
    elif kind == AttestType.CREATION:
        attested = CreationInfo(reader.sized(66), reader.sized(64))
    else:
        raise MalformedEvidence(f"TPMS_ATTEST of type 0x{kind:04x} is never accepted")
    reader.end()
    return Attest(
        magic,
        kind,
        qualified_signer,
        extra_data,
        clock_ms,
        reset_count,
        restart_count,
        safe == 1,
        firmware_version,
        attested,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CreationData:
    """TPMS_CREATION_DATA (Part 2, 15.1): how an object came to be."""

    selection: PCRSelection
    pcr_digest: bytes
    locality: int
    parent_name_alg: int
    parent_name: bytes
    parent_qualified_name: bytes
    outside_info: bytes

    def serialise(self) -> bytes:
        """Return the TPMS_CREATION_DATA, without a size in front."""
        return b"".join(
            [
                self.selection.serialise(),
                sized(self.pcr_digest),
                bytes([self.locality]),
                u16(self.parent_name_alg),
                sized(self.parent_name),
                sized(self.parent_qualified_name),
                sized(self.outside_info),
            ]
        )


def parse_creation_data(data: bytes) -> CreationData:
    """Parse a TPMS_CREATION_DATA without a size in front. At most 2 KiB.

    Raises:
        MalformedEvidence: The only way to fail.
    """
    if len(data) > MAX_ATTEST_BYTES:
        raise MalformedEvidence(
            f"TPMS_CREATION_DATA of {len(data)} bytes, at most {MAX_ATTEST_BYTES} allowed"
        )
    reader = Reader(data, "TPMS_CREATION_DATA")
    selection = PCRSelection.read(reader)
    pcr_digest = reader.sized(64)
    locality = reader.u8()
    parent_name_alg = reader.u16()
    if parent_name_alg != Alg.NULL:
        digest_size(parent_name_alg)
    creation = CreationData(
        selection=selection,
        pcr_digest=pcr_digest,
        locality=locality,
        parent_name_alg=parent_name_alg,
        parent_name=reader.sized(66),
        parent_qualified_name=reader.sized(66),
        outside_info=reader.sized(128),
    )
    reader.end()
    return creation
