"""Statements: for one TPM, in answer to one request; and what agents of protocol 1 get instead (PROTOCOL §8)."""

from __future__ import annotations

import base64
import hashlib
from typing import Any

import pytest

from attestation.keys import verify_jwt
from attestation_service.settings import Settings
from tests.unit.service.conftest import Service, Starter
from tests.unit.service.node import SEALED, SoftwareNode

pytestmark = pytest.mark.anyio


def binding(node: SoftwareNode) -> dict[str, str]:
    return {
        "machine_id": node.machine_id,
        "ek_fingerprint": node.ek_fingerprint,
        "ak_name": node.ak.name.hex(),
    }


async def proven(service: Service, token: str, typ: str) -> dict[str, Any]:
    keys = (await service.get("/api/v1/service-keys")).json()
    claims = verify_jwt(token, keys, typ=typ)
    assert claims["exp"] - claims["iat"] == 300
    return claims


async def introduced(service: Service, node: SoftwareNode) -> dict[str, Any]:
    answer = await service.post("/api/v1/self-register", node.introduction())
    return node.activation(answer.json())


async def activate(service: Service, node: SoftwareNode, body: dict[str, Any]) -> Any:
    answer = await service.post(f"/api/v1/machines/{node.machine_id}/ak-activate", body)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_a_welcome_names_the_tpm_and_the_request(service: Service) -> None:
    """Status, and after the approval role and host name; without a nonce there is none."""
    node = SoftwareNode()
    body = await introduced(service, node)
    claims = await proven(service, (await activate(service, node, body))["welcome"], "itl-welcome+jwt")
    assert claims["binding"] == binding(node)
    assert claims["node_nonce"] == body["node_nonce"]
    assert claims["challenge_id"] == body["challenge_id"]
    assert (claims["status"], "role" in claims) == ("pending_approval", False)
    await service.act(node, "approve", {"role": "worker-app", "hostname": "w-1"})
    body = await introduced(service, node)
    claims = await proven(service, (await activate(service, node, body))["welcome"], "itl-welcome+jwt")
    assert (claims["status"], claims["role"], claims["hostname"]) == ("registered", "worker-app", "w-1")
    body = await introduced(service, node)
    assert "welcome" not in await activate(service, node, {**body, "node_nonce": None})


async def test_a_directive_and_its_delivery_name_each_other(service: Service) -> None:
    """And the TPM, and the request; the same bytes fetched again are signed for the new request."""
    node = SoftwareNode()
    await service.introduce(node)
    await service.act(node, "approve", {"role": "worker-app"})
    challenge = await service.challenge(node)
    evidence = node.attestation(challenge)
    answer = (await service.post("/api/v1/attest", evidence)).json()
    directive = await proven(service, answer["directive"], "itl-directive+jwt")
    assert directive["binding"] == binding(node)
    assert directive["node_nonce"] == evidence["node_nonce"]
    assert (directive["nonce"], directive["action"]) == (challenge["nonce"], "apply-config")
    fetched = []
    for nonce in ("A" * 43 + "=", "B" * 42 + "A="):
        headers = {"Accept": SEALED, "Itl-Node-Nonce": nonce}
        got = await service.get(f"/api/v1/config/{answer['config_token']}", headers=headers)
        claims = await proven(service, got.headers["Itl-Config-Signature"], "itl-config+jwt")
        assert (claims["binding"], claims["node_nonce"]) == (binding(node), nonce)
        assert claims["token_id"] == got.json()["token_id"] == directive["token_id"]
        assert claims["config_sha256"] == got.json()["config_sha256"]
        fetched.append(got.content)
    assert fetched[0] == fetched[1]


@pytest.mark.parametrize("nonce", ["", "A", "A" * 44, "A" * 42 + "B=", "A" * 43 + "=\n", "é" * 44])
async def test_a_nonce_is_32_bytes_in_base64(service: Service, nonce: str) -> None:
    """In its one spelling; in JSON and in the header."""
    node = SoftwareNode()
    await service.introduce(node)
    assert (await service.try_attest(node, node_nonce=nonce)).status_code == 422
    if nonce.isascii() and nonce.strip() == nonce and nonce:
        headers = {"Accept": SEALED, "Itl-Node-Nonce": nonce}
        assert (await service.get("/api/v1/config/x", headers=headers)).status_code == 422


@pytest.mark.threat("T134")
async def test_an_old_agent_is_seen_and_gets_neither_orders_nor_configurations(service: Service) -> None:
    """It attests, its lease runs, operators see it; what it would obey unasked is withheld, with words."""
    node = SoftwareNode()
    await service.introduce(node)
    assert (await service.try_attest(node, node_nonce=None)).status_code == 200
    await service.act(node, "approve", {"role": "worker-app"})
    for _ in range(2):
        answer = await service.try_attest(node, node_nonce=None)
        assert (answer.status_code, answer.json()["type"]) == (426, "urn:itl:problem:agent-too-old")
        assert "node_nonce" in answer.json()["detail"]
        assert answer.headers["Upgrade"] == "itl-node/2"
    detail = await service.detail(node)
    assert (detail["status"], detail["trust"]) == ("attested", "verified")
    assert "too old" in detail["configuration_not_delivered"]["why"]
    offered = await service.attest(node)
    refused = await service.get(f"/api/v1/config/{offered['config_token']}", headers={"Accept": SEALED})
    assert refused.status_code == 426
    await service.configured(node, offered)
    assert (await service.try_attest(node, node_nonce=None)).status_code == 200
    await service.act(node, "lock")
    assert (await service.try_attest(node, node_nonce=None)).status_code == 426


