"""ValidatingAdmissionPolicy, and what else came after 1.20: our Kubernetes API alone has it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.contract.kubernetes import APPLY, MERGE, bound, causes, done, refused, rule
from tests.contract.test_kubernetes_access import claims_of
from tests.contract.test_kubernetes_custom import CRDS, THINGS, thing
from tests.contract.test_kubernetes_webhooks import HOOKS, Webhook, config, configuration, webhook
from tests.fixtures.kube import FakeKube, fake, fake_kube, rest
from tests.unit.testing.test_kubernetes_api import ruled

__all__ = ["fake", "webhook"]

ADMISSION = "/apis/admissionregistration.k8s.io/v1"
POLICIES = f"{ADMISSION}/validatingadmissionpolicies"
BINDINGS = f"{ADMISSION}/validatingadmissionpolicybindings"
MAPS = "/api/v1/namespaces/default/configmaps"
ON_THINGS = {
    "apiGroups": ["*"],
    "apiVersions": ["*"],
    "operations": ["CREATE", "UPDATE"],
    "resources": ["things"],
}


@pytest.fixture
def admin(fake: FakeKube) -> Iterator[httpx.Client]:
    """Somebody who may everything, where there are Things."""
    with rest(fake) as client:
        done(client.post(CRDS, json=ruled()), 201)
        yield client


def policy(name: str, *validations: dict[str, Any], rules: Any = (ON_THINGS,), **spec: Any) -> dict[str, Any]:
    """Return a policy."""
    said = {"matchConstraints": {"resourceRules": list(rules)}, "validations": list(validations), **spec}
    return {"metadata": {"name": name}, "spec": said}


def enforce(admin: httpx.Client, said: dict[str, Any], **spec: Any) -> None:
    """Have a policy, and a binding of its name."""
    name = said["metadata"]["name"]
    done(admin.post(POLICIES, json=said), 201)
    bind = {"policyName": name, "validationActions": ["Deny"], **spec}
    done(admin.post(BINDINGS, json={"metadata": {"name": f"{name}-here"}, "spec": bind}), 201)


def test_a_policy_refuses_what_it_is_bound_for(admin: httpx.Client) -> None:
    """In its words, with its reason; one without a binding says nothing, one that only warns neither."""
    small = {"expression": "object.spec.size < 5", "message": "too large", "reason": "Forbidden"}
    done(admin.post(POLICIES, json=policy("free", {"expression": "false"})), 201)
    enforce(admin, policy("warns", {"expression": "false"}), validationActions=["Warn", "Audit"])
    enforce(admin, policy("small", small))
    status = refused(
        admin.post(THINGS, json=thing("a", size=5)),
        403,
        "is forbidden: ValidatingAdmissionPolicy 'small' with binding 'small-here' denied request: too large",
    )
    assert (status["reason"], status["details"]["name"]) == ("Forbidden", "a")
    done(admin.post(THINGS, json=thing("a", size=4)), 201)
    refused(admin.patch(f"{THINGS}/a", json={"spec": {"size": 9}}, headers=MERGE), 403)
    apply = {**thing("b", size=9)}
    refused(admin.patch(f"{THINGS}/b", params={"fieldManager": "m"}, json=apply, headers=APPLY), 403)
    refused(admin.post(THINGS, params={"dryRun": "All"}, json=thing("b", size=9)), 403)
    done(admin.delete(f"{BINDINGS}/small-here"))
    done(admin.post(THINGS, json=thing("b", size=9)), 201)


def test_who_asks_and_what_it_was(fake: FakeKube, admin: httpx.Client) -> None:
    """`request.userInfo`, `oldObject`: of a part that is written apart too, and of a deletion."""
    status = {**ON_THINGS, "operations": ["UPDATE"], "resources": ["things/status"]}
    mine = {"expression": "request.userInfo.username == 'system:serviceaccount:default:runs'"}
    enforce(admin, policy("status", mine, rules=[status]))
    same = {
        "expression": "object.spec == oldObject.spec",
        "messageExpression": "'it was ' + string(oldObject.spec.size)",
    }
    enforce(admin, policy("stays", same, rules=[{**ON_THINGS, "operations": ["UPDATE"]}]))
    kept = {"expression": "oldObject.spec.mode == 'off' && object == null", "message": "it is on"}
    enforce(admin, policy("kept", kept, rules=[{**ON_THINGS, "operations": ["DELETE"]}]))
    for name, mode in (("a", "on"), ("b", "off")):
        done(admin.post(THINGS, json=thing(name, mode=mode)), 201)
    phase = {"status": {"phase": "Running"}}
    refused(admin.patch(f"{THINGS}/a/status", json=phase, headers=MERGE), 422, "failed expression: request.")
    with (
        bound(admin, "system:serviceaccount:default:runs", rule("*", "things/status", "patch"), kind="User"),
        rest(fake) as runs,
    ):
        runs.headers["Authorization"] = f"Bearer {fake.api.service_account_token('default', 'runs')}"
        done(runs.patch(f"{THINGS}/a/status", json=phase, headers=MERGE))
    refused(admin.patch(f"{THINGS}/a", json={"spec": {"size": 2}}, headers=MERGE), 422, "it was 1")
    done(admin.patch(f"{THINGS}/a", json={"metadata": {"labels": {"a": "b"}}}, headers=MERGE))
    refused(admin.delete(f"{THINGS}/a"), 422, "it is on")
    refused(admin.delete(THINGS), 422, "it is on")
    done(admin.delete(f"{THINGS}/b"))


def test_what_cannot_be_evaluated_is_refused(admin: httpx.Client) -> None:
    """Unless the policy says that it ignores that."""
    for name, how, code in (("a", "Fail", 422), ("b", "Ignore", 201)):
        wants = [{"name": "this", "expression": f"object.metadata.name == '{name}'"}]
        missing = {"expression": "object.spec.text == 'x'"}
        enforce(admin, policy(name, missing, failurePolicy=how, matchConditions=wants))
        assert admin.post(THINGS, json=thing(name)).status_code == code
    broken = [{"name": "this", "expression": "object.spec.text == 'x'"}]
    enforce(admin, policy("c", {"expression": "true"}, matchConditions=broken))
    refused(admin.post(THINGS, json=thing("c")), 422, "match condition could not be evaluated")


def test_variables_name_those_before_them(admin: httpx.Client) -> None:
    """Each is evaluated where it is named; one that names itself has no value."""
    variables = [
        {"name": "size", "expression": "object.spec.size"},
        {"name": "twice", "expression": "variables.size * 2"},
        {"name": "never", "expression": "object.spec.text"},
        {"name": "loop", "expression": "variables.loop"},
    ]
    enforce(admin, policy("twice", {"expression": "variables.twice < 9"}, variables=variables))
    done(admin.post(THINGS, json=thing("a", size=4)), 201)
    refused(admin.post(THINGS, json=thing("b", size=5)), 422, "variables.twice < 9")
    enforce(admin, policy("loop", {"expression": "variables.loop"}, variables=variables))
    refused(admin.post(THINGS, json=thing("c")), 422, "resulted in error")


@pytest.mark.parametrize(
    ("where", "binding", "refused_"),
    [
        ({"resourceRules": [{**ON_THINGS, "apiGroups": ["other"]}]}, {}, False),
        ({"resourceRules": [{**ON_THINGS, "apiVersions": ["v2"]}]}, {}, False),
        ({"resourceRules": [{**ON_THINGS, "resources": ["*/*"]}]}, {}, True),
        ({"resourceRules": [{**ON_THINGS, "resources": ["things/*"]}]}, {}, False),
        ({"resourceRules": [{**ON_THINGS, "scope": "Namespaced"}]}, {}, False),
        ({"resourceRules": [{**ON_THINGS, "resourceNames": ["other"]}]}, {}, False),
        ({"excludeResourceRules": [ON_THINGS]}, {}, False),
        ({"objectSelector": {"matchLabels": {"team": "a"}}}, {}, True),
        ({"objectSelector": {"matchLabels": {"team": "b"}}}, {}, False),
        (
            {"objectSelector": {"matchExpressions": [{"key": "team", "operator": "In", "values": ["a"]}]}},
            {},
            True,
        ),
        (
            {"objectSelector": {"matchExpressions": [{"key": "team", "operator": "NotIn", "values": ["a"]}]}},
            {},
            False,
        ),
        ({"objectSelector": {"matchExpressions": [{"key": "team", "operator": "DoesNotExist"}]}}, {}, False),
        ({"objectSelector": {"matchExpressions": [{"key": "team", "operator": "Exists"}]}}, {}, True),
        ({"namespaceSelector": {"matchLabels": {"x": "y"}}}, {}, True),
        ({}, {"objectSelector": {"matchLabels": {"team": "b"}}}, False),
        ({}, {"resourceRules": [{**ON_THINGS, "resources": ["others"]}]}, False),
    ],
)
def test_a_policy_sees_what_it_asks_for(
    admin: httpx.Client, where: dict[str, Any], binding: dict[str, Any], refused_: bool
) -> None:
    """By rules and labels; a binding may ask for less. A Thing is in no namespace that a selector could miss."""
    constraints = {"resourceRules": [ON_THINGS], **where}
    enforce(admin, policy("p", {"expression": "false"}, matchConstraints=constraints), matchResources=binding)
    body = thing("a")
    body["metadata"]["labels"] = {"team": "a"}
    assert admin.post(THINGS, json=body).status_code == (422 if refused_ else 201)


def test_a_namespace_is_selected_by_its_labels(admin: httpx.Client) -> None:
    """Which the API server writes: its name is one of them."""
    maps = {**ON_THINGS, "apiGroups": [""], "resources": ["configmaps"]}
    selector = {"matchLabels": {"kubernetes.io/metadata.name": "kube-public"}}
    constraints = {"resourceRules": [maps], "namespaceSelector": selector}
    enforce(admin, policy("p", {"expression": "false"}, matchConstraints=constraints))
    body = {"metadata": {"name": "a"}}
    done(admin.post(MAPS, json=body), 201)
    refused(admin.post(MAPS.replace("default", "kube-public"), json=body), 422)


@pytest.mark.parametrize(
    ("said", "field"),
    [
        (policy("p", {"expression": "1 +"}), "spec.validations[0].expression"),
        (policy("p", {"expression": "authorizer == null"}), "spec.validations[0].expression"),
        (
            policy("p", {"expression": "true", "messageExpression": "'"}),
            "spec.validations[0].messageExpression",
        ),
        (policy("p", {"message": "x"}), "spec.validations[0].expression"),
        (policy("p"), "spec.validations"),
        (policy("p", {"expression": "true"}, rules=()), "spec.matchConstraints.resourceRules"),
        (policy("p", {"expression": "true"}, failurePolicy="Maybe"), "spec.failurePolicy"),
        (policy("p", {"expression": "true"}, variables=[{"expression": "1"}]), "spec.variables[0].name"),
        (policy("p", {"expression": "true"}, paramKind={"kind": "X"}), "spec.paramKind"),
    ],
)
def test_a_policy_has_a_form(admin: httpx.Client, said: dict[str, Any], field: str) -> None:
    """What is no CEL, or is not done here, is not taken: it would let everything through."""
    assert causes(refused(admin.post(POLICIES, json=said), 422)) == {field}


def test_a_binding_has_a_form(admin: httpx.Client) -> None:
    """It names a policy, and what follows."""
    for spec, field in (
        ({"policyName": "p"}, "spec.validationActions"),
        ({"validationActions": ["Deny"]}, "spec.policyName"),
        ({"policyName": "p", "validationActions": ["Ask"]}, "spec.validationActions"),
        ({"policyName": "p", "validationActions": ["Deny"], "paramRef": {"name": "x"}}, "spec.paramRef"),
    ):
        answer = admin.post(BINDINGS, json={"metadata": {"name": "b"}, "spec": spec})
        assert causes(refused(answer, 422)) == {field}


def test_the_cluster_itself_is_not_asked_about(fake: FakeKube, admin: httpx.Client) -> None:
    """Nor can a policy hold up the policies."""
    everything = {name: ["*"] for name in ("apiGroups", "apiVersions", "operations")}
    everything["resources"] = ["*", "*/*"]
    enforce(admin, policy("none", {"expression": "false"}, rules=[everything]))
    refused(admin.post(MAPS, json={"metadata": {"name": "a"}}), 422)
    fake.api.run(lambda c: c.make("", "configmaps", {"metadata": {"name": "a"}}, namespace="default"))
    refused(admin.delete(f"{MAPS}/a"), 422)
    done(admin.delete(f"{POLICIES}/none"))
    done(admin.delete(f"{MAPS}/a"))


def test_a_webhook_may_be_a_service(fake: FakeKube, admin: httpx.Client, webhook: Webhook) -> None:
    """It is reached where a test says, under the name that it has in the cluster."""
    service = {"namespace": "default", "name": "kubernetes", "path": "/admit"}
    how = {"service": service, "caBundle": webhook.ca_bundle}
    done(admin.post(HOOKS, json=configuration(webhook, "h", clientConfig=how)), 201)
    refused(admin.post(MAPS, json=config("a", "h")), 500, 'service "kubernetes" not found')
    fake.api.serve("default", "kubernetes", *webhook.server.server_address[:2])  # type: ignore[arg-type]  # of IPv4
    done(admin.post(MAPS, json=config("a", "h")), 201)
    fake.api.serve("default", "other", *webhook.server.server_address[:2])  # type: ignore[arg-type]  # of IPv4
    how = {**how, "service": {**service, "name": "other"}}
    done(admin.post(HOOKS, json=configuration(webhook, "i", clientConfig=how)), 201)
    refused(admin.post(MAPS, json=config("b", "i")), 500, "certificate verify failed")


def test_an_older_server_has_less() -> None:
    """As the real 1.20: no policies, no rules in CEL, no fields to select by, no Node in tokens."""
    with fake_kube(minor=20) as older, rest(older) as admin:
        assert done(admin.get("/version"))["minor"] == "20"
        done(admin.post(CRDS, json=ruled(spec=[{"rule": "self.size > 5"}, {"rule": "1 +"}])), 201)
        done(admin.post(THINGS, json=thing("a")), 201)
        refused(
            admin.get(THINGS, params={"fieldSelector": "spec.mode=on"}),
            400,
            "field label not supported: spec.mode",
        )
        refused(admin.get(THINGS, params={"fieldSelector": "spec.mode=on", "watch": "1"}), 400)
        assert admin.get(POLICIES).status_code == 404
        token = older.api.service_account_token("default", "agent", pod="p", node="n1")
        assert "node" not in claims_of(token)["kubernetes.io"]


def test_a_token_says_on_which_node_its_pod_is(fake: FakeKube, admin: httpx.Client) -> None:
    """Name and UID, to who reads the token and to who has it reviewed; the Node itself may be gone meanwhile."""
    token = fake.api.service_account_token("default", "agent", audiences=("a",), pod="p", node="n1")
    node = done(admin.get("/api/v1/nodes/n1"))["metadata"]
    assert claims_of(token)["kubernetes.io"]["node"] == {"name": "n1", "uid": node["uid"]}
    spec = {"audiences": ["a"], "boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": "p"}}
    accounts = "/api/v1/namespaces/default/serviceaccounts"
    asked = done(admin.post(f"{accounts}/agent/token", json={"spec": spec}), 201)["status"]["token"]
    assert claims_of(asked)["kubernetes.io"]["node"] == {"name": "n1", "uid": node["uid"]}
    done(admin.delete("/api/v1/nodes/n1"))
    body = {"spec": {"token": token, "audiences": ["a"]}}
    status = done(admin.post("/apis/authentication.k8s.io/v1/tokenreviews", json=body), 201)["status"]
    assert status["authenticated"] is True
    prefix = "authentication.kubernetes.io"
    assert status["user"]["extra"][f"{prefix}/node-name"] == ["n1"]
    assert status["user"]["extra"][f"{prefix}/node-uid"] == [node["uid"]]
    gone = done(admin.post(f"{accounts}/agent/token", json={"spec": spec}), 201)["status"]["token"]
    assert claims_of(gone)["kubernetes.io"]["node"] == {"name": "n1"}
    free = fake.api.service_account_token("default", "agent", pod="elsewhere")
    assert "node" not in claims_of(free)["kubernetes.io"]
