"""Objects of Kubernetes, how they are written and watched: the same at our API server and at the real one (§29)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.contract.kubernetes import (
    APPLY,
    JSON,
    MERGE,
    STRATEGIC,
    Watch,
    causes,
    done,
    eventually,
    new_name,
    refused,
)
from tests.fixtures.kube import KubeAPI, kube, rest

__all__ = ["kube"]

MAPS = "/api/v1/namespaces/default/configmaps"
NODES = "/api/v1/nodes"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
EVENTS = "/apis/events.k8s.io/v1/namespaces/default/events"


@pytest.fixture(scope="module")
def admin(kube: KubeAPI) -> Iterator[httpx.Client]:
    """Somebody who may everything."""
    with rest(kube) as client:
        yield client


@pytest.fixture
def name() -> str:
    """A name that no other test has."""
    return new_name()


def config(name: str, data: dict[str, str] | None = None, **metadata: Any) -> dict[str, Any]:
    """Return a ConfigMap: an object without rules of its own."""
    metadata = {"name": name, **metadata}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data or {"a": "1"}}


@pytest.fixture
def made(admin: httpx.Client, name: str) -> dict[str, Any]:
    """One of them."""
    return done(admin.post(MAPS, json=config(name)), 201)


@pytest.fixture
def node(admin: httpx.Client, name: str) -> Iterator[dict[str, Any]]:
    """A Node."""
    body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {"a": "1"}}}
    yield done(admin.post(NODES, json=body), 201)
    admin.delete(f"{NODES}/{name}")


# Making, reading, deleting


def test_the_server_says_who_an_object_is(made: dict[str, Any]) -> None:
    """Whatever was sent."""
    metadata = made["metadata"]
    assert len(metadata["uid"]) == 36
    assert metadata["resourceVersion"].isdigit()
    assert metadata["creationTimestamp"].endswith("Z")
    assert metadata["namespace"] == "default"


def test_a_name_is_given_once(admin: httpx.Client, made: dict[str, Any], name: str) -> None:
    """The second learns it."""
    status = refused(admin.post(MAPS, json=config(name)), 409, f'configmaps "{name}" already exists')
    assert status["reason"] == "AlreadyExists"
    assert status["details"] == {"name": name, "kind": "configmaps"}


def test_a_name_is_made(admin: httpx.Client) -> None:
    """From its beginning."""
    body = {"metadata": {"generateName": "made-"}, "data": {}}
    names = {done(admin.post(MAPS, json=body), 201)["metadata"]["name"] for _ in range(3)}
    assert len(names) == 3
    assert all(each.startswith("made-") and len(each) == 10 for each in names)


@pytest.mark.parametrize("bad", ["Upper", "a_b", "-a", "a..b", "a/b"])
def test_names_are_those_of_dns(admin: httpx.Client, bad: str) -> None:
    """Nothing else can stand in a URL."""
    assert causes(refused(admin.post(MAPS, json=config(bad)), 422)) == {"metadata.name"}


def test_labels_have_a_form(admin: httpx.Client, name: str) -> None:
    """Keys and values."""
    refused(admin.post(MAPS, json=config(name, labels={"a": "not ok"})), 422, "metadata.labels")


def test_what_is_not_there(admin: httpx.Client, name: str) -> None:
    """Objects, resources, groups, namespaces."""
    status = refused(admin.get(f"{MAPS}/{name}"), 404, f'configmaps "{name}" not found')
    assert status["reason"] == "NotFound"
    assert admin.get("/apis/nowhere.example.com/v1/things").status_code == 404
    refused(admin.post(f"/api/v1/namespaces/{name}/configmaps", json=config(name)), 404, "namespaces")
    refused(admin.put(f"{MAPS}/{name}", json=config(name)), 404)
    refused(admin.delete(f"{MAPS}/{name}"), 404)
    refused(admin.patch(f"{MAPS}/{name}", json={}, headers=MERGE), 404)


def test_what_is_not_allowed_anywhere(admin: httpx.Client, made: dict[str, Any], name: str) -> None:
    """Of an object as of all."""
    refused(admin.post(f"{MAPS}/{name}", json=config(name)), 405, "does not allow this method")


def test_a_body_says_what_the_url_says(admin: httpx.Client, made: dict[str, Any], name: str) -> None:
    """Kind, name, namespace; and it is JSON."""
    refused(admin.post(MAPS, json={**config(new_name()), "kind": "Secret"}), 400)
    refused(admin.put(f"{MAPS}/{name}", json=config("other")), 400, "does not match the name on the URL")
    refused(admin.post(MAPS, json=config(new_name(), namespace="kube-system")), 400, "namespace")
    refused(admin.post(MAPS, content=b"{", headers={"Content-Type": "application/json"}), 400)


def test_nothing_is_kept_of_a_dry_run(admin: httpx.Client, made: dict[str, Any], name: str) -> None:
    """It is answered as if."""
    other = new_name()
    assert done(admin.post(MAPS, json=config(other), params={"dryRun": "All"}), 201)["metadata"]["uid"]
    refused(admin.get(f"{MAPS}/{other}"), 404)
    done(admin.patch(f"{MAPS}/{name}", json={"data": {"a": "2"}}, headers=MERGE, params={"dryRun": "All"}))
    done(admin.delete(f"{MAPS}/{name}", params={"dryRun": "All"}))
    assert done(admin.get(f"{MAPS}/{name}"))["data"] == {"a": "1"}
    assert admin.post(MAPS, json=config(other), params={"dryRun": "Some"}).status_code in (400, 422)


def test_a_deletion_has_conditions(admin: httpx.Client, made: dict[str, Any], name: str) -> None:
    """Of the one that was seen, nobody deletes its successor."""
    for said in ({"uid": "11111111-2222-4333-8444-555555555555"}, {"resourceVersion": "1"}):
        refused(admin.request("DELETE", f"{MAPS}/{name}", json={"preconditions": said}), 409, "precondition")
    said = {key: made["metadata"][key] for key in ("uid", "resourceVersion")}
    status = done(admin.request("DELETE", f"{MAPS}/{name}", json={"preconditions": said}))
    assert status["status"] == "Success"
    assert status["details"] == {"name": name, "kind": "configmaps", "uid": made["metadata"]["uid"]}
    refused(admin.get(f"{MAPS}/{name}"), 404)


# Writing


def test_the_second_of_two_writers_learns_of_the_first(
    admin: httpx.Client, made: dict[str, Any], name: str
) -> None:
    """By the version that they read."""
    first = done(admin.put(f"{MAPS}/{name}", json={**made, "data": {"a": "2"}}))
    assert int(first["metadata"]["resourceVersion"]) > int(made["metadata"]["resourceVersion"])
    status = refused(
        admin.put(f"{MAPS}/{name}", json={**made, "data": {"a": "3"}}),
        409,
        f'Operation cannot be fulfilled on configmaps "{name}": the object has been modified',
    )
    assert status["reason"] == "Conflict"
    thin = {"metadata": {"resourceVersion": made["metadata"]["resourceVersion"]}, "data": {"a": "4"}}
    refused(admin.patch(f"{MAPS}/{name}", json=thin, headers=MERGE), 409)
    refused(admin.patch(f"{MAPS}/{name}", json=thin, headers=STRATEGIC), 409)


def test_who_writes_to_another_object_learns_it(admin: httpx.Client, made: dict[str, Any], name: str) -> None:
    """By the UID, which a patch cannot change, and a PUT has as its condition; the version comes first."""
    other: dict[str, Any] = {"uid": "11111111-2222-4333-8444-555555555555"}
    status = refused(admin.patch(f"{MAPS}/{name}", json={"metadata": other}, headers=MERGE), 422)
    assert causes(status) == {"metadata.uid"}
    refused(apply(admin, f"{MAPS}/{name}", config(name, **other), "x", force="true"), 422, "metadata.uid")
    body = {**made, "metadata": {**made["metadata"], **other}}
    refused(admin.put(f"{MAPS}/{name}", json=body), 409)
    both = {"metadata": {**other, "resourceVersion": "1"}}
    refused(admin.patch(f"{MAPS}/{name}", json=both, headers=MERGE), 409)


def test_who_writes_to_an_object_that_is_gone_learns_it(
    admin: httpx.Client, made: dict[str, Any], name: str
) -> None:
    """A PUT that names its UID is a conflict, any other write finds nothing: both may come of one deletion."""
    done(admin.delete(f"{MAPS}/{name}"))
    refused(admin.put(f"{MAPS}/{name}", json=made), 409, "Precondition failed: UID in precondition")
    metadata = {**made["metadata"], "uid": None}
    refused(admin.put(f"{MAPS}/{name}", json={**made, "metadata": metadata}), 404)
    both = {key: made["metadata"][key] for key in ("uid", "resourceVersion")}
    refused(admin.patch(f"{MAPS}/{name}", json={"metadata": both}, headers=MERGE), 404)


def test_a_write_that_changes_nothing_is_none(admin: httpx.Client, made: dict[str, Any], name: str) -> None:
    """No version, no event."""
    for _ in range(2):
        same = done(admin.put(f"{MAPS}/{name}", json=made))
        assert same["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]
    same = done(admin.patch(f"{MAPS}/{name}", json={"data": {"a": "1"}}, headers=MERGE))
    assert same["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]


def test_a_write_without_a_version_wins(admin: httpx.Client, made: dict[str, Any], name: str) -> None:
    """Of what the server brings along."""
    assert done(admin.put(f"{MAPS}/{name}", json=config(name, {"a": "9"})))["data"] == {"a": "9"}


def test_who_an_object_is_does_not_change(admin: httpx.Client, made: dict[str, Any], name: str) -> None:
    """Time and name of its making."""
    metadata = {"creationTimestamp": "2001-01-01T00:00:00Z", "generation": 7, "labels": {"b": "2"}}
    now = done(admin.patch(f"{MAPS}/{name}", json={"metadata": metadata}, headers=MERGE))["metadata"]
    assert now["creationTimestamp"] == made["metadata"]["creationTimestamp"]
    assert now["labels"] == {"b": "2"}


def test_merge_patches(admin: httpx.Client, made: dict[str, Any], name: str) -> None:
    """RFC 7386."""
    now = done(admin.patch(f"{MAPS}/{name}", json={"data": {"a": None, "b": "2"}}, headers=MERGE))
    assert now["data"] == {"b": "2"}


def test_json_patches(admin: httpx.Client, made: dict[str, Any], name: str) -> None:
    """RFC 6902, its tests among them."""
    patch = [
        {"op": "test", "path": "/data/a", "value": "1"},
        {"op": "add", "path": "/metadata/labels", "value": {}},
        {"op": "add", "path": "/metadata/labels/x.io~1y", "value": "2"},
        {"op": "copy", "from": "/data/a", "path": "/data/c"},
        {"op": "move", "from": "/data/c", "path": "/data/d"},
        {"op": "replace", "path": "/data/a", "value": "5"},
    ]
    now = done(admin.patch(f"{MAPS}/{name}", json=patch, headers=JSON))
    assert now["data"] == {"a": "5", "d": "1"}
    assert now["metadata"]["labels"] == {"x.io/y": "2"}
    for bad in (
        [{"op": "test", "path": "/data/a", "value": "1"}],
        [{"op": "remove", "path": "/data/none"}],
    ):
        refused(admin.patch(f"{MAPS}/{name}", json=bad, headers=JSON), 422)


def test_json_patches_of_lists(admin: httpx.Client, name: str) -> None:
    """A member by its number, or behind the last; one beyond is refused."""
    path, member = f"{MAPS}/{name}", "/metadata/finalizers"
    done(admin.post(MAPS, json=config(name, finalizers=["example.com/a", "example.com/b"])), 201)
    patch = [
        {"op": "add", "path": f"{member}/-", "value": "example.com/d"},
        {"op": "add", "path": f"{member}/1", "value": "example.com/c"},
        {"op": "remove", "path": f"{member}/0"},
        {"op": "replace", "path": f"{member}/1", "value": "example.com/e"},
    ]
    now = done(admin.patch(path, json=patch, headers=JSON))
    assert now["metadata"]["finalizers"] == ["example.com/c", "example.com/e", "example.com/d"]
    for bad in ("9", "x"):
        patch = [{"op": "remove", "path": f"{member}/{bad}"}]
        assert admin.patch(path, json=patch, headers=JSON).status_code in (400, 422)
    done(admin.patch(path, json={"metadata": {"finalizers": None}}, headers=MERGE))


def test_what_is_put_and_is_not_there_is_made_where_the_resource_says_so(
    admin: httpx.Client, name: str
) -> None:
    """A Lease; anything else is not found."""
    body = {"metadata": {"name": name}, "spec": {"holderIdentity": "a"}}
    assert done(admin.put(f"{LEASES}/{name}", json=body), 201)["spec"] == {"holderIdentity": "a"}
    admin.delete(f"{LEASES}/{name}")
    refused(admin.put(f"{MAPS}/{name}", json=config(name)), 404)


@pytest.mark.parametrize(
    "bad",
    [{"data": {"a": 1}}, {"data": []}, {"metadata": {"name": "a", "labels": {"a": 1}}}, {"metadata": []}],
    ids=["number", "list", "label", "metadata"],
)
def test_fields_have_types(admin: httpx.Client, bad: dict[str, Any]) -> None:
    """Of what the server knows: before any rule."""
    assert admin.post(MAPS, json={**config(new_name()), **bad}).status_code == 400


def test_patches_have_a_type(admin: httpx.Client, made: dict[str, Any], name: str) -> None:
    """No other."""
    headers = {"Content-Type": "application/json"}
    status = refused(admin.patch(f"{MAPS}/{name}", json={}, headers=headers), 415)
    assert status["reason"] == "UnsupportedMediaType"


def test_strategic_patches_merge_lists_by_key(admin: httpx.Client, node: dict[str, Any], name: str) -> None:
    """Conditions of a Node by type; what has no key is replaced."""
    path = f"{NODES}/{name}"
    for kind in ("Ready", "Other"):
        condition = {"type": kind, "status": "True", "reason": "r", "message": "m"}
        done(admin.patch(f"{path}/status", json={"status": {"conditions": [condition]}}, headers=STRATEGIC))
    changed = {"status": {"conditions": [{"type": "Ready", "status": "False"}]}}
    now = done(admin.patch(f"{path}/status", json=changed, headers=STRATEGIC))
    assert {each["type"]: each["status"] for each in now["status"]["conditions"]} == {
        "Ready": "False",
        "Other": "True",
    }
    gone = {"status": {"conditions": [{"type": "Other", "$patch": "delete"}]}}
    now = done(admin.patch(f"{path}/status", json=gone, headers=STRATEGIC))
    assert [each["type"] for each in now["status"]["conditions"]] == ["Ready"]


def test_a_node_has_a_status_of_its_own(admin: httpx.Client, node: dict[str, Any], name: str) -> None:
    """Neither way writes what is the other's."""
    path = f"{NODES}/{name}"
    both = {"spec": {"unschedulable": True}, "status": {"phase": "Running"}}
    now = done(admin.patch(path, json=both, headers=MERGE))
    assert now["spec"]["unschedulable"] is True
    assert "phase" not in now.get("status", {})
    both = {"spec": {"unschedulable": None}, "status": {"phase": "Running"}}
    now = done(admin.patch(f"{path}/status", json=both, headers=MERGE))
    assert now["spec"]["unschedulable"] is True
    assert now["status"]["phase"] == "Running"


