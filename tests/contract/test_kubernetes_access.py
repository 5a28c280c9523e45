"""Who asks a Kubernetes API, and what they may: the same at ours and at the real one (§22)."""

from __future__ import annotations

import base64
import json
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.contract.kubernetes import (
    MERGE,
    RBAC,
    bound,
    causes,
    done,
    eventually,
    new_name,
    refused,
    rule,
)
from tests.fixtures.kube import FakeKube, KubeAPI, kube, rest

__all__ = ["kube"]

MAPS = "/api/v1/namespaces/default/configmaps"
NODES = "/api/v1/nodes"
ACCESS = "/apis/authorization.k8s.io/v1"
IDENTITY = "/apis/authentication.k8s.io/v1"
ACCOUNTS = "/api/v1/namespaces/default/serviceaccounts"


@pytest.fixture(scope="module")
def admin(kube: KubeAPI) -> Iterator[httpx.Client]:
    """Somebody who may everything."""
    with rest(kube) as client:
        yield client


@pytest.fixture(scope="module")
def stranger(kube: KubeAPI) -> Iterator[httpx.Client]:
    """Somebody who may nothing."""
    with rest(kube, "stranger") as client:
        yield client


def anonymous(kube: KubeAPI, token: str = "") -> httpx.Client:
    """Return somebody whom nobody knows, or who shows *token*."""
    tls = ssl.create_default_context(cafile=kube.ca_file)
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    return httpx.Client(base_url=kube.url, verify=tls, headers=headers, trust_env=False, timeout=30)


# Who asks


def test_a_token_that_nobody_gave_is_refused(kube: KubeAPI) -> None:
    """It is not the same as none."""
    with anonymous(kube, "nobodys") as client:
        assert refused(client.get(NODES), 401)["reason"] == "Unauthorized"
    with anonymous(kube) as client:
        refused(client.get(NODES), 403, 'User "system:anonymous" cannot list resource "nodes"')
        assert client.get("/readyz").text == "ok"


def test_a_refusal_names_who_and_what(stranger: httpx.Client) -> None:
    """Resource, group, namespace; a subresource with its object."""
    who = 'User "stranger" cannot'
    refused(stranger.get(NODES), 403, f'{who} list resource "nodes" in API group "" at the cluster scope')
    refused(
        stranger.get(MAPS),
        403,
        f'{who} list resource "configmaps" in API group "" in the namespace "default"',
    )
    answer = stranger.patch(f"{NODES}/a/status", json={}, headers=MERGE)
    status = refused(answer, 403, f'nodes "a" is forbidden: {who} patch resource "nodes/status"')
    assert status["reason"] == "Forbidden"
    assert status["details"] == {"name": "a", "kind": "nodes"}
    refused(stranger.get("/metrics"), 403, f'{who} get path "/metrics"')


def test_each_verb_is_its_own(admin: httpx.Client, kube: KubeAPI) -> None:
    """Who reads does not write; a name limits."""
    name = new_name()
    done(admin.post(MAPS, json={"metadata": {"name": name}, "data": {}}), 201)
    rules = (rule("", "configmaps", "get", resourceNames=[name]), rule("", "configmaps", "create"))
    with bound(admin, "attestation-nodes", *rules), rest(kube, "nodes") as client:
        eventually(lambda: done(client.get(f"{MAPS}/{name}")))
        refused(client.get(f"{MAPS}/other"), 403)
        refused(client.get(MAPS), 403)
        refused(client.get(MAPS, params={"watch": "1"}), 403, "cannot watch")
        refused(client.patch(f"{MAPS}/{name}", json={}, headers=MERGE), 403, "cannot patch")
        refused(client.put(f"{MAPS}/{name}", json={}), 403, "cannot update")
        refused(client.delete(f"{MAPS}/{name}"), 403, "cannot delete")
        refused(client.delete(MAPS), 403, "cannot deletecollection")
        done(client.post(MAPS, json={"metadata": {"name": new_name()}}), 201)
        applied = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}}
        headers = {"Content-Type": "application/apply-patch+yaml"}
        answer = client.patch(f"{MAPS}/{name}", json=applied, headers=headers, params={"fieldManager": "x"})
        refused(answer, 403, "cannot patch")


