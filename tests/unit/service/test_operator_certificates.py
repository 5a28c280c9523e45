"""Operators' certificates from the service's own CA: who may make them, what they open, how they end (FAULTS R16)."""

from __future__ import annotations

import asyncio
import base64
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, mldsa, rsa
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from attestation.errors import CANotConfigured, CertificateNotConformant, SignerUnavailable
from attestation.pki.names import machine_subject, operator_subject
from attestation.pki.profiles import ProfileName
from attestation.store import IssuanceFilter, Issuer, Tx
from attestation.wire import b64encode
from attestation_service.auth import Duty
from attestation_service.authority import Authority
from attestation_service.border import operator_ca
from attestation_service.process import maintenance
from tests.fixtures.operator_pki import OperatorCA
from tests.unit.service.conftest import OPERATOR, Service, Starter
from tests.unit.service.leaves import ask, issue, listed, post_ocsp, words_of
from tests.unit.service.people import People
from tests.unit.service.test_enroll import holder_of
from tests.unit.service.test_problems import is_problem

pytestmark = pytest.mark.anyio

SECRET = "proxy-secret-of-more-than-32-characters"
PATH = "/api/v1/operator-certificates"
SETTINGS: dict[str, Any] = {
    "enrollment_ca_unencrypted": True,
    "operator_certificates": True,
    "proxy_secret": SECRET,
    "trusted_proxies": "192.0.2.0/24",
}
Key = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey | ed25519.Ed25519PrivateKey | mldsa.MLDSA65PrivateKey


@cache
def key_of(name: str) -> ec.EllipticCurvePrivateKey:
    """Return the key of a person."""
    return ec.generate_private_key(ec.SECP384R1())


def csr(key: Key) -> str:
    """Return a request that claims to be somebody else: nothing but its key counts."""
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "SYSTEM")])
    builder = x509.CertificateSigningRequestBuilder().subject_name(name)
    bare = isinstance(key, ed25519.Ed25519PrivateKey | mldsa.MLDSA65PrivateKey)
    return builder.sign(key, None if bare else hashes.SHA384()).public_bytes(Encoding.PEM).decode()


def wanted(name: str = "ada", duty: str = "operator", **more: Any) -> dict[str, Any]:
    """Return the body of a request for the key of *name*."""
    return {"csr_pem": csr(key_of(name)), "name": name, "duty": duty, **more}


@dataclass
class Desk:
    """A service with a CA for operators, and people who use it."""

    service: Service
    people: People

    async def ask(self, who: str, body: dict[str, Any]) -> httpx.Response:
        """Ask for a certificate as *who*."""
        return await self.service.post(PATH, body, headers=self.people.headers(who))

    async def given(self, who: str, body: dict[str, Any]) -> dict[str, Any]:
        """Ask for a certificate, and get it."""
        answer = await self.ask(who, body)
        assert answer.status_code == 201, answer.text
        found: dict[str, Any] = answer.json()
        return found

    async def revoke(self, who: str, serial: str, **body: Any) -> httpx.Response:
        """Take one back."""
        return await self.service.post(f"{PATH}/{serial}/revoke", body, headers=self.people.headers(who))

    async def show(
        self, pem: str, method: str = "GET", path: str = "/api/v1/machines", body: Any = None
    ) -> httpx.Response:
        """Come with a certificate, through the trusted proxy."""
        return await with_certificate(self.service, pem, method, path, body)


async def with_certificate(
    service: Service, pem: str, method: str = "GET", path: str = "/api/v1/machines", body: Any = None
) -> httpx.Response:
    """Send a request as a proxy does whose client showed *pem*."""
    headers = {"Itl-Proxy-Secret": SECRET, "X-Client-Cert": quote(pem, safe="")}
    more = {} if body is None else {"json": body}
    return await service.http.request(method, path, headers=headers, **more)


