"""Nobody is called like another machine: whoever decides names, in whatever spelling, and in no certificate."""

from __future__ import annotations

import dataclasses
import sqlite3
from contextlib import closing
from typing import Any

import pytest
from structlog.testing import capture_logs

from attestation_service.entitlements import names
from tests.fixtures.machine import refused as outcome_of
from tests.fixtures.vendor import vouched
from tests.unit.service.conftest import HeldClock, Service, Starter
from tests.unit.service.node import SoftwareNode
from tests.unit.service.test_dual_control import Committee
from tests.unit.service.test_enrollment import ca, get_certificate, try_certificate
from tests.unit.service.test_registration import token

pytestmark = pytest.mark.anyio
__all__ = ["ca"]

IN_USE = (409, "name-in-use")
CP = {"hostname": "cp-1", "assigned_ip": "10.0.0.11/24"}
ALIKE: list[dict[str, str]] = [
    {"hostname": "cp-1"},
    {"assigned_ip": "10.0.0.11/24"},
    {"assigned_ip": "10.0.0.11/255.0.0.0"},
    {"assigned_ip": "::ffff:10.0.0.11/120"},
    {"hostname": "other", "assigned_ip": "10.0.0.11/32"},
]
SPELT = ["CP-1", "cp-1.", "xn--cp-1-", "10.0.0.11", "cp_1"]
"""Only one spelling of a name is taken at all: these are refused, whoever is called so."""


@pytest.fixture
async def first(service: Service) -> SoftwareNode:
    """The control plane, which everybody looks for by its name and address."""
    node = SoftwareNode()
    await service.introduce(node)
    await service.act(node, "approve", {"role": "controlplane", "accept_ek": True, **CP})
    return node


@pytest.mark.threat("T142")
async def test_one_operator_approves_nobody_as_the_control_plane(
    service: Service, first: SoftwareNode
) -> None:
    """The attack itself: a software key as a worker under the control plane's name and address."""
    node = SoftwareNode()
    await service.introduce(node)
    path = f"/machines/{node.machine_id}/approve"
    for named in ALIKE:
        answer = await service.operator("POST", path, {"role": "worker-app", **named})
        assert outcome_of(answer) == IN_USE, (named, answer.text)
        assert first.machine_id in answer.json()["detail"], "operators learn whose it is"
    for hostname in SPELT:
        answer = await service.operator("POST", path, {"role": "worker-app", "hostname": hostname})
        assert answer.status_code == 422, hostname
    detail = await service.detail(node)
    assert (detail["status"], detail["hostname"], detail["assigned_ip"]) == ("pending_approval", None, None)
    # Somewhere else is somewhere else; and what nobody has, anybody may have.
    elsewhere = await service.act(node, "approve", {"role": "worker-app", "cluster_id": "lab", **CP})
    assert (elsewhere["hostname"], elsewhere["assigned_ip"]) == ("cp-1", "10.0.0.11/24")
    back = {"role": "worker-app", "cluster_id": "default", "reason": "moved"}
    answer = await service.operator("POST", f"/machines/{node.machine_id}/role", back)
    assert outcome_of(answer) == IN_USE


async def test_a_change_of_role_takes_no_name(service: Service, first: SoftwareNode) -> None:
    """Keeping one's own is none; who gives a name up frees it, and who is revoked too."""
    node = SoftwareNode()
    await service.admitted(node, hostname="w-1", assigned_ip="10.0.0.12/24")
    path = f"/machines/{node.machine_id}/role"
    for named in ALIKE:
        answer = await service.operator("POST", path, {"role": "worker-infra", "reason": "r", **named})
        assert outcome_of(answer) == IN_USE, named
    await service.act(node, "role", {"role": "worker-infra", "reason": "keeps its name"})
    await service.act(first, "revoke", {"reason": "stolen"})
    assert (await service.detail(first))["hostname"] == "cp-1", "the record still says how it was called"
    assert (await service.act(node, "role", {"role": "worker-infra", "reason": "r", **CP}))[
        "hostname"
    ] == "cp-1"


async def test_nobody_votes_for_a_name_that_is_taken(start: Starter) -> None:
    """It is said to the first voter, and not after everybody has agreed."""
    committee = Committee(await start(dual_control_roles=("controlplane",)))
    taken, node = SoftwareNode(), SoftwareNode()
    await committee.service.admitted(taken, hostname="cp-1")
    await committee.service.introduce(node)
    wanted = {"role": "controlplane", "accept_ek": True, "hostname": "cp-1"}
    path = f"/machines/{node.machine_id}/approve"
    assert outcome_of(await committee.ask("anna", "POST", path, wanted)) == IN_USE
    # Free when the first asked, taken when the last did: the vote stays without effect.
    other = wanted | {"hostname": "cp-2"}
    assert (await committee.ask("anna", "POST", path, other)).status_code == 202
    await committee.service.act(taken, "role", {"role": "worker-app", "hostname": "cp-2", "reason": "r"})
    assert outcome_of(await committee.ask("bernd", "POST", path, other)) == IN_USE
    assert (await committee.service.detail(node))["status"] == "pending_approval"


