"""One suite over all kinds of evidence, and over a toy that is added here without touching another file."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attestation.appraisal import KINDS, Appraisal, Case, appraise, recalled
from attestation.appraisal.again import judge_again
from attestation.appraisal.azure_hcl import AZURE_HCL, FRESH
from attestation.appraisal.confidential import Approved
from attestation.appraisal.confidential import Expected as ExpectedHardware
from attestation.appraisal.gpu import GPU
from attestation.appraisal.kind import Kind
from attestation.appraisal.sev_snp import SEV_SNP
from attestation.appraisal.sgx import NAMES as SGX_NAMES
from attestation.appraisal.sgx import SGX
from attestation.appraisal.svsm import SVSM
from attestation.appraisal.tdx import NAMES as TDX_NAMES
from attestation.appraisal.tdx import TDX
from attestation.appraisal.tpm import TPM, no_advisories
from attestation.appraisal.tpm import Expected as ExpectedTPM
from attestation.appraisal.tpm import Found as FoundTPM
from attestation.appraisal.tpm.again import Stored
from attestation.appraisal.tpm.looks_away import WORDS
from attestation.errors import (
    ChallengeMismatch,
    EndorsementMissing,
    EvidenceRejected,
    HardwareEvidenceRejected,
    MalformedEvidence,
    PolicyInvalid,
)
from attestation.evidence import nvidia_gpu, sev_snp
from attestation.evidence.dcap import Checks
from attestation.machines import Role
from attestation.reference import (
    IDENTITY_ONLY,
    Demand,
    Policy,
    compose,
    diff,
    effective_document,
    parse_policy,
)
from attestation.reference.blocks import BLOCKS, COMMON_BLOCKS
from attestation.reference.schema import schema_2
from attestation.results import (
    Assurance,
    Check,
    Code,
    Failed,
    Outcome,
    Passed,
    Reported,
    Undecided,
    Verdict,
    conclude,
)
from attestation.tpm import PCRSelection
from attestation.wire import b64decode, b64encode
from attestation_testing.tee.amd import Pki, Processor
from attestation_testing.tee.intel import Platform, enclave_report, td_report
from attestation_testing.tee.nvidia import SoftwareGPU
from tests.contract import toy_kind
from tests.contract.toy_kind import TOY, TOY_BLOCK
from tests.fixtures import hcl
from tests.vectors import forge

AT = datetime(2026, 11, 22, tzinfo=UTC)
STATEMENT = forge.NONCE + (7).to_bytes(4)
KEY = bytes(32)


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Good evidence of a kind.

    Args:
        kind: The kind.
        item: The evidence, as JSON has it.
        signed: The members that are base64 of what is signed, or of a signature.
        expected: What it is compared with.
        later: The same for another challenge.
        other: The same of another machine.
        binding: The check that the evidence is for this challenge and machine, where it is one of its own.
        unsigned: How many bytes at the end of each signed member nobody signed; others may then follow.
    """

    kind: Kind[Any, Any, Any]
    item: Mapping[str, Any]
    signed: tuple[str, ...]
    expected: Any
    later: Any
    other: Any
    binding: Check | None = None
    unsigned: int = 0
    tolerated: int = 0

    @property
    def bound(self) -> str:
        """Name of that check."""
        return (self.binding or self.kind.check).name


def _tpm() -> Sample:
    attest, signature = forge.quote("p256")
    expected = ExpectedTPM(
        ak_public=forge.AKS["p256"].public,
        ek_public=forge.ek_public("L-2"),
        challenge=forge.NONCE,
        selection=PCRSelection.from_names({"sha256": forge.SELECTED}),
        clock=None,
        ek_vendor=None,
        event_log_requested=False,
        ek_certification_requested=False,
        firmware_attested=None,
        firmware=no_advisories,
    )
    return Sample(
        kind=TPM,
        item={
            "pcr_quote": b64encode(attest),
            "pcr_signature": b64encode(signature),
            "pcr_values": {"sha256": {str(i): forge.PCRS[i].hex() for i in forge.SELECTED}},
        },
        signed=("pcr_quote", "pcr_signature"),
        expected=expected,
        later=replace(expected, challenge=bytes(32)),
        other=replace(expected, ak_public=forge.AKS["p384"].public),
    )


