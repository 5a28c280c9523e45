"""Certificate requests of nodes that the approver decides in a second, and its memory: 1,000 at our Kubernetes API.

And at the real one, where it has been built. The approver is a process of its own; so is the real API. Ours and the
service, which answers from memory, share another one.
"""

from __future__ import annotations

import base64
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.bench.report import Measurement
from tests.fixtures.attestation_double import attestation_double, evidence
from tests.fixtures.cluster import PEOPLE
from tests.fixtures.controllers import CSRS, prepared, until
from tests.fixtures.kube import CLIENT_KUBELET, KubeAPI, RealKube, fake_kube, rest
from tests.unit.operator.nodes.world import MACHINE, pkcs10, subject
from tools.kubernetes import Cluster, KubernetesMissing, programs
from tools.ports import free_port

REQUESTS: Final = 1_000
BAR_PER_SECOND: Final = 50
BAR_MIB: Final = 150


def measure() -> Iterator[Measurement]:
    """Have all requests there, start the approver, and wait until each has a condition."""
    with fake_kube() as ours:
        yield from _measured(
            "node-csr", ours, "at our Kubernetes API, the service a double; both share one process"
        )
    try:
        programs()
    except KubernetesMissing:
        return
    with (
        tempfile.TemporaryDirectory() as folder,
        Cluster(Path(folder), free_port, users=PEOPLE) as cluster,
    ):
        yield from _measured(
            "node-csr-real", RealKube(cluster), "at kube-apiserver 1.20.2, the service a double"
        )


def _measured(name: str, kube: KubeAPI, where: str) -> Iterator[Measurement]:
    with tempfile.TemporaryDirectory() as folder, attestation_double() as service:
        token = Path(folder, "token")
        token.write_text("token")
        with prepared(kube) as admin, rest(kube, "bootstrap") as client:
            for number in range(REQUESTS):
                node = f"w-{number}"
                blocks = pkcs10(subject(node)) + evidence("approve", machine_id=MACHINE, node_name=node)
                spec = {
                    "request": base64.b64encode(blocks).decode(),
                    "signerName": CLIENT_KUBELET,
                    "usages": ["digital signature", "client auth"],
                }
                client.post(CSRS, json={"metadata": {"name": node}, "spec": spec}).raise_for_status()
            settings = {
                "SERVICE_URL": service.url,
                "TOKEN_FILE": str(token),
                "KUBECONFIG": str(kube.kubeconfig("approver")),
                "NAMESPACE": "default",
                "LISTEN_PORT": "0",
                "LOG_LEVEL": "error",
            }
            environment = os.environ | {f"ITL_OPERATOR_{name}": value for name, value in settings.items()}
            program = Path(sys.executable).with_name("attestation-operator")
            process = subprocess.Popen([program, "approver"], env=environment)
            try:
                until(lambda: len(service.audit) > 0, 120)
                begun = time.perf_counter()
                until(lambda: len(service.audit) == REQUESTS, 300)

                def decided() -> int:
                    items = admin.get(CSRS).json()["items"]
                    return sum(bool(each["status"].get("conditions")) for each in items)

                until(lambda: decided() == REQUESTS, 300)
                per_second = REQUESTS / (time.perf_counter() - begun)
                status = Path(f"/proc/{process.pid}/status").read_text()
            finally:
                process.terminate()
                process.wait(40)
    mib = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")) / 1024
    yield Measurement(
        name=f"{name}-decided",
        value=per_second,
        unit="/s",
        bar=f">= {BAR_PER_SECOND}/s",
        ok=per_second >= BAR_PER_SECOND,
        note=f"{REQUESTS} requests {where}",
    )
    yield Measurement(
        name=f"{name}-memory",
        value=mib,
        unit="MiB",
        bar=f"<= {BAR_MIB} MiB",
        ok=mib <= BAR_MIB,
        note="most that the approver held",
    )
