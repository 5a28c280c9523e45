"""The real API server ends as by a crash, with runs open and watches that hang, and comes back with what etcd kept."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from attestation_operator.objects import RESULT, RUN
from tests.fixtures.cluster import PEOPLE, require_kubernetes
from tests.fixtures.controllers import until
from tests.fixtures.kube import RealKube
from tests.fixtures.run_double import run_double, verified
from tests.fixtures.runs import Cluster, path, prepared, running
from tools.kubernetes import Cluster as Servers
from tools.ports import free_port

pytestmark = [pytest.mark.kubeapi, pytest.mark.slow]


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Servers]:
    """Servers of this test alone: others must not lose theirs."""
    require_kubernetes()
    with Servers(tmp_path / "kubernetes", free_port, users=PEOPLE) as found:
        yield found


def phase(cluster: Cluster, run: dict[str, Any]) -> str | None:
    """Return where a run is."""
    status = cluster.get(path(RUN, run["metadata"]["name"])).get("status", {})
    return str(status["phase"]) if "phase" in status else None


def test_c12_the_api_server_s_process_is_restarted(servers: Servers, tmp_path: Path) -> None:
    """Judged while it is away: no run is lost, each has one Result and one event of each type; later ones go on too."""
    with prepared(RealKube(servers)) as cluster, run_double() as service:
        service.judge = lambda opened: None
        policy = {"name": cluster.policy()}
        runs = [cluster.run(cluster.node(), policyRef=policy) for _ in range(3)]
        with running(RealKube(servers), service.url, tmp_path):
            for run in runs:
                until(partial(lambda run: phase(cluster, run) == "Running", run))
            with servers.without_api():
                service.judge = verified
            runs.append(cluster.run(cluster.node(), policyRef=policy))
            for run in runs:
                assert cluster.ended(run)["status"]["phase"] == "Succeeded"
                assert cluster.types(run) == ["AttestationStarted", "AttestationVerified"]
                assert cluster.result(run)["status"]["trusted"] is True
        uids = sorted(each["spec"]["derivedFromRun"]["uid"] for each in cluster.items(RESULT))
        assert uids == sorted(run["metadata"]["uid"] for run in runs)
