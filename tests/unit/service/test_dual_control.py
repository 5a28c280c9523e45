"""Dual control over HTTP: which acts need several, whose votes count, and that all of it is one unit (FAULTS R19)."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import httpx
import pytest

from attestation.api import MachineDetail, PendingApproval
from attestation.clock import parse_rfc3339
from attestation.machines import NodeEvent
from attestation.store import Approval, OutboxEvent, Tx
from attestation.store.approvals import Approvals
from attestation_service.attest import handlers
from attestation_service.auth import Duty, Method, Operator
from attestation_service.context.request import Origin
from tests.fixtures.vendor import vouched
from tests.unit.service.conftest import Service, Starter
from tests.unit.service.node import SoftwareNode
from tests.unit.service.people import ISSUER, People
from tests.unit.service.test_registration import code

pytestmark = pytest.mark.anyio

WINDOW_SECONDS = 600
EK = "ab" * 48
GRANTED = {"role": "controlplane", "hostname": "cp-1", "assigned_ip": "10.0.0.11/24"}


class Everybody(People):
    """Who is who, also by certificate."""

    async def operator(self, token: str, origin: Origin, at: datetime) -> Operator:
        """Return the person behind *token*; `cert.of.<name>` stands for a client certificate."""
        if token.startswith("cert.of."):
            name = token.removeprefix("cert.of.")
            return Operator(
                cn=name,
                sub=f"spki-sha256:{hashlib.sha256(name.encode()).hexdigest()}",
                source=origin.address,
                method=Method.CERTIFICATE,
                duties=frozenset({Duty.OPERATOR}),
            )
        return await super().operator(token, origin, at)


def certificate(name: str) -> dict[str, str]:
    """Return the credential of whoever shows a certificate with this name."""
    return {"Authorization": f"Bearer cert.of.{name}", "Content-Type": "application/json"}


class Committee:
    """A service under dual control, and the people who use it."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.people = Everybody()
        service.app.state.resources = replace(service.resources, oidc=self.people)
        self.http = service.http

    def settings(self, **changed: Any) -> None:
        """Change settings while the service runs, as a rolling restart would."""
        resources = self.service.resources
        self.service.app.state.resources = replace(
            resources, settings=resources.settings.model_copy(update=changed)
        )

    async def ask(
        self, who: str | dict[str, str], method: str, path: str, body: Any = None
    ) -> httpx.Response:
        """Send a request as *who*."""
        headers = self.people.headers(who) if isinstance(who, str) else who
        more = {} if body is None else {"json": body}
        return await self.http.request(method, f"/api/v1{path}", headers=headers, **more)

    async def agreed(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        """Let two people who take no other part agree."""
        assert (await self.ask("one", method, path, body)).status_code == 202
        answer = await self.ask("two", method, path, body)
        assert answer.status_code in (200, 201), answer.text
        found: dict[str, Any] = answer.json()
        return found

    async def act(self, node: SoftwareNode, act: str, body: Any = None) -> None:
        """Do an act that must succeed, by as many as it takes."""
        path = f"/machines/{node.machine_id}/{act}"
        if (await self.ask("one", "POST", path, body)).status_code == 202:
            assert (await self.ask("two", "POST", path, body)).status_code == 200

    async def attested(self, role: str) -> SoftwareNode:
        """Return an attested machine in this role."""
        node = SoftwareNode()
        await self.service.introduce(node, **vouched(node.ek))
        await self.act(node, "approve", {"role": role, "hostname": "h-1"})
        assert (await self.service.attest(node))["config_token"]
        return node

    async def audit(self) -> list[dict[str, Any]]:
        """Return all audit entries but the uses of break-glass, oldest first."""
        return (await self.service.audit(limit="200"))[::-1]

    async def state(self) -> Any:
        """Return everything that a gated act could change, votes left out."""
        machines = (await self.service.operator("GET", "/machines")).json()["items"]
        for machine in machines:
            del machine["approvals"]
        tokens = (await self.service.operator("GET", "/registration-tokens")).json()
        listed = (await self.service.operator("GET", "/allow-list")).json()
        return machines, tokens, listed

    async def waiting(self) -> list[dict[str, Any]]:
        """Return the proposals that wait, newest first."""
        found: list[dict[str, Any]] = (await self.ask("viewer", "GET", "/approvals")).json()["items"]
        return found

    async def votes(self, node: SoftwareNode) -> list[dict[str, Any]]:
        """Return the votes about a machine."""
        answer = await self.service.operator("GET", f"/machines/{node.machine_id}/approvals")
        assert answer.status_code == 200, answer.text
        found: list[dict[str, Any]] = answer.json()["items"]
        return found


async def events_of(service: Service, wanted: NodeEvent) -> list[OutboxEvent]:
    """Take everything out of the outbox, one event per machine at a time, and return those of one kind."""
    found: list[OutboxEvent] = []
    at = service.clock.now()

    def take(tx: Tx) -> tuple[OutboxEvent, ...]:
        claimed = tx.outbox.claim(100, at)
        tx.outbox.done([event.id for event in claimed], at)
        return claimed

    while claimed := await service.store.write(take):
        found += claimed
    return [event for event in found if event.event is wanted]


@pytest.fixture
async def committee(start: Starter) -> Committee:
    """Return a service where control-plane machines need two."""
    return Committee(await start(tpm_ca_bundle_dir=start.bundle(), dual_control_roles=("controlplane",)))


# Every path that yields credentials

Prepare = Callable[[Committee], Awaitable[tuple[str, Any]]]


@dataclass(frozen=True)
class Gated:
    """One act under dual control: how to get there, and what the audit calls it."""

    prepare: Prepare
    done: int
    actions: tuple[str, ...]


async def _pending(committee: Committee, **granted: str) -> tuple[str, Any]:
    node = SoftwareNode()
    await committee.service.introduce(node, **vouched(node.ek))
    return f"/machines/{node.machine_id}/approve", GRANTED | granted


def _on(role: str, act: str, body: Any = None, *, before: str | None = None) -> Prepare:
    async def prepare(committee: Committee) -> tuple[str, Any]:
        node = await committee.attested(role)
        if before is not None:
            await committee.act(node, before)
        return f"/machines/{node.machine_id}/{act}", body

    return prepare


def _simply(path: str, body: Any) -> Prepare:
    async def prepare(committee: Committee) -> tuple[str, Any]:
        return path, body

    return prepare


async def _listed(committee: Committee) -> tuple[str, Any]:
    entry = {"ek_fingerprint": EK, "role": "controlplane"}
    await committee.agreed("POST", "/allow-list", {"entries": [entry]})
    return "/allow-list", {"entries": [entry | {"role": "linux"}]}


UP = {"role": "controlplane", "reason": "promoted"}
DOWN = {"role": "worker-app", "reason": "relieved"}
TOKEN = {"role": "controlplane", "uses": 2, "expires_in_seconds": 3600}
LIST = {
    "entries": [
        {"ek_fingerprint": EK, "role": "controlplane"},
        {"ek_fingerprint": "cd" * 48, "role": "linux"},
    ]
}

GATED: dict[str, Gated] = {
    "approve": Gated(_pending, 200, ("approve",)),
    "unlock": Gated(_on("controlplane", "unlock", before="lock"), 200, ("unlock",)),
    "ak-reset": Gated(_on("controlplane", "ak-reset", {"reason": "cleared"}), 200, ("ak_reset",)),
    "redeliver": Gated(_on("controlplane", "redeliver"), 200, ("redeliver",)),
    "role given": Gated(_on("worker-app", "role", UP), 200, ("role_change",)),
    "role taken": Gated(_on("controlplane", "role", DOWN), 200, ("role_change",)),
    "address only": Gated(
        _on("controlplane", "role", {**UP, "assigned_ip": "10.0.0.12/24"}), 200, ("role_change",)
    ),
    "token": Gated(_simply("/registration-tokens", TOKEN), 201, ("token_issued",)),
    "allow-list": Gated(_simply("/allow-list", LIST), 200, ("allow_list_approved", "allow_list_import")),
    "allow-list replaced": Gated(_listed, 200, ("allow_list_approved", "allow_list_import")),
}
each = pytest.mark.parametrize("name", GATED)


@pytest.mark.threat("T50")
@each
async def test_one_is_not_enough_and_two_are(committee: Committee, name: str) -> None:
    """A vote changes nothing but the record; the second makes the act, in one unit with its own entries."""
    case = GATED[name]
    path, body = await case.prepare(committee)
    before, entries = await committee.state(), len(await committee.audit())
    first = await committee.ask("anna", "POST", path, body)
    assert first.status_code == 202, first.text
    said = PendingApproval.model_validate_json(first.content)
    assert (said.approvals_received, said.approvals_required, said.voters) == (1, 2, ["anna"])
    assert (said.expires_at - committee.service.clock.now()).total_seconds() == WINDOW_SECONDS
    assert said.message == (
        "1 of 2 agree; another operator must agree to exactly this: "
        f"`attestation approval approve {said.proposal_digest[:16]}`"
    )
    assert await committee.state() == before
    (vote,) = (await committee.audit())[entries:]
    assert (vote["action"], vote["operator_cn"], vote["operator_sub"]) == (
        "approve_vote",
        "anna",
        f"{ISSUER}#anna",
    )
    assert said.proposal_digest in vote["detail"]
    assert vote["machine_id"] == said.machine_id

    second = await committee.ask("bernd", "POST", path, body)
    assert second.status_code == case.done, second.text
    assert await committee.state() != before
    new = (await committee.audit())[entries + 1 :]
    assert [e["action"] for e in new] == ["approve_vote", *case.actions]
    assert {e["operator_cn"] for e in new} == {"bernd"}
    assert "2 of 2" in new[0]["detail"]
    assert new[1]["detail"].endswith(f"agreed by anna, bernd; proposal {said.proposal_digest}")
    assert (await committee.ask("anna", "GET", "/approvals")).json()["items"] == []
    assert (await committee.service.operator("GET", "/audit/verify")).json()["valid"]


@pytest.mark.threat("T51")
@each
async def test_one_person_is_one_however_often_and_however_known(committee: Committee, name: str) -> None:
    """Again, and by certificate under the same name in other letters: 202 unchanged, nothing recorded twice."""
    path, body = await GATED[name].prepare(committee)
    first = await committee.ask("anna", "POST", path, body)
    before, audit = await committee.state(), await committee.audit()
    committee.service.clock.advance(60)
    for who in ("anna", certificate("anna"), certificate("ANNA")):
        again = await committee.ask(who, "POST", path, body)
        assert (again.status_code, again.json()) == (202, first.json())
    assert await committee.state() == before
    assert await committee.audit() == audit


@pytest.mark.threat("T51")
@each
async def test_break_glass_is_nobody(committee: Committee, name: str) -> None:
    """SYSTEM neither proposes nor completes, and each try is on record."""
    path, body = await GATED[name].prepare(committee)
    for votes in (0, 1):
        before = await committee.state()
        entries = await committee.audit()
        answer = await committee.service.operator("POST", path, body)
        assert (answer.status_code, code(answer)) == (403, "break-glass-cannot-vote")
        assert await committee.state() == before
        (new,) = (await committee.audit())[len(entries) :]
        assert (new["action"], new["operator_cn"]) == ("denied", "SYSTEM")
        assert new["detail"].startswith("break-glass-cannot-vote: ")
        live = (await committee.ask("anna", "GET", "/approvals")).json()["items"]
        assert [p["approvals_received"] for p in live] == [1] * votes
        assert (await committee.ask("anna", "POST", path, body)).status_code == 202


@pytest.mark.threat("T52")
@each
@pytest.mark.parametrize("seconds", [WINDOW_SECONDS, WINDOW_SECONDS * 100])
async def test_an_expired_vote_does_not_count(committee: Committee, name: str, seconds: int) -> None:
    """From the instant on which it expires; who voted too long ago may vote again."""
    path, body = await GATED[name].prepare(committee)
    before = await committee.state()
    assert (await committee.ask("anna", "POST", path, body)).status_code == 202
    committee.service.clock.advance(seconds)
    late = await committee.ask("bernd", "POST", path, body)
    assert (late.status_code, late.json()["voters"]) == (202, ["bernd"])
    untouched = await committee.state()
    assert [m["version"] for m in untouched[0]] == [m["version"] for m in before[0]]
    assert untouched[1:] == before[1:]
    assert (await committee.ask("anna", "POST", path, body)).status_code == GATED[name].done


@each
async def test_a_vote_just_in_time_counts(committee: Committee, name: str) -> None:
    """One microsecond before it expires."""
    path, body = await GATED[name].prepare(committee)
    assert (await committee.ask("anna", "POST", path, body)).status_code == 202
    committee.service.clock.advance(WINDOW_SECONDS - 0.000_001)
    assert (await committee.ask("bernd", "POST", path, body)).status_code == GATED[name].done


async def test_the_window_is_a_setting(start: Starter) -> None:
    """A vote keeps the life that it was cast with; a shorter window is for the next ones."""
    committee = Committee(
        await start(
            tpm_ca_bundle_dir=start.bundle(),
            dual_control_roles=("controlplane",),
            dual_control_window_seconds=3600,
        )
    )
    path, body = await _pending(committee)
    first = (await committee.ask("anna", "POST", path, body)).json()
    ends = parse_rfc3339(first["expires_at"])
    assert (ends - committee.service.clock.now()).total_seconds() == 3600
    committee.settings(dual_control_window_seconds=60)
    committee.service.clock.advance(3599)
    assert (await committee.ask("bernd", "POST", path, body)).status_code == 200


@each
async def test_a_withdrawn_vote_does_not_count(committee: Committee, name: str) -> None:
    """Nor does it stand in the way of another one by the same person."""
    path, body = await GATED[name].prepare(committee)
    vote = (await committee.ask("anna", "POST", path, body)).json()["approval_id"]
    gone = await committee.ask("anna", "DELETE", f"/approvals/{vote}")
    assert (gone.status_code, gone.content) == (204, b"")
    assert (await committee.ask("bernd", "POST", path, body)).json()["voters"] == ["bernd"]
    assert (await committee.ask("anna", "POST", path, body)).status_code == GATED[name].done
    withdrawn = [e for e in await committee.audit() if e["action"] == "approval_withdrawn"]
    assert [e["operator_cn"] for e in withdrawn] == ["anna"]


@each
async def test_a_quorum_of_three(committee: Committee, name: str) -> None:
    """Also where it was raised after the first vote."""
    path, body = await GATED[name].prepare(committee)
    assert (await committee.ask("anna", "POST", path, body)).json()["approvals_required"] == 2
    committee.settings(dual_control_quorum=3)
    second = (await committee.ask("bernd", "POST", path, body)).json()
    assert (second["approvals_received"], second["approvals_required"]) == (2, 3)
    assert (await committee.ask(certificate("bernd"), "POST", path, body)).status_code == 202
    assert (await committee.ask("clara", "POST", path, body)).status_code == GATED[name].done
    named = [e["detail"] for e in await committee.audit() if e["action"] == GATED[name].actions[0]]
    assert "agreed by anna, bernd, clara; proposal " in named[-1]


async def test_a_quorum_that_was_lowered_is_met_by_asking_again(committee: Committee) -> None:
    """Two agree where three were needed; since two are enough, either of them completes it, without a new vote."""
    committee.settings(dual_control_quorum=3)
    path, body = await _pending(committee)
    for name in ("anna", "bernd"):
        assert (await committee.ask(name, "POST", path, body)).status_code == 202
    committee.settings(dual_control_quorum=2)
    assert (await committee.ask("anna", "POST", path, body)).status_code == 200
    actions = [e["action"] for e in await committee.audit()]
    assert (actions.count("approve_vote"), actions.count("approve")) == (2, 1)


@pytest.mark.threat("T52")
@each
async def test_used_votes_are_used_up(committee: Committee, name: str) -> None:
    """Two votes admit one act: the same request afterwards begins at one, or is not possible any more.

    Where the role was taken away, nothing under dual control is left, and one is enough.
    """
    path, body = await GATED[name].prepare(committee)
    await committee.ask("anna", "POST", path, body)
    assert (await committee.ask("bernd", "POST", path, body)).status_code == GATED[name].done
    again = await committee.ask("bernd", "POST", path, body)
    assert again.status_code in (202, 200 if name in ("allow-list replaced", "role taken") else 409)
    if again.status_code == 202:
        assert again.json()["voters"] == ["bernd"]


@each
async def test_off_by_default(start: Starter, name: str) -> None:
    """Without roles under dual control one operator is enough for each of them, break-glass too."""
    committee = Committee(await start(tpm_ca_bundle_dir=start.bundle()))
    path, body = await GATED[name].prepare(_open(committee))
    answer = await committee.service.operator("POST", path, body)
    assert answer.status_code == GATED[name].done, answer.text


def _open(committee: Committee) -> Committee:
    """Let one be enough in the preparations, too."""

    async def alone(method: str, path: str, body: Any = None) -> dict[str, Any]:
        found: dict[str, Any] = (await committee.ask("one", method, path, body)).json()
        return found

    committee.agreed = alone  # type: ignore[method-assign]  # the same for one
    return committee


# What needs nobody else


@pytest.mark.parametrize(
    ("act", "body"), [("lock", None), ("revoke", {"wipe": True}), ("lock", {"reason": "odd"})], ids=str
)
async def test_taking_away_needs_one(committee: Committee, act: str, body: Any) -> None:
    """In an emergency nobody waits: what ends trust is open to one, break-glass too."""
    node = await committee.attested("controlplane")
    answer = await committee.service.operator("POST", f"/machines/{node.machine_id}/{act}", body)
    assert answer.status_code == 200, answer.text


async def test_reject_needs_one(committee: Committee) -> None:
    """Also where somebody voted for the machine; that vote is void."""
    path, body = await _pending(committee)
    await committee.ask("anna", "POST", path, body)
    machine = path.removesuffix("/approve")
    assert (await committee.ask("bernd", "POST", f"{machine}/reject", {"reason": "no"})).status_code == 200
    (vote,) = (await committee.ask("anna", "GET", f"{machine}/approvals")).json()["items"]
    assert (vote["live"], vote["withdrawn"], vote["consumed"]) == (False, True, False)


async def test_other_roles_need_one(committee: Committee) -> None:
    """A worker's whole life is open to one operator."""
    node = SoftwareNode()
    await committee.service.introduce(node, **vouched(node.ek))
    machine = f"/machines/{node.machine_id}"
    assert (
        await committee.ask("anna", "POST", f"{machine}/approve", {"role": "worker-app"})
    ).status_code == 200
    await committee.service.attest(node)
    for act, body in [
        ("redeliver", None),
        ("role", {"role": "linux", "reason": "r"}),
        ("lock", None),
        ("unlock", None),
        ("ak-reset", {"reason": "r"}),
    ]:
        answer = await committee.ask("anna", "POST", f"{machine}/{act}", body)
        assert answer.status_code == 200, (act, answer.text)
    token = await committee.ask("anna", "POST", "/registration-tokens", TOKEN | {"role": "linux"})
    assert token.status_code == 201
    listed = {"entries": [{"ek_fingerprint": EK, "role": "linux"}]}
    assert (await committee.ask("anna", "POST", "/allow-list", listed)).status_code == 200
    assert "approve_vote" not in [e["action"] for e in await committee.audit()]


async def test_what_two_agreed_to_admits_without_more_votes(committee: Committee) -> None:
    """A machine that a token or the allow-list admits was decided about when those were made."""
    await committee.ask("anna", "POST", "/registration-tokens", TOKEN)
    token = (await committee.ask("bernd", "POST", "/registration-tokens", TOKEN)).json()["token"]
    node = SoftwareNode()
    admitted = await committee.service.introduce(node, registration_token=token, **vouched(node.ek))
    assert admitted["status"] == "registered"
    other = SoftwareNode()
    entries = {"entries": [{"ek_fingerprint": other.ek_fingerprint, "role": "controlplane"}]}
    await committee.agreed("POST", "/allow-list", entries)
    assert (await committee.service.introduce(other, **vouched(other.ek)))["status"] == "registered"


async def test_a_token_is_shown_to_the_last_voter_only(committee: Committee) -> None:
    """There is no secret before the quorum, and none in any other answer."""
    first = await committee.ask("anna", "POST", "/registration-tokens", TOKEN)
    assert "token" not in first.json()
    created = (await committee.ask("bernd", "POST", "/registration-tokens", TOKEN)).json()
    everywhere = [
        (await committee.ask("anna", "GET", path)).text for path in ("/approvals", "/registration-tokens")
    ]
    everywhere.append(json.dumps(await committee.audit()))
    assert all(created["token"] not in text for text in everywhere)


async def test_csv_and_json_are_the_same_import(committee: Committee) -> None:
    """What is imported is bound, not how it was written; one other line is another import."""
    await committee.ask("anna", "POST", "/allow-list", LIST)
    headers = committee.people.headers("bernd") | {"Content-Type": "text/csv"}
    text = f"role,ek_fingerprint\nlinux,{'cd' * 48}\ncontrolplane,{'ab' * 47}ac\n"
    other = await committee.http.post("/api/v1/allow-list", content=text, headers=headers)
    assert (other.status_code, code(other)) == (409, "proposal-rival")
    text = text.replace("ac\n", "ab\n")
    same = await committee.http.post("/api/v1/allow-list", content=text, headers=headers)
    assert same.json() == {"added": 2, "replaced": 0}


async def test_a_name_does_not_pass_for_two(committee: Committee) -> None:
    """Whoever is called "clara, dora" is quoted where voters are listed in words."""
    path, body = await _pending(committee)
    await committee.ask("clara, dora", "POST", path, body)
    committee.service.clock.advance(1)
    near_miss = await committee.ask("bernd", "POST", f"{path}?new_proposal=true", body | {"hostname": "cp-2"})
    assert 'the vote of "clara, dora" does not count' in near_miss.json()["message"]
    assert (await committee.ask("bernd", "POST", path, body)).status_code == 200
    (entry,) = await committee.service.audit(action="approve")
    assert 'agreed by "clara, dora", bernd; proposal ' in entry["detail"]


# Different proposals do not add up


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"hostname": "cp-2"}, "hostname (cp-2, not cp-1)"),
        ({"hostname": None}, "hostname (none, not cp-1)"),
        ({"assigned_ip": "10.0.0.12/24"}, "assigned_ip (10.0.0.12/24, not 10.0.0.11/24)"),
        ({"assigned_ip": "10.0.0.11/25"}, "assigned_ip (10.0.0.11/25, not 10.0.0.11/24)"),
    ],
    ids=str,
)
async def test_another_name_or_address_is_another_proposal(
    committee: Committee, changed: dict[str, Any], named: str
) -> None:
    """It is not opened unless the second operator says so, and either way they learn in what it differs."""
    path, body = await _pending(committee)
    await committee.ask("anna", "POST", path, body)
    refused = await committee.ask("bernd", "POST", path, body | changed)
    assert (refused.status_code, code(refused)) == (409, "proposal-rival")
    assert f"; yours differs in {named}: agree to that one" in refused.json()["detail"]
    assert [v["operator_cn"] for p in await committee.waiting() for v in p["approvals"]] == ["anna"]
    answer = await committee.ask("bernd", "POST", f"{path}?new_proposal=true", body | changed)
    assert (answer.status_code, answer.json()["voters"]) == (202, ["bernd"])
    assert answer.json()["message"].endswith(f"; the vote of anna does not count, yours differs in {named}")
    assert len((await committee.ask("anna", "GET", "/approvals")).json()["items"]) == 2
    assert (await committee.ask("clara", "POST", path, body)).json()["hostname"] == "cp-1"