async def desk_at(start: Starter, **changed: Any) -> Desk:
    """Start a service; anybody is an operator who is asked about."""
    service = await start(**(SETTINGS | changed))
    people = People()
    service.app.state.resources = replace(service.resources, oidc=people)
    return Desk(service, people)


@pytest.fixture
async def desk(start: Starter) -> Desk:
    """One operator is enough."""
    return await desk_at(start)


@pytest.fixture
async def committee(start: Starter) -> Desk:
    """Two must agree."""
    return await desk_at(start, dual_control_roles="controlplane")


async def operator_issuer(service: Service) -> Issuer:
    found = await service.store.read(lambda tx: tx.issuers.active("operator", "ecdsa-p384"))
    assert found is not None
    return found


# ---------------------------------------------------------------- what it is


async def test_a_certificate_opens_the_routes_of_its_duty(desk: Desk) -> None:
    """From nothing to a request by certificate: name and duty are those asked for, the request's own are not."""
    found = await desk.given("grace", wanted("ada@example.org", days=3))
    certificate = x509.load_pem_x509_certificate(found["certificate_pem"].encode())
    assert certificate.subject.rfc4514_string() == "CN=ada@example.org,OU=operator,O=ITL Usions,C=NL"
    assert certificate.not_valid_after_utc == desk.service.clock.now() + timedelta(days=3)
    certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(found["ca_pem"].encode()))
    assert (found["name"], found["duty"], found["state"]) == ("ada@example.org", "operator", "issued")
    assert found["chain_pem"] == ""
    assert (await desk.show(found["certificate_pem"])).status_code == 200
    entry, *own = await desk.service.audit(action="cert_issued")
    assert {e["operator_cn"] for e in own} == {"service"}  # OCSP responders
    assert found["serial"] in entry["detail"]
    assert "operator ada@example.org" in entry["detail"]
    assert (entry["operator_cn"], found["requester"]) == ("grace", "grace")


@pytest.mark.parametrize(
    ("duty", "reads", "acts", "audits"),
    [("operator", 200, 404, 403), ("viewer", 200, 403, 403), ("auditor", 403, 403, 200)],
)
async def test_duties(desk: Desk, duty: str, reads: int, acts: int, audits: int) -> None:
    """The OU decides what its holder may, as with every other way to be known."""
    pem = (await desk.given("grace", wanted(duty=duty)))["certificate_pem"]
    nobody = f"/api/v1/machines/{'0' * 8}-0000-4000-8000-{'0' * 12}"
    assert (await desk.show(pem)).status_code == reads
    assert (await desk.show(pem, "POST", f"{nobody}/lock", {})).status_code == acts
    assert (await desk.show(pem, "GET", "/api/v1/audit")).status_code == audits


async def test_days_have_a_limit(desk: Desk) -> None:
    """The setting is both the default and the most."""
    for body in (wanted(), wanted(days=398)):
        found = await desk.given("grace", body)
        ends = x509.load_pem_x509_certificate(found["certificate_pem"].encode()).not_valid_after_utc
        assert ends == desk.service.clock.now() + timedelta(days=30)


async def test_every_issuance_is_listed(desk: Desk) -> None:
    """Newest first, by state, in pages; certificates of machines are not among them."""
    serials = [(await desk.given("grace", wanted(f"p{i}", "viewer")))["serial"] for i in range(3)]
    await issue(desk.service, "m-1")
    await desk.revoke("grace", serials[1])
    headers = desk.people.headers("grace")

    async def page(**query: Any) -> tuple[list[str], str | None]:
        body = (await desk.service.get(PATH, params=query, headers=headers)).json()
        return [item["serial"] for item in body["items"]], body["next_cursor"]

    assert (await page())[0] == serials[::-1]
    assert (await page(state="revoked"))[0] == [serials[1]]
    first, cursor = await page(limit=2)
    assert first == serials[:0:-1]
    assert (await page(limit=2, cursor=cursor))[0] == serials[:1]
    answer = await desk.service.get(PATH, headers=headers)
    assert {(item["name"], item["duty"]) for item in answer.json()["items"]} == {
        (f"p{i}", "viewer") for i in range(3)
    }


