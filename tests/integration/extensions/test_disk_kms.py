"""Disk keys over gRPC, as Talos asks for them: a real service with two workers, machines with real TPMs."""

from __future__ import annotations

import base64
import ipaddress
import json
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from attestation_testing import CertificateAuthority
from tests.fixtures.kms import Talos, new_uuid
from tests.fixtures.machine import Machine
from tests.fixtures.service import Operator, ServiceProcess
from tests.fixtures.stores import NewDatabase
from tests.fixtures.tpm import MakeTPM
from tools.ports import free_port

pytestmark = [pytest.mark.slow, pytest.mark.swtpm, pytest.mark.timeout(180)]

CRYPTSETUP = shutil.which("cryptsetup")
DENIED = ("PERMISSION_DENIED", "no disk key is given")


@dataclass(frozen=True, kw_only=True)
class World:
    """A service that keeps disk keys."""

    folder: Path
    service: ServiceProcess
    operator: Operator
    address: str
    trust: Path

    def operates(self, *words: str, code: int = 0) -> str:
        """Run `attestation kms …`; return what it printed."""
        program = str(Path(sys.executable).with_name("attestation"))
        done = subprocess.run(
            [program, "-o", "json", "kms", *words],
            env={
                "PATH": "/usr/bin:/bin",
                "LANG": "C.UTF-8",
                "HOME": str(self.folder),
                "ITL_API_URL": self.service.url,
                "ITL_ADMIN_TOKEN_FILE": str(self.folder / "admin.token"),
            },
            capture_output=True,
            text=True,
            check=False,
            timeout=240,
        )
        assert done.returncode == code, done.stderr
        return done.stdout

    def talos(self, node_uuid: str) -> Talos:
        """Return a node that says this UUID."""
        return Talos(self.address, node_uuid, trust=self.trust)


def write_certificate(folder: Path) -> Path:
    """Write key and certificate of a server at 127.0.0.1; return the certificate's file, which is trusted."""
    key = ec.generate_private_key(ec.SECP256R1())
    (folder / "kms.key").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    name, now = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "kms")]), datetime.now(UTC)
    here = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now - timedelta(hours=1)).not_valid_after(now + timedelta(hours=1))
    builder = builder.add_extension(x509.SubjectAlternativeName([here]), critical=False)
    found = folder / "kms.pem"
    found.write_bytes(builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM))
    return found


@pytest.fixture
def world(tmp_path: Path, new_database: NewDatabase) -> Iterator[World]:
    """Two workers, one KEK, a certificate."""
    kek = tmp_path / "kek"
    kek.write_text(secrets.token_hex(32))
    kek.chmod(0o600)
    address, trust = f"127.0.0.1:{free_port()}", write_certificate(tmp_path)
    service = ServiceProcess(
        directory=tmp_path,
        workers=2,
        environment={
            "ITL_EXTENSIONS": "disk_kms",
            "ITL_EXT_DISK_KMS_ADDRESS": address,
            "ITL_EXT_DISK_KMS_KEK": f"file:{kek}",
            "ITL_EXT_DISK_KMS_TLS_CERTIFICATE": str(trust),
            "ITL_EXT_DISK_KMS_TLS_KEY": str(tmp_path / "kms.key"),
            "ITL_MAINTENANCE_SECONDS": "0.2",
        },
        server_url=new_database(),
    )
    service.start()
    operator = service.operator()
    token = tmp_path / "admin.token"
    token.write_text(service.admin_token)
    token.chmod(0o600)
    yield World(folder=tmp_path, service=service, operator=operator, address=address, trust=trust)
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


@dataclass(frozen=True, kw_only=True)
class Disk:
    """A LUKS2 volume in a file, handled as Talos does: the disk key in base64 is the passphrase, the blob a token."""

    file: Path

    def run(self, *words: str, given: bytes) -> subprocess.CompletedProcess[bytes]:
        """Run cryptsetup on it."""
        return subprocess.run(
            [str(CRYPTSETUP), *words, "--disable-locks", str(self.file)],
            input=given,
            capture_output=True,
            check=False,
            timeout=240,
        )

    def format(self, disk_key: bytes, blob: bytes) -> None:
        """Make it, with one slot; nothing of the key stays."""
        with self.file.open("wb") as made:
            made.truncate(32 << 20)
        cheap = ("--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000")
        made_ = self.run(
            "luksFormat", "-q", "--type", "luks2", *cheap, "--key-file", "-", given=_passphrase(disk_key)
        )
        assert made_.returncode == 0, made_.stderr
        data = {"sealedData": base64.b64encode(blob).decode()}
        token = {"type": "sideroKMS", "keyslots": ["0"], "userData": data}
        kept = self.run(
            "token", "import", "--token-id", "0", "--json-file", "-", given=json.dumps(token).encode()
        )
        assert kept.returncode == 0, kept.stderr

    def blob(self) -> bytes:
        """Return what Talos has opened at boot."""
        found: dict[str, Any] = json.loads(self.run("token", "export", "--token-id", "0", given=b"").stdout)
        return base64.b64decode(found["userData"]["sealedData"])

    def opens(self, disk_key: bytes) -> bool:
        """Return True if the disk opens with it; this kernel need not map it."""
        words = ("open", "--test-passphrase", "--key-file", "-")
        return self.run(*words, given=_passphrase(disk_key)).returncode == 0


