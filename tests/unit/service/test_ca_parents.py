"""A CA of the service below a company's root, which OpenSSL plays and judges."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding

from attestation.errors import CertificateNotConformant
from attestation.pki.profiles import ProfileName
from tests.fixtures.company import Company
from tests.unit.service import people
from tests.unit.service.ca_world import no_more, nothing, wanted
from tests.unit.service.conftest import HeldClock, Service, Starter
from tests.unit.service.test_ca import DAY, MACHINE, ca_of, issue, states, step, steps, with_ca

pytestmark = pytest.mark.anyio

HELD_AT = HeldClock().now()


async def csr_of(service: Service, issuer_id: str, **limits: Any) -> str:
    """Ask for a request."""
    answer = await service.operator("POST", f"/ca/keys/{issuer_id}/csr", limits)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["csr_pem"])


async def imported(
    service: Service, issuer_id: str, chain: str, *, headers: Mapping[str, str] | None = None, **members: Any
) -> httpx.Response:
    """Ask for an import."""
    body = {"chain_pem": chain, "reason": "below the company's root"} | members
    return await service.operator("PUT", f"/ca/keys/{issuer_id}/chain", body, headers=dict(headers or {}))


async def newest(service: Service) -> str:
    """Return the id of the newest key."""
    return str((await service.operator("GET", "/ca")).json()["issuers"][-1]["issuer_id"])


async def test_a_next_key_joins_a_company_s_root(start: Starter, tmp_path: Path) -> None:
    """Prepared, certified, activated: who knows the root alone believes what it signs, and its revocations."""
    company = Company.at(tmp_path / "company", HELD_AT)
    service = await with_ca(start)
    await steps(service, "prepare")
    ours = await newest(service)
    chain = company.certify(await csr_of(service, ours, path_length=0))
    assert (await imported(service, ours, chain)).status_code == 200
    (root,) = x509.load_pem_x509_certificates(company.root.encode())
    assert root.public_bytes(Encoding.DER) in await ca_of(service).bundle()
    await steps(service, "activate")
    leaf = await issue(service, MACHINE)
    at = service.clock.now()
    assert leaf.issuer_id == ours
    assert leaf.ca == root.public_bytes(Encoding.DER)
    assert company.verifies(leaf.certificate, leaf.chain, at) == ""
    assert company.verifies(leaf.certificate, (), at) != ""
    await service.operator("POST", f"/ca/certificates/{leaf.serial}/revoke", {"reason": "keyCompromise"})
    crl = (await service.http.get(f"/pki/crl/{ours}")).content
    assert "certificate revoked" in company.verifies(leaf.certificate, leaf.chain, at, crl)
    served = (await service.http.get(f"/pki/ca/{ours}")).content
    assert served == x509.load_pem_x509_certificates(chain.encode())[0].public_bytes(Encoding.DER)


async def test_it_is_shown_and_in_the_audit(start: Starter, tmp_path: Path) -> None:
    """Whose root, by its digest: what operators agreed to."""
    company = Company.at(tmp_path / "company", HELD_AT)
    service = await with_ca(start)
    ours = await newest(service)
    chain = company.certify(await csr_of(service, ours))
    answer = await imported(service, ours, chain, force=True)
    (detail,) = answer.json()["issuers"]
    assert len(detail["parents"]) == 1
    (root,) = x509.load_pem_x509_certificates(company.root.encode())
    digest = root.fingerprint(hashes.SHA256()).hex()
    (entry,) = await service.audit(action="ca_chain")
    assert "(forced)" in entry["detail"]
    assert digest in entry["detail"]
    assert len(await service.audit(action="ca_csr")) == 1
    # The same again changes nothing.
    assert (await imported(service, ours, chain)).status_code == 200
    assert len(await service.audit(action="ca_chain")) == 1


async def test_a_key_that_signs_already_needs_force(start: Starter, tmp_path: Path) -> None:
    """What it signed, and signs from then on, verifies by the root."""
    company = Company.at(tmp_path / "company", HELD_AT)
    service = await with_ca(start)
    before = await issue(service)
    ours = await newest(service)
    chain = company.certify(await csr_of(service, ours))
    refused = await imported(service, ours, chain)
    assert (refused.status_code, refused.json()["type"]) == (409, "urn:itl:problem:ca-rotation-forbidden")
    assert (await imported(service, ours, chain, force=True)).status_code == 200
    leaf = await issue(service)
    at = service.clock.now()
    assert company.verifies(leaf.certificate, leaf.chain, at) == ""
    assert company.verifies(before.certificate, leaf.chain, at) == ""
    crl = (await service.http.get(f"/pki/crl/{ours}")).content
    assert company.verifies(leaf.certificate, leaf.chain, at, crl) == ""


async def test_a_parent_may_name_a_next_key_in_its_own_way(start: Starter, tmp_path: Path) -> None:
    """What the key signs follows the parent's identifier; a key that signed already keeps the one of before."""
    company = Company.at(tmp_path / "company", HELD_AT)
    service = await with_ca(start)
    first = await newest(service)
    chain = company.certify(await csr_of(service, first), own_key_identifier=True)
    refused = await imported(service, first, chain, force=True)
    assert refused.status_code == 409
    assert "SubjectKeyIdentifier" in refused.json()["detail"]
    await steps(service, "prepare")
    second = await newest(service)
    chain = company.certify(await csr_of(service, second), own_key_identifier=True)
    assert (await imported(service, second, chain)).status_code == 200
    await steps(service, "activate")
    leaf = await issue(service)
    at = service.clock.now()
    assert leaf.issuer_id == second
    assert company.verifies(leaf.certificate, leaf.chain, at) == ""
    crl = (await service.http.get(f"/pki/crl/{second}")).content
    assert company.verifies(leaf.certificate, leaf.chain, at, crl) == ""


