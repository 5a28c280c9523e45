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
from attestation_operator.runs import kinds
from attestation_operator.runs.admission import FINAL
from attestation_testing.kubernetes.expressions import HAS_CEL
from tests.contract.kubernetes import MERGE, done, eventually, new_name, refused
from tests.fixtures.attestation_kinds import GOOD, REFUSED, SEED, changed
from tests.fixtures.kube import KubeAPI, kube, rest

__all__ = ["kube"]

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
KINDS = (RUN, RESULT, POLICY, SECURITY_EVENT, BUNDLE, SCHEDULE)
NAMESPACE = "attestation-kinds"
OTHERWISE: dict[Kind, dict[str, Any]] = {
    RUN: {"targetNodeName": "worker-2"},
    RESULT: {"verdict": "failed"},
    POLICY: {"mode": "report"},
    SECURITY_EVENT: {"severity": "low"},
    BUNDLE: {"parentBundleRef": {"name": "other"}},
    SCHEDULE: {"suspend": True},
}
"""A change of each spec that its kind would allow of a new object."""


def at(kind: Kind, name: str = "") -> str:
    """Return the path of objects of *kind*, or of one."""
    namespace = f"/namespaces/{NAMESPACE}" if kind.namespaced else ""
    return f"/apis/{kind.api_version}{namespace}/{kind.plural}" + (f"/{name}" if name else "")


@pytest.fixture(scope="module")
def admin(kube: KubeAPI) -> Iterator[httpx.Client]:
    """Somebody who may everything, where there are our kinds."""
    with rest(kube) as client:
        done(client.post("/api/v1/namespaces", json={"metadata": {"name": NAMESPACE}}), 201)
        # The kinds stay: the tests of other files may find them, and a kind that is going is neither there nor gone.
        for kind in KINDS:
            made_ = client.post(CRDS, json=crds.definition(kind))
            assert made_.status_code in (201, 409), made_.text
        for kind in KINDS:
            eventually(lambda kind=kind: done(client.get(at(kind))))  # type: ignore[misc]  # a default binds it
        yield client
        client.delete(f"/api/v1/namespaces/{NAMESPACE}")


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


def test_what_a_kind_does_not_allow_is_refused_here_or_by_us(admin: httpx.Client, kube: KubeAPI) -> None:
    """By a server with rules in CEL all of it; what an older one takes, the controller refuses when it reads it."""
    taken = []
    for kind, change, _ in REFUSED:
        answer = admin.post(at(kind), json=made(kind, changed(GOOD[kind][0], change)))
        if answer.status_code == 201:
            taken.append((kind, change))
            assert kinds.faults(kind, answer.json()), change
        else:
            refused(answer, 422)
    has_cel = kube.kind == "fake" and HAS_CEL
    assert bool(taken) is not has_cel, taken
    assert len(taken) < len(REFUSED) / 2


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.kind)
def test_a_spec_that_stays_is_not_changed_or_is_seen(admin: httpx.Client, kube: KubeAPI, kind: Kind) -> None:
    """By a rule in CEL it is refused; without, its generation tells. Labels may change."""
    name = done(admin.post(at(kind), json=made(kind, GOOD[kind][0])), 201)["metadata"]["name"]
    labelled = {"metadata": {"labels": {"a": "b"}}}
    found = done(admin.patch(at(kind, name), json=labelled, headers=MERGE))
    assert kinds.faults(kind, found) == ()
    answer = admin.patch(at(kind, name), json={"spec": OTHERWISE[kind]}, headers=MERGE)
    if kind not in FINAL:
        assert kinds.faults(kind, done(answer)) == ()
    elif kube.kind == "fake" and HAS_CEL:
        refused(answer, 422, "spec cannot be changed")
    else:
        assert kinds.faults(kind, done(answer)) == ("spec: it was changed after it was created",)
        held = {"metadata": {"finalizers": ["tests.itl.io/held"]}}
        fresh = done(admin.post(at(kind), json=made(kind, GOOD[kind][0])), 201)["metadata"]["name"]
        done(admin.patch(at(kind, fresh), json=held, headers=MERGE))
        gone = done(admin.delete(at(kind, fresh)))
        assert gone["metadata"]["deletionTimestamp"]
        assert kinds.faults(kind, gone) == ()
        done(admin.patch(at(kind, fresh), json={"metadata": {"finalizers": None}}, headers=MERGE))


def test_a_node_s_runs_are_selected(admin: httpx.Client, kube: KubeAPI) -> None:
    """By a server that has selectable fields; an older one refuses the question, so that nobody takes all for some."""
    for node in ("select-1", "select-2"):
        done(admin.post(at(RUN), json=made(RUN, changed(GOOD[RUN][0], {"targetNodeName": node}))), 201)
    answer = admin.get(at(RUN), params={"fieldSelector": "spec.targetNodeName=select-1"})
    if kube.kind == "real":
        refused(answer, 400)
        return
    assert [each["spec"]["targetNodeName"] for each in done(answer)["items"]] == ["select-1"]


def test_a_table_has_the_columns_of_the_specification(admin: httpx.Client) -> None:
    """As `kubectl get` asks for it."""
    wanted = {
        RUN: ["Backend", "Node", "Phase", "Verdict", "Age"],
        RESULT: ["Backend", "Node", "Verdict", "Trusted", "Age"],
    }
    for kind, columns in wanted.items():
        found = done(admin.get(f"{CRDS}/{kind.plural}.{RUNS_GROUP}"))["spec"]
        [version] = found["versions"]
        assert [each["name"] for each in version["additionalPrinterColumns"]] == columns
    short = {
        kind.plural: done(admin.get(f"{CRDS}/{kind.plural}.{RUNS_GROUP}"))["spec"]["names"]["shortNames"]
        for kind in KINDS
    }
    assert short == {
        "confidentialattestationruns": ["conar"],
        "confidentialattestationresults": ["conares"],
        "attestationpolicies": ["atpol"],
        "securityevents": ["se"],
        "attestationbundles": ["ab"],
        "attestationschedules": ["atsched"],
    }
