"""What policies expect of TDs, enclaves and their platforms: each demand holds, fails alone, and is told in words."""

from __future__ import annotations

import struct
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any

import pytest

from attestation.appraisal.confidential import Approved
from attestation.appraisal.kind import Kind
from attestation.appraisal.sgx import SGX
from attestation.appraisal.tdx import TDX
from attestation.endorsements.certificate import parse_certificate
from attestation.endorsements.intel import Endorsements
from attestation.reference import IDENTITY_ONLY, Policy
from attestation.reference.confidential import (
    CollateralRules,
    IdentityRules,
    Masked,
    SgxRules,
    TcbRules,
    TdxRules,
)
from attestation.reference.rules import Demand
from attestation.results import Code, Failed, Flagged, Outcome, Passed, Reported, Subject, Undecided
from attestation_testing.tee.intel import MRTD, Platform, module, platform_level, tcb_info, td_report
from attestation_testing.tee.intel import level as svn_level
from tests.unit.evidence import test_cc_event_log as log_kit
from tests.unit.evidence.dcap_zoo import (
    AT,
    CONFIG,
    HARDEN,
    OLD,
    PLATFORM,
    TOLD,
    UP,
    ZOO,
    Case,
    sgx,
    tdx,
)
from tests.vectors.confidential.dcap import codes, expected, item

ROOT = parse_certificate(PLATFORM.pki.root)
KINDS: dict[str, Kind[Any, Any, Any]] = {"TDX": TDX, "SGX": SGX}


def policy(**blocks: Any) -> Policy:
    """Return a policy with these blocks."""
    return replace(IDENTITY_ONLY, blocks=MappingProxyType(blocks))


def must(value: Any, *, report: bool = False) -> Demand[Any]:
    return Demand(value, report=report)


def judge(
    case: Case, rules: Policy = IDENTITY_ONLY, *, at: datetime = AT, **more: Any
) -> tuple[list[Outcome], tuple[Subject, ...]]:
    """Return all outcomes and what is as expected."""
    kind, evidence = KINDS[case.tee], KINDS[case.tee].parse(item(case.quote))
    compared = replace(expected(case.quote, at, case.collateral, root=ROOT), **more)
    claims = kind.verify(evidence, compared)
    followed, _ = kind.follow(claims, compared, rules)
    judged, subjects = kind.judge(claims, evidence, compared, rules)
    return [*followed, *judged], subjects


def told(case: Case, check: str, rules: Policy = IDENTITY_ONLY, **more: Any) -> list[Outcome]:
    """Return the outcomes of one check."""
    return [each for each in judge(case, rules, **more)[0] if each.check == check]


def kinds(case: Case, check: str, rules: Policy = IDENTITY_ONLY, **more: Any) -> list[type]:
    """Return what they are."""
    return [type(each) for each in told(case, check, rules, **more)]


BYTES = {
    "mrtd": ("tdx-mrtd", MRTD),
    "mrseam": ("tdx-mrseam", b"\x5e" * 48),
    "mrsignerseam": ("tdx-mrsignerseam", bytes(48)),
    "mrconfigid": ("tdx-mrconfigid", bytes(48)),
    "mrowner": ("tdx-mrowner", bytes(48)),
    "mrownerconfig": ("tdx-mrownerconfig", bytes(48)),
    "accepted_ppids": ("tdx-accepted-platforms", PLATFORM.ppid),
}


@pytest.mark.parametrize("member", BYTES)
def test_values_of_a_td(member: str) -> None:
    """One of those named; another fails, or is only reported."""
    check, good = BYTES[member]
    for value, report, outcome in (
        (good, False, Passed),
        (b"\x99" * len(good), False, Failed),
        (b"\x99" * len(good), True, Reported),
    ):
        stated: dict[str, Any] = {member: must(frozenset({value}), report=report)}
        assert kinds(tdx(), check, policy(tdx=TdxRules(**stated))) == [outcome]


@pytest.mark.parametrize("index", range(4))
def test_registers(index: int) -> None:
    """Each by itself; a reference value that matches is what was launched."""
    value = bytes([index + 1]) * 48
    fields: dict[str, Any] = {f"rtmr{index}": value}
    case = tdx(**fields)
    stated: list[Any] = [None] * 4
    stated[index] = must(frozenset({value}))
    rules = policy(tdx=TdxRules(rtmr=tuple(stated)))
    outcomes, subjects = judge(case, rules)
    assert subjects == (Subject.LAUNCH,)
    assert next(each for each in outcomes if each.check == "tdx-launch").says is not None
    assert judge(tdx(), rules)[1] == ()
    assert kinds(tdx(), f"tdx-rtmr{index}", rules) == [Failed]


