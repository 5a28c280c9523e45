"""One attestation result in full: what was judged, what it was judged from, and what explains a change."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from attestation.api.base import Wire
from attestation.api.operator import ResultDetail
from attestation.results import Assurance
from attestation.results.ar4si import Tier, TrustClaim

__all__ = [
    "BootDetail",
    "BootItem",
    "MeasuredEvent",
    "PCRChange",
    "ResultReport",
    "SecureBootAuthority",
    "SecureBootDetail",
    "TrustClaimDetail",
]

Hex = Annotated[str, Field(pattern=r"^[0-9a-f]*$")]


class PCRChange(Wire):
    """Why one PCR is not what it was, in words."""

    pcr: int
    before: Hex | None = Field(description="Its value in the result compared with; null where there is none")
    after: Hex
    text: str = Field(description="E.g. `PCR 7 changed: dbx updated (+3 hashes)`")
    entries: list[str] = Field(description="The events of the log that explain it")


class MeasuredEvent(Wire):
    """One event of the boot event log."""

    index: int
    pcr: int
    type: str = Field(description="Name of the event type; not measured")
    digest: Hex
    data_checked: bool = Field(description="The digest covers what the text tells, so it may be believed")
    text: str


class SecureBootAuthority(Wire):
    """By what an image was accepted."""

    name: str
    sha256: Hex
    subject: str


class SecureBootDetail(Wire):
    """What PCR 7 says of Secure Boot."""

    enabled: bool | None = Field(description="null: the log does not tell")
    measured: str
    debug: bool
    problems: list[str]
    flags: list[str]
    db_entries: int
    dbx_entries: int
    authorities: list[SecureBootAuthority]
    sbat: str | None


class BootItem(Wire):
    """Something that was started or read during the boot."""

    kind: Literal["driver", "boot-loader", "kernel", "image", "command-line", "initrd", "section"]
    pcr: int
    digest: Hex
    text: str | None = Field(description="Path, name or text; null where the log does not show it")


class BootDetail(Wire):
    """What the event log proves of the boot; nothing of PCRs to which it does not lead."""

    pcrs: list[int] = Field(description="The quoted PCRs to which the log leads")
    findings: list[str] = Field(description="What is odd about the log, in words")
    secure_boot: SecureBootDetail | None = Field(description="null where PCR 7 is not among them")
    items: list[BootItem]
    events: list[MeasuredEvent]
    events_left_out: int = Field(description="Events beyond those shown; the log itself has all")


class TrustClaimDetail(Wire):
    """One claim of the trustworthiness vector (AR4SI §2.3.4)."""

    claim: TrustClaim
    value: int = Field(ge=-128, le=127)
    tier: Tier
    text: str = Field(description="What the value means in this claim")


class ResultReport(ResultDetail):
    """One result with everything it was judged from, and what explains it."""

    assurance: Assurance | None
    policy_sha256: Hex | None
    bundle_sha256: Hex | None
    pcr_bank: str | None
    pcr_values: dict[str, Hex]
    event_log_sha256: Hex | None
    event_log_kept: bool
    ima_log_sha256: Hex | None
    ima_log_kept: bool
    ek_key_attested: bool | None
    compared_with: int | None = Field(description="The last Verified result before this one that is kept")
    vector: list[TrustClaimDetail] = Field(
        default=[], description="What it says, claim by claim; what it says nothing of is left out"
    )
    changes: list[PCRChange]
    boot: BootDetail | None = Field(description="null where no event log is kept")
