"""A CA whose keys are in a TPM (swtpm): made once, found again, away and back, for several workers."""

from __future__ import annotations

import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from anyio import to_thread
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from attestation.errors import SignerUnavailable
from attestation_service.authority import Issued
from attestation_testing import SoftwareTPM
from tests.unit.service.ca_world import World

pytestmark = [pytest.mark.swtpm, pytest.mark.anyio]

PLACES = {"handle": "handle=0x81010010", "nv": "nv=0x01800010", "path": "path={folder}/keys"}


@pytest.fixture(params=PLACES)
def world(
    request: pytest.FixtureRequest, tmp_path: Path, migrated: Path, blank_tpm: SoftwareTPM
) -> Iterator[World]:
    """A service's folder without a CA, which shall have its keys in the TPM."""
    shutil.copy(migrated, tmp_path / "machines.db")
    (tmp_path / "auth").write_bytes(b"correct horse")
    place = PLACES[request.param].format(folder=tmp_path)
    key = f"tpm2:{place}?tcti={blank_tpm.uri}&auth-source=file:{tmp_path}/auth"
    made = World(tmp_path, changed={"enrollment_ca_key": key})
    yield made
    made.close()


def verify(world: World, issued: Issued) -> None:
    """Ask OpenSSL about a certificate and its chain, at the time that the CA's clock tells."""
    directory, at = world.directory, str(int(world.clock.now().timestamp()))
    for name, der in (("leaf", issued.certificate), ("ca", world.active().certificate)):
        assert der is not None
        (directory / name).write_bytes(x509.load_der_x509_certificate(der).public_bytes(Encoding.PEM))
    said = subprocess.run(
        ["openssl", "verify", "-attime", at, "-CAfile", directory / "ca", directory / "leaf"],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert said.returncode == 0, said.stderr


async def test_a_ca_in_a_tpm(world: World, blank_tpm: SoftwareTPM) -> None:
    """Made at the first start, found at the next; OpenSSL verifies; a TPM that was away is no reason to restart."""
    (issued,) = await world.issue(await to_thread.run_sync(world.open))
    verify(world, issued)
    (row,) = world.issuers()
    assert row.key_origin == "tpm"
    again = await to_thread.run_sync(world.open)
    assert world.issuers() == (row,)
    verify(world, (await world.issue(again))[0])
    blank_tpm.stop()
    with pytest.raises(SignerUnavailable):
        await world.issue(again)
    blank_tpm.start()
    verify(world, (await world.issue(again))[0])


def test_workers_that_start_together(world: World) -> None:
    """Three with a database connection each share one TPM that serves one client at a time: one CA."""
    others = [World(world.directory, world.clock, changed=world.changed) for _ in range(3)]
    failed: list[BaseException] = []

    def start(each: World) -> None:
        try:
            each.open()
        except BaseException as e:
            failed.append(e)

    threads = [threading.Thread(target=start, args=(each,)) for each in others]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for each in others:
        each.close()
    assert failed == []
    assert [issuer.state for issuer in world.issuers()] == ["active"]