async def test_another_role_is_another_proposal(start: Starter) -> None:
    """One agrees to a control-plane machine, another to an infrastructure worker: nobody agreed."""
    committee = Committee(
        await start(tpm_ca_bundle_dir=start.bundle(), dual_control_roles=("controlplane", "worker-infra"))
    )
    path, body = await _pending(committee)
    await committee.ask("anna", "POST", path, body)
    answer = await committee.ask(
        "bernd", "POST", f"{path}?new_proposal=true", body | {"role": "worker-infra"}
    )
    assert (answer.status_code, answer.json()["voters"]) == (202, ["bernd"])
    assert "differs in measured, role (worker-infra, not controlplane), roles" in answer.json()["message"]


@pytest.mark.threat("T52")
async def test_new_evidence_is_another_proposal(committee: Committee) -> None:
    """A machine that booted something else since the first vote needs two fresh looks."""
    node = SoftwareNode()
    await committee.service.introduce(node, **vouched(node.ek))
    await committee.service.attest(node)
    path = f"/machines/{node.machine_id}/approve"
    await committee.ask("anna", "POST", path, GRANTED)
    await committee.service.attest(node)  # nothing new
    node.pcrs[7] = bytes(32)
    committee.service.clock.advance(5)
    await committee.service.attest(node)
    answer = await committee.ask("bernd", "POST", path, GRANTED)
    assert (answer.status_code, answer.json()["voters"]) == (202, ["bernd"])
    assert "differs in evidence_digest" in answer.json()["message"]