def test_a_taint_is_a_list_that_is_replaced(admin: httpx.Client, node: dict[str, Any], name: str) -> None:
    """So who taints reads first, and says the version."""
    path = f"{NODES}/{name}"
    for key in ("a", "b"):
        taints = [{"key": key, "effect": "NoSchedule"}]
        now = done(admin.patch(path, json={"spec": {"taints": taints}}, headers=MERGE))
        assert key in {each["key"] for each in now["spec"]["taints"]}


def test_a_lease_is_made_by_putting_it(admin: httpx.Client, name: str) -> None:
    """And taken over only with its version."""
    spec = {"holderIdentity": "a", "leaseDurationSeconds": 15, "renewTime": "2026-11-23T05:00:00.000000Z"}
    body = {"metadata": {"name": name}, "spec": spec}
    lease = done(admin.post(LEASES, json=body), 201)
    taken = {**lease, "spec": {**spec, "holderIdentity": "b"}}
    assert done(admin.put(f"{LEASES}/{name}", json=taken))["spec"]["holderIdentity"] == "b"
    refused(admin.put(f"{LEASES}/{name}", json=taken), 409)
    admin.delete(f"{LEASES}/{name}")


def event(name: str, **more: Any) -> dict[str, Any]:
    """Return an Event about a certificate signing request, which is in no namespace."""
    said = {
        "metadata": {"name": name},
        "eventTime": "2026-11-23T05:00:00.000000Z",
        "reportingController": "attestation.itl.io/approver",
        "reportingInstance": "a-0",
        "action": "Deny",
        "reason": "EvidenceMissing",
        "type": "Warning",
        "note": "no evidence",
        "regarding": {
            "apiVersion": "certificates.k8s.io/v1",
            "kind": "CertificateSigningRequest",
            "name": "csr",
            "namespace": "default",
        },
    }
    return {key: value for key, value in {**said, **more}.items() if value is not None}


