"""The agent as an image runs it, a real service, a software TPM: from nothing to a wiped machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from attestation_testing import CertificateAuthority, SoftwareTPM
from tests.fixtures.both import new_database
from tests.fixtures.service import Operator, ServiceProcess, StartService
from tests.fixtures.tpm import MakeTPM

__all__ = ["new_database"]

pytestmark = pytest.mark.swtpm

AGENT = Path(sys.executable).with_name("itl-tpm-register")
IDENTIFY = Path(sys.executable).with_name("attestation-agent")
RUN_SECONDS = 240
OK, PENDING_APPROVAL, LOCKED, REVOKED, REJECTED, UNREACHABLE = 0, 10, 11, 12, 13, 21


@dataclass(kw_only=True)
class Node:
    """A computer with a TPM, on which `itl-tpm-register --once` is run again and again, as at every boot."""

    service: ServiceProcess
    tpm: SoftwareTPM
    directory: Path
    ak: str

    @property
    def config(self) -> Path:
        """Where the opened configuration is written."""
        return self.directory / "config.yaml"

    @property
    def applied(self) -> Path:
        """Where the apply command puts it."""
        return self.directory / "applied"

    @property
    def wiped(self) -> Path:
        """Made by the wipe command."""
        return self.directory / "wiped"

    def environment(self) -> dict[str, str]:
        """What the image sets."""
        outside = {k: v for k, v in os.environ.items() if not k.startswith(("ITL_", "COVERAGE_"))}
        return outside | {
            "ITL_REG_URL": self.service.url,
            "ITL_TPM": self.tpm.uri,
            "ITL_AK": self.ak,
            "ITL_STATE_DIR": str(self.directory / "state"),
            "ITL_CONFIG_PATH": str(self.config),
            "ITL_APPLY_COMMAND": f"cp -t {self.applied}",
            "ITL_WIPE_COMMAND": f"touch {self.wiped}",
            "ITL_SYSFS": str(self.directory / "sys"),
            "ITL_ROLE": "controlplane",
            "ITL_ATTEMPTS": "2",
        }

    def run(self) -> int:
        """Boot."""
        done = subprocess.run(
            [str(AGENT), "--once"],
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=RUN_SECONDS,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        for line in (done.stdout + done.stderr).splitlines():
            json.loads(line)
        assert self.service.canary not in done.stdout + done.stderr
        return done.returncode

    def identify(self) -> dict[str, Any]:
        """Run `attestation-agent identify`."""
        done = subprocess.run(
            [str(IDENTIFY), "identify", "--json"],
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=RUN_SECONDS,
            check=True,
        )
        found: dict[str, Any] = json.loads(done.stdout)
        return found


@pytest.fixture(scope="module")
def service(start_service: StartService) -> ServiceProcess:
    """A service that this module may kill."""
    return start_service()


@pytest.fixture
def operator(service: ServiceProcess) -> Iterator[Operator]:
    """Its operator."""
    found = service.operator()
    yield found
    found.http.close()


@pytest.fixture
def node(
    service: ServiceProcess,
    make_tpm: MakeTPM,
    tpm_ca: CertificateAuthority,
    tmp_path: Path,
) -> Node:
    """A node whose manufacturer certified an RSA EK, or, where the service is on PostgreSQL, an ECC one."""
    template, ak = ("L-2", "rsa") if service.server_url else ("L-1", "ecc")
    tpm = make_tpm("tpm")
    tpm.manufacture(tpm_ca, template=template)
    (tmp_path / "applied").mkdir()
    dmi = tmp_path / "sys" / "class" / "dmi" / "id"
    dmi.mkdir(parents=True)
    (dmi / "product_uuid").write_text("6D0DD0AA-5B0E-4D63-8C3F-2F9B0A4B8A11\n")
    (dmi / "product_name").write_text("Example 9000\n")
    return Node(service=service, tpm=tpm, directory=tmp_path, ak=ak)


def expected_config(node: Node, machine: dict[str, Any]) -> dict[str, Any]:
    """Return the merge of base and machine, written out by hand from ITL-REFERENCE §17."""
    return {
        "version": "v1alpha1",
        "machine": {
            "type": "worker",
            "token": node.service.canary,
            "install": {
                "disk": "/dev/sda",
                "image": "registry.example/itl-talos-installer:v1",
            },
            "network": {
                "hostname": "w-7",
                "interfaces": [{"interface": "eth0", "addresses": ["10.0.0.17/24"]}],
            },
            "nodeLabels": {
                "itl.io/machine-id": machine["machine_id"],
                "itl.io/tpm-ek": machine["ek_fingerprint"][:16],
            },
            "nodeAnnotations": {"itl.io/tpm-ek-full": machine["ek_fingerprint"]},
        },
        "cluster": {"secret": node.service.canary},
    }


def test_a_node_from_nothing_to_its_wipe(node: Node, operator: Operator) -> None:
    """Each boot does what the status of the machine demands, over a kill of the service and a reboot."""
    service = node.service
    known = {m["machine_id"] for m in operator.machines()}

    # First boot: introduced, activated, waits.
    assert node.run() == PENDING_APPROVAL
    (machine,) = (m for m in operator.machines() if m["machine_id"] not in known)
    machine_id = machine["machine_id"]
    assert (machine["desired_role"], machine["role"]) == ("controlplane", None)
    assert machine["ek_source"] == "cert"
    assert machine["ek_fingerprint"] in json.dumps(node.identify())
    assert machine["hw_product"] == "Example 9000"
    # The second protocol, with the first quote: the EK itself vouched for the firmware.
    assert machine["firmware_attested"] == machine["firmware_version"] is not None
    assert not node.config.exists()

    # Approved while the service is struck dead: the next boot finds it again, and gets the configuration.
    operator.approve(machine_id, "worker-app", hostname="w-7", assigned_ip="10.0.0.17/24")
    service.kill()
    assert node.run() == UNREACHABLE
    service.start()
    assert node.run() == OK
    applied = (node.applied / "config.yaml").read_text()
    assert applied == node.config.read_text()
    assert node.config.stat().st_mode & 0o077 == 0
    assert YAML(typ="safe").load(applied) == expected_config(node, operator.machine(machine_id))
    assert applied.startswith("# base of worker-app\n"), "comments of the operator survive"

    # Nothing to do, also after a reboot of the TPM, which is recorded.
    before = operator.machine(machine_id)
    node.tpm.reboot()
    assert node.run() == OK
    after = operator.machine(machine_id)
    assert (after["status"], after["trust"]) == ("attested", "verified")
    assert after["reset_count"] > before["reset_count"]
    assert [e["action"] for e in operator.audit(machine_id=machine_id)].count("config_delivered") == 1

    # Locked, unlocked, and at last wiped: on record before it begins.
    operator.act(machine_id, "lock", reason="maintenance")
    assert node.run() == LOCKED
    operator.act(machine_id, "unlock")
    assert node.run() == OK
    operator.act(machine_id, "revoke", wipe=True, reason="retired")
    assert not node.wiped.exists()
    assert node.run() == REVOKED
    assert node.wiped.exists()
    shown = operator.machine(machine_id)
    assert (shown["status"], shown["wipe_pending"]) == ("revoked", False)
    assert shown["wiped_at"] is not None
    actions = [e["action"] for e in operator.audit(machine_id=machine_id)]
    assert actions.count("wipe_ack") == 1
    assert node.run() == REVOKED
    assert operator.audit_is_valid()

    # Deleted and introduced again it is a new machine that waits.
    operator.call("DELETE", f"/machines/{machine_id}")
    assert node.run() == PENDING_APPROVAL
    assert operator.audit(machine_id=machine_id)[0]["action"] == "delete"


def test_a_stolen_state_directory_is_worth_nothing(
    node: Node, operator: Operator, make_tpm: MakeTPM, tmp_path: Path
) -> None:
    """All files of a node on another computer: another TPM is another machine (R1)."""
    known = {m["machine_id"] for m in operator.machines()}
    assert node.run() == PENDING_APPROVAL
    (machine,) = (m for m in operator.machines() if m["machine_id"] not in known)
    operator.approve(machine["machine_id"])
    assert node.run() == OK
    for path in (p for p in (tmp_path / "state").rglob("*") if p.is_file()):
        assert node.service.canary.encode() not in path.read_bytes()
        assert b"PRIVATE" not in path.read_bytes()
    node.config.unlink()
    thief = Node(service=node.service, tpm=make_tpm("thief"), directory=node.directory, ak=node.ak)
    assert thief.run() == PENDING_APPROVAL
    assert not node.config.exists()
    assert operator.machine(machine["machine_id"])["status"] == "attested"
    assert len(operator.machines()) == len(known) + 2
