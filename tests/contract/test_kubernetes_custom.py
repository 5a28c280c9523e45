"""Custom resources: the same at our API server and at the real one (§28)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.contract.kubernetes import (
    APPLY,
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

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
GROUP = "tests.itl.io"
THINGS = f"/apis/{GROUP}/v1/things"

SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["spec"],
    "properties": {
        "spec": {
            "type": "object",
            "required": ["size"],
            "properties": {
                "size": {"type": "integer", "minimum": 1, "maximum": 9},
                "mode": {"type": "string", "enum": ["on", "off"], "default": "on"},
                "text": {"type": "string", "pattern": "^[a-z]*$", "maxLength": 5},
                "blob": {"type": "string", "format": "byte"},
                "open": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                "labels": {"type": "object", "additionalProperties": {"type": "string"}},
                "parts": {
                    "type": "array",
                    "x-kubernetes-list-type": "map",
                    "x-kubernetes-list-map-keys": ["name"],
                    "items": {
                        "type": "object",
                        "required": ["name"],
                        "properties": {"name": {"type": "string"}, "value": {"type": "integer"}},
                    },
                },
                "tags": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
                "plain": {"type": "array", "maxItems": 3, "items": {"type": "integer"}},
            },
        },
        "status": {
            "type": "object",
            "properties": {
                "phase": {"type": "string"},
                "conditions": {
                    "type": "array",
                    "x-kubernetes-list-type": "map",
                    "x-kubernetes-list-map-keys": ["type"],
                    "items": {
                        "type": "object",
                        "required": ["type"],
                        "properties": {"type": {"type": "string"}, "status": {"type": "string"}},
                    },
                },
            },
        },
    },
}


def definition(plural: str = "things", **spec: Any) -> dict[str, Any]:
    """Return a definition."""
    version = {
        "name": "v1",
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": SCHEMA},
        "subresources": {"status": {}},
    }
    kind = plural.removesuffix("s").capitalize()
    said = {
        "group": GROUP,
        "scope": "Cluster",
        "names": {"plural": plural, "kind": kind},
        "versions": [version],
        **spec,
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{GROUP}"},
        "spec": said,
    }


@pytest.fixture(scope="module")
def admin(kube: KubeAPI) -> Iterator[httpx.Client]:
    """Somebody who may everything, where there are Things."""
    with rest(kube) as client:
        done(client.post(CRDS, json=definition()), 201)
        eventually(lambda: done(client.get(THINGS)))
        yield client
        client.delete(f"{CRDS}/things.{GROUP}")


@pytest.fixture
def name() -> str:
    """A name that no other test has."""
    return new_name()


def thing(name: str, **spec: Any) -> dict[str, Any]:
    """Return a Thing."""
    body = {"apiVersion": f"{GROUP}/v1", "kind": "Thing", "metadata": {"name": name}}
    return {**body, "spec": {"size": 1, **spec}}


@pytest.fixture
def made(admin: httpx.Client, name: str) -> dict[str, Any]:
    """One of them."""
    return done(admin.post(THINGS, json=thing(name)), 201)


def test_a_definition_is_established(admin: httpx.Client) -> None:
    """And told in discovery."""
    crd = done(admin.get(f"{CRDS}/things.{GROUP}"))
    found = {each["type"]: each["status"] for each in crd["status"]["conditions"]}
    assert found == {"NamesAccepted": "True", "Established": "True"}
    assert crd["status"]["storedVersions"] == ["v1"]
    assert crd["status"]["acceptedNames"]["listKind"] == "ThingList"
    eventually(lambda: _told(admin))


def _told(admin: httpx.Client) -> None:
    resources = {each["name"]: each for each in done(admin.get(f"/apis/{GROUP}/v1"))["resources"]}
    assert resources["things"]["kind"] == "Thing"
    assert "things/status" in resources


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"scope": "Galaxy"}, "spec.scope"),
        ({"group": "other.io"}, "metadata.name"),
        ({"versions": []}, "spec.versions"),
        (
            {"versions": [{"name": "v1", "served": True, "storage": True}]},
            "spec.versions[0].schema.openAPIV3Schema",
        ),
    ],
)
def test_definitions_have_a_form(admin: httpx.Client, change: dict[str, Any], field: str) -> None:
    """What is not structural is not taken."""
    assert field in causes(refused(admin.post(CRDS, json=definition("others", **change)), 422))


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"spec": {"properties": {}}}},
        {"type": "object", "properties": {"spec": {"type": "array"}}},
        {
            "type": "object",
            "properties": {
                "spec": {
                    "type": "array",
                    "x-kubernetes-list-type": "map",
                    "x-kubernetes-list-map-keys": ["name"],
                    "items": {"type": "object", "properties": {"name": {"type": "string"}}},
                }
            },
        },
    ],
    ids=["no-type", "no-items", "optional-key"],
)
def test_schemas_are_structural(admin: httpx.Client, schema: dict[str, Any]) -> None:
    """Each field has a type, each list items, each key is required."""
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    refused(admin.post(CRDS, json=definition("others", versions=[version])), 422, "openAPIV3Schema")


def test_what_the_schema_does_not_know_is_dropped(admin: httpx.Client, name: str) -> None:
    """Except where it says that it does not know all."""
    body = thing(name, unknown=1, open={"x": {"y": 1}}, labels={"a": "b"}, parts=[{"name": "a", "more": 1}])
    made = done(admin.post(THINGS, json={**body, "extra": 1}), 201)
    assert "extra" not in made
    assert made["spec"] == {
        "size": 1,
        "mode": "on",
        "open": {"x": {"y": 1}},
        "labels": {"a": "b"},
        "parts": [{"name": "a"}],
    }


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"size": 0}, "spec.size"),
        ({"size": 10}, "spec.size"),
        ({"size": "1"}, "spec.size"),
        ({"size": True}, "spec.size"),
        ({"size": None}, "spec.size"),
        ({"mode": "maybe"}, "spec.mode"),
        ({"text": "UP"}, "spec.text"),
        ({"text": "toolong"}, "spec.text"),
        ({"blob": "***"}, "spec.blob"),
        ({"labels": {"a": 1}}, "spec.labels.a"),
        ({"parts": [{"value": 1}]}, "spec.parts[0].name"),
        ({"parts": [{"name": "a"}, {"name": "a"}]}, "spec.parts[1]"),
        ({"tags": ["a", "b", "a"]}, "spec.tags[2]"),
        ({"plain": [1, 2, 3, 4]}, "spec.plain"),
        ({"plain": [1, "x"]}, "spec.plain[1]"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_values_are_those_of_the_schema(
    admin: httpx.Client, name: str, spec: dict[str, Any], field: str
) -> None:
    """Each rule of it alone."""
    status = refused(admin.post(THINGS, json=thing(name, **spec)), 422, f'Thing.{GROUP} "{name}" is invalid')
    # Older servers leave out which member of a list it is.
    assert {re.sub(r"\[\d\]", "", each) for each in causes(status)} == {re.sub(r"\[\d\]", "", field)}


def test_a_spec_is_required(admin: httpx.Client, name: str) -> None:
    """And said to be."""
    body = thing(name)
    del body["spec"]
    assert causes(refused(admin.post(THINGS, json=body), 422)) == {"spec"}


def test_the_generation_counts_what_is_wanted(admin: httpx.Client, made: dict[str, Any], name: str) -> None:
    """Neither labels nor status."""
    assert made["metadata"]["generation"] == 1
    for patch, path, generation in (
        ({"metadata": {"labels": {"a": "b"}}}, name, 1),
        ({"status": {"phase": "x"}}, f"{name}/status", 1),
        ({"spec": {"size": 2}}, name, 2),
        ({"spec": {"size": 2}}, name, 2),
        ({"spec": {"mode": "off"}}, name, 3),
    ):
        now = done(admin.patch(f"{THINGS}/{path}", json=patch, headers=MERGE))
        assert now["metadata"]["generation"] == generation, patch


def test_the_status_is_written_apart(admin: httpx.Client, made: dict[str, Any], name: str) -> None:
    """Not with the object, not when it is made; and with it nothing else."""
    path = f"{THINGS}/{name}"
    other = {**thing(new_name()), "status": {"phase": "made"}}
    assert "status" not in done(admin.post(THINGS, json=other), 201)
    assert "status" not in done(admin.patch(path, json={"status": {"phase": "x"}}, headers=MERGE))
    both = {"spec": {"size": 5}, "status": {"phase": "y"}, "metadata": {"labels": {"a": "b"}}}
    now = done(admin.patch(f"{path}/status", json=both, headers=MERGE))
    assert now["status"] == {"phase": "y"}
    assert now["spec"]["size"] == 1
    assert "labels" not in now["metadata"]
    assert done(admin.put(path, json={**now, "status": {"phase": "z"}}))["status"] == {"phase": "y"}


def test_a_put_needs_a_version(admin: httpx.Client, made: dict[str, Any], name: str) -> None:
    """Of a custom resource, where others do without."""
    status = refused(admin.put(f"{THINGS}/{name}", json=thing(name)), 422)
    assert causes(status) == {"metadata.resourceVersion"}


def test_strategic_patches_are_not_for_them(admin: httpx.Client, made: dict[str, Any], name: str) -> None:
    """Only of what the server knows."""
    refused(admin.patch(f"{THINGS}/{name}", json={}, headers=STRATEGIC), 415)


def test_lists_are_applied_by_their_keys(admin: httpx.Client, name: str) -> None:
    """Each manager its members; sets their values; plain lists as a whole."""

    def apply(manager: str, **spec: Any) -> httpx.Response:
        body = thing(name, **spec)
        return admin.patch(f"{THINGS}/{name}", json=body, headers=APPLY, params={"fieldManager": manager})

    done(apply("one", parts=[{"name": "a", "value": 1}, {"name": "b"}], tags=["x", "y"], plain=[1]), 201)
    now = done(apply("two", parts=[{"name": "b", "value": 2}, {"name": "c"}], tags=["y", "z"]))
    assert now["spec"]["parts"] == [{"name": "a", "value": 1}, {"name": "b", "value": 2}, {"name": "c"}]
    assert sorted(now["spec"]["tags"]) == ["x", "y", "z"]
    refused(apply("two", plain=[2]), 409, ".spec.plain")
    now = done(apply("one", parts=[{"name": "b"}], tags=["x"]))
    assert now["spec"]["parts"] == [{"name": "b", "value": 2}, {"name": "c"}]
    assert sorted(now["spec"]["tags"]) == ["x", "y", "z"]
    assert "plain" not in now["spec"]


def test_the_status_is_applied_apart(admin: httpx.Client, made: dict[str, Any], name: str) -> None:
    """As controllers do: each its conditions."""

    def apply(manager: str, *kinds: str) -> dict[str, Any]:
        body = {"apiVersion": f"{GROUP}/v1", "kind": "Thing", "metadata": {"name": name}}
        body["status"] = {"conditions": [{"type": kind, "status": "True"} for kind in kinds]}
        path = f"{THINGS}/{name}/status"
        return done(
            admin.patch(path, json=body, headers=APPLY, params={"fieldManager": manager, "force": "true"})
        )

    apply("one", "Ready", "Other")
    now = apply("two", "Else")
    assert [each["type"] for each in now["status"]["conditions"]] == ["Ready", "Other", "Else"]
    now = apply("one", "Ready")
    assert [each["type"] for each in now["status"]["conditions"]] == ["Ready", "Else"]
    assert now["spec"] == made["spec"]


def test_they_are_watched(admin: httpx.Client, name: str) -> None:
    """As everything is."""
    version = done(admin.get(THINGS))["metadata"]["resourceVersion"]
    with Watch(admin, THINGS, resourceVersion=version, fieldSelector=f"metadata.name={name}") as watch:
        made = done(admin.post(THINGS, json=thing(name)), 201)
        assert watch.next() == ("ADDED", made)


def test_a_number_or_a_word(admin: httpx.Client, name: str) -> None:
    """A definition of its own: beside such a field the server of 1.20 applies lists as a whole."""
    either = {"x-kubernetes-int-or-string": True, "anyOf": [{"type": "integer"}, {"type": "string"}]}
    schema = {"type": "object", "properties": {"spec": {"type": "object", "properties": {"port": either}}}}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    done(admin.post(CRDS, json=definition("eithers", versions=[version])), 201)
    path, body = f"/apis/{GROUP}/v1/eithers", {**thing(name), "kind": "Either"}
    for number, port in enumerate((80, "http")):
        body["metadata"], body["spec"] = {"name": f"{name}-{number}"}, {"port": port}
        eventually(lambda: _port(admin.post(path, json=body), port))  # noqa: B023  # called at once
    bads: list[dict[str, Any]] = [{"port": True}, {"port": []}, {"port": 1.5}]
    for bad in bads:
        body["spec"] = bad
        assert "spec.port" in causes(refused(admin.post(path, json=body), 422))
    done(admin.delete(f"{CRDS}/eithers.{GROUP}"))


def _port(answer: httpx.Response, port: object) -> None:
    assert done(answer, 201)["spec"] == {"port": port}


def test_with_the_definition_all_goes(kube: KubeAPI, admin: httpx.Client, name: str) -> None:
    """What was defined is unknown then."""
    path = f"/apis/{GROUP}/v1/gones"
    done(admin.post(CRDS, json=definition("gones")), 201)
    body = {**thing(name), "kind": "Gone"}
    eventually(lambda: done(admin.post(path, json=body), 201))
    done(admin.delete(f"{CRDS}/gones.{GROUP}"))
    eventually(lambda: _missing(admin.get(path)))


def _missing(answer: httpx.Response) -> None:
    assert answer.status_code == 404


# In namespaces

ROOMS = f"/apis/{GROUP}/v1/rooms"
IN = "/apis/{group}/v1/namespaces/{namespace}/rooms"


@pytest.fixture(scope="module")
def rooms(admin: httpx.Client) -> Iterator[str]:
    """Rooms are in namespaces, and say by what they are selected; yield the path of those of `default`."""
    crd = definition("rooms", scope="Namespaced")
    crd["spec"]["versions"][0] |= {"selectableFields": [{"jsonPath": ".spec.mode"}]}
    done(admin.post(CRDS, json=crd), 201)
    eventually(lambda: done(admin.get(ROOMS)))
    yield IN.format(group=GROUP, namespace="default")
    admin.delete(f"{CRDS}/rooms.{GROUP}")


def room(name: str, **spec: Any) -> dict[str, Any]:
    """Return a Room."""
    return {**thing(name, **spec), "kind": "Room"}


def test_they_are_where_their_namespace_is(admin: httpx.Client, rooms: str, name: str) -> None:
    """One name in two namespaces is two objects; a list is of one of them or of all."""
    other = IN.format(group=GROUP, namespace="kube-public")
    mine = done(admin.post(rooms, json=room(name)), 201)
    theirs = done(admin.post(other, json=room(name, size=2)), 201)
    assert mine["metadata"]["namespace"] == "default"
    assert mine["metadata"]["uid"] != theirs["metadata"]["uid"]
    for path, sizes in ((rooms, [1]), (other, [2]), (ROOMS, [1, 2])):
        listed = done(admin.get(path))["items"]
        assert [each["spec"]["size"] for each in listed if each["metadata"]["name"] == name] == sizes
    done(admin.patch(f"{rooms}/{name}/status", json={"status": {"phase": "x"}}, headers=MERGE))
    assert done(admin.get(f"{rooms}/{name}"))["status"] == {"phase": "x"}
    assert "status" not in done(admin.get(f"{other}/{name}"))
    done(admin.delete(f"{rooms}/{name}"))
    refused(admin.get(f"{rooms}/{name}"), 404)
    done(admin.delete(f"{other}/{name}"))


def test_a_namespace_must_be_there_and_be_meant(admin: httpx.Client, rooms: str, name: str) -> None:
    """That of the path is that of the object; none of them is all, and nothing is made there."""
    body = room(name)
    body["metadata"]["namespace"] = "kube-public"
    refused(admin.post(rooms, json=body), 400, "does not match the namespace")
    refused(admin.post(IN.format(group=GROUP, namespace="nowhere"), json=room(name)), 404)
    assert admin.post(ROOMS, json=room(name)).status_code == 404


def test_fields_are_selected_by_where_the_server_knows_that(
    kube: KubeAPI, admin: httpx.Client, rooms: str, name: str
) -> None:
    """Since 1.31, in lists and in watches; before that, and by any other field, it is refused."""
    done(admin.post(rooms, json=room(name, mode="off")), 201)
    known = {"fieldSelector": "spec.mode=off"}
    if kube.kind == "real":
        refused(admin.get(ROOMS, params=known), 400, "field label not supported: spec.mode")
        refused(admin.get(ROOMS, params={**known, "watch": "1", "timeoutSeconds": "1"}), 400)
    else:
        assert [each["metadata"]["name"] for each in done(admin.get(ROOMS, params=known))["items"]] == [name]
        with Watch(admin, ROOMS, **known) as watch:
            done(admin.post(rooms, json=room(f"{name}-on")), 201)
            done(admin.patch(f"{rooms}/{name}", json={"spec": {"mode": "on"}}, headers=MERGE))
            assert watch.names(2) == [("ADDED", name), ("DELETED", name)]
    refused(
        admin.get(ROOMS, params={"fieldSelector": "spec.size=1"}), 400, "field label not supported: spec.size"
    )
    done(admin.get(ROOMS, params={"fieldSelector": f"metadata.namespace=default,metadata.name={name}"}))
