"""Policies proposed from stored evidence: from whom, with what, and what is told about it (TPM.md §4.6)."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import Any

import pytest

from attestation.machines import Role, Status
from attestation.reference import parse_policy
from attestation.reference.schema import either
from attestation.results import Verdict
from attestation.store import PolicyAssignment, Scope, Tx, pack
from attestation_service.policies import kept_logs, learning
from attestation_testing import BootOptions, boot_log
from attestation_testing.ima_logs import ima_log
from tests.unit.appraisal.test_shown import SNP
from tests.unit.service.conftest import Service, Starter
from tests.unit.service.test_policies import a_policy
from tests.unit.service.test_policy_trials import GOOD, OTHER, proven, tried
from tests.unit.service.test_registration import code

pytestmark = pytest.mark.anyio


async def learned(service: Service, **request: Any) -> dict[str, Any]:
    """Return a proposal."""
    answer = await service.operator("POST", "/policies/learn", request)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def booted(service: Service, number: int, options: BootOptions, **more: Any) -> str:
    """Store a machine that booted so, with its log."""
    log = boot_log(options)
    kept = pack("tcg", log.serialise())
    await service.store.write(lambda tx: tx.logs.put(kept, service.clock.now()))
    values = {pcr: value for pcr, value in log.pcrs().items() if pcr < 16}
    return await proven(service, number, values, evidence={"event_log_sha256": kept.sha256}, **more)


async def test_a_proposal_is_what_most_have(service: Service) -> None:
    """It can be stored as it is, the machines it came from keep it, and nothing is stored by asking."""
    for number in range(1, 9):
        await proven(service, number, GOOD)
    await proven(service, 9, OTHER)
    found = await learned(service, fleet=True, name="workers", version=3)
    assert (found["machines"], found["left_out"]) == (9, 0)
    assert found["document"]["pcrs"]["7"] == {"any_of": [GOOD[7].hex()]}
    assert [o["machine"] for o in found["outliers"]] == ["w-9"]
    [group] = [g for g in found["groups"] if g["subject"] == "pcr7"]
    assert group["machines"] == [f"w-{n}" for n in range(1, 9)]
    assert parse_policy(found["document"]).ref == "workers@3"
    assert (await service.operator("POST", "/policies", found["document"])).status_code == 201
    trial = await tried(service, policy="workers@3")
    assert [m["hostname"] for m in trial["failing"]] == ["w-9"]


async def test_a_policy_in_force_that_says_nothing_of_tpms(service: Service) -> None:
    """What is learned takes its place, and keeps what it demands."""
    for number in (1, 2):
        await proven(service, number, GOOD)
    silent = {"format": "itl-policy/2", "name": "vouched", "version": 1, "assurance": {"minimum": "tofu"}}
    assert (await service.operator("POST", "/policies", silent)).status_code == 201
    assigned = await service.operator("PUT", "/policies/assignments/fleet/*", {"policy": "vouched@1"})
    assert assigned.status_code == 200, assigned.text
    document = (await learned(service, fleet=True))["document"]
    assert document["tpm"]["pcrs"]["7"] == {"any_of": [GOOD[7].hex()]}
    assert document["assurance"] == {"minimum": "tofu"}


@pytest.mark.threat("T72")
async def test_it_learns_from_those_who_are_asked_for(service: Service) -> None:
    """By role and cluster; what failed only where somebody says so, by name or for all, and then it is told."""
    await proven(service, 1, GOOD)
    await proven(service, 2, GOOD, role=Role.LINUX, cluster_id="c1")
    failed = await proven(service, 3, OTHER, verdict=Verdict.FAILED)
    for request, machines in (
        ({"role": "worker-app"}, 2),
        ({"role": "linux"}, 1),
        ({"cluster_id": "c1"}, 1),
        ({"role": "linux", "cluster_id": "c1"}, 1),
        ({"fleet": True}, 3),
    ):
        found = await learned(service, **request)
        assert found["machines"] == machines, request
        assert found["document"]["pcrs"]["7"] == {"any_of": [GOOD[7].hex()]}, request
    by_name: dict[str, Any] = {"machines": [failed]}
    for chosen in (by_name, {"role": "worker-app", "include_failed": True}):
        found = await learned(service, **chosen)
        assert OTHER[7].hex() in found["document"]["pcrs"]["7"]["any_of"], chosen
        assert found["notes"][0].startswith("learned from evidence that was refused: w-3; "), chosen


async def test_refusals_are_named_only_so_far(service: Service) -> None:
    """A note stays a note."""
    for number in range(1, 9):
        await proven(service, number, OTHER, verdict=Verdict.FAILED)
    found = await learned(service, fleet=True, include_failed=True)
    assert "w-5 and 3 more" in found["notes"][0]


async def test_machines_are_called_what_people_call_them(service: Service) -> None:
    """By hostname where only one has it, else by id."""
    one = await proven(service, 1, GOOD, hostname="twin")
    two = await proven(service, 2, GOOD, hostname="twin", cluster_id="c1")
    three = await proven(service, 3, GOOD, hostname=None)
    await proven(service, 4, GOOD, hostname="w")
    found = await learned(service, fleet=True)
    assert found["groups"][0]["machines"] == [one, two, three, "w"]


async def test_the_bank_that_most_have(service: Service) -> None:
    """Evidence of another one cannot be compared; who was left out is told."""
    for number in (1, 2):
        await proven(service, number, GOOD)
    await proven(service, 3, {7: bytes(48)}, evidence={"pcr_bank": "sha384"})
    found = await learned(service, fleet=True)
    assert found["document"]["bank"] == "sha256"
    assert any("another bank than sha256: 1" in note for note in found["notes"])


async def test_event_logs_are_learned_from(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """Secure Boot and kernels where every machine's log leads to what it quoted."""
    for number in (1, 2):
        await booted(service, number, BootOptions())
    await booted(service, 3, BootOptions(kernel="6.1.0-57"))
    found = await learned(service, fleet=True)
    assert found["document"]["secure_boot"]["required"] is True
    assert {"kernels"} <= set(found["document"]["boot"])
    kernels = {g["value"]: g["machines"] for g in found["groups"] if g["subject"] == "kernel"}
    assert sorted(kernels.values()) == [["w-1", "w-2"], ["w-3"]]
    # Tried on the same evidence, it holds; and with a kernel less, one newly fails.
    assert (await tried(service, document=found["document"]))["passed"] == 3
    await learned(service, machines=[await booted(service, 4, BootOptions())])
    old = await learned(service, machines=[await booted(service, 5, BootOptions(seed=0))], name="old")
    trial = await tried(service, document=old["document"])
    assert [m["hostname"] for m in trial["failing"]] == ["w-3"]
    # A page that has enough logs to read ends early; nothing is lost.
    monkeypatch.setattr(kept_logs, "MOST_LOGS", 1)
    kept_logs._outcomes.clear()
    first = await tried(service, document=old["document"])
    assert first["judged"] == 2
    rest = await tried(service, document=old["document"], cursor=first["next_cursor"])
    assert (first["judged"] + rest["judged"], rest["next_cursor"]) == (5, None)


