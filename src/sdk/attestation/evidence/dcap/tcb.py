"""What a platform's TCB is worth (CONFIDENTIAL.md §9.3, steps 6 to 10): quoting enclave, TDX module, platform.

Each has a list of levels, the newest first; it has the status of the first that it reaches. Reaching none is
Unsupported, never OutOfDate: nobody has said anything of such firmware.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from operator import ge
from typing import Final

from attestation.endorsements.intel import (
    EnclaveIdentity,
    Level,
    Module,
    Platform,
    PlatformLevel,
    Status,
    TcbInfo,
)
from attestation.evidence.dcap.report import EnclaveReport, TDReport

_CONFIGURATION: Final = frozenset(
    {
        Status.CONFIGURATION_NEEDED,
        Status.CONFIGURATION_AND_SW_HARDENING_NEEDED,
        Status.OUT_OF_DATE_CONFIGURATION_NEEDED,
    }
)
_OUT_OF_DATE: Final = frozenset({Status.OUT_OF_DATE, Status.OUT_OF_DATE_CONFIGURATION_NEEDED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One part of a TCB.

    Args:
        name: In words.
        status: What it is worth.
        date: As of when its level's firmware is, UTC; None where it reaches no level, or has none.
        advisories: Those that it is open to.
        found: Its SVNs, in words.
        newest: Those of the newest level, in words; empty where it has no levels.
        overtaken: As of when the level directly above its own is, UTC; None where there is none.
        behind: How many levels are newer than its own; of a part that reaches none, all of them.
    """

    name: str
    status: Status
    date: datetime | None
    advisories: tuple[str, ...]
    found: str
    newest: str
    overtaken: datetime | None
    behind: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Tcb:
    """What the whole is worth.

    Args:
        status: Of all parts together.
        advisories: Of all parts, sorted.
        platform, qe: Those parts.
        module: The TDX module; None where it has no levels of its own, and for SGX.
        date: As of when the platform's level is, UTC; None where it reaches none.
        evaluation_number: The lower of those of TCB info and identity: of which assessment all this is.
    """

    status: Status
    advisories: tuple[str, ...]
    platform: Part
    qe: Part
    module: Part | None
    date: datetime | None
    evaluation_number: int

    @property
    def parts(self) -> tuple[Part, ...]:
        """Every part, the platform last: what is most easily mended comes first."""
        return tuple(part for part in (self.module, self.qe, self.platform) if part is not None)


def qe_fault(report: EnclaveReport, identity: EnclaveIdentity) -> str | None:
    """Return why *report* is not of Intel's quoting enclave, or None (step 6)."""
    if _masked(report.misc_select, identity.misc_select_mask) != _masked(
        identity.misc_select, identity.misc_select_mask
    ):
        return f"MISCSELECT {report.misc_select.hex()}"
    if _masked(report.attributes, identity.attributes_mask) != _masked(
        identity.attributes, identity.attributes_mask
    ):
        return f"ATTRIBUTES {report.attributes.hex()}"
    if report.mr_signer != identity.mr_signer:
        return f"MRSIGNER {report.mr_signer.hex()}"
    if report.isv_prod_id != identity.prod_id:
        return f"ISVPRODID {report.isv_prod_id}"
    # Intel's masks cover DEBUG today; an enclave whose memory is open proves nothing whatever they say.
    return "a debug enclave" if report.debug else None


def module_of(report: TDReport, info: TcbInfo) -> Module | None:
    """Return what Intel says of the module that runs a TD; None where it says nothing of such a version (step 7)."""
    version = report.tee_tcb_svn[1]
    return info.modules.get(f"TDX_{version:02X}") if version else info.module


def module_fault(report: TDReport, module: Module) -> str | None:
    """Return why the TDX module is not the one that *module* is about, or None (step 7)."""
    if report.mr_signer_seam != module.mr_signer:
        return f"MRSIGNERSEAM {report.mr_signer_seam.hex()}"
    mask = module.attributes_mask
    if _masked(report.seam_attributes, mask) != _masked(module.attributes, mask) or any(
        each & ~covered for each, covered in zip(report.seam_attributes, mask, strict=True)
    ):
        return f"SEAMATTRIBUTES {report.seam_attributes.hex()}"
    return None


def module_name(svn: int, version: int) -> str:
    """Return what a TDX module is called: 1.5.05 is version 1 with SVN 5."""
    words = {0: "1.0", 1: "1.5"}.get(version)
    return f"{words}.{svn:02}" if words is not None else f"TDX_{version:02X}.{svn:02}"


def appraise_tcb(
    body: EnclaveReport | TDReport,
    qe_report: EnclaveReport,
    platform: Platform,
    info: TcbInfo,
    identity: EnclaveIdentity,
) -> Tcb:
    """Return what the TCB of a quote is worth.

    Args:
        body: What the quote vouches for.
        qe_report: Of the enclave that made it.
        platform: What the PCK certificate says.
        info: What Intel says of this platform, verified.
        identity: What Intel says of its quoting enclave, verified.
    """
    qe = _enclave("quoting enclave", qe_report.isv_svn, identity.levels)
    if isinstance(body, EnclaveReport):
        module, chosen = None, _platform(platform, info, None)
        status = chosen.status
    else:
        module, chosen = _module(body, info), _platform(platform, info, body.tee_tcb_svn)
        status = chosen.status
        if module is not None:
            status = _converge(status, module.status)
            if status in _OUT_OF_DATE and module.status is Status.OUT_OF_DATE:
                status = _relaunch(body, platform, info, status, chosen.status, qe.status)
    status = _converge(status, qe.status)
    parts = [part for part in (chosen, module, qe) if part is not None]
    return Tcb(
        status=status,
        advisories=tuple(sorted({each for part in parts for each in part.advisories})),
        platform=chosen,
        qe=qe,
        module=module,
        date=chosen.date,
        evaluation_number=min(info.evaluation_number, identity.evaluation_number),
    )


