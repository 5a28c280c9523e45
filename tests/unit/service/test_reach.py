"""Operators of some clusters: they see and do what is of those clusters, and nothing else."""

from __future__ import annotations

import re
from importlib import import_module
from typing import Any

import httpx
import pytest

from attestation.api.operations import ExtensionAPI, OperatorAPI
from attestation_service.auth import Duty
from tests.contract.test_operations import declared
from tests.contract.test_reach import ANY, CLUSTER, FLEET
from tests.fixtures.vendor import vouched
from tests.unit.service.conftest import Starter
from tests.unit.service.node import SoftwareNode
from tests.unit.service.test_dual_control import Committee
from tests.unit.service.test_policies import a_policy
from tests.unit.service.test_registration import code

pytestmark = pytest.mark.anyio

OPERATIONS = {
    each.operation_id: each
    for of in (OperatorAPI, ExtensionAPI)
    for each in declared(of)
    if each.operation_id in FLEET | CLUSTER | ANY
}
OURS, THEIRS = "prod", "edge"


class Place:
    """Two clusters, a machine of each, one that waits for each, and eve, who is an operator of `prod`."""

    def __init__(self, committee: Committee) -> None:
        self.committee = committee
        self.eve = committee.people.of_clusters("eve", OURS)
        self.machines: dict[str, SoftwareNode] = {}

    async def furnish(self) -> None:
        """Let the machines come, and be admitted."""
        for cluster in (OURS, THEIRS):
            for name in (cluster, f"new-{cluster}"):
                node = SoftwareNode()
                await self.committee.service.introduce(node, **vouched(node.ek), cluster_id=cluster)
                self.machines[name] = node
            path = f"/machines/{self.machines[cluster].machine_id}/approve"
            answer = await self.committee.ask("all", "POST", path, {"role": "linux", "cluster_id": cluster})
            assert answer.status_code == 200, answer.text

    def path(self, name: str, act: str = "") -> str:
        """Return the path of a machine, or of an act on it."""
        return f"/machines/{self.machines[name].machine_id}{act}"

    async def ask(self, method: str, path: str, body: Any = None) -> httpx.Response:
        """Ask as eve."""
        return await self.committee.ask(self.eve, method, path, body)

    async def refused(self, method: str, path: str, body: Any = None) -> tuple[int, str]:
        """Ask as eve for what she is refused; say how."""
        answer = await self.ask(method, path, body)
        return answer.status_code, code(answer)

    async def ok(self, method: str, path: str, body: Any = None) -> Any:
        """Ask as eve for what she may."""
        answer = await self.ask(method, path, body)
        assert answer.is_success, f"{method} {path}: {answer.text}"
        return answer.json() if answer.content else None

    async def items(self, path: str, member: str) -> set[Any]:
        """Return a member of each item of a list, page by page, as eve sees it."""
        found, cursor = set(), ""
        while True:
            page = await self.ok("GET", f"{path}?limit=1{cursor}")
            found |= {each[member] for each in page["items"]}
            if page["next_cursor"] is None:
                return found
            cursor = f"&cursor={page['next_cursor']}"


@pytest.fixture
async def place(start: Starter) -> Place:
    """Return the place; control-plane machines need two."""
    found = Place(Committee(await start(dual_control_roles=("controlplane",))))
    await found.furnish()
    return found


def at(operation_id: str, machine_id: str) -> tuple[str, str]:
    """Return method and path of an operation, about a machine or about something that is not there."""
    each = OPERATIONS[operation_id]
    path = each.path.replace("{machine_id}", machine_id)
    return each.method, re.sub(r"\{\w+(:path)?\}", "1", path)


