"""What policies expect of confidential machines, as read (CONFIDENTIAL.md §2.3): the rules of blocks beside `tpm`.

A demand that is None is not made; one with a default is made by every policy, and by none at all. Digests are bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from attestation.reference.rules import Demand

Bytes = Demand[frozenset[bytes]]
"""One of these values."""
NO: Final = Demand(False, report=False)
YES: Final = Demand(True, report=False)
UP_TO_DATE: Final = Demand(frozenset({"UpToDate"}), report=False)
VMPL_0: Final = Demand(0, report=False)
VCEK: Final = Demand("vcek", report=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Masked:
    """A bit field of which only the bits of `mask` are compared; both as integers, little-endian in evidence."""

    value: int
    mask: int


@dataclass(frozen=True, slots=True, kw_only=True)
class IdentityRules:
    """Block `identity`: `registered` compares with what an operator approved, `observed` only records."""

    mode: str = "registered"


@dataclass(frozen=True, slots=True, kw_only=True)
class CollateralRules:
    """Block `collateral`. `max_staleness_hours` (0-720) stretches nextUpdate of TCB info and identities, not CRLs."""

    require_revocation: Demand[bool] = YES
    max_staleness_hours: int = 0
    allow_fetch: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class CelRule:
    """One of `rules`: an expression of CEL that must be true; a missing key is false."""

    name: str
    expression: str
    message: str
    report: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TcbRules:
    """Block `tcb`, for TDX and SGX. Grace days: how long ago a level may have been overtaken and still count."""

    accepted_status: Demand[frozenset[str]] = UP_TO_DATE
    min_tcb_date: Demand[datetime] | None = None
    min_tcb_evaluation_data_number: Demand[int] | None = None
    platform_grace_days: Demand[int] | None = None
    qe_grace_days: Demand[int] | None = None
    reject_advisories: Demand[frozenset[str]] | None = None
    allow_smt: Demand[bool] | None = None
    allow_dynamic_platform: Demand[bool] | None = None
    allow_cached_keys: Demand[bool] = YES


@dataclass(frozen=True, slots=True, kw_only=True)
class IdBlockRules:
    """Member `id_block` of block `sev_snp`."""

    require: Demand[bool] | None = None
    id_key_digests: Bytes | None = None
    author_key_digests: Bytes | None = None
    family_id: Bytes | None = None
    image_id: Bytes | None = None


NO_ID_BLOCK: Final = IdBlockRules()


@dataclass(frozen=True, slots=True, kw_only=True)
class SevSnpRules:
    """Block `sev_snp`.

    `min_tcb`: line (`milan`, `genoa`, `turin`) -> component (`fmc`, `bootloader`, `tee`, `snp`, `microcode`) -> lowest
    value, on reported, committed and launch TCB. `measurement` and `id_block.id_key_digests` are reference values.
    `platform_must_set`, `platform_must_clear`: bits of PLATFORM_INFO, as an integer.
    """

    measurement: Bytes | None = None
    host_data: Bytes | None = None
    id_block: IdBlockRules = NO_ID_BLOCK
    min_guest_svn: Demand[int] | None = None
    max_vmpl: Demand[int] = VMPL_0
    allow_debug: Demand[bool] = NO
    allow_migration_agent: Demand[bool] = NO
    require_smt_disabled: Demand[bool] | None = None
    require_single_socket: Demand[bool] | None = None
    platform_must_set: Demand[int] | None = None
    platform_must_clear: Demand[int] | None = None
    min_tcb: Demand[Mapping[str, Mapping[str, int]]] | None = None
    allow_provisional_firmware: Demand[bool] = NO
    allowed_chip_ids: Bytes | None = None
    signing_key: Demand[str] = VCEK
    csp_ids: Demand[frozenset[str]] | None = None
    min_report_version: Demand[int] | None = None
    min_launch_mit_vector: Demand[int] | None = None

    @property
    def has_reference(self) -> bool:
        """True if a reference value is enforced."""
        stated = (self.measurement, self.id_block.id_key_digests)
        return any(demand is not None and not demand.report for demand in stated)


@dataclass(frozen=True, slots=True, kw_only=True)
class TdxRules:
    """Block `tdx`. `mrtd` and `rtmr0` to `rtmr3` (in `rtmr`, by index) are reference values."""

    mrtd: Bytes | None = None
    rtmr: tuple[Bytes | None, Bytes | None, Bytes | None, Bytes | None] = (None, None, None, None)
    mrseam: Bytes | None = None
    mrsignerseam: Bytes | None = None
    mrconfigid: Bytes | None = None
    mrowner: Bytes | None = None
    mrownerconfig: Bytes | None = None
    xfam: Demand[Masked] | None = None
    td_attributes: Demand[Masked] | None = None
    allow_debug: Demand[bool] = NO
    require_sept_ve_disable: Demand[bool] = YES
    allow_migration: Demand[bool] = NO
    allow_service_td: Demand[bool] = NO
    accepted_ppids: Bytes | None = None
    require_event_log: Demand[bool] | None = None

    @property
    def has_reference(self) -> bool:
        """True if a reference value is enforced."""
        return any(demand is not None and not demand.report for demand in (self.mrtd, *self.rtmr))


@dataclass(frozen=True, slots=True, kw_only=True)
class SgxRules:
    """Block `sgx`. `mrenclave` and `mrsigner` are reference values."""

    mrenclave: Bytes | None = None
    mrsigner: Bytes | None = None
    isv_prod_id: Demand[int] | None = None
    min_isv_svn: Demand[int] | None = None
    allow_debug: Demand[bool] = NO

    @property
    def has_reference(self) -> bool:
        """True if a reference value is enforced."""
        return any(demand is not None and not demand.report for demand in (self.mrenclave, self.mrsigner))


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuRules:
    """Block `gpu`. Without reference integrity manifests nothing is said of what a GPU executes."""

    driver_versions: Demand[frozenset[str]] | None = None
    vbios_versions: Demand[frozenset[str]] | None = None
    arch: Demand[frozenset[str]] | None = None
    rim_required: Demand[bool] = NO
