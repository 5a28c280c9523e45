"""A certified attestation key makes a machine `ak-certified`: fresh, for one machine, as long as its CA is believed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from attestation.evidence import ak_certificate
from attestation.tpm import Hierarchy, qualified_name_of_primary
from attestation.wire import b64decode, b64encode
from attestation_service.process import maintenance
from attestation_testing.ak_certificates import AKCertificateOptions, AKDefect, make_ak_certificate
from attestation_testing.certificates import CertificateAuthority
from attestation_testing.software_keys import SoftwareAK
from tests.fixtures.vendor import vouched, write_bundle
from tests.unit.service.conftest import HeldClock, Service, Starter
from tests.unit.service.node import SoftwareNode

pytestmark = pytest.mark.anyio

AT = HeldClock().at
ROOT = CertificateAuthority("Provider Root", seed=1)
ISSUER = CertificateAuthority("Provider Issuer", seed=2, parent=ROOT)
STRANGER = CertificateAuthority("Stranger", seed=3)
IAK = SoftwareAK(seed=71)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the provider's root."""
    made = tmp_path / "ak-cas"
    made.mkdir()
    (made / "provider.der").write_bytes(ROOT.certificate)
    return made


def showing(
    node: SoftwareNode,
    body: dict[str, Any],
    *,
    key: SoftwareAK = IAK,
    issuer: CertificateAuthority = ISSUER,
    options: AKCertificateOptions | None = None,
    challenge_id: str | None = None,
) -> dict[str, Any]:
    """Return the activation *body* with the certificate of *key*, and what it says of the AK."""
    binding = ak_certificate.binding(
        machine_id=node.machine_id,
        challenge_id=challenge_id or body["challenge_id"],
        proof=b64decode(body["proof"], "proof"),
    )
    qualified = qualified_name_of_primary(Hierarchy.ENDORSEMENT, node.ak.name)
    signed, signature = key.certify(node.ak.name, qualified, binding)
    certificate = make_ak_certificate(key.public.spki_der(), issuer, at=AT, options=options)
    return {
        **body,
        "ak_certificate": {
            "certificate": b64encode(certificate),
            "chain": [b64encode(ISSUER.certificate)],
            "statement": {
                "key_public": b64encode(key.public.tpm2b()),
                "certify_info": b64encode(signed),
                "signature": b64encode(signature),
            },
        },
    }


async def introduced(service: Service, node: SoftwareNode, **members: Any) -> dict[str, Any]:
    """Introduce *node*; return the body of its activation."""
    route = "register" if "registration_token" in members else "self-register"
    answer = await service.post(f"/api/v1/{route}", node.introduction(**members))
    assert answer.status_code == 200, answer.text
    return node.activation(answer.json())


async def activate(service: Service, node: SoftwareNode, body: dict[str, Any]) -> dict[str, Any]:
    """Activate; return the machine's detail."""
    answer = await service.post(f"/api/v1/machines/{node.machine_id}/ak-activate", body)
    assert answer.status_code == 200, answer.text
    return await service.detail(node)


async def keys(service: Service, node: SoftwareNode) -> Any:
    """Return what operators see of the machine's keys."""
    return (await service.operator("GET", f"/machines/{node.machine_id}/keys")).json()["ak_certificate"]


async def registered(service: Service) -> str:
    """Return what the audit says of the newest registration."""
    detail: str = (await service.audit(action="register"))[0]["detail"]
    return detail


async def test_a_certified_key_lifts_a_machine_to_level_two(start: Starter, folder: Path) -> None:
    """With the path, who it was, and an audit entry."""
    service, node = await start(ak_ca_dir=folder), SoftwareNode()
    detail = await activate(service, node, showing(node, await introduced(service, node)))
    assert (detail["assurance"], detail["ek_chain_ok"]) == ("ak-certified", False)
    shown = await keys(service, node)
    assert (shown["ok"], "Provider Issuer" in shown["issuer"]) == (True, True)
    assert "chains to" in shown["reason"]
    told = await registered(service)
    assert told.startswith("assurance ak-certified")
    assert "vouches for its AK" in told


async def test_a_machine_of_before_is_judged_as_before(start: Starter, folder: Path) -> None:
    """Nothing shown, nothing said."""
    service, node = await start(ak_ca_dir=folder), SoftwareNode()
    await service.introduce(node)
    assert (await service.detail(node))["assurance"] == "tofu"
    assert "AK" not in await registered(service)
    assert await keys(service, node) is None


@pytest.mark.parametrize(
    ("how", "check"),
    [
        ({"issuer": STRANGER}, "ak-cert-path"),
        ({"options": AKCertificateOptions(defect=AKDefect.EKU_OF_EK)}, "ak-cert-profile"),
        ({"options": AKCertificateOptions(defect=AKDefect.EXPIRED)}, "ak-cert-path"),
        ({"challenge_id": "0" * 32}, "ak-cert-fresh"),
    ],
)
async def test_what_does_not_vouch_changes_only_the_level(
    start: Starter, folder: Path, how: dict[str, Any], check: str
) -> None:
    """The activation stands; the check that failed is told to operators, and no value."""
    service, node = await start(ak_ca_dir=folder), SoftwareNode()
    body = showing(node, await introduced(service, node), **how)
    detail = await activate(service, node, body)
    assert detail["assurance"] == "tofu"
    assert (await registered(service)).endswith(f"; nobody vouches for its AK: {check}")
    assert await keys(service, node) is None