def test_without_a_reference_value_nothing_is_affirmed() -> None:
    """It is flagged; a value that is only reported is none."""
    for rules in (IDENTITY_ONLY, policy(tdx=TdxRules(mrtd=must(frozenset({MRTD}), report=True)))):
        outcomes, subjects = judge(tdx(), rules)
        assert subjects == ()
        assert [type(each) for each in outcomes if each.check == "tdx-launch"] == [Flagged]


def test_bits() -> None:
    """XFAM and TDATTRIBUTES under masks, little-endian."""
    xfam = 0x602E7
    for rule, check, outcome in (
        (TdxRules(xfam=must(Masked(value=xfam, mask=0xFFFFF))), "tdx-xfam", Passed),
        (TdxRules(xfam=must(Masked(value=0, mask=1 << 40))), "tdx-xfam", Passed),
        (TdxRules(xfam=must(Masked(value=0, mask=1))), "tdx-xfam", Failed),
        (TdxRules(td_attributes=must(Masked(value=1 << 28, mask=1 << 28))), "tdx-attributes", Passed),
        (TdxRules(td_attributes=must(Masked(value=1 << 31, mask=1 << 31))), "tdx-attributes", Failed),
    ):
        assert kinds(tdx(), check, policy(tdx=rule)) == [outcome]


@pytest.mark.parametrize(
    ("case", "check", "loose", "flagged"),
    [
        ("debug", "tdx-debug", {"allow_debug": must(value=True)}, [Flagged]),
        ("SEPT_VE_DISABLE clear", "tdx-sept-ve", {"require_sept_ve_disable": must(value=False)}, []),
        ("migratable", "tdx-migration", {"allow_migration": must(value=True)}, []),
        ("service TD", "tdx-service-td", {"allow_service_td": must(value=True)}, []),
    ],
)
def test_how_a_td_may_be_watched(case: str, check: str, loose: dict[str, Any], flagged: list[type]) -> None:
    """Refused by default, allowed or reported where the policy says so."""
    assert kinds(ZOO[case], check) == [Failed]
    assert kinds(tdx(), check) == []
    assert kinds(ZOO[case], check, policy(tdx=TdxRules(**loose))) == flagged
    (name, demand), *_ = loose.items()
    stated: dict[str, Any] = {name: must(not demand.value, report=True)}
    reported = policy(tdx=TdxRules(**stated))
    assert kinds(ZOO[case], check, reported) == [Reported]


def test_memory_is_affirmed_only_where_nobody_can_look() -> None:
    """An accepted debug TD or enclave affirms nothing."""
    for good, open_, name in ((tdx(), ZOO["debug"], "tdx"), (sgx(), ZOO["debug enclave"], "sgx")):
        assert kinds(good, f"{name}-memory") == [Passed]
        assert kinds(open_, f"{name}-memory") == [Failed]
        loose = {"tdx": TdxRules, "sgx": SgxRules}[name](allow_debug=must(value=True))
        assert kinds(open_, f"{name}-memory", policy(**{name: loose})) == []
        assert kinds(open_, f"{name}-debug", policy(**{name: loose})) == [Flagged]


def test_enclaves() -> None:
    """MRENCLAVE, MRSIGNER, ISVPRODID and ISVSVN."""
    case = sgx(at_256=b"\x07\x00", at_258=b"\x05\x00")
    for rule, check, outcome, subjects in (
        (SgxRules(mrenclave=must(frozenset({b"\xe1" * 32}))), "sgx-mrenclave", Passed, (Subject.LAUNCH,)),
        (SgxRules(mrenclave=must(frozenset({bytes(32)}))), "sgx-mrenclave", Failed, ()),
        (SgxRules(mrsigner=must(frozenset({b"\x51" * 32}))), "sgx-mrsigner", Passed, (Subject.LAUNCH,)),
        (SgxRules(mrsigner=must(frozenset({bytes(32)}))), "sgx-mrsigner", Failed, ()),
        (SgxRules(isv_prod_id=must(7)), "sgx-product", Passed, ()),
        (SgxRules(isv_prod_id=must(8)), "sgx-product", Failed, ()),
        (SgxRules(min_isv_svn=must(5)), "sgx-svn", Passed, ()),
        (SgxRules(min_isv_svn=must(6)), "sgx-svn", Failed, ()),
        (SgxRules(), "sgx-launch", Flagged, ()),
    ):
        outcomes, found = judge(case, policy(sgx=rule))
        assert [type(each) for each in outcomes if each.check == check] == [outcome]
        assert found == subjects


