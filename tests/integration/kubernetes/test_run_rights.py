"""Who may do what with attestation runs, with the roles that the chart renders (CONFIDENTIAL §4), by trying it."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from attestation_operator import crds
from attestation_operator.objects import POLICY, RESULT, RUN, RUNS_GROUP, Kind
from attestation_operator.runs.admission import KINDS
from tests.contract.kubernetes import APPLY, JSON, MERGE, RBAC, done, eventually
from tests.fixtures.attestation_kinds import GOOD
from tests.fixtures.kube import KubeAPI, kube, rest
from tests.fixtures.operator_chart import FULL, NAMESPACE, Documents, documents, of, run

__all__ = ["documents", "kube", "run"]

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
TEAM = "itl-test-team"
AGENTS = "ugallu-system-privileged"
VALUES = {
    "settings": {"service_url": "https://attest.example"},
    "controllers": {"approver": False, "signer": False, "nodes": False, "runs": True},
    "runs": {"clusterID": "default"},
    "agent": {"enabled": True},
}
PLACES = {
    "Namespace": "/api/v1/namespaces",
    "ServiceAccount": "/api/v1/namespaces/{}/serviceaccounts",
    "ClusterRole": f"{RBAC}/clusterroles",
    "ClusterRoleBinding": f"{RBAC}/clusterrolebindings",
    "Role": f"{RBAC}/namespaces/{{}}/roles",
    "RoleBinding": f"{RBAC}/namespaces/{{}}/rolebindings",
}
PEOPLE = {"requester": "run-requester", "author": "policy-author", "viewer": "run-viewer"}


def at(kind: Kind, name: str = "", part: str = "") -> str:
    """Return the path of objects of a kind, of one, or of a part of it."""
    place = f"/namespaces/{TEAM}" if kind.namespaced else ""
    return f"/apis/{kind.api_version}{place}/{kind.plural}" + (f"/{name}" if name else "") + part


def made(kind: Kind, name: str) -> dict[str, Any]:
    """Return an object."""
    return {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "metadata": {"name": name},
        "spec": GOOD[kind][0],
    }


class Installed:
    """A cluster with our kinds, an object of each, and what the chart makes of ServiceAccounts and rights.

    Args:
        kube: The API server.
        admin: Who may everything.
    """

    def __init__(self, kube: KubeAPI, admin: httpx.Client) -> None:
        self._kube = kube
        self.admin = admin

    def account(self, namespace: str, name: str) -> httpx.Client:
        """Return a client of a ServiceAccount."""
        answer = self.admin.post(
            f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token",
            json={
                "apiVersion": "authentication.k8s.io/v1",
                "kind": "TokenRequest",
                "spec": {"expirationSeconds": 3600, "audiences": []},
            },
        )
        token = done(answer, 201)["status"]["token"]
        return httpx.Client(
            base_url=self._kube.url,
            verify=ssl.create_default_context(cafile=self._kube.ca_file),
            headers={"Authorization": f"Bearer {token}"},
            trust_env=False,
            timeout=30,
        )


@pytest.fixture(scope="module")
def installed(kube: KubeAPI, documents: Documents) -> Iterator[Installed]:
    """Install what the chart renders of rights; people have a ServiceAccount each, bound in one namespace."""
    found = documents(VALUES)
    done_there: list[str] = []
    with rest(kube) as admin:

        def have(path: str, raw: dict[str, Any]) -> None:
            answer = admin.post(path, json=raw)
            assert answer.status_code in (201, 409), answer.text
            # A namespace stays: one that is going takes nothing from the tests of other files, for a while.
            if answer.status_code == 201 and path != PLACES["Namespace"]:
                done_there.append(f"{path}/{raw['metadata']['name']}")

        # The kinds stay: the tests of other files may find them.
        for kind in KINDS:
            answer = admin.post(CRDS, json=crds.definition(kind))
            assert answer.status_code in (201, 409), answer.text
        for name in (NAMESPACE, TEAM):
            have("/api/v1/namespaces", {"metadata": {"name": name}})
        for kind_ in PLACES:
            for each in of(found, kind_).values():
                have(PLACES[kind_].format(each["metadata"].get("namespace", "")), each)
        for who, role in PEOPLE.items():
            have(f"/api/v1/namespaces/{TEAM}/serviceaccounts", {"metadata": {"name": who}})
            have(
                f"{RBAC}/namespaces/{TEAM}/rolebindings",
                {
                    "metadata": {"name": who},
                    "roleRef": {
                        "apiGroup": "rbac.authorization.k8s.io",
                        "kind": "ClusterRole",
                        "name": f"{NAMESPACE}-{FULL}-{role}",
                    },
                    "subjects": [{"kind": "ServiceAccount", "name": who, "namespace": TEAM}],
                },
            )
        for kind in KINDS:
            eventually(lambda kind=kind: done(admin.get(at(kind))))  # type: ignore[misc]  # a default binds it
            have(at(kind), made(kind, "there"))
        yield Installed(kube, admin)
        for path in reversed(done_there):
            admin.delete(path)


def _writes(client: httpx.Client, kind: Kind) -> dict[str, int]:
    """Try every way of writing objects of a kind; return the status of each answer."""
    body = made(kind, "there")
    status = {**body, "status": {}}
    merge = {"metadata": {"labels": {"x": "y"}}, "spec": {"verdict": "verified"}}
    patch = [{"op": "add", "path": "/metadata/labels", "value": {}}]
    one = at(kind, "there")
    answers = {
        "create": client.post(at(kind), json=made(kind, "another")),
        "update": client.put(one, json=body),
        "patch (merge)": client.patch(one, json=merge, headers=MERGE),
        "patch (json)": client.patch(one, json=patch, headers=JSON),
        "patch (apply)": client.patch(f"{one}?fieldManager=agent", json=body, headers=APPLY),
        "update status": client.put(at(kind, "there", "/status"), json=status),
        "patch status": client.patch(at(kind, "there", "/status"), json={"status": {}}, headers=MERGE),
        "delete": client.delete(one),
        "deletecollection": client.delete(at(kind)),
    }
    return {name: answer.status_code for name, answer in answers.items()}


@pytest.mark.threat("T285")
def test_an_agent_can_write_nothing(installed: Installed) -> None:
    """CONFIDENTIAL §4: with the roles of the chart each verb, of each kind, is refused; so is all else."""
    with installed.account(AGENTS, f"{FULL}-agent") as agent:
        for kind in KINDS:
            assert set(_writes(agent, kind).values()) == {403}, kind.plural
        others = {
            "secrets": agent.get(f"/api/v1/namespaces/{AGENTS}/secrets"),
            "nodes": agent.get("/api/v1/nodes"),
            "a node": agent.patch("/api/v1/nodes/worker-1", json={}, headers=MERGE),
            "pods": agent.post(f"/api/v1/namespaces/{AGENTS}/pods", json={}),
            "events": agent.post(f"/api/v1/namespaces/{TEAM}/events", json={}),
            "leases": agent.post(f"/apis/coordination.k8s.io/v1/namespaces/{AGENTS}/leases", json={}),
            "tokens": agent.post(
                f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{FULL}-runs/token", json={"spec": {}}
            ),
        }
        assert {name: answer.status_code for name, answer in others.items()} == dict.fromkeys(others, 403)


def test_an_agent_may_read_runs_of_the_whole_cluster(installed: Installed) -> None:
    """It watches by the name of its Node, which no role can narrow; of other kinds it reads nothing."""
    with installed.account(AGENTS, f"{FULL}-agent") as agent:
        everywhere = f"/apis/{RUN.api_version}/{RUN.plural}"
        assert agent.get(everywhere).status_code == 200
        assert agent.get(at(RUN, "there")).status_code == 200
        with agent.stream("GET", f"{everywhere}?watch=1&timeoutSeconds=1") as watch:
            assert watch.status_code == 200
        for kind in KINDS:
            if kind != RUN:
                assert agent.get(at(kind)).status_code == 403
                assert agent.get(at(kind, "there")).status_code == 403


def test_a_requester_asks_and_writes_no_status(installed: Installed) -> None:
    """Runs may be created and deleted; neither they nor anything else may be changed."""
    with installed.account(TEAM, "requester") as requester:
        done(requester.post(at(RUN), json=made(RUN, "asked")), 201)
        assert done(requester.get(at(RUN)))["items"]
        for part in ("", "/status"):
            path = at(RUN, "asked", part)
            assert requester.put(path, json=made(RUN, "asked")).status_code == 403
            assert requester.patch(path, json={"status": {}}, headers=MERGE).status_code == 403
        for kind in KINDS:
            if kind != RUN:
                assert set(_writes(requester, kind).values()) == {403}
        done(requester.delete(at(RUN, "asked")))
        elsewhere = f"/apis/{RUN.api_version}/namespaces/{NAMESPACE}/{RUN.plural}"
        assert requester.post(elsewhere, json=made(RUN, "asked")).status_code == 403


def test_an_author_of_policies_asks_for_nothing(installed: Installed) -> None:
    """Who says what is demanded is another one than who asks, and neither says that it was met."""
    with installed.account(TEAM, "author") as author:
        done(author.post(at(POLICY), json=made(POLICY, "mine")), 201)
        done(author.patch(at(POLICY, "mine"), json={"spec": {"mode": "report"}}, headers=MERGE))
        assert (
            author.patch(at(POLICY, "mine", "/status"), json={"status": {}}, headers=MERGE).status_code == 403
        )
        for kind in KINDS:
            if kind != POLICY:
                assert set(_writes(author, kind).values()) == {403}
        done(author.delete(at(POLICY, "mine")))


def test_a_viewer_sees_what_is_in_its_namespace(installed: Installed) -> None:
    """And changes nothing of it; kinds without a namespace take a binding in the whole cluster."""
    with installed.account(TEAM, "viewer") as viewer:
        for kind in KINDS:
            assert viewer.get(at(kind)).status_code == (200 if kind.namespaced else 403)
            assert set(_writes(viewer, kind).values()) == {403}


def test_the_controller_writes_what_came_of_runs_and_no_question(installed: Installed) -> None:
    """Each right that the controller uses, and the rights that would make it judge by its own rules."""
    with installed.account(NAMESPACE, f"{FULL}-runs") as controller:
        for kind in KINDS:
            assert controller.get(f"/apis/{kind.api_version}/{kind.plural}").status_code == 200
            status = controller.patch(at(kind, "there", "/status"), json={"status": {}}, headers=MERGE)
            assert status.status_code == 200, kind.plural
        done(controller.post(at(RESULT), json=made(RESULT, "mine")), 201)
        done(controller.delete(at(RESULT, "mine")))
        policy = _writes(controller, POLICY)
        assert {way for way, code in policy.items() if code != 403} == {"update status", "patch status"}
        one = at(RUN, "there")
        question = (
            controller.put(one, json=made(RUN, "there")),
            controller.patch(one, json={}, headers=MERGE),
            controller.patch(one, json=[], headers=JSON),
            controller.patch(f"{one}?fieldManager=x", json=made(RUN, "there"), headers=APPLY),
            controller.delete(at(RUN)),
        )
        assert {answer.status_code for answer in question} == {403}
        assert controller.patch("/api/v1/nodes/worker-1", json={}, headers=MERGE).status_code == 403
        assert controller.get(f"/api/v1/namespaces/{NAMESPACE}/secrets").status_code == 403


def test_what_is_tried_is_of_our_group() -> None:
    """A path that is misspelt would be refused too, and prove nothing."""
    assert {kind.group for kind in KINDS} == {RUNS_GROUP}