@pytest.mark.threat("T72")
async def test_a_log_that_is_gone_or_broken_decides_nothing(service: Service) -> None:
    """Purged, or no log at all: undecided for a trial, no rule for a proposal."""
    log = boot_log(BootOptions())
    values = {pcr: value for pcr, value in log.pcrs().items() if pcr < 16}
    await proven(service, 1, values, evidence={"event_log_sha256": "ab" * 32})
    broken = pack("tcg", b"\x00" * 64)
    await service.store.write(lambda tx: tx.logs.put(broken, service.clock.now()))
    await proven(service, 2, values, evidence={"event_log_sha256": broken.sha256})
    # Its row was changed behind our back.
    forged = dataclasses.replace(pack("tcg", log.serialise()), sha256="cd" * 32)
    await service.store.write(lambda tx: tx.logs.put(forged, service.clock.now()))
    await proven(service, 3, values, evidence={"event_log_sha256": forged.sha256})
    document = a_policy(1, pcrs={}, secure_boot={"required": True})
    trial = await tried(service, document=document)
    assert (trial["undecided"], trial["failed"]) == (3, 0)
    found = await learned(service, fleet=True)
    assert "secure_boot" not in found["document"]


async def test_measurement_lists_are_tried(service: Service) -> None:
    """What ran is judged where a list was kept; one that is broken decides nothing."""
    pcrs = boot_log().pcrs()
    values: dict[int, bytes] = {}
    for number, content in ((1, b"agent"), (2, b"evil")):
        log = ima_log(pcrs, {"/usr/bin/agent": content})
        kept = pack("ima", log.serialise())
        await service.store.write(lambda tx, k=kept: tx.logs.put(k, service.clock.now()))  # type: ignore[misc]
        values = {pcr: pcrs[pcr] for pcr in range(10)} | {10: log.pcr10()}
        await proven(service, number, values, evidence={"ima_log_sha256": kept.sha256})
    broken = pack("ima", b"\x01" * 64)
    await service.store.write(lambda tx: tx.logs.put(broken, service.clock.now()))
    for number, sha256 in ((3, broken.sha256), (4, "ab" * 32), (5, None)):
        await proven(service, number, values, evidence={"ima_log_sha256": sha256})
    document = a_policy(1, pcrs={}, ima={"allow": [hashlib.sha256(b"agent").hexdigest()]})
    for _ in range(2):  # parsed, then remembered
        trial = await tried(service, document=document)
        assert (trial["passed"], trial["failed"], trial["undecided"]) == (1, 1, 3)
        assert [m["hostname"] for m in trial["failing"]] == ["w-2"]