@pytest.mark.threat("T195")
def test_status_that_a_policy_accepts() -> None:
    """UpToDate passes; what is accepted beside it is a warning; nobody may accept Unsupported or Revoked."""
    old = tdx(OLD, status=OLD)
    assert kinds(tdx(), "tdx-tcb") == [Passed]
    assert kinds(old, "tdx-tcb") == [Failed]
    accepts = policy(tcb=TcbRules(accepted_status=must(frozenset({UP, OLD}))))
    (flagged,) = told(old, "tdx-tcb", accepts)
    assert isinstance(flagged, Flagged)
    assert flagged.says is not None
    assert flagged.says[1] == 32
    reports = policy(tcb=TcbRules(accepted_status=must(frozenset({UP}), report=True)))
    assert kinds(old, "tdx-tcb", reports) == [Reported]
    everything = policy(
        tcb=TcbRules(accepted_status=must(frozenset({UP, "Revoked", "Unsupported"}), report=True))
    )
    assert kinds(ZOO["platform Revoked"], "tdx-tcb", everything) == [Failed]
    assert kinds(ZOO["no level of the platform"], "tdx-tcb-level", everything) == [Failed]


def test_words_about_a_tcb() -> None:
    """Which part is behind, by how much, since when, what that leaves open, and what is short."""
    modules = [
        module(
            "TDX_01",
            levels=[
                svn_level(6, date="2025-08-13T00:00:00Z"),
                svn_level(5, OLD, date="2024-03-13T00:00:00Z", advisories=("INTEL-SA-1", "INTEL-SA-2")),
            ],
        )
    ]
    case = tdx(
        info=tcb_info(tdxModuleIdentities=modules),
        tee_tcb_svn=b"\x05\x01\x06" + bytes(13),
        status=OLD,
    )
    (failed,) = told(case, "tdx-tcb")
    assert isinstance(failed, Failed)
    assert failed.found == (
        "OutOfDate: TDX module 1.5.05 is one level behind: 2 advisories since 2025-08, INTEL-SA-1, INTEL-SA-2 "
        "(SVN 5; newest SVN 6)"
    )
    assert failed.expected == "a TCB that is UpToDate"
    (below,) = told(ZOO["no level of the platform"], "tdx-tcb-level")
    assert "platform is below every level that Intel lists (SGX component 1 at 2 of 3" in str(below)
    (pce,) = told(ZOO["PCE SVN below"], "tdx-tcb-level")
    assert "PCE SVN 11 of 12" in str(pce)
    (unlisted,) = told(ZOO["module of a version that is not listed"], "tdx-tcb-level")
    assert "TDX module TDX_03.05 is of a version that Intel does not list" in str(unlisted)
    (many,) = told(
        tdx(
            info=tcb_info(
                tcbLevels=[
                    *(
                        platform_level(sgx=(9 - i, 9), date=f"202{5 - i // 2}-01-01T00:00:00Z")
                        for i in range(7)
                    ),
                    platform_level(status=OLD),
                ]
            ),
            status=OLD,
        ),
        "tdx-tcb",
    )
    assert "platform is 7 levels behind since 2022-01 (" in str(many)
    (hardened,) = told(ZOO[f"SGX {HARDEN}"], "sgx-tcb")
    assert str(hardened.found) == "SWHardeningNeeded, platform level of 2025-08-13; 1 advisory, INTEL-SA-9"  # type: ignore[union-attr]  # a Failed, or the test fails