async def test_the_same_evidence_again_is_the_same_proposal(committee: Committee) -> None:
    """Machines attest every minute; that alone opens no new proposal."""
    node = SoftwareNode()
    await committee.service.introduce(node, **vouched(node.ek))
    await committee.service.attest(node)
    path = f"/machines/{node.machine_id}/approve"
    await committee.ask("anna", "POST", path, GRANTED)
    for _ in range(3):
        committee.service.clock.advance(45)
        await committee.service.attest(node)
    assert (await committee.ask("bernd", "POST", path, GRANTED)).status_code == 200


async def test_another_key_is_another_proposal(committee: Committee) -> None:
    """The machine was given another AK since the first vote."""
    node = SoftwareNode()
    await committee.service.introduce(node, **vouched(node.ek))
    path = f"/machines/{node.machine_id}/approve"
    await committee.ask("anna", "POST", path, GRANTED)
    reset = f"/machines/{node.machine_id}/ak-reset"
    assert (await committee.ask("clara", "POST", reset, {"reason": "cleared"})).status_code == 200
    node.new_ak()
    await committee.service.introduce(node, **vouched(node.ek))
    answer = await committee.ask("bernd", "POST", path, GRANTED)
    assert (answer.status_code, answer.json()["voters"]) == (202, ["bernd"])
    assert await committee.service.store.read(
        lambda tx: [
            a.vote.withdrawn_at is not None for a in tx.approvals.page(node.machine_id, None, 9).items
        ]
    ) == [False, True]


