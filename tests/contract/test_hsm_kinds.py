"""The kinds of HSM issuers at our API server and at the real one (HSM-AND-KUBERNETES §§10, 28)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from pydantic import ValidationError

from attestation_operator import crds
from attestation_operator.objects import HSM_KINDS, Kind
from attestation_testing.kubernetes.expressions import HAS_CEL
from tests.contract.kubernetes import MERGE, done, eventually, new_name, refused
from tests.fixtures.hsm_kinds import GOOD, REFUSED, spec_of
from tests.fixtures.kube import KubeAPI, kube, rest

__all__ = ["kube"]

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
NAMESPACE = "hsm-kinds"
MODELS = {each.kind: each.model for each in crds.DEFINITIONS}


def at(kind: Kind, name: str = "") -> str:
    """Return the path of objects of *kind*, or of one."""
    namespace = f"/namespaces/{NAMESPACE}" if kind.namespaced else ""
    return f"/apis/{kind.api_version}{namespace}/{kind.plural}" + (f"/{name}" if name else "")


def made(kind: Kind, spec: dict[str, Any]) -> dict[str, Any]:
    """Return an object of *kind*."""
    return {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "metadata": {"name": new_name("h")},
        "spec": spec,
    }


@pytest.fixture(scope="module")
def admin(kube: KubeAPI) -> Iterator[httpx.Client]:
    """Somebody who may everything, where there are our kinds."""
    with rest(kube) as client:
        done(client.post("/api/v1/namespaces", json={"metadata": {"name": NAMESPACE}}), 201)
        for kind in HSM_KINDS:
            answer = client.post(CRDS, json=crds.definition(kind))
            assert answer.status_code in (201, 409), answer.text
        for kind in HSM_KINDS:
            eventually(lambda kind=kind: done(client.get(at(kind))))  # type: ignore[misc]  # a default binds it
        yield client
        client.delete(f"/api/v1/namespaces/{NAMESPACE}")


@pytest.mark.parametrize("kind", HSM_KINDS, ids=lambda kind: kind.kind)
def test_an_object_is_kept_as_it_was_written(admin: httpx.Client, kind: Kind) -> None:
    """With all its members, of a structural schema; a status comes by its own way."""
    found = done(admin.get(f"{CRDS}/{kind.plural}.{kind.group}"))
    said = {each["type"]: each["status"] for each in found["status"]["conditions"]}
    assert said["Established"] == said["NamesAccepted"] == "True"
    assert "NonStructuralSchema" not in said
    spec, status = GOOD[kind]
    created = done(admin.post(at(kind), json=made(kind, spec)), 201)
    assert created["spec"] == spec
    name = created["metadata"]["name"]
    after = done(admin.patch(f"{at(kind, name)}/status", json={"status": status}, headers=MERGE))
    assert after["status"] == status
    assert after["metadata"]["generation"] == 1


def test_what_a_kind_does_not_allow_is_refused_here_or_by_us(admin: httpx.Client, kube: KubeAPI) -> None:
    """By the server what its schema says; what an older one takes, the controller refuses when it reads it."""
    taken = []
    for kind, change in REFUSED:
        answer = admin.post(at(kind), json=made(kind, spec_of(kind, change)))
        if answer.status_code != 201:
            refused(answer, 422)
            continue
        taken.append((kind.kind, change))
        with pytest.raises(ValidationError):
            MODELS[kind].model_validate({"spec": answer.json()["spec"]}, by_alias=True, by_name=False)
    has_cel = kube.kind == "fake" and HAS_CEL
    assert bool(taken) is not has_cel, taken
    assert len(taken) < len(REFUSED) / 2