def test_a_role_binding_holds_in_its_namespace(admin: httpx.Client, kube: KubeAPI) -> None:
    """Also one of a ClusterRole."""
    name = new_name()
    group = "rbac.authorization.k8s.io"
    done(
        admin.post(
            f"{RBAC}/clusterroles", json={"metadata": {"name": name}, "rules": [rule("", "*", "get", "list")]}
        ),
        201,
    )
    binding = {
        "metadata": {"name": name},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": name},
        "subjects": [{"apiGroup": group, "kind": "Group", "name": "system:bootstrappers"}],
    }
    done(admin.post(f"{RBAC}/namespaces/default/rolebindings", json=binding), 201)
    with rest(kube, "bootstrap") as client:
        eventually(lambda: done(client.get(MAPS)))
        refused(client.get("/api/v1/namespaces/kube-system/configmaps"), 403)
        refused(client.get(NODES), 403)
    admin.delete(f"{RBAC}/namespaces/default/rolebindings/{name}")
    admin.delete(f"{RBAC}/clusterroles/{name}")


# Reviews


def review(client: httpx.Client, **spec: Any) -> bool:
    """Ask for somebody's access."""
    answer = done(client.post(f"{ACCESS}/subjectaccessreviews", json={"spec": spec}), 201)
    return bool(answer["status"].get("allowed"))


def test_access_is_asked_for_others(admin: httpx.Client) -> None:
    """As the approver does to find out who would approve beside it."""
    what = {
        "group": "certificates.k8s.io",
        "resource": "certificatesigningrequests",
        "subresource": "nodeclient",
        "verb": "create",
    }
    who = {"groups": ["testers:nodeclient"], "resourceAttributes": what}
    assert not review(admin, **who)
    resource = rule("certificates.k8s.io", "certificatesigningrequests/nodeclient", "create")
    with bound(admin, "testers:nodeclient", resource, kind="Group"):
        eventually(lambda: _true(review(admin, **who)))
        other = {**what, "subresource": "selfnodeclient"}
        assert not review(admin, groups=["testers:nodeclient"], resourceAttributes=other)
        assert not review(admin, user="somebody", resourceAttributes=what)
    assert review(admin, groups=["system:masters"], resourceAttributes=what)
    answer = admin.post(f"{ACCESS}/subjectaccessreviews", json={"spec": {"resourceAttributes": what}})
    refused(answer, 422, "at least one of user or group")


def _true(value: bool) -> None:
    assert value


def test_everybody_asks_about_themselves(stranger: httpx.Client, admin: httpx.Client) -> None:
    """About others only who may."""
    body = {"spec": {"resourceAttributes": {"resource": "nodes", "verb": "list"}}}
    path = f"{ACCESS}/selfsubjectaccessreviews"
    assert not done(stranger.post(path, json=body), 201)["status"].get("allowed")
    assert done(admin.post(path, json=body), 201)["status"]["allowed"] is True
    refused(stranger.post(f"{ACCESS}/subjectaccessreviews", json=body), 403)
    body = {"spec": {"nonResourceAttributes": {"path": "/readyz", "verb": "get"}}}
    assert done(stranger.post(path, json=body), 201)["status"]["allowed"] is True


# ServiceAccounts


def claims_of(token: str) -> dict[str, Any]:
    """Return what a token says, unverified."""
    body = token.split(".")[1]
    said: dict[str, Any] = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    return said


@pytest.fixture
def account(admin: httpx.Client) -> dict[str, Any]:
    """A ServiceAccount."""
    return done(admin.post(ACCOUNTS, json={"metadata": {"name": new_name("sa")}}), 201)