def _toy() -> Sample:
    expected = toy_kind.Expected(KEY, forge.NONCE, before=7)
    return Sample(
        kind=TOY,
        item={"statement": b64encode(STATEMENT), "tag": b64encode(hmac.digest(KEY, STATEMENT, "sha256"))},
        signed=("statement", "tag"),
        expected=expected,
        later=expected._replace(challenge=bytes(32)),
        other=expected._replace(key=bytes(31) + b"\x01"),
    )


def _sev_snp() -> Sample:
    processor, told = Processor(pki=Pki()), bytes(range(64))
    expected = ExpectedHardware(
        at=AT,
        report_data=told,
        endorsements=processor.endorsements(with_vek=True),
        approved=Approved(chip=processor.chip_id),
        nonce=forge.NONCE,
    )
    return Sample(
        kind=SEV_SNP,
        item={"report": b64encode(processor.report(told))},
        signed=("report",),
        expected=expected,
        later=replace(expected, report_data=bytes(64)),
        other=replace(expected, report_data=bytes(reversed(told))),
        binding=sev_snp.BINDING,
    )


def _svsm() -> Sample:
    processor, told, ek = Processor(pki=Pki()), bytes(range(64)), forge.ek_public("L-2")
    manifest = ek[2:]
    expected = ExpectedHardware(
        at=AT,
        report_data=told,
        endorsements=processor.endorsements(with_vek=True),
        approved=Approved(chip=processor.chip_id),
        nonce=forge.NONCE,
        ek_public=ek,
    )
    report = processor.report(hashlib.sha512(told + manifest).digest())
    return Sample(
        kind=SVSM,
        item={"report": b64encode(report), "manifest": b64encode(manifest)},
        signed=("report", "manifest"),
        expected=expected,
        later=replace(expected, report_data=bytes(64)),
        other=replace(expected, report_data=bytes(reversed(told))),
        binding=sev_snp.BINDING,
    )


def _quote(kind: Kind[Any, Any, Any], tee: str, version: int, body: bytes, names: Checks) -> Sample:
    platform, told = Platform(), bytes(range(64))
    quote = platform.quote(body, version=version, tee=tee)
    expected = ExpectedHardware(
        at=AT,
        report_data=told,
        endorsements=platform.endorsements(platform.collateral(tee)),
        approved=Approved(chip=platform.ppid),
        nonce=forge.NONCE,
    )
    return Sample(
        kind=kind,
        item={"quote": b64encode(quote)},
        signed=("quote",),
        expected=expected,
        later=replace(expected, report_data=bytes(64)),
        other=replace(expected, report_data=bytes(reversed(told))),
        binding=names.report_data,
        # The chain that ends a quote is PEM: certificates are signed, how they are written is not.
        unsigned=len(platform.chain),
    )


def _tdx() -> Sample:
    return _quote(TDX, "TDX", 5, td_report(bytes(range(64)), size=648), TDX_NAMES.authentic)


def _sgx() -> Sample:
    body = enclave_report({0: bytes((2, 2)), 48: bytes.fromhex("05"), 320: bytes(range(64))})
    return _quote(SGX, "SGX", 3, body, SGX_NAMES.authentic)


def _azure_hcl() -> Sample:
    sent, expected = hcl.snp(AT)
    return Sample(
        kind=AZURE_HCL,
        item={name: b64encode(data) for name, data in sent.items()},
        signed=("tpm_quote",),
        expected=expected,
        later=replace(expected, nonce=bytes(32)),
        other=replace(expected, nonce=bytes(31) + b"\x01"),
        binding=FRESH,
    )


