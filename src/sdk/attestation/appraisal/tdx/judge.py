"""What a policy expects of a TD, check by check (CONFIDENTIAL.md §§2.3, 9.3 steps 7, 11 to 13).

Every check is made and every failure told. `judge_claims` serves each kind that carries a quote of a TD.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

from attestation.appraisal.confidential import demanded, one_of, rules
from attestation.appraisal.dcap import judge_tcb, judged
from attestation.errors import MalformedEvidence
from attestation.evidence import cc_event_log
from attestation.evidence.dcap import QuoteClaims, TDReport, module_fault, module_of
from attestation.reference import Policy
from attestation.reference.confidential import Masked, TdxRules
from attestation.reference.rules import Demand
from attestation.results import Check, Code, Failed, Outcome, Passed, Reported, Subject, TrustClaim

NAMES: Final = judged("TDX")
_CONFIGURATION: Final = TrustClaim.CONFIGURATION
_EXECUTABLES: Final = TrustClaim.EXECUTABLES


def _guest(name: str, claim: TrustClaim = _CONFIGURATION, **says: int) -> Check:
    return Check(name=name, code=Code.GUEST_POLICY, claim=claim, **says)


def _reference(name: str, **says: int) -> Check:
    return Check(name=name, code=Code.REFERENCE_MISMATCH, claim=_EXECUTABLES, if_failed=33, **says)


MODULE: Final = Check(name="tdx-module", claim=TrustClaim.HARDWARE, if_failed=97, code=Code.TCB_NOT_ALLOWED)
MEMORY: Final = _guest("tdx-memory", claim=TrustClaim.RUNTIME_OPAQUE, if_passed=2)
DEBUG: Final = _guest("tdx-debug", if_flagged=32)
SEPT_VE: Final = _guest("tdx-sept-ve")
MIGRATION: Final = _guest("tdx-migration")
SERVICE_TD: Final = _guest("tdx-service-td")
XFAM: Final = _guest("tdx-xfam")
ATTRIBUTES: Final = _guest("tdx-attributes")
PPIDS: Final = Check(
    name="tdx-accepted-platforms",
    claim=TrustClaim.INSTANCE_IDENTITY,
    if_failed=97,
    code=Code.MACHINE_NOT_ALLOWED,
)
MRTD: Final = _reference("tdx-mrtd")
RTMR: Final = tuple(_reference(f"tdx-rtmr{i}") for i in range(4))
MRSEAM: Final = _reference("tdx-mrseam")
MRSIGNERSEAM: Final = _reference("tdx-mrsignerseam")
MRCONFIGID: Final = _reference("tdx-mrconfigid")
MROWNER: Final = _reference("tdx-mrowner")
MROWNERCONFIG: Final = _reference("tdx-mrownerconfig")
LOG: Final = Check(name="tdx-event-log", code=Code.LOG_INVALID, claim=_EXECUTABLES, if_failed=33)
REPLAY: Final = Check(name="tdx-replay", code=Code.REPLAY_MISMATCH, claim=_EXECUTABLES, if_failed=33)
LAUNCH: Final = _reference("tdx-launch", if_passed=3)
REGISTERS: Final = _reference("tdx-registers", if_passed=2)

CHECKS: Final = (
    *NAMES.all,
    *(check for check in list(vars().values()) if isinstance(check, Check)),
    *RTMR,
)
"""All of them."""

SEPT_VE_DISABLE: Final = 28
"""Bit of TDATTRIBUTES."""
MIGRATABLE: Final = 29
"""Bit of TDATTRIBUTES."""
_DEFAULTS: Final = TdxRules()
_NO_DEBUG: Final = "a TD that cannot be debugged"


def judge_claims(
    claims: QuoteClaims,
    at: datetime,
    policy: Policy,
    *,
    ccel: bytes | None = None,
    ccel_table: bytes | None = None,
) -> tuple[list[Outcome], tuple[Subject, ...]]:
    """Return every outcome, and `launch` where a reference value is enforced and matched.

    Collateral and revocation are judged apart, `appraisal.dcap.judge_vouched`: they are also without a policy.

    Args:
        claims: What the quote proves.
        at: The instant to judge at, UTC.
        policy: The policy in force.
        ccel: The event log that came; None where none did.
        ccel_table: The ACPI table that came with it.
    """
    report = td_of(claims)
    stated = rules(policy, "tdx", _DEFAULTS)
    outcomes = [
        *judge_tcb(claims, at, policy, NAMES),
        *_module(claims, report),
        *_guest_policy(report, stated),
        *one_of(PPIDS, stated.accepted_ppids, claims.platform.ppid, "platform"),
        *one_of(MRSEAM, stated.mrseam, report.mr_seam, "TDX module"),
        *one_of(MRSIGNERSEAM, stated.mrsignerseam, report.mr_signer_seam, "signer of the TDX module"),
        *one_of(MRCONFIGID, stated.mrconfigid, report.mr_config_id, "MRCONFIGID"),
        *one_of(MROWNER, stated.mrowner, report.mr_owner, "MROWNER"),
        *one_of(MROWNERCONFIG, stated.mrownerconfig, report.mr_owner_config, "MROWNERCONFIG"),
    ]
    measured = [
        *one_of(MRTD, stated.mrtd, report.mr_td, "MRTD"),
        *(
            outcome
            for i, (check, demand) in enumerate(zip(RTMR, stated.rtmr, strict=True))
            for outcome in one_of(check, demand, report.rtmrs[i], f"RTMR{i}")
        ),
    ]
    outcomes += measured
    logged = _event_log(report, stated, ccel, ccel_table)
    outcomes += logged
    if not stated.has_reference:
        words = "what was launched is not compared: the policy names no reference value"
        return [*outcomes, LAUNCH.flagged(words)], ()
    if any(isinstance(each, Failed | Reported) for each in (*measured, *logged)):
        return outcomes, ()
    replayed = any(isinstance(each, Passed) for each in logged)
    every = replayed and None not in (stated.mrtd, *stated.rtmr)
    return [*outcomes, (REGISTERS if every else LAUNCH).passed()], (Subject.LAUNCH,)


def td_of(claims: QuoteClaims) -> TDReport:
    """Return what the TD reports; a quote of another TEE is refused before."""
    assert isinstance(claims.quote.body, TDReport)
    return claims.quote.body


def _module(claims: QuoteClaims, report: TDReport) -> list[Outcome]:
    """Judge whether the TDX module is Intel's (step 7); a version that is not listed is judged with the TCB."""
    module = module_of(report, claims.vouched.info) if claims.vouched.info is not None else None
    fault = module_fault(report, module) if module is not None else None
    return [MODULE.failed("the TDX module that Intel signed", fault)] if fault is not None else []