def token_of(admin: httpx.Client, account: dict[str, Any], **spec: Any) -> str:
    """Return a token of it."""
    path = f"{ACCOUNTS}/{account['metadata']['name']}/token"
    token: str = done(admin.post(path, json={"spec": {"audiences": [], **spec}}), 201)["status"]["token"]
    return token


def test_a_token_says_whose_it_is(kube: KubeAPI, admin: httpx.Client, account: dict[str, Any]) -> None:
    """For whom, and how long; the API itself knows who shows it."""
    metadata = account["metadata"]
    said = claims_of(token_of(admin, account, audiences=["itl-attestation"], expirationSeconds=700))
    assert said["aud"] == ["itl-attestation"]
    assert said["exp"] - said["iat"] == 700
    assert said["sub"] == f"system:serviceaccount:default:{metadata['name']}"
    assert said["kubernetes.io"]["namespace"] == "default"
    assert said["kubernetes.io"]["serviceaccount"] == {"name": metadata["name"], "uid": metadata["uid"]}
    with anonymous(kube, token_of(admin, account)) as client:
        refused(client.get(NODES), 403, f'User "system:serviceaccount:default:{metadata["name"]}"')
    with anonymous(kube, token_of(admin, account, audiences=["itl-attestation"])) as client:
        refused(client.get(NODES), 401)


def test_a_role_is_bound_to_a_service_account(
    kube: KubeAPI, admin: httpx.Client, account: dict[str, Any]
) -> None:
    """By its name as a user, and by its groups."""
    groups = "system:serviceaccounts:default"
    with (
        bound(admin, groups, rule("", "nodes", "list"), kind="Group"),
        anonymous(kube, token_of(admin, account)) as client,
    ):
        eventually(lambda: done(client.get(NODES)))


def test_a_token_is_reviewed(admin: httpx.Client, account: dict[str, Any]) -> None:
    """For the audience that asks; any other is none."""
    token = token_of(admin, account, audiences=["itl-attestation"])

    def asked(token: str, *audiences: str) -> dict[str, Any]:
        body = {"spec": {"token": token, "audiences": list(audiences)}}
        status: dict[str, Any] = done(admin.post(f"{IDENTITY}/tokenreviews", json=body), 201)["status"]
        return status

    status = asked(token, "itl-attestation")
    assert status["authenticated"] is True
    assert status["audiences"] == ["itl-attestation"]
    name = account["metadata"]["name"]
    assert status["user"]["username"] == f"system:serviceaccount:default:{name}"
    assert status["user"]["uid"] == account["metadata"]["uid"]
    assert {"system:serviceaccounts", "system:serviceaccounts:default"} <= set(status["user"]["groups"])
    for bad in (
        asked(token, "other"),
        asked(token),
        asked(token[:-4] + "AAAA", "itl-attestation"),
        asked("x"),
    ):
        assert not bad.get("authenticated")
        assert bad["error"]


def test_a_token_ends_with_its_pod(admin: httpx.Client, account: dict[str, Any]) -> None:
    """And is bound to one that there is."""
    name = new_name("pod")
    ref = {"kind": "Pod", "apiVersion": "v1", "name": name}
    path = f"{ACCOUNTS}/{account['metadata']['name']}/token"
    refused(admin.post(path, json={"spec": {"audiences": ["a"], "boundObjectRef": ref}}), 404)
    container = {"name": "c", "image": "i"}
    spec = {"containers": [container], "serviceAccountName": account["metadata"]["name"]}
    pods = "/api/v1/namespaces/default/pods"
    pod = done(admin.post(pods, json={"metadata": {"name": name}, "spec": spec}), 201)
    token = token_of(admin, account, audiences=["a"], boundObjectRef=ref)
    assert claims_of(token)["kubernetes.io"]["pod"] == {"name": name, "uid": pod["metadata"]["uid"]}
    body = {"spec": {"token": token, "audiences": ["a"]}}
    status = done(admin.post(f"{IDENTITY}/tokenreviews", json=body), 201)["status"]
    assert status["user"]["extra"]["authentication.kubernetes.io/pod-name"] == [name]
    done(admin.request("DELETE", f"{pods}/{name}", json={"gracePeriodSeconds": 0}))
    eventually(lambda: _unknown(done(admin.post(f"{IDENTITY}/tokenreviews", json=body), 201)))