def test_days_of_grace() -> None:
    """From the day on which a level was overtaken; for platform and quoting enclave apart; OutOfDate and no more."""
    newer = platform_level(sgx=(3, 3), date="2026-10-01T00:00:00Z")
    mine = platform_level(status=OLD, date="2020-01-01T00:00:00Z")
    case = tdx(info=tcb_info(tcbLevels=[newer, mine]), status=OLD)
    day = timedelta(days=1)
    overtaken = datetime(2026, 10, 1, tzinfo=UTC)
    days = (AT - overtaken) // day

    def grace(**rules: Any) -> list[type]:
        return kinds(case, "tdx-tcb", policy(tcb=TcbRules(**rules)))

    assert grace(platform_grace_days=must(days)) == [Flagged]
    assert grace(platform_grace_days=must(days - 1)) == [Failed]
    assert grace(qe_grace_days=must(days)) == [Failed]
    (flagged,) = told(case, "tdx-tcb", policy(tcb=TcbRules(platform_grace_days=must(days + 1))))
    assert "accepted until 2026-11-23" in str(flagged)
    # Without OutOfDate it would need configuration, which is another demand.
    configured = tdx(
        info=tcb_info(tcbLevels=[newer, platform_level(status="OutOfDateConfigurationNeeded")]),
        status="OutOfDateConfigurationNeeded",
    )
    lenient = TcbRules(platform_grace_days=must(9999))
    assert kinds(configured, "tdx-tcb", policy(tcb=lenient)) == [Failed]
    both = replace(lenient, accepted_status=must(frozenset({UP, CONFIG})))
    assert kinds(configured, "tdx-tcb", policy(tcb=both)) == [Flagged]
    # A level that is itself the newest was never overtaken; what is not OutOfDate has no grace.
    assert kinds(tdx(OLD, status=OLD), "tdx-tcb", policy(tcb=lenient)) == [Failed]
    assert kinds(tdx(CONFIG, status=CONFIG), "tdx-tcb", policy(tcb=lenient)) == [Failed]


def test_dates_assessments_and_advisories() -> None:
    """The oldest part counts; advisories of any part."""
    early, late = datetime(2025, 8, 13, tzinfo=UTC), datetime(2025, 8, 14, tzinfo=UTC)
    advised = tdx(HARDEN, status=HARDEN)
    for case, rule, check, outcome in (
        (tdx(), TcbRules(min_tcb_date=must(early)), "tdx-tcb-date", Passed),
        (tdx(), TcbRules(min_tcb_date=must(late)), "tdx-tcb-date", Failed),
        (tdx(), TcbRules(min_tcb_evaluation_data_number=must(20)), "tdx-tcb-evaluation", Passed),
        (tdx(), TcbRules(min_tcb_evaluation_data_number=must(21)), "tdx-tcb-evaluation", Failed),
        (tdx(), TcbRules(reject_advisories=must(frozenset({"INTEL-SA-1"}))), "tdx-advisories", Passed),
        (advised, TcbRules(reject_advisories=must(frozenset({"INTEL-SA-1"}))), "tdx-advisories", Failed),
    ):
        assert kinds(case, check, policy(tcb=rule)) == [outcome]


def test_how_a_platform_is_configured() -> None:
    """As its certificate tells; one that does not tell holds no demand."""
    silent = Platform(ca="processor", configuration=None)
    quiet = Case(quote=silent.quote(td_report(TOLD)), collateral=silent.collateral())
    check = "tdx-platform-configuration"
    for case, rule, outcomes in (
        (tdx(), TcbRules(), []),
        (tdx(), TcbRules(allow_cached_keys=must(value=False)), [Failed]),
        (tdx(), TcbRules(allow_smt=must(value=False), allow_dynamic_platform=must(value=False)), []),
        (tdx(), TcbRules(allow_smt=must(value=True)), []),
        (quiet, TcbRules(allow_smt=must(value=False)), [Failed]),
        (quiet, TcbRules(allow_dynamic_platform=must(value=False, report=True)), [Reported]),
    ):
        assert kinds(case, check, policy(tcb=rule)) == outcomes


def test_collateral_that_may_be_older() -> None:
    """Hours stretch TCB info and identity; never a revocation list, unless none is required."""
    case, late = tdx(), AT + timedelta(days=19)
    open_ = [Undecided]
    for hours, required, collateral, revocation, tcb in (
        (0, True, open_, open_, []),
        (48, True, [Passed], open_, [Passed]),
        (48, False, [Passed], [], [Passed]),
        (0, False, open_, [], []),
    ):
        rules = policy(
            collateral=CollateralRules(max_staleness_hours=hours, require_revocation=must(value=required))
        )
        assert kinds(case, "tdx-collateral", rules, at=late) == collateral
        assert kinds(case, "tdx-revocation", rules, at=late) == revocation
        assert kinds(case, "tdx-tcb", rules, at=late) == tcb
    reports = policy(collateral=CollateralRules(require_revocation=must(value=True, report=True)))
    assert kinds(case, "tdx-revocation", reports, at=late) == []


