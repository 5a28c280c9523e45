"""What an API server answers that has the kinds, and the policies of admission as the chart has them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from attestation_operator import crds
from attestation_operator.runs.admission import policies
from attestation_testing.kubernetes import Answer, Cluster, Request, User
from attestation_testing.kubernetes.expressions import HAS_CEL
from tests.fixtures.admission_cases import CASES, CONTROLLER, Case, name_of
from tools.admission import schemas

pytestmark = pytest.mark.skipif(not HAS_CEL, reason="no CEL for this system")


@pytest.fixture(scope="module")
def cluster() -> Cluster:
    """One with everything, and a namespace `team`."""
    made = Cluster(seed=1)
    made.make("", "namespaces", {"metadata": {"name": "team"}})
    for each in crds.definitions():
        made.make("apiextensions.k8s.io", "customresourcedefinitions", each)
    for each in policies(CONTROLLER, schemas(), prefix="p"):
        plural = {
            "ValidatingAdmissionPolicy": "validatingadmissionpolicies",
            "ValidatingAdmissionPolicyBinding": "validatingadmissionpolicybindings",
        }[each["kind"]]
        made.make("admissionregistration.k8s.io", plural, each)
    return made


def _asked(cluster: Cluster, case: Case) -> dict[str, Any]:
    """Return what the server answers, with an object beforehand where it is a change."""
    kind, namespace = case.kind, "team" if case.kind.namespaced else ""
    place = f"/namespaces/{namespace}" if namespace else ""
    path = f"/apis/{kind.api_version}{place}/{kind.plural}"
    body, method = case.new(), "POST"
    if case.before is not None:
        before = case.old()
        found = cluster.make(kind.group, kind.plural, before, namespace=namespace)
        if case.said is not None:
            # What is created has no status yet.
            before["metadata"]["resourceVersion"] = found["metadata"]["resourceVersion"]
            found = _answered(cluster, f"{path}/one/status", before, CONTROLLER)
        body["metadata"]["resourceVersion"] = found["metadata"]["resourceVersion"]
        path, method = f"{path}/one{'/status' if case.status else ''}", "PUT"
    try:
        return {"code": 200, **_answered(cluster, path, body, case.user, method=method)}
    finally:
        name = body["metadata"]["name"]
        if (left := cluster.store.get((kind.group, kind.plural), namespace, name)) is not None:
            cluster.delete(cluster.resources[kind.group, kind.plural], left)


def _answered(
    cluster: Cluster, path: str, body: dict[str, Any], user: str, *, method: str = "PUT"
) -> dict[str, Any]:
    """Return what the server answers."""
    request = Request(
        method=method,
        path=path,
        query={},
        body=json.dumps(body).encode(),
        user=User(user, ("system:masters",)),
    )
    answer = cluster.answer(request)
    assert isinstance(answer, Answer)
    said: dict[str, Any] = json.loads(answer.body)
    return said


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_what_may_be_is_stored(cluster: Cluster, case: Case) -> None:
    """CONFIDENTIAL §4: whether a schema refuses or a policy; who may do anything else may not do this."""
    said = _asked(cluster, case)
    assert (said["code"] == 200) == case.allowed, said
    if not case.allowed:
        assert said["reason"] in ("Invalid", "Forbidden")
        assert "error" not in said["message"], "it is refused for what it says, not for what a rule lacks"