# ---------------------------------------------------------------- who may ask


@pytest.mark.threat("T116")
async def test_break_glass_makes_no_people(desk: Desk, committee: Desk) -> None:
    """One secret that several hold may not make the people who would then agree with one another."""
    for service in (desk.service, committee.service):
        answer = await service.post(PATH, wanted(), headers=OPERATOR)
        is_problem(answer, 403, "break-glass-cannot-vote")
        assert (await service.operator("GET", "/operator-certificates")).json()["items"] == []


@pytest.mark.threat("T116")
async def test_two_must_agree_to_exactly_this(committee: Desk) -> None:
    """Another key, name, duty or time is another proposal; the second voter gets the certificate."""
    answer = await committee.ask("grace", wanted(days=2))
    assert answer.status_code == 202
    pending = answer.json()
    assert (pending["action"], pending["approvals_received"]) == ("operator_certificate", 1)
    (vote,) = (await committee.service.operator("GET", "/approvals")).json()["items"]
    assert vote["subject"] == "certificate of operator ada"
    assert (await committee.ask("grace", wanted(days=2))).status_code == 202
    other_key = {**wanted(days=2), "csr_pem": csr(key_of("mallory"))}
    for other in (wanted(days=3), wanted(duty="viewer", days=2), other_key):
        is_problem(await committee.ask("heidi", other), 409, "proposal-rival")
    assert (await committee.ask("heidi", {**wanted(days=2), "name": "eve"})).status_code == 202
    assert await _rows(committee.service) == 0
    found = await committee.given("heidi", wanted(days=2))
    assert found["requester"] == "heidi"
    entry, *own = await committee.service.audit(action="cert_issued")
    assert {e["operator_cn"] for e in own} == {"service"}  # OCSP responders
    assert "agreed by grace, heidi" in entry["detail"]
    # The votes are used up.
    assert (await committee.ask("heidi", wanted(days=2))).status_code == 202


async def _rows(service: Service) -> int:
    def count(tx: Tx) -> int:
        return len(tx.issuances.page(IssuanceFilter(profile="operator"), None, 100).items)

    return await service.store.read(count)


@pytest.mark.threat("T116")
async def test_of_two_who_complete_it_one_gets_it(committee: Desk) -> None:
    """Votes are used up in the unit that reserves the serial: there is one certificate, not two."""
    assert (await committee.ask("grace", wanted())).status_code == 202
    answers = await asyncio.gather(*(committee.ask(who, wanted()) for who in ("heidi", "ivan")))
    assert sorted(answer.status_code for answer in answers) in ([201, 202], [201, 409])
    assert await _rows(committee.service) == 1