def test_who_is_revoked_stays_revoked() -> None:
    """Also by a list that is due for replacement, and without a policy."""
    for name in ("PCK revoked", "intermediate revoked", "TCB signing revoked"):
        (failed, *_) = told(ZOO[name], "tdx-revocation", at=AT + timedelta(days=60))
        assert isinstance(failed, Failed)
        evidence = TDX.parse(item(ZOO[name].quote))
        compared = expected(ZOO[name].quote, AT, ZOO[name].collateral, root=ROOT)
        followed, _ = TDX.follow(TDX.verify(evidence, compared), compared, None)
        assert "revoked" in codes(list(followed))


def test_the_platform_that_an_operator_approved() -> None:
    """PPID: equal, another, none stored, only observed."""
    case = tdx()
    for more, rules, outcome in (
        ({"approved": Approved(chip=PLATFORM.ppid)}, IDENTITY_ONLY, Passed),
        ({"approved": Approved(chip=bytes(16))}, IDENTITY_ONLY, Failed),
        ({}, IDENTITY_ONLY, Undecided),
        ({}, policy(identity=IdentityRules(mode="observed")), Flagged),
    ):
        assert kinds(case, "tdx-platform", rules, **more) == [outcome]
    (failed,) = told(case, "tdx-platform", approved=Approved(chip=bytes(15) + b"\x01"))
    assert next(each.code for each in TDX.checks if each.name == failed.check) is Code.MACHINE_NOT_ALLOWED


def test_another_status_than_before_is_told() -> None:
    """Of the same platform, with the assessments; not of another one, nor where nothing changed."""
    before = {"ppid": PLATFORM.ppid.hex(), "tcb_status": UP, "tcb_evaluation_data_number": 19}
    old = tdx(OLD, status=OLD)
    (flagged,) = told(old, "tdx-tcb-changed", before=before)
    assert flagged.note == "the TCB was UpToDate by Intel's assessment 19, is OutOfDate by assessment 20"  # type: ignore[union-attr]  # a Flagged, or the test fails
    for case, known in (
        (tdx(), before),
        (old, before | {"ppid": "00"}),
        (old, {"ppid": PLATFORM.ppid.hex()}),
        (old, None),
        (replace(old, collateral=replace(old.collateral, tcb_info=None)), before),
    ):
        assert kinds(case, "tdx-tcb-changed", before=known) == []


def test_what_is_kept_and_who_is_seen() -> None:
    """State for operators, rules and learning; two results are alike where it is the same."""
    for case in (tdx(mrconfigid=b"\x07" * 48), sgx()):
        kind = KINDS[case.tee]
        compared = expected(case.quote, AT, case.collateral, root=ROOT)
        claims = kind.verify(kind.parse(item(case.quote)), compared)
        _, found = kind.follow(claims, compared, None)
        assert found.state is not None
        assert found.state["ppid"] == PLATFORM.ppid.hex()
        assert found.state["tcb_status"] == UP
        assert (found.digest, tuple(found.events)) == (None, ())
        assert kind.alike(found, IDENTITY_ONLY) == kind.alike(found, IDENTITY_ONLY)
        seen = kind.hardware(claims)
        assert seen is not None
        assert (seen.tee, seen.chip) == (case.tee.lower(), PLATFORM.ppid)
        assert seen.guest == (b"\x07" * 48 if case.tee == "TDX" else b"")
        bare = kind.verify(
            kind.parse(item(case.quote)),
            replace(compared, endorsements=Endorsements(root=ROOT, collateral=None)),
        )
        _, without = kind.follow(bare, compared, None)
        assert "tcb_status" not in (without.state or {})


def test_an_enclave_below_every_level_is_told_of_its_own_components() -> None:
    """Of SGX alone: a quote of an enclave has no components of a TDX module."""
    case = sgx()
    info = tcb_info("SGX", tcbLevels=[platform_level(sgx=(3, 2))])
    (below,) = told(replace(case, collateral=PLATFORM.collateral("SGX", info=info)), "sgx-tcb-level")
    assert "SGX component 1 at 2 of 3" in str(below)
    assert "TDX" not in str(below)


