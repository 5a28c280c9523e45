"""Machines without a TPM (PROTOCOL §9): introduced, proven, admitted, attested, configured, acknowledged."""

from __future__ import annotations

import pytest

from attestation.appraisal import KINDS
from attestation_service.attest.kinds import SIDES, hardware, signs
from tests.unit.service.conftest import CANARY, Service
from tests.unit.service.tee import FAKE, MEDIA_TYPE, Guest

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def _with_hardware(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KINDS, FAKE.name, FAKE)
    monkeypatch.setitem(SIDES, FAKE.name, hardware(FAKE.name, MEDIA_TYPE, signs("sev-snp")))
    monkeypatch.setattr(FAKE, "launches", frozenset())


async def introduced(service: Service, guest: Guest, **members: object) -> dict[str, object]:
    """Introduce and prove *guest*."""
    route = "register" if "registration_token" in members else "self-register"
    answer = await service.post(f"/api/v1/{route}", guest.introduction(**members))
    assert answer.status_code == 200, answer.text
    assert answer.json().keys() == {"machine_id", "status", "role", "message", "challenge"}
    answer = await service.post(
        f"/api/v1/machines/{answer.json()['machine_id']}/tee-activate", guest.activation(answer.json())
    )
    assert answer.status_code == 200, answer.text
    found: dict[str, object] = answer.json()
    return found


async def test_from_the_introduction_to_the_configuration(service: Service) -> None:
    """As a machine with a TPM, by its hardware and its subject key."""
    guest = Guest()
    answer = await introduced(service, guest)
    assert answer["status"] == "pending_approval"
    assert answer["ak_accepted"] is True
    assert "welcome" in answer
    detail = await service.detail(guest)
    assert (detail["ek_source"], detail["ek_fingerprint"]) == ("sev-snp", guest.fingerprint)
    assert detail["hardware"]["chip"] == guest.chip.hex()
    assert detail["hardware"]["approved_chip"] is None
    challenge = await service.challenge(guest)
    assert (challenge["pcr_selection"], challenge["evidence"]) == ({}, ["sev-snp"])
    # Waiting: judged, told, and nothing follows.
    told = await service.attest(guest)
    assert (told["action"], told["status"]) == ("none", "pending_approval")
    detail = await service.act(guest, "approve", {"role": "worker-app"})
    assert detail["hardware"]["approved_chip"] == guest.chip.hex()
    told = await service.attest(guest)
    assert (told["status"], told["action"]) == ("attested", "apply-config")
    fetched = await service.fetch(told["config_token"])
    assert fetched.status_code == 200, fetched.text
    envelope = fetched.json()
    assert envelope["format"] == "tee-p384-aes256gcm-v1"
    assert envelope.keys() == {
        *("format", "machine_id", "token_id", "epk", "iv", "ciphertext", "config_sha256")
    }
    assert CANARY.encode() in guest.open(envelope)
    await service.acknowledge(guest, told)
    detail = await service.detail(guest)
    assert (detail["trust"], detail["redeliver_pending"]) == ("verified", False)