def _gpu() -> Sample:
    gpu, told = SoftwareGPU(), bytes(range(32))
    expected = ExpectedHardware(
        at=AT, report_data=told, endorsements=gpu.endorsements, approved=None, nonce=forge.NONCE
    )
    return Sample(
        kind=GPU,
        item=gpu.item(told),
        signed=("evidence",),
        expected=expected,
        later=replace(expected, report_data=bytes(32)),
        other=replace(expected, report_data=bytes(reversed(told))),
        binding=nvidia_gpu.BINDING,
        tolerated=1,
    )


MADE = (_tpm(), _toy(), _sev_snp(), _tdx(), _sgx(), _azure_hcl(), _svsm(), _gpu())
SAMPLES = {sample.kind.name: sample for sample in MADE}
SHIPPED = set(KINDS)


@pytest.fixture(autouse=True)
def _with_toy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KINDS, TOY.name, TOY)
    monkeypatch.setitem(BLOCKS, TOY.name, TOY_BLOCK)


@pytest.fixture(params=sorted(SAMPLES))
def sample(request: pytest.FixtureRequest) -> Sample:
    return SAMPLES[request.param]


def judged(sent: Mapping[str, Any], expected: Mapping[str, Any], **case: Any) -> Appraisal:
    """Appraise *sent*, by name of the kind and as JSON has it."""
    known: dict[str, Any] = {
        "expected": expected,
        "requested_policy": IDENTITY_ONLY.ref,
        "policy": IDENTITY_ONLY,
        "assurance": Assurance.EK_CHAIN,
        "role": Role.WORKER_APP,
    }
    return appraise({name: KINDS[name].parse(item) for name, item in sent.items()}, Case(**known | case), AT)


def proves_nothing(found: Appraisal, *checks: str) -> None:
    """Refused: one failed check, no finding, nothing to be stored."""
    assert isinstance(found.error, EvidenceRejected)
    assert found.result.verdict is Verdict.FAILED
    assert [(type(o), o.check) for o in found.result.outcomes] == [(Failed, check) for check in checks]
    assert (found.found, found.result.pcr_digest, found.result.boot_state_appraised) == ({}, None, ())


def test_each_kind_has_a_sample() -> None:
    """Whoever adds a kind adds its sample here; names and checks belong to one kind each."""
    assert SHIPPED | {TOY.name} == set(SAMPLES)
    assert all(name == kind.name for name, kind in KINDS.items())
    # Each kind answers for the block of its name, or for those of the evidence that it carries.
    assert {name for kind in KINDS.values() for name in kind.answers(None)} <= {TPM.name, *BLOCKS}
    assert not COMMON_BLOCKS.keys() & (BLOCKS.keys() | KINDS.keys())
    assert all(kind.check in kind.checks and kind.held == kind.check.passed() for kind in KINDS.values())
    names = [check.name for kind in KINDS.values() for check in kind.checks]
    assert len(set(names) | {"policy", "assurance", "evidence", "guest-name"}) == len(names) + 4


def test_good_evidence(sample: Sample) -> None:
    """Verified, its own check first; each outcome comes back from the store with what it says of trust."""
    name = sample.kind.name
    found = judged({name: sample.item}, {name: sample.expected})
    assert (found.result.verdict, found.error) == (Verdict.VERIFIED, None)
    assert found.result.outcomes[0] == sample.kind.held
    assert set(found.found) == {name}
    # What carries evidence of another kind is judged by the checks of that one.
    carried = (KINDS[other] for other in sample.kind.answers(None))
    known = {check.name for kind in (sample.kind, *carried) for check in kind.checks} | {"assurance"}
    for outcome in found.result.outcomes:
        assert outcome.check in known
        bare = type(outcome)(*(getattr(outcome, part) for part in outcome.__match_args__))
        assert recalled(bare).says == outcome.says