def test_only_a_test_is_called_one() -> None:
    """What ends in Intel's own root is not flagged."""
    compared = expected(tdx().quote, AT, tdx().collateral, root=ROOT)
    claims = TDX.verify(TDX.parse(item(tdx().quote)), compared)
    for test_only in (True, False):
        followed, _ = TDX.follow(replace(claims, test_only=test_only), compared, None)
        assert any(each.check == "tdx-test-only" for each in followed) is test_only


def test_padding_is_told() -> None:
    """How many bytes were cut off."""
    assert "70 bytes" in str(told(ZOO["padding"], "tdx-notes"))
    assert told(tdx(), "tdx-notes") == []
    assert kinds(tdx(), "tdx-test-only") == [Flagged]


def test_event_logs() -> None:
    """A log that comes must be right, demanded or not; one that is demanded must come."""
    register = log_kit.extended(log_kit.ONE)
    good = log_kit.log(log_kit.event(1, 1, log_kit.ONE))
    table = struct.pack("<4sI28sBBHQQ", b"CCEL", 56, bytes(28), 2, 0, 0, 4096, 0)
    demands = policy(tdx=TdxRules(require_event_log=must(value=True)))

    def found(case: Case, rules: Policy = IDENTITY_ONLY, **members: bytes) -> list[tuple[str, str]]:
        evidence = TDX.parse(item(case.quote, **members))
        compared = expected(case.quote, AT, case.collateral, root=ROOT)
        judged, _ = TDX.judge(TDX.verify(evidence, compared), evidence, compared, rules)
        names = ("tdx-event-log", "tdx-replay")
        return [(each.check, type(each).__name__) for each in judged if each.check in names]

    matching = tdx(rtmr0=register)
    assert found(matching) == []
    assert found(matching, demands) == [("tdx-event-log", "Failed")]
    reports = policy(tdx=TdxRules(require_event_log=must(value=True, report=True)))
    assert found(matching, reports) == [("tdx-event-log", "Reported")]
    assert found(matching, policy(tdx=TdxRules(require_event_log=must(value=False)))) == []
    for rules in (IDENTITY_ONLY, demands):
        assert found(matching, rules, ccel=good) == [("tdx-replay", "Passed")]
        assert found(matching, rules, ccel=good, ccel_table=table) == [("tdx-replay", "Passed")]
        assert found(tdx(), rules, ccel=good) == [("tdx-replay", "Failed")]
        assert found(matching, rules, ccel=b"x") == [("tdx-event-log", "Failed")]
        assert found(matching, rules, ccel=good, ccel_table=b"x") == [("tdx-event-log", "Failed")]
        other = table[:36] + b"\x01" + table[37:]
        assert found(matching, rules, ccel=good, ccel_table=other) == [("tdx-event-log", "Failed")]


def test_all_registers_with_their_log() -> None:
    """MRTD and every RTMR pinned and replayed affirm all that ran: 2; less affirms the boot: 3."""
    register = log_kit.extended(log_kit.ONE)
    case = tdx(rtmr0=register)
    evidence = TDX.parse(item(case.quote, ccel=log_kit.log(log_kit.event(1, 1, log_kit.ONE))))
    bare = TDX.parse(item(case.quote))
    compared = expected(case.quote, AT, case.collateral, root=ROOT)
    zero = must(frozenset({bytes(48)}))
    every = TdxRules(mrtd=must(frozenset({MRTD})), rtmr=(must(frozenset({register})), zero, zero, zero))
    for sent, rules, value in (
        (evidence, every, 2),
        (bare, every, 3),
        (evidence, replace(every, mrtd=None), 3),
    ):
        judged, subjects = TDX.judge(TDX.verify(sent, compared), sent, compared, policy(tdx=rules))
        said = [
            each.says[1] for each in judged if each.check in ("tdx-launch", "tdx-registers") and each.says
        ]
        assert (said, subjects) == ([value], (Subject.LAUNCH,))
    wrong = TDX.parse(item(case.quote, ccel=log_kit.log(log_kit.event(2, 1, log_kit.ONE))))
    assert TDX.judge(TDX.verify(wrong, compared), wrong, compared, policy(tdx=every))[1] == ()
