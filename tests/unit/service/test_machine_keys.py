"""Where the keys of a machine stand, as operators see it; never a key, nonce or credential."""

from __future__ import annotations

import json

import pytest

from tests.unit.service.conftest import Service
from tests.unit.service.node import SoftwareNode
from tests.unit.service.test_registration import code

pytestmark = pytest.mark.anyio


async def test_keys_are_told_through_their_life(service: Service) -> None:
    """Proven; asked for anew; reset, with the old one remembered; nothing that answers a challenge."""
    node = SoftwareNode()
    await service.introduce(node)
    path = f"/machines/{node.machine_id}/keys"
    first = (await service.operator("GET", path)).json()
    detail = await service.detail(node)
    assert first["ak_name"] == detail["ak_name"] is not None
    assert (first["ek_fingerprint"], first["ak_activated_at"]) == (
        detail["ek_fingerprint"],
        detail["ak_activated_at"],
    )
    assert (first["earlier"], first["activations"], first["ek_alternatives"]) == ([], [], [])

    answer = await service.post("/api/v1/self-register", node.introduction())
    asked = (await service.operator("GET", path)).json()
    assert [set(each) for each in asked["activations"]] == [{"issued_at", "expires_at"}]
    for secret in ("challenge_id", "credential_blob", "encrypted_secret"):
        assert answer.json()["activation"][secret] not in json.dumps(asked)
    service.clock.advance(3600)
    assert (await service.operator("GET", path)).json()["activations"] == []

    await service.act(node, "ak-reset", {"reason": "reinstalled"})
    reset = (await service.operator("GET", path)).json()
    assert (reset["ak_name"], reset["ak_activated_at"]) == (None, None)
    assert [(b["ak_name"], b["machine_id"]) for b in reset["earlier"]] == [
        (first["ak_name"], node.machine_id)
    ]


async def test_keys_of_nobody(service: Service) -> None:
    """A machine that does not exist is 404; without a login nothing is told."""
    path = "/machines/7f3ad3ac-0f0e-4c55-9d4a-3f6f0e1b2c3d/keys"
    assert code(await service.operator("GET", path)) == "machine-unknown"
    assert (await service.get(f"/api/v1{path}")).status_code == 401
