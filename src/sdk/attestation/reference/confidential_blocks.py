"""The blocks about confidential machines, member by member (CONFIDENTIAL.md §2.3)."""

from __future__ import annotations

from typing import Any, Final

from attestation.reference.confidential import (
    CollateralRules,
    GpuRules,
    IdBlockRules,
    IdentityRules,
    Masked,
    SevSnpRules,
    SgxRules,
    TcbRules,
    TdxRules,
)
from attestation.reference.members import (
    DATE,
    FLAG,
    MAX_SAFE,
    Member,
    Table,
    hexes,
    masked,
    minima,
    number,
    one_of,
    words,
)

STATUSES: Final = (
    "UpToDate",
    "SWHardeningNeeded",
    "ConfigurationNeeded",
    "ConfigurationAndSWHardeningNeeded",
    "OutOfDate",
    "OutOfDateConfigurationNeeded",
    "TDRelaunchAdvised",
    "TDRelaunchAdvisedConfigurationNeeded",
)
"""What a policy may accept of a platform, as Intel and DCAP name it; `Revoked` is never accepted."""
_TCB: Final = ("bootloader", "tee", "snp", "microcode")
_RTMRS: Final = ("rtmr0", "rtmr1", "rtmr2", "rtmr3")
_U16: Final = number(0, 0xFFFF)
_U32: Final = number(0, 0xFFFF_FFFF)
_BITS: Final = number(0, MAX_SAFE)
_DAYS: Final = number(0, 36_500)


def _id_block(values: dict[str, Any]) -> None:
    inner = {name: values.pop(name) for name in list(values) if name.startswith("id_block.")}
    values["id_block"] = IdBlockRules(**{n.removeprefix("id_block."): value for n, value in inner.items()})


def _rtmr(values: dict[str, Any]) -> None:
    values["rtmr"] = tuple(values.pop(name, None) for name in _RTMRS)


SEV_SNP: Final = Table(
    name="sev_snp",
    rules=SevSnpRules,
    members={
        "measurement": Member(type=hexes(48), reference=True),
        "host_data": Member(type=hexes(32)),
        "id_block.require": Member(type=FLAG, idle=False),
        "id_block.id_key_digests": Member(type=hexes(48), reference=True),
        "id_block.author_key_digests": Member(type=hexes(48)),
        "id_block.family_id": Member(type=hexes(16)),
        "id_block.image_id": Member(type=hexes(16)),
        "min_guest_svn": Member(type=_U32, idle=0),
        "max_vmpl": Member(type=number(0, 3), loosens=True),
        "allow_debug": Member(type=FLAG, loosens=True),
        "allow_migration_agent": Member(type=FLAG, loosens=True),
        "require_smt_disabled": Member(type=FLAG, idle=False),
        "require_single_socket": Member(type=FLAG, idle=False),
        "platform_info.must_set": Member(type=_BITS, field="platform_must_set", idle=0),
        "platform_info.must_clear": Member(type=_BITS, field="platform_must_clear", idle=0),
        "min_tcb": Member(type=minima({"milan": _TCB, "genoa": _TCB, "turin": ("fmc", *_TCB)})),
        "allow_provisional_firmware": Member(type=FLAG, loosens=True),
        "allowed_chip_ids": Member(type=hexes(64, 8)),
        "signing_key": Member(type=one_of("vcek", "vlek", "any"), loosens=True),
        "csp_ids": Member(type=words()),
        "min_report_version": Member(type=number(2, 5), idle=2),
        "min_launch_mit_vector": Member(type=_BITS, idle=0),
    },
    assemble=_id_block,
)
TDX: Final = Table(
    name="tdx",
    rules=TdxRules,
    members={
        "mrtd": Member(type=hexes(48), reference=True),
        **{name: Member(type=hexes(48), reference=True) for name in _RTMRS},
        **{
            name: Member(type=hexes(48))
            for name in ("mrseam", "mrsignerseam", "mrconfigid", "mrowner", "mrownerconfig")
        },
        "xfam": Member(type=masked(8, Masked)),
        "td_attributes": Member(type=masked(8, Masked)),
        "allow_debug": Member(type=FLAG, loosens=True),
        "require_sept_ve_disable": Member(type=FLAG, loosens=True),
        "allow_migration": Member(type=FLAG, loosens=True),
        "allow_service_td": Member(type=FLAG, loosens=True),
        "accepted_ppids": Member(type=hexes(16)),
        "require_event_log": Member(type=FLAG, idle=False),
    },
    assemble=_rtmr,
)
SGX: Final = Table(
    name="sgx",
    rules=SgxRules,
    members={
        "mrenclave": Member(type=hexes(32), reference=True),
        "mrsigner": Member(type=hexes(32), reference=True),
        "isv_prod_id": Member(type=_U16),
        "min_isv_svn": Member(type=_U16, idle=0),
        "allow_debug": Member(type=FLAG, loosens=True),
    },
)
GPU: Final = Table(
    name="gpu",
    rules=GpuRules,
    members={
        "driver_versions": Member(type=words()),
        "vbios_versions": Member(type=words()),
        "arch": Member(type=words()),
        "rim_required": Member(type=FLAG),
    },
)
TCB: Final = Table(
    name="tcb",
    rules=TcbRules,
    members={
        "accepted_status": Member(type=words(*STATUSES), loosens=True),
        "min_tcb_date": Member(type=DATE),
        "min_tcb_evaluation_data_number": Member(type=_U32, idle=0),
        "platform_grace_days": Member(type=_DAYS, idle=0, loosens=True),
        "qe_grace_days": Member(type=_DAYS, idle=0, loosens=True),
        "reject_advisories": Member(type=words(pattern="INTEL-SA-[0-9]{5}")),
        "allow_smt": Member(type=FLAG, idle=True),
        "allow_dynamic_platform": Member(type=FLAG, idle=True),
        "allow_cached_keys": Member(type=FLAG),
    },
)
COLLATERAL: Final = Table(
    name="collateral",
    rules=CollateralRules,
    members={
        "require_revocation": Member(type=FLAG, loosens=True),
        "max_staleness_hours": Member(type=number(0, 720), loosens=True, plain=True),
        "allow_fetch": Member(type=FLAG, plain=True),
    },
)
IDENTITY: Final = Table(
    name="identity",
    rules=IdentityRules,
    members={"mode": Member(type=one_of("registered", "observed"), loosens=True, plain=True)},
)