async def test_no_certificate_outlives_the_parent_s(start: Starter, tmp_path: Path) -> None:
    """A year was asked for; the parent granted ten days."""
    company = Company.at(tmp_path / "company", HELD_AT)
    service = await with_ca(start, enrollment_cert_days=365)
    ours = await newest(service)
    chain = company.certify(await csr_of(service, ours), days=10)
    assert (await imported(service, ours, chain, force=True)).status_code == 200
    assert (await issue(service)).not_after == HELD_AT + timedelta(days=10)


async def test_names_that_the_parent_does_not_permit_are_not_signed(start: Starter, tmp_path: Path) -> None:
    """Relying parties would refuse them."""
    company = Company.at(tmp_path / "company", HELD_AT)
    service = await with_ca(start)
    ours = await newest(service)
    chain = company.certify(await csr_of(service, ours, dns=["nodes.example"]))
    assert (await imported(service, ours, chain, force=True)).status_code == 200
    server = {"profile": ProfileName.NODE_SERVER, "machine_id": MACHINE}
    at = service.clock.now()
    good = wanted(**server, dns_names=("a.nodes.example",))
    (leaf,) = await ca_of(service).issue(good, at=at, admit=nothing, conclude=no_more)
    assert company.verifies(leaf.certificate, leaf.chain, at) == ""
    bad = wanted(**server, dns_names=("a.elsewhere.example",))
    with pytest.raises(CertificateNotConformant, match="does not permit"):
        await ca_of(service).issue(bad, at=at, admit=nothing, conclude=no_more)


