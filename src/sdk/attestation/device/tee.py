"""The confidential hardware under this machine: which it is, what it says of us, and how others name it.

Nothing here is judged: that the chip and the name are ours is for the service to see.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from attestation.device.tsm import REPORT_DATA_BYTES, TsmQuote, TsmReport
from attestation.errors import TEEDeviceError
from attestation.report_data import hardware_fingerprint

MAX_LOG_BYTES: Final = 256 << 10
MAX_TABLE_BYTES: Final = 256
CCEL_TABLE: Final = Path("/sys/firmware/acpi/tables/CCEL")
CCEL_LOG: Final = Path("/sys/firmware/acpi/tables/data/CCEL")
PREFIX: Final = "application/vnd.itl."
_TEES: Final = {"sev_guest": "sev-snp", "tdx_guest": "tdx"}
# 1.2.840.113741.1.13.1.1 with its OCTET STRING: the PPID in a PCK certificate.
_PPID: Final = bytes.fromhex("060a2a864886f84d010d01010410")
_TD_REPORT: Final = {4: 48, 5: 54}


class Shown(NamedTuple):
    """What the hardware said, as it is sent.

    Args:
        tee: `sev-snp` or `tdx`.
        media_type: Of the item.
        members: Name -> bytes.
        chip: CHIP_ID or PPID; empty where it is hidden.
        guest: HOST_DATA or MRCONFIGID.
    """

    tee: str
    media_type: str
    members: dict[str, bytes]
    chip: bytes
    guest: bytes

    @property
    def ephemeral(self) -> bool:
        """True if nothing in it names the guest beyond its boot."""
        return not (any(self.chip) and any(self.guest))

    def without_log(self) -> Shown:
        """Return it without the measurement log, which says nothing of who we are."""
        return self._replace(
            members={name: data for name, data in self.members.items() if not name.startswith("ccel")}
        )

    def fingerprint(self, spki: bytes) -> str:
        """Return the name of the machine whose subject key this is, 96 hex (PROTOCOL §9)."""
        return hardware_fingerprint(self.tee, self.chip, self.guest, spki if self.ephemeral else None).hex()


class TEE:
    """The hardware.

    Args:
        quote: From 64 bytes to what it says of them.
        ccel_table, ccel: The measurement log of TDX, where there is one.
    """

    def __init__(
        self,
        quote: Callable[[bytes], TsmQuote] | None = None,
        *,
        ccel_table: Path = CCEL_TABLE,
        ccel: Path = CCEL_LOG,
    ) -> None:
        self._quote = quote or TsmReport().quote
        self._ccel_table, self._ccel = ccel_table, ccel

    def show(self, report_data: bytes) -> Shown:
        """Return what the hardware says of *report_data*, 64 bytes.

        Raises:
            TEEDeviceError: It is none that we know, or failed.
        """
        found = self._quote(report_data)
        tee = _TEES.get(found.provider)
        if tee is None:
            raise TEEDeviceError("no-provider", f"{found.provider!r} is no hardware that we know")
        return _snp(found, report_data) if tee == "sev-snp" else self._tdx(found, report_data)

    def probe(self) -> Shown:
        """Return what it says of nothing, to learn which hardware this is.

        Raises:
            TEEDeviceError: There is none.
        """
        return self.show(bytes(REPORT_DATA_BYTES))

    def _tdx(self, found: TsmQuote, report_data: bytes) -> Shown:
        quote = found.outblob
        body = _TD_REPORT.get(int.from_bytes(quote[0:2], "little"))
        guest = quote[body + 0xB8 : body + 0xE8] if body is not None else b""
        if len(guest) != 48:
            raise TEEDeviceError("malformed", "the quote is none that we know")
        assert body is not None
        _demand_ours(quote[body + 0x208 : body + 0x248], report_data)
        members = {"quote": quote}
        table, log = _read(self._ccel_table, MAX_TABLE_BYTES), _read(self._ccel, MAX_LOG_BYTES)
        if table and log:
            members |= {"ccel_table": table, "ccel": log}
        return Shown("tdx", f"{PREFIX}tdx-quote", members, _ppid(quote), guest)


def _snp(found: TsmQuote, report_data: bytes) -> Shown:
    report = found.outblob
    if len(report) != 1184:
        raise TEEDeviceError("malformed", f"a report of {len(report)} bytes")
    members = {"report": report}
    if any(found.auxblob):
        members["cert_table"] = found.auxblob
    _demand_ours(report[0x50:0x90], report_data)
    chip = report[0x1A0:0x1E0]
    if report[0x188] == 0x1A:
        chip = chip[:8]
    return Shown("sev-snp", f"{PREFIX}sev-snp", members, chip if any(chip) else b"", report[0xC0:0xE0])


def _demand_ours(found: bytes, report_data: bytes) -> None:
    """Check that the report is over what was asked: another program may have written in between."""
    if found != report_data:
        raise TEEDeviceError("busy", "the report is over other data than ours")


def _ppid(quote: bytes) -> bytes:
    """Return the PPID of the PCK certificate, the first of the chain in a quote."""
    import base64
    import binascii

    begin = quote.find(b"-----BEGIN CERTIFICATE-----")
    end = quote.find(b"-----END CERTIFICATE-----", begin)
    if begin < 0 or end < 0:
        return b""
    try:
        der = base64.b64decode(quote[begin + 27 : end])
    except binascii.Error:
        return b""
    at = der.find(_PPID)
    return der[at + len(_PPID) : at + len(_PPID) + 16] if at >= 0 else b""


def _read(path: Path, most_bytes: int) -> bytes:
    """Return a file as it is; nothing where it is absent or too long: whether it must come is for a policy to say."""
    try:
        with path.open("rb") as file:
            found = file.read(most_bytes + 1)
    except OSError:
        return b""
    return found if len(found) <= most_bytes else b""