async def test_compatibility_with_old_agents_is_a_weakening(start: Starter) -> None:
    """Orders, deliveries and acknowledgements of protocol 1; warned of; new agents get statements all the same."""
    service = await start(compat_protocol_1=True)
    assert any("ITL_COMPAT_PROTOCOL_1" in text for text in Settings(compat_protocol_1=True).weakened())
    node = SoftwareNode()
    await service.introduce(node)
    await service.act(node, "approve", {"role": "worker-app"})
    answer = (await service.try_attest(node, node_nonce=None)).json()
    claims = await proven(service, answer["directive"], "itl-directive+jwt")
    assert (claims["machine_id"], "binding" in claims) == (node.machine_id, False)
    got = await service.get(f"/api/v1/config/{answer['config_token']}", headers={"Accept": SEALED})
    claims = await proven(service, got.headers["Itl-Config-Signature"], "itl-config+jwt")
    assert (claims["machine_id"], "binding" in claims) == (node.machine_id, False)
    older = _old_acknowledgement(node, answer["next_challenge"], answer["directive"])
    assert (await service.post(f"/api/v1/machines/{node.machine_id}/ack", older)).status_code == 200
    await service.act(node, "lock")
    answer = (await service.try_attest(node, node_nonce=None)).json()
    older = _old_acknowledgement(node, answer["next_challenge"], answer["directive"])
    assert (await service.post(f"/api/v1/machines/{node.machine_id}/ack", older)).status_code == 200
    await service.act(node, "unlock")
    assert (await service.try_attest(node, node_nonce=None)).json()["action"] == "none"
    answer = await service.attest(node)
    claims = await proven(service, answer["directive"], "itl-directive+jwt")
    assert (claims["binding"], claims["action"]) == (binding(node), "unlock")


def _old_acknowledgement(node: SoftwareNode, challenge: dict[str, Any], directive: str) -> dict[str, Any]:
    digest = hashlib.sha256(directive.encode()).digest()
    said = hashlib.sha256(base64.b64decode(challenge["nonce"]) + digest + b"done").digest()
    return {
        "nonce_id": challenge["nonce_id"],
        "directive_sha256": digest.hex(),
        "outcome": "done",
        **node.quote(challenge["pcr_selection"], said),
    }


async def test_an_acknowledgement_has_a_domain_of_its_own(service: Service) -> None:
    """Without its prefix it proves nothing, and the order stays."""
    node = SoftwareNode()
    await service.admitted(node)
    await service.act(node, "revoke", {"wipe": True})
    wipe = await service.attest(node)
    older = _old_acknowledgement(node, wipe["next_challenge"], wipe["directive"])
    assert (await service.post(f"/api/v1/machines/{node.machine_id}/ack", older)).status_code == 403
    assert (await service.detail(node))["wipe_pending"] is True


@pytest.mark.threat("T132")
async def test_an_unlock_is_ordered_until_it_is_acknowledged(service: Service) -> None:
    """Whatever the evidence shows; before any configuration; not after `done`, and again after `failed`."""
    node = SoftwareNode()
    await service.admitted(node)
    await service.act(node, "lock")
    await service.act(node, "unlock")
    actions = []
    for outcome in ("failed", None, "done"):
        answer = await service.attest(node)
        actions.append(answer["action"])
        if outcome is not None:
            ack = node.acknowledgement(answer["next_challenge"], answer["directive"], outcome)
            path = f"/api/v1/machines/{node.machine_id}/ack"
            assert (await service.post(path, ack)).status_code == 200
    assert actions == ["unlock"] * 3
    # The first configuration was never fetched.
    assert (await service.attest(node))["action"] == "apply-config"
    await service.act(node, "lock")
    await service.act(node, "unlock")
    await service.act(node, "lock")
    assert (await service.attest(node))["action"] == "lock"


@pytest.mark.threat("T133")
async def test_a_configuration_is_offered_until_it_is_applied(service: Service) -> None:
    """A lost answer, an expired token, a fetch that nobody heard of lose nothing; the machine's word ends it."""
    node = SoftwareNode()
    first = await service.admitted(node)
    second = await service.attest(node)
    assert [first["action"], second["action"]] == ["apply-config"] * 2
    assert first["config_token"] != second["config_token"]
    assert (await service.fetch(first["config_token"])).status_code == 410
    service.clock.advance(7200)
    third = await service.attest(node)
    assert third["action"] == "apply-config"
    assert (await service.fetch(third["config_token"])).status_code == 200
    fourth = await service.attest(node)
    assert fourth["action"] == "apply-config"
    await service.configured(node, fourth)
    assert (await service.attest(node))["action"] == "none"


@pytest.mark.threat("T133")
async def test_a_configuration_that_somebody_else_fetched_is_offered_again(service: Service) -> None:
    """A fetch says nothing of the machine: what it did not acknowledge is owed, whoever used its token up."""
    node = SoftwareNode()
    stolen = (await service.admitted(node))["config_token"]
    assert (await service.fetch(stolen)).status_code == 200
    again = await service.attest(node)
    assert again["action"] == "apply-config"
    assert (await service.detail(node))["redeliver_pending"] is True
    await service.configured(node, again)
    assert (await service.detail(node))["redeliver_pending"] is False
    assert (await service.attest(node))["action"] == "none"