def _event_log(
    report: TDReport, stated: TdxRules, ccel: bytes | None, ccel_table: bytes | None
) -> list[Outcome]:
    """Judge the event log by what its replay gives (§10). It must be right where it comes, demanded or not."""
    demand = stated.require_event_log
    if ccel is None:
        if demand is None or not demand.value:
            return []
        return [LOG.told("the event log of the TD", "none", report=demand.report)]
    try:
        table = cc_event_log.parse_table(ccel_table) if ccel_table is not None else None
        log = cc_event_log.parse(ccel)
    except MalformedEvidence as e:
        return [LOG.failed("an event log that can be read", str(e))]
    if table is not None and table.tee != cc_event_log.TDX:
        return [LOG.failed("an event log of TDX", f"one of type {table.tee}")]
    wrong = log.mismatches(report.rtmrs)
    words = "registers as the event log gives them"
    return [REPLAY.failed(words, each) for each in wrong] or [REPLAY.passed(f"{len(log.events)} events")]


def _guest_policy(report: TDReport, stated: TdxRules) -> list[Outcome]:
    found: list[Outcome] = []
    if not report.debug:
        found.append(MEMORY.passed())
    elif stated.allow_debug.value:
        found.append(DEBUG.flagged("a debug TD is accepted: whoever runs the host can read its memory"))
    else:
        words = "a debug TD: whoever runs the host can read its memory"
        found += [check.told(_NO_DEBUG, words, report=stated.allow_debug.report) for check in (DEBUG, MEMORY)]
    sept = stated.require_sept_ve_disable
    if sept.value and not report.has(SEPT_VE_DISABLE):
        found.append(
            SEPT_VE.told(
                "SEPT_VE_DISABLE set",
                "clear: the host can raise exceptions in the guest by taking its pages",
                report=sept.report,
            )
        )
    if report.has(MIGRATABLE) and not stated.allow_migration.value:
        words = "it can move to another host"
        found.append(MIGRATION.told("a TD that stays", words, report=stated.allow_migration.report))
    bound = report.mr_service_td or b""
    if any(bound) and not stated.allow_service_td.value:
        words = f"service TDs are bound to it: {bound.hex()}"
        found.append(SERVICE_TD.told("a TD by itself", words, report=stated.allow_service_td.report))
    found += _masked(XFAM, stated.xfam, report.xfam, "XFAM")
    return found + _masked(ATTRIBUTES, stated.td_attributes, report.td_attributes, "TDATTRIBUTES")


def _masked(check: Check, demand: Demand[Masked] | None, found: bytes, what: str) -> list[Outcome]:
    if demand is None:
        return []
    value, mask = int.from_bytes(found, "little"), demand.value.mask
    wanted = demand.value.value & mask
    words = f"{what} {wanted:#x} under the mask {mask:#x}"
    return demanded(check, demand, value & mask == wanted, words, f"{value & mask:#x}")
