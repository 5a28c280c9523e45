"""Quotes and collateral of the test kit: every status, and every defect (CONFIDENTIAL.md §§9.3, 15)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from attestation.endorsements.intel import Collateral
from attestation_testing.tee.intel import (
    SEPT_VE_DISABLE,
    Pki,
    Platform,
    changed_copy,
    enclave_report,
    level,
    module,
    platform_level,
    qe_identity,
    shared_pki,
    tcb_info,
    td_report,
)

AT = datetime(2026, 11, 22, tzinfo=UTC)
TOLD = bytes(range(64))
UP, OLD, CONFIG = "UpToDate", "OutOfDate", "ConfigurationNeeded"
HARDEN, BOTH, OLD_CONFIG = (
    "SWHardeningNeeded",
    "ConfigurationAndSWHardeningNeeded",
    "OutOfDateConfigurationNeeded",
)
RELAUNCH, RELAUNCH_CONFIG = "TDRelaunchAdvised", "TDRelaunchAdvisedConfigurationNeeded"
UNSUPPORTED, REVOKED = "Unsupported", "Revoked"
PLATFORM = Platform()


@dataclass(frozen=True, kw_only=True)
class Case:
    """One quote with its collateral.

    Args:
        quote: The quote.
        collateral: The collateral.
        codes: What fails under the defaults.
        status: What the TCB is worth; None where it cannot be said.
        advisories: Likewise.
        at: The clock.
        tee: `TDX` or `SGX`.
    """

    quote: bytes
    collateral: Collateral
    codes: frozenset[str] = frozenset()
    status: str | None = UP
    advisories: tuple[str, ...] = ()
    at: datetime = AT
    tee: str = "TDX"


def enclave(**changed: bytes) -> bytes:
    """Return the body of an enclave's quote; *changed*: offset as `at_16` -> bytes."""
    fields = {0: bytes((2, 2)), 48: b"\x05", 64: b"\xe1" * 32, 128: b"\x51" * 32, 320: TOLD}
    return enclave_report(fields | {int(name.removeprefix("at_")): value for name, value in changed.items()})


def sgx(
    status: str = UP,
    qe: str = UP,
    *,
    version: int = 3,
    advisories: tuple[str, ...] = (),
    **changed: bytes,
) -> Case:
    """Return the quote of an enclave whose platform and quoting enclave have these statuses."""
    info = tcb_info("SGX")
    info["tcbLevels"][0] |= {"tcbStatus": status} | ({"advisoryIDs": list(advisories)} if advisories else {})
    return Case(
        quote=PLATFORM.quote(enclave(**changed), version=version, tee="SGX"),
        collateral=PLATFORM.collateral(
            "SGX", info=info, identity=qe_identity("SGX", tcbLevels=[level(8, qe)])
        ),
        status=status,
        advisories=advisories,
        codes=frozenset() if status == UP else frozenset({"tcb-not-allowed"}),
        tee="SGX",
    )


def tdx(
    platform: str = UP,
    module_status: str = UP,
    qe: str = UP,
    *,
    size: int = 584,
    version: int = 4,
    status: str | None = UP,
    advisories: tuple[str, ...] = (),
    codes: frozenset[str] | None = None,
    info: Mapping[str, Any] | None = None,
    identity: Mapping[str, Any] | None = None,
    **fields: bytes,
) -> Case:
    """Return the quote of a TD whose platform, module and quoting enclave have these statuses."""
    described = info or tcb_info(
        tcbLevels=[platform_level(status=platform, advisories=("INTEL-SA-1",) if platform != UP else ())],
        tdxModuleIdentities=[
            module(
                levels=[level(5, module_status, advisories=("INTEL-SA-2",) if module_status != UP else ())]
            )
        ],
    )
    quoting = identity or qe_identity(
        tcbLevels=[level(8, qe, advisories=("INTEL-SA-3",) if qe != UP else ())]
    )
    return Case(
        quote=PLATFORM.quote(td_report(TOLD, size=size, **fields), version=version),
        collateral=PLATFORM.collateral(info=described, identity=quoting),
        status=status,
        advisories=advisories
        or tuple(
            name
            for name, each in (("INTEL-SA-1", platform), ("INTEL-SA-2", module_status), ("INTEL-SA-3", qe))
            if each != UP and info is None
        ),
        codes=(frozenset() if status == UP else frozenset({"tcb-not-allowed"})) if codes is None else codes,
    )