async def test_another_machine_is_another_proposal(committee: Committee) -> None:
    """The same name and address for two machines: two proposals."""
    one, other = [await _pending(committee) for _ in range(2)]
    await committee.ask("anna", "POST", *one)
    assert (await committee.ask("bernd", "POST", *other)).json()["voters"] == ["bernd"]


@pytest.mark.threat("T52")
async def test_a_vote_does_not_outlive_what_it_was_about(committee: Committee) -> None:
    """Somebody locks the machine and two unlock it: the vote from before is not waiting behind that."""
    node = await committee.attested("controlplane")
    path = f"/machines/{node.machine_id}/redeliver"
    assert (await committee.ask("anna", "POST", path)).status_code == 202
    await committee.act(node, "lock")
    await committee.act(node, "unlock")
    answer = await committee.ask("bernd", "POST", path)
    assert (answer.status_code, answer.json()["voters"]) == (202, ["bernd"])


async def test_a_stale_version_is_refused_before_any_vote(committee: Committee) -> None:
    """409 as without dual control; votes do not change the version that others saw."""
    path, body = await _pending(committee)
    machine = (await committee.ask("anna", "GET", path.removesuffix("/approve"))).json()
    seen = body | {"expected_version": machine["version"]}
    stale = await committee.ask("anna", "POST", path, body | {"expected_version": machine["version"] + 1})
    assert (stale.status_code, code(stale)) == (409, "machine-changed")
    assert (await committee.ask("anna", "GET", "/approvals")).json()["items"] == []
    assert (await committee.ask("anna", "POST", path, seen)).status_code == 202
    assert (await committee.ask("bernd", "POST", path, seen)).status_code == 200


