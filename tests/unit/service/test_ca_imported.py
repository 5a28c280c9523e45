"""The key of a CA that exists already: brought in wrapped, proven by its certificate, and judged by OpenSSL."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_public_key

from attestation.keys.wrapping import wrap_key
from attestation.wire import b64encode
from attestation_service.authority.keyring import spki
from tests.fixtures.company import Company
from tests.unit.service import people
from tests.unit.service.conftest import HeldClock, Service, Starter
from tests.unit.service.test_ca import MACHINE, ca_of, issue, states, step, steps, with_ca

pytestmark = pytest.mark.anyio

HELD_AT = HeldClock().now()
KEY = ec.generate_private_key(ec.SECP384R1())


def ca_certificate(
    key: Any = KEY,
    *,
    name: str = "CN=Machines of the Company,O=Company",
    days: int = 365,
    by: tuple[Any, str] | None = None,
    **usage: bool,
) -> str:
    """Return the certificate of a CA that the company has already, PEM."""
    signer, issuer = by or (key, name)
    bits = dict.fromkeys(
        (
            "digital_signature",
            "content_commitment",
            "key_encipherment",
            "data_encipherment",
            "key_agreement",
            "key_cert_sign",
            "crl_sign",
            "encipher_only",
            "decipher_only",
        ),
        False,
    )
    bits |= {"key_cert_sign": True, "crl_sign": True} | usage
    public = key.public_key()
    above = signer.public_key()
    made = (
        x509.CertificateBuilder()
        .subject_name(x509.Name.from_rfc4514_string(name))
        .issuer_name(x509.Name.from_rfc4514_string(issuer))
        .public_key(public)
        .serial_number(0x1234567)
        .not_valid_before(HELD_AT - timedelta(days=400))
        .not_valid_after(HELD_AT + timedelta(days=days))
        .add_extension(x509.BasicConstraints(True, 0 if by else None), critical=True)
        .add_extension(x509.KeyUsage(**bits), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(above), critical=False)
        .sign(signer, hashes.SHA384())
    )
    return made.public_bytes(Encoding.PEM).decode("ascii")


@cache
def own() -> str:
    """Return the certificate of the CA by itself."""
    return ca_certificate()


async def wrapped(service: Service, key: Any = KEY) -> bytes:
    """Return a key, wrapped for the service."""
    answer = await service.operator("POST", "/ca/import-key", {})
    assert answer.status_code == 200, answer.text
    kek: Any = load_pem_public_key(answer.json()["public_key_pem"].encode())
    return wrap_key(key, kek)


async def brought(
    service: Service,
    blob: bytes,
    chain: str | None = None,
    *,
    headers: Mapping[str, str] | None = None,
    **members: Any,
) -> httpx.Response:
    """Ask for an import."""
    body = {
        "purpose": "machine",
        "wrapped_key": b64encode(blob),
        "chain_pem": own() if chain is None else chain,
        "reason": "what issued before goes on here",
    }
    return await service.operator("POST", "/ca/keys", body | members, headers=dict(headers or {}))


def problem(answer: httpx.Response) -> tuple[int, str]:
    """Return what an answer refuses."""
    return answer.status_code, answer.json()["type"].rpartition(":")[2]


def files(service: Service) -> list[str]:
    """Return which keys lie in the folder."""
    folder = service.resources.settings.enrollment_ca_dir
    return sorted(each.name for each in folder.glob("itl-enrollment-ca-*.pem"))


async def test_a_ca_of_before_goes_on_here(start: Starter, tmp_path: Path) -> None:
    """Its key is the next one, and signs under its own name once it is activated; OpenSSL verifies by that."""
    service = await with_ca(start)
    answer = await brought(service, await wrapped(service))
    assert answer.status_code == 200, answer.text
    found = answer.json()["issuers"][-1]
    assert (found["state"], found["subject"]) == ("next", "CN=Machines of the Company,O=Company")
    assert (found["key_origin"], found["cross_certificates"], found["parents"]) == ("file", [], [])
    certificate = x509.load_pem_x509_certificate(own().encode())
    assert certificate.public_bytes(Encoding.DER) in await ca_of(service).bundle()
    await steps(service, "activate")
    assert await states(service) == ["retiring", "active"]
    leaf = await issue(service, MACHINE)
    company = Company.at(tmp_path / "company", HELD_AT)
    (company.folder / "root.pem").write_text(own())
    crl = await service.get(f"/pki/crl/{found['issuer_id']}")
    assert crl.status_code == 200
    at = service.clock.now()
    assert company.verifies(leaf.certificate, leaf.chain, at, crl.content) == ""
    revoked = await service.operator("POST", f"/ca/certificates/{leaf.serial}/revoke", {})
    assert revoked.status_code == 200
    assert (await ca_of(service).self_test()) == {}
    (entry,) = await service.audit(action="ca_import")
    assert "CN=Machines of the Company,O=Company" in entry["detail"]
    assert len(await service.audit(action="ca_import_key")) == 1
    # Once is enough.
    assert problem(await brought(service, await wrapped(service))) == (409, "already-exists")


async def test_one_below_a_root_comes_with_its_chain(start: Starter, tmp_path: Path) -> None:
    """What it signs verifies by the root."""
    root_key = ec.generate_private_key(ec.SECP384R1())
    root = ca_certificate(root_key, name="CN=Root of the Company")
    chain = ca_certificate(by=(root_key, "CN=Root of the Company")) + root
    service = await with_ca(start)
    answer = await brought(service, await wrapped(service), chain)
    assert answer.status_code == 200, answer.text
    assert len(answer.json()["issuers"][-1]["parents"]) == 1
    await steps(service, "activate")
    leaf = await issue(service, MACHINE)
    company = Company.at(tmp_path / "company", HELD_AT)
    (company.folder / "root.pem").write_text(root)
    assert company.verifies(leaf.certificate, leaf.chain, service.clock.now()) == ""


async def test_two_must_agree_and_the_second_needs_no_key(start: Starter) -> None:
    """What the first one sent is shown to the others, and they send the same; nothing lies about meanwhile."""
    service = await with_ca(start, dual_control_roles=("worker-app",))
    before = files(service)
    blob = await wrapped(service)
    service.app.state.resources, known = people.introduce(service.resources)
    anna, bob = known.headers("anna"), known.headers("bob")
    assert problem(await brought(service, blob)) == (403, "break-glass-cannot-vote")
    assert (await brought(service, blob, headers=anna)).status_code == 202
    assert files(service) == before
    again = await wrapped(service)
    assert problem(await brought(service, again, headers=bob)) == (409, "proposal-rival")
    assert files(service) == before
    assert (await brought(service, blob, headers=bob)).status_code == 200
    assert len(files(service)) == len(before) + 1
    (entry,) = await service.audit(action="ca_import")
    assert "agreed by anna, bob" in entry["detail"]


async def test_what_is_no_ca_is_not_opened(start: Starter) -> None:
    """Expired, not for certificates, a weak key, another algorithm, no chain; nothing of it stays."""
    service = await with_ca(start)
    before, blob = files(service), await wrapped(service)
    weak = ec.generate_private_key(ec.SECP256R1())
    for chain, words in (
        (ca_certificate(days=-1), "not now"),
        (ca_certificate(key_cert_sign=False), "may not sign certificates"),
        (ca_certificate(weak), "its key is ecdsa-p256"),
        (own() + ca_certificate(weak, name="CN=Another"), "the root must be last"),
    ):
        answer = await brought(service, blob, chain)
        assert problem(answer)[1] == "ca-chain-invalid", answer.text
        assert words in answer.json()["detail"]
    assert problem(await brought(service, blob, "nothing")) == (422, "request-invalid")
    assert problem(await brought(service, blob, purpose="operator"))[1] == "ca-chain-invalid"
    assert files(service) == before
    assert not await service.audit(action="ca_import")


async def test_a_key_that_does_not_prove_itself_is_not_kept(start: Starter) -> None:
    """Another key's, damaged, cut, under another hash: one word for each of them."""
    service = await with_ca(start)
    before, blob = files(service), await wrapped(service)
    stranger = await wrapped(service, ec.generate_private_key(ec.SECP384R1()))
    damaged = bytes([*blob[:-1], blob[-1] ^ 1])
    told = set()
    for each, oaep_hash in (
        (stranger, "sha256"),
        (damaged, "sha256"),
        (blob[:-8], "sha256"),
        (blob[:100], "sha256"),
        (bytes([blob[0] ^ 1, *blob[1:]]), "sha256"),
        (blob, "sha1"),
    ):
        answer = await brought(service, each, oaep_hash=oaep_hash)
        assert problem(answer) == (422, "request-invalid"), answer.text
        told.add(answer.json()["detail"])
    assert len(told) == 1
    assert files(service) == before


