"""A machine whose TPM an SVSM runs: its report beside the quote, through the service."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import httpx
import pytest

from attestation.report_data import report_data
from attestation.wire import b64decode, b64encode
from tests.unit.service.conftest import Service, Starter
from tests.unit.service.node import SoftwareNode
from tests.unit.service.test_confidential_machines import code
from tests.unit.service.test_protocol_without_a_tpm import PROCESSOR, believing, ruled

pytestmark = pytest.mark.anyio


@pytest.fixture
async def service(start: Starter, tmp_path: Path) -> Service:
    """A service that believes the vendors of the test kit."""
    return await start(**believing(tmp_path))


def item(node: SoftwareNode, nonce: bytes, ek: bytes, **report: Any) -> dict[str, Any]:
    """Return what a module with a vTPM of *ek* says to the challenge of *node*."""
    manifest = ek[2:]
    told = report_data("sev-snp", nonce, node.machine_id, node.ak.spki_der())
    made = PROCESSOR.report(hashlib.sha512(told + manifest).digest(), **report)
    value = {"report": b64encode(made), "manifest": b64encode(manifest), "vek": b64encode(PROCESSOR.vek)}
    return {"media_type": "application/vnd.itl.svsm-vtpm", "value": value}


async def attested(
    service: Service, node: SoftwareNode, ek: bytes | None = None, **report: Any
) -> httpx.Response:
    """Attest with quote and report."""
    challenge = await service.challenge(node)
    nonce = b64decode(challenge["nonce"], "nonce")
    sent = item(node, nonce, ek or node.ek.tpm2b(), **report)
    return await service.post("/api/v1/attest", node.attestation(challenge, evidence=[sent]))


@pytest.mark.threat("T197")
async def test_the_machine_its_vtpm_and_its_processor_are_one(service: Service) -> None:
    """Seen, approved, then expected; a report over another EK, or by the operating system, is refused."""
    node = SoftwareNode()
    await service.admitted(node)
    assert (await attested(service, node)).status_code == 200
    seen = (await service.detail(node))["hardware"]
    assert (seen["chip"], seen["approved_chip"]) == (PROCESSOR.chip_id.hex(), None)
    await service.act(node, "approve-hardware", {"reason": "compared"})
    await ruled(service, "sev-snp")
    assert "svsm-vtpm" in (await service.challenge(node))["evidence"]
    assert (await attested(service, node)).status_code == 200
    assert (await service.detail(node))["trust"] == "verified"
    for wrong in ({"ek": SoftwareNode().ek.tpm2b()}, {"vmpl": 2}):
        refused = await attested(service, node, **wrong)
        assert (refused.status_code, code(refused)) == (403, "evidence-rejected")
    assert (await service.try_attest(node)).status_code == 403
    assert (await service.detail(node))["trust"] == "verified"
    assert (await attested(service, node, measurement=bytes(48))).status_code == 200
    assert (await service.detail(node))["trust"] == "failed"
