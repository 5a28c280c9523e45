"""The report of Azure's paravisor (HCL): a hardware report that names the keys of the vTPM (CONFIDENTIAL.md §11).

The paravisor puts SHA-256 of its runtime data into the report data of the hardware; the keys of its vTPM stand in them.
A TDREPORT in it is MACed for the local processor and proves nothing elsewhere: what does is the quote beside it.
Integers little-endian.
"""

# Algorithms for: hardware-evidence
from __future__ import annotations

import base64
import binascii
import hashlib
import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final

from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from attestation.errors import MalformedEvidence
from attestation.wire import named_once

MEDIA_TYPE: Final = "application/vnd.itl.azure-hcl"
MAX_REPORT_BYTES: Final = 4096
REPORT_DATA_BYTES: Final = 64
SNP_REPORT_BYTES: Final = 1184
TD_REPORT_BYTES: Final = 1024
_REPORT_AT: Final = 32
_RUNTIME_AT: Final = 1216
_RUNTIME: Final = struct.Struct("<IIIII")
_TD_DATA_AT: Final = 128
_SHA256: Final = 1
_AK: Final = "HCLAkPub"


class Hardware(IntEnum):
    """What made the report that the paravisor passes on."""

    SNP = 2
    TDX = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class UnverifiedHCL:
    """A report as read. Nothing in it may be believed before the hardware vouches for `report_data`.

    Args:
        hardware: What made the report in it.
        report: That report: of SEV-SNP 1184 bytes, a TDREPORT 1024.
        report_data: What the hardware must have signed: SHA-256 of the runtime data, and 32 zero bytes.
        ak_spki: SubjectPublicKeyInfo, DER, of the vTPM's attestation key, as the runtime data name it.
    """

    hardware: Hardware
    report: bytes = field(repr=False)
    report_data: bytes
    ak_spki: bytes = field(repr=False)

    @property
    def told(self) -> bytes:
        """Report data of a TDREPORT, 64 bytes; of SEV-SNP what its own report says counts."""
        return self.report[_TD_DATA_AT : _TD_DATA_AT + REPORT_DATA_BYTES]


def parse(data: bytes) -> UnverifiedHCL:
    """Read what the paravisor keeps at the NV index 0x01400001.

    Raises:
        MalformedEvidence: The only way to fail.
    """
    if len(data) > MAX_REPORT_BYTES or len(data) < _RUNTIME_AT + _RUNTIME.size or data[:4] != b"HCLA":
        raise MalformedEvidence(f"HCL report of {len(data)} bytes: not one of the paravisor")
    size, _, kind, hash_type, length = _RUNTIME.unpack_from(data, _RUNTIME_AT)
    start = _RUNTIME_AT + _RUNTIME.size
    if kind not in (Hardware.SNP, Hardware.TDX) or hash_type != _SHA256:
        raise MalformedEvidence(f"HCL report: hardware {kind}, hash {hash_type}")
    if size != _RUNTIME.size + length or start + length > len(data) or any(data[start + length :]):
        raise MalformedEvidence("HCL report: runtime data of another length")
    runtime = data[start : start + length]
    hardware = Hardware(kind)
    report_bytes = SNP_REPORT_BYTES if hardware is Hardware.SNP else TD_REPORT_BYTES
    return UnverifiedHCL(
        hardware=hardware,
        report=data[_REPORT_AT : _REPORT_AT + report_bytes],
        report_data=hashlib.sha256(runtime).digest() + bytes(32),
        ak_spki=_key(_document(runtime)),
    )


def _document(runtime: bytes) -> Mapping[str, Any]:
    try:
        found = json.loads(runtime.decode("utf-8"), object_pairs_hook=named_once)
    except (ValueError, RecursionError) as e:
        raise MalformedEvidence("HCL report: runtime data are not JSON") from e
    if not isinstance(found, dict):
        raise MalformedEvidence("HCL report: runtime data are not an object")
    return found


def _key(runtime: Mapping[str, Any]) -> bytes:
    """Return the one key called HCLAkPub, a JWK of RSA (RFC 7517, RFC 7518 §6.3)."""
    keys = runtime.get("keys")
    named = [each for each in keys if isinstance(each, dict)] if isinstance(keys, list) else []
    found = [each for each in named if each.get("kid") == _AK]
    if len(found) != 1 or found[0].get("kty") != "RSA":
        raise MalformedEvidence(f"HCL report: not one RSA key {_AK}")
    try:
        public = rsa.RSAPublicNumbers(_number(found[0].get("e")), _number(found[0].get("n"))).public_key()
    except ValueError as e:
        raise MalformedEvidence(f"HCL report: {_AK} is no key") from e
    return public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def _number(value: object) -> int:
    if not isinstance(value, str) or len(value) > 1400:
        raise ValueError("not a number of a JWK")
    try:
        return int.from_bytes(base64.urlsafe_b64decode(value.encode("ascii") + b"=" * (-len(value) % 4)))
    except (binascii.Error, UnicodeEncodeError) as e:
        raise ValueError("not base64url") from e
