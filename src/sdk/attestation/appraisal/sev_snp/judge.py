"""What a policy expects of an SEV-SNP report, check by check (CONFIDENTIAL.md §§2.3, 8.3 steps 6, 10, 11).

Every check is made and every failure told. `judge_claims` serves each kind that carries a report.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from attestation.appraisal.confidential import collateral_rules, demanded, one_of, rules
from attestation.endorsements.revocation import Revocation
from attestation.evidence.sev_snp import NO_MIGRATION_AGENT, SevSnpClaims
from attestation.evidence.sev_snp.verify import AUTHENTICITY
from attestation.reference import Policy
from attestation.reference.confidential import IdBlockRules, SevSnpRules
from attestation.reference.rules import Demand
from attestation.results import Check, Code, Failed, Outcome, Reported, Subject, TrustClaim

_CONFIGURATION: Final = TrustClaim.CONFIGURATION
_EXECUTABLES: Final = TrustClaim.EXECUTABLES
_HARDWARE: Final = TrustClaim.HARDWARE


def _guest(name: str, claim: TrustClaim = _CONFIGURATION, **says: int) -> Check:
    return Check(name=name, code=Code.GUEST_POLICY, claim=claim, **says)


def _reference(name: str, **says: int) -> Check:
    return Check(name=name, code=Code.REFERENCE_MISMATCH, claim=_EXECUTABLES, if_failed=33, **says)


def _tcb(name: str, **says: int) -> Check:
    return Check(name=name, code=Code.TCB_NOT_ALLOWED, claim=_HARDWARE, **says)


IDENTITY: Final = Check(
    name="snp-chip",
    claim=TrustClaim.INSTANCE_IDENTITY,
    if_failed=97,
    if_passed=2,
    code=Code.MACHINE_NOT_ALLOWED,
)
REVOCATION: Final = Check(name="snp-revocation", claim=_HARDWARE, code=Code.REVOKED)
TEST_ONLY: Final = Check(name="snp-test-only", claim=_HARDWARE, if_flagged=32)
NOTES: Final = Check(name="snp-notes")
REGRESSED: Final = Check(name="snp-tcb-regressed", claim=_HARDWARE, if_flagged=32)
TCB_ORDER: Final = _tcb("snp-tcb-order", if_failed=97)
PROVISIONAL: Final = _tcb("snp-provisional-firmware", if_flagged=32)
MIN_TCB: Final = _tcb("snp-minimum-tcb", if_failed=97)
MEMORY: Final = _guest("snp-memory", claim=TrustClaim.RUNTIME_OPAQUE, if_passed=2)
DEBUG: Final = _guest("snp-debug", if_flagged=32)
MIGRATION: Final = _guest("snp-migration-agent")
VMPL: Final = _guest("snp-vmpl")
SMT: Final = _guest("snp-smt")
SINGLE_SOCKET: Final = _guest("snp-single-socket")
PLATFORM_SET: Final = _guest("snp-platform-set")
PLATFORM_CLEAR: Final = _guest("snp-platform-clear")
SIGNING_KEY: Final = _guest("snp-signing-key", claim=_HARDWARE)
CSP_ID: Final = _guest("snp-csp-id", claim=_HARDWARE)
REPORT_VERSION: Final = _guest("snp-report-version", claim=_HARDWARE)
MITIGATIONS: Final = _guest("snp-mitigations", claim=_HARDWARE)
CHIP_IDS: Final = Check(
    name="snp-allowed-chips",
    claim=TrustClaim.INSTANCE_IDENTITY,
    if_failed=97,
    code=Code.MACHINE_NOT_ALLOWED,
)
MEASUREMENT: Final = _reference("snp-measurement", if_passed=3)
HOST_DATA: Final = _reference("snp-host-data")
ID_BLOCK: Final = _reference("snp-id-block")
ID_KEY: Final = _reference("snp-id-key")
AUTHOR_KEY: Final = _reference("snp-author-key")
FAMILY_ID: Final = _reference("snp-family-id")
IMAGE_ID: Final = _reference("snp-image-id")
GUEST_SVN: Final = _reference("snp-guest-svn")
LAUNCH: Final = _reference("snp-launch")

CHECKS: Final = (
    *AUTHENTICITY,
    *(check for check in list(vars().values()) if isinstance(check, Check) and check not in AUTHENTICITY),
)
"""All of them."""

_DEFAULTS: Final = SevSnpRules()
_KNOWN_PLATFORM_BITS: Final = 0b1011_1111
_SMT, _MIGRATE_MA, _DEBUG, _SINGLE_SOCKET = 16, 18, 19, 20
"""Bits of POLICY."""
_PLATFORM_SMT: Final = 1
_NO_DEBUG: Final = "a guest that cannot be debugged"


def judge_claims(claims: SevSnpClaims, policy: Policy) -> tuple[list[Outcome], tuple[Subject, ...]]:
    """Return every outcome, and `launch` where a reference value is enforced and matched."""
    stated = rules(policy, "sev_snp", _DEFAULTS)
    outcomes = [
        *judge_revocation(claims, policy),
        *_tcbs(claims, stated),
        *_guest_policy(claims, stated),
        *_platform(claims, stated),
    ]
    launched = _launched(claims, stated)
    outcomes += launched
    if not stated.has_reference:
        return [
            *outcomes,
            LAUNCH.flagged("what was launched is not compared: the policy names no reference value"),
        ], ()
    matched = not any(isinstance(each, Failed | Reported) for each in launched)
    return outcomes, (Subject.LAUNCH,) if matched else ()


def judge_revocation(claims: SevSnpClaims, policy: Policy | None) -> list[Outcome]:
    """Return whether AMD withdrew the intermediate (step 6); of a test kit also that it is one."""
    found: list[Outcome] = []
    if claims.test_only:
        found.append(TEST_ONLY.flagged("TEST ONLY: software made this report, no processor did"))
    status, required = claims.revocation, collateral_rules(policy).require_revocation
    if status.status is Revocation.REVOKED:
        found.append(REVOCATION.failed("an intermediate of AMD that is good", status.reason))
    elif status.status is Revocation.GOOD:
        found.append(REVOCATION.passed(status.reason))
    elif required.value and not required.report:
        found.append(REVOCATION.undecided(f"AMD's revocation list for {claims.product}: {status.reason}"))
    return found


def _tcbs(claims: SevSnpClaims, stated: SevSnpRules) -> list[Outcome]:
    found: list[Outcome] = []
    ordered = (
        ("reported", claims.reported, "committed", claims.committed),
        ("committed", claims.committed, "current", claims.current),
        ("launch", claims.launch, "current", claims.current),
    )
    for low, lower, high, higher in ordered:
        above = higher.lower_than(lower)
        if above:
            found.append(
                TCB_ORDER.failed(
                    f"{low} TCB at most the {high} TCB {higher}", f"{lower}: {', '.join(above)} higher"
                )
            )
    if not found:
        found.append(TCB_ORDER.passed())
    if claims.committed != claims.current:
        allowed, words = stated.allow_provisional_firmware, f"current TCB {claims.current}"
        if allowed.value:
            found.append(
                PROVISIONAL.flagged(
                    f"provisional firmware is accepted: {words}, committed {claims.committed}"
                )
            )
        else:
            found.append(
                PROVISIONAL.told(
                    f"firmware that is committed: {claims.committed}", words, report=allowed.report
                )
            )
    if stated.min_tcb is not None:
        found += _minimum(claims, stated.min_tcb)
    return found


def _minimum(claims: SevSnpClaims, demand: Demand[Mapping[str, Mapping[str, int]]]) -> list[Outcome]:
    line = claims.product.lower()
    lowest = demand.value.get(line)
    if lowest is None:
        return [MIN_TCB.told(f"a minimum for {line}", "none in the policy", report=demand.report)]
    short = [
        f"{name} {component} {value}, at least {lowest[component]}"
        for name, tcb in (
            ("reported", claims.reported),
            ("committed", claims.committed),
            ("launch", claims.launch),
        )
        for component, value in tcb.components().items()
        if value < lowest.get(component, 0)
    ]
    words = " ".join(f"{name} {value}" for name, value in lowest.items())
    return demanded(MIN_TCB, demand, not short, f"{line}: {words}", "; ".join(short))


def _guest_policy(claims: SevSnpClaims, stated: SevSnpRules) -> list[Outcome]:
    report = claims.report
    found: list[Outcome] = []
    if not report.allows(_DEBUG):
        found.append(MEMORY.passed())
    elif stated.allow_debug.value:
        found.append(DEBUG.flagged("a debug guest is accepted: whoever runs the host can read its memory"))
    else:
        words = "a debug guest: whoever runs the host can read its memory"
        found += [check.told(_NO_DEBUG, words, report=stated.allow_debug.report) for check in (DEBUG, MEMORY)]
    agent = report.allows(_MIGRATE_MA) or report.report_id_ma != NO_MIGRATION_AGENT
    if agent and not stated.allow_migration_agent.value:
        found.append(
            MIGRATION.told("no migration agent", "one is allowed", report=stated.allow_migration_agent.report)
        )
    vmpl = stated.max_vmpl
    found += demanded(
        VMPL, vmpl, report.vmpl <= vmpl.value, f"VMPL at most {vmpl.value}", f"VMPL {report.vmpl}"
    )
    smt = stated.require_smt_disabled
    if smt is not None and smt.value:
        off = not report.allows(_SMT) and not report.platform_info & _PLATFORM_SMT
        found += demanded(SMT, smt, off, "SMT neither allowed nor on", "SMT is allowed or on")
    single = stated.require_single_socket
    if single is not None and single.value:
        found += demanded(
            SINGLE_SOCKET,
            single,
            report.allows(_SINGLE_SOCKET),
            "one socket only",
            "several sockets are allowed",
        )
    return found


def _platform(claims: SevSnpClaims, stated: SevSnpRules) -> list[Outcome]:
    report, info = claims.report, claims.report.platform_info
    found: list[Outcome] = []
    must_set, must_clear = stated.platform_must_set, stated.platform_must_clear
    if must_set is not None:
        holds = info & must_set.value == must_set.value
        found += demanded(
            PLATFORM_SET, must_set, holds, f"bits {must_set.value:#x} of PLATFORM_INFO", f"{info:#x}"
        )
    if must_clear is not None:
        holds = not info & must_clear.value
        found += demanded(PLATFORM_CLEAR, must_clear, holds, f"none of {must_clear.value:#x}", f"{info:#x}")
    unknown = info & ~_KNOWN_PLATFORM_BITS
    if unknown:
        found.append(NOTES.flagged(f"PLATFORM_INFO has bits that are not known here: {unknown:#x}"))
    key, is_key = stated.signing_key, "vlek" if claims.vek.is_vlek else "vcek"
    if key.value != "any":
        found += demanded(
            SIGNING_KEY, key, key.value == is_key, f"signed by a {key.value.upper()}", is_key.upper()
        )
    if stated.csp_ids is not None:
        csp_id = claims.vek.csp_id
        words = ", ".join(sorted(stated.csp_ids.value))
        found += demanded(CSP_ID, stated.csp_ids, csp_id in stated.csp_ids.value, words, csp_id or "a VCEK")
    found += one_of(CHIP_IDS, stated.allowed_chip_ids, claims.chip, "processor")
    version, mitigations = stated.min_report_version, stated.min_launch_mit_vector
    if version is not None:
        holds = report.version >= version.value
        found += demanded(
            REPORT_VERSION, version, holds, f"at least version {version.value}", str(report.version)
        )
    if mitigations is not None:
        # A vector is a set of mitigations: each that is asked for must be there.
        holds = report.launch_mit_vector & mitigations.value == mitigations.value
        found += demanded(
            MITIGATIONS,
            mitigations,
            holds,
            f"mitigations {mitigations.value:#x}",
            f"{report.launch_mit_vector:#x}",
        )
    return found


def _launched(claims: SevSnpClaims, stated: SevSnpRules) -> list[Outcome]:
    report = claims.report
    svn = stated.min_guest_svn
    found = [
        *one_of(MEASUREMENT, stated.measurement, report.measurement, "launch digest"),
        *one_of(HOST_DATA, stated.host_data, report.host_data, "HOST_DATA"),
        *_id_block(claims, stated.id_block),
    ]
    if svn is not None:
        holds = report.guest_svn >= svn.value
        found += demanded(GUEST_SVN, svn, holds, f"guest SVN at least {svn.value}", str(report.guest_svn))
    return found


def _id_block(claims: SevSnpClaims, stated: IdBlockRules) -> list[Outcome]:
    report = claims.report
    author = report.author_key_digest if report.author_key_en else b""
    found = [
        *one_of(ID_KEY, stated.id_key_digests, report.id_key_digest, "identity key"),
        *one_of(AUTHOR_KEY, stated.author_key_digests, author, "author key"),
        *one_of(FAMILY_ID, stated.family_id, report.family_id, "family"),
        *one_of(IMAGE_ID, stated.image_id, report.image_id, "image"),
    ]
    if stated.require is not None and stated.require.value:
        words = "an identity block"
        found += demanded(ID_BLOCK, stated.require, any(report.id_key_digest), words, "none")
    return found
