"""What evidence of confidential hardware is compared with, whatever its kind (CONFIDENTIAL.md §§2.4, 7)."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from attestation.errors import MalformedEvidence
from attestation.wire import b64decode


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """What authentic evidence shows of the hardware that made it, and of the guest.

    Args:
        tee: `sev-snp` or `tdx`, as report data names it.
        chip: CHIP_ID (64 bytes; Turin 8) or PPID (16 bytes); empty where hardware hides it.
        guest: HOST_DATA (32 bytes) or MRCONFIGID (48 bytes): what the launcher named the guest; zero where it did not.
        csp_id: Of a VLEK; None where a VCEK signs.
    """

    tee: str
    chip: bytes
    guest: bytes
    csp_id: str | None = None

    @property
    def names_the_guest(self) -> bool:
        """True if chip and launcher name this guest; another one ends with its boot (PROTOCOL §9)."""
        return any(self.chip) and any(self.guest)


@dataclass(frozen=True, slots=True, kw_only=True)
class Approved:
    """The hardware that an operator approved for a machine, from what was observed; never from what a node says.

    Args:
        chip: CHIP_ID (64 bytes; Turin 8) or PPID (16 bytes); empty where hardware hides it.
        csp_id: Of a VLEK; None where a VCEK signs.
    """

    chip: bytes
    csp_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What evidence of one item is compared with.

    Args:
        at: The instant of the appraisal, UTC.
        report_data: The 64 bytes of `attestation.report_data.report_data`; of a GPU the 32 of `gpu_nonce`.
        endorsements: What vouches for the hardware, as its kind wants it: `endorsements.amd`, `.intel` or `.nvidia`.
        approved: What an operator approved; None where nothing was yet.
        nonce: The challenge itself, 32 bytes, for a vTPM's quote.
        ak_public: TPM2B_PUBLIC of the AK that is the machine's, where a vTPM is beside the hardware.
        before: What the last verified evidence told (`Findings.state`); None before the first.
    """

    at: datetime
    report_data: bytes
    endorsements: Any
    approved: Approved | None
    nonce: bytes
    ak_public: bytes | None = None
    before: Mapping[str, Any] | None = None


def members(item: object, limits: Mapping[str, int], *, required: AbstractSet[str]) -> dict[str, bytes]:
    """Return the members of an item of the envelope (CONFIDENTIAL.md §7.1), as bytes.

    Args:
        item: What came, as JSON has it.
        limits: Name of each member that may be there -> most bytes that it has.
        required: Those that must be.

    Raises:
        MalformedEvidence: Not an object of base64; a member is unknown, missing, or too long.
    """
    if not isinstance(item, Mapping) or not required <= item.keys() <= limits.keys():
        may = sorted(limits.keys() - required)
        raise MalformedEvidence(
            f"evidence has the members {', '.join(sorted(required))}"
            + (f"; also {', '.join(may)}" if may else "")
        )
    found: dict[str, bytes] = {}
    for name, text in item.items():
        if not isinstance(text, str):
            raise MalformedEvidence(f"{name}: not base64")
        found[name] = b64decode(text, name, max_bytes=limits[name])
    return found
