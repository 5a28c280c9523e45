"""What a policy expects of an SEV-SNP report: each rule holds and fails alone, and is told where it only reports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from attestation.appraisal.confidential import Approved, Expected
from attestation.appraisal.sev_snp import SEV_SNP
from attestation.appraisal.sev_snp.judge import judge_claims
from attestation.endorsements.amd import Endorsements, Product
from attestation.errors import EndorsementMissing, HardwareEvidenceRejected, MalformedEvidence
from attestation.evidence import sev_snp
from attestation.evidence.sev_snp import SevSnpClaims
from attestation.reference import IDENTITY_ONLY, Policy
from attestation.reference.confidential import CollateralRules, IdBlockRules, IdentityRules, SevSnpRules
from attestation.reference.rules import Demand
from attestation.results import Failed, Flagged, Passed, Reported, Subject, Undecided
from attestation.wire import b64encode
from attestation_testing.tee.amd import MEASUREMENT, Pki, Processor, tcb_bytes

AT = datetime(2026, 11, 23, tzinfo=UTC)
DATA = bytes(range(64))
GENOA = Processor(pki=Pki(Product.GENOA))
VLEK = Processor(pki=Pki(Product.GENOA), csp_id="cc-eu.example")
KEY, OTHER = b"\x07" * 48, b"\x08" * 48


def demand(value: Any, *, report: bool = False) -> Demand[Any]:
    return Demand(value, report)


def policy(rules: SevSnpRules | None = None, **blocks: Any) -> Policy:
    """Return a policy with a block `sev_snp` and others."""
    stated = blocks if rules is None else {"sev_snp": rules, **blocks}
    return replace(IDENTITY_ONLY, blocks=stated)


def claims(processor: Processor = GENOA, *, known: Endorsements | None = None, **report: Any) -> SevSnpClaims:
    """Return what a report proves."""
    sent = {"report": processor.report(DATA, **report), "vek": processor.vek}
    return sev_snp.verify(
        sev_snp.parse(sent), endorsements=known or processor.endorsements(), report_data=DATA, at=AT
    )


def outcomes(found: SevSnpClaims, stated: Policy) -> Mapping[str, Any]:
    """Return the last outcome of each check."""
    return {each.check: each for each in judge_claims(found, stated)[0]}


MATCH = SevSnpRules(measurement=demand(frozenset({MEASUREMENT})))


def test_a_good_guest() -> None:
    """Nothing fails, and what was launched counts as compared."""
    found, subjects = judge_claims(claims(), policy(MATCH))
    assert subjects == (Subject.LAUNCH,)
    assert {type(each) for each in found} == {Passed, Flagged}
    assert [each.check for each in found if isinstance(each, Flagged)] == ["snp-test-only"]


def test_without_a_reference_value_nothing_launched_is_affirmed() -> None:
    """Also where it is only reported; where it is not matched, it has failed."""
    for rules in (None, SevSnpRules(), replace(MATCH, measurement=demand(frozenset({OTHER}), report=True))):
        found, subjects = judge_claims(claims(), policy(rules))
        assert subjects == ()
        assert isinstance({each.check: each for each in found}["snp-launch"], Flagged)
    found, subjects = judge_claims(claims(), policy(SevSnpRules(measurement=demand(frozenset({OTHER, KEY})))))
    assert subjects == ()
    assert {each.check for each in found if isinstance(each, Failed)} == {"snp-measurement"}


def test_what_is_only_reported_not_to_match_affirms_no_launch() -> None:
    """Another reference value that is enforced does not make up for it: nothing counts as appraised, no level `tee`."""
    signed = IdBlockRules(id_key_digests=demand(frozenset({KEY})))
    stated = SevSnpRules(measurement=demand(frozenset({OTHER}), report=True), id_block=signed)
    found, subjects = judge_claims(claims(**ID_BLOCK), policy(stated))
    assert subjects == ()
    assert not any(isinstance(each, Failed) for each in found)
    assert {each.check for each in found if isinstance(each, Reported)} == {"snp-measurement"}


PROVISIONAL = {"current_tcb": tcb_bytes(Product.GENOA, GENOA.tcb | {"snp": 28})}
LOWER = tcb_bytes(Product.GENOA, GENOA.tcb | {"tee": 0})
MINIMUM = {"genoa": {"snp": 27, "microcode": 218}}
ID_BLOCK: dict[str, Any] = {
    "id_key_digest": KEY,
    "author_key_digest": KEY,
    "flags": 1,
    "family_id": b"f" * 16,
    "image_id": b"i" * 16,
}

RULES: dict[str, tuple[str, dict[str, Any], SevSnpRules, SevSnpRules]] = {
    # what is judged: check, report, rules under which it holds, rules under which it does not
    "host data": (
        "snp-host-data",
        {"host_data": b"h" * 32},
        SevSnpRules(host_data=demand(frozenset({b"h" * 32}))),
        SevSnpRules(host_data=demand(frozenset({bytes(32)}))),
    ),
    "guest SVN": (
        "snp-guest-svn",
        {"guest_svn": 3},
        SevSnpRules(min_guest_svn=demand(3)),
        SevSnpRules(min_guest_svn=demand(4)),
    ),
    "VMPL": ("snp-vmpl", {"vmpl": 1}, SevSnpRules(max_vmpl=demand(1)), SevSnpRules()),
    "debug": (
        "snp-debug",
        {"policy": 0x30000 | 1 << 19},
        SevSnpRules(allow_debug=demand(True)),
        SevSnpRules(),
    ),
    "migration agent by policy": (
        "snp-migration-agent",
        {"policy": 0x30000 | 1 << 18},
        SevSnpRules(allow_migration_agent=demand(True)),
        SevSnpRules(),
    ),
    "migration agent by its report": (
        "snp-migration-agent",
        {"report_id_ma": bytes(32)},
        SevSnpRules(allow_migration_agent=demand(True)),
        SevSnpRules(),
    ),
    "SMT allowed": (
        "snp-smt",
        {"policy": 0x30000, "platform_info": 0},
        SevSnpRules(require_smt_disabled=demand(False)),
        SevSnpRules(require_smt_disabled=demand(True)),
    ),
    "SMT on": (
        "snp-smt",
        {"policy": 0x20000, "platform_info": 1},
        SevSnpRules(require_smt_disabled=demand(False)),
        SevSnpRules(require_smt_disabled=demand(True)),
    ),
    "sockets": (
        "snp-single-socket",
        {},
        SevSnpRules(require_single_socket=demand(False)),
        SevSnpRules(require_single_socket=demand(True)),
    ),
    "bits that are set": (
        "snp-platform-set",
        {"platform_info": 0x05},
        SevSnpRules(platform_must_set=demand(0x04)),
        SevSnpRules(platform_must_set=demand(0x06)),
    ),
    "bits that are clear": (
        "snp-platform-clear",
        {"platform_info": 0x05},
        SevSnpRules(platform_must_clear=demand(0x02)),
        SevSnpRules(platform_must_clear=demand(0x03)),
    ),
    "provisional firmware": (
        "snp-provisional-firmware",
        PROVISIONAL,
        SevSnpRules(allow_provisional_firmware=demand(True)),
        SevSnpRules(),
    ),
    "minimum TCB": (
        "snp-minimum-tcb",
        {},
        SevSnpRules(min_tcb=demand({"genoa": {"snp": 27}})),
        SevSnpRules(min_tcb=demand(MINIMUM)),
    ),
    "minimum TCB of another line": (
        "snp-minimum-tcb",
        {},
        SevSnpRules(min_tcb=demand({"genoa": {}})),
        SevSnpRules(min_tcb=demand({"milan": {"snp": 1}})),
    ),
    "minimum of the launch TCB": (
        "snp-minimum-tcb",
        {"launch_tcb": LOWER},
        SevSnpRules(min_tcb=demand({"genoa": {"tee": 0}})),
        SevSnpRules(min_tcb=demand({"genoa": {"tee": 1}})),
    ),
    "processors": (
        "snp-allowed-chips",
        {},
        SevSnpRules(allowed_chip_ids=demand(frozenset({GENOA.chip_id}))),
        SevSnpRules(allowed_chip_ids=demand(frozenset({bytes(64)}))),
    ),
    "signing key": (
        "snp-signing-key",
        {},
        SevSnpRules(signing_key=demand("vcek")),
        SevSnpRules(signing_key=demand("vlek")),
    ),
    "report version": (
        "snp-report-version",
        {},
        SevSnpRules(min_report_version=demand(3)),
        SevSnpRules(min_report_version=demand(4)),
    ),
    "mitigations": (
        "snp-mitigations",
        {"version": 5, "launch_mit_vector": 0b101},
        SevSnpRules(min_launch_mit_vector=demand(0b100)),
        SevSnpRules(min_launch_mit_vector=demand(0b010)),
    ),
    "identity block": (
        "snp-id-block",
        {},
        SevSnpRules(id_block=IdBlockRules(require=demand(False))),
        SevSnpRules(id_block=IdBlockRules(require=demand(True))),
    ),
    "identity key": (
        "snp-id-key",
        ID_BLOCK,
        SevSnpRules(id_block=IdBlockRules(require=demand(True), id_key_digests=demand(frozenset({KEY})))),
        SevSnpRules(id_block=IdBlockRules(id_key_digests=demand(frozenset({OTHER})))),
    ),
    "author key": (
        "snp-author-key",
        ID_BLOCK,
        SevSnpRules(id_block=IdBlockRules(author_key_digests=demand(frozenset({KEY})))),
        SevSnpRules(id_block=IdBlockRules(author_key_digests=demand(frozenset({OTHER})))),
    ),
    "author key that is not enabled": (
        "snp-author-key",
        ID_BLOCK | {"flags": 0},
        SevSnpRules(),
        SevSnpRules(id_block=IdBlockRules(author_key_digests=demand(frozenset({KEY})))),
    ),
    "family": (
        "snp-family-id",
        ID_BLOCK,
        SevSnpRules(id_block=IdBlockRules(family_id=demand(frozenset({b"f" * 16})))),
        SevSnpRules(id_block=IdBlockRules(family_id=demand(frozenset({bytes(16)})))),
    ),
    "image": (
        "snp-image-id",
        ID_BLOCK,
        SevSnpRules(id_block=IdBlockRules(image_id=demand(frozenset({b"i" * 16})))),
        SevSnpRules(id_block=IdBlockRules(image_id=demand(frozenset({bytes(16)})))),
    ),
}


@pytest.mark.threat("T191")
@pytest.mark.parametrize("rule", RULES)
def test_a_rule_holds_and_does_not(rule: str) -> None:
    """It alone decides; enforced it fails, in mode report it is told."""
    check, report, good, bad = RULES[rule]
    found = claims(**report)
    assert not isinstance(outcomes(found, policy(good)).get(check), Failed | Reported)
    failed = [each for each in judge_claims(found, policy(bad))[0] if isinstance(each, Failed)]
    assert {each.check for each in failed} == {check, "snp-memory"} if rule == "debug" else {check}
    reported = outcomes(found, policy(_reporting(bad)))
    assert isinstance(reported[check], Reported)
    assert not any(isinstance(each, Failed) for each in reported.values())


def _reporting(rules: Any) -> Any:
    """Return the same rules, each only reported."""
    changed: dict[str, Any] = {}
    for name in rules.__slots__:
        value = getattr(rules, name)
        if isinstance(value, Demand):
            changed[name] = Demand(value.value, report=True)
        elif isinstance(value, IdBlockRules):
            changed[name] = _reporting(value)
    return replace(rules, **changed)


@pytest.mark.threat("T191")
@pytest.mark.parametrize(
    ("low", "high"), [("reported", "committed"), ("committed", "current"), ("launch", "current")]
)
def test_tcbs_are_in_order(low: str, high: str) -> None:
    """Whatever a policy says: what is reported was committed, and what is committed runs."""
    below = {f"{name}_tcb": LOWER for name in {"reported": [], "committed": ["reported"], "launch": []}[low]}
    processor = replace(GENOA, tcb=GENOA.tcb | {"tee": 0}) if "reported_tcb" in below else GENOA
    same = tcb_bytes(Product.GENOA, GENOA.tcb)
    order: dict[str, Any] = {
        "reported_tcb": same,
        "committed_tcb": same,
        "current_tcb": same,
        "launch_tcb": same,
    } | below
    order |= {f"{high}_tcb": LOWER}
    if high == "committed":
        order["current_tcb"] = same
    if high == "current":
        order["launch_tcb"] = same if low == "launch" else LOWER
        order["committed_tcb"] = LOWER if low == "launch" else same
    if low == "launch":
        processor, order["reported_tcb"] = replace(GENOA, tcb=GENOA.tcb | {"tee": 0}), LOWER
    found = outcomes(claims(processor, **order), policy(SevSnpRules(allow_provisional_firmware=demand(True))))
    assert isinstance(found["snp-tcb-order"], Failed)
    assert low in found["snp-tcb-order"].expected


def test_a_vlek() -> None:
    """Only where the policy takes it, and by whose it is."""
    found = claims(VLEK)
    any_key = SevSnpRules(signing_key=demand("any"), csp_ids=demand(frozenset({"cc-eu.example"})))
    assert isinstance(outcomes(found, policy())["snp-signing-key"], Failed)
    assert isinstance(outcomes(found, policy(any_key))["snp-csp-id"], Passed)
    assert "snp-signing-key" not in outcomes(found, policy(any_key))
    other = replace(any_key, csp_ids=demand(frozenset({"x"})))
    assert isinstance(outcomes(found, policy(other))["snp-csp-id"], Failed)
    assert outcomes(claims(), policy(other))["snp-csp-id"].found == "a VCEK"


def test_a_test_kit_is_told() -> None:
    """Of what a processor made nothing is said."""
    assert isinstance(outcomes(claims(), policy())["snp-test-only"], Flagged)
    assert "snp-test-only" not in outcomes(replace(claims(), test_only=False), policy())


def test_bits_that_are_not_known_are_told() -> None:
    """A newer processor is no reason to refuse."""
    assert isinstance(outcomes(claims(platform_info=0x65), policy())["snp-notes"], Flagged)


@pytest.mark.threat("T192")
def test_withdrawn_intermediates() -> None:
    """Revoked fails under any policy; no list is undecided unless the policy does without."""
    lenient = CollateralRules(require_revocation=demand(False))
    reported = CollateralRules(require_revocation=demand(True, report=True))
    revoked = claims(known=GENOA.endorsements(revoked=(0x20001,)))
    without = claims(known=GENOA.endorsements(revoked=None))
    for stated in (policy(), policy(collateral=lenient)):
        assert isinstance(outcomes(revoked, stated)["snp-revocation"], Failed)
    assert isinstance(outcomes(claims(), policy())["snp-revocation"], Passed)
    missing = outcomes(without, policy())["snp-revocation"]
    assert isinstance(missing, Undecided)
    assert "Genoa" in missing.reason
    for rules in (lenient, reported):
        assert "snp-revocation" not in outcomes(without, policy(collateral=rules))


def expected(approved: Approved | None = None, **changed: Any) -> Expected:
    """Return what a service would compare with."""
    fields: dict[str, Any] = {
        "at": AT, "report_data": DATA, "endorsements": GENOA.endorsements(), "approved": approved, "nonce": bytes(32),
    }  # fmt: skip
    return Expected(**(fields | changed))


def follow(
    processor: Processor, approved: Approved | None, stated: Policy | None, **changed: Any
) -> Mapping[str, Any]:
    """Return the outcomes of `follow`, by check."""
    found, _ = SEV_SNP.follow(claims(processor), expected(approved, **changed), stated)
    return {each.check: each for each in found}


@pytest.mark.threat("T192")
def test_the_processor_is_the_approved_one() -> None:
    """Equal passes; another fails; none approved, or one that hides itself, is undecided."""
    mine = Approved(chip=GENOA.chip_id)
    assert isinstance(follow(GENOA, mine, None)["snp-chip"], Passed)
    other = follow(GENOA, Approved(chip=bytes(63) + b"\x01"), policy())["snp-chip"]
    assert isinstance(other, Failed)
    assert GENOA.chip_id.hex() in other.found
    assert isinstance(follow(GENOA, None, policy())["snp-chip"], Undecided)
    hidden = follow(VLEK, Approved(chip=b"", csp_id="cc-eu.example"), policy())["snp-chip"]
    assert isinstance(hidden, Undecided)
    of_another = follow(VLEK, Approved(chip=b"", csp_id="x"), policy())["snp-chip"]
    assert isinstance(of_another, Failed)
    observed = policy(identity=IdentityRules(mode="observed"))
    assert isinstance(follow(GENOA, None, observed)["snp-chip"], Flagged)


def test_firmware_that_went_back_is_told() -> None:
    """Of the same processor; what is stored is what was seen."""
    _, told = SEV_SNP.follow(claims(), expected(), None)
    assert told.state is not None
    lower = dict(told.state["reported_tcb"]) | {"snp": 28}
    before = {**told.state, "reported_tcb": lower}
    flagged = follow(GENOA, None, None, before=before)["snp-tcb-regressed"]
    assert isinstance(flagged, Flagged)
    assert "snp 27, was 28" in flagged.note
    assert "snp-tcb-regressed" not in follow(GENOA, None, None, before=told.state)
    assert "snp-tcb-regressed" not in follow(GENOA, None, None, before={**before, "chip_id": "00"})
    assert told.digest is None
    assert told.events == ()


def test_the_kind_as_an_appraisal_sees_it() -> None:
    """Members, hardware, likeness; without a VEK the kind stays undecided, other report data is refused."""
    item = {"report": b64encode(GENOA.report(DATA)), "vek": b64encode(GENOA.vek)}
    evidence = SEV_SNP.parse(item)
    verified = SEV_SNP.verify(evidence, expected())
    seen = SEV_SNP.hardware(verified)
    assert seen is not None
    assert (seen.tee, seen.chip, seen.guest, seen.csp_id) == ("sev-snp", GENOA.chip_id, bytes(32), None)
    assert SEV_SNP.answers(verified) == frozenset({"sev_snp"})
    _, found = SEV_SNP.follow(verified, expected(), None)
    assert SEV_SNP.alike(found, policy()) == SEV_SNP.alike(found, policy(MATCH))
    judged, subjects = SEV_SNP.judge(verified, evidence, expected(), policy(MATCH))
    assert (list(judged), subjects) == (judge_claims(verified, policy(MATCH))[0], (Subject.LAUNCH,))
    with pytest.raises(HardwareEvidenceRejected):
        SEV_SNP.verify(evidence, expected(report_data=bytes(64)))
    with pytest.raises(EndorsementMissing):
        SEV_SNP.verify(SEV_SNP.parse({"report": item["report"]}), expected())
    strange: list[object] = [{}, {**item, "more": ""}, {"report": 1}, {"report": b64encode(bytes(1185))}, []]
    for wrong in strange:
        with pytest.raises(MalformedEvidence):
            SEV_SNP.parse(wrong)