@pytest.mark.threat("T319")
async def test_what_concerns_the_fleet_is_refused_and_so_is_each_machine_of_others(place: Place) -> None:
    """Walk all operations: whatever is asked with, an act leaves no trace but the refusal."""
    assert set(OPERATIONS) == FLEET | CLUSTER | ANY
    theirs = place.machines[THEIRS].machine_id
    before = await place.committee.state()
    for name in sorted(FLEET):
        method, path = at(name, theirs)
        assert await place.refused(method, path, None if method == "GET" else {}) == (403, "forbidden"), name
    about_machines = [name for name in sorted(CLUSTER) if "{machine_id}" in OPERATIONS[name].path]
    assert len(about_machines) > 20
    for name in about_machines:
        method, path = at(name, theirs)
        body: Any = None if method == "GET" else {}
        assert await place.refused(method, path, body) == (404, "machine-unknown"), name
    assert await place.committee.state() == before


@pytest.mark.threat("T319")
async def test_machines_of_others_are_in_no_list(place: Place) -> None:
    """Seen are those that operators put there, and those that wait and wish for it; filters show no more."""
    ours = {place.machines[name].machine_id for name in (OURS, f"new-{OURS}")}
    assert await place.items("/machines", "machine_id") == ours
    for query in ("sort=hostname", "q=", f"cluster_id={THEIRS}", "status=pending_approval"):
        found = {each["machine_id"] for each in (await place.ok("GET", f"/machines?{query}"))["items"]}
        assert found <= ours
    theirs = place.machines[THEIRS].machine_id
    assert (await place.ok("GET", f"/machines?ids={theirs}"))["items"] == []
    place.eve = place.committee.people.of_clusters("eve", OURS, THEIRS, "third")
    assert len(await place.items("/machines", "machine_id")) == 4
    place.eve = place.committee.people.of_clusters("eve", "third")
    assert await place.items("/machines", "machine_id") == set()


@pytest.mark.threat("T319")
async def test_a_machine_comes_into_ones_own_cluster_alone(place: Place) -> None:
    """Admitted, moved or put in another's place; one that waits for another cluster is not there."""
    wanted = {"role": "linux", "cluster_id": THEIRS}
    new = place.path(f"new-{OURS}", "/approve")
    assert await place.refused("POST", new, wanted) == (403, "forbidden")
    assert await place.refused("POST", new, {"role": "linux"}) == (403, "forbidden")
    moved = wanted | {"reason": "x"}
    assert await place.refused("POST", place.path(OURS, "/role"), moved) == (403, "forbidden")
    other = {"new": place.machines[f"new-{THEIRS}"].machine_id, "reason": "x"}
    assert await place.refused("POST", place.path(OURS, "/replace"), other) == (404, "machine-unknown")
    assert (await place.ok("POST", new, {"role": "linux", "cluster_id": OURS}))["cluster_id"] == OURS
    await place.ok("POST", place.path(OURS, "/labels"), {"set": {"rack": "4"}})
    await place.ok("POST", place.path(OURS, "/revoke"), {"wipe": False})


