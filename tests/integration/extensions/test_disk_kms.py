"""Disk keys over gRPC, as Talos asks for them: a real service with two workers, machines with real TPMs."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from attestation_testing import CertificateAuthority
from tests.fixtures.kms import Talos, new_uuid
from tests.fixtures.machine import Machine
from tests.fixtures.ports import free_port
from tests.fixtures.service import Operator, ServiceProcess
from tests.fixtures.stores import NewDatabase
from tests.fixtures.tpm import MakeTPM

pytestmark = [pytest.mark.slow, pytest.mark.swtpm, pytest.mark.timeout(180)]

DENIED = ("PERMISSION_DENIED", "no disk key is given")


@dataclass(frozen=True, kw_only=True)
class World:
    """A service that keeps disk keys."""

    service: ServiceProcess
    operator: Operator
    address: str

    def talos(self, node_uuid: str) -> Talos:
        """Return a node that says this UUID."""
        return Talos(self.address, node_uuid)


@pytest.fixture
def world(tmp_path: Path, new_database: NewDatabase) -> Iterator[World]:
    """Two workers, one KEK, no TLS: the tests of TLS have their own."""
    kek = tmp_path / "kek"
    kek.write_text(secrets.token_hex(32))
    kek.chmod(0o600)
    address = f"127.0.0.1:{free_port()}"
    service = ServiceProcess(
        directory=tmp_path,
        workers=2,
        environment={
            "ITL_EXTENSIONS": "disk_kms",
            "ITL_EXT_DISK_KMS_ADDRESS": address,
            "ITL_EXT_DISK_KMS_KEK": f"file:{kek}",
            "ITL_EXT_DISK_KMS_INSECURE": "true",
            "ITL_MAINTENANCE_SECONDS": "0.2",
        },
        server_url=new_database(),
    )
    service.start()
    operator = service.operator()
    yield World(service=service, operator=operator, address=address)
    operator.http.close()
    service.kill()
    print(service.log())


def test_a_disk_key_goes_to_the_machine_that_has_just_attested(
    world: World, make_tpm: MakeTPM, tpm_ca: CertificateAuthority
) -> None:
    """Sealed, opened by whichever worker; not for a stranger, not before it has attested, not when it is locked."""
    tpm, uuid, disk_key = make_tpm(), new_uuid(), secrets.token_bytes(32)
    tpm.manufacture(tpm_ca)
    talos, stranger = world.talos(uuid), world.talos(new_uuid())
    with tpm.node() as node:
        machine = Machine(node, world.operator.http, hw_uuid=uuid)
        machine.enrol()
        assert talos.refused("Seal", disk_key) == DENIED
        world.operator.approve(machine.machine_id)
        assert talos.refused("Seal", disk_key) == DENIED
        machine.attest()
        blob = talos.seal(disk_key)
        assert disk_key not in blob
        for _ in range(6):  # either worker
            fresh = world.talos(uuid)
            assert fresh.unseal(blob) == disk_key
            fresh.close()
        assert stranger.refused("Unseal", blob) == DENIED
        world.operator.act(machine.machine_id, "lock", reason="stolen")
        assert talos.refused("Unseal", blob) == DENIED
    told = world.operator.audit(machine_id=machine.machine_id)
    assert [e["action"] for e in told if e["action"].startswith("kms")][-2:] == ["kms_unseal", "kms_seal"]
    for each in (talos, stranger):
        each.close()