async def test_a_vote_that_is_withdrawn_in_between(committee: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was agreed is counted again where it counts; nothing is reserved for what is not agreed any more."""
    first = (await committee.ask("grace", wanted())).json()
    original = Authority.issue

    async def slow(self: Authority, *args: Any, **more: Any) -> Any:
        path = f"/api/v1/approvals/{first['approval_id']}"
        answer = await committee.service.http.delete(path, headers=committee.people.headers("grace"))
        assert answer.status_code in (200, 204), answer.text
        return await original(self, *args, **more)

    monkeypatch.setattr(Authority, "issue", slow)
    is_problem(await committee.ask("heidi", wanted()), 409, "transition-forbidden")
    assert await _rows(committee.service) == 0


async def test_a_viewer_may_look_only(desk: Desk) -> None:
    """Who may not act makes and revokes nothing."""
    viewer = desk.people.headers("vic", Duty.VIEWER)
    assert (await desk.service.post(PATH, wanted(), headers=viewer)).status_code == 403
    assert (await desk.service.get(PATH, headers=viewer)).status_code == 200
    assert (await desk.service.post(f"{PATH}/{'0' * 40}/revoke", {}, headers=viewer)).status_code == 403


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    "name",
    ["SYSTEM", "system", "Machine", "unknown", "service", "a\u202eb", "a\u200bb", "\ufb01sh", "ﾊﾟ"],
)
async def test_names_that_are_nobodys(desk: Desk, name: str) -> None:
    """Reserved names, invisible characters, and names that look like others."""
    is_problem(await desk.ask("grace", {**wanted(), "name": name}), 422, "request-invalid")


@pytest.mark.parametrize("name", ["", " ada", "ada ", "a\nb", "x" * 65])
async def test_names_of_another_form(desk: Desk, name: str) -> None:
    """The schema knows what no name looks like."""
    is_problem(await desk.ask("grace", {**wanted(), "name": name}), 422, "schema-violation")


async def test_keys_that_no_client_of_ours_has(desk: Desk) -> None:
    """Ed25519 and ML-DSA are no keys of TLS clients here; P-256 and RSA are."""
    for strange in (ed25519.Ed25519PrivateKey.generate(), mldsa.MLDSA65PrivateKey.generate()):
        answer = await desk.ask("grace", {**wanted(), "csr_pem": csr(strange)})
        is_problem(answer, 422, "csr-invalid")
    for good in (ec.generate_private_key(ec.SECP256R1()), rsa.generate_private_key(65537, 2048)):
        found = await desk.given("grace", {**wanted(), "csr_pem": csr(good)})
        assert (await desk.show(found["certificate_pem"])).status_code == 200


async def test_the_crypto_policy_is_asked(start: Starter) -> None:
    """Under CNSA an operator's key of P-256 is refused before anybody votes on it."""
    desk = await desk_at(start, crypto_policy="cnsa1")
    key = ec.generate_private_key(ec.SECP256R1())
    is_problem(await desk.ask("grace", {**wanted(), "csr_pem": csr(key)}), 422, "algorithm-forbidden")
    assert (await desk.ask("grace", wanted())).status_code == 201


async def test_what_is_no_request(desk: Desk) -> None:
    """Garbage is malformed."""
    is_problem(await desk.ask("grace", {**wanted(), "csr_pem": "x"}), 400, "malformed-evidence")


async def test_without_the_setting(start: Starter) -> None:
    """No CA for operators: none is made, and its routes say so; machines' certificates open nothing."""
    desk = await desk_at(start, operator_certificates=False)
    is_problem(await desk.ask("grace", wanted()), 503, "ca-not-configured")
    assert await desk.service.store.read(lambda tx: tx.issuers.active("operator", "ecdsa-p384")) is None
    assert not (desk.service.directory / "ca" / operator_ca.FILE).exists()


async def test_a_key_that_cannot_sign(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is given, and the reserved serial becomes void."""

    def gone(*_: object) -> None:
        raise SignerUnavailable("the token is gone")

    monkeypatch.setattr("attestation_service.authority.authority.sign", gone)
    is_problem(await desk.ask("grace", wanted()), 503, "signer-unavailable")
    headers = desk.people.headers("grace")
    (row,) = (await desk.service.get(PATH, headers=headers)).json()["items"]
    assert row["state"] == "void"


# ---------------------------------------------------------------- how it ends


@pytest.mark.threat("T118")
async def test_revoked_at_once_in_every_worker(start: Starter) -> None:
    """One operator is enough; the next request, with any worker, is refused; list and OCSP say so too."""
    one = await desk_at(start)
    other = await start(one.service.clock, **SETTINGS)
    found = await one.given("grace", wanted())
    pem = found["certificate_pem"]
    for service in (one.service, other):
        assert (await with_certificate(service, pem)).status_code == 200
    answer = await one.revoke("heidi", found["serial"], reason="keyCompromise", note="laptop lost")
    assert (answer.status_code, answer.json()["state"], answer.json()["note"]) == (
        200,
        "revoked",
        "laptop lost",
    )
    for service in (other, one.service):
        is_problem(await with_certificate(service, pem), 401, "unauthenticated")
    issuer = await operator_issuer(other)
    assert issuer.certificate is not None
    assert words_of(await post_ocsp(other, ask(issuer.certificate, found["serial"]))) == ["key_compromise"]
    crl = await other.get("/pki/crl", params={"purpose": "operator"})
    assert listed(crl.content) == {found["serial"]: "key_compromise"}
    (entry,) = await one.service.audit(action="cert_revoked")
    assert (entry["operator_cn"], entry["prev_state"], entry["new_state"]) == ("heidi", "issued", "revoked")
    assert entry["detail"].endswith("keyCompromise: laptop lost")
    is_problem(await one.revoke("heidi", found["serial"]), 409, "transition-forbidden")


async def test_break_glass_may_take_back(desk: Desk) -> None:
    """In an emergency whoever has the envelope ends what should not be."""
    serial = (await desk.given("grace", wanted()))["serial"]
    answer = await desk.service.operator("POST", f"/operator-certificates/{serial}/revoke", {})
    assert (answer.status_code, answer.json()["reason"]) == (200, "unspecified")


async def test_only_operators_certificates_are_taken_back_here(desk: Desk) -> None:
    """A machine's, and one that never was, are not found."""
    (issued,) = await issue(desk.service, "m-1")
    for serial in (issued.serial, "0" * 40):
        is_problem(await desk.revoke("grace", serial), 404, "certificate-unknown")


async def test_it_ends_by_itself(desk: Desk) -> None:
    """After its days nobody is let in."""
    found = await desk.given("grace", wanted(days=1))
    desk.service.clock.advance(86_401)
    is_problem(await desk.show(found["certificate_pem"]), 401, "unauthenticated")


@pytest.mark.threat("T118")
async def test_keys_that_retire_are_believed_and_retired_ones_not(desk: Desk) -> None:
    """A certificate outlives the rotation of its CA key, but not the end of that key."""
    found = await desk.given("grace", wanted())
    issuer = await operator_issuer(desk.service)
    at = desk.service.clock.now()
    for old, new, status in (
        ("active", "retiring", 200),
        ("retiring", "retired", 401),
        ("retired", "next", 401),
    ):
        await desk.service.store.write(
            lambda tx, old=old, new=new: tx.issuers.move(issuer.issuer_id, old, new, at)  # type: ignore[misc]
        )
        assert (await desk.show(found["certificate_pem"])).status_code == status
    is_problem(await desk.ask("grace", wanted()), 503, "ca-not-configured")


# ---------------------------------------------------------------- machines are no operators (R16)


@pytest.mark.threat("T117")
async def test_a_machines_certificate_opens_no_operators_route(desk: Desk) -> None:
    """Also where its OU were the word: it has another CA, and another profile."""
    (issued,) = await issue(desk.service, "m-1")
    pem = x509.load_der_x509_certificate(issued.certificate).public_bytes(Encoding.PEM).decode()
    is_problem(await desk.show(pem), 401, "unauthenticated")


@pytest.mark.threat("T117")
@pytest.mark.parametrize("profile", [ProfileName.NODE_CLIENT, ProfileName.NODE_SERVER])
@pytest.mark.parametrize("duty", ["operator", "viewer", "auditor"])
async def test_machines_issuance_knows_no_operators(desk: Desk, profile: ProfileName, duty: str) -> None:
    """No role of a machine is a duty: what would say so is not signed, whoever asks for it."""
    subject = machine_subject(country="NL", organization="ITL Usions", role=duty, machine_id="m-1")
    with pytest.raises(CertificateNotConformant):
        await issue(desk.service, "m-1", profile=profile, subject=subject)


@pytest.mark.threat("T117")
async def test_the_ca_of_machines_signs_no_operator(desk: Desk) -> None:
    """The profile of operators cannot be had from the key of machines, nor the other way round."""
    machines = await desk.service.store.read(lambda tx: tx.issuers.active("machine", "ecdsa-p384"))
    assert machines is not None
    person = operator_subject(country="NL", organization="ITL Usions", name="ada", duty="operator")
    profile = ProfileName.OPERATOR
    with pytest.raises(CANotConfigured):
        await issue(
            desk.service, "m-1", profile=profile, subject=person, uris=(), issuer_id=machines.issuer_id
        )
    operators = await operator_issuer(desk.service)
    with pytest.raises(CANotConfigured):
        await issue(desk.service, "m-1", issuer_id=operators.issuer_id)


@pytest.mark.threat("T117")
async def test_an_operators_certificate_is_no_machines(start: Starter) -> None:
    """Not even one with the machine's id for a name, a fresh challenge of that machine and a right signature."""
    desk = await desk_at(start, tpm_ca_bundle_dir=start.bundle())
    holder = await holder_of(desk.service)
    found = await desk.given("grace", {**wanted(), "name": holder.node.machine_id})
    honest = await holder.body()
    signature = key_of("ada").sign(honest["nonce"].encode(), ec.ECDSA(hashes.SHA384()))
    answer = await holder.send(
        honest | {"cert_pem": found["certificate_pem"], "nonce_signature": b64encode(signature)}
    )
    is_problem(answer, 403, "certificate-untrusted")
    assert (await holder.send(await holder.body())).status_code == 200, "the machine's own is taken"


def forged(issuer: x509.Certificate, *, serial: int, key: ec.EllipticCurvePrivateKey) -> str:
    """Return a certificate of an operator that names *issuer*, signed by another key."""
    name = x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, "operator"),
            x509.NameAttribute(NameOID.COMMON_NAME, "mallory"),
        ]
    )
    at = datetime(2026, 11, 21, tzinfo=UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(issuer.subject)
        .public_key(key_of("mallory").public_key())
        .serial_number(serial)
        .not_valid_before(at)
        .not_valid_after(at + timedelta(days=9))
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
        .sign(key, hashes.SHA384())
        .public_bytes(Encoding.PEM)
        .decode()
    )


