"""What only our Kubernetes API does: later rules, faults on demand, controllers of certificates."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from attestation_testing.kubernetes import Fault, KubernetesAPI, User
from attestation_testing.kubernetes.authority import user_of
from tests.contract.kubernetes import MERGE, Watch, bound, causes, done, new_name, refused, rule
from tests.contract.test_kubernetes_csr import CSRS, base64_of, certificate, condition, csr, pkcs10
from tests.contract.test_kubernetes_custom import CRDS, GROUP, THINGS, definition, thing
from tests.fixtures.kube import CLIENT_KUBELET, SIGNER, FakeKube, fake, fake_kube, rest

__all__ = ["fake"]

MAPS = "/api/v1/namespaces/default/configmaps"
NODECLIENT = rule("certificates.k8s.io", "certificatesigningrequests/nodeclient", "create")
ASK = rule("certificates.k8s.io", "certificatesigningrequests", "create", "get")


@pytest.fixture
def admin(fake: FakeKube) -> Iterator[httpx.Client]:
    """Somebody who may everything."""
    with rest(fake) as client:
        yield client


def config(name: str, data: dict[str, str] | None = None) -> dict[str, Any]:
    """Return a ConfigMap."""
    return {"metadata": {"name": name}, "data": data or {"a": "1"}}


# Later than 1.20


@pytest.mark.parametrize(("seconds", "code"), [(599, 422), (600, 201), (86400, 201)])
def test_a_lifetime_is_ten_minutes_at_least(admin: httpx.Client, seconds: int, code: int) -> None:
    """Since 1.22."""
    answer = admin.post(CSRS, json=csr("a", expirationSeconds=seconds))
    assert answer.status_code == code
    if code == 422:
        assert causes(answer.json()) == {"spec.expirationSeconds"}
    else:
        assert answer.json()["spec"]["expirationSeconds"] == seconds


def test_a_node_asks_for_itself(fake: FakeKube) -> None:
    """Since 1.31: a kubelet's certificate is not traded for another node's."""
    body = csr("a", signerName=CLIENT_KUBELET, usages=["digital signature", "client auth"])
    with rest(fake, "node") as client:
        done(client.post(CSRS, json=body), 201)
        other = csr("b", pkcs10("system:node:worker-2"), signerName=CLIENT_KUBELET)
        refused(client.post(CSRS, json=other), 403, "CN=system:node:worker-1")
        done(client.post(CSRS, json=csr("c", pkcs10("system:node:worker-2"))), 201)


def ruled(**rules: Any) -> dict[str, Any]:
    """Return a definition of Things with rules at `spec`, and a field to select by."""
    crd = definition()
    version = json.loads(json.dumps(crd["spec"]["versions"][0]))
    spec = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
    for where, said in rules.items():
        at = spec if where == "spec" else spec["properties"][where]
        at["x-kubernetes-validations"] = said
    version["selectableFields"] = [{"jsonPath": ".spec.mode"}]
    crd["spec"]["versions"] = [version]
    return crd


def test_rules_in_cel(admin: httpx.Client) -> None:
    """About a value, about what it was, with a reason and a place."""
    rules = [
        {
            "rule": "self.mode == 'on' || self.size > 5",
            "message": "too small to be off",
            "fieldPath": ".size",
        },
        {
            "rule": "self.mode == oldSelf.mode",
            "messageExpression": "'it was ' + oldSelf.mode",
            "reason": "FieldValueForbidden",
        },
    ]
    done(admin.post(CRDS, json=ruled(spec=rules, text=[{"rule": "self == oldSelf"}])), 201)
    status = refused(admin.post(THINGS, json=thing("a", mode="off")), 422, "too small to be off")
    assert causes(status) == {"spec.size"}
    done(admin.post(THINGS, json=thing("a", mode="off", size=6, text="x")), 201)
    status = refused(
        admin.patch(f"{THINGS}/a", json={"spec": {"mode": "on"}}, headers=MERGE), 422, "it was off"
    )
    assert [each["reason"] for each in status["details"]["causes"]] == ["FieldValueForbidden"]
    status = refused(
        admin.patch(f"{THINGS}/a", json={"spec": {"text": "y"}}, headers=MERGE),
        422,
        "failed rule: self == oldSelf",
    )
    assert causes(status) == {"spec.text"}
    done(admin.patch(f"{THINGS}/a", json={"spec": {"size": 7}}, headers=MERGE))


def test_a_reserved_word_is_escaped(admin: httpx.Client) -> None:
    """As versions before 1.32 want it."""
    rule = {"rule": "self.__namespace__ == 'a'", "messageExpression": "'not ' + self.__namespace__"}
    done(admin.post(CRDS, json=ruled(labels=[rule])), 201)
    refused(admin.post(THINGS, json=thing("a", labels={"namespace": "b"})), 422, "not b")
    done(admin.post(THINGS, json=thing("a", labels={"namespace": "a"})), 201)


def test_rules_of_a_whole_object(admin: httpx.Client) -> None:
    """What it was too: the object as it is stored."""
    crd = ruled()
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"] = {
        **schema,
        "x-kubernetes-validations": [{"rule": "self.spec == oldSelf.spec", "message": "it stays"}],
    }
    done(admin.post(CRDS, json=crd), 201)
    done(admin.post(THINGS, json=thing("a")), 201)
    refused(admin.patch(f"{THINGS}/a", json={"spec": {"size": 2}}, headers=MERGE), 422, "it stays")
    done(admin.patch(f"{THINGS}/a/status", json={"status": {"phase": "x"}}, headers=MERGE))


def test_a_rule_that_cannot_be_evaluated_lets_nothing_through(admin: httpx.Client) -> None:
    """What is missing is an error, and an error is no yes."""
    done(admin.post(CRDS, json=ruled(spec=[{"rule": "self.text == 'a'"}])), 201)
    refused(admin.post(THINGS, json=thing("a")), 422, "rule evaluation error")


def test_a_rule_is_cel(admin: httpx.Client) -> None:
    """Or the definition is refused."""
    status = refused(admin.post(CRDS, json=ruled(spec=[{"rule": "1 +"}])), 422, "compilation failed")
    assert any("x-kubernetes-validations[0].rule" in each for each in causes(status))


def test_rules_follow_the_members_of_lists_by_key(admin: httpx.Client) -> None:
    """Each is compared with what it was, wherever it stands now."""
    crd = ruled()
    parts = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"][
        "parts"
    ]
    parts["items"]["properties"]["value"]["x-kubernetes-validations"] = [{"rule": "self >= oldSelf"}]
    done(admin.post(CRDS, json=crd), 201)
    two = [{"name": "a", "value": 1}, {"name": "b", "value": 5}]
    done(admin.post(THINGS, json=thing("x", parts=two)), 201)
    turned = [{"name": "b", "value": 5}, {"name": "a", "value": 1}, {"name": "c", "value": 0}]
    done(admin.patch(f"{THINGS}/x", json={"spec": {"parts": turned}}, headers=MERGE))
    less = [{"name": "b", "value": 4}]
    status = refused(admin.patch(f"{THINGS}/x", json={"spec": {"parts": less}}, headers=MERGE), 422)
    assert causes(status) == {"spec.parts[0].value"}


def test_fields_that_a_definition_selects_by(admin: httpx.Client) -> None:
    """Since 1.31; no others."""
    done(admin.post(CRDS, json=ruled()), 201)
    for name, mode in (("a", "on"), ("b", "off")):
        done(admin.post(THINGS, json=thing(name, mode=mode)), 201)
    found = done(admin.get(THINGS, params={"fieldSelector": "spec.mode=off"}))["items"]
    assert [each["metadata"]["name"] for each in found] == ["b"]
    refused(admin.get(THINGS, params={"fieldSelector": "spec.size=1"}), 400)


def test_a_definition_serves_several_versions(admin: httpx.Client) -> None:
    """Of one object, without conversion; one is stored."""
    crd = definition()
    first = crd["spec"]["versions"][0]
    crd["spec"]["versions"] = [{**first, "name": "v1alpha1", "storage": False}, first]
    done(admin.post(CRDS, json=crd), 201)
    done(admin.post(THINGS, json=thing("a")), 201)
    older = f"/apis/{GROUP}/v1alpha1/things/a"
    assert done(admin.get(older))["apiVersion"] == f"{GROUP}/v1alpha1"
    now = done(admin.patch(older, json={"spec": {"size": 3}}, headers=MERGE))
    assert now["apiVersion"] == f"{GROUP}/v1alpha1"
    assert done(admin.get(f"{THINGS}/a"))["spec"]["size"] == 3


# Watches


def test_a_watch_from_before_what_is_remembered_gets_410(fake: FakeKube, admin: httpx.Client) -> None:
    """As an event; and so does the next page of a list."""
    version = done(admin.get(MAPS))["metadata"]["resourceVersion"]
    for name in "abc":
        done(admin.post(MAPS, json=config(name)), 201)
    more = done(admin.get(MAPS, params={"limit": "1"}))["metadata"]["continue"]
    fake.api.forget()
    with Watch(admin, MAPS, resourceVersion=version) as watch:
        kind, status = watch.next()
        assert (kind, status["code"], status["reason"]) == ("ERROR", 410, "Expired")
        with pytest.raises(StopIteration):
            watch.next()
    assert refused(admin.get(MAPS, params={"limit": "1", "continue": more}), 410)["reason"] == "Expired"


def test_a_watch_gets_bookmarks_where_it_wants_them() -> None:
    """So it goes on from there, though nothing of its own happened."""
    with fake_kube(bookmark_seconds=0.01) as api, rest(api) as admin:
        with Watch(admin, MAPS, resourceVersion="2", allowWatchBookmarks="true") as watch:
            kind, mark = watch.next()
        assert kind == "BOOKMARK"
        assert mark["kind"] == "ConfigMap"
        assert mark["metadata"]["resourceVersion"].isdigit()


def test_a_watch_tells_when_it_has_told_what_there_is(admin: httpx.Client) -> None:
    """`sendInitialEvents`: what there is, then a bookmark that says so."""
    done(admin.post(MAPS, json=config("a")), 201)
    query = {
        "sendInitialEvents": "true",
        "resourceVersionMatch": "NotOlderThan",
        "allowWatchBookmarks": "true",
    }
    with Watch(admin, MAPS, **query) as watch:
        assert watch.next()[1]["metadata"]["name"] == "a"
        kind, mark = watch.next()
    assert kind == "BOOKMARK"
    assert mark["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}


def test_watches_are_cut_off(fake: FakeKube, admin: httpx.Client) -> None:
    """As networks do it: without an end."""
    with Watch(admin, MAPS, resourceVersion="2") as watch:
        done(admin.post(MAPS, json=config("a")), 201)
        watch.next()
        assert fake.api.watches() == 1
        assert fake.api.drop_watches() == 1
        with pytest.raises(httpx.HTTPError):
            watch.next()


# Faults


def test_requests_fail_as_they_were_told(fake: FakeKube, admin: httpx.Client) -> None:
    """So many of those that fit, and no others."""
    fake.api.fail(verb="create", resource="configmaps", status=503, retry_after=2, times=2)
    for _ in range(2):
        answer = admin.post(MAPS, json=config("a"))
        status = refused(answer, 503)
        assert status["details"]["retryAfterSeconds"] == 2
        assert answer.headers["Retry-After"] == "2"
        done(admin.get(MAPS))
    done(admin.post(MAPS, json=config("a")), 201)
    assert fake.api.faults.met == 2


def test_a_fault_is_taken_back(fake: FakeKube, admin: httpx.Client) -> None:
    """Before it happened, one or all."""
    fault = fake.api.fail(status=500, times=None)
    refused(admin.get(MAPS), 500)
    fake.api.faults.remove(fault)
    done(admin.get(MAPS))
    fake.api.faults.add(Fault(name="x", user="admin", subresource="", status=429))
    done(admin.get(MAPS))
    fake.api.faults.clear()
    refused(admin.get(f"{MAPS}/x"), 404)


def test_an_answer_is_lost(fake: FakeKube, admin: httpx.Client) -> None:
    """What was asked is done, and who asked does not know."""
    fake.api.fail(verb="create", lose_answer=True)
    with pytest.raises(httpx.HTTPError):
        admin.post(MAPS, json=config("a"))
    done(admin.get(f"{MAPS}/a"))


def test_something_happens_between_reading_and_writing(fake: FakeKube, admin: httpx.Client) -> None:
    """The object is gone, or another by now, when the write comes."""
    cluster = fake.api.cluster
    made = done(admin.post(MAPS, json=config("a")), 201)

    def other() -> None:
        found = cluster.store.get(("", "configmaps"), "default", "a")
        assert found is not None
        cluster.change(
            "", "configmaps", {**found, "metadata": dict(found["metadata"]), "data": {"a": "other"}}
        )

    fake.api.fail(verb="update", before=other)
    refused(admin.put(f"{MAPS}/a", json={**made, "data": {"a": "mine"}}), 409)
    resource = cluster.resources["", "configmaps"]
    fake.api.fail(
        verb="patch",
        before=lambda: cluster.delete(resource, cluster.store.get(("", "configmaps"), "default", "a") or {}),
    )
    refused(admin.patch(f"{MAPS}/a", json={"data": {"a": "mine"}}, headers=MERGE), 404)


def test_an_answer_is_late_and_others_are_not(fake: FakeKube, admin: httpx.Client) -> None:
    """Who waits holds nobody up."""
    fake.api.fail(name="slow", delay_seconds=0.2)
    answers: list[int] = []
    with rest(fake) as other:
        waits = threading.Thread(target=lambda: answers.append(other.get(f"{MAPS}/slow").status_code))
        waits.start()
        done(admin.get(MAPS))
        waits.join(30)
    assert answers == [404]


# The stock controllers


def test_the_stock_signer_signs_what_is_approved(admin: httpx.Client) -> None:
    """For a kubelet, with its lifetime at most; our signer's requests it leaves."""
    body = csr("a", signerName=CLIENT_KUBELET, expirationSeconds=3600)
    for name, signer, signed in (("a", CLIENT_KUBELET, True), ("b", SIGNER, False)):
        body["metadata"]["name"], body["spec"]["signerName"] = name, signer
        made = done(admin.post(CSRS, json=body), 201)
        assert "certificate" not in made["status"]
        made["status"] = {"conditions": [condition("Approved")]}
        done(admin.put(f"{CSRS}/{name}/approval", json=made))
        status = done(admin.get(f"{CSRS}/{name}"))["status"]
        assert ("certificate" in status) is signed
    pem = base64.b64decode(done(admin.get(f"{CSRS}/a"))["status"]["certificate"])
    found = x509.load_pem_x509_certificate(pem)
    assert found.not_valid_after_utc <= datetime.now(UTC) + timedelta(hours=1)
    names = [each.value for each in found.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    assert names == ["system:node:worker-1"]
    user = user_of(x509.load_pem_x509_certificate(pem).public_bytes(Encoding.DER))
    assert user == User("system:node:worker-1", ("system:nodes",)).authenticated()


def test_the_stock_signer_fails_what_is_no_kubelets(admin: httpx.Client) -> None:
    """And says so."""
    made = done(admin.post(CSRS, json=csr("a", pkcs10("someone"), signerName=CLIENT_KUBELET)), 201)
    made["status"] = {"conditions": [condition("Approved")]}
    done(admin.put(f"{CSRS}/a/approval", json=made))
    status = done(admin.get(f"{CSRS}/a"))["status"]
    assert [each["type"] for each in status["conditions"]] == ["Approved", "Failed"]
    assert "certificate" not in status


@pytest.mark.parametrize("running", [True, False])
def test_the_stock_approver_reads_no_evidence(running: bool) -> None:
    """It approves whoever a binding lets: the race that the approver looks for (§23)."""
    body = csr("a", signerName=CLIENT_KUBELET)
    with fake_kube(csrapproving=running) as api, rest(api) as admin:
        with (
            bound(admin, "system:bootstrappers", ASK, NODECLIENT, kind="Group"),
            rest(api, "bootstrap") as client,
        ):
            done(client.post(CSRS, json=body), 201)
            status = done(client.get(f"{CSRS}/a"))["status"]
        assert ("certificate" in status) is running
        with bound(admin, "system:bootstrappers", ASK, kind="Group"), rest(api, "bootstrap") as client:
            done(client.post(CSRS, json={**body, "metadata": {"name": "b"}}), 201)
            assert done(client.get(f"{CSRS}/b"))["status"] == {}


# The rest of a cluster


def test_the_same_seed_gives_the_same_names() -> None:
    """And UIDs: a test that fails can be repeated."""
    found = []
    for _ in range(2):
        with KubernetesAPI(seed=7) as api:
            made = api.run(lambda cluster: cluster.make("", "nodes", {"metadata": {"generateName": "n-"}}))
            found.append((made["metadata"]["name"], made["metadata"]["uid"]))
    assert found[0] == found[1]


def test_time_is_what_it_is_told() -> None:
    """For objects and for tokens, which end."""
    at = [datetime(2030, 1, 1, tzinfo=UTC)]
    with fake_kube(now=lambda: at[0]) as api, rest(api) as admin:
        made = done(admin.post(MAPS, json=config("a")), 201)
        assert made["metadata"]["creationTimestamp"] == "2030-01-01T00:00:00Z"
        token = api.api.service_account_token("attest", "approver", audiences=("x",), pod="p-0")
        body = {"spec": {"token": token, "audiences": ["x"]}}
        path = "/apis/authentication.k8s.io/v1/tokenreviews"
        assert done(admin.post(path, json=body), 201)["status"]["authenticated"]
        at[0] += timedelta(seconds=3601)
        assert "authenticated" not in done(admin.post(path, json=body), 201)["status"]


def test_a_certificate_has_no_two_meanings(fake: FakeKube, admin: httpx.Client) -> None:
    """Conditions and certificate are applied by their managers, and the API says whose they are."""
    name = new_name()
    made = done(admin.post(CSRS, json=csr(name)), 201)
    made["status"] = {"certificate": base64_of(certificate())}
    now = done(admin.put(f"{CSRS}/{name}/status", json=made, params={"fieldManager": "signer"}))
    owners = {each["manager"]: each for each in now["metadata"]["managedFields"]}
    assert owners["signer"]["subresource"] == "status"
    assert owners["signer"]["fieldsV1"] == {"f:status": {"f:certificate": {}}}
