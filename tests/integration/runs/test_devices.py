"""What the agent of a node collects is what the service judges, hardware by hardware; and so is what a device lacks."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from attestation.api.runs import RunChallenge
from attestation.device import TPM, AKType, NodeTPM, open_transport
from attestation.device.tsm import TsmReport
from attestation.errors import DeviceError
from attestation.store import Tx
from attestation_operator.runs.agent_devices import Devices, Places
from attestation_testing import SoftwareNode
from attestation_testing.tee import amd, intel
from attestation_testing.tee.tsm import FakeTsm
from tests.fixtures.in_process import in_process_service
from tests.fixtures.machine import Machine
from tests.fixtures.tpm import MakeTPM
from tests.integration.runs.clusters import RULE, Cluster, Node
from tests.unit.service.test_protocol_without_a_tpm import PLATFORM, PROCESSOR, believing

ROOT = Path("/sys/kernel/config/tsm/report")
POLICIES: dict[str, dict[str, Any]] = {
    "sev-snp": {"sevSnp": {"measurement": [amd.MEASUREMENT.hex()]}},
    "tdx": {"tdx": {"mrtd": [intel.MRTD.hex()]}},
}


def devices(tmp_path: Path, *tpms: str, provider: str = "") -> Devices:
    """Return the devices of a node: these TPMs, and the hardware behind *provider*."""
    absent = tmp_path / "absent"
    places = Places(
        tpms=tpms or (str(absent),),
        ak=AKType.ECC_P256,
        event_log=absent,
        sev_guest=absent,
        tdx_guests=(absent,),
        tsm=ROOT,
        ccel=absent,
    )

    def says(data: bytes) -> tuple[bytes, bytes]:
        if provider == "sev_guest":
            return PROCESSOR.report(data), PROCESSOR.cert_table()
        return PLATFORM.quote(intel.td_report(data)), b""

    files = FakeTsm(root=ROOT, provider=provider, says=says)
    return Devices(
        places,
        warn=lambda *_, **__: None,
        tsm=TsmReport(ROOT, files, lambda _: None),
        pause=lambda _: None,
    )


def collected(node: Node, run: str, found: Devices) -> dict[str, Any]:
    """Return the result of a run that is answered as the agent answers it."""
    challenge = RunChallenge.model_validate(node.challenge(run).json())
    body: dict[str, Any] = {"challenge_id": challenge.id}
    try:
        items = found.collect(challenge, node.uid)
        body["evidence"] = [each.model_dump(mode="json") for each in items]
    except DeviceError as e:
        body["unavailable"] = {"code": f"device-{e.fault}", "detail": str(e)}
    answer = node.post(run, body)
    assert answer.status_code == 202, answer.text
    return node.cluster.result(run)


@pytest.mark.swtpm
def test_a_tpm(tmp_path: Path, make_tpm: MakeTPM) -> None:
    """Of swtpm, by the key that the machine was introduced with."""
    uri = make_tpm().uri
    with in_process_service(tmp_path / "service", kubernetes_clusters=json.dumps([RULE])) as service:
        cluster = Cluster(service)
        with NodeTPM(TPM(open_transport(uri))) as device:
            machine = Machine(device, cluster.http)
            machine.admitted(service.operator(), hostname="w-1")
            node = Node(cluster, "w-1", machine)
            policy = {"tpm": {"pcrs": node.values()["sha256"]}}
        found = collected(node, cluster.open(node, policy), devices(tmp_path, uri))
        assert (found["verdict"], found["machine_id"]) == ("verified", machine.machine_id)
        assert len(found["measurements"]) == 8
        # The same node without it.
        found = collected(node, cluster.open(node, policy), devices(tmp_path))
        assert (found["verdict"], found["unavailable"]["code"]) == ("indeterminate", "device-absent")


@pytest.mark.parametrize(("backend", "provider"), [("sev-snp", "sev_guest"), ("tdx", "tdx_guest")])
def test_confidential_hardware(tmp_path: Path, backend: str, provider: str) -> None:
    """Of configfs-tsm, with a processor that operators approved; on a node that has none the device is absent."""
    settings = believing(tmp_path) | {"kubernetes_clusters": json.dumps([RULE])}
    with in_process_service(tmp_path / "service", **settings) as service:
        service.clock.pass_(seconds=(intel.ISSUED + timedelta(days=1) - service.clock.now()).total_seconds())
        cluster = Cluster(service)
        machine = Machine(SoftwareNode(91), cluster.http)
        machine.admitted(service.operator(), hostname="w-1")
        node = Node(cluster, "w-1", machine)
        chip = PROCESSOR.chip_id if backend == "sev-snp" else PLATFORM.ppid

        def approve(tx: Tx) -> None:
            known = tx.machines.require(machine.machine_id)
            tx.identities.add(known, backend.replace("-", "_"), bytes(48))
            tx.identities.approve(known.machine_id, backend.replace("-", "_"), chip=chip, csp_id=None)

        service.run(service.app.state.resources.store.write(approve))
        policy = POLICIES[backend]
        found = collected(node, cluster.open(node, policy, backend), devices(tmp_path, provider=provider))
        assert (found["verdict"], found["machine_id"]) == ("verified", machine.machine_id), found["checks"]
        found = collected(node, cluster.open(node, policy, backend), devices(tmp_path))
        assert found["verdict"] == "indeterminate"
        assert found["unavailable"]["code"] in ("device-absent", "device-no-provider")