@pytest.mark.threat("T118")
async def test_forged_certificates(desk: Desk) -> None:
    """Who only names our CA is nobody; so is what the CA's own key signed without its issuance log."""
    found = await desk.given("grace", wanted())
    issuer = await operator_issuer(desk.service)
    assert issuer.certificate is not None
    ca = x509.load_der_x509_certificate(issuer.certificate)
    for serial in (int(found["serial"], 16), 5):
        is_problem(await desk.show(forged(ca, serial=serial, key=key_of("mallory"))), 401, "unauthenticated")
    # A stolen CA key makes no operators by itself: what is not in the issuance log opens nothing.
    authority = desk.service.resources.authority
    assert authority is not None
    stolen = await asyncio.to_thread(lambda: authority.signing_key(issuer.issuer_id).private_key)
    assert isinstance(stolen, ec.EllipticCurvePrivateKey)
    for serial in (int(found["serial"], 16), 5):
        answer = await desk.show(forged(ca, serial=serial, key=stolen))
        is_problem(answer, 401, "unauthenticated")


async def test_certificates_of_other_cas_beside_ours(start: Starter) -> None:
    """ITL_OPERATOR_CA is believed beside the CA of the service; what neither signed is not."""
    at = datetime(2026, 11, 21, tzinfo=UTC)
    other, stranger = OperatorCA(at=at), OperatorCA(at=at)
    (start.directory / "operators.pem").write_bytes(other.pem)
    desk = await desk_at(start, operator_ca=start.directory / "operators.pem")
    found = await desk.given("grace", wanted())
    assert (await desk.show(found["certificate_pem"])).status_code == 200
    assert (await desk.show(other.issue("bob").pem.decode())).status_code == 200
    is_problem(await desk.show(stranger.issue("eve").pem.decode()), 401, "unauthenticated")