@pytest.mark.parametrize("named", ALIKE)
async def test_tokens_and_the_allow_list_promise_no_name_of_somebody_else(
    service: Service, first: SoftwareNode, named: dict[str, str]
) -> None:
    """Refused when they are made, where a machine has it; the machine's own entry is none of somebody else."""
    token = {"role": "worker-app", "expires_in_seconds": 600, **named}
    assert outcome_of(await service.operator("POST", "/registration-tokens", token)) == IN_USE
    entry = {"ek_fingerprint": "0" * 96, "role": "worker-app", **named}
    assert outcome_of(await service.operator("POST", "/allow-list", {"entries": [entry]})) == IN_USE
    own = entry | {"ek_fingerprint": first.ek_fingerprint}
    assert (await service.operator("POST", "/allow-list", {"entries": [own]})).status_code == 200
    twins = [own, entry | {"cluster_id": "default"}]
    answer = await service.operator("POST", "/allow-list", {"entries": twins})
    assert outcome_of(answer) == (422, "request-invalid")
    apart = [entry | {"cluster_id": "a"}, entry | {"ek_fingerprint": "1" * 96, "cluster_id": "b"}]
    assert (await service.operator("POST", "/allow-list", {"entries": apart})).status_code == 200


@pytest.mark.threat("T158")
@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"service_url": "https://Attest.Lab.example:8443"}, {"hostname": "attest.lab.example"}),
        ({"service_url": "https://[2001:DB8::7]:8443"}, {"assigned_ip": "2001:db8::7/64"}),
        ({"service_url": "https://10.0.0.7/"}, {"assigned_ip": "::ffff:10.0.0.7/120"}),
        ({"pki_url": "http://pki.lab.example"}, {"hostname": "pki.lab.example"}),
    ],
)
async def test_no_machine_is_called_like_this_service(
    start: Starter, settings: dict[str, Any], named: dict[str, str]
) -> None:
    """Else the CA would certify it as the service: by no act, no token, no entry, in no cluster."""
    service, node = await start(**settings), SoftwareNode()
    await service.introduce(node)
    given = {"role": "worker-app", "cluster_id": "lab", **named}
    entry = {"ek_fingerprint": node.ek_fingerprint, **given}
    machine = f"/machines/{node.machine_id}"
    for path, body in (
        (f"{machine}/approve", given),
        ("/registration-tokens", {**given, "expires_in_seconds": 600}),
        ("/allow-list", {"entries": [entry]}),
    ):
        answer = await service.operator("POST", path, body)
        assert outcome_of(answer) == IN_USE, (path, answer.text)
        assert "this service" in answer.json()["detail"]
    await service.act(node, "approve", {"role": "worker-app"})
    body = {**given, "role": "linux", "reason": "r"}
    assert outcome_of(await service.operator("POST", f"{machine}/role", body)) == IN_USE


@pytest.mark.threat("T158")
async def test_who_was_called_like_this_service_before_is_not_certified(ca: Service) -> None:
    """From before it was refused, or since the service moved: no server certificate, no successor, no admission."""
    node, other, late = SoftwareNode(), SoftwareNode(), SoftwareNode()
    await ca.admitted(node, hostname="moved")
    await ca.introduce(other)
    issued = await token(ca, hostname="later")
    moved = ca.resources.settings.model_copy(
        update={"service_url": "https://moved", "pki_url": "https://later"}
    )
    ca.app.state.resources = dataclasses.replace(ca.resources, settings=moved)
    with capture_logs() as logged:
        await names.report(ca.resources)
    (told,) = [each for each in logged if each["event"] == "names.ours"]
    assert told["machines"] == [f"{node.machine_id} (host name moved, default)"]
    assert outcome_of(await try_certificate(ca, node, profile="node-server")) == IN_USE
    await get_certificate(ca, node)
    body = {"new": other.machine_id, "reason": "r"}
    answer = await ca.operator("POST", f"/machines/{node.machine_id}/replace", body)
    assert outcome_of(answer) == IN_USE
    waits = await ca.introduce(late, registration_token=issued["token"], **vouched(late.ek))
    assert waits["status"] == "pending_approval"
    assert "this service" in (await ca.detail(late))["alarm"]


