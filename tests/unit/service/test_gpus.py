"""GPUs beside a TPM: asked for where a policy has rules, judged with the quote (CONFIDENTIAL.md §14)."""

from __future__ import annotations

from typing import Any

import pytest

from attestation.report_data import gpu_nonce
from attestation.wire import b64decode
from attestation_service.verifier.collateral import Collateral
from attestation_testing.tee.nvidia import SoftwareGPU
from tests.unit.service.conftest import Service
from tests.unit.service.node import SoftwareNode

pytestmark = pytest.mark.anyio

MEDIA_TYPE = "application/vnd.itl.nvidia-gpu"
GPUS = (SoftwareGPU(), SoftwareGPU(seed="gpu 1"))


@pytest.fixture(autouse=True)
def _under_a_test_root(monkeypatch: pytest.MonkeyPatch) -> None:
    shipped = Collateral.endorsements

    def endorsements(self: Collateral, tx: Any, kind: str, evidence: Any) -> Any:
        return GPUS[0].endorsements if kind == "gpu" else shipped(self, tx, kind, evidence)

    monkeypatch.setattr(Collateral, "endorsements", endorsements)


async def attested(
    service: Service, node: SoftwareNode, *gpus: SoftwareGPU, stale: bool = False
) -> tuple[int, dict[str, str]]:
    """Attest with measurements of *gpus*; return status and the newest result's checks, name -> outcome."""
    challenge = await service.challenge(node)
    nonce = gpu_nonce(bytes(32) if stale else b64decode(challenge["nonce"], "nonce"))
    items = [{"media_type": MEDIA_TYPE, "value": each.item(nonce)} for each in gpus]
    answer = await service.post("/api/v1/attest", node.attestation(challenge, evidence=items))
    page = (await service.operator("GET", f"/machines/{node.machine_id}/results")).json()["items"]
    return answer.status_code, {
        check["check"]: check["outcome"] for check in page[0]["checks"]
    } if page else {}


async def ruled(service: Service, **block: object) -> SoftwareNode:
    """Return an admitted machine whose cluster has a policy about GPUs."""
    node = SoftwareNode()
    await service.admitted(node)
    document = {"format": "itl-policy/2", "name": "gpus", "version": 1, "gpu": block}
    assert (await service.operator("POST", "/policies", document)).status_code == 201
    assigned = await service.operator("PUT", "/policies/assignments/fleet/*", {"policy": "gpus@1"})
    assert assigned.status_code == 200, assigned.text
    return node


async def test_a_policy_asks_for_them(service: Service) -> None:
    """The challenge names them; all are judged with the quote; a machine that sends none does not pass."""
    node = await ruled(service, driver_versions=["590.48.01"], arch=["BLACKWELL"])
    assert "nvidia-gpu" in (await service.challenge(node))["evidence"]
    status, told = await attested(service, node, *GPUS)
    assert (status, told["tpm-quote"], told["gpu-report"], told["gpu-driver"]) == (200, *["passed"] * 3)
    assert told["gpu-test-only"] == "flagged"
    assert (await service.detail(node))["trust"] == "verified"
    status, told = await attested(service, node)
    assert (status, told["evidence"]) == (200, "failed")
    assert (await service.detail(node))["trust"] == "failed"
    status, told = await attested(service, node, SoftwareGPU(driver="550.54.15"))
    assert (status, told["gpu-driver"]) == (200, "failed")


async def test_what_is_not_authentic_refuses_the_whole(service: Service) -> None:
    """Old measurements, one GPU twice."""
    node = await ruled(service, arch=["BLACKWELL"])
    assert (await attested(service, node, *GPUS, stale=True))[0] == 403
    assert (await attested(service, node, GPUS[0], GPUS[0]))[0] == 403
    assert (await attested(service, node, *GPUS))[0] == 200


async def test_where_no_policy_speaks_of_them(service: Service) -> None:
    """They are not looked at, and a machine has no hardware by them."""
    node = SoftwareNode()
    await service.admitted(node)
    assert "nvidia-gpu" not in (await service.challenge(node))["evidence"]
    status, told = await attested(service, node, *GPUS, stale=True)
    assert (status, "gpu-report" in told) == (200, False)
    assert (await service.detail(node))["hardware"] is None