async def test_a_certificate_whose_issuer_cannot_be_read(desk: Desk) -> None:
    """A name that is no text ends in a refusal, not in a failure of ours."""
    der = OperatorCA(datetime(2026, 11, 21, tzinfo=UTC), "Operators").issue("eve").der
    assert b"Operators" in der
    broken = base64.encodebytes(der.replace(b"Operators", b"\xff" * 9)).decode()
    pem = f"-----BEGIN CERTIFICATE-----\n{broken}-----END CERTIFICATE-----\n"
    is_problem(await desk.show(pem), 401, "unauthenticated")


async def test_certificates_of_others_without_other_cas(desk: Desk) -> None:
    """Where only the CA of the service is believed, all others are refused."""
    stranger = OperatorCA(at=datetime(2026, 11, 21, tzinfo=UTC))
    is_problem(await desk.show(stranger.issue("eve").pem.decode()), 401, "unauthenticated")


async def test_two_certificates_of_one_person_are_one_vote(committee: Desk) -> None:
    """The same name or the same key is the same human; another of both is another."""
    people = committee.people
    for who in ("grace", "heidi"):
        await committee.ask(who, wanted("ada"))
    (ada,) = (await committee.service.get(PATH, headers=people.headers("grace"))).json()["items"]
    row = await committee.service.store.read(lambda tx: tx.issuances.get(ada["serial"]))
    assert row is not None
    assert row.certificate is not None
    pem = x509.load_der_x509_certificate(row.certificate).public_bytes(Encoding.PEM).decode()
    first = await committee.show(pem, "POST", PATH, wanted("bob"))
    assert first.status_code == 202
    assert (await committee.ask("ada", wanted("bob"))).status_code == 202
    assert (await committee.ask("heidi", wanted("bob"))).status_code == 201