async def test_a_token_for_several_names_nobody(service: Service) -> None:
    """All of them would be called the same."""
    for named in ({"hostname": "w-1"}, {"assigned_ip": "10.0.0.11/24"}):
        body = {"role": "worker-app", "expires_in_seconds": 600, "uses": 2, **named}
        answer = await service.operator("POST", "/registration-tokens", body)
        assert outcome_of(answer) == (422, "request-invalid")


async def _made(service: Service, how: str, node: SoftwareNode, named: dict[str, str]) -> dict[str, Any]:
    """Admit *node* in advance; return what it introduces itself with."""
    if how == "allow-list":
        entry = {"ek_fingerprint": node.ek_fingerprint, "role": "worker-app", **named}
        await service.operator("POST", "/allow-list", {"entries": [entry]})
        return {}
    wanted = {"role": "worker-app", "expires_in_seconds": 600, "minimum_assurance": "tofu", **named}
    made = (await service.operator("POST", "/registration-tokens", wanted)).json()
    return {"registration_token": made["token"]}


@pytest.mark.threat("T142")
@pytest.mark.parametrize("how", ["allow-list", "token"])
@pytest.mark.parametrize("named", [{"hostname": "w-1"}, {"assigned_ip": "10.0.0.12/24"}])
async def test_who_comes_second_waits(service: Service, how: str, named: dict[str, str]) -> None:
    """Two were promised the same: the second waits for an operator with an alarm, without role or configuration."""
    one, two = SoftwareNode(), SoftwareNode()
    promised = [await _made(service, how, node, named) for node in (one, two)]
    assert (await service.introduce(one, **promised[0]))["status"] == "registered"
    waits = await service.introduce(two, **promised[1])
    assert (waits["status"], waits.get("role"), waits.get("config_token")) == ("pending_approval", None, None)
    assert one.machine_id not in str(waits), "whose name it is, is for operators"
    detail = await service.detail(two)
    assert (detail["hostname"], detail["assigned_ip"]) == (None, None)
    assert one.machine_id in detail["alarm"]
    (alarm,) = await service.audit(action="alarm")
    assert (alarm["machine_id"], one.machine_id in alarm["detail"]) == (two.machine_id, True)
    if how == "token":
        left = {
            t["uses_left"] for t in (await service.operator("GET", "/registration-tokens")).json()["items"]
        }
        assert left == {0, 1}, "its token keeps its use"
    # The operator decides; the alarm is over.
    assert (await service.act(two, "approve", {"role": "worker-app"}))["alarm"] is None


@pytest.mark.threat("T142")
async def test_no_certificate_names_what_two_have(ca: Service) -> None:
    """Also in two clusters: there is one CA, and who looks for the one must not find the other."""
    here, there = SoftwareNode(), SoftwareNode()
    await ca.admitted(here, hostname="app-1", assigned_ip="10.0.0.7/24")
    await ca.admitted(there, hostname="app-1", assigned_ip="10.0.0.8/24", cluster_id="lab")
    for node in (here, there):
        answer = await try_certificate(ca, node, profile="node-server")
        assert outcome_of(answer) == IN_USE
        assert there.machine_id not in answer.text, "which one is for operators"
        await get_certificate(ca, node)  # for a client, which is called by its id
        assert (await ca.audit(action="cert_refused"))[0]["detail"] == "name-in-use"
    await ca.act(there, "role", {"role": "worker-app", "hostname": "app-2", "reason": "renamed"})
    await get_certificate(ca, here, profile="node-server")
    # The address alone is enough.
    moved = {"role": "worker-app", "assigned_ip": "10.0.0.7/16", "reason": "renumbered"}
    await ca.act(there, "role", moved)
    assert outcome_of(await try_certificate(ca, here, profile="node-server")) == IN_USE


async def test_who_shared_a_name_before_it_was_a_rule_is_shown(
    start: Starter, capsys: pytest.CaptureFixture[str]
) -> None:
    """A database from before: both work on, the start says which, and so does the list, until it is settled."""
    service = await start()
    one, two = SoftwareNode(), SoftwareNode()
    await service.admitted(one, hostname="app-1")
    await service.admitted(two)
    machine = await service.store.read(lambda tx: tx.machines.by_id(two.machine_id))
    assert machine is not None
    sql = "UPDATE machines SET hostname = 'app-1', name_key = 'app-1', shares_names = 1 WHERE machine_id = ?"
    with closing(sqlite3.connect(service.directory / "machines.db", isolation_level=None)) as db:
        db.execute(sql, (two.machine_id,))
    again = await start(HeldClock(service.clock.at))
    assert two.machine_id in capsys.readouterr().err
    shown = (await again.operator("GET", "/machines")).json()["items"]
    assert [m["shares_names"] for m in shown] == [True, False]
    assert (await again.act(two, "lock", {"reason": "it can still be acted upon"}))["shares_names"]
    await again.act(one, "revoke", {"reason": "the old one"})
    assert not (await again.detail(two))["shares_names"]