def test_events_are_told(admin: httpx.Client, name: str) -> None:
    """Of an object without a namespace in `default`."""
    assert done(admin.post(EVENTS, json=event(name)), 201)["note"] == "no evidence"
    refused(admin.post(EVENTS, json=event(name)), 409)
    admin.delete(f"{EVENTS}/{name}")


@pytest.mark.parametrize(
    "bad",
    [
        {"action": None},
        {"reason": None},
        {"reportingController": None},
        {"reportingInstance": None},
        {"eventTime": None},
        {"type": "Odd"},
        {"note": "x" * 1025},
        {"reason": "x" * 129},
    ],
    ids=lambda bad: "-".join(f"{key}" for key in bad),
)
def test_events_have_a_form(admin: httpx.Client, name: str, bad: dict[str, Any]) -> None:
    """One who does not keep to it tells nothing."""
    assert refused(admin.post(EVENTS, json=event(name, **bad)), 422)["reason"] == "Invalid"


def test_events_about_nothing_in_a_namespace_are_in_one_of_the_cluster(
    admin: httpx.Client, name: str
) -> None:
    """Where they say none of their object; the real one of 1.20 takes `kube-system` alone."""
    body = event(name, regarding={"apiVersion": "v1", "kind": "Node", "name": "n"})
    done(admin.post(EVENTS.replace("default", "kube-system"), json=body), 201)
    answer = admin.post(EVENTS.replace("default", "kube-public"), json=body)
    assert causes(refused(answer, 422)) == {"involvedObject.namespace"}