def test_a_member_more_or_less_or_of_another_type(sample: Sample) -> None:
    """MalformedEvidence and nothing else, in each place."""
    strange: list[Any] = [None, True, 1, 1.5, "", "x", [], ["x"], {}, {"x": None}, {"sha256": None}, b"x"]
    wrong = [*strange, {**sample.item, "more": ""}]
    for name in sample.item:
        wrong.append({other: value for other, value in sample.item.items() if other != name})
        wrong += [{**sample.item, name: value} for value in strange if value != {}]
    for item in wrong:
        with pytest.raises(MalformedEvidence):
            sample.kind.parse(item)


def test_every_cut_and_every_byte_behind(sample: Sample) -> None:
    """Nothing that was cut off, and nothing behind the end, is read."""
    for name in sample.signed:
        whole = b64decode(sample.item[name], name, max_bytes=8192)
        # What carries a quote pads it: bytes behind it are cut off, and told of.
        behind = () if sample.unsigned else (whole + b"\x00" * (sample.tolerated + 1), whole * 2)
        for data in (*(whole[:size] for size in range(len(whole))), *behind):
            with pytest.raises(MalformedEvidence):
                sample.kind.parse({**sample.item, name: b64encode(data)})


def test_no_flipped_bit_is_accepted(sample: Sample) -> None:
    """Of what is signed and of the signature."""
    for name in sample.signed:
        whole = b64decode(sample.item[name], name, max_bytes=8192)
        # One bit of each byte of what is long: the tests of the kind flip the others.
        bits = 8 * (len(whole) - sample.unsigned)
        for place in range(0, bits, 1 if len(whole) < 500 else 9):
            data = bytearray(whole)
            data[place // 8] ^= 1 << place % 8
            with pytest.raises((MalformedEvidence, EvidenceRejected)):
                sample.kind.verify(
                    sample.kind.parse({**sample.item, name: b64encode(bytes(data))}), sample.expected
                )


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda of: st.lists(of) | st.dictionaries(st.text(), of),
    )
)
def test_parse_fails_in_one_way_only(item: object) -> None:
    """Whatever JSON arrives, also in the place of each member."""
    for sample in SAMPLES.values():
        for sent in (item, *({**sample.item, name: item} for name in sample.item)):
            try:
                sample.kind.parse(json.loads(json.dumps(sent)))
            except MalformedEvidence:
                continue
            assert item in ({}, *sample.item.values())


def test_replayed(sample: Sample) -> None:
    """Good evidence for another challenge proves nothing: it is refused by its code."""
    name = sample.kind.name
    found = judged({name: sample.item}, {name: sample.later})
    proves_nothing(found, sample.bound)
    if sample.binding is not None:
        assert isinstance(found.error, HardwareEvidenceRejected)
        assert sample.binding.code is Code.BINDING_MISMATCH
        return
    assert isinstance(found.error, ChallengeMismatch)
    (failed,) = found.result.failed
    assert (failed.expected, failed.found.partition(":")[0]) == (sample.kind.expects, "challenge-mismatch")


def test_of_another_machine(sample: Sample) -> None:
    """Good evidence of another machine proves nothing."""
    name = sample.kind.name
    proves_nothing(judged({name: sample.item}, {name: sample.other}), sample.bound)


def test_what_is_expected_must_come(sample: Sample) -> None:
    """Absent evidence is refused; where nothing is expected, nothing is affirmed, whatever comes."""
    name = sample.kind.name
    proves_nothing(judged({}, {name: sample.expected}), sample.kind.check.name)
    proves_nothing(judged({name: sample.item}, {}), "evidence")


def test_each_expected_kind_must_be_authentic() -> None:
    """Two kinds are judged together; one that is forged, or absent, takes the other with it."""
    items = {name: sample.item for name, sample in SAMPLES.items()}
    expected = {name: sample.expected for name, sample in SAMPLES.items()}
    both = judged(items, expected)
    assert both.result.verdict is Verdict.VERIFIED
    assert set(both.found) == set(SAMPLES)
    for name, sample in SAMPLES.items():
        proves_nothing(judged(items, expected | {name: sample.other}), sample.bound)
        proves_nothing(
            judged({n: i for n, i in items.items() if n != name}, expected), sample.kind.check.name
        )
    # What nobody expects is not looked at.
    assert set(judged(items, {TPM.name: expected[TPM.name]}).found) == {TPM.name}