def _masked(value: bytes, mask: bytes) -> bytes:
    return (int.from_bytes(value) & int.from_bytes(mask)).to_bytes(len(mask))


def _enclave(name: str, svn: int, levels: tuple[Level, ...]) -> Part:
    place = next((i for i, level in enumerate(levels) if level.svn <= svn), None)
    level = levels[place] if place is not None else None
    return Part(
        name=name,
        status=level.status if level is not None else Status.UNSUPPORTED,
        date=level.date if level is not None else None,
        advisories=level.advisories if level is not None else (),
        found=f"SVN {svn}",
        newest=f"SVN {levels[0].svn}",
        overtaken=_overtaken(levels, place),
        behind=place if place is not None else len(levels),
    )


def _overtaken(levels: Sequence[Level | PlatformLevel], place: int | None) -> datetime | None:
    above = len(levels) - 1 if place is None else place - 1
    return levels[above].date if above >= 0 else None


def _module(body: TDReport, info: TcbInfo) -> Part | None:
    svn, version = body.tee_tcb_svn[0], body.tee_tcb_svn[1]
    if version == 0:
        return None
    module = module_of(body, info)
    name = f"TDX module {module_name(svn, version)}"
    if module is None:
        return Part(
            name=name,
            status=Status.UNSUPPORTED,
            date=None,
            advisories=(),
            found=f"SVN {svn}",
            newest="",
            overtaken=None,
            behind=0,
        )
    return _enclave(name, svn, module.levels)


def _place(platform: Platform, info: TcbInfo, tdx: bytes | None) -> int | None:
    """Return which level a platform reaches first (step 8), of TDX also by what the TD reports; None for no one."""
    # [0] and [1] are the module's, which has levels of its own where it has a version.
    first = 2 if tdx is not None and tdx[1] else 0
    for place, level in enumerate(info.levels):
        if (
            platform.pce_svn >= level.pce_svn
            and all(map(ge, platform.components, level.sgx))
            and (tdx is None or all(map(ge, tdx[first:], level.tdx[first:])))
        ):
            return place
    return None


def _platform(platform: Platform, info: TcbInfo, tdx: bytes | None) -> Part:
    place = _place(platform, info, tdx)
    level = info.levels[place] if place is not None else None
    return Part(
        name="platform",
        status=level.status if level is not None else Status.UNSUPPORTED,
        date=level.date if level is not None else None,
        advisories=level.advisories if level is not None else (),
        found=", ".join(_short(platform, info.newest, tdx)) if place != 0 else "nothing is short",
        newest=f"level of {info.newest.date:%Y-%m-%d}",
        overtaken=_overtaken(info.levels, place),
        behind=place if place is not None else len(info.levels),
    )


def _short(platform: Platform, level: PlatformLevel, tdx: bytes | None) -> list[str]:
    """Return in words each component that does not reach *level*; none where it is reached."""
    found = list(_lower("SGX component", platform.components, level.sgx, 0))
    if platform.pce_svn < level.pce_svn:
        found.append(f"PCE SVN {platform.pce_svn} of {level.pce_svn}")
    if tdx is not None:
        found += _lower("TDX component", tdx, level.tdx, 2 if tdx[1] else 0)
    return found


def _lower(name: str, found: Iterable[int], needed: Iterable[int], first: int) -> Iterable[str]:
    for i, (have, least) in enumerate(zip(found, needed, strict=True)):
        if i >= first and have < least:
            yield f"{name} {i + 1} at {have} of {least}"


def _converge(status: Status, other: Status) -> Status:
    """Return *status* with that of the module, or of the quoting enclave, counted (step 9)."""
    final = (Status.UNSUPPORTED, Status.REVOKED)
    if status in final or other in final:
        return max(status, other, key=lambda each: each.severity)
    if other not in _OUT_OF_DATE:
        return status
    if status in (Status.UP_TO_DATE, Status.SW_HARDENING_NEEDED):
        return Status.OUT_OF_DATE
    return Status.OUT_OF_DATE_CONFIGURATION_NEEDED if status in _CONFIGURATION else status


def _relaunch(
    body: TDReport, platform: Platform, info: TcbInfo, status: Status, tdx: Status, qe: Status
) -> Status:
    """Return that only the TD is old, where its module was replaced under it (step 10): TDX 1.5 tells both.

    Args:
        body: What the TD reports.
        platform: What the PCK certificate says.
        info: What Intel says of the platform.
        status: OutOfDate or OutOfDateConfigurationNeeded, of platform and module, of which the module is OutOfDate.
        tdx: Of the platform's level.
        qe: Of the quoting enclave.
    """
    now = body.tee_tcb_svn2
    place = _place(platform, info, None)
    sgx = info.levels[place].status if place is not None else Status.UNSUPPORTED
    # From there on a relaunch alone does not help.
    worse = Status.OUT_OF_DATE.severity
    if now is None or sgx.severity >= worse or qe.severity >= worse or not _newest(now, info):
        return status
    if {sgx, tdx} & _CONFIGURATION:
        return Status.TD_RELAUNCH_ADVISED_CONFIGURATION_NEEDED
    return Status.TD_RELAUNCH_ADVISED


def _newest(now: bytes, info: TcbInfo) -> bool:
    """Say whether TEE_TCB_SVN2 is at the newest level."""
    if now[2] < info.newest.tdx[2]:
        return False
    if now[1] == 0:
        return now[0] >= info.newest.tdx[0]
    module = info.modules.get(f"TDX_{now[1]:02X}")
    return module is not None and now[0] >= module.levels[0].svn
