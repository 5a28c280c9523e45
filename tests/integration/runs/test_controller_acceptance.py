"""The controller of attestation runs as a program: C3, C6, C7, C8, C11, C12, C14 of CONFIDENTIAL §5.

On our Kubernetes API and on the real one; the service is a double, which a contract suite compares with the real one.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from attestation.api.runs import RunOpen, RunResult
from attestation.clock import parse_rfc3339
from attestation_operator.objects import BUNDLE, POLICY, RESULT, RUN
from tests.fixtures.controllers import until
from tests.fixtures.kube import KubeAPI, kube
from tests.fixtures.run_double import RunDouble, run_double
from tests.fixtures.runs import NODES, Cluster, path, prepared, running, said
from tests.unit.operator.runs.world import ENFORCED, REPORTED, result, unavailable

__all__ = ["kube"]


@pytest.fixture(scope="module")
def ready(kube: KubeAPI) -> Iterator[Cluster]:
    """A cluster that is ready for us."""
    with prepared(kube) as found:
        yield found


@pytest.fixture
def cluster(ready: Cluster) -> Cluster:
    """The same."""
    return ready


@pytest.fixture
def service() -> Iterator[RunDouble]:
    """The service."""
    with run_double() as double:
        yield double


def test_c3_a_policy_is_named_and_found(
    kube: KubeAPI, cluster: Cluster, service: RunDouble, tmp_path: Path
) -> None:
    """Missing: PolicyNotFound. Edited: another policyID, in its status and for runs that begin later."""
    node, policy = cluster.node(), cluster.policy()
    with running(kube, service.url, tmp_path):
        absent = cluster.ended(cluster.run(node, policyRef={"name": "absent"}))
        assert said(absent)["Failed"] == ("True", "PolicyNotFound")
        first = cluster.ended(cluster.run(node, policyRef={"name": policy}))
        assert first["status"]["phase"] == "Succeeded"
        before = until(lambda: cluster.get(path(POLICY, policy)).get("status"))
        assert before["conditions"][0]["status"] == "True"
        edited = {"spec": {"tpm": {"pcrs": {"7": "cd" * 32}}}}
        merge = {"Content-Type": "application/merge-patch+json"}
        assert cluster.admin.patch(path(POLICY, policy), json=edited, headers=merge).status_code == 200

        def again() -> str | None:
            status = cluster.get(path(POLICY, policy))["status"]
            return status["policyID"] if status["observedGeneration"] == 2 else None

        assert until(again) != before["policyID"]
        second = cluster.ended(cluster.run(node, policyRef={"name": policy}))
    documents = [service.runs[run["metadata"]["uid"]].opened for run in (first, second)]
    assert documents[0] is not None
    assert documents[1] is not None
    assert documents[0].policy != documents[1].policy
