"""Extensions whose KEK is on a token or in a TPM: what is kept outlasts a restart, an exchange, an absent device."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from attestation.errors import SignerUnavailable
from attestation.keys import KeyOptions, create_kek
from attestation_extensions.disk_kms import server
from attestation_extensions.disk_kms.keeping import Keeping
from attestation_service import extensions
from attestation_testing import SoftwareTPM
from tests.fixtures.softhsm import RemoteHSM
from tests.fixtures.tpm import MakeTPM
from tests.unit.extensions import test_disk_kms as disks
from tests.unit.extensions import test_secret_vault as vaults
from tests.unit.service.conftest import Starter, migrated, start
from tests.unit.service.node import SoftwareNode

__all__ = ["migrated", "start"]

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


@pytest.fixture
def anyio_backend() -> str:
    """Run the asynchronous tests on asyncio."""
    return "asyncio"


@dataclass(frozen=True, kw_only=True)
class Device:
    """What holds a KEK.

    Args:
        uri: Of the KEK, which is made.
        settings: What the service needs besides to reach it.
        away: Takes the device away.
        back: Brings it back.
    """

    uri: str
    settings: dict[str, Any]
    away: Callable[[], object]
    back: Callable[[], object]


@pytest.fixture(
    params=[
        pytest.param("pkcs11", marks=pytest.mark.softhsm),
        pytest.param("tpm2", marks=pytest.mark.swtpm),
    ]
)
async def device(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Device]:
    """A token behind p11-kit, or a TPM."""
    if request.param == "pkcs11":
        hsm: RemoteHSM = request.getfixturevalue("remote_hsm")
        uri, options = hsm.uri("kek"), hsm.options
        create_kek(uri, options).close()
        modules = tuple(f"{name}={path}" for name, path in options.modules.items())
        yield Device(uri=uri, settings={"pkcs11_modules": modules}, away=hsm.kill, back=hsm.start)
        return
    make: MakeTPM = request.getfixturevalue("make_tpm")
    tpm: SoftwareTPM = make()
    uri = f"tpm2:path={tmp_path}/kek.tss2?tcti={tpm.uri}"
    create_kek(uri, KeyOptions()).close()
    yield Device(uri=uri, settings={}, away=tpm.stop, back=tpm.start)


@pytest.mark.threat("T223")
async def test_secrets_under_a_device(device: Device, start: Starter, tmp_path: Path) -> None:
    """Kept, read after a restart, refused in words while the device is away, and carried to another KEK."""
    service = await start(**vaults.settings(tmp_path, KEK=device.uri), **device.settings)
    node = SoftwareNode()
    await service.admitted(node, hostname="w-1")
    await vaults.made(service, node)
    again = await start(service.clock, **vaults.settings(tmp_path, KEK=device.uri), **device.settings)
    assert await vaults.value_of(await vaults.read_own(again, node), node) == vaults.CANARY.encode()
    device.away()
    away = await vaults.read_own(again, node)
    assert away.status_code == 503, away.text
    assert vaults.CANARY not in away.text
    with pytest.raises(extensions.ExtensionInvalid, match=r"secret_vault \(ITL_EXTENSIONS\) cannot begin: "):
        await start(service.clock, **vaults.settings(tmp_path, KEK=device.uri), **device.settings)
    device.back()
    assert await vaults.value_of(await vaults.read_own(again, node), node) == vaults.CANARY.encode()
    create_kek(f"file:{tmp_path}/next").close()
    uris = {"KEK": f"file:{tmp_path}/next", "PREVIOUS_KEKS": device.uri}
    moved = await start(service.clock, **vaults.settings(tmp_path, **uris), **device.settings)
    assert (await moved.operator("POST", f"{vaults.OWN}/rewrap")).json() == {"rewrapped": 1, "unreachable": 0}
    device.away()
    alone = await start(service.clock, **vaults.settings(tmp_path, KEK=f"file:{tmp_path}/next"))
    assert await vaults.value_of(await vaults.read_own(alone, node), node) == vaults.CANARY.encode()


@pytest.mark.threat("T246")
async def test_disk_keys_under_a_device(
    device: Device, start: Starter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sealed, and opened after a restart; while the device is away nobody gets one, and is told to come again."""
    kept: list[Keeping] = []

    async def stop(_seconds: float) -> None: ...

    async def serve(keeping: Keeping, *_: object) -> SimpleNamespace:
        kept.append(keeping)
        return SimpleNamespace(stop=stop)

    monkeypatch.setattr(server, "serve", serve)
    values = {
        "ITL_EXT_DISK_KMS_KEK": device.uri,
        "ITL_EXT_DISK_KMS_ADDRESS": "127.0.0.1:4050",
        "ITL_EXT_DISK_KMS_INSECURE": "true",
    }
    chosen = {"extensions": ("disk_kms",), "extension_values": values, **device.settings}
    site = disks.Site(await start(**chosen), kept[-1])
    _, board = await site.machine()
    blob = await site.seal(board)
    again = disks.Site(await start(site.service.clock, **chosen), kept[-1])
    device.away()
    for whose in (board, str(uuid.uuid4())):
        with pytest.raises(SignerUnavailable):
            await again.unseal(whose, blob)
    device.back()
    assert await again.unseal(board, blob) == disks.DISK_KEY