async def test_another_name_is_refused_before_any_vote(committee: Committee) -> None:
    """What each typed is not part of what they agree to: who was asked to type nothing agrees to the same."""
    node = await committee.attested("controlplane")
    path, body = f"/machines/{node.machine_id}/ak-reset", {"reason": "cleared"}
    typed = {"confirm_name": (await committee.service.detail(node))["hostname"]}
    other = await committee.ask("anna", "POST", path, body | {"confirm_name": "cp-9"})
    assert (other.status_code, code(other)) == (409, "machine-changed")
    assert [vote for vote in await committee.votes(node) if vote["live"]] == []
    first = await committee.ask("anna", "POST", path, body | typed)
    assert first.status_code == 202
    assert (await committee.ask("anna", "POST", path, body)).json()["proposal_digest"] == (
        first.json()["proposal_digest"]
    )
    assert (await committee.ask("bernd", "POST", path, body)).status_code == 200


async def test_what_is_not_possible_is_not_voted_about(committee: Committee) -> None:
    """A machine that is not locked cannot be unlocked, by however many."""
    node = await committee.attested("controlplane")
    answer = await committee.ask("anna", "POST", f"/machines/{node.machine_id}/unlock")
    assert (answer.status_code, code(answer)) == (409, "transition-forbidden")
    assert await committee.votes(node) == [v for v in await committee.votes(node) if not v["live"]]


