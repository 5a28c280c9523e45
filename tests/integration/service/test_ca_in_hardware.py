"""CAs whose keys never leave a token or a TPM: made, opened again, rotated, and what they signed verifies."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography import x509

from attestation.store import Tx
from attestation_service.authority import Authority, creation, rotation
from attestation_testing import SoftwareTPM
from tests.fixtures.softhsm import SoftHSM
from tests.unit.service.ca_world import World
from tests.unit.service.conftest import anyio_backend, migrated  # noqa: F401 -- fixtures

pytestmark = pytest.mark.anyio


@pytest.fixture
def world(tmp_path: Path, migrated: Path) -> Iterator[World]:  # noqa: F811
    """A service's folder without a CA."""
    shutil.copy(migrated, tmp_path / "machines.db")
    made = World(tmp_path, changed={"enrollment_ca_unencrypted": False})
    yield made
    made.close()


async def life(world: World, origin: str) -> None:
    """Make, issue, start again, rotate, issue, retire: every key in its own place, every certificate verifies."""
    first, second = [await asyncio.to_thread(world.open) for _ in range(2)]
    leaves = [*await world.issue(first), *await world.issue(second)]
    step(world, first, "prepare")
    await first.in_thread(lambda: creation.ensure(first.maker, coming=True))
    step(world, first, "activate")
    leaves += await world.issue(first)
    keys = {each.issuer_id: each for each in world.issuers()}
    assert [each.state for each in keys.values()] == ["retiring", "active"]
    assert {each.key_origin for each in keys.values()} == {origin}
    assert len({each.key_uri for each in keys.values()}) == 2
    for leaf in leaves:
        issuer = keys[leaf.issuer_id]
        assert issuer.certificate is not None
        x509.load_der_x509_certificate(leaf.certificate).verify_directly_issued_by(
            x509.load_der_x509_certificate(issuer.certificate)
        )
    assert len({leaf.issuer_id for leaf in leaves}) == 2
    await first.self_test()
    assert first.health == "ok"
    # Another process, later: both keys are found again, the one that ceased for its lists.
    again = await asyncio.to_thread(world.open)
    assert await again.self_test() == {}


def step(world: World, authority: Authority, name: rotation.Step) -> None:
    """Take a step of a rotation."""
    settings, at = world.settings(), world.clock.now()

    def work(tx: Tx) -> None:
        keys = rotation.keys_of(tx, "machine", "ecdsa-p384", settings)
        rotation.check(tx, keys, name, force=True, settings=settings, at=at)
        rotation.take(tx, authority.maker, keys, name, at)

    world.store.write_sync(work)


@pytest.mark.softhsm
async def test_in_a_token(world: World, softhsm: SoftHSM) -> None:
    """Two keys with labels of their own, made inside, and nothing in the folder."""
    world.changed["enrollment_ca_key"] = (
        f"pkcs11:token=hsm?module-name=softhsm&pin-source=file:{softhsm.pin_file}"
    )
    world.changed["pkcs11_modules"] = (f"softhsm={softhsm.module}",)
    await life(world, "generated")
    assert softhsm.tool("--list-objects").count("Private Key Object") == 2
    assert list(world.directory.glob("ca/itl-*")) == []
    world.close()


@pytest.mark.swtpm
@pytest.mark.parametrize("where", ["path", "handle", "nv"])
async def test_in_a_tpm(world: World, blank_tpm: SoftwareTPM, where: str) -> None:
    """As wrapped files, persistent objects or in NV memory."""
    place = {"path": f"{world.directory}/keys", "handle": "0x81010010", "nv": "0x01800010"}[where]
    (world.directory / "keys").mkdir()
    world.changed["enrollment_ca_key"] = f"tpm2:{where}={place}?tcti={blank_tpm.uri}"
    await life(world, "tpm")
    assert len(list(world.directory.glob("keys/*.tss2"))) == (2 if where == "path" else 0)
    world.close()
