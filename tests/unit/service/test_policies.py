"""Policies over HTTP: activation by several people, rollback, history (TPM.md §4.6, FAULTS R19)."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from attestation.machines import Role, Status
from attestation.reference import IDENTITY_ONLY, parse_policy
from attestation_service.auth import Duty
from tests.contract.store_samples import a_machine
from tests.unit.service.conftest import Service, Starter
from tests.unit.service.test_dual_control import Committee
from tests.unit.service.test_registration import code

pytestmark = pytest.mark.anyio

FLEET = "/policies/assignments/fleet/*"
CONTROLPLANE = "/policies/assignments/role/controlplane"
WORKERS = "/policies/assignments/role/worker-app"


def a_policy(version: int = 1, name: str = "cp", **members: Any) -> dict[str, Any]:
    """Return a policy document that compares PCR 7."""
    return {
        "format": "itl-tpm-policy/1",
        "name": name,
        "version": version,
        "bank": "sha256",
        "pcrs": {"7": {"any_of": [f"{version:02x}" * 32]}},
        **members,
    }


async def store(committee: Committee, *versions: int) -> None:
    """Let break-glass store versions of the policy `cp`: that applies nowhere, so nobody need agree."""
    for version in versions:
        answer = await committee.service.operator("POST", "/policies", a_policy(version))
        assert answer.status_code == 201, answer.text


async def applying(service: Service) -> dict[str, str]:
    """Return what is assigned where."""
    listed = (await service.operator("GET", "/policies")).json()["assignments"]
    return {f"{a['scope']} {a['subject']}": a["policy"] for a in listed}


async def history(service: Service, **query: str) -> list[tuple[str, str | None, str]]:
    """Return the history, newest first."""
    answer = await service.operator("GET", "/policies/history", params=query)
    assert answer.status_code == 200, answer.text
    return [(c["subject"], c["policy"], c["by"]) for c in answer.json()["items"]]


@pytest.fixture
async def committee(start: Starter) -> Committee:
    """Return a service where control-plane machines need two, and three versions of a policy."""
    found = Committee(await start(dual_control_roles=("controlplane",)))
    await store(found, 1, 2, 3)
    return found


@pytest.mark.threat("T71")
async def test_an_activation_takes_two(committee: Committee) -> None:
    """One vote changes nothing; the second one activates, and audit and history say who agreed to what."""
    wanted = {"policy": "cp@1"}
    pending = await committee.ask("anna", "PUT", CONTROLPLANE, wanted)
    assert pending.status_code == 202
    told = pending.json()
    assert (told["action"], told["approvals_received"], told["voters"]) == ("policy_assign", 1, ["anna"])
    assert await applying(committee.service) == {}
    assert await history(committee.service) == []
    again = await committee.ask("anna", "PUT", CONTROLPLANE, wanted)
    assert (again.status_code, again.json()["approvals_received"]) == (202, 1)
    [waiting] = (await committee.service.operator("GET", "/approvals")).json()["items"]
    assert waiting["subject"] == "policy cp@1 for role controlplane"
    assert waiting["proposal"]["terms"] == {
        "scope": "role",
        "subject": "controlplane",
        "policy": "cp@1",
        "policy_sha256": parse_policy(a_policy(1)).sha256,
        "replaces": None,
        "replaces_sha256": None,
    }
    done = await committee.ask("bernd", "PUT", CONTROLPLANE, wanted)
    assert (done.status_code, done.json()["assigned_by"]) == (200, "bernd")
    assert await applying(committee.service) == {"role controlplane": "cp@1"}
    assert await history(committee.service) == [("controlplane", "cp@1", "bernd")]
    entries = [e for e in await committee.audit() if e["action"] in ("approve_vote", "policy_assign")]
    assert [(e["action"], e["operator_cn"]) for e in entries] == [
        ("approve_vote", "anna"),
        ("approve_vote", "bernd"),
        ("policy_assign", "bernd"),
    ]
    assert entries[2]["detail"] == (
        f"cp@1 to role controlplane; agreed by anna, bernd; proposal {told['proposal_digest']}"
    )


async def test_what_applies_already_is_no_act(committee: Committee) -> None:
    """Whoever asks late is told that it is done, and opens no new proposal."""
    await committee.agreed("PUT", CONTROLPLANE, {"policy": "cp@1"})
    before = await committee.audit()
    late = await committee.ask("carla", "PUT", CONTROLPLANE, {"policy": "cp@1"})
    assert (late.status_code, late.json()["assigned_by"]) == (200, "two")
    assert await committee.audit() == before
    assert len(await history(committee.service)) == 1


@pytest.mark.threat("T71")
async def test_weaker_and_stricter_count_alike(committee: Committee) -> None:
    """Another version, the shipped policy, the end of it, the way back: each takes two."""
    await committee.agreed("PUT", CONTROLPLANE, {"policy": "cp@1"})
    for method, path, body in (
        ("PUT", CONTROLPLANE, {"policy": "cp@2"}),
        ("PUT", CONTROLPLANE, {"policy": "identity-only@1"}),
        ("DELETE", CONTROLPLANE, None),
        ("POST", f"{CONTROLPLANE}/rollback", None),
        ("PUT", FLEET, {"policy": "cp@2"}),
        ("PUT", "/policies/assignments/cluster/default", {"policy": "cp@2"}),
    ):
        answer = await committee.ask("anna", method, f"{path}?new_proposal=true", body)
        assert answer.status_code == 202, (method, path, answer.text)
    assert await applying(committee.service) == {"role controlplane": "cp@1"}


@pytest.mark.threat("T71")
async def test_votes_for_different_documents_do_not_add_up(committee: Committee) -> None:
    """Anna means version 2, Bernd version 3; and a vote given in another state counts no more."""
    assert (await committee.ask("anna", "PUT", CONTROLPLANE, {"policy": "cp@2"})).status_code == 202
    assert code(await committee.ask("bernd", "PUT", CONTROLPLANE, {"policy": "cp@3"})) == "proposal-rival"
    beside = f"{CONTROLPLANE}?new_proposal=true"
    assert (await committee.ask("bernd", "PUT", beside, {"policy": "cp@3"})).status_code == 202
    assert await applying(committee.service) == {}
    done = await committee.ask("carla", "PUT", CONTROLPLANE, {"policy": "cp@3"})
    assert done.status_code == 200
    # Anna agreed to version 2 where nothing was; now it would replace version 3.
    assert (await committee.ask("bernd", "PUT", CONTROLPLANE, {"policy": "cp@2"})).status_code == 202


async def test_what_applies_already_is_not_what_was_named(committee: Committee) -> None:
    """Whoever names a proposal and asks for what is the case anyway is told so, not that it is done."""
    await committee.agreed("PUT", CONTROLPLANE, {"policy": "cp@1"})
    digest = (await committee.ask("anna", "PUT", CONTROLPLANE, {"policy": "cp@2"})).json()["proposal_digest"]
    named = f"{CONTROLPLANE}?proposal={digest}"
    assert code(await committee.ask("bernd", "PUT", named, {"policy": "cp@1"})) == "proposal-differs"
    assert (await committee.ask("bernd", "PUT", named, {"policy": "cp@2"})).status_code == 200


async def test_other_roles_stay_open_to_one(committee: Committee) -> None:
    """Dual control is for the roles that were named."""
    assert (await committee.ask("anna", "PUT", WORKERS, {"policy": "cp@1"})).status_code == 200
    assert (await committee.ask("anna", "POST", f"{WORKERS}/rollback")).status_code == 204
    assert await applying(committee.service) == {}


@pytest.mark.threat("T71")
async def test_one_machine_counts_by_its_role(committee: Committee) -> None:
    """A worker's own policy takes one, a control-plane machine's two, and one without a role two as well."""
    worker = a_machine(1, status=Status.ATTESTED, role=Role.WORKER_APP)
    king = a_machine(2, status=Status.ATTESTED, role=Role.CONTROLPLANE)
    stranger = a_machine(3, desired_role=Role.WORKER_APP)
    statuses = []
    for machine in (worker, king, stranger):
        await committee.service.store.write(lambda tx, m=machine: tx.machines.add(m))  # type: ignore[misc]
        path = f"/policies/assignments/machine/{machine.machine_id}"
        statuses.append((await committee.ask("anna", "PUT", path, {"policy": "cp@1"})).status_code)
    assert statuses == [200, 202, 202]
    answer = await committee.service.operator("GET", f"/machines/{king.machine_id}/approvals")
    [vote] = answer.json()["items"]
    assert (vote["action"], vote["live"]) == ("policy_assign", True)


async def test_break_glass_activates_nothing(committee: Committee) -> None:
    """The shared token is nobody; that it was tried is on record."""
    refused = await committee.service.operator("PUT", CONTROLPLANE, {"policy": "cp@1"})
    assert (refused.status_code, code(refused)) == (403, "break-glass-cannot-vote")
    king = a_machine(2, status=Status.ATTESTED, role=Role.CONTROLPLANE)
    await committee.service.store.write(lambda tx: tx.machines.add(king))
    own = f"/policies/assignments/machine/{king.machine_id}"
    assert (await committee.service.operator("PUT", own, {"policy": "cp@1"})).status_code == 403
    told = [(e["action"], e["machine_id"]) for e in await committee.audit()]
    assert told[-2:] == [("denied", None), ("denied", king.machine_id)]
    assert await applying(committee.service) == {}


async def test_viewers_change_nothing(committee: Committee) -> None:
    """Who may only read reads history and documents, and activates nothing."""
    viewer = committee.people.headers("vera", Duty.VIEWER)
    for path in ("/policies", "/policies/history", "/policies/cp/1"):
        assert (await committee.ask(viewer, "GET", path)).status_code == 200
    for method, path in (("PUT", WORKERS), ("DELETE", WORKERS), ("POST", f"{WORKERS}/rollback")):
        body = {"policy": "cp@1"} if method == "PUT" else None
        assert (await committee.ask(viewer, method, path, body)).status_code == 403
    # What costs much is not for those who only look.
    for path, request in (("/policies/test", {"policy": "cp@1"}), ("/policies/learn", {"fleet": True})):
        assert (await committee.ask(viewer, "POST", path, request)).status_code == 403


async def test_a_rollback_puts_back_what_applied_before(committee: Committee) -> None:
    """It is an activation of its own, with two votes; once more, and the newer one is back."""
    for version in (1, 2):
        await committee.agreed("PUT", CONTROLPLANE, {"policy": f"cp@{version}"})
    assert (await committee.ask("anna", "POST", f"{CONTROLPLANE}/rollback")).status_code == 202
    done = await committee.ask("bernd", "POST", f"{CONTROLPLANE}/rollback")
    assert (done.status_code, done.json()["policy"]) == (200, "cp@1")
    [entry] = [e for e in await committee.audit() if "rollback" in (e["detail"] or "")]
    assert entry["detail"].startswith(
        "cp@1 to role controlplane; instead of cp@2; rollback; agreed by anna, bernd"
    )
    again = await committee.agreed("POST", f"{CONTROLPLANE}/rollback")
    assert again["policy"] == "cp@2"
    told = [policy for _, policy, _ in await history(committee.service)]
    assert told == ["cp@2", "cp@1", "cp@2", "cp@1"]


async def test_a_rollback_by_name_is_the_same_act(committee: Committee) -> None:
    """Whoever agrees need not trust the word `rollback`: the vote for the named version counts for it."""
    for version in (1, 2):
        await committee.agreed("PUT", CONTROLPLANE, {"policy": f"cp@{version}"})
    assert (await committee.ask("anna", "POST", f"{CONTROLPLANE}/rollback")).status_code == 202
    done = await committee.ask("bernd", "PUT", CONTROLPLANE, {"policy": "cp@1"})
    assert done.status_code == 200


async def test_a_rollback_to_nothing_is_the_end_of_an_assignment(committee: Committee) -> None:
    """Where nothing applied before, nothing does afterwards; and back again."""
    service = committee.service
    assert code(await committee.ask("anna", "POST", f"{WORKERS}/rollback")) == "policy-unknown"
    await committee.ask("anna", "PUT", WORKERS, {"policy": "cp@1"})
    assert (await committee.ask("anna", "POST", f"{WORKERS}/rollback")).status_code == 204
    assert await applying(service) == {}
    back = await committee.ask("anna", "POST", f"{WORKERS}/rollback")
    assert (back.status_code, back.json()["policy"]) == (200, "cp@1")
    assert (await committee.ask("anna", "DELETE", WORKERS)).status_code == 204
    assert code(await committee.ask("anna", "DELETE", WORKERS)) == "policy-unknown"
    told = [policy for _, policy, _ in await history(service, scope="role", subject="worker-app")]
    assert told == [None, "cp@1", None, "cp@1"]


async def test_an_unassignment_waits_for_votes(committee: Committee) -> None:
    """Measuring less is as much of an act as measuring more."""
    await committee.agreed("PUT", CONTROLPLANE, {"policy": "cp@1"})
    pending = await committee.ask("anna", "DELETE", CONTROLPLANE)
    assert (pending.status_code, pending.json()["action"]) == (202, "policy_unassign")
    assert (await committee.ask("bernd", "DELETE", CONTROLPLANE)).status_code == 204
    assert await applying(committee.service) == {}
    [entry] = [e for e in await committee.audit() if e["action"] == "policy_unassign"]
    assert entry["detail"].startswith("role controlplane; instead of cp@1; agreed by anna, bernd; proposal ")


async def test_two_second_votes_make_one_activation(committee: Committee) -> None:
    """Anna has voted; ten others come at once: one activation, one entry, one line of history."""
    assert (await committee.ask("anna", "PUT", CONTROLPLANE, {"policy": "cp@1"})).status_code == 202
    answers = await asyncio.gather(
        *(committee.ask(f"o-{n}", "PUT", CONTROLPLANE, {"policy": "cp@1"}) for n in range(10))
    )
    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.json()["assigned_by"] for answer in answers}) == 1
    assert len(await history(committee.service)) == 1
    assert Counter(e["action"] for e in await committee.audit())["policy_assign"] == 1
    assert (await committee.service.operator("GET", "/approvals")).json()["items"] == []


async def test_policies_are_read_one_by_one(committee: Committee) -> None:
    """The document as written; the shipped one too."""
    found = (await committee.service.operator("GET", "/policies/cp/2")).json()
    assert found["document"] == a_policy(2)
    assert found["sha256"] == parse_policy(a_policy(2)).sha256
    shipped = (await committee.service.operator("GET", "/policies/identity-only/1")).json()
    assert (shipped["sha256"], shipped["created_at"]) == (IDENTITY_ONLY.sha256, None)
    assert code(await committee.service.operator("GET", "/policies/cp/9")) == "policy-unknown"


async def test_history_is_asked_by_place(committee: Committee) -> None:
    """All of it, one scope, one place; a subject without its scope means nothing."""
    await committee.ask("anna", "PUT", WORKERS, {"policy": "cp@1"})
    await committee.ask("anna", "PUT", "/policies/assignments/role/linux", {"policy": "cp@2"})
    service = committee.service
    assert await history(service) == await history(service, scope="role")
    assert await history(service, scope="role", subject="linux") == [("linux", "cp@2", "anna")]
    assert await history(service, scope="cluster") == []
    for query in ({"subject": "linux"}, {"scope": "role", "subject": "king"}):
        answer = await service.operator("GET", "/policies/history", params=query)
        assert (answer.status_code, code(answer)) == (422, "request-invalid")