async def test_a_key_that_others_have_never_signs_here(start: Starter) -> None:
    """Somebody said so before; nor does one come beside another that is to come."""
    service = await with_ca(start)
    blob = await wrapped(service)
    certificate = x509.load_pem_x509_certificate(own().encode())
    sha256 = hashlib.sha256(spki(certificate.public_key())).hexdigest()  # type: ignore[arg-type]  # P-384
    refuse = {"spki_sha256": sha256, "reason": "found elsewhere"}
    assert (await service.operator("POST", "/ca/refused-keys", refuse)).status_code in (200, 201)
    assert problem(await brought(service, blob))[1] == "key-refused"
    other = ec.generate_private_key(ec.SECP384R1())
    await steps(service, "prepare")
    answer = await brought(service, await wrapped(service, other), ca_certificate(other))
    assert problem(answer) == (409, "ca-rotation-forbidden")


async def test_no_ca_is_imported_that_is_called_like_another_one_here(start: Starter) -> None:
    """Whom a CA of ours certifies its name says: one that is called like that of operators vouches for no machine."""
    service = await with_ca(start)
    named = ca_certificate(name="CN=ITL Operator CA,O=Company,C=NL")
    answer = await brought(service, await wrapped(service), named)
    assert problem(answer)[1] == "ca-chain-invalid"
    assert "another CA" in answer.json()["detail"]


async def test_a_rotation_goes_on_after_an_import(start: Starter) -> None:
    """Without cross certificates: the imported CA has a name of its own, and may leave no room for another."""
    service = await with_ca(start)
    assert (await brought(service, await wrapped(service))).status_code == 200
    await steps(service, "activate")
    assert (await step(service, "retire", force=True)).status_code == 200
    await steps(service, "prepare")
    assert await states(service) == ["retired", "active", "next"]
    shown = (await service.operator("GET", "/ca")).json()["issuers"]
    assert not any(each["cross_certificates"] for each in shown)
