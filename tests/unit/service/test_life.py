"""The life of a machine over HTTP: introduced, approved, attested, configured, locked, revoked, wiped."""

from __future__ import annotations

import pytest

from attestation.keys import verify_jwt
from tests.unit.service.conftest import CANARY, Service
from tests.unit.service.node import SoftwareNode

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("rsa_ek", [True, False], ids=["rsa", "ecc"])
async def test_from_nothing_to_a_sealed_config(service: Service, rsa_ek: bool) -> None:
    """A machine introduces itself, is approved, attests and opens its configuration; nobody else learns it."""
    node = SoftwareNode(rsa_ek=rsa_ek)
    activated = await service.introduce(node)
    assert activated["status"] == "pending_approval"
    assert "config_token" not in activated
    assert (await service.attest(node))["action"] == "none"
    approved = await service.act(
        node, "approve", {"role": "worker-app", "hostname": "w-1", "assigned_ip": "10.0.0.11/24"}
    )
    assert approved["status"] == "registered"
    answer = await service.attest(node)
    assert (answer["status"], answer["action"]) == ("attested", "apply-config")
    fetched = await service.fetch(answer["config_token"])
    assert fetched.status_code == 200
    assert CANARY not in fetched.text
    config = node.open(fetched.json()).decode()
    assert CANARY in config
    assert 'hostname: "w-1"' in config
    assert '"10.0.0.11/24"' in config
    # The same bytes again within the window, then no more.
    assert (await service.fetch(answer["config_token"])).content == fetched.content
    service.clock.advance(301)
    assert (await service.fetch(answer["config_token"])).status_code == 410


async def test_directives_verify_and_wipe_is_acknowledged(service: Service) -> None:
    """Lock and wipe reach the machine signed and bound to its nonce; only an authentic ack clears the wipe."""
    node = SoftwareNode()
    await service.admitted(node)
    keys = (await service.get("/api/v1/service-keys")).json()
    await service.act(node, "lock", {"reason": "stolen"})
    challenge = await service.challenge(node)
    locked = (await service.post("/api/v1/attest", node.attestation(challenge))).json()
    assert (locked["status"], locked["action"]) == ("locked", "lock")
    claims = verify_jwt(locked["directive"], keys, typ="itl-directive+jwt")
    assert claims["nonce"] == challenge["nonce"]
    assert (claims["binding"]["machine_id"], claims["action"]) == (node.machine_id, "lock")
    await service.act(node, "revoke", {"wipe": True})
    wipe = await service.attest(node)
    assert (wipe["status"], wipe["action"]) == ("revoked", "wipe")
    detail = await service.detail(node)
    assert (detail["wipe_pending"], detail["wiped_at"]) == (True, None)
    ack = node.acknowledgement(wipe["next_challenge"], wipe["directive"])
    done = await service.post(f"/api/v1/machines/{node.machine_id}/ack", ack)
    assert done.status_code == 200, done.text
    detail = await service.detail(node)
    assert detail["wipe_pending"] is False
    assert detail["wiped_at"] is not None
    assert (await service.attest(node))["action"] == "none"
    assert (await service.operator("DELETE", f"/machines/{node.machine_id}")).status_code == 204
    actions = [entry["action"] for entry in await service.audit(machine_id=node.machine_id)]
    assert actions[:4] == ["delete", "attest", "wipe_ack", "attest"] or actions[0] == "delete"
    assert (await service.operator("GET", "/audit/verify")).json()["valid"] is True


async def test_one_round_trip_in_steady_state(service: Service) -> None:
    """The challenge of the last answer is good for the next; nothing but the lease changes."""
    node = SoftwareNode()
    answer = await service.admitted(node)
    await service.configured(node, answer)
    answer = (await service.post("/api/v1/attest", node.attestation(answer["next_challenge"]))).json()
    assert answer["action"] == "none"
    before = len(await service.audit())
    for _ in range(3):
        service.clock.advance(45)
        response = await service.post("/api/v1/attest", node.attestation(answer["next_challenge"]))
        assert response.status_code == 200, response.text
        answer = response.json()
        assert (answer["status"], answer["action"]) == ("attested", "none")
        assert "directive" not in answer
        assert "attestation_result" not in answer
    assert len(await service.audit()) == before
    assert (await service.detail(node))["trust"] == "verified"