async def test_without_a_folder_nobody_is_believed(start: Starter) -> None:
    """No default: an operator says whom."""
    service, node = await start(), SoftwareNode()
    detail = await activate(service, node, showing(node, await introduced(service, node)))
    assert detail["assurance"] == "tofu"
    assert "ak-cert-path" in await registered(service)


async def test_what_cannot_be_read_spends_nothing(start: Starter, folder: Path) -> None:
    """The machine comes again without it."""
    service, node = await start(ak_ca_dir=folder), SoftwareNode()
    body = await introduced(service, node)
    for certificate in ("", "AAAA", "not base64"):
        bad = {**body, "ak_certificate": {"certificate": certificate}}
        answer = await service.post(f"/api/v1/machines/{node.machine_id}/ak-activate", bad)
        assert (answer.status_code, answer.json()["type"].rpartition(":")[2]) == (400, "malformed-evidence")
    assert (await activate(service, node, body))["assurance"] == "tofu"


async def test_the_ak_may_be_certified_itself(start: Starter, folder: Path) -> None:
    """Without a statement: the activation proved it."""
    service, node = await start(ak_ca_dir=folder), SoftwareNode()
    body = await introduced(service, node)
    own = make_ak_certificate(node.ak.spki_der(), ROOT, at=AT)
    detail = await activate(service, node, {**body, "ak_certificate": {"certificate": b64encode(own)}})
    assert detail["assurance"] == "ak-certified"


async def test_one_certified_key_vouches_for_one_machine(start: Starter, folder: Path) -> None:
    """One good TPM is one machine, however many EKs somebody makes in software; the deleted one sets it free."""
    service, first, second = await start(ak_ca_dir=folder), SoftwareNode(), SoftwareNode()
    await activate(service, first, showing(first, await introduced(service, first)))
    detail = await activate(service, second, showing(second, await introduced(service, second)))
    assert detail["assurance"] == "tofu"
    assert "ak-cert-taken" in await registered(service)
    again = await activate(service, first, showing(first, await introduced(service, first)))
    assert again["assurance"] == "ak-certified", "its own key is not taken"


async def test_a_token_that_demands_level_two_admits(start: Starter, folder: Path) -> None:
    """At the activation; without a certificate the machine waits, and the token keeps its use."""
    service = await start(ak_ca_dir=folder)
    request = {"role": "worker-app", "expires_in_seconds": 600, "minimum_assurance": "ak-certified"}
    token = (await service.operator("POST", "/registration-tokens", request)).json()["token"]
    bare, node = SoftwareNode(), SoftwareNode()
    detail = await activate(service, bare, await introduced(service, bare, registration_token=token))
    assert detail["status"] == "pending_approval"
    body = showing(node, await introduced(service, node, registration_token=token))
    detail = await activate(service, node, body)
    assert (detail["status"], detail["assurance"]) == ("registered", "ak-certified")


async def test_a_vendors_chain_counts_for_more(start: Starter, folder: Path, tmp_path: Path) -> None:
    """The level is the best of what is vouched for; the other word is kept."""
    service = await start(ak_ca_dir=folder, tpm_ca_bundle_dir=write_bundle(tmp_path / "bundle"))
    node = SoftwareNode()
    body = showing(node, await introduced(service, node, **vouched(node.ek)))
    detail = await activate(service, node, body)
    assert detail["assurance"] == "ek-chain"
    assert (await keys(service, node))["ok"]


async def test_a_known_machine_rises_and_its_reset_takes_the_level(start: Starter, folder: Path) -> None:
    """A machine of before, with a new agent; then another AK, for which nobody vouches."""
    service, node = await start(ak_ca_dir=folder), SoftwareNode()
    await service.introduce(node)
    detail = await activate(service, node, showing(node, await introduced(service, node)))
    assert detail["assurance"] == "ak-certified"
    (risen,) = await service.audit(action="assurance_changed")
    assert risen["detail"].startswith("tofu to ak-certified")
    await service.act(node, "ak-reset", {"reason": "reinstalled"})
    assert (await service.detail(node))["assurance"] == "tofu"
    shown = await keys(service, node)
    assert (shown["ok"], shown["reason"]) == (False, "it is about another attestation key")
    node.new_ak()
    await service.introduce(node)
    assert (await service.detail(node))["assurance"] == "tofu"
    detail = await activate(service, node, showing(node, await introduced(service, node)))
    assert detail["assurance"] == "ak-certified"


async def test_an_anchor_that_is_gone_takes_the_level_with_it(start: Starter, folder: Path) -> None:
    """At the next start, in the first round; it comes back with the anchor."""
    service, node = await start(ak_ca_dir=folder), SoftwareNode()
    await activate(service, node, showing(node, await introduced(service, node)))
    await maintenance.once(service.resources)
    assert (await service.detail(node))["assurance"] == "ak-certified"
    (folder / "provider.der").unlink()
    other = await start(ak_ca_dir=folder, clock=service.clock)
    await maintenance.once(other.resources)
    assert (await other.detail(node))["assurance"] == "tofu"
    fallen = (await other.audit(action="assurance_changed"))[0]
    assert fallen["detail"].startswith("ak-certified to tofu: no issuer is known")
    assert not (await keys(other, node))["ok"]
    (folder / "provider.der").write_bytes(ROOT.certificate)
    again = await start(ak_ca_dir=folder, clock=service.clock)
    await maintenance.once(again.resources)
    assert (await again.detail(node))["assurance"] == "ak-certified"