async def test_a_rotation_goes_on_below_the_root(start: Starter, tmp_path: Path) -> None:
    """The next key is joined by the root, not by a cross certificate, and signs once it has a certificate too."""
    company = Company.at(tmp_path / "company", HELD_AT)
    service = await with_ca(start)
    first = await newest(service)
    chain = company.certify(await csr_of(service, first, path_length=0))
    assert (await imported(service, first, chain, force=True)).status_code == 200
    await steps(service, "prepare")
    second = await newest(service)
    assert all(
        not each["cross_certificates"] for each in (await service.operator("GET", "/ca")).json()["issuers"]
    )
    service.clock.advance(DAY)
    refused = await step(service, "activate")
    assert refused.status_code == 409
    assert "import its certificate first" in refused.json()["detail"]
    chain = company.certify(await csr_of(service, second, path_length=0))
    assert (await imported(service, second, chain)).status_code == 200
    assert (await step(service, "activate")).status_code == 200
    leaf = await issue(service)
    assert leaf.issuer_id == second
    assert company.verifies(leaf.certificate, leaf.chain, service.clock.now()) == ""
    # One root, two keys: the bundle has each certificate once.
    bundle = await ca_of(service).bundle()
    assert len(bundle) == len(set(bundle)) == 3


async def test_whose_root_it_is_two_must_agree(start: Starter, tmp_path: Path) -> None:
    """It decides what every relying party believes."""
    company = Company.at(tmp_path / "company", HELD_AT)
    service = await with_ca(start, dual_control_roles=("worker-app",))
    ours = await newest(service)
    chain = company.certify(await csr_of(service, ours))
    service.app.state.resources, known = people.introduce(service.resources)
    anna, bob = known.headers("anna"), known.headers("bob")
    alone = await imported(service, ours, chain, force=True)
    assert (alone.status_code, alone.json()["type"]) == (403, "urn:itl:problem:break-glass-cannot-vote")
    assert (await imported(service, ours, chain, force=True, headers=anna)).status_code == 202
    assert not (await service.operator("GET", "/ca")).json()["issuers"][0]["parents"]
    # Another root is another question.
    other = Company.at(tmp_path / "other", HELD_AT)
    rival = other.certify((company.folder / "our.csr").read_text())
    assert (await imported(service, ours, rival, force=True, headers=bob)).status_code == 409
    assert (await imported(service, ours, chain, force=True, headers=bob)).status_code == 200
    assert (await service.operator("GET", "/ca")).json()["issuers"][0]["parents"]
    (entry,) = await service.audit(action="ca_chain")
    assert "agreed by anna, bob" in entry["detail"]


async def test_what_is_no_chain_changes_nothing(start: Starter, tmp_path: Path) -> None:
    """Not PEM, for another key, of a key that signs no more."""
    company = Company.at(tmp_path / "company", HELD_AT)
    service = await with_ca(start)
    first = await newest(service)
    answer = await imported(service, first, "no certificates", force=True)
    assert (answer.status_code, answer.json()["type"]) == (422, "urn:itl:problem:request-invalid")
    await steps(service, "prepare")
    second = await newest(service)
    chain = company.certify(await csr_of(service, second))
    answer = await imported(service, first, chain, force=True)
    assert answer.json()["type"] == "urn:itl:problem:ca-chain-invalid"
    assert "another key" in answer.json()["detail"]
    await steps(service, "activate")
    assert await states(service) == ["retiring", "active"]
    for method, path, body in (
        ("POST", "csr", {}),
        ("PUT", "chain", {"chain_pem": chain, "reason": "late"}),
    ):
        answer = await service.operator(method, f"/ca/keys/{first}/{path}", body)
        assert (answer.status_code, answer.json()["type"]) == (404, "urn:itl:problem:issuer-unknown")
    assert not await service.audit(action="ca_chain")


async def test_other_parents_of_the_same_certificate_count_at_once(start: Starter, tmp_path: Path) -> None:
    """What limits a key is what the newest chain says, also where our own certificate is the same."""
    company = Company.at(tmp_path / "company", HELD_AT)
    service = await with_ca(start)
    ours = await newest(service)
    chain = company.certify(await csr_of(service, ours))
    assert (await imported(service, ours, chain, force=True)).status_code == 200
    await issue(service)
    renewed = company.renewed(days=1)
    first = chain.removesuffix(company.root)
    assert (await imported(service, ours, first + renewed, force=True)).status_code == 200
    assert (await issue(service)).not_after == HELD_AT + timedelta(days=1)