async def test_what_is_remembered_makes_room(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trials of many policies over many logs end in no heap without end."""
    monkeypatch.setattr(kept_logs, "MOST_REMEMBERED", 1)
    kept_logs._outcomes.clear()
    for number in (1, 2):
        await booted(service, number, BootOptions(kernel=str(number)))
    document = a_policy(1, pcrs={}, secure_boot={"required": True})
    assert (await tried(service, document=document))["passed"] == 2
    assert len(kept_logs._outcomes) == 1


async def test_no_more_than_a_limit_is_looked_at(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large fleet teaches no more than a part of it; how much was left out is told."""
    monkeypatch.setattr(learning, "_PAGE", 2)
    monkeypatch.setattr(learning, "MOST_MACHINES", 3)
    for number in range(1, 8):
        await proven(service, number, GOOD)
    found = await learned(service, fleet=True)
    assert (found["machines"], found["left_out"]) == (4, 3)


async def test_what_cannot_be_learned(service: Service) -> None:
    """From nobody, from several choices at once, from strangers, from those without evidence."""
    nobody = "00000000-0000-4000-8000-000000000000"
    empty = await proven(service, 1, None)
    gone = await proven(service, 2, GOOD, status=Status.REVOKED)
    for request, status, expected in (
        ({}, 422, "request-invalid"),
        ({"fleet": True, "role": "linux"}, 422, "request-invalid"),
        ({"machines": [empty], "fleet": True}, 422, "request-invalid"),
        ({"machines": [nobody]}, 404, "machine-unknown"),
        ({"machines": [gone]}, 404, "machine-unknown"),
        ({"machines": [empty]}, 422, "policy-invalid"),
        ({"fleet": True}, 422, "policy-invalid"),
        ({"fleet": True, "name": "Ä"}, 422, "schema-violation"),
        ({"fleet": 1}, 422, "schema-violation"),
        ({"fleet": True, "version": "1"}, 422, "schema-violation"),
    ):
        answer = await service.operator("POST", "/policies/learn", request)
        assert (answer.status_code, code(answer)) == (status, expected), request


async def test_it_starts_from_what_is_in_force(service: Service) -> None:
    """The role's policy where one is assigned, else nothing of its own beside wider ones, else the shipped one."""
    for number in (1, 2, 3):
        await proven(service, number, GOOD, role=Role.LINUX)
    shipped = await learned(service, role="linux")
    assert (shipped["base"], shipped["document"]["max_age_seconds"]) == ("identity-only@1", 180)
    wide = {**a_policy(1, "wide", max_age_seconds=120), "assurance": {"minimum": "tofu"}}
    narrow = a_policy(1, "narrow", mode="report", max_age_seconds=60, clock={"safe": "required"})
    for document in (wide, narrow):
        assert (await service.operator("POST", "/policies", document)).status_code == 201
    await service.operator("PUT", "/policies/assignments/fleet/*", {"policy": "wide@1"})
    between = await learned(service, role="linux")
    assert between["base"] is None
    assert "max_age_seconds" not in between["document"]
    assert (await learned(service, fleet=True))["document"]["max_age_seconds"] == 120
    await service.operator("PUT", "/policies/assignments/role/linux", {"policy": "narrow@1"})
    machine = await proven(service, 4, GOOD, role=Role.GENERIC)
    for request in ({"role": "linux"}, {"machines": [await proven(service, 5, GOOD, role=Role.LINUX)]}):
        found = await learned(service, name="next", **request)
        kept = {member: found["document"][member] for member in ("max_age_seconds", "clock", "mode")}
        assert kept == {"max_age_seconds": 60, "clock": {"safe": "required"}, "mode": "report"}
        assert found["base"] == "narrow@1"
    mixed = await learned(service, fleet=True)
    assert mixed["base"] == "wide@1"
    assert "another policy applies to 1 of these machines; this starts from wide@1+narrow@1" in mixed["notes"]
    assert (await learned(service, machines=[machine]))["base"] == "wide@1"


ALONE = {
    "assurance": {"minimum": "tofu"},
    "max_age_seconds": 3600,
    "log_padding": "accepted",
    "clock": {"safe": "flag"},
}
"""What one operator would lower."""


@pytest.mark.threat("T153")
@pytest.mark.parametrize("mode", ["enforce", "report"])
async def test_what_one_operator_lowered_is_not_learned_for_a_guarded_role(start: Starter, mode: str) -> None:
    """Several will agree to the proposal: the weak values that one assigned must not become theirs."""
    service = await start(dual_control_roles=("controlplane",))
    guarded = await proven(service, 1, GOOD, role=Role.CONTROLPLANE)
    worker = await proven(service, 2, GOOD)
    for document in (
        a_policy(1, "weak", mode=mode, **ALONE),
        a_policy(1, "strict", clock={"safe": "required"}, max_age_seconds=120),
    ):
        assert (await service.operator("POST", "/policies", document)).status_code == 201

    def assign(scope: Scope, subject: str, policy: str, *, agreed: bool) -> None:
        row = PolicyAssignment(
            scope=scope,
            subject=subject,
            policy=policy,
            assigned_at=service.clock.now(),
            assigned_by="one",
            agreed=agreed,
        )
        service.store.write_sync(lambda tx: tx.policies.assign(row))

    assign("fleet", "*", "strict@1", agreed=True)
    for machine in (guarded, worker):
        assign("machine", machine, "weak@1", agreed=False)

    found = await learned(service, machines=[guarded])
    assert found["base"] == "weak@1"
    states = {member: found["document"][member] for member in ALONE}
    assert states == {
        "assurance": {"minimum": "ek-chain"},
        "max_age_seconds": 120,
        "log_padding": "refused",
        "clock": {"safe": "required"},
    }
    told = "not taken from what one operator assigned, but as it is in force for controlplane: "
    assert f"{told}assurance, clock, log_padding, max_age_seconds" in found["notes"]
    # Among others, too: where one of them is of the role, several will agree for it.
    assert (await learned(service, machines=[worker, guarded]))["document"]["assurance"][
        "minimum"
    ] == "ek-chain"
    # A worker's is its operators' affair, and what several agreed to is theirs.
    kept = (await learned(service, machines=[worker]))["document"]
    assert {member: kept[member] for member in ALONE} == ALONE
    assign("machine", guarded, "weak@1", agreed=True)
    kept = (await learned(service, machines=[guarded]))["document"]
    assert {member: kept[member] for member in ALONE} == ALONE


@pytest.mark.threat("T146")
async def test_machines_that_measured_nothing_teach_nothing_unless_somebody_says_so(service: Service) -> None:
    """Refused; with the loud choice proposed, warned of and in the audit, whatever becomes of the proposal."""
    for number in (1, 2):
        await proven(service, number, dict.fromkeys(range(8), bytes(32)))
    answer = await service.operator("POST", "/policies/learn", {"fleet": True})
    assert (answer.status_code, code(answer)) == (422, "policy-invalid")
    assert "nothing was measured" in answer.json()["detail"]
    assert await service.audit(action="policy_learn") == []
    found = await learned(service, fleet=True, accept_unmeasured=True, name="careless", version=4)
    assert found["document"]["pcrs"]["4"] == {"any_of": ["00" * 32]}
    assert any("as asked" in note for note in found["notes"])
    [entry] = await service.audit(action="policy_learn")
    assert entry["detail"] == "careless@4 accept_unmeasured"


async def test_the_schema_is_served(service: Service) -> None:
    """The one of the package, and the same in the OpenAPI document."""
    answer = await service.operator("GET", "/policies/schema")
    assert answer.headers["content-type"] == "application/schema+json"
    assert json.loads(answer.text) == json.loads(json.dumps(either()))
    body = service.app.openapi()["paths"]["/api/v1/policies"]["post"]["requestBody"]
    documented = body["content"]["application/json"]
    served = json.loads(answer.text)["oneOf"]
    told = [each["properties"].keys() for each in documented["schema"]["oneOf"]]
    assert told == [each["properties"].keys() for each in served]
    assert not {"$id", "$schema"} & {name for each in documented["schema"]["oneOf"] for name in each}
    formats = {parse_policy(each["value"]).document for each in documented["examples"].values()}
    assert {json.loads(each)["format"] for each in formats} == set(documented["examples"])


async def showed(service: Service, number: int, state: dict[str, Any], values: Any = GOOD) -> str:
    """Store a machine with what its SEV-SNP reports showed, beside a TPM or with nothing quoted."""
    machine_id = await proven(service, number, values)

    def work(tx: Tx) -> None:
        tx.identities.add(tx.machines.require(machine_id), "sev_snp", bytes([number]) * 48)
        tx.identities.renew(machine_id, "sev_snp", state)

    await service.store.write(work)
    return machine_id


@pytest.mark.parametrize("values", [GOOD, None], ids=["beside a TPM", "alone"])
async def test_what_confidential_machines_showed(service: Service, values: Any) -> None:
    """Is learned into a block, tried on them, and a debug guest is named."""
    for number in (1, 2):
        await showed(service, number, SNP, values)
    await showed(service, 3, SNP | {"debug": True}, values)
    found = await learned(service, fleet=True, name="guests")
    assert found["document"]["format"] == "itl-policy/2"
    assert ("tpm" in found["document"]) is (values is not None)
    assert found["document"]["sev_snp"]["measurement"] == [SNP["measurement"]]
    assert [(o["machine"], o["reason"]) for o in found["outliers"]] == [("w-3", "sev_snp: a debug guest")]
    trial = await tried(service, document=found["document"])
    if values is not None:
        assert [(m["hostname"], m["failed"]) for m in trial["failing"]] == [("w-3", "sev_snp.allow_debug")]
        assert trial["checks"]["sev_snp.measurement"]["passed"] == 3


async def test_what_is_learned_stands_beside_what_a_block_says_already(service: Service) -> None:
    """Other members of it stay demanded."""
    machine_id = await showed(service, 1, SNP, None)
    base: dict[str, Any]
    base = {"format": "itl-policy/2", "name": "guests", "version": 1, "max_age_seconds": 60}
    base["sev_snp"] = {"measurement": ["ee" * 48], "min_report_version": 3}
    assert (await service.operator("POST", "/policies", base)).status_code == 201
    assigned = await service.operator("PUT", "/policies/assignments/fleet/*", {"policy": "guests@1"})
    assert assigned.status_code == 200, assigned.text
    document = (await learned(service, fleet=True, name="guests", version=2))["document"]
    assert (document["max_age_seconds"], document["version"]) == (60, 2)
    assert document["sev_snp"]["min_report_version"] == 3
    assert document["sev_snp"]["measurement"] == [SNP["measurement"]]
    shown = (await service.operator("GET", f"/machines/{machine_id}/policy")).json()
    assert shown["identifier"].startswith("ni:///sha-384;")