@pytest.mark.threat("T319")
async def test_a_machine_that_left_meanwhile_is_not_acted_on(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was given to another cluster after she was let in: the unit asks again, of each act."""
    monkeypatch.setattr(import_module("attestation_service.auth.operator"), "demand_machine", lambda *_: None)
    before = await place.committee.state()
    other = {"new": place.machines[f"new-{THEIRS}"].machine_id, "reason": "x"}
    for act, body in (
        ("/lock", {}),
        ("/revoke", {}),
        ("/labels", {"set": {"rack": "4"}}),
        ("/replace", other),
        ("/role", {"role": "generic", "cluster_id": OURS, "reason": "x"}),
    ):
        assert await place.refused("POST", place.path(THEIRS, act), body) == (404, "machine-unknown"), act
    assert await place.refused("DELETE", place.path(THEIRS)) == (404, "machine-unknown")
    assert await place.committee.state() == before


async def test_tokens_and_entries_of_others_are_not_there(place: Place) -> None:
    """Made, listed and taken back are those of one's own cluster; nobody's entry gives way to one of another."""
    token = {"role": "linux", "expires_in_seconds": 600}
    entry = {"role": "linux", "ek_fingerprint": "a" * 96}
    made = {}
    for cluster in (OURS, THEIRS):
        answer = await place.committee.ask(
            "all", "POST", "/registration-tokens", token | {"cluster_id": cluster}
        )
        made[cluster] = answer.json()["token_id"]
    entries = [entry | {"cluster_id": THEIRS}, entry | {"ek_fingerprint": "b" * 96, "cluster_id": OURS}]
    assert (await place.committee.ask("all", "POST", "/allow-list", {"entries": entries})).is_success
    for where in ({"cluster_id": THEIRS}, {}):
        assert await place.refused("POST", "/registration-tokens", token | where) == (403, "forbidden")
        new = entry | {"ek_fingerprint": "c" * 96} | where
        assert await place.refused("POST", "/allow-list", {"entries": [new]}) == (403, "forbidden")
    taken = {"entries": [entry | {"cluster_id": OURS}]}
    refused = await place.ask("POST", "/allow-list", taken)
    assert (refused.status_code, code(refused)) == (403, "forbidden")
    assert THEIRS not in refused.text, "whose it is, she is not told"
    assert await place.items("/registration-tokens", "token_id") == {made[OURS]}
    assert await place.items("/allow-list", "ek_fingerprint") == {"b" * 96}
    gone = await place.refused("DELETE", f"/registration-tokens/{made[THEIRS]}")
    assert gone == (404, "registration-token-unknown")
    assert await place.refused("DELETE", f"/allow-list/{'a' * 96}") == (404, "allow-list-entry-unknown")
    listed = (await place.committee.ask("all", "GET", "/registration-tokens")).json()["items"]
    assert [each["revoked_at"] for each in listed] == [None, None]
    await place.ok("DELETE", f"/registration-tokens/{made[OURS]}")
    await place.ok("DELETE", f"/allow-list/{'b' * 96}")
    await place.ok("POST", "/registration-tokens", token | {"cluster_id": OURS})
    await place.ok(
        "POST", "/allow-list", {"entries": [entry | {"ek_fingerprint": "c" * 96, "cluster_id": OURS}]}
    )


@pytest.mark.threat("T319")
async def test_the_ek_of_a_machine_of_others_is_not_listed(place: Place) -> None:
    """Admitted or waiting: once it is gone, and comes again, it would come into her cluster."""
    for name in (THEIRS, f"new-{THEIRS}", OURS, f"new-{OURS}"):
        entry = {
            "role": "linux",
            "ek_fingerprint": place.machines[name].ek_fingerprint,
            "cluster_id": OURS,
        }
        answer = await place.ask("POST", "/allow-list", {"entries": [entry]})
        assert answer.status_code == (403 if THEIRS in name else 200), name
        assert THEIRS not in answer.text


@pytest.mark.threat("T319")
@pytest.mark.parametrize("act", ["approve", "replace"])
@pytest.mark.parametrize("removed", [False, True])
async def test_an_ek_that_others_listed_is_not_accepted_at_an_approval(
    place: Place, act: str, removed: bool
) -> None:
    """A machine that waits asks for her cluster by its own word; its EK was said to be of another one, also once."""
    new = place.machines[f"new-{OURS}"]
    ek = (await place.ok("GET", place.path(f"new-{OURS}")))["ek_fingerprint"]
    entry = {"role": "linux", "ek_fingerprint": ek, "cluster_id": THEIRS}
    assert (await place.committee.ask("all", "POST", "/allow-list", {"entries": [entry]})).is_success
    if removed:
        assert (await place.committee.ask("all", "DELETE", f"/allow-list/{ek}")).is_success
    path, body = place.path(f"new-{OURS}", "/approve"), {"role": "linux", "cluster_id": OURS}
    if act == "replace":
        path, body = place.path(OURS, "/replace"), {"new": new.machine_id or "", "reason": "x"}
    before = await place.committee.state()
    assert await place.refused("POST", path, body | {"accept_ek": True}) == (403, "forbidden")
    assert await place.committee.state() == before
    await place.ok("POST", path, body)


async def test_keys_of_ones_machine_name_no_machine_of_others(place: Place) -> None:
    """Its chip was once another machine, elsewhere: that one is not named, nor what it attested with."""
    node = place.machines[f"new-{THEIRS}"]
    for method, act, body in (("POST", "/reject", {"reason": "x"}), ("DELETE", "", None)):
        assert (await place.committee.ask("all", method, place.path(f"new-{THEIRS}", act), body)).is_success
    node.new_ak()
    await place.committee.service.introduce(node, **vouched(node.ek), cluster_id=OURS)
    path = place.path(f"new-{THEIRS}", "/keys")
    assert len((await place.committee.ask("all", "GET", path)).json()["earlier"]) == 1
    assert (await place.ok("GET", path))["earlier"] == []


async def test_policies_are_those_of_ones_own_cluster(place: Place) -> None:
    """Assigned for it alone; seen are also those that its machines meet by role or in the fleet."""
    board = place.committee
    assert (await board.service.operator("POST", "/policies", a_policy())).is_success
    theirs = place.machines[THEIRS].machine_id
    for where in ("fleet/*", f"cluster/{OURS}", f"cluster/{THEIRS}"):
        await board.agreed("PUT", f"/policies/assignments/{where}", {"policy": "cp@1"})
    for where in ("role/linux", f"machine/{theirs}"):
        answer = await board.ask("all", "PUT", f"/policies/assignments/{where}", {"policy": "cp@1"})
        assert answer.status_code == 200, answer.text
    shown = (await place.ok("GET", "/policies"))["assignments"]
    assert {(each["scope"], each["subject"]) for each in shown} == {
        ("fleet", "*"),
        ("role", "linux"),
        ("cluster", OURS),
    }
    for where in ("fleet/*", "role/linux", f"cluster/{THEIRS}", f"machine/{place.machines[OURS].machine_id}"):
        path = f"/policies/assignments/{where}"
        for method, more, body in (
            ("PUT", "", {"policy": "cp@1"}),
            ("DELETE", "", None),
            ("POST", "/rollback", {}),
        ):
            assert await place.refused(method, path + more, body) == (403, "forbidden"), where
    history = "/policies/history"
    for query in ("", "?scope=cluster", f"?scope=cluster&subject={THEIRS}", "?scope=fleet&subject=*"):
        assert await place.refused("GET", history + query) == (403, "forbidden"), query
    await place.ok("GET", f"{history}?scope=cluster&subject={OURS}")
    own = f"/policies/assignments/cluster/{OURS}"
    assert (await place.ask("DELETE", own)).status_code == 202, "two, as of everybody"


async def test_clusters_of_others_are_not_there(place: Place) -> None:
    """Listed, shown and changed is one's own."""
    assert await place.items("/clusters", "cluster_id") == {OURS}
    assert await place.refused("GET", f"/clusters/{THEIRS}") == (404, "cluster-unknown")
    for cluster in (OURS, THEIRS):
        declared = await place.committee.ask("all", "POST", "/clusters", {"cluster_id": cluster})
        assert declared.status_code == 201
    assert await place.refused("POST", f"/clusters/{THEIRS}", {"description": "x"}) == (403, "forbidden")
    assert (await place.ok("POST", f"/clusters/{OURS}", {"description": "x"}))["description"] == "x"


async def test_votes_are_for_what_is_in_ones_own_cluster(place: Place) -> None:
    """Proposals of others are not there; hers count; what she voted for elsewhere, when she might, ends."""
    board = place.committee
    token = {"role": "controlplane", "expires_in_seconds": 600}

    async def proposed(who: str, cluster: str) -> str:
        path = "/registration-tokens?new_proposal=true"
        answer = await board.ask(who, "POST", path, token | {"cluster_id": cluster})
        assert answer.status_code == 202, answer.text
        return str(answer.json()["proposal_digest"])

    ours, theirs = await proposed("anna", OURS), await proposed("anna", THEIRS)
    assert await place.items("/approvals", "proposal_digest") == {ours}
    assert await place.refused("GET", f"/approvals/{theirs}/proposal") == (404, "approval-unknown")
    assert await place.refused("POST", f"/approvals/{theirs}/object", {"reason": "x"}) == (
        404,
        "approval-unknown",
    )
    votes = [vote["id"] for each in await board.waiting() for vote in each["approvals"]]
    told = {await place.refused("DELETE", f"/approvals/{vote}") for vote in votes}
    assert told == {(403, "forbidden"), (404, "approval-unknown")}, "hers to see, and not"
    assert (await place.ok("GET", f"/approvals/{ours}/proposal"))["proposal_digest"] == ours
    assert {each["proposal_digest"] for each in await board.waiting()} == {ours, theirs}
    # What others want elsewhere is no rival of hers, and is not told of either.
    await place.ok("POST", f"/approvals/{ours}/object", {"reason": "x"})
    hers = await place.ok("POST", "/registration-tokens", token | {"cluster_id": OURS})
    assert "anna" not in hers["message"]


@pytest.mark.threat("T319")
async def test_what_a_machine_of_hers_would_be_elsewhere_is_not_told(place: Place) -> None:
    """Votes to move it away name what it would be there: shown with it are those about her cluster alone."""
    board = place.committee
    board.settings(dual_control_roles=("linux",))
    machine = place.path(OURS)
    named: dict[str, str] = {}
    for cluster in (OURS, THEIRS):
        path = f"{machine}/role?new_proposal=true"
        wanted = {"role": "linux", "cluster_id": cluster, "hostname": f"{cluster}-1", "reason": "x"}
        named[cluster] = (await board.ask("anna", "POST", path, wanted)).json()["proposal_digest"]
    own = {named[OURS]}
    assert {each["proposal_digest"] for each in (await place.ok("GET", machine))["approvals"]} == own
    assert await place.items(f"{machine}/approvals", "proposal_digest") == own
    (listed,) = (await place.ok("GET", "/machines?role=linux"))["items"]
    assert {each["proposal_digest"] for each in listed["approvals"]} == own
    labelled = await place.ok("POST", f"{machine}/labels", {"set": {"rack": "4"}})
    assert {each["proposal_digest"] for each in labelled["approvals"]} == own
    act = {"role": "linux", "hostname": "a-1", "reason": "x"}
    named_wrong = await place.refused("POST", f"{machine}/role?proposal={named[THEIRS]}", act)
    assert named_wrong == (404, "approval-unknown")


async def test_whoever_lost_other_clusters_lost_the_votes_there(place: Place) -> None:
    """An operator of all clusters voted in two; as one of prod, her vote there stands, and the other one is void."""
    board = place.committee
    token = {"role": "controlplane", "expires_in_seconds": 600}
    for cluster in (OURS, THEIRS):
        path = "/registration-tokens?new_proposal=true"
        assert (await board.ask("grace", "POST", path, token | {"cluster_id": cluster})).status_code == 202
    assert len(await board.waiting()) == 2
    grace = board.people.of_clusters("grace", OURS)
    assert (await board.ask(grace, "GET", "/machines")).status_code == 200
    (left,) = await board.waiting()
    assert left["proposal"]["cluster_id"] == OURS
    done = await board.ask(place.eve, "POST", "/registration-tokens", token | {"cluster_id": OURS})
    assert done.status_code == 201, "two people of prod are two people"


async def test_one_may_look_at_all_and_act_in_one(place: Place) -> None:
    """Each duty has its own clusters; who is told of themselves is told which."""
    board = place.committee
    board.people.headers("ivan", Duty.VIEWER)
    board.people.within["ivan"] = frozenset({(Duty.OPERATOR, OURS)})
    ivan = {"Authorization": "Bearer token.of.ivan", "Content-Type": "application/json"}
    assert (await board.ask(ivan, "GET", "/stats")).status_code == 200
    assert len((await board.ask(ivan, "GET", "/machines")).json()["items"]) == 4
    assert (await board.ask(ivan, "POST", place.path(THEIRS, "/revoke"), {})).status_code == 404
    assert (await board.ask(ivan, "POST", place.path(OURS, "/revoke"), {})).status_code == 200
    told = (await board.ask(ivan, "GET", "/whoami")).json()
    assert told["roles"] == ["operator:prod", "viewer"]
    assert told["clusters"] == {"act": [OURS]}
    assert set(told["rights"]) == {"read", "act", "query", "metrics"}
