"""The 1184 bytes of an attestation report, integers little-endian (CONFIDENTIAL.md §8.1)."""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final, NamedTuple

from attestation.errors import MalformedEvidence

REPORT_BYTES: Final = 1184
SIGNED_BYTES: Final = 0x2A0
NO_MIGRATION_AGENT: Final = b"\xff" * 32
_COMPONENT_BYTES: Final = 72
_USED_BYTES: Final = 48
_VERSIONS: Final = range(2, 6)
_ECDSA_P384_SHA384: Final = 1

_LAYOUT: Final = struct.Struct(
    "<II8s 16s16s II 8sQ II 64s48s32s 48s48s 32s32s 8s BBB21s 64s 8s BBBB BBBB 8s QQ 152s 72s72s368s"
)
assert _LAYOUT.size == REPORT_BYTES


class SigningKey(IntEnum):
    """SIGNING_KEY, bits 4:2 at 0x048."""

    VCEK = 0
    VLEK = 1
    NONE = 7


class Report(NamedTuple):
    """A report as read; nothing in it may be believed until it was verified.

    Names are those of the specification; TCBs are their 8 bytes, whose meaning depends on the line of the processor.
    """

    version: int
    guest_svn: int
    policy_bytes: bytes
    family_id: bytes
    image_id: bytes
    vmpl: int
    signature_algo: int
    current_tcb: bytes
    platform_info: int
    key_info: int
    reserved_4c: int
    report_data: bytes
    measurement: bytes
    host_data: bytes
    id_key_digest: bytes
    author_key_digest: bytes
    report_id: bytes
    report_id_ma: bytes
    reported_tcb: bytes
    cpuid_family: int
    cpuid_model: int
    cpuid_stepping: int
    reserved_18b: bytes
    chip_id: bytes
    committed_tcb: bytes
    current_build: int
    current_minor: int
    current_major: int
    reserved_1eb: int
    committed_build: int
    committed_minor: int
    committed_major: int
    reserved_1ef: int
    launch_tcb: bytes
    launch_mit_vector: int
    current_mit_vector: int
    reserved_208: bytes
    signature_r: bytes
    signature_s: bytes
    reserved_330: bytes

    @property
    def policy(self) -> int:
        """POLICY: what the guest's owner allows."""
        return int.from_bytes(self.policy_bytes, "little")

    def allows(self, bit: int) -> bool:
        """Return bit *bit* of POLICY."""
        return bool(self.policy >> bit & 1)

    @property
    def author_key_en(self) -> bool:
        """AUTHOR_KEY_EN: AUTHOR_KEY_DIGEST says whose."""
        return bool(self.key_info & 1)

    @property
    def mask_chip_key(self) -> bool:
        """MASK_CHIP_KEY: the processor was told not to sign."""
        return bool(self.key_info >> 1 & 1)

    @property
    def signing_key(self) -> int:
        """Which key signed, `SigningKey` where it is one that exists."""
        return self.key_info >> 2 & 0b111

    @property
    def r(self) -> int:
        """The first number of the signature."""
        return int.from_bytes(self.signature_r, "little")

    @property
    def s(self) -> int:
        """The second number of the signature."""
        return int.from_bytes(self.signature_s, "little")

    def faults(self) -> list[tuple[str, str]]:
        """Return what is not as the format demands, each as what was expected and what was found (§8.3, steps 1, 2)."""
        version = self.version
        zero = {
            "reserved bits of 0x048": self.key_info >> 5,
            "0x04C": self.reserved_4c,
            "0x18B": self.reserved_18b,
            "0x1EB": self.reserved_1eb,
            "0x1EF": self.reserved_1ef,
            "0x208": self.reserved_208,
            "padding of R": self.signature_r[_USED_BYTES:],
            "padding of S": self.signature_s[_USED_BYTES:],
            "0x330": self.reserved_330,
            "reserved bits of POLICY": self.policy >> 26,
        }
        if version == 2:
            zero["CPUID of version 2"] = self.cpuid_family | self.cpuid_model | self.cpuid_stepping
        if version < 5:
            zero["mitigation vectors before version 5"] = self.launch_mit_vector | self.current_mit_vector
        found = [
            (f"zero: {name}", "bits that are set")
            for name, value in zero.items()
            if (any(value) if isinstance(value, bytes) else value)
        ]
        if version not in _VERSIONS:
            found.append(("version 2 to 5", str(version)))
        if self.signature_algo != _ECDSA_P384_SHA384:
            found.append(("algorithm 1, ECDSA P-384 with SHA-384", str(self.signature_algo)))
        if self.vmpl > 3:
            found.append(("VMPL 0 to 3", str(self.vmpl)))
        if not self.allows(17):
            found.append(("bit 17 of POLICY set", "clear"))
        if self.signing_key not in (SigningKey.VCEK, SigningKey.VLEK):
            found.append(("signed by a VCEK or VLEK", f"signing key {self.signing_key}"))
        if self.mask_chip_key and not self.r and not self.s:
            found.append(("a signature", "none: the processor was told not to sign"))
        return found


def parse_report(data: bytes) -> Report:
    """Read a report; only its length is judged here.

    Raises:
        MalformedEvidence: Not of 1184 bytes.
    """
    if len(data) != REPORT_BYTES:
        raise MalformedEvidence(f"SEV-SNP report of {len(data)} bytes, {REPORT_BYTES} expected")
    return Report(*_LAYOUT.unpack(data))
