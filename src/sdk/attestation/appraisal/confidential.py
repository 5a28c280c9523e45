"""What evidence of confidential hardware is compared with, whatever its kind (CONFIDENTIAL.md §§2.4, 7)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any


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
