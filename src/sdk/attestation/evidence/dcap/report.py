"""What an SGX enclave and a TD report of themselves (CONFIDENTIAL.md §9.1); integers little-endian."""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from attestation.errors import MalformedEvidence

ENCLAVE_REPORT_BYTES: Final = 384
TD_REPORT_10_BYTES: Final = 584
TD_REPORT_15_BYTES: Final = 648
_ENCLAVE: Final = struct.Struct("<16s4s28s16s32s32s32s96sHH60s64s")
_TD: Final = struct.Struct("<16s48s48s8s8s8s48s48s48s48s48s48s48s48s64s")
_TD_15: Final = struct.Struct("<16s48s")
_SGX_DEBUG: Final = 0x02


class EnclaveReport(NamedTuple):
    """REPORTBODY of an enclave, 384 bytes (Intel SDM 3D, 38.15).

    Attributes:
        cpu_svn: 16 bytes; each must reach that of a TCB level.
        misc_select: 4 bytes.
        reserved_20: Zero, 28 bytes.
        attributes: 16 bytes; bit 1 of the first is DEBUG.
        mr_enclave: Measurement of what was loaded, 32 bytes.
        reserved_96: Zero, 32 bytes.
        mr_signer: SHA-256 of the key that signed the enclave, 32 bytes.
        reserved_160: Zero, 96 bytes.
        isv_prod_id, isv_svn: u16 each.
        reserved_260: Zero, 60 bytes.
        report_data: 64 bytes that the enclave chose.
    """

    cpu_svn: bytes
    misc_select: bytes
    reserved_20: bytes
    attributes: bytes
    mr_enclave: bytes
    reserved_96: bytes
    mr_signer: bytes
    reserved_160: bytes
    isv_prod_id: int
    isv_svn: int
    reserved_260: bytes
    report_data: bytes

    @property
    def debug(self) -> bool:
        """Whoever runs the host can read the enclave's memory."""
        return bool(self.attributes[0] & _SGX_DEBUG)

    def fault(self) -> str | None:
        """Return which range that must be zero is not; None where all are."""
        for name in ("reserved_20", "reserved_96", "reserved_160", "reserved_260"):
            if any(getattr(self, name)):
                return f"{name.replace('_', ' at byte ')} of an enclave's report"
        return None


class TDReport(NamedTuple):
    """The report of a TD: 584 bytes for TDX 1.0, 648 for TDX 1.5 (Intel TDX DCAP quoting library, A.3).

    Attributes:
        tee_tcb_svn: 16 bytes: [0] SVN of the module, [1] its version, [2] on further components.
        mr_seam, mr_signer_seam: The TDX module and its signer, 48 bytes each; zero: Intel.
        seam_attributes: 8 bytes.
        td_attributes: 8 bytes, little-endian.
        xfam: 8 bytes, little-endian.
        mr_td: What was loaded at launch, 48 bytes.
        mr_config_id, mr_owner, mr_owner_config: What the launcher said, 48 bytes each.
        rtmr0, rtmr1, rtmr2, rtmr3: What was measured since, 48 bytes each.
        report_data: 64 bytes that the guest chose.
        tee_tcb_svn2: The TCB as of now, 16 bytes; None before TDX 1.5.
        mr_service_td: The service TDs that are bound, 48 bytes; None before TDX 1.5.
    """

    tee_tcb_svn: bytes
    mr_seam: bytes
    mr_signer_seam: bytes
    seam_attributes: bytes
    td_attributes: bytes
    xfam: bytes
    mr_td: bytes
    mr_config_id: bytes
    mr_owner: bytes
    mr_owner_config: bytes
    rtmr0: bytes
    rtmr1: bytes
    rtmr2: bytes
    rtmr3: bytes
    report_data: bytes
    tee_tcb_svn2: bytes | None = None
    mr_service_td: bytes | None = None

    @property
    def rtmrs(self) -> tuple[bytes, bytes, bytes, bytes]:
        """RTMR0 to RTMR3."""
        return self.rtmr0, self.rtmr1, self.rtmr2, self.rtmr3

    @property
    def debug(self) -> bool:
        """Whoever runs the host can read the TD's memory."""
        return self.has(0)

    def has(self, bit: int) -> bool:
        """Say whether *bit* of TDATTRIBUTES is set."""
        return bool(int.from_bytes(self.td_attributes, "little") >> bit & 1)

    def fault(self) -> str | None:
        """Return which range that must be zero is not; None where all are."""
        # Other bits of TUD than DEBUG may one day open a TD as well.
        return "bits 1 to 7 of TDATTRIBUTES" if self.td_attributes[0] & 0xFE else None


def parse_enclave_report(data: bytes) -> EnclaveReport:
    """Read the report of an enclave.

    Raises:
        MalformedEvidence: Not 384 bytes.
    """
    if len(data) != ENCLAVE_REPORT_BYTES:
        raise MalformedEvidence(f"report of an enclave: {len(data)} bytes, {ENCLAVE_REPORT_BYTES} expected")
    return EnclaveReport(*_ENCLAVE.unpack(data))


def parse_td_report(data: bytes) -> TDReport:
    """Read the report of a TD.

    Raises:
        MalformedEvidence: Neither 584 nor 648 bytes.
    """
    if len(data) not in (TD_REPORT_10_BYTES, TD_REPORT_15_BYTES):
        raise MalformedEvidence(f"report of a TD: {len(data)} bytes, 584 or 648 expected")
    later = _TD_15.unpack_from(data, TD_REPORT_10_BYTES) if len(data) == TD_REPORT_15_BYTES else ()
    return TDReport(*_TD.unpack_from(data), *later)
