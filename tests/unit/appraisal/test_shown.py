"""What confidential machines showed: judged under another policy, and learned from (docs/operate/policies.md)."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from attestation.appraisal import KINDS
from attestation.appraisal.again import judge_again
from attestation.appraisal.confidential import Expected
from attestation.appraisal.learn_shown import learn_shown
from attestation.appraisal.shown import judge_shown
from attestation.endorsements.amd import Product
from attestation.machines import Role
from attestation.reference import IDENTITY_ONLY, Policy, parse_policy
from attestation.results import Assurance, Failed, Passed, Reported, Undecided
from attestation.wire import b64encode
from attestation_testing.tee.amd import Pki, Processor
from tests.unit.evidence.dcap_zoo import AT, PLATFORM, TOLD, sgx, tdx

A48, B48, A32 = "aa" * 48, "bb" * 48, "aa" * 32
TCB = {"bootloader": 4, "tee": 0, "snp": 23, "microcode": 213}
SNP: dict[str, Any] = {
    "product": "Milan",
    "version": 3,
    "chip_id": "cc" * 64,
    "csp_id": None,
    "measurement": A48,
    "host_data": A32,
    "id_key_digest": A48,
    "author_key_digest": "",
    "debug": False,
    "migration_agent": False,
    "smt": False,
    "single_socket": True,
    "signing_key": "vcek",
    "guest_svn": 2,
    "vmpl": 0,
    "platform_info": 4,
    **{f"{name}_tcb": dict(TCB) for name in ("reported", "committed", "current", "launch")},
}
QUOTED: dict[str, Any] = {
    "ppid": "dd" * 16,
    "smt": True,
    "dynamic_platform": False,
    "cached_keys": True,
    "tcb_status": "UpToDate",
    "tcb_date": "2024-03-13",
    "tcb_evaluation_data_number": 17,
    "advisories": ["INTEL-SA-00837"],
}
TDX: dict[str, Any] = QUOTED | {
    "mrtd": A48,
    "rtmr": [A48, B48, "00" * 48, "00" * 48],
    "mrseam": A48,
    "mrsignerseam": "00" * 48,
    "mrconfigid": "00" * 48,
    "mrowner": "00" * 48,
    "mrownerconfig": "00" * 48,
    "xfam": "e702060000000000",
    "td_attributes": "0000001000000000",
    "debug": False,
    "sept_ve_disable": True,
    "migratable": False,
    "service_td": False,
}
SGX: dict[str, Any] = QUOTED | {
    "mrenclave": A32,
    "mrsigner": "bb" * 32,
    "isv_prod_id": 1,
    "isv_svn": 3,
    "debug": False,
}
STATES = {"sev_snp": SNP, "tdx": TDX, "sgx": SGX}


def policy(mode: str = "enforce", **blocks: Any) -> Policy:
    return parse_policy({"format": "itl-policy/2", "name": "tees", "version": 1, "mode": mode, **blocks})


REFERENCE: dict[str, dict[str, Any]] = {
    "sev_snp": {"measurement": [A48]},
    "tdx": {"mrtd": [A48]},
    "sgx": {"mrsigner": ["bb" * 32]},
}
BITS = {"value": "0700000000000000", "mask": "0f00000000000000"}
MEMBERS: list[tuple[str, str, Any, Any]] = [
    # Block, member, a value that holds, one that does not.
    ("sev_snp", "measurement", [A48, B48], [B48]),
    ("sev_snp", "host_data", [A32], ["bb" * 32]),
    ("sev_snp", "id_block", {"id_key_digests": [A48]}, {"id_key_digests": [B48]}),
    ("sev_snp", "id_block", {"require": True}, None),
    ("sev_snp", "id_block", None, {"author_key_digests": [B48]}),
    ("sev_snp", "min_guest_svn", 2, 3),
    ("sev_snp", "require_smt_disabled", True, None),
    ("sev_snp", "require_single_socket", True, None),
    ("sev_snp", "platform_info", {"must_set": 4}, {"must_set": 6}),
    ("sev_snp", "platform_info", {"must_clear": 3}, {"must_clear": 4}),
    ("sev_snp", "min_tcb", {"milan": {"snp": 23}}, {"milan": {"snp": 24}}),
    ("sev_snp", "min_tcb", None, {"genoa": {"snp": 1}}),
    ("sev_snp", "allowed_chip_ids", ["cc" * 64], ["dd" * 64]),
    ("sev_snp", "signing_key", "any", "vlek"),
    ("sev_snp", "csp_ids", None, ["a-cloud"]),
    ("sev_snp", "min_report_version", 3, 4),
    ("tdx", "mrtd", [A48], [B48]),
    ("tdx", "rtmr1", [B48], [A48]),
    ("tdx", "mrsignerseam", ["00" * 48], [A48]),
    ("tdx", "xfam", BITS, BITS | {"value": "0600000000000000"}),
    ("tdx", "accepted_ppids", ["dd" * 16], ["ee" * 16]),
    ("sgx", "mrenclave", [A32], ["bb" * 32]),
    ("sgx", "isv_prod_id", 1, 2),
    ("sgx", "min_isv_svn", 3, 4),
    ("tcb", "accepted_status", ["UpToDate"], ["OutOfDate"]),
    ("tcb", "min_tcb_date", "2024-03-13T00:00:00Z", "2024-03-14T00:00:00Z"),
    ("tcb", "min_tcb_evaluation_data_number", 17, 18),
    ("tcb", "reject_advisories", ["INTEL-SA-00001"], ["INTEL-SA-00837"]),
    ("tcb", "allow_smt", True, False),
    ("tcb", "allow_dynamic_platform", False, None),
    ("tcb", "allow_cached_keys", True, False),
]


@pytest.mark.parametrize(
    ("block", "member", "good", "bad"), MEMBERS, ids=[f"{b}.{m}" for b, m, *_ in MEMBERS]
)
def test_each_member_is_compared(block: str, member: str, good: Any, bad: Any) -> None:
    """With what was shown; in the mode of its policy."""
    kind = "tdx" if block == "tcb" else block
    for value, mode, expected in (
        (good, "enforce", None),
        (bad, "enforce", Failed),
        (bad, "report", Reported),
    ):
        if value is None:
            continue
        stated = {kind: REFERENCE[kind]}
        stated[block] = {**stated.get(block, {}), member: value}
        outcomes = list(judge_shown(kind, STATES[kind], policy(mode, **stated)))
        assert [o for o in outcomes if not isinstance(o, Passed)] == [
            o for o in outcomes if expected is not None and type(o) is expected
        ]
        assert sum(type(o) is expected for o in outcomes) == (expected is not None)


@pytest.mark.parametrize(
    ("kind", "key"),
    [
        ("sev_snp", "debug"),
        ("sev_snp", "migration_agent"),
        ("tdx", "debug"),
        ("tdx", "migratable"),
        ("tdx", "service_td"),
        ("sgx", "debug"),
    ],
)
def test_defaults_hold_under_every_policy(kind: str, key: str) -> None:
    """What is not allowed unless somebody says so."""
    assert all(isinstance(o, Passed) for o in judge_shown(kind, STATES[kind], IDENTITY_ONLY))
    failed = [
        o for o in judge_shown(kind, STATES[kind] | {key: True}, IDENTITY_ONLY) if isinstance(o, Failed)
    ]
    assert len(failed) == 1


def test_what_else_defaults_refuse() -> None:
    """Another VMPL, provisional firmware, memory that the host may remap."""
    for kind, state in (
        ("sev_snp", SNP | {"vmpl": 1}),
        ("sev_snp", SNP | {"current_tcb": TCB | {"snp": 24}}),
        ("tdx", TDX | {"sept_ve_disable": False}),
        ("tdx", TDX | {"tcb_status": "OutOfDate"}),
    ):
        assert sum(isinstance(o, Failed) for o in judge_shown(kind, state, IDENTITY_ONLY)) == 1


def test_what_is_not_stored_is_undecided() -> None:
    """By its name: the next evidence decides."""
    stated = policy(sev_snp={**REFERENCE["sev_snp"], "id_block": {"image_id": ["cc" * 16]}})
    (undecided,) = [o for o in judge_shown("sev_snp", SNP, stated) if isinstance(o, Undecided)]
    assert undecided.check == "sev_snp.id_block.image_id"
    unknown = {name: value for name, value in TDX.items() if name != "tcb_status"}
    (undecided,) = [o for o in judge_shown("tdx", unknown, IDENTITY_ONLY) if isinstance(o, Undecided)]
    assert undecided.check == "tcb.accepted_status"


def test_kinds_and_rules_are_judged_together() -> None:
    """Rules read what is stored; of a quote it is stored otherwise, so they are undecided."""
    rules = [{"name": "a", "expression": "sev_snp.vmpl == 0 && machine.cluster == 'c1'"}]
    applied = policy(sev_snp=REFERENCE["sev_snp"], rules=rules)
    outcomes = judge_again({"sev_snp": SNP}, Assurance.TEE, Role.WORKER_APP, applied, "c1")
    assert all(isinstance(o, Passed) for o in outcomes)
    assert "rule" in {o.check for o in outcomes}
    none = judge_again({"sev_snp": None}, Assurance.TEE, Role.WORKER_APP, applied, "c1")
    assert [type(o) for o in none if o.check == "rule"] == [Undecided]


def _genuine(kind: str) -> dict[str, Any]:
    """Return what evidence of the test kit leaves, as it is stored: JSON."""
    known: Any
    if kind == "sev_snp":
        processor = Processor(pki=Pki(Product.GENOA))
        item = {"report": processor.report(TOLD), "vek": processor.vek}
        known = processor.endorsements()
    else:
        case = tdx() if kind == "tdx" else sgx()
        item, known = {"quote": case.quote}, PLATFORM.endorsements(case.collateral)
    side: Any = KINDS[kind]
    expected = Expected(at=AT, report_data=TOLD, endorsements=known, approved=None, nonce=bytes(32))
    read = side.parse({name: b64encode(data) for name, data in item.items()})
    _, found = side.follow(side.verify(read, expected), expected, None)
    return dict(json.loads(json.dumps(found.state)))


@pytest.mark.parametrize("kind", ["sev_snp", "tdx", "sgx"])
def test_what_evidence_leaves_is_enough(kind: str) -> None:
    """It has what states in this file have: it teaches a policy, which it keeps, and nothing is undecided."""
    state = _genuine(kind)
    assert STATES[kind].keys() <= state.keys()
    learned = learn_shown([("a", {kind: state})])
    outcomes = list(judge_shown(kind, state, policy("enforce", **learned.blocks)))
    assert outcomes
    assert all(isinstance(o, Passed) for o in outcomes)


def test_what_is_learned_holds() -> None:
    """The proposal is a policy that the machines keep which it was learned from; who stands out is named."""
    older = copy.deepcopy(SNP) | {"measurement": B48, "guest_svn": 1, "signing_key": "vlek", "vmpl": 1}
    older["launch_tcb"]["snp"] = 20
    behind = TDX | {"tcb_status": "OutOfDate", "rtmr": [A48, A48, "00" * 48, "00" * 48]}
    machines = [
        ("a", {"sev_snp": SNP, "sgx": SGX}),
        ("b", {"sev_snp": older}),
        ("c", {"sev_snp": SNP | {"debug": True}}),
        ("d", {"tdx": TDX}),
        ("e", {"tdx": behind}),
        ("f", {"tdx": TDX | {"tcb_status": "Revoked"}}),
    ]
    learned = learn_shown(machines)
    assert learned.blocks == {
        "sev_snp": {
            "measurement": [A48, B48],
            "min_guest_svn": 1,
            "min_tcb": {"milan": TCB | {"snp": 20}},
            "signing_key": "any",
            "max_vmpl": 1,
        },
        "tdx": {"mrtd": [A48], "rtmr0": [A48], "rtmr1": [B48, A48]},
        "tcb": {"accepted_status": ["UpToDate", "OutOfDate"]},
        "sgx": {"mrenclave": [A32], "mrsigner": ["bb" * 32], "isv_prod_id": 1, "min_isv_svn": 3},
    }
    assert [(o.machine_id, o.reason) for o in learned.outliers] == [("c", "sev_snp: a debug guest")]
    assert ("sev_snp measurement", A48, ("a",)) in [(g.subject, g.value, g.machines) for g in learned.groups]
    assert len(learned.notes) == 3
    applied = policy("enforce", **learned.blocks)
    for _, states in machines[:2] + machines[3:5]:
        for kind, state in states.items():
            assert all(isinstance(o, Passed) for o in judge_shown(kind, state, applied))


def test_what_differs_everywhere_is_no_reference_value() -> None:
    """Nor is what was never measured; without one, there is no block."""
    many = [(str(i), {"sev_snp": SNP | {"measurement": f"{i:02x}" * 48}}) for i in range(1, 10)]
    learned = learn_shown(many)
    assert learned.blocks == {}
    assert "9 different values" in learned.notes[0]
    two = [(str(i), {"sgx": SGX | {"isv_prod_id": i}}) for i in range(2)]
    assert "isv_prod_id" not in learn_shown(two).blocks["sgx"]
    sizes = [
        (str(i), {"sgx": SGX | {"mrenclave": f"{i:02x}" * 32, "tcb_status": None}}) for i in range(1, 10)
    ]
    assert learn_shown(sizes).blocks["sgx"].keys() == {"mrsigner", "isv_prod_id", "min_isv_svn"}
    vlek = learn_shown([("a", {"sev_snp": SNP | {"signing_key": "vlek", "guest_svn": 0}})])
    assert vlek.blocks["sev_snp"]["signing_key"] == "vlek"
    assert "signing_key" not in learn_shown([("a", {"sev_snp": SNP})]).blocks["sev_snp"]
    assert "min_guest_svn" not in vlek.blocks["sev_snp"]
    assert learn_shown([("a", {"tdx": QUOTED | {"mrtd": "00" * 48, "rtmr": ["00" * 48] * 4}})]).blocks == {}
    again = [
        (str(i), {"sgx": SGX | {"tcb_status": "OutOfDate"}, "tdx": TDX | {"tcb_status": "OutOfDate"}})
        for i in range(2)
    ]
    assert learn_shown(again).blocks["tcb"] == {"accepted_status": ["UpToDate", "OutOfDate"]}


def test_versions_of_gpus_are_learned() -> None:
    """Of all in a machine."""
    gpus = [{"driver_version": "550.90.07", "vbios_version": "96.00"}, {"driver_version": "550.54.15"}]
    blocks = learn_shown([("a", {"gpu": {"gpus": gpus}})]).blocks
    assert blocks == {"gpu": {"driver_versions": ["550.54.15", "550.90.07"], "vbios_versions": ["96.00"]}}
    assert learn_shown([("a", {"gpu": {}})]).blocks == {}