# Role change


@pytest.mark.parametrize("status", ["registered", "attested", "locked"])
async def test_a_role_is_changed(service: Service, status: str) -> None:
    """The status stays; tokens lose their right; where there is a configuration, the new one follows."""
    node = SoftwareNode()
    await service.introduce(node, **vouched(node.ek))
    await service.act(
        node, "approve", {"role": "worker-app", "hostname": "w-1", "assigned_ip": "10.0.0.1/24"}
    )
    token = None
    if status != "registered":
        token = (await service.attest(node))["config_token"]
    if status == "locked":
        await service.act(node, "lock")
    changed = await service.act(node, "role", {"role": "controlplane", "hostname": "cp-1", "reason": "grown"})
    assert (changed["status"], changed["role"]) == (status, "controlplane")
    assert (changed["hostname"], changed["assigned_ip"]) == ("cp-1", "10.0.0.1/24")
    assert changed["redeliver_pending"] == (status != "registered")
    assert changed["trust"] == ("unknown" if status == "registered" else "stale")
    if token:
        assert code(await service.fetch(token)) == "token-consumed"
    if status == "locked":
        await service.act(node, "unlock")
        # An order at a time: the configuration comes when the machine said that it is unlocked.
        ordered = await service.attest(node)
        assert (ordered["role"], ordered["action"]) == ("controlplane", "unlock")
        said = node.acknowledgement(ordered["next_challenge"], ordered["directive"])
        assert (await service.post(f"/api/v1/machines/{node.machine_id}/ack", said)).status_code == 200
    delivered = await service.attest(node)
    assert (delivered["role"], delivered["action"]) == ("controlplane", "apply-config")
    (entry,) = await service.audit(action="role_change")
    assert entry["prev_state"] == entry["new_state"] == status
    assert entry["detail"] == (
        "grown; role controlplane, hostname cp-1, assigned_ip 10.0.0.1/24; before: role worker-app"
    )
    (event,) = await events_of(service, NodeEvent.ROLE_CHANGED)
    assert event.payload["meta"] == {
        "previous_role": "worker-app",
        "new_role": "controlplane",
        "reason": "grown",
    }


@pytest.mark.parametrize("missing", ["role", "reason"])
async def test_a_role_change_says_what_and_why(service: Service, missing: str) -> None:
    """Neither has a default."""
    node = SoftwareNode()
    await service.admitted(node)
    body = {"role": "linux", "reason": "r"}
    del body[missing]
    answer = await service.operator("POST", f"/machines/{node.machine_id}/role", body)
    assert (answer.status_code, code(answer)) == (422, "schema-violation")