def _tried(talos: Talos, blob: bytes) -> bytes | None:
    try:
        return talos.unseal(blob)
    except grpc.RpcError as e:
        if e.code() is not grpc.StatusCode.PERMISSION_DENIED:
            raise
        return None
    finally:
        talos.close()


def _passphrase(disk_key: bytes) -> bytes:
    return base64.b64encode(disk_key)


@pytest.mark.skipif(CRYPTSETUP is None, reason="needs cryptsetup: Debian's package cryptsetup-bin")
@pytest.mark.threat("T243", "T245")
def test_a_luks_disk_opens_where_it_should(
    world: World, make_tpm: MakeTPM, tpm_ca: CertificateAuthority, tmp_path: Path
) -> None:
    """Formatted, moved to another machine in vain, held, released by a command, once; its key replaced and retired."""
    tpms, boards, disk_key = (make_tpm(), make_tpm()), (new_uuid(), new_uuid()), secrets.token_bytes(32)
    talos, other = (world.talos(each) for each in boards)
    ids = []
    for tpm, board in zip(tpms, boards, strict=True):
        tpm.manufacture(tpm_ca)
        with tpm.node() as node:
            machine = Machine(node, world.operator.http, hw_uuid=board)
            machine.enrol()
            world.operator.approve(machine.machine_id)
            machine.attest()
            ids.append(machine.machine_id)
    disk = Disk(file=tmp_path / "state.img")
    disk.format(disk_key, talos.seal(disk_key))
    blob = disk.blob()
    assert disk.opens(talos.unseal(blob))
    assert not disk.opens(secrets.token_bytes(32))
    other.seal(secrets.token_bytes(32))  # it has a key of its own
    assert other.refused("Unseal", blob) == DENIED
    # Held, and released for one volume.
    world.operates("hold", ids[0])
    assert talos.refused("Unseal", blob) == DENIED
    (waits,) = json.loads(world.operates("waiting"))
    assert (waits["machine_id"], waits["source_ip"]) == (ids[0], "127.0.0.1")
    world.operates("release", ids[0], "--yes")
    # Several ask at the same time, of either worker: one of them gets it.
    with ThreadPoolExecutor(4) as pool:
        given = [
            each for each in pool.map(_tried, [world.talos(boards[0]) for _ in range(4)], [blob] * 4) if each
        ]
    assert len(given) == 1
    assert disk.opens(given[0])
    assert talos.refused("Unseal", blob) == DENIED
    world.operates("unhold", ids[0], "--yes")
    assert json.loads(world.operates("holds")) == []
    # Another key: the disk opens as before, until the old one is retired.
    (old,) = json.loads(world.operates("keys", ids[0]))
    assert len(json.loads(world.operates("rotate", ids[0]))) == 2
    assert json.loads(world.operates("rewrap")) == {"rewrapped": 0, "unreachable": 0}
    assert disk.opens(talos.unseal(blob))
    world.operates("retire", ids[0], old["key_id"], "--yes")
    assert talos.refused("Unseal", blob) == DENIED
    assert world.operator.audit_is_valid()
    assert disk_key.hex() not in world.service.log()
    for each in (talos, other):
        each.close()


def test_it_is_asked_by_tls_and_in_its_own_words(world: World) -> None:
    """Without TLS there is no answer; what is no request of the protocol is told so, whoever sends it."""
    plain, talos = Talos(world.address, new_uuid()), world.talos("not-a-uuid")
    assert plain.refused("Seal", bytes(32))[0] == "UNAVAILABLE"
    assert talos.refused("Seal", bytes(32)) == ("INVALID_ARGUMENT", "not a request of this protocol")
    assert talos.refused("Unseal", bytes(2000))[0] == "RESOURCE_EXHAUSTED"  # longer than gRPC lets in
    for each in (plain, talos):
        each.close()