# Finalizers and owners


def test_finalizers_hold_a_deletion_up(admin: httpx.Client, name: str) -> None:
    """Until the last is gone; none is added meanwhile."""
    path = f"{MAPS}/{name}"
    done(admin.post(MAPS, json=config(name, finalizers=["example.com/a", "example.com/b"])), 201)
    going = done(admin.delete(path))
    assert going["metadata"]["deletionTimestamp"]
    more = ["example.com/a", "example.com/b", "example.com/c"]
    refused(admin.patch(path, json={"metadata": {"finalizers": more}}, headers=MERGE), 422, "finalizers")
    now = done(admin.patch(path, json={"metadata": {"finalizers": ["example.com/b"]}}, headers=MERGE))
    assert now["metadata"]["deletionTimestamp"] == going["metadata"]["deletionTimestamp"]
    done(admin.delete(path))
    done(admin.patch(path, json={"metadata": {"finalizers": None}}, headers=MERGE))
    refused(admin.get(path), 404)


def owned(owner: dict[str, Any], name: str, **more: Any) -> dict[str, Any]:
    """Return a ConfigMap that belongs to another."""
    ref = {"apiVersion": "v1", "kind": "ConfigMap", "name": owner["metadata"]["name"]}
    return config(name, ownerReferences=[{**ref, "uid": owner["metadata"]["uid"], **more}])