async def test_a_verdict_in_flight_does_not_lease_another_role(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was judged under the policy of the old role is no trust in the new one."""
    node = SoftwareNode()
    await service.introduce(node, **vouched(node.ek))
    await service.act(node, "approve", {"role": "worker-app"})
    await service.attest(node)
    await service.attest(node)
    body = node.attestation(await service.challenge(node))
    sign = handlers._sign
    calls: list[int] = []

    async def promote_first(*arguments: Any) -> Any:
        if not calls:
            await service.act(node, "role", {"role": "controlplane", "reason": "r"})
        calls.append(1)
        return await sign(*arguments)

    monkeypatch.setattr(handlers, "_sign", promote_first)
    answer = (await service.post("/api/v1/attest", body)).json()
    assert (answer["role"], answer["action"], len(calls)) == ("controlplane", "apply-config", 2)


# What operators see


async def test_votes_are_listed_for_what_they_were(committee: Committee) -> None:
    """Newest first: live, withdrawn, expired, used; with everything but the subject behind the name."""
    node = SoftwareNode()
    await committee.service.introduce(node, **vouched(node.ek))
    path = f"/machines/{node.machine_id}/approve"
    await committee.ask("anna", "POST", path, GRANTED | {"hostname": "a"})
    committee.service.clock.advance(WINDOW_SECONDS)
    withdrawn = (await committee.ask("bernd", "POST", path, GRANTED | {"hostname": "b"})).json()
    await committee.ask("bernd", "DELETE", f"/approvals/{withdrawn['approval_id']}")
    await committee.ask("clara", "POST", path, GRANTED)
    found = await committee.votes(node)
    assert [(v["operator_cn"], v["live"], v["withdrawn"], v["consumed"]) for v in found] == [
        ("clara", True, False, False),
        ("bernd", False, True, False),
        ("anna", False, False, False),
    ]
    assert {"id", "machine_id", "operator_cn", "role", "hostname", "assigned_ip"} <= found[0].keys()
    assert (found[0]["role"], found[0]["action"]) == ("controlplane", "approve")
    assert "sts.example" not in json.dumps(found)
    (shown,) = (await committee.service.detail(node))["approvals"]
    assert shown == found[0]
    await committee.ask("dora", "POST", path, GRANTED)
    used = await committee.votes(node)
    assert [(v["operator_cn"], v["consumed"]) for v in used[:2]] == [("dora", True), ("clara", True)]
    assert (await committee.service.detail(node))["approvals"] == []
    first = await committee.service.operator("GET", f"/machines/{node.machine_id}/approvals?limit=3")
    rest = await committee.service.operator(
        "GET", f"/machines/{node.machine_id}/approvals?limit=3&cursor={first.json()['next_cursor']}"
    )
    assert [*first.json()["items"], *rest.json()["items"]] == used
    assert rest.json()["next_cursor"] is None


async def test_votes_of_no_machine(committee: Committee) -> None:
    """404, and other lists' cursors are refused."""
    unknown = "00000000-0000-4000-8000-000000000000"
    answer = await committee.ask("anna", "GET", f"/machines/{unknown}/approvals")
    assert (answer.status_code, code(answer)) == (404, "machine-unknown")
    answer = await committee.ask("anna", "GET", "/approvals?cursor=bm9uc2Vuc2U")
    assert (answer.status_code, code(answer)) == (422, "request-invalid")


async def test_what_waits_is_listed_with_what_it_binds(committee: Committee) -> None:
    """Machines, tokens and the allow-list, newest first; the digest can be recomputed by anybody."""
    path, body = await _pending(committee)
    await committee.ask("anna", "POST", path, body)
    await committee.ask("anna", "POST", "/registration-tokens", TOKEN)
    await committee.ask("bernd", "POST", "/allow-list", LIST)
    listed = (await committee.ask("viewer", "GET", "/approvals")).json()["items"]
    assert [p["action"] for p in listed] == ["allow_list_import", "registration_token", "approve"]
    assert [p["subject"] for p in listed][:2] == [
        "allow-list, 2 entries, 0 of them replaced",
        "registration token for controlplane, 2 uses",
    ]
    for proposal in listed:
        canonical = json.dumps(proposal["proposal"], sort_keys=True, separators=(",", ":")).encode()
        assert hashlib.sha256(canonical).hexdigest() == proposal["proposal_digest"]
        assert (proposal["approvals_received"], proposal["approvals_required"]) == (1, 2)
        assert [v["operator_cn"] for v in proposal["approvals"]] == proposal["voters"]
    first = (await committee.ask("anna", "GET", "/approvals?limit=2")).json()
    cursor = first["next_cursor"]
    rest = (await committee.ask("anna", "GET", f"/approvals?limit=2&cursor={cursor}")).json()
    assert ([*first["items"], *rest["items"]], rest["next_cursor"]) == (listed, None)
    committee.service.clock.advance(WINDOW_SECONDS)
    assert (await committee.ask("anna", "GET", "/approvals")).json()["items"] == []


async def test_lists_show_live_votes_with_one_query(
    committee: Committee, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many machines a page has."""
    paths = [await _pending(committee) for _ in range(5)]
    for path, body in paths[1:4]:
        await committee.ask("anna", "POST", path, body)
    queries: list[int] = []
    live_of = Approvals.live_of

    def counted(self: Approvals, machine_ids: Any, at: datetime) -> dict[str, list[Approval]]:
        queries.append(len(machine_ids))
        return live_of(self, machine_ids, at)

    monkeypatch.setattr(Approvals, "live_of", counted)
    listed = (await committee.ask("anna", "GET", "/machines")).json()["items"]
    assert queries == [5]
    assert [[v["operator_cn"] for v in m["approvals"]] for m in listed] == [
        [],
        ["anna"],
        ["anna"],
        ["anna"],
        [],
    ]
    assert MachineDetail.model_validate(listed[1]).approvals[0].action == "approve"


async def test_only_the_voter_withdraws(committee: Committee) -> None:
    """Not somebody else, not somebody of the same name by other means, not break-glass; each try is recorded."""
    path, body = await _pending(committee)
    vote = (await committee.ask("anna", "POST", path, body)).json()["approval_id"]
    others: list[str | dict[str, str]] = ["bernd", certificate("anna")]
    for who in others:
        answer = await committee.ask(who, "DELETE", f"/approvals/{vote}")
        assert (answer.status_code, code(answer)) == (403, "forbidden")
    answer = await committee.service.operator("DELETE", f"/approvals/{vote}")
    assert (answer.status_code, code(answer)) == (403, "forbidden")
    denied = [e for e in await committee.audit() if e["action"] == "denied"]
    assert [e["operator_cn"] for e in denied] == ["bernd", "anna", "SYSTEM"]
    assert (await committee.ask("bernd", "POST", path, body)).status_code == 200


async def test_what_ended_cannot_be_withdrawn(committee: Committee) -> None:
    """Unknown, withdrawn before, expired, used: 404, and nothing is recorded."""
    path, body = await _pending(committee)
    answer = await committee.ask("anna", "DELETE", "/approvals/4711")
    assert (answer.status_code, code(answer)) == (404, "approval-unknown")

    async def refused(vote: int) -> None:
        entries = len(await committee.audit())
        answer = await committee.ask("anna", "DELETE", f"/approvals/{vote}")
        assert (answer.status_code, code(answer)) == (404, "approval-unknown")
        assert len(await committee.audit()) == entries

    vote = (await committee.ask("anna", "POST", path, body)).json()["approval_id"]
    assert (await committee.ask("anna", "DELETE", f"/approvals/{vote}")).status_code == 204
    await refused(vote)
    vote = (await committee.ask("anna", "POST", path, body)).json()["approval_id"]
    committee.service.clock.advance(WINDOW_SECONDS)
    await refused(vote)
    vote = (await committee.ask("anna", "POST", path, body)).json()["approval_id"]
    assert (await committee.ask("bernd", "POST", path, body)).status_code == 200
    await refused(vote)


async def test_the_id_of_a_vote_is_a_number(committee: Committee) -> None:
    """Nothing that a database would refuse reaches it."""
    for wrong in ("0", "-1", "x", "9" * 30, "1.5"):
        answer = await committee.ask("anna", "DELETE", f"/approvals/{wrong}")
        assert (answer.status_code, code(answer)) == (422, "schema-violation")


@pytest.mark.threat("T53")
async def test_a_vote_is_an_event(committee: Committee) -> None:
    """Written with the vote, thin, so that a chat can say who is waited for; the second vote is one, too."""
    path, body = await _pending(committee)
    answer = (await committee.ask("anna", "POST", path, body)).json()
    await committee.ask("anna", "POST", path, body)
    await committee.ask("anna", "POST", "/registration-tokens", TOKEN)
    told = await events_of(committee.service, NodeEvent.APPROVAL_VOTE)
    assert len(told) == 2
    events = {event.machine_id: event.payload for event in told}
    about_machine = events[answer["machine_id"]]
    assert about_machine["node"] == {
        "machine_id": answer["machine_id"],
        "hostname": "cp-1",
        "role": "controlplane",
    }
    assert about_machine["meta"] == {
        "action": "approve",
        "subject": f"machine {answer['machine_id']}",
        "proposal_digest": answer["proposal_digest"],
        "operator": "anna",
        "approvals_received": 1,
        "approvals_required": 2,
        "expires_at": about_machine["meta"]["expires_at"],
    }
    assert parse_rfc3339(about_machine["meta"]["expires_at"]) == parse_rfc3339(answer["expires_at"])
    assert events[None]["meta"]["action"] == "registration_token"


# At the same time


@pytest.mark.threat("T53")
async def test_twenty_at_once_make_one_approval(committee: Committee) -> None:
    """Of 20 people who approve at the same time the second completes it; for each of three machines."""
    # A name and an address belong to one machine.
    paths = [
        await _pending(committee, hostname=f"cp-{n}", assigned_ip=f"10.0.0.{n}/24") for n in (11, 12, 13)
    ]
    names = [f"operator {n}" for n in range(20)]
    answers = await asyncio.gather(
        *(committee.ask(name, "POST", path, body) for name in names for path, body in paths)
    )
    for path, _ in paths:
        statuses = sorted(a.status_code for a in answers if a.request.url.path.endswith(path))
        assert statuses == [200, 202] + [409] * 18
    approvals = [e for e in await committee.audit() if e["action"] == "approve"]
    assert len({e["machine_id"] for e in approvals}) == len(approvals) == 3
    assert (await committee.service.operator("GET", "/audit/verify")).json()["valid"]


async def test_one_person_twenty_times_at_once_is_one_vote(committee: Committee) -> None:
    """Impatience is no quorum."""
    path, body = await _pending(committee)
    answers = await asyncio.gather(*(committee.ask("anna", "POST", path, body) for _ in range(20)))
    assert {a.status_code for a in answers} == {202}
    assert len({a.text for a in answers}) == 1
    votes = [e for e in await committee.audit() if e["action"] == "approve_vote"]
    assert len(votes) == 1