def test_without_the_policy_that_was_asked_for(sample: Sample) -> None:
    """It is authentic, so its state is told; and nothing is decided."""
    name = sample.kind.name
    for changed in ({"policy": None}, {"requested_policy": "another@1"}):
        found = judged({name: sample.item}, {name: sample.expected}, **changed)
        assert found.result.verdict is Verdict.INDETERMINATE
        assert Undecided in [type(o) for o in found.result.outcomes if o.check == "policy"]
        assert set(found.found) == {name}


def test_what_makes_results_alike(sample: Sample) -> None:
    """The same evidence is alike; of a TPM also what PCR 10 alone tells apart, where files are judged."""
    name = sample.kind.name
    found = judged({name: sample.item}, {name: sample.expected}).found[name]
    assert sample.kind.alike(found, IDENTITY_ONLY) == sample.kind.alike(found, IDENTITY_ONLY)
    assert (found.state is None) is (name == "tpm")
    if name == "tpm":
        files = policy(tpm={"bank": "sha256", "pcrs": {}, "ima": {"allow": ["aa" * 32]}})
        assert isinstance(found, FoundTPM)
        used = found._replace(digest="00" * 32)
        assert sample.kind.alike(used, files) == sample.kind.alike(found, files)
        assert sample.kind.alike(used, IDENTITY_ONLY) != sample.kind.alike(found, IDENTITY_ONLY)


def test_what_went_back_fails() -> None:
    """Authentic evidence of an earlier state is a failed check of its kind, and says so of its claim."""
    found = judged({TOY.name: SAMPLES["toy"].item}, {TOY.name: SAMPLES["toy"].expected._replace(before=8)})
    assert (found.error, found.result.verdict) == (None, Verdict.FAILED)
    assert [o.says for o in found.result.failed] == [("hardware", 96)]


def test_values_beside_a_quote_are_its_own() -> None:
    """A value that was not quoted, or is of another size or case, is none."""
    good = SAMPLES["tpm"].item["pcr_values"]["sha256"]
    for values in ({**good, "24": "00" * 32}, {**good, "7": good["7"].upper()}, {**good, "07": good["7"]}):
        with pytest.raises((MalformedEvidence, EvidenceRejected)):
            TPM.verify(
                TPM.parse({**SAMPLES["tpm"].item, "pcr_values": {"sha256": values}}), SAMPLES["tpm"].expected
            )


# ---------------------------------------------------------------- what a policy says of a kind


def policy(name: str = "chips", mode: str = "enforce", **blocks: object) -> Policy:
    return parse_policy({"format": "itl-policy/2", "name": name, "version": 1, "mode": mode, **blocks})


@pytest.mark.parametrize(
    ("minimum", "mode", "expected"),
    [(7, "enforce", Passed), (8, "enforce", Failed), (7, "report", Passed), (8, "report", Reported)],
)
def test_a_block_is_judged_by_its_kind(minimum: int, mode: str, expected: type[Outcome]) -> None:
    """In the mode of the policy that states it."""
    applied = policy(mode=mode, toy={"minimum": minimum})
    toy = SAMPLES["toy"]
    found = judged({"toy": toy.item}, {"toy": toy.expected}, policy=applied, requested_policy=applied.ref)
    (outcome,) = (o for o in found.result.outcomes if o.check == "toy-minimum")
    assert type(outcome) is expected
    assert found.result.verdict is (Verdict.FAILED if expected is Failed else Verdict.VERIFIED)


