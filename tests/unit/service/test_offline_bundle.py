"""The offline bundle: off by default, agreed to by several, sealed to one TPM, written down (DELIVERY §8)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from ruamel.yaml import YAML

from attestation.api import OfflineBundle
from attestation.errors import MalformedEvidence
from attestation.keys import OFFLINE_TYP, certificates_sha256, verify_jwt
from attestation.machines import Status
from attestation.machines.dual_control import Vote, of_offline_bundle
from attestation.store import Tx
from attestation_service.authority.issuance import sign
from attestation_service.delivery import offline_bundle
from attestation_service.settings import Settings
from attestation_service.verifier import policy
from tests.fixtures.machine import refused as outcome_of
from tests.unit.service.conftest import CANARY, OPERATOR, Service, Starter
from tests.unit.service.node import SoftwareNode
from tests.unit.service.test_dual_control import Committee
from tests.unit.service.test_enrollment import NOBODY, OUTCOME, WAYS, WITH_CA, brought, listed

pytestmark = pytest.mark.anyio

CONFLICT = (409, "transition-forbidden")


@pytest.fixture
async def committee(start: Starter) -> Committee:
    """A service that makes bundles, and people."""
    return Committee(await start(tpm_ca_bundle_dir=start.bundle(), compat_offline_bundle=True, **WITH_CA))


async def admitted(service: Service) -> SoftwareNode:
    """Return an attested machine."""
    node = SoftwareNode()
    await service.admitted(node, hostname="app-1", assigned_ip="10.0.0.7/24")
    return node


def path(node: SoftwareNode) -> str:
    """Return the route of its bundle."""
    return f"/machines/{node.machine_id}/offline-bundle"


@pytest.mark.threat("T109")
async def test_two_people_and_one_tpm(committee: Committee) -> None:
    """The first vote gives nothing; the second the members of old, with every secret sealed and signed."""
    service = committee.service
    node = await admitted(service)
    first = await committee.ask("anna", "POST", path(node))
    assert first.status_code == 202
    assert first.json()["action"] == "offline_bundle"
    assert (first.json()["approvals_received"], first.json()["approvals_required"]) == (1, 2)
    assert (await committee.ask("anna", "POST", path(node))).status_code == 202, "one person stays one"
    assert await listed(service, node) == []
    second = await committee.ask("bert", "POST", path(node))
    assert second.status_code == 200, second.text
    assert CANARY not in second.text
    assert "PRIVATE" not in second.text
    bundle = OfflineBundle.model_validate_json(second.content)
    assert (bundle.install_mode, bundle.compat, bundle.status) == ("offline", "offline-bundle", "attested")
    assert (bundle.hostname, bundle.assigned_ip, bundle.iso_url) == ("app-1", "10.0.0.7/24", None)
    assert bundle.config_url == f"https://attest.example.test/api/v1/config/{bundle.config_token}"
    # Only this TPM opens it.
    config = node.open(bundle.machineconfig.model_dump())
    assert CANARY.encode() in config
    assert b"app-1" in config
    # The certificate is a file of the machine; the key stays in its own envelope.
    [file] = YAML(typ="safe").load(config)["machine"]["files"]
    assert file == {
        "content": bundle.enrollment_cert_pem,
        "permissions": 0o444,
        "path": "/var/lib/itl-tpm/enrollment.crt",
        "op": "create",
    }
    assert b"PRIVATE" not in config
    key = load_pem_private_key(node.open(bundle.enrollment_key_pem.model_dump()), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    certificate = x509.load_pem_x509_certificate(bundle.enrollment_cert_pem.encode())
    assert certificate.public_key() == key.public_key()
    certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(bundle.enrollment_ca_pem.encode()))
    with pytest.raises(Exception, match=r".+"):
        SoftwareNode().open(bundle.enrollment_key_pem.model_dump())
    # And it was us who sealed it, for it.
    claims: dict[str, Any] = {}
    for what, envelope, signature in (
        ("machineconfig", bundle.machineconfig, bundle.machineconfig_signature),
        ("enrollment-key", bundle.enrollment_key_pem, bundle.enrollment_key_signature),
    ):
        claims = verify_jwt(signature, service.resources.signer.jwks(), typ=OFFLINE_TYP)
        assert claims["what"] == what
        assert claims["binding"] == {
            "machine_id": node.machine_id,
            "ek_fingerprint": node.ek_fingerprint,
            "ak_name": node.ak.name.hex(),
        }
        assert claims["config_sha256"] == envelope.config_sha256
        assert claims["token_id"] == envelope.token_id
        assert claims["exp"] == int(bundle.not_after.timestamp())
    assert claims["certificates_sha256"] == certificates_sha256(
        bundle.enrollment_cert_pem, bundle.enrollment_ca_pem
    )
    assert claims["bundle"] == bundle.machineconfig.token_id
    assert bundle.enrollment_key_pem.token_id == bundle.serial[:16]
    # The token is good, once, and what it gives is sealed.
    assert CANARY not in (await service.fetch(bundle.config_token)).text


async def test_the_certificate_is_where_a_newer_talos_has_files(start: Starter) -> None:
    """From 1.14 on below /etc, in a document; and a base that cannot have it costs no certificate."""
    committee = Committee(
        await start(
            tpm_ca_bundle_dir=start.bundle(),
            compat_offline_bundle=True,
            talos_version="v1.14.0",
            **WITH_CA,
        )
    )
    node = SoftwareNode()
    await committee.service.admitted(node, hostname="app-1")
    bundle = OfflineBundle.model_validate(await committee.agreed("POST", path(node)))
    documents = YAML(typ="safe").load_all(node.open(bundle.machineconfig.model_dump()))
    [file] = [each for each in documents if each.get("kind") == "EtcFileConfig"]
    assert (file["name"], file["contents"], file["mode"]) == (
        "itl-tpm/enrollment.crt",
        bundle.enrollment_cert_pem,
        0o444,
    )


async def test_it_is_written_down(committee: Committee) -> None:
    """Who agreed, the token, the digest and the certificate; never a secret."""
    service = committee.service
    node = await admitted(service)
    bundle = await committee.agreed("POST", path(node))
    issued, made, *_ = await service.audit(machine_id=node.machine_id)
    assert (issued["action"], made["action"]) == ("cert_issued", "offline_bundle")
    assert (made["operator_cn"], made["prev_state"], made["new_state"]) == ("two", "attested", "attested")
    assert bundle["serial"] in made["detail"]
    assert bundle["machineconfig"]["token_id"] in made["detail"]
    assert bundle["machineconfig"]["config_sha256"] in made["detail"]
    assert "agreed by one, two; proposal " in made["detail"]
    assert issued["detail"].endswith("; compat: offline bundle")
    (row,) = await listed(service, node)
    assert (row["serial"], row["key_tier"], row["requester"]) == (bundle["serial"], None, "two")
    assert bundle["config_token"] not in str(await service.audit())
    # Its votes are used up.
    assert (await committee.ask("one", "POST", path(node))).status_code == 202


async def test_without_the_services_key_nothing_is_used_up(
    committee: Committee, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither votes nor a certificate: the last vote is refused while the key is away, and counts afterwards."""
    service = committee.service
    node = await admitted(service)
    assert (await committee.ask("anna", "POST", path(node))).status_code == 202
    with monkeypatch.context() as away:
        away.setattr(service.resources.service_keys, "_keys", None)
        refused = await committee.ask("bert", "POST", path(node))
        assert outcome_of(refused) == (503, "signer-unavailable")
    assert await listed(service, node) == []
    assert (await committee.ask("bert", "POST", path(node))).status_code == 200


