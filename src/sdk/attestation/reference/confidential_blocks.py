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
_NO_BITS: Final = {"value": "00" * 8, "mask": "00" * 8}


def _id_block(values: dict[str, Any]) -> None:
    inner = {name: values.pop(name) for name in list(values) if name.startswith("id_block.")}
    values["id_block"] = IdBlockRules(**{n.removeprefix("id_block."): value for n, value in inner.items()})


def _rtmr(values: dict[str, Any]) -> None:
    values["rtmr"] = tuple(values.pop(name, None) for name in _RTMRS)


SEV_SNP: Final = Table(
    name="sev_snp",
    rules=SevSnpRules,
    members={
        "measurement": Member(about="Launch digests of guests that may run", type=hexes(48), reference=True),
        "host_data": Member(about="Values of HOST_DATA", type=hexes(32)),
        "id_block.require": Member(
            about="The guest was launched with a signed ID block", type=FLAG, idle=False
        ),
        "id_block.id_key_digests": Member(
            about="SHA-384 of ID keys that may have signed it", type=hexes(48), reference=True
        ),
        "id_block.author_key_digests": Member(
            about="SHA-384 of author keys that may have signed the ID key", type=hexes(48)
        ),
        "id_block.family_id": Member(about="FAMILY_ID of the ID block", type=hexes(16)),
        "id_block.image_id": Member(about="IMAGE_ID of the ID block", type=hexes(16)),
        "min_guest_svn": Member(about="Lowest GUEST_SVN", type=_U32, idle=0),
        "max_vmpl": Member(
            about="Highest VMPL that may ask for a report; lower is more privileged",
            type=number(0, 3),
            loosens=True,
        ),
        "allow_debug": Member(
            about="The guest may be one whose memory the host reads", type=FLAG, loosens=True
        ),
        "allow_migration_agent": Member(
            about="The guest may have a migration agent", type=FLAG, loosens=True
        ),
        "require_smt_disabled": Member(
            about="SMT is neither allowed for the guest nor on in the platform", type=FLAG, idle=False
        ),
        "require_single_socket": Member(about="The guest may run on one socket only", type=FLAG, idle=False),
        "platform_info.must_set": Member(
            about="Bits of PLATFORM_INFO that are set", type=_BITS, field="platform_must_set", idle=0
        ),
        "platform_info.must_clear": Member(
            about="Bits of PLATFORM_INFO that are not set", type=_BITS, field="platform_must_clear", idle=0
        ),
        "min_tcb": Member(
            about="Lowest reported, committed and launch TCB of each line of processors; "
            "a line that is not named is refused",
            type=minima({"milan": _TCB, "genoa": _TCB, "turin": ("fmc", *_TCB)}),
        ),
        "allow_provisional_firmware": Member(
            about="Firmware that can still be rolled back may run", type=FLAG, loosens=True
        ),
        "allowed_chip_ids": Member(about="CHIP_ID of processors", type=hexes(64, 8)),
        "signing_key": Member(
            about="Which key may sign: one of the chip, one of the cloud, or either",
            type=one_of("vcek", "vlek", "any"),
            loosens=True,
        ),
        "csp_ids": Member(about="Clouds whose VLEK may sign", type=words()),
        "min_report_version": Member(about="Lowest version of the report", type=number(2, 5), idle=2),
        "min_launch_mit_vector": Member(
            about="Mitigations that were in force at launch, as bits", type=_BITS, idle=0
        ),
    },
    assemble=_id_block,
    inner={"id_block": "The signed ID block", "platform_info": "Bits of PLATFORM_INFO"},
)
TDX: Final = Table(
    name="tdx",
    rules=TdxRules,
    members={
        "mrtd": Member(about="MRTD of guests that may run", type=hexes(48), reference=True),
        **{
            name: Member(about=f"{name.upper()} of guests that may run", type=hexes(48), reference=True)
            for name in _RTMRS
        },
        **{
            name: Member(about=f"{name.upper()} of the guest", type=hexes(48))
            for name in ("mrseam", "mrsignerseam", "mrconfigid", "mrowner", "mrownerconfig")
        },
        "xfam": Member(
            about="XFAM, hex as evidence shows it; bits outside of mask are not compared",
            type=masked(8, Masked),
            idle=_NO_BITS,
        ),
        "td_attributes": Member(
            about="TDATTRIBUTES, hex as evidence shows it; bits outside of mask are not compared",
            type=masked(8, Masked),
            idle=_NO_BITS,
        ),
        "allow_debug": Member(
            about="The guest may be one whose memory the host reads", type=FLAG, loosens=True
        ),
        "require_sept_ve_disable": Member(
            about="The guest cannot be made to take exceptions of EPT violations", type=FLAG, loosens=True
        ),
        "allow_migration": Member(about="The guest may be migratable", type=FLAG, loosens=True),
        "allow_service_td": Member(about="A service TD may be bound to the guest", type=FLAG, loosens=True),
        "accepted_ppids": Member(about="PPID of processors", type=hexes(16)),
        "require_event_log": Member(
            about="The event log comes with the quote and leads to the RTMRs", type=FLAG, idle=False
        ),
    },
    assemble=_rtmr,
)
SGX: Final = Table(
    name="sgx",
    rules=SgxRules,
    members={
        "mrenclave": Member(about="MRENCLAVE of enclaves that may run", type=hexes(32), reference=True),
        "mrsigner": Member(about="MRSIGNER of enclaves that may run", type=hexes(32), reference=True),
        "isv_prod_id": Member(about="ISVPRODID of the enclave", type=_U16),
        "min_isv_svn": Member(about="Lowest ISVSVN", type=_U16, idle=0),
        "allow_debug": Member(
            about="The enclave may be one whose memory the host reads", type=FLAG, loosens=True
        ),
    },
)
GPU: Final = Table(
    name="gpu",
    rules=GpuRules,
    members={
        "driver_versions": Member(about="Versions of the driver", type=words()),
        "vbios_versions": Member(about="Versions of the VBIOS", type=words()),
        "arch": Member(about="Architectures", type=words()),
        "rim_required": Member(about="Reference manifests say what the GPU runs", type=FLAG),
    },
)
TCB: Final = Table(
    name="tcb",
    rules=TcbRules,
    members={
        "accepted_status": Member(
            about="What the platform may be worth, as Intel says", type=words(*STATUSES), loosens=True
        ),
        "min_tcb_date": Member(about="The level that was reached is not older", type=DATE),
        "min_tcb_evaluation_data_number": Member(
            about="Lowest edition of the data that is used", type=_U32, idle=0
        ),
        "platform_grace_days": Member(
            about="How long a level of the platform still counts after it was overtaken",
            type=_DAYS,
            idle=0,
            loosens=True,
        ),
        "qe_grace_days": Member(
            about="How long a level of the quoting enclave still counts after it was overtaken",
            type=_DAYS,
            idle=0,
            loosens=True,
        ),
        "reject_advisories": Member(
            about="Advisories that may not apply", type=words(pattern="INTEL-SA-[0-9]{5}")
        ),
        "allow_smt": Member(about="SMT may be on", type=FLAG, idle=True),
        "allow_dynamic_platform": Member(
            about="The platform may be one to which packages can be added", type=FLAG, idle=True
        ),
        "allow_cached_keys": Member(about="The platform may be one that caches its root keys", type=FLAG),
    },
)
COLLATERAL: Final = Table(
    name="collateral",
    rules=CollateralRules,
    members={
        "require_revocation": Member(about="Revocation lists must be there", type=FLAG, loosens=True),
        "max_staleness_hours": Member(
            about="How long TCB info and identities count after their next update; lists never do",
            type=number(0, 720),
            loosens=True,
            plain=True,
        ),
        "allow_fetch": Member(about="Vendors may be asked over the network", type=FLAG, plain=True),
    },
)
IDENTITY: Final = Table(
    name="identity",
    rules=IdentityRules,
    members={
        "mode": Member(
            about="registered: the hardware is that of the machine's record. observed: it is only recorded",
            type=one_of("registered", "observed"),
            loosens=True,
            plain=True,
        )
    },
)