# ---------------------------------------------------------------- the file for TLS


async def test_the_file_for_tls_follows_the_keys(desk: Desk) -> None:
    """Maintenance writes the CA's certificates where they changed, and leaves the file alone where they did not."""
    await maintenance.once(desk.service.resources)
    path = desk.service.directory / "ca" / operator_ca.FILE
    issuer = await operator_issuer(desk.service)
    assert issuer.certificate is not None
    assert x509.load_pem_x509_certificates(path.read_bytes()) == [
        x509.load_der_x509_certificate(issuer.certificate)
    ]
    assert path.stat().st_mode & 0o777 == 0o644
    before = path.stat().st_ino
    await maintenance.once(desk.service.resources)
    assert path.stat().st_ino == before
    path.write_text("something else")
    await maintenance.once(desk.service.resources)
    assert len(x509.load_pem_x509_certificates(path.read_bytes())) == 1
    assert not list(path.parent.glob(f".{operator_ca.FILE}-*"))


def test_a_file_that_cannot_be_written_leaves_nothing(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What fails half way leaves neither a file nor a part of one."""

    def full(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("attestation_service.border.operator_ca.os.fsync", full)
    with pytest.raises(OSError, match="no space"):
        operator_ca.publish(tmp_path / operator_ca.FILE, b"x")
    assert list(tmp_path.iterdir()) == []


async def test_hybrid_operators_are_classical(start: Starter) -> None:
    """A hybrid CA gives people one certificate, by the key that TLS knows."""
    desk = await desk_at(start, enrollment_ca_algorithm="hybrid")
    found = await desk.given("grace", wanted())
    certificate = x509.load_pem_x509_certificate(found["certificate_pem"].encode())
    assert certificate.signature_hash_algorithm is not None
    assert (await desk.show(found["certificate_pem"])).status_code == 200
    assert await _rows(desk.service) == 1