@pytest.mark.parametrize(("mode", "expected"), [("enforce", Failed), ("report", Reported)])
def test_a_block_of_a_kind_that_is_not_expected_holds_for_nobody(mode: str, expected: type[Outcome]) -> None:
    """A machine without such evidence does not pass because nobody asks it for any."""
    applied, tpm = policy(mode=mode, toy={"minimum": 0}), SAMPLES["tpm"]
    found = judged({"tpm": tpm.item}, {"tpm": tpm.expected}, policy=applied, requested_policy=applied.ref)
    assert [type(o) for o in found.result.outcomes if o.check == "evidence"] == [expected]
    assert found.result.verdict is (Verdict.FAILED if expected is Failed else Verdict.VERIFIED)


@pytest.mark.parametrize(
    "demand",
    [
        {"pcrs": {"0": {"any_of": ["ff" * 32]}}},
        {"pcrs": {}, "firmware": {"on_blocklist": "fail"}},
        {"pcrs": {}, "ek_key_attestation": "required"},
    ],
    ids=str,
)
@pytest.mark.parametrize(("mode", "expected"), [("enforce", Failed), ("report", Reported)])
def test_what_is_demanded_of_a_tpm_holds_for_nobody_without_one(
    demand: dict[str, Any], mode: str, expected: type[Outcome]
) -> None:
    """The block `tpm` is as any other; common members alone demand no kind of evidence."""
    toy = SAMPLES["toy"]
    alone: dict[str, object] = {}
    for more in (alone, {"toy": {"minimum": 0}}):
        applied = policy("chips", mode, tpm={"bank": "sha256", **demand}, **more)
        found = judged({"toy": toy.item}, {"toy": toy.expected}, policy=applied, requested_policy=applied.ref)
        absent = [o for o in found.result.outcomes if o.check == "evidence"]
        assert [type(o) for o in absent] == [expected]
        assert found.result.verdict is (Verdict.FAILED if expected is Failed else Verdict.VERIFIED)
    common = policy(mode=mode, assurance={"minimum": "tofu"}, max_age_seconds=60)
    found = judged({"toy": toy.item}, {"toy": toy.expected}, policy=common, requested_policy=common.ref)
    assert found.result.verdict is Verdict.VERIFIED


def test_rules_read_what_every_kind_shows() -> None:
    """And of the machine its role, its cluster and how well it is vouched for."""
    shown = (
        "tpm.pcrs['sha256']['0'].size() == 64 && tpm.clock_safe && tpm.reset_count >= 0",
        "size(tpm.firmware_version) == 16 && tpm.restart_count >= 0",
        "machine.role == 'worker-app' && machine.cluster == 'c1' && machine.assurance == 'ek-chain'",
        "tpm.pcrs.sha512['0'] == ''",
    )
    applied = policy(rules=[{"name": f"r{i}", "expression": text} for i, text in enumerate(shown)])
    tpm = SAMPLES["tpm"]
    case = {"policy": applied, "requested_policy": applied.ref, "cluster": "c1"}
    found = judged({"tpm": tpm.item}, {"tpm": tpm.expected}, **case)
    told = [type(o) for o in found.result.outcomes if o.check == "rule"]
    assert told == [Passed, Passed, Passed, Failed]
    assert TOY.shown(judged({"toy": SAMPLES["toy"].item}, {"toy": SAMPLES["toy"].expected}).found["toy"]) == {
        "level": 7
    }


