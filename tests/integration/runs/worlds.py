"""The controller of runs as a program, the real service, and a node whose TPM is Python, by a clock that tests hold."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

from attestation_operator.objects import RESULT, RUN
from attestation_testing import SoftwareNode
from tests.fixtures.controllers import until
from tests.fixtures.in_process import HeldClock, InProcessService, in_process_service
from tests.fixtures.kube import FakeKube
from tests.fixtures.machine import Machine
from tests.fixtures.runs import NODES, path, prepared, running, said
from tests.fixtures.runs import Cluster as Estate
from tests.integration.runs.clusters import RULE, Cluster, Node, on_loopback
from tests.integration.runs.test_acceptance import pinning


class Apart:
    """The clock of a cluster.

    Args:
        clock: That of the service.
        seconds: By so much the cluster's is ahead.
    """

    def __init__(self, clock: HeldClock, seconds: float) -> None:
        self._clock, self._apart = clock, timedelta(seconds=seconds)

    def now(self) -> datetime:
        """Return the time."""
        return self._clock.now() + self._apart


class World(NamedTuple):
    """A service, a cluster whose controller runs, and its node."""

    service: InProcessService
    clock: Apart
    estate: Estate
    node: Node
    policy: str

    def run(self, **spec: Any) -> dict[str, Any]:
        """Create a run of the node under the policy."""
        return self.estate.run(self.node.name, policyRef={"name": self.policy}, **spec)

    def is_running(self, run: dict[str, Any]) -> bool:
        """Return whether it is opened, and waits for its node."""
        return bool(self.get(run).get("status", {}).get("phase") == "Running")

    def get(self, run: dict[str, Any]) -> dict[str, Any]:
        """Return the run as it is now."""
        return self.estate.get(path(RUN, run["metadata"]["name"]))

    def ended(self, run: dict[str, Any]) -> dict[str, Any]:
        """Return the run when it has ended and that was told. Its seal waits for the log, whose clock stands."""
        until(lambda: "EventsEmitted" in said(self.get(run)))
        return self.get(run)

    def results(self, run: dict[str, Any]) -> int:
        """Return how many Results there are of it."""
        uid = run["metadata"]["uid"]
        return sum(each["spec"]["derivedFromRun"]["uid"] == uid for each in self.estate.items(RESULT))


@contextmanager
def world(fake: FakeKube, folder: Path, *, ahead: float = 0, **options: Any) -> Iterator[World]:
    """Run it all until the block ends.

    Args:
        fake: The cluster.
        folder: For what is written.
        ahead: By so many seconds the cluster's clock is ahead of the service's.
        options: Settings of the controller.
    """
    with ExitStack() as stack:
        service = stack.enter_context(
            in_process_service(folder / "service", kubernetes_clusters=json.dumps([RULE]), rate_limits=False)
        )
        # Certificates of the API server are good now; everything else goes by the clock that is held from here on.
        service.clock.pass_(seconds=(datetime.now(UTC) - service.clock.now()).total_seconds())
        clock = Apart(service.clock, ahead)
        cluster = Cluster(service, clock)
        machine = Machine(SoftwareNode(19), cluster.http)
        machine.admitted(service.operator(), hostname="w-1")
        node = Node(cluster, "w-1", machine)
        estate = stack.enter_context(prepared(fake))
        node.uid = estate.make(NODES, {"metadata": {"name": node.name}})["metadata"]["uid"]
        policy = estate.policy(pinning(node))
        # Issued this very moment, by the cluster's clock.
        (folder / "token").write_text(cluster.token("runs")["Authorization"].removeprefix("Bearer "))
        url = stack.enter_context(on_loopback(service))
        stack.enter_context(running(fake, url, folder, cluster_id="default", clock=clock, **options))
        yield World(service, clock, estate, node, policy)