async def test_older_tokens_lose_their_right(committee: Committee) -> None:
    """A bundle is a new delivery."""
    service, node = committee.service, SoftwareNode()
    token = (await service.admitted(node))["config_token"]
    await committee.agreed("POST", path(node))
    assert outcome_of(await service.fetch(token)) == (410, "token-consumed")


@pytest.mark.threat("T109")
async def test_break_glass_is_nobody(committee: Committee) -> None:
    """Whatever the settings say of roles: two humans."""
    node = await admitted(committee.service)
    answer = await committee.ask(OPERATOR, "POST", path(node))
    assert outcome_of(answer) == (403, "break-glass-cannot-vote")
    assert await listed(committee.service, node) == []


@pytest.mark.threat("T109")
async def test_by_default_there_are_none(start: Starter) -> None:
    """Off is off, also for two."""
    committee = Committee(await start(tpm_ca_bundle_dir=start.bundle(), **WITH_CA))
    node = await admitted(committee.service)
    for name in ("anna", "bert"):
        assert outcome_of(await committee.ask(name, "POST", path(node))) == (422, "request-invalid")


async def test_without_a_ca_there_are_none(start: Starter) -> None:
    """Half a bundle is none."""
    committee = Committee(await start(tpm_ca_bundle_dir=start.bundle(), compat_offline_bundle=True))
    node = await admitted(committee.service)
    assert outcome_of(await committee.ask("anna", "POST", path(node))) == (503, "ca-not-configured")