def test_who_is_owned_goes_with_the_owner(admin: httpx.Client, made: dict[str, Any], name: str) -> None:
    """A moment later."""
    other = new_name("owned")
    done(admin.post(MAPS, json=owned(made, other)), 201)
    done(admin.delete(f"{MAPS}/{name}", params={"propagationPolicy": "Background"}))
    eventually(lambda: refused(admin.get(f"{MAPS}/{other}"), 404))


def test_an_orphan_stays(admin: httpx.Client, made: dict[str, Any], name: str) -> None:
    """Where that was asked."""
    other = new_name("owned")
    done(admin.post(MAPS, json=owned(made, other)), 201)
    done(admin.request("DELETE", f"{MAPS}/{name}", json={"propagationPolicy": "Orphan"}))
    eventually(lambda: refused(admin.get(f"{MAPS}/{name}"), 404))
    eventually(lambda: _no_owner(admin.get(f"{MAPS}/{other}")))


def _no_owner(answer: httpx.Response) -> None:
    assert "ownerReferences" not in done(answer)["metadata"]


def test_an_owner_waits_for_its_own(admin: httpx.Client, made: dict[str, Any], name: str) -> None:
    """In the foreground, for those that hold it up."""
    other = new_name("owned")
    body = owned(made, other, blockOwnerDeletion=True)
    body["metadata"]["finalizers"] = ["example.com/a"]
    eventually(lambda: done(admin.post(MAPS, json=body), 201))
    done(admin.request("DELETE", f"{MAPS}/{name}", json={"propagationPolicy": "Foreground"}))
    eventually(lambda: _going(admin.get(f"{MAPS}/{other}")))
    assert done(admin.get(f"{MAPS}/{name}"))["metadata"]["finalizers"] == ["foregroundDeletion"]
    done(admin.patch(f"{MAPS}/{other}", json={"metadata": {"finalizers": None}}, headers=MERGE))
    for each in (other, name):
        eventually(lambda each=each: refused(admin.get(f"{MAPS}/{each}"), 404))  # type: ignore[misc]  # bound now


