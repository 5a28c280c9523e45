"""Attestation runs that the controller takes to their end: 50 nodes with two backends at once; then 1,000 kept.

And a schedule of 1,000 nodes whose runs have all ended and are taken away: what is listed for it.

The controller is a process of its own. Our Kubernetes API and the service, whose agents answer at once, share another.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from attestation_operator.objects import RUN, SECURITY_EVENT
from tests.bench.report import Measurement
from tests.fixtures.controllers import until
from tests.fixtures.kube import FakeKube, fake_kube
from tests.fixtures.run_double import run_double
from tests.fixtures.runs import CLUSTER, SPACE, Cluster, prepared, said
from tests.integration.kubernetes.test_schedules import new_term
from tests.integration.kubernetes.test_schedules import prepared as prepared_for_schedules
from tests.unit.operator.runs.world import ENFORCED

NODES: Final = 50
BACKENDS: Final[Mapping[str, Mapping[str, Any]]] = {
    "tpm": ENFORCED,
    "tdx": {"tdx": {"mrtd": ["ab" * 48]}},
}
EVENTS: Final = ("AttestationStarted", "AttestationVerified")
"""Of each run, one of each."""
FINISHED: Final = 1_000
BAR_SECONDS: Final = 60
BAR_MIB: Final = 150
BAR_LISTS: Final = 3
"""Of schedules, of runs, of Nodes: when it begins to lead."""


def measure() -> Iterator[Measurement]:
    """Have the controller run, create the runs, and wait until all is sealed; then 900 more, and a new controller."""
    with (
        tempfile.TemporaryDirectory() as folder,
        fake_kube() as kube,
        run_double() as service,
        prepared(kube) as cluster,
    ):
        policies = {backend: cluster.policy(spec) for backend, spec in BACKENDS.items()}
        nodes = [cluster.node() for _ in range(NODES)]
        with controller(kube, service.url, Path(folder)) as process:
            begun = time.perf_counter()
            _create(cluster, nodes, policies)
            created = time.perf_counter() - begun
            until(lambda: _sealed(cluster) == NODES * len(BACKENDS), 300)
            seconds = time.perf_counter() - begun
            events = Counter(each["spec"]["type"] for each in cluster.items(SECURITY_EVENT))
            _create(cluster, nodes * ((FINISHED - NODES * len(BACKENDS)) // NODES // len(BACKENDS)), policies)
            until(lambda: _sealed(cluster) == FINISHED, 600)
            whole = memory(process)
        asked = len(service.asked)
        with controller(kube, service.url, Path(folder)) as process:
            until(lambda: _is_leading(cluster), 60)
            time.sleep(10)  # what a new leader looks at: all of them, once
            after = memory(process)
        again = len(service.asked) - asked
    yield Measurement(
        name="node-runs-ended",
        value=seconds,
        unit="s",
        bar=f"<= {BAR_SECONDS} s",
        ok=seconds <= BAR_SECONDS and events == dict.fromkeys(EVENTS, NODES * len(BACKENDS)),
        note=f"{NODES} nodes x {len(BACKENDS)} backends, created in {created:.1f} s, until each is sealed; events: "
        + ", ".join(f"{count} {type_}" for type_, count in sorted(events.items())),
    )
    yield Measurement(
        name="node-runs-memory",
        value=max(whole, after),
        unit="MiB",
        bar=f"<= {BAR_MIB} MiB",
        ok=max(whole, after) <= BAR_MIB,
        note=f"most that the controller held, with {FINISHED} runs; a new one asked the service {again} times",
    )

    yield asyncio.run(_pruned())


async def _pruned() -> Measurement:
    """Let 1,000 runs of a schedule end, and count the lists by which they are taken away."""
    with fake_kube() as kube, prepared_for_schedules(kube) as here:
        for number in range(FINISHED):
            here.node(f"{here.pool}-{number}")
        here.schedule(every="1h", history={"succeeded": 0, "failed": 0})
        async with here.leader() as (leader, cluster):
            await new_term(leader)
            ended = here.runs()
            for raw in ended:
                here.end(raw)
            cluster.lists = []
            begun = time.perf_counter()
            await new_term(leader)
            seconds = time.perf_counter() - begun
            left = len(here.runs())
    return Measurement(
        name="node-runs-pruned",
        value=len(cluster.lists),
        unit="lists",
        bar=f"<= {BAR_LISTS} lists",
        ok=len(cluster.lists) <= BAR_LISTS and len(ended) == FINISHED and left == 0,
        note=f"a new leader took {len(ended) - left} of {len(ended)} ended runs away in {seconds:.1f} s",
    )


def _create(cluster: Cluster, nodes: list[str], policies: Mapping[str, str]) -> None:
    wanted = [(node, backend, policy) for node in nodes for backend, policy in policies.items()]
    with ThreadPoolExecutor(8) as threads:
        list(
            threads.map(
                lambda each: cluster.run(each[0], backend=each[1], policyRef={"name": each[2]}), wanted
            )
        )


def _sealed(cluster: Cluster) -> int:
    time.sleep(0.5)
    return sum(said(run).get("Sealed", ("", ""))[0] == "True" for run in cluster.items(RUN))


def _is_leading(cluster: Cluster) -> bool:
    lease = cluster.get(f"/apis/coordination.k8s.io/v1/namespaces/{SPACE}/leases/attestation-operator-runs")
    return bool(lease["spec"].get("holderIdentity"))


@contextmanager
def controller(
    kube: FakeKube, url: str, folder: Path, *, token: str = "token", cluster_id: str = CLUSTER
) -> Iterator[subprocess.Popen[bytes]]:
    """Run `attestation-operator runs` until the block ends."""
    (folder / "token").write_text(token)
    settings = {
        "SERVICE_URL": url,
        "TOKEN_FILE": str(folder / "token"),
        "KUBECONFIG": str(kube.kubeconfig("runs")),
        "NAMESPACE": SPACE,
        "CLUSTER_ID": cluster_id,
        "HEALTH_PROBE_BIND_ADDRESS": "127.0.0.1:0",
        "METRICS_BIND_ADDRESS": "127.0.0.1:0",
        "LOG_LEVEL": "error",
    }
    environment = os.environ | {f"ITL_OPERATOR_{name}": value for name, value in settings.items()}
    program = Path(sys.executable).with_name("attestation-operator")
    process = subprocess.Popen([program, "runs"], env=environment)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(40)


def memory(process: subprocess.Popen[bytes]) -> float:
    """Return the most that it held, MiB."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")) / 1024
