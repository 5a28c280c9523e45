"""The kinds of security.ugallu.io at our API server and at the real one (CONFIDENTIAL.md §2, §4)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from attestation_operator import crds
from attestation_operator.objects import (
    BUNDLE,
    POLICY,
    RESULT,
    RUN,
    RUNS_GROUP,
    SCHEDULE,
    SECURITY_EVENT,
    Kind,
)
from tests.contract.kubernetes import MERGE, done, eventually, new_name, refused
from tests.fixtures.attestation_kinds import GOOD, SEED, changed
from tests.fixtures.kube import KubeAPI, kube, rest

__all__ = ["kube"]

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
KINDS = (RUN, RESULT, POLICY, SECURITY_EVENT, BUNDLE, SCHEDULE)
NAMESPACE = "attestation-kinds"


def at(kind: Kind, name: str = "") -> str:
    """Return the path of objects of *kind*, or of one."""
    namespace = f"/namespaces/{NAMESPACE}" if kind.namespaced else ""
    return f"/apis/{kind.api_version}{namespace}/{kind.plural}" + (f"/{name}" if name else "")


@pytest.fixture(scope="module")
def admin(kube: KubeAPI) -> Iterator[httpx.Client]:
    """Somebody who may everything, where there are our kinds."""
    with rest(kube) as client:
        done(client.post("/api/v1/namespaces", json={"metadata": {"name": NAMESPACE}}), 201)
        for kind in KINDS:
            done(client.post(CRDS, json=crds.definition(kind)), 201)
        for kind in KINDS:
            eventually(lambda kind=kind: done(client.get(at(kind))))  # type: ignore[misc]  # a default binds it
        yield client
        for kind in KINDS:
            client.delete(f"{CRDS}/{kind.plural}.{RUNS_GROUP}")


def made(kind: Kind, spec: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return an object of *kind*."""
    return {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "metadata": {"name": new_name("k")},
        "spec": spec,
        **more,
    }


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.kind)
def test_a_definition_is_taken_as_it_is(admin: httpx.Client, kind: Kind) -> None:
    """Established, its names accepted, and no schema that is not structural."""
    found = done(admin.get(f"{CRDS}/{kind.plural}.{RUNS_GROUP}"))
    said = {each["type"]: each["status"] for each in found["status"]["conditions"]}
    assert said["Established"] == said["NamesAccepted"] == "True"
    assert "NonStructuralSchema" not in said


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.kind)
def test_an_object_is_kept_as_it_was_written(admin: httpx.Client, kind: Kind) -> None:
    """With all its members; a status comes by its own way, and is dropped on creation."""
    spec, status = GOOD[kind]
    created = done(admin.post(at(kind), json=made(kind, spec, status=status)), 201)
    assert created["spec"] == spec
    assert "status" not in created
    name = created["metadata"]["name"]
    after = done(admin.patch(f"{at(kind, name)}/status", json={"status": status}, headers=MERGE))
    assert after["status"] == status
    assert after["metadata"]["generation"] == 1


def test_the_example_of_the_seed_is_taken(admin: httpx.Client) -> None:
    """As written: inline policy, 30 s, no nonce; defaults are filled in."""
    created = done(admin.post(at(RUN), json=SEED | {"metadata": {"name": new_name("k")}}), 201)
    assert created["spec"]["timeout"] == "30s"
    assert created["spec"]["policy"]["mode"] == "enforce"
    assert created["spec"]["policy"]["tpm"]["bank"] == "sha256"


def test_what_no_schema_names_is_dropped(admin: httpx.Client) -> None:
    """Also deep inside of a policy."""
    spec = changed(GOOD[RUN][0], {"verdict": "verified", "policy.tpm.pcr": "x", "policyRef": None})
    created = done(admin.post(at(RUN), json=made(RUN, spec)), 201)
    assert "verdict" not in created["spec"]
    assert "pcr" not in created["spec"]["policy"]["tpm"]


def test_a_schema_refuses_without_rules_in_cel(admin: httpx.Client) -> None:
    """Enumerations, lengths, patterns and formats hold on every server."""
    for kind, change in (
        (RUN, {"backend": "sgx"}),
        (RUN, {"targetNodeName": ""}),
        (RUN, {"nonce": "too-short"}),
        (RUN, {"timeout": "soon"}),
        (RUN, {"policy.tpm.pcrs.7": "AB" * 32}),
        (RESULT, {"verdict": "trusted"}),
        (RESULT, {"quote": "not base64!"}),
        (POLICY, {"tcb.acceptedStatus": ["Revoked"]}),
        (POLICY, {"tdx.mrtd": ["ab"]}),
        (SECURITY_EVENT, {"severity": "fatal"}),
        (BUNDLE, {"attestedFor.name": ""}),
        (SCHEDULE, {"backend": "sgx"}),
    ):
        refused(admin.post(at(kind), json=made(kind, changed(GOOD[kind][0], change))), 422)
