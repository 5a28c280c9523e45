"""The blocks about confidential machines: read, built, shown, composed (docs/protocol/policy.md)."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from attestation.errors import PolicyInvalid
from attestation.reference import Policy, compose, compose_guarded, diff, effective_document, parse_policy
from attestation.reference.blocks import BLOCKS, COMMON_BLOCKS
from attestation.reference.confidential import (
    CelRule,
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
from attestation.reference.confidential_blocks import STATUSES
from attestation.reference.document import with_blocks
from attestation.reference.rules import Demand
from attestation.reference.schema import schema_2

A48, B48, A32, A16 = "aa" * 48, "bb" * 48, "aa" * 32, "cc" * 16
SNP: dict[str, Any] = {
    "measurement": [A48, B48],
    "host_data": [A32],
    "id_block": {
        "require": True,
        "id_key_digests": [A48],
        "author_key_digests": [B48],
        "family_id": [A16],
        "image_id": [A16],
    },
    "min_guest_svn": 3,
    "max_vmpl": 1,
    "allow_debug": False,
    "allow_migration_agent": True,
    "require_smt_disabled": True,
    "require_single_socket": False,
    "platform_info": {"must_set": 1, "must_clear": 2},
    "min_tcb": {"milan": {"bootloader": 3, "microcode": 200}, "turin": {"fmc": 1}},
    "allow_provisional_firmware": True,
    "allowed_chip_ids": ["aa" * 64, "bb" * 8],
    "signing_key": "any",
    "csp_ids": ["a-cloud"],
    "min_report_version": 3,
    "min_launch_mit_vector": 5,
}
TDX: dict[str, Any] = {
    "mrtd": [A48],
    **{f"rtmr{i}": [f"{i}{i}" * 48] for i in range(4)},
    "mrseam": [A48],
    "mrsignerseam": ["00" * 48],
    "mrconfigid": [A48],
    "mrowner": [A48],
    "mrownerconfig": [A48],
    "xfam": {"value": "e702060000000000", "mask": "ff" * 8},
    "td_attributes": {"value": "0000001000000000", "mask": "0100001000000000"},
    "allow_debug": False,
    "require_sept_ve_disable": True,
    "allow_migration": False,
    "allow_service_td": False,
    "accepted_ppids": [A16],
    "require_event_log": True,
}
SGX: dict[str, Any] = {
    "mrenclave": [A32],
    "mrsigner": [A32],
    "isv_prod_id": 1,
    "min_isv_svn": 2,
    "allow_debug": True,
}
GPU: dict[str, Any] = {
    "driver_versions": ["550.90.07"],
    "vbios_versions": ["96.00.9F.00.01"],
    "arch": ["HOPPER"],
    "rim_required": True,
}
TCB: dict[str, Any] = {
    "accepted_status": ["UpToDate", "SWHardeningNeeded"],
    "min_tcb_date": "2025-02-12T00:00:00Z",
    "min_tcb_evaluation_data_number": 17,
    "platform_grace_days": 30,
    "qe_grace_days": 0,
    "reject_advisories": ["INTEL-SA-00837"],
    "allow_smt": False,
    "allow_dynamic_platform": False,
    "allow_cached_keys": False,
}
COLLATERAL: dict[str, Any] = {"require_revocation": False, "max_staleness_hours": 48, "allow_fetch": False}
RULE: dict[str, Any] = {"name": "no-debug", "expression": "!sev_snp.debug", "message": "a debug guest"}
ALL: dict[str, Any] = {
    "sev_snp": SNP,
    "tdx": TDX,
    "sgx": SGX,
    "gpu": GPU,
    "tcb": TCB,
    "collateral": COLLATERAL,
    "identity": {"mode": "observed"},
    "rules": [RULE],
}
VALIDATOR = jsonschema_rs.Draft202012Validator(schema_2())


def policy(name: str = "tees", mode: str = "enforce", **blocks: object) -> Policy:
    document = {"format": "itl-policy/2", "name": name, "version": 1, "mode": mode, **blocks}
    found = parse_policy(document)
    # Whatever the reader accepts, the schema accepts.
    VALIDATOR.validate(document)
    return found


def hexes(*values: str, report: bool = False) -> Demand[frozenset[bytes]]:
    return Demand(frozenset(bytes.fromhex(value) for value in values), report)


@pytest.mark.parametrize("report", [False, True])
def test_every_member_is_read(report: bool) -> None:
    """Into the rules of its block, each with the mode of the policy that states it."""

    def of(value: Any) -> Demand[Any]:
        return Demand(value, report)

    found = policy(mode="report" if report else "enforce", **ALL).blocks
    assert found["sev_snp"] == SevSnpRules(
        measurement=hexes(A48, B48, report=report),
        host_data=hexes(A32, report=report),
        id_block=IdBlockRules(
            require=of(True),
            id_key_digests=hexes(A48, report=report),
            author_key_digests=hexes(B48, report=report),
            family_id=hexes(A16, report=report),
            image_id=hexes(A16, report=report),
        ),
        min_guest_svn=of(3),
        max_vmpl=of(1),
        allow_debug=of(False),
        allow_migration_agent=of(True),
        require_smt_disabled=of(True),
        require_single_socket=of(False),
        platform_must_set=of(1),
        platform_must_clear=of(2),
        min_tcb=of({"milan": {"bootloader": 3, "microcode": 200}, "turin": {"fmc": 1}}),
        allow_provisional_firmware=of(True),
        allowed_chip_ids=hexes("aa" * 64, "bb" * 8, report=report),
        signing_key=of("any"),
        csp_ids=of({"a-cloud"}),
        min_report_version=of(3),
        min_launch_mit_vector=of(5),
    )
    a48 = hexes(A48, report=report)
    rtmr = [hexes(f"{i}{i}" * 48, report=report) for i in range(4)]
    assert found["tdx"] == TdxRules(
        mrtd=a48,
        rtmr=(rtmr[0], rtmr[1], rtmr[2], rtmr[3]),
        mrseam=a48,
        mrsignerseam=hexes("00" * 48, report=report),
        mrconfigid=a48,
        mrowner=a48,
        mrownerconfig=a48,
        xfam=of(Masked(value=0x602E7, mask=(1 << 64) - 1)),
        td_attributes=of(Masked(value=1 << 28, mask=1 << 28 | 1)),
        allow_debug=of(False),
        require_sept_ve_disable=of(True),
        allow_migration=of(False),
        allow_service_td=of(False),
        accepted_ppids=hexes(A16, report=report),
        require_event_log=of(True),
    )
    assert found["sgx"] == SgxRules(
        mrenclave=hexes(A32, report=report),
        mrsigner=hexes(A32, report=report),
        isv_prod_id=of(1),
        min_isv_svn=of(2),
        allow_debug=of(True),
    )
    assert found["gpu"] == GpuRules(
        driver_versions=of({"550.90.07"}),
        vbios_versions=of({"96.00.9F.00.01"}),
        arch=of({"HOPPER"}),
        rim_required=of(True),
    )
    assert found["tcb"] == TcbRules(
        accepted_status=of({"UpToDate", "SWHardeningNeeded"}),
        min_tcb_date=of(datetime(2025, 2, 12, tzinfo=UTC)),
        min_tcb_evaluation_data_number=of(17),
        platform_grace_days=of(30),
        qe_grace_days=of(0),
        reject_advisories=of({"INTEL-SA-00837"}),
        allow_smt=of(False),
        allow_dynamic_platform=of(False),
        allow_cached_keys=of(False),
    )
    assert found["collateral"] == CollateralRules(
        require_revocation=of(False), max_staleness_hours=48, allow_fetch=False
    )
    assert found["identity"] == IdentityRules(mode="observed")
    assert found["rules"] == (CelRule(**RULE, report=report),)


def test_all_members_stand_above() -> None:
    """So that what is read of every member was tested."""
    for name, block in (BLOCKS | COMMON_BLOCKS).items():
        assert set(block.schema().get("properties", {})) == (set(ALL[name]) if name != "rules" else set())  # type: ignore[call-overload]  # an object


def test_defaults_hold_in_the_mode_of_what_is_stated() -> None:
    """A block in mode report fails nothing by what it leaves unsaid, nor do the common blocks beside it."""
    for report, mode in ((False, "enforce"), (True, "report")):
        found = policy(mode=mode, sev_snp={"measurement": [A48]}, tdx={"mrtd": [A48]}).blocks
        assert found["sev_snp"].allow_debug == Demand(False, report)
        assert found["sev_snp"].signing_key == Demand("vcek", report)
        assert found["sev_snp"].has_reference is not report
        assert found["tdx"].require_sept_ve_disable == Demand(True, report)
        assert found["tcb"].accepted_status == Demand({"UpToDate"}, report)
        assert found["collateral"].require_revocation == Demand(True, report)
        assert found["identity"] == IdentityRules()
        assert "rules" not in found
        assert "sgx" not in found
    assert policy(sev_snp={"measurement": [A48]}).blocks["sev_snp"] == SevSnpRules(measurement=hexes(A48))
    assert policy(tdx={"rtmr2": [A48]}).blocks["tdx"].rtmr == (None, None, hexes(A48), None)


def test_a_report_about_one_member_is_none_about_the_defaults() -> None:
    """Who tries a stricter TCB beside an enforced block loses nothing of what that block demands by default."""
    enforced = policy("wide", tdx={"mrtd": [A48]})
    tried = policy(
        "narrow",
        "report",
        tcb={"min_tcb_evaluation_data_number": 9},
        collateral={"max_staleness_hours": 0},
    )
    found = compose([enforced, tried]).blocks
    assert found["tcb"].accepted_status == Demand(frozenset({"UpToDate"}), report=False)
    assert found["tcb"].min_tcb_evaluation_data_number == Demand(9, report=True)
    assert found["collateral"].require_revocation == Demand(True, report=False)
    # Without such a block the defaults are enforced, too.
    assert tried.blocks["tcb"].accepted_status == Demand(frozenset({"UpToDate"}), report=False)


def test_common_blocks_demand_no_kind() -> None:
    """They say more of what comes; a policy of them alone is one."""
    found = policy(tcb=TCB, collateral=COLLATERAL, identity={"mode": "registered"}, rules=[RULE])
    assert (found.kinds, set(found.blocks)) == ({}, {"tcb", "collateral", "identity", "rules"})
    assert policy(**ALL).kinds == {"sev_snp": False, "tdx": False, "sgx": False, "gpu": False}


@pytest.mark.parametrize(
    ("blocks", "message"),
    [
        ({"sev_snp": {"min_guest_svn": 1}}, "who enforces says what is expected to run"),
        ({"tdx": {"mrseam": [A48]}}, "tdx.mrtd, tdx.rtmr0"),
        ({"sgx": {"isv_prod_id": 1}}, "sgx.mrenclave, sgx.mrsigner"),
        ({"sev_snp": {}}, "sev_snp is not an object that states something"),
        ({"sev_snp": None}, "sev_snp is not an object"),
        ({"sev_snp": {"id_block": {}}}, "sev_snp.id_block is not an object that states something"),
        ({"sev_snp": {"id_block": []}}, "sev_snp.id_block is not an object"),
        ({"sev_snp": {"id_block.require": True}}, "unknown member 'id_block.require'"),
        ({"sev_snp": {"id_block": {"key": 1}}}, "unknown member 'id_block.key'"),
        ({"sev_snp": {"debug": True}}, "unknown member 'debug'"),
        ({"sev_snp": {"measurement": []}}, "sev_snp.measurement must list 1 to 1024"),
        ({"sev_snp": {"measurement": [A48] * 1025}}, "must list 1 to 1024"),
        ({"sev_snp": {"measurement": [1]}}, "not text"),
        ({"sev_snp": {"measurement": A48}}, "must list"),
        ({"sev_snp": {"measurement": [A32]}}, "32 bytes, expected 48"),
        ({"sev_snp": {"measurement": [A48.upper()]}}, "not lower-case hex"),
        ({"sev_snp": {"allowed_chip_ids": [A16]}}, "16 bytes, expected 64"),
        ({"sev_snp": {"max_vmpl": 4}}, "sev_snp.max_vmpl is not a whole number from 0 to 3"),
        ({"sev_snp": {"max_vmpl": True}}, "not a whole number"),
        ({"sev_snp": {"allow_debug": 0}}, "sev_snp.allow_debug is not true or false"),
        ({"sev_snp": {"signing_key": "vek"}}, "signing_key is not vcek or vlek or any"),
        ({"sev_snp": {"min_tcb": {}}}, "min_tcb is not an object that states something"),
        ({"sev_snp": {"min_tcb": {"venice": {"snp": 1}}}}, "unknown member 'venice'"),
        ({"sev_snp": {"min_tcb": {"milan": {}}}}, "min_tcb.milan is not an object"),
        ({"sev_snp": {"min_tcb": {"milan": {"fmc": 1}}}}, "min_tcb.milan: unknown member 'fmc'"),
        ({"sev_snp": {"min_tcb": {"turin": {"fmc": 256}}}}, "turin.fmc is not a whole number from 0 to 255"),
        ({"sev_snp": {"csp_ids": [""]}}, "printable ASCII"),
        ({"sev_snp": {"csp_ids": ["x" * 129]}}, "printable ASCII"),
        ({"tdx": {"xfam": {"value": "00" * 8}}}, "xfam is not an object of value and mask"),
        ({"tdx": {"xfam": "00" * 8}}, "xfam is not an object of value and mask"),
        ({"tdx": {"xfam": {"value": "00" * 8, "mask": 1}}}, "tdx.xfam.mask is not text"),
        ({"tdx": {"xfam": {"value": "00" * 8, "mask": "00" * 7}}}, "7 bytes, expected 8"),
        ({"tdx": {"xfam": {"value": "03" * 8, "mask": "01" * 8}}}, "nothing could match"),
        ({"tcb": {"accepted_status": ["Revoked"]}}, "'Revoked', which is not one of UpToDate"),
        ({"tcb": {"reject_advisories": ["INTEL-SA-1"]}}, "which is not like INTEL-SA"),
        ({"tcb": {"min_tcb_date": "2025-02-30T00:00:00Z"}}, "is not an instant"),
        ({"tcb": {"min_tcb_date": "2025-02-12"}}, "is not an instant"),
        ({"tcb": {"min_tcb_date": 1}}, "is not an instant"),
        ({"collateral": {"max_staleness_hours": 721}}, "from 0 to 720"),
        ({"identity": {"mode": "any"}}, "identity.mode is not registered or observed"),
        ({"rules": {}}, "rules must list 1 to 16 rules"),
        ({"rules": []}, "rules must list"),
        ({"rules": [RULE] * 17}, "rules must list"),
        ({"rules": [RULE, RULE]}, "no-debug stands twice"),
        ({"rules": ["x"]}, "each is an object of name, expression"),
        ({"rules": [{"name": "x"}]}, "each is an object of name, expression"),
        ({"rules": [RULE | {"more": 1}]}, "each is an object of name, expression"),
        ({"rules": [RULE | {"name": "A"}]}, "name is not 1 to 63"),
        ({"rules": [RULE | {"name": 1}]}, "name is not 1 to 63"),
        ({"rules": [RULE | {"expression": ""}]}, "no-debug: expression is not text of 1 to 512"),
        ({"rules": [RULE | {"expression": 1}]}, "no-debug: expression is not text"),
        ({"rules": [RULE | {"message": ""}]}, "message is not text of 1 to 256"),
        ({"rules": [RULE | {"message": "\n"}]}, "message is not text of 1 to 256"),
    ],
    ids=str,
)
def test_what_is_refused(blocks: dict[str, Any], message: str) -> None:
    """When it is written, with the member."""
    with pytest.raises(PolicyInvalid) as caught:
        policy(**blocks)
    assert message in str(caught.value)


def test_revoked_is_no_status_to_accept() -> None:
    """All others are."""
    assert "Revoked" not in STATUSES
    assert policy(tcb={"accepted_status": list(STATUSES)}).blocks["tcb"].accepted_status.value == set(
        STATUSES
    )


def test_composed_compared_shown() -> None:
    """Member by member, rules by their name; who states what is told."""
    wide = policy("wide", sev_snp=SNP | {"allow_debug": True}, rules=[RULE])
    narrow = policy(
        "narrow",
        "report",
        sev_snp={"id_block": {"require": False}, "min_tcb": {"genoa": {"snp": 1}}},
        rules=[RULE | {"expression": "true"}, {"name": "other", "expression": "true"}],
    )
    both = compose([wide, narrow])
    rules = both.blocks["sev_snp"]
    assert rules.measurement == hexes(A48, B48)
    assert (rules.id_block.require, rules.id_block.family_id) == (Demand(False, True), hexes(A16))
    assert rules.min_tcb == Demand({"genoa": {"snp": 1}}, True)
    assert rules.allow_debug == Demand(True, False)
    assert [(rule.name, rule.expression, rule.report) for rule in both.blocks["rules"]] == [
        ("no-debug", "true", True),
        ("other", "true", True),
    ]
    shown = effective_document(both)
    assert shown["sev_snp"] == SNP | {
        "allow_debug": True,
        "id_block": SNP["id_block"] | {"require": False},
        "min_tcb": {"genoa": {"snp": 1}},
    }
    assert [rule["name"] for rule in shown["rules"]] == ["no-debug", "other"]  # type: ignore[attr-defined]  # a list
    assert shown["sources"]["sev_snp.id_block.require"] == {"policy": "narrow@1", "mode": "report"}  # type: ignore[index]  # an object
    assert effective_document(wide)["rules"] == [RULE]
    assert diff(wide, policy("wide", sev_snp=SNP | {"measurement": [A48]}, tcb=TCB)).words[:2] == (
        "rules: no-debug: not demanded any more (was !sev_snp.debug)",
        "sev snp: allow debug: yes -> no",
    )


def test_what_is_no_list_is_compared_as_it_is_written() -> None:
    """Objects too."""
    before = policy(sev_snp=SNP | {"min_tcb": {"milan": {"snp": 1}}})
    after = policy(sev_snp=SNP | {"min_tcb": {"milan": {"snp": 2}}})
    assert diff(before, after).words == ('sev snp: min tcb: {"milan": {"snp": 1}} -> {"milan": {"snp": 2}}',)


def test_blocks_are_put_into_a_document() -> None:
    """Of either format; members that are not named stay."""
    flat = {"format": "itl-tpm-policy/1", "name": "a", "version": 1, "bank": "sha256", "pcrs": {}}
    found = with_blocks(flat, {"sgx": SGX})
    assert (found["format"], found["tpm"], found["sgx"]) == (
        "itl-policy/2",
        {"bank": "sha256", "pcrs": {}},
        SGX,
    )
    again = with_blocks(found, {"sgx": {"isv_prod_id": 9}, "tcb": TCB})
    assert again == found | {"sgx": SGX | {"isv_prod_id": 9}, "tcb": TCB}
    assert with_blocks({"name": "a"}, {}) == {"name": "a", "format": "itl-policy/2"}


@pytest.mark.threat("T200")
def test_one_operator_loosens_nothing_of_a_machine_under_dual_control() -> None:
    """Not what several agreed on, nor what blocks refuse by default; to demand more is free."""
    agreed = policy("agreed", sev_snp={"measurement": [A48], "max_vmpl": 0})
    alone = policy("alone", **ALL | {"sev_snp": SNP | {"allow_debug": True}})
    found = compose_guarded([agreed, alone], [True, False], "controlplane").blocks
    rules = found["sev_snp"]
    assert (rules.measurement, rules.max_vmpl, rules.allow_debug) == (
        hexes(A48),
        Demand(0, False),
        Demand(False, False),
    )
    assert (rules.min_guest_svn, rules.signing_key) == (Demand(3, False), Demand("vcek", False))
    assert found["tcb"].accepted_status == Demand({"UpToDate"}, False)
    assert (found["tcb"].platform_grace_days, found["tcb"].min_tcb_evaluation_data_number) == (
        None,
        Demand(17, False),
    )
    assert found["collateral"] == CollateralRules(allow_fetch=False)
    assert found["identity"] == IdentityRules()
    # What is expected to run vouches for a machine: one operator may report it.
    assert found["tdx"].mrtd == hexes(A48, report=True)
    assert not found["tdx"].has_reference
    assert found["sgx"].allow_debug == Demand(False, False)
    # A policy that only reports does not turn what is demanded by default into reports.
    reported = policy("reported", "report", sev_snp={"measurement": [A48]})
    found = compose_guarded([reported], [False], "controlplane").blocks
    assert found["sev_snp"] == SevSnpRules(measurement=hexes(A48, report=True))
    assert found["tcb"] == TcbRules()


def test_the_schema_tells_defaults() -> None:
    """From the rules, where they stand."""
    told = json.loads((Path(__file__).parents[3] / "docs/protocol/itl-policy-2.schema.json").read_text())
    snp = told["properties"]["sev_snp"]["properties"]
    assert (snp["signing_key"]["default"], snp["allow_debug"]["default"]) == ("vcek", False)
    assert "default" not in snp["measurement"]
    assert told["properties"]["tcb"]["properties"]["accepted_status"]["default"] == ["UpToDate"]
    assert told["properties"]["collateral"]["properties"]["max_staleness_hours"]["default"] == 0
