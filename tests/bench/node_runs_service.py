"""50 nodes with two backends at once, judged by the real service: TPMs and SEV-SNP processors of software.

The controller is a process of its own. Our Kubernetes API, the service with its clock at the computer's time, and the
agents, threads that ask for their challenge until there is one, share another.
"""

from __future__ import annotations

import json
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

from attestation.report_data import report_data
from attestation.store import Tx
from attestation.wire import b64decode, b64encode
from attestation_operator.objects import RESULT, RUN, SECURITY_EVENT
from attestation_testing import SoftwareNode
from attestation_testing.tee import amd
from tests.bench.node_runs import BAR_MIB, BAR_SECONDS, EVENTS, NODES, controller, memory
from tests.bench.report import Measurement
from tests.fixtures.controllers import until
from tests.fixtures.in_process import InProcessService, in_process_service
from tests.fixtures.kube import fake_kube
from tests.fixtures.machine import Machine
from tests.fixtures.runs import NODES as WHERE
from tests.fixtures.runs import Cluster as Estate
from tests.fixtures.runs import prepared
from tests.integration.runs.clusters import RULE, Cluster, Node, on_loopback
from tests.unit.service.test_protocol_without_a_tpm import PROCESSOR, believing

BACKENDS: Final = ("tpm", "sev-snp")
LAUNCHED: Final[Mapping[str, Any]] = {
    "sevSnp": {"measurement": [amd.MEASUREMENT.hex()]},
    "collateral": {"requireRevocation": False},
}
ASK_SECONDS: Final = 0.25


def measure() -> Iterator[Measurement]:
    """Create the runs, and wait until each was judged and that was told; then until each is sealed."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        kube = stack.enter_context(fake_kube())
        estate = stack.enter_context(prepared(kube))
        service = stack.enter_context(
            in_process_service(
                folder / "service",
                kubernetes_clusters=json.dumps([RULE]),
                rate_limits=False,
                **believing(folder),
            )
        )
        stack.enter_context(_in_time(service))
        cluster = Cluster(service)
        nodes = [_node(cluster, estate, number) for number in range(NODES)]
        # PCRs of software are alike: one policy serves them all.
        policies = {"tpm": estate.policy({"tpm": {"pcrs": nodes[0][0].values()["sha256"]}})}
        policies["sev-snp"] = estate.policy(LAUNCHED)
        url = stack.enter_context(on_loopback(service))
        token = cluster.token("runs")["Authorization"].removeprefix("Bearer ")
        process = stack.enter_context(controller(kube, url, folder, token=token, cluster_id="default"))
        agents = stack.enter_context(ThreadPoolExecutor(16))
        begun = time.perf_counter()
        answers = []
        for node, processor in nodes:
            for backend in BACKENDS:
                run = estate.run(node.name, backend=backend, policyRef={"name": policies[backend]})
                uid = run["metadata"]["uid"]
                answers.append(agents.submit(_answer, node, processor, uid, backend))
        created = time.perf_counter() - begun
        until(lambda: len(_events(estate)) == 2 * len(answers), 300)
        judged = time.perf_counter() - begun
        for each in answers:
            each.result()
        until(partial(_are_sealed, estate, len(answers)), 300)
        sealed = time.perf_counter() - begun
        most = memory(process)
        events, results = Counter(_events(estate)), estate.items(RESULT)
    verdicts = Counter(each["spec"]["verdict"] for each in results)
    uids = {each["spec"]["derivedFromRun"]["uid"] for each in results}
    count = NODES * len(BACKENDS)
    yield Measurement(
        name="node-runs-service-judged",
        value=judged,
        unit="s",
        bar=f"<= {BAR_SECONDS} s",
        ok=judged <= BAR_SECONDS
        and events == dict.fromkeys(EVENTS, count)
        and verdicts == {"verified": count}
        and len(uids) == len(results) == count,
        note=f"{NODES} nodes x {' and '.join(BACKENDS)}, created in {created:.1f} s, sealed after {sealed:.1f} s; "
        f"{len(results)} Results, events: "
        + ", ".join(f"{number} {type_}" for type_, number in sorted(events.items())),
    )
    yield Measurement(
        name="node-runs-service-memory",
        value=most,
        unit="MiB",
        bar=f"<= {BAR_MIB} MiB",
        ok=most <= BAR_MIB,
        note="most that the controller held",
    )


@contextmanager
def _in_time(service: InProcessService) -> Iterator[None]:
    """Keep the clock of the service at the computer's time until the block ends."""
    over = threading.Event()

    def keep() -> None:
        while not over.wait(0.05):
            service.clock.pass_(seconds=(datetime.now(UTC) - service.clock.now()).total_seconds())

    thread = threading.Thread(target=keep)
    service.clock.pass_(seconds=(datetime.now(UTC) - service.clock.now()).total_seconds())
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _node(cluster: Cluster, estate: Estate, number: int) -> tuple[Node, amd.Processor]:
    """Return a node whose machine attested and whose processor an operator approved."""
    name = f"w-{number}"
    machine = Machine(SoftwareNode(1000 + number), cluster.http)
    machine.admitted(cluster.service.operator(), hostname=name)
    processor = amd.Processor(pki=PROCESSOR.pki, seed=name)

    def approve(tx: Tx) -> None:
        known = tx.machines.require(machine.machine_id)
        tx.identities.add(known, "sev_snp", number.to_bytes(48, "big"))
        tx.identities.approve(known.machine_id, "sev_snp", chip=processor.chip_id, csp_id=None)

    cluster.service.run(cluster.service.app.state.resources.store.write(approve))
    node = Node(cluster, name, machine)
    node.uid = estate.make(WHERE, {"metadata": {"name": name}})["metadata"]["uid"]
    return node, processor


def _answer(node: Node, processor: amd.Processor, run: str, backend: str) -> None:
    while not (answer := node.challenge(run)).is_success:
        time.sleep(ASK_SECONDS)
    challenge = answer.json()
    body = node.evidence(challenge) if backend == "tpm" else _reported(node, processor, challenge)
    posted = node.post(run, body)
    assert posted.status_code == 202, posted.text


def _reported(node: Node, processor: amd.Processor, challenge: Mapping[str, Any]) -> dict[str, Any]:
    data = report_data("sev-snp", b64decode(challenge["nonce"], "nonce"), node.uid)
    value = {"report": b64encode(processor.report(data)), "vek": b64encode(processor.vek)}
    item = {"media_type": "application/vnd.itl.sev-snp", "value": value}
    return {"challenge_id": challenge["id"], "evidence": [item]}


def _events(estate: Estate) -> list[str]:
    time.sleep(0.25)
    return [each["spec"]["type"] for each in estate.items(SECURITY_EVENT)]


def _are_sealed(estate: Estate, count: int) -> bool:
    time.sleep(0.5)
    conditions = [each for run in estate.items(RUN) for each in run["status"]["conditions"]]
    return sum((each["type"], each["status"]) == ("Sealed", "True") for each in conditions) == count
