"""Configurations whose KEK is on a token or in a TPM: kept, delivered by another worker, and back with the device."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.keys.test_kek_in_extensions import Device, device
from tests.unit.service.conftest import CANARY, Starter, migrated, start
from tests.unit.service.node import SoftwareNode
from tests.unit.service.test_configurations import WORKER, activated, delivered, imported
from tests.unit.service.test_registration import code

__all__ = ["device", "migrated", "start"]

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


@pytest.fixture
def anyio_backend() -> str:
    """Run the asynchronous tests on asyncio."""
    return "asyncio"


async def test_configurations_under_a_device(device: Device, start: Starter, tmp_path: Path) -> None:
    """While it is away a worker that starts serves all else, and says what it lacks; then it delivers by itself."""
    chosen = {"tpm_ca_bundle_dir": start.bundle(), "config_kek": (device.uri,), **device.settings}
    service = await start(**chosen)
    node = SoftwareNode()
    await service.admitted(node, hostname="w-1")
    await activated(service, await imported(service))
    assert CANARY in await delivered(service, node)
    device.away()
    again = await start(service.clock, **chosen)
    await again.act(node, "redeliver")
    token = (await again.attest(node))["config_token"]
    answer = await again.fetch(token)
    assert answer.status_code == 503, answer.text
    assert code(answer) in ("signer-unavailable", "configuration-unreadable")
    assert CANARY not in answer.text
    away = await again.operator("POST", f"{WORKER}/versions", {"document": "machine: {}\n"})
    assert away.status_code == 503
    device.back()
    assert CANARY in node.open((await again.fetch(token)).json()).decode()
    # A worker that has opened it asks no device for another machine.
    device.away()
    assert CANARY in await delivered(service, node)