def relaunch(sgx_status: str = UP, tdx_status: str = UP, now: bytes = b"\x05\x03\x06", **more: Any) -> Case:
    """Return a TD 1.5 that was launched on an older module, on a platform that was mended since."""
    levels = [
        platform_level(status=sgx_status),
        platform_level(tdx=(5, 0, 5), status=tdx_status, date="2024-01-01T00:00:00Z"),
    ]
    modules = [
        module(levels=[level(5), level(3, OLD, date="2024-01-01T00:00:00Z", advisories=("INTEL-SA-2",))])
    ]
    known: dict[str, Any] = {
        "info": tcb_info(tcbLevels=levels, tdxModuleIdentities=modules),
        "size": 648,
        "version": 5,
        "tee_tcb_svn": b"\x03\x03\x05" + bytes(13),
        "tee_tcb_svn2": now + bytes(13),
        "advisories": ("INTEL-SA-2",),
    } | more
    if known["size"] == 584:
        del known["tee_tcb_svn2"]
    return tdx(**known)


def _zoo() -> dict[str, Case]:
    good, collateral = tdx(), PLATFORM.collateral()
    fails = frozenset({"tcb-not-allowed"})
    guest = frozenset({"guest-policy"})
    open_ = frozenset({"collateral-unavailable"})
    wrong = frozenset({"collateral-invalid"})
    chain = frozenset({"chain-invalid"})
    stranger = Platform(pki=Pki("stranger"), seed="stranger")
    other_info = changed_copy(tcb_info(), "fmspc", "00806F050000")
    assert collateral.tcb_info is not None
    found = {
        "v4": good,
        "v5 of TDX 1.0": tdx(version=5),
        "v5 of TDX 1.5": tdx(version=5, size=648),
        "v3 of SGX": sgx(),
        "v5 of SGX": sgx(version=5),
        **{
            f"SGX {status}": sgx(status, advisories=("INTEL-SA-9",))
            for status in (OLD, CONFIG, HARDEN, BOTH, OLD_CONFIG, REVOKED)
        },
        **{
            f"platform {status}": tdx(status, status=status)
            for status in (OLD, CONFIG, HARDEN, BOTH, OLD_CONFIG, REVOKED)
        },
        **{
            f"{part} OutOfDate, platform {status}": tdx(status, *parts, status=whole)
            for part, parts in (("module", (OLD, UP)), ("quoting enclave", (UP, OLD)))
            for status, whole in (
                (UP, OLD),
                (HARDEN, OLD),
                (CONFIG, OLD_CONFIG),
                (BOTH, OLD_CONFIG),
                (OLD, OLD),
                (OLD_CONFIG, OLD_CONFIG),
            )
        },
        "module revoked": tdx(module_status=REVOKED, status=REVOKED),
        "quoting enclave revoked": tdx(qe=REVOKED, status=REVOKED),
        "module revoked, platform old": tdx(OLD, REVOKED, status=REVOKED),
        "no level of the platform": tdx(
            info=tcb_info(tcbLevels=[platform_level(sgx=(3, 2))]), status=UNSUPPORTED
        ),
        "PCE SVN below": tdx(info=tcb_info(tcbLevels=[platform_level(pcesvn=12)]), status=UNSUPPORTED),
        "TDX component below": tdx(
            info=tcb_info(tcbLevels=[platform_level(tdx=(5, 0, 7))]), status=UNSUPPORTED
        ),
        "the module's components count where it has no version": tdx(
            info=tcb_info(tcbLevels=[platform_level(tdx=(6, 0, 6))]),
            tee_tcb_svn=b"\x05\x00\x06" + bytes(13),
            status=UNSUPPORTED,
        ),
        "the module's components do not count where it has one": tdx(
            info=tcb_info(tcbLevels=[platform_level(tdx=(9, 9, 6))])
        ),
        "no version of the module": tdx(tee_tcb_svn=b"\x05\x00\x06" + bytes(13)),
        "no level of the module": tdx(
            info=tcb_info(tdxModuleIdentities=[module(levels=[level(6)])]), status=UNSUPPORTED
        ),
        "module of a version that is not listed": tdx(
            info=tcb_info(tdxModuleIdentities=[module("TDX_01")]), status=UNSUPPORTED
        ),
        "module listed in lower case": tdx(info=tcb_info(tdxModuleIdentities=[module("tdx_03")])),
        "no level of the quoting enclave": tdx(
            identity=qe_identity(tcbLevels=[level(9)]), status=UNSUPPORTED
        ),
        "levels in another order": tdx(
            info=tcb_info(
                tcbLevels=[
                    platform_level(sgx=(1, 1), status=OLD, advisories=("INTEL-SA-1",)),
                    platform_level(),
                ]
            )
        ),
        "relaunch advised": relaunch(status=RELAUNCH),
        "relaunch advised, platform needs configuration": relaunch(CONFIG, CONFIG, status=RELAUNCH_CONFIG),
        "relaunch advised, TD level needs configuration": relaunch(UP, BOTH, status=RELAUNCH_CONFIG),
        "relaunch advised, platform old for the TD": relaunch(UP, OLD, status=RELAUNCH),
        "no relaunch: the platform is old": relaunch(OLD, OLD, status=OLD),
        "no relaunch: the module is still old": relaunch(now=b"\x04\x03\x06", status=OLD),
        "no relaunch: the microcode is still old": relaunch(now=b"\x05\x03\x05", status=OLD),
        "no relaunch: another module now, not listed": relaunch(now=b"\x05\x04\x06", status=OLD),
        "relaunch advised, no version of the module now": relaunch(now=b"\x05\x00\x06", status=RELAUNCH),
        "no relaunch: no version of the module now, and old": relaunch(now=b"\x04\x00\x06", status=OLD),
        "no relaunch: TDX 1.0": relaunch(size=584, version=4, status=OLD),
        "no relaunch: the quoting enclave is old": relaunch(
            identity=qe_identity(tcbLevels=[level(8, OLD)]), status=OLD
        ),
        "debug": tdx(td_attributes=(SEPT_VE_DISABLE | 1).to_bytes(8, "little"), codes=guest),
        "SEPT_VE_DISABLE clear": tdx(td_attributes=bytes(8), codes=guest),
        "migratable": tdx(td_attributes=(SEPT_VE_DISABLE | 1 << 29).to_bytes(8, "little"), codes=guest),
        "service TD": tdx(size=648, version=5, mrservicetd=b"\x01" * 48, codes=guest),
        "debug enclave": replace(sgx(at_48=b"\x07"), codes=guest),
        "signer of the module": tdx(mrsignerseam=b"\x01" * 48, codes=fails),
        "attributes of the module": tdx(seam_attributes=b"\x01" + bytes(7), codes=fails),
        "other FMSPC": tdx(info=other_info, status=None, codes=wrong),
        "other PCEID": tdx(info=changed_copy(tcb_info(), "pceId", "0001"), status=None, codes=wrong),
        "TCB info of SGX": tdx(info=tcb_info("SGX"), status=None, codes=wrong),
        "identity of SGX": tdx(identity=qe_identity("SGX", isvprodid=2), status=None, codes=wrong),
        "spaces in TCB info": replace(
            good,
            collateral=replace(collateral, tcb_info=collateral.tcb_info.replace(b":", b": ", 1)),
            status=None,
            codes=wrong,
        ),
        "collateral expired": replace(good, at=AT + timedelta(days=30), codes=open_),
        "collateral of the future": replace(good, at=datetime(2026, 11, 9, tzinfo=UTC), codes=open_),
        "TCB info expired": tdx(info=tcb_info(days=5), codes=open_),
        "identity expired": tdx(identity=qe_identity(days=5), codes=open_),
        "TCB info of the future": tdx(info=tcb_info(issued=AT + timedelta(days=1)), codes=open_),
        "PCK revoked": replace(
            good, collateral=PLATFORM.collateral(revoked_pck=[77]), codes=frozenset({"revoked"})
        ),
        "intermediate revoked": replace(
            good, collateral=PLATFORM.collateral(revoked_ca=[2]), codes=frozenset({"revoked"})
        ),
        "TCB signing revoked": replace(
            good, collateral=PLATFORM.collateral(revoked_ca=[4]), codes=frozenset({"revoked"})
        ),
        "foreign root": Case(
            quote=stranger.quote(td_report(TOLD)), collateral=collateral, status=None, codes=chain
        ),
        "collateral of a foreign root": replace(
            good, collateral=stranger.collateral(), status=None, codes=chain
        ),
        "CRL of another CA": replace(
            good, collateral=replace(collateral, pck_crl=shared_pki().crl("processor")), codes=wrong
        ),
        "processor CA": Case(
            quote=Platform(ca="processor", configuration=None).quote(td_report(TOLD)),
            collateral=Platform(ca="processor").collateral(),
        ),
        "padding": replace(good, quote=good.quote + bytes(70)),
    }
    signature = frozenset({"signature-invalid"})
    strange = {
        "MISCSELECT": {"at_16": b"\x01"},
        "attributes": {"at_48": b"\x01"},
        "MRSIGNER": {"at_128": b"\x01" * 32},
        "ISVPRODID": {"at_256": b"\x03"},
    }
    for name, changed in strange.items():
        quote = PLATFORM.quote(td_report(TOLD), qe=changed)
        found[f"quoting enclave of another {name}"] = replace(good, quote=quote, status=None, codes=signature)
    open_mask = changed_copy(qe_identity(), "attributesMask", "F9FFFFFFFFFFFFFF0000000000000000")
    debug = PLATFORM.quote(td_report(TOLD), qe={"at_48": b"\x13"})
    found["debug quoting enclave under an open mask"] = replace(
        tdx(identity=open_mask), quote=debug, status=None, codes=signature
    )
    return found


ZOO = _zoo()
