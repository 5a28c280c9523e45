"""Quotes of SGX and TDX, versions 3, 4 and 5: their layout (CONFIDENTIAL.md §9.1). Lengths only: nothing is believed.

Integers are little-endian, signatures and keys big-endian. What follows the signature data is padding of those who
carry quotes: it is signed by nobody, so it is cut off and counted.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Final

from attestation.errors import MalformedEvidence
from attestation.evidence.dcap.report import (
    ENCLAVE_REPORT_BYTES,
    TD_REPORT_10_BYTES,
    TD_REPORT_15_BYTES,
    EnclaveReport,
    TDReport,
    parse_enclave_report,
    parse_td_report,
)

MAX_QUOTE_BYTES: Final = 32768
TEE_SGX: Final = 0x00
TEE_TDX: Final = 0x81
KEY_P256: Final = 2
INTEL: Final = bytes.fromhex("939a7233f79c4ca9940a0db3957f0607")
CERTIFIED_BY_CHAIN: Final = 5
_HEADER: Final = struct.Struct("<HHI4s16s20s")
_SIGNATURE_BYTES: Final = 64
_KEY_BYTES: Final = 64
_BY_VERSION: Final = {3: ENCLAVE_REPORT_BYTES, 4: TD_REPORT_10_BYTES}
_BODIES: Final = {1: ENCLAVE_REPORT_BYTES, 2: TD_REPORT_10_BYTES, 3: TD_REPORT_15_BYTES}
_QE_CERTIFICATION: Final = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class UnverifiedQuote:
    """A quote as read.

    Args:
        version: 3, 4 or 5.
        key_type: 2: ECDSA on P-256.
        tee: 0 SGX, 0x81 TDX, as the header says.
        vendor: Of the quoting enclave, 16 bytes.
        body: What is vouched for.
        signed: Header and body, as they are signed.
        signature: Over *signed*, by the attestation key: 64 bytes, R ‖ S.
        attestation_key: 64 bytes, X ‖ Y.
        qe_report: Of the quoting enclave.
        qe_report_signed: The same, the 384 bytes that are signed.
        qe_signature: Over them, by the platform's key: 64 bytes, R ‖ S.
        qe_auth_data: What the quoting enclave bound beside the key.
        certification_type: 5: a chain of PEM.
        certification: That chain, the leaf first.
        padding_bytes: How many bytes followed, and were cut off.
    """

    version: int
    key_type: int
    tee: int
    vendor: bytes
    body: EnclaveReport | TDReport
    signed: bytes = field(repr=False)
    signature: bytes = field(repr=False)
    attestation_key: bytes = field(repr=False)
    qe_report: EnclaveReport = field(repr=False)
    qe_report_signed: bytes = field(repr=False)
    qe_signature: bytes = field(repr=False)
    qe_auth_data: bytes = field(repr=False)
    certification_type: int
    certification: bytes = field(repr=False)
    padding_bytes: int


class _Reader:
    """Reads fields one after the other; every length is checked before use."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.at = 0

    def take(self, size: int, what: str) -> bytes:
        end = self.at + size
        if end > len(self._data):
            raise MalformedEvidence(f"quote: {what} is cut")
        found = self._data[self.at : end]
        self.at = end
        return found

    def u16(self, what: str) -> int:
        return int.from_bytes(self.take(2, what), "little")

    def sized(self, what: str) -> bytes:
        return self.take(int.from_bytes(self.take(4, what), "little"), what)

    def finish(self, what: str) -> None:
        if self.at != len(self._data):
            raise MalformedEvidence(f"quote: {len(self._data) - self.at} trailing bytes in {what}")


def parse_quote(data: bytes) -> UnverifiedQuote:
    """Read a quote.

    Raises:
        MalformedEvidence: The only way to fail; longer than 32 KiB, cut, or of a version or body that does not exist.
    """
    if len(data) > MAX_QUOTE_BYTES:
        raise MalformedEvidence(f"quote of {len(data)} bytes, at most {MAX_QUOTE_BYTES} allowed")
    quote = _Reader(data)
    version, key_type, tee, _, vendor, _ = _HEADER.unpack(quote.take(_HEADER.size, "header"))
    if version == 5:
        kind = quote.u16("body type")
        size = _BODIES.get(kind)
        stated = int.from_bytes(quote.take(4, "body size"), "little")
        if size is None or stated != size:
            raise MalformedEvidence(f"quote: body of type {kind} and {stated} bytes")
    else:
        size = _BY_VERSION.get(version)
    if size is None:
        raise MalformedEvidence(f"quote: version {version}, 3 to 5 expected")
    body = quote.take(size, "body")
    signed = data[: quote.at]
    signatures = _Reader(quote.sized("signature data"))
    signature = signatures.take(_SIGNATURE_BYTES, "signature")
    attestation_key = signatures.take(_KEY_BYTES, "attestation key")
    certified = signatures
    if version != 3:
        kind = signatures.u16("certification type")
        if kind != _QE_CERTIFICATION:
            raise MalformedEvidence(f"quote: certification of type {kind}, {_QE_CERTIFICATION} expected")
        certified = _Reader(signatures.sized("certification"))
        signatures.finish("signature data")
    qe_report = certified.take(ENCLAVE_REPORT_BYTES, "QE report")
    qe_signature = certified.take(_SIGNATURE_BYTES, "QE report signature")
    auth_data = certified.take(certified.u16("QE authentication data"), "QE authentication data")
    certification_type = certified.u16("type of the PCK chain")
    certification = certified.sized("PCK chain")
    certified.finish("certification")
    return UnverifiedQuote(
        version=version,
        key_type=key_type,
        tee=tee,
        vendor=vendor,
        body=parse_enclave_report(body) if size == ENCLAVE_REPORT_BYTES else parse_td_report(body),
        signed=signed,
        signature=signature,
        attestation_key=attestation_key,
        qe_report=parse_enclave_report(qe_report),
        qe_report_signed=qe_report,
        qe_signature=qe_signature,
        qe_auth_data=auth_data,
        certification_type=certification_type,
        certification=certification,
        padding_bytes=len(data) - quote.at,
    )
