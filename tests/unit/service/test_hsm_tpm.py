"""Evidence of a TPM for a key: by the attestation key of a machine of the cluster, and by what that machine is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.unit.evidence import test_hsm_key as hsm_kit
from tests.unit.service import hsm_requests as hsm
from tests.unit.service.conftest import Service, Starter
from tests.unit.service.node import SoftwareNode
from tests.unit.service.test_hsm_quotes import Judge, bundle, envelope, judge, nonce, put, stepped

pytestmark = pytest.mark.anyio

__all__ = ["judge"]


@pytest.fixture
async def service(start: Starter) -> Service:
    """A service that knows one cluster."""
    return await hsm.serving(start)


async def judged(service: Service, name: str, uid: str = "qa-1") -> dict[str, Any]:
    """Have a certification by the attestation key of that Name judged."""
    fresh = await nonce(service, evidence_type="tpm-certify", ak_name=name)
    answer = await put(service, envelope(service, fresh), uid)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def test_the_key_of_an_attested_machine_is_known(service: Service, judge: Judge) -> None:
    """The judge gets its AK and EK; and it gets none where the Name is nobody's, which stays open."""
    node = SoftwareNode()
    await service.admitted(node)
    found = await judged(service, node.ak.name.hex())
    assert found["verdict"] == "verified"
    assert found["checks"][-1] == {"name": "quote-machine", "outcome": "pass", "detail": ""}
    unknown = await judged(service, "000b" + "ab" * 32, "qa-2")
    assert (unknown["verdict"], unknown["message"]) == ("indeterminate", "quote-machine")
    known, nobody = judge.cases
    assert known.ak is not None
    assert known.ak.name == node.ak.name
    assert known.ek is not None
    assert (nobody.ak, nobody.ek) == (None, None)


@pytest.mark.threat("T292")
@pytest.mark.usefixtures("judge")
async def test_a_machine_that_has_not_attested_leaves_it_open(service: Service) -> None:
    """Activated is not attested; once it has, and for as long as that holds, the same evidence is good."""
    node = SoftwareNode()
    await service.introduce(node)
    await service.act(node, "approve", {"role": "worker-app"})
    fresh = await nonce(service, evidence_type="tpm-certify", ak_name=node.ak.name.hex())
    spec = envelope(service, fresh)
    assert (await put(service, spec)).json()["verdict"] == "indeterminate"
    await service.attest(node)
    service.clock.advance(86_000)
    stale = envelope(service, await nonce(service, evidence_type="tpm-certify", ak_name=node.ak.name.hex()))
    assert (await put(service, stale, "qa-2")).json()["verdict"] == "indeterminate"
    await service.attest(node)
    assert (await put(service, stale, "qa-2")).json()["verdict"] == "verified"


@pytest.mark.threat("T292")
@pytest.mark.usefixtures("judge")
async def test_a_locked_machine_vouches_for_no_key(service: Service) -> None:
    """Nor is a bundle accepted for evidence that was verified before it was locked."""
    node = SoftwareNode()
    await service.admitted(node)
    assert (await judged(service, node.ak.name.hex()))["verdict"] == "verified"
    await service.act(node, "lock")
    found = await judged(service, node.ak.name.hex(), "qa-2")
    assert (found["verdict"], found["message"]) == ("failed", "quote-machine")
    answer = await stepped(service, "bundle-accepted", **bundle())
    assert (answer.status_code, hsm.code(answer)) == (409, "hsm-differs")


@pytest.mark.threat("T292")
@pytest.mark.usefixtures("judge")
async def test_a_machine_of_another_cluster_vouches_for_none_here(service: Service) -> None:
    """What is attested elsewhere is not this cluster's to name."""
    node = SoftwareNode()
    await service.admitted(node, cluster_id="other")
    assert (await judged(service, node.ak.name.hex()))["verdict"] == "indeterminate"


async def test_other_evidence_asks_for_no_machine(service: Service, judge: Judge) -> None:
    """The Name of an attestation key is nothing to an enclave."""
    await put(service, envelope(service, await nonce(service, ak_name="000b" + "ab" * 32)))
    assert judge.cases[0].ak is None
    (told,) = await service.audit(action="hsm_quote_judged")
    assert "verified" in told["detail"]


async def test_roots_of_makers_are_those_of_the_setting(start: Starter, judge: Judge, tmp_path: Path) -> None:
    """Evidence of an HSM is judged under them; without the setting under none."""
    (root,) = hsm_kit.ROOTS
    (tmp_path / "maker.der").write_bytes(root.der)
    for uid, folder, pinned in (("qa-1", None, []), ("qa-2", tmp_path, [root.sha256])):
        service = await hsm.serving(start, hsm_vendor_dir=folder)
        await put(service, envelope(service, await nonce(service, evidence_type="hsm-x509")), uid)
        assert [each.sha256 for each in judge.cases[-1].endorsements] == pinned