def test_what_nobody_vouches_for_yet_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is neither believed nor refused: nothing is told of it, its block is answered, other kinds go on."""
    check, tpm = TOY.check, SAMPLES["tpm"]

    def missing(*_: object) -> int:
        raise EndorsementMissing([check.undecided("the key of this chip is not at hand")])

    monkeypatch.setattr(toy_kind.ToyKind, "verify", missing)
    applied = policy(toy={"minimum": 7}, rules=[{"name": "one", "expression": "tpm.clock_safe"}])
    items = {"toy": SAMPLES["toy"].item, "tpm": tpm.item}
    expected = {"toy": SAMPLES["toy"].expected, "tpm": tpm.expected}
    found = judged(items, expected, policy=applied, requested_policy=applied.ref)
    assert (found.error, set(found.found)) == (None, {"tpm"})
    assert found.result.verdict is Verdict.INDETERMINATE
    told = {o.check: type(o) for o in found.result.outcomes}
    assert (told[check.name], told["rule"], "evidence" in told) == (Undecided, Passed, False)
    alone = judged({"toy": items["toy"]}, {"toy": expected["toy"]})
    assert (alone.error, alone.result.verdict) == (None, Verdict.INDETERMINATE)


def test_an_outcome_of_a_check_that_is_gone_stays() -> None:
    """It says nothing of trust."""
    gone = Failed("gone", "this", "that")
    assert recalled(gone) is gone


def test_stored_evidence_says_nothing_of_another_kind() -> None:
    """A policy with a block of a kind of which nothing is stored does not hold for it, nor does it fail."""
    kept = Stored(
        bank=None,
        values={},
        log_outcomes=None,
        list_outcomes=None,
        ek_vendor=None,
        firmware_version=None,
        clock_safe=None,
        ek_key_attested=False,
        advisories=(),
    )

    def again(stored: Mapping[str, Any], applied: Policy) -> tuple[Outcome, ...]:
        return judge_again(stored, Assurance.EK_CHAIN, Role.WORKER_APP, applied)

    outcomes = again({"tpm": kept}, policy(toy={"minimum": 0}))
    assert [type(o) for o in outcomes if o.check == "evidence"] == [Undecided]
    assert conclude(outcomes) is Verdict.INDETERMINATE
    assert conclude(again({"tpm": kept}, IDENTITY_ONLY)) is Verdict.VERIFIED
    compared = policy(tpm={"bank": "sha256", "pcrs": {"0": {"any_of": ["ff" * 32]}}})
    assert conclude(again({}, compared)) is Verdict.INDETERMINATE
    # The toy stores no evidence, and does not say what a policy over it leaves out.
    assert conclude(again({"tpm": kept, "toy": None}, IDENTITY_ONLY)) is Verdict.INDETERMINATE
    assert TOY.looks_away(IDENTITY_ONLY) == ()
    assert TPM.looks_away(IDENTITY_ONLY) == tuple(WORDS.values())


def test_a_block_that_no_kind_reads_is_refused_by_name() -> None:
    """Also in the format that has none, also one that states nothing, and each fault of its own reader."""
    wrong: list[dict[str, Any]] = [
        {"sgx": {"x": 1}},
        {"toy": {}},
        {"toy": None},
        {"toy": {"minimum": "7"}},
        {"toy": {"x": 1}},
    ]
    for blocks in wrong:
        with pytest.raises(PolicyInvalid, match=next(iter(blocks))):
            policy(**blocks)
    with pytest.raises(PolicyInvalid, match="'toy'"):
        parse_policy({**_flat(), "toy": {"minimum": 7}})


def test_blocks_are_composed_compared_and_shown() -> None:
    """Member by member like all else; a block binds no bank; the effective policy says whose it is."""
    fleet, narrow = policy("fleet", toy={"minimum": 3}), policy("narrow", "report", toy={"minimum": 9})
    boot = parse_policy({**_flat(), "bank": "sha384", "pcrs": {"7": {"any_of": ["aa" * 48]}}})
    both = compose([fleet, boot, narrow])
    assert both.blocks["toy"].minimum == Demand(9, True)
    assert [rule.index for rule in both.tpm.rules] == [7]
    shown = effective_document(both)
    assert shown["toy"] == {"minimum": 9}
    assert shown["sources"]["toy.minimum"] == {"policy": "narrow@1", "mode": "report"}  # type: ignore[index]  # an object
    assert effective_document(fleet)["toy"] == {"minimum": 3}
    assert [change.text for change in diff(fleet, policy("fleet", toy={"minimum": 4})).changes] == [
        "toy: minimum: 3 -> 4"
    ]
    jsonschema_rs.Draft202012Validator(schema_2()).validate(json.loads(fleet.document))


def _flat() -> dict[str, Any]:
    return {"format": "itl-tpm-policy/1", "name": "boot", "version": 1, "bank": "sha256", "pcrs": {}}