# Taking over a name


async def test_one_act_puts_a_machine_in_the_place_of_another(ca: Service) -> None:
    """The old one ends with its certificates; the new one inherits role, cluster, host name and address."""
    old, new, rack = SoftwareNode(), SoftwareNode(), {"hostname": "w-1", "assigned_ip": "10.0.0.12/24"}
    await ca.admitted(old, role="worker-infra", cluster_id="lab", **rack)
    serial = (await get_certificate(ca, old))["serial"]
    await ca.introduce(new)
    body = {"new": new.machine_id, "reason": "mainboard died"}
    taken = await ca.operator("POST", f"/machines/{old.machine_id}/replace", body)
    assert taken.status_code == 200, taken.text
    found = taken.json()
    assert found["machine_id"] == new.machine_id
    assert (found["status"], found["role"], found["cluster_id"]) == ("registered", "worker-infra", "lab")
    assert {name: found[name] for name in rack} == rack
    assert (await ca.detail(old))["status"] == "revoked"
    assert (await ca.operator("GET", f"/ca/certificates/{serial}")).json()["state"] == "revoked"
    (revoked,) = await ca.audit(action="revoke")
    (approved, _) = await ca.audit(action="approve")
    assert (revoked["machine_id"], revoked["detail"]) == (
        old.machine_id,
        f"replaced by machine {new.machine_id}",
    )
    assert approved["machine_id"] == new.machine_id
    assert f"in place of machine {old.machine_id}; mainboard died" in approved["detail"]
    assert (await ca.attest(new))["action"] == "apply-config"


async def test_what_cannot_be_replaced_stays_as_it_is(service: Service, first: SoftwareNode) -> None:
    """Nothing is done by halves: the name stays with whom it was."""
    waits, admitted = SoftwareNode(), SoftwareNode()
    await service.introduce(waits)
    await service.admitted(admitted, hostname="w-1")
    for old, new, more, expected in (
        (first, first, {}, (422, "request-invalid")),
        (first, admitted, {}, (409, "transition-forbidden")),
        (waits, admitted, {}, (409, "transition-forbidden")),
        # The role demands more than this machine has, also in somebody else's place.
        (first, waits, {}, (409, "assurance-too-low")),
        (first, waits, {"expected_version": 7, "accept_ek": True}, (409, "machine-changed")),
    ):
        body = {"new": new.machine_id, "reason": "r", **more}
        answer = await service.operator("POST", f"/machines/{old.machine_id}/replace", body)
        assert outcome_of(answer) == expected, answer.text
        assert expected[1] != "transition-forbidden" or answer.json()["detail"].startswith(
            "replace is not possible"
        )
        detail = await service.detail(first)
        assert (detail["status"], detail["hostname"]) == ("registered", "cp-1")
        assert (await service.detail(waits))["status"] == "pending_approval"


@pytest.mark.threat("T142")
async def test_taking_over_a_guarded_role_needs_several(start: Starter) -> None:
    """As approving it does; a vote names both machines, and nothing happens before all agree."""
    committee = Committee(await start(dual_control_roles=("controlplane",)))
    service = committee.service
    old, new, other = SoftwareNode(), SoftwareNode(), SoftwareNode()
    for node in (old, new, other):
        await service.introduce(node)
    granted = {"role": "controlplane", "accept_ek": True, **CP}
    for who in ("anna", "bernd"):
        await committee.ask(who, "POST", f"/machines/{old.machine_id}/approve", granted)
    path, body = f"/machines/{old.machine_id}/replace", {"accept_ek": True, "reason": "r"}
    first = await committee.ask("anna", "POST", path, body | {"new": new.machine_id})
    assert (first.status_code, first.json()["action"]) == (202, "replace")
    # For another machine in the same place it is another proposal.
    assert (await committee.ask("bernd", "POST", path, body | {"new": other.machine_id})).status_code == 202
    assert outcome_of(await service.operator("POST", path, body | {"new": new.machine_id})) == (
        403,
        "break-glass-cannot-vote",
    )
    assert [(await service.detail(node))["status"] for node in (old, new)] == [
        "registered",
        "pending_approval",
    ]
    done = await committee.ask("bernd", "POST", path, body | {"new": new.machine_id})
    assert done.status_code == 200, done.text
    assert [(await service.detail(node))["status"] for node in (old, new)] == ["revoked", "registered"]