def _going(answer: httpx.Response) -> None:
    assert done(answer)["metadata"]["deletionTimestamp"]


def test_a_namespace_takes_everything_along(admin: httpx.Client, name: str) -> None:
    """What is in it goes with it."""
    done(admin.post("/api/v1/namespaces", json={"metadata": {"name": name}}), 201)
    inside = f"/api/v1/namespaces/{name}/configmaps"
    done(admin.post(inside, json=config("inside")), 201)
    done(admin.delete(f"/api/v1/namespaces/{name}"))
    eventually(lambda: refused(admin.get(f"{inside}/inside"), 404))
    eventually(lambda: refused(admin.get(f"/api/v1/namespaces/{name}"), 404))


# Lists and watches


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ("t={t},n=1", "1"),
        ("t={t},n==1", "1"),
        ("t={t},n!=1", "023"),
        ("t={t},n in (1, 2)", "12"),
        ("t={t},n notin (1,2)", "03"),
        ("t={t},only", "3"),
        ("t={t},!only", "012"),
    ],
)
def test_labels_select(admin: httpx.Client, name: str, selector: str, expected: str) -> None:
    """As kubectl says it."""
    for n in range(4):
        labels = {"t": name, "n": str(n), **({"only": ""} if n == 3 else {})}
        done(admin.post(MAPS, json=config(f"{name}-{n}", labels=labels)), 201)
    found = done(admin.get(MAPS, params={"labelSelector": selector.format(t=name)}))["items"]
    assert "".join(each["metadata"]["name"][-1] for each in found) == expected
    done(admin.request("DELETE", MAPS, params={"labelSelector": f"t={name}"}))
    assert done(admin.get(MAPS, params={"labelSelector": f"t={name}"}))["items"] == []


@pytest.mark.parametrize(
    "query", [{"labelSelector": "a=(b"}, {"fieldSelector": "data.a=1"}, {"fieldSelector": "a"}]
)
def test_selectors_have_a_form(admin: httpx.Client, query: dict[str, str]) -> None:
    """One that is not understood selects nothing."""
    refused(admin.get(MAPS, params=query), 400)


def test_what_is_not_selected_by_is_told(admin: httpx.Client) -> None:
    """In one way of a resource that is selected by some of its fields, in another of one that never is."""
    never = '"spec.x" is not a known field selector: only "metadata.name", "metadata.namespace"'
    for path, words in ((MAPS, never), (NODES, "field label not supported: spec.x")):
        status = refused(admin.get(path, params={"fieldSelector": "spec.x=1"}), 400)
        assert status["message"] == words


def test_fields_select(admin: httpx.Client, made: dict[str, Any], name: str) -> None:
    """The name, of every resource."""
    found = done(admin.get(MAPS, params={"fieldSelector": f"metadata.name={name}"}))["items"]
    assert [each["metadata"]["name"] for each in found] == [name]


def test_lists_come_in_pages(admin: httpx.Client, name: str) -> None:
    """Of one state, whatever is written meanwhile."""
    for n in range(5):
        done(admin.post(MAPS, json=config(f"{name}-{n}", labels={"t": name})), 201)
    query = {"labelSelector": f"t={name}", "limit": "2"}
    pages, more = [], ""
    while True:
        page = done(admin.get(MAPS, params={**query, **({"continue": more} if more else {})}))
        pages.append([each["metadata"]["name"][-1] for each in page["items"]])
        admin.delete(f"{MAPS}/{name}-4")
        more = page["metadata"].get("continue", "")
        if not more:
            break
    assert pages == [["0", "1"], ["2", "3"], ["4"]]
    assert admin.get(MAPS, params={**query, "continue": "nonsense"}).status_code in (400, 410)