def _unknown(answer: dict[str, Any]) -> None:
    assert not answer["status"].get("authenticated")


def test_tokens_last_ten_minutes_at_least(admin: httpx.Client, account: dict[str, Any]) -> None:
    """Less is refused."""
    path = f"{ACCOUNTS}/{account['metadata']['name']}/token"
    body = {"spec": {"audiences": ["a"], "expirationSeconds": 599}}
    assert causes(refused(admin.post(path, json=body), 422)) == {"spec.expirationSeconds"}


def test_keys_of_tokens_are_published(kube: KubeAPI, admin: httpx.Client) -> None:
    """Under the issuer that tokens name."""
    found = done(admin.get("/.well-known/openid-configuration"))
    assert found["issuer"] == kube.url
    assert done(admin.get("/openid/v1/jwks"))["keys"][0]["kid"]


# Nodes


@pytest.fixture
def worker(admin: httpx.Client) -> Iterator[None]:
    """No Node `worker-1`, before and after."""
    admin.delete(f"{NODES}/worker-1")
    yield
    admin.delete(f"{NODES}/worker-1")


def test_a_node_writes_itself_and_no_label_that_others_rest_on(
    kube: KubeAPI, admin: httpx.Client, worker: None
) -> None:
    """NodeRestriction: what a stolen kubelet's certificate cannot say."""
    restricted = {"node-restriction.kubernetes.io/itl-attested": "true"}
    body = {"metadata": {"name": "worker-1", "labels": {"itl.io/machine-id": "m"}}}
    with rest(kube, "node") as client:
        refused(client.post(NODES, json={"metadata": {"name": "worker-2"}}), 403, "worker-2")
        labels = {"labels": restricted}
        answer = client.post(NODES, json={"metadata": {"name": "worker-1", **labels}})
        refused(answer, 403, "node-restriction.kubernetes.io/itl-attested")
        done(client.post(NODES, json=body), 201)
        path = f"{NODES}/worker-1"
        refused(
            client.patch(path, json={"metadata": labels}, headers=MERGE),
            403,
            "is not allowed to modify labels",
        )
        done(admin.patch(path, json={"metadata": labels}, headers=MERGE))
        gone = {"metadata": {"labels": {"node-restriction.kubernetes.io/itl-attested": None}}}
        refused(client.patch(path, json=gone, headers=MERGE), 403, "is not allowed to modify labels")
        done(client.patch(path, json={"metadata": {"labels": {"own.example.com/x": "y"}}}, headers=MERGE))
        taints = {"spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]}}
        refused(client.patch(path, json=taints, headers=MERGE), 403, "taints")
        done(client.patch(path, json={"spec": {"unschedulable": True}}, headers=MERGE))
        refused(client.delete(path), 403)


# Certificates


def test_a_client_certificate_says_who_it_is(kube: KubeAPI, admin: httpx.Client, tmp_path: Path) -> None:
    """By its common name and organizations, where the cluster's CA is behind it."""
    if not isinstance(kube, FakeKube):
        pytest.skip("how the real one hands them out: tests/integration/kubernetes")
    pair = kube.api.client_certificate("system:node:x", "system:nodes", "others")
    files = tmp_path / "c.pem", tmp_path / "c.key"
    files[0].write_bytes(pair.certificate)
    files[1].write_bytes(pair.key)
    tls = ssl.create_default_context(cafile=kube.ca_file)
    tls.load_cert_chain(*files)
    with httpx.Client(base_url=kube.url, verify=tls, trust_env=False, timeout=60) as client:
        who = done(client.post(f"{IDENTITY}/selfsubjectreviews", json={}), 201)["status"]["userInfo"]
    assert who == {"username": "system:node:x", "groups": ["system:nodes", "others", "system:authenticated"]}
