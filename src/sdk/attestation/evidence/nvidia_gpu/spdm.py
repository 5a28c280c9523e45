"""Reading GET_MEASUREMENTS and MEASUREMENTS of SPDM 1.1 as NVIDIA GPUs exchange them (CONFIDENTIAL.md §14)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from attestation.errors import MalformedEvidence

MAX_EVIDENCE_BYTES: Final = 65_536
REQUEST_BYTES: Final = 37
SIGNATURE_BYTES: Final = 96
NONCE_BYTES: Final = 32
DIGEST_BYTES: Final = 48
_REQUEST, _RESPONSE = b"\x11\xe0", b"\x11\x60"
_BLOCK_BYTES: Final = 7 + DIGEST_BYTES
_DMTF: Final = 1
DRIVER, VBIOS, FWID, CHIP = 3, 6, 20, 35
"""Types of opaque data: version of the driver, of the VBIOS, digest of the firmware, name of the chip."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurements:
    """A request and its response as read; nothing in it may be believed until it was verified.

    Args:
        signed: All before the signature: the request and the response.
        nonce: 32 bytes, of the request: what the GPU was asked with.
        slot: Of the certificate chain that was asked for.
        blocks: Index -> type and digest, 48 bytes, of each measurement.
        opaque: Type -> value of what the driver adds.
        r, s: The two numbers of the signature.
    """

    signed: bytes
    nonce: bytes
    slot: int
    blocks: Mapping[int, tuple[int, bytes]]
    opaque: Mapping[int, bytes]
    r: int
    s: int

    def text(self, kind: int) -> str:
        """Return opaque data of *kind* as the text that it is, ended by NUL; empty where there is none."""
        value = self.opaque.get(kind, b"").rstrip(b"\0")
        return (
            value.decode("ascii") if value.isascii() and value.decode("ascii").isprintable() else value.hex()
        )

    @property
    def vbios(self) -> str:
        """Version of the VBIOS as NVIDIA writes it, like `97.00.E4.00.11`; empty where it is not told.

        Four bytes little-endian, then one; what follows is zero.
        """
        value = self.opaque.get(VBIOS, b"")
        if len(value) < 5:
            return value.hex()
        return ".".join(f"{byte:02X}" for byte in (*reversed(value[:4]), value[4]))


def parse_measurements(data: bytes) -> Measurements:
    """Read the request, 37 bytes, and the response behind it; one byte behind the signature is passed over.

    Raises:
        MalformedEvidence: The only way to fail: a code, a length, an index or a type twice.
    """
    if len(data) > MAX_EVIDENCE_BYTES:
        raise MalformedEvidence(f"evidence of a GPU: {len(data)} bytes, at most {MAX_EVIDENCE_BYTES} allowed")
    request = _take(data, 0, REQUEST_BYTES)
    head = _take(data, REQUEST_BYTES, 8)
    if request[:2] != _REQUEST or head[:2] != _RESPONSE:
        raise MalformedEvidence("evidence of a GPU: not a request for measurements and its response")
    record = _take(data, REQUEST_BYTES + 8, int.from_bytes(head[5:8], "little"))
    at = REQUEST_BYTES + 8 + len(record) + NONCE_BYTES
    length = int.from_bytes(_take(data, at, 2), "little")
    opaque = _take(data, at + 2, length)
    end = at + 2 + length
    signature = _take(data, end, SIGNATURE_BYTES)
    if len(data) - end - SIGNATURE_BYTES > 1:
        raise MalformedEvidence("evidence of a GPU: bytes behind the signature")
    half = SIGNATURE_BYTES // 2
    return Measurements(
        signed=data[:end],
        nonce=request[4 : 4 + NONCE_BYTES],
        slot=request[36],
        blocks=_blocks(record, head[4]),
        opaque=_opaque(opaque),
        r=int.from_bytes(signature[:half], "big"),
        s=int.from_bytes(signature[half:], "big"),
    )


def _blocks(record: bytes, count: int) -> Mapping[int, tuple[int, bytes]]:
    """Read the measurements: index u8, specification u8 (1), size u16, type u8, size u16, 48 bytes."""
    if len(record) != count * _BLOCK_BYTES:
        raise MalformedEvidence(f"evidence of a GPU: {count} measurements in {len(record)} bytes")
    found: dict[int, tuple[int, bytes]] = {}
    for start in range(0, len(record), _BLOCK_BYTES):
        block = record[start : start + _BLOCK_BYTES]
        sizes = (int.from_bytes(block[2:4], "little"), int.from_bytes(block[5:7], "little"))
        if block[1] != _DMTF or sizes != (3 + DIGEST_BYTES, DIGEST_BYTES) or block[0] in found:
            raise MalformedEvidence(
                "evidence of a GPU: a measurement of another form, or one that stands twice"
            )
        found[block[0]] = (block[4], block[7:])
    return found


def _opaque(data: bytes) -> Mapping[int, bytes]:
    """Read opaque data: type u16, length u16, value."""
    found: dict[int, bytes] = {}
    at = 0
    while at < len(data):
        head = _take(data, at, 4)
        kind, length = int.from_bytes(head[:2], "little"), int.from_bytes(head[2:], "little")
        if kind in found:
            raise MalformedEvidence(f"evidence of a GPU: opaque data of type {kind} stand twice")
        found[kind] = _take(data, at + 4, length)
        at += 4 + length
    return found


def _take(data: bytes, at: int, size: int) -> bytes:
    if len(data) < at + size:
        raise MalformedEvidence("evidence of a GPU: ends too early")
    return data[at : at + size]