def test_a_watch_goes_on_from_a_list(admin: httpx.Client, name: str) -> None:
    """Nothing is missed, nothing comes twice."""
    version = done(admin.get(MAPS))["metadata"]["resourceVersion"]
    made = done(admin.post(MAPS, json=config(name)), 201)
    with Watch(admin, MAPS, resourceVersion=version, fieldSelector=f"metadata.name={name}") as watch:
        assert watch.next() == ("ADDED", made)
        changed = done(admin.patch(f"{MAPS}/{name}", json={"data": {"a": "2"}}, headers=MERGE))
        assert watch.next() == ("MODIFIED", changed)
        done(admin.delete(f"{MAPS}/{name}"))
        kind, last = watch.next()
    assert kind == "DELETED"
    assert last["data"] == {"a": "2"}
    assert int(last["metadata"]["resourceVersion"]) > int(changed["metadata"]["resourceVersion"])


@pytest.mark.parametrize("version", [None, "0"])
def test_a_watch_begins_with_what_there_is(
    admin: httpx.Client, made: dict[str, Any], name: str, version: str | None
) -> None:
    """Where it says no version."""
    query = {"fieldSelector": f"metadata.name={name}", **({"resourceVersion": version} if version else {})}
    with Watch(admin, MAPS, **query) as watch:
        assert watch.next() == ("ADDED", made)


def test_a_watch_sees_what_enters_and_leaves_its_selection(admin: httpx.Client, name: str) -> None:
    """As if it came and went."""
    version = done(admin.get(MAPS))["metadata"]["resourceVersion"]
    with Watch(admin, MAPS, resourceVersion=version, labelSelector=f"t={name}") as watch:
        done(admin.post(MAPS, json=config(name)), 201)
        for value in (name, None):
            done(admin.patch(f"{MAPS}/{name}", json={"metadata": {"labels": {"t": value}}}, headers=MERGE))
        done(admin.patch(f"{MAPS}/{name}", json={"data": {"a": "2"}}, headers=MERGE))
        done(admin.patch(f"{MAPS}/{name}", json={"metadata": {"labels": {"t": name}}}, headers=MERGE))
        assert watch.names(3) == [("ADDED", name), ("DELETED", name), ("ADDED", name)]
    admin.delete(f"{MAPS}/{name}")


def test_a_watch_from_the_future_is_refused(admin: httpx.Client) -> None:
    """Of versions that nobody has given, in one way or the other."""
    answer = admin.get(MAPS, params={"resourceVersion": "99999999999"})
    assert answer.status_code in (504, 500)


def test_a_watch_ends_when_it_said(admin: httpx.Client, name: str) -> None:
    """After its seconds, without an error."""
    version = done(admin.get(MAPS))["metadata"]["resourceVersion"]
    query = {"watch": "1", "timeoutSeconds": "1", "resourceVersion": version}
    answer = admin.get(MAPS, params={**query, "fieldSelector": f"metadata.name={name}"})
    assert answer.status_code == 200
    assert answer.text == ""


# Server-side apply


def apply(
    client: httpx.Client, path: str, body: dict[str, Any], manager: str, **query: str
) -> httpx.Response:
    """Apply *body* as *manager*."""
    return client.patch(path, json=body, headers=APPLY, params={"fieldManager": manager, **query})


def test_who_applies_owns_what_was_said(admin: httpx.Client, name: str) -> None:
    """And takes away what is no longer said, and nothing of others."""
    path = f"{MAPS}/{name}"
    done(apply(admin, path, config(name, {"a": "1", "b": "1"}), "one"), 201)
    done(apply(admin, path, config(name, {"c": "1"}), "two"))
    now = done(apply(admin, path, config(name, {"a": "2"}), "one"))
    assert now["data"] == {"a": "2", "c": "1"}
    assert {each["manager"]: each["fieldsV1"] for each in now["metadata"]["managedFields"]} == {
        "one": {"f:data": {"f:a": {}}},
        "two": {"f:data": {"f:c": {}}},
    }
    again = done(apply(admin, path, config(name, {"a": "2"}), "one"))
    assert again["metadata"]["resourceVersion"] == now["metadata"]["resourceVersion"]