async def test_unknown_machines(committee: Committee) -> None:
    """404 before any vote."""
    answer = await committee.ask("anna", "POST", f"/machines/{NOBODY}/offline-bundle")
    assert outcome_of(answer) == (404, "machine-unknown")


@pytest.mark.parametrize("way", [way for way in WAYS if OUTCOME[way] != (200, "ok")])
async def test_only_attested_machines_within_their_lease(committee: Committee, way: str) -> None:
    """Sealed or not, nothing of a machine leaves that could not have it over the network."""
    node = SoftwareNode()
    await brought(committee.service, node, WAYS[way])
    assert outcome_of(await committee.ask("anna", "POST", path(node))) == CONFLICT
    assert await listed(committee.service, node) == []


def _locked(tx: Tx, machine_id: str) -> None:
    machine = tx.machines.by_id(machine_id)
    assert machine is not None
    tx.machines.update(machine, status=Status.LOCKED)


def _renamed(tx: Tx, machine_id: str) -> None:
    machine = tx.machines.by_id(machine_id)
    assert machine is not None
    tx.machines.update(machine, hostname="other-1")


def _renamed_and_agreed(tx: Tx, machine_id: str) -> None:
    """Somebody agrees to a bundle of the renamed machine: with the vote of whoever asks now, that is enough."""
    _renamed(tx, machine_id)
    machine = tx.machines.by_id(machine_id)
    assert machine is not None
    at = machine.attested_at
    assert at is not None
    vote = Vote(operator_cn="carl", operator_sub="carl", created_at=at, expires_at=at + timedelta(hours=1))
    assert (
        tx.approvals.cast(of_offline_bundle(machine, policy.measured(tx, machine, Settings())), vote)
        is not None
    )


def _voteless(tx: Tx, machine_id: str) -> None:
    at = tx.machines.by_id(machine_id)
    assert at is not None
    tx.approvals.void(machine_id, at.registered_at)


@pytest.mark.threat("T109")
@pytest.mark.parametrize("where", ["before it is reserved", "while it is signed"])
@pytest.mark.parametrize("act", [_locked, _renamed, _renamed_and_agreed, _voteless])
async def test_an_act_while_it_is_made(
    committee: Committee, monkeypatch: pytest.MonkeyPatch, act: Callable[[Tx, str], None], where: str
) -> None:
    """What two agreed to is what is done, or nothing: no token, no certificate, no entry."""
    service = committee.service
    node = await admitted(service)
    assert (await committee.ask("anna", "POST", path(node))).status_code == 202
    early = where == "before it is reserved"
    real: Callable[..., Any] = offline_bundle._opened if early else sign

    def slow(*arguments: Any) -> Any:
        service.store.write_sync(lambda tx: act(tx, node.machine_id))
        return real(*arguments)

    place = "delivery.offline_bundle._opened" if early else "authority.authority.sign"
    monkeypatch.setattr(f"attestation_service.{place}", slow)
    answer = await committee.ask("bert", "POST", path(node))
    assert outcome_of(answer) == CONFLICT
    # What is known before is not even signed.
    states = [row["state"] for row in await listed(service, node)]
    assert states == ([] if early and act is not _voteless else ["void"])
    assert await service.audit(action="offline_bundle") == []
    # Only the one that the service gave its own OCSP responder.
    assert [e["operator_cn"] for e in await service.audit(action="cert_issued")] == ["service"]


async def test_a_base_that_is_missing_costs_no_vote(committee: Committee) -> None:
    """An error before anything is signed; the votes are still there when it is mended."""
    service = committee.service
    node = await admitted(service)
    base = service.directory / "configs" / "worker-app-final.yaml"
    text = base.read_text()
    base.unlink()
    await committee.ask("anna", "POST", path(node))
    assert outcome_of(await committee.ask("bert", "POST", path(node))) == (503, "base-config-missing")
    assert await listed(service, node) == []
    base.write_text(text)
    assert (await committee.ask("bert", "POST", path(node))).status_code == 200


async def test_what_cannot_be_sealed_is_not_made(
    committee: Committee, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error, never plaintext, and no certificate."""
    node = await admitted(committee.service)

    def fails(*_arguments: Any, **_more: Any) -> None:
        raise MalformedEvidence("no key to seal to")

    monkeypatch.setattr("attestation_service.delivery.offline_bundle.seal", fails)
    await committee.ask("anna", "POST", path(node))
    answer = await committee.ask("bert", "POST", path(node))
    assert outcome_of(answer) == (503, "unavailable")
    assert CANARY not in answer.text
    assert await listed(committee.service, node) == []
