"""Who is told of which keys, and signed by which (docs/adr/0046)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from attestation.keys import KEYS_TYP, key_set_sha256, thumbprints, verify_jwt
from attestation_service.settings import Settings
from tests.unit.service.conftest import Service, Starter
from tests.unit.service.node import SoftwareNode

pytestmark = pytest.mark.anyio


def uri(directory: Path, name: str) -> str:
    return f"file:{directory / name}.pem"


async def acknowledge(service: Service, node: SoftwareNode, digest: bytes, outcome: str = "done") -> int:
    """Acknowledge a key set as the agent does: by its digest."""
    directive: dict[str, Any] = {"directive_sha256": digest.hex()}
    body = node.acknowledgement(await service.challenge(node), "", outcome, digest=digest)
    answer = await service.post(f"/api/v1/machines/{node.machine_id}/ack", body | directive)
    return answer.status_code


async def test_nobody_is_told_of_keys_that_do_not_change(service: Service) -> None:
    """In steady state nothing is signed; an acknowledgement nobody asked for does no harm."""
    node = SoftwareNode()
    activated = await service.introduce(node)
    assert "next_keys" not in activated
    assert "next_keys" not in await service.attest(node)
    digest = service.resources.signer.sha256
    assert digest == key_set_sha256(thumbprints(activated["service_keys"]))
    assert await acknowledge(service, node, bytes(32)) == 409


async def test_a_change_is_told_until_it_is_acknowledged(start: Starter) -> None:
    """In every status, at activation and attestation, for this TPM and request; not to old agents."""
    service = await start(service_key_next=uri(start.directory, "next"))
    node = SoftwareNode()
    activated = await service.introduce(node)
    shown = (await service.get("/api/v1/service-keys")).json()
    active = {"keys": shown["keys"][:1]}
    assert len(shown["keys"]) == 2
    answer = await service.attest(node)
    for token in (activated["next_keys"], answer["next_keys"]):
        claims = verify_jwt(token, active, typ=KEYS_TYP)
        assert claims["keys"] == shown
        assert claims["binding"]["ek_fingerprint"] == node.ek_fingerprint
    assert (await service.attest(node))["next_keys"]
    assert "next_keys" not in await service.attest(node, node_nonce=None)
    digest = key_set_sha256(thumbprints(shown))
    assert await acknowledge(service, node, digest, "failed") == 409
    assert (await service.attest(node))["next_keys"]
    entries = len(await service.audit())
    assert [await acknowledge(service, node, digest) for _ in range(2)] == [200, 200]
    assert len(await service.audit()) == entries
    assert "next_keys" not in await service.attest(node)
    stats = (await service.operator("GET", "/stats")).json()
    assert stats["service_keys_pinned"] == 1
    rejected = SoftwareNode()
    await service.introduce(rejected)
    await service.act(rejected, "reject", {"reason": "not ours"})
    assert await acknowledge(service, rejected, digest) == 403


async def test_the_key_before_tells_of_its_successor_and_signs_nothing_else(start: Starter) -> None:
    """Machines that were away know no other."""
    old = uri(start.directory, "old")
    await start(service_key=old)
    service = await start(service_key=uri(start.directory, "new"), service_key_previous=old)
    shown = service.resources.signer.jwks()["keys"]
    node = SoftwareNode()
    activated = await service.introduce(node)
    verify_jwt(activated["next_keys"], {"keys": shown[1:]}, typ=KEYS_TYP)
    verify_jwt(activated["welcome"], {"keys": shown[:1]}, typ="itl-welcome+jwt")


@pytest.mark.parametrize(
    "chosen",
    [
        {"service_key_next": "file:/a", "service_key_previous": "file:/b"},
        {"service_key": "file:/a", "service_key_next": "file:/a"},
        {"service_key": "file:/a", "service_key_previous": "file:/a"},
    ],
)
def test_one_change_at_a_time(chosen: dict[str, Any]) -> None:
    """And never into itself."""
    with pytest.raises(ValueError, match="ITL_SERVICE_KEY_NEXT"):
        Settings(**chosen)