def test_two_who_say_different_things_learn_it(admin: httpx.Client, name: str) -> None:
    """Unless the second insists; the same value is shared."""
    path = f"{MAPS}/{name}"
    done(apply(admin, path, config(name, {"a": "1"}), "one"), 201)
    done(apply(admin, path, config(name, {"a": "1"}), "two"))
    status = refused(
        apply(admin, path, config(name, {"a": "2"}), "two"), 409, 'conflict with "one"', ".data.a"
    )
    assert status["reason"] == "Conflict"
    assert [each["reason"] for each in status["details"]["causes"]] == ["FieldManagerConflict"]
    now = done(apply(admin, path, config(name, {"a": "2"}), "two", force="true"))
    assert now["data"] == {"a": "2"}
    assert [each["manager"] for each in now["metadata"]["managedFields"]] == ["two"]


def test_who_writes_otherwise_owns_it_too(admin: httpx.Client, name: str) -> None:
    """So an apply learns of a patch by another."""
    path = f"{MAPS}/{name}"
    done(apply(admin, path, config(name, {"a": "1"}), "one"), 201)
    query = {"fieldManager": "hand"}
    done(admin.patch(path, json={"data": {"a": "2"}}, headers=MERGE, params=query))
    refused(apply(admin, path, config(name, {"a": "1"}), "one"), 409, 'conflict with "hand"')


def test_an_apply_says_who(admin: httpx.Client, name: str) -> None:
    """There is no default; and no managedFields."""
    refused(admin.patch(f"{MAPS}/{name}", json=config(name), headers=APPLY), 422, "fieldManager")
    body = config(name, managedFields=[{"manager": "x"}])
    refused(apply(admin, f"{MAPS}/{name}", body, "one"), 400, "managedFields must be nil")


def test_an_apply_by_yaml(admin: httpx.Client, name: str) -> None:
    """As kubectl sends it."""
    body = f"apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: {name}\ndata:\n  a: '1'\n"
    answer = admin.patch(f"{MAPS}/{name}", content=body, headers=APPLY, params={"fieldManager": "x"})
    assert done(answer, 201)["data"] == {"a": "1"}


def test_conditions_are_applied_by_type(admin: httpx.Client, node: dict[str, Any], name: str) -> None:
    """Each of several who say one has its own."""
    path = f"{NODES}/{name}/status"

    def said(*kinds: str, status: str = "True") -> dict[str, Any]:
        conditions = [{"type": kind, "status": status, "reason": "r", "message": "m"} for kind in kinds]
        return {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name},
            "status": {"conditions": conditions},
        }

    done(apply(admin, path, said("A", "B"), "one"))
    done(apply(admin, path, said("C"), "two"))
    now = done(apply(admin, path, said("B", status="False"), "one"))
    found = {each["type"]: each["status"] for each in now["status"]["conditions"]}
    assert found == {"B": "False", "C": "True"}
    status = refused(apply(admin, path, said("C", status="False"), "one"), 409)
    assert '.status.conditions[type="C"].status' in causes(status)
    assert apply(admin, path, said("D", "D"), "one").status_code >= 400


# What there is


def test_discovery(admin: httpx.Client) -> None:
    """Groups, versions, resources with their parts."""
    assert done(admin.get("/api"))["versions"] == ["v1"]
    groups = {each["name"] for each in done(admin.get("/apis"))["groups"]}
    assert {"certificates.k8s.io", "coordination.k8s.io", "apiextensions.k8s.io"} <= groups
    found = {each["name"]: each for each in done(admin.get("/api/v1"))["resources"]}
    assert found["nodes"]["namespaced"] is False
    assert found["configmaps"]["namespaced"] is True
    assert {"nodes/status", "serviceaccounts/token"} <= found.keys()
    csrs = done(admin.get("/apis/certificates.k8s.io/v1"))
    assert csrs["groupVersion"] == "certificates.k8s.io/v1"
    assert "certificatesigningrequests/approval" in {each["name"] for each in csrs["resources"]}
    assert done(admin.get("/version"))["major"] == "1"
    assert admin.get("/readyz").text == "ok"
