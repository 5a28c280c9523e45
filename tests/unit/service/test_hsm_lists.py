"""Revocation lists and OCSP of CA keys in hardware: what is begun, what comes back, and what of it is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509 import ocsp
from cryptography.x509.oid import ExtendedKeyUsageOID

from attestation.store import HSMCertificate, Tx
from attestation.wire import b64encode
from tests.unit.service import hsm_requests as hsm
from tests.unit.service.conftest import Service, Starter

pytestmark = pytest.mark.anyio


@pytest.fixture
async def service(start: Starter) -> Service:
    """A service that knows one cluster."""
    return await hsm.serving(start)


async def begun(service: Service, issuer: hsm.Issuer) -> dict[str, Any]:
    """Return what is to be signed now."""
    found: dict[str, Any] = await hsm.good(service, "GET", f"/issuers/{issuer.issuer_id}/crl")
    return found


async def put(service: Service, issuer: hsm.Issuer, number: int, crl: bytes) -> Any:
    """Hand a list in."""
    body = {"number": number, "crl": b64encode(crl)}
    return await hsm.ask(service, "PUT", f"/issuers/{issuer.issuer_id}/crl", body)


async def test_a_key_that_another_one_followed_is_told_when_its_last_certificate_ends(
    service: Service,
) -> None:
    """Its controller keeps it until then; of a key that signs nothing is told."""
    issuer, empty = await hsm.registered(service), hsm.Issuer(service.clock.at, name="Second CA")
    serial = await hsm.issued(service, issuer)
    assert (await begun(service, issuer))["last_end"] is None
    row = await service.store.read(lambda tx: tx.hsm.certificate(serial))
    assert row is not None
    last = row.not_after.isoformat().replace("+00:00", "Z")
    for follower in (empty, hsm.Issuer(service.clock.at, name="Third CA")):
        found = await hsm.good(service, "PUT", f"/issuers/{hsm.UID}", follower.put())
        follower.issuer_id = found["issuer_id"]
    # While it is begun, told again, and after it was handed in.
    for due in (True, True, False):
        if not due:
            await hsm.listed(service, issuer)
        told = await begun(service, issuer)
        assert (told["due"], told["last_end"]) == (due, last)
    await hsm.listed(service, empty)
    # One that signed nothing is needed by nobody from the moment when the other one followed.
    followed = await service.store.read(lambda tx: tx.hsm.issuer(empty.issuer_id))
    assert followed is not None
    assert followed.superseded_at is not None
    assert (await begun(service, empty))["last_end"] is not None


async def test_a_list_is_due_first_and_after_each_revocation(service: Service) -> None:
    """What was begun is told again; a list that is served is due again when it is old, or knows too little."""
    issuer = await hsm.registered(service)
    assert (await service.get(f"/pki/hsm/{issuer.issuer_id}.crl")).status_code == 503
    first, again = await begun(service, issuer), await begun(service, issuer)
    assert first == again
    assert (first["due"], first["number"], first["entries"]) == (True, 1, [])
    assert len(await hsm.listed(service, issuer)) == 0
    assert (await begun(service, issuer))["due"] is False
    serial = await hsm.issued(service, issuer)
    assert (await begun(service, issuer))["due"] is False
    await hsm.revoke(service, issuer, serial)
    assert [each["serial"] for each in (await begun(service, issuer))["entries"]] == [serial]
    found = await hsm.listed(service, issuer)
    assert found.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number == 2
    service.clock.advance(service.resources.settings.crl_refresh_seconds)
    assert (await begun(service, issuer))["due"] is True
    service.clock.advance(86_400)
    assert (await service.get(f"/pki/hsm/{issuer.issuer_id}.crl")).status_code == 503


async def test_the_number_of_a_list_is_told_when_it_is_served(service: Service) -> None:
    """To the controller and to operators: what was begun may never be published."""
    issuer = await hsm.registered(service)

    async def told() -> set[int]:
        again = await hsm.good(service, "PUT", f"/issuers/{hsm.UID}", issuer.put())
        [shown] = (await service.operator("GET", "/hsm/issuers")).json()["items"]
        return {again["crl_number"], shown["crl_number"]}

    assert (await begun(service, issuer))["number"] == 1
    assert await told() == {0}
    await hsm.listed(service, issuer)
    assert await told() == {1}


async def test_a_number_is_never_used_twice(service: Service) -> None:
    """Also where what was begun was never handed in; and what was begun before is taken no more."""
    issuer = await hsm.registered(service)
    first = await begun(service, issuer)
    serial = await hsm.issued(service, issuer)
    await hsm.revoke(service, issuer, serial)
    second = await begun(service, issuer)
    assert (first["number"], second["number"]) == (1, 2)
    late = await put(service, issuer, 1, issuer.crl(first))
    assert (late.status_code, hsm.code(late)) == (409, "hsm-differs")
    signed = issuer.crl(second)
    for _ in range(2):
        assert (await put(service, issuer, 2, signed)).status_code == 204
    assert (await put(service, issuer, 2, issuer.crl(second))).status_code == 409


FALSE: dict[str, Callable[[hsm.Issuer, dict[str, Any]], bytes]] = {
    "omits an entry": lambda issuer, said: issuer.crl(said, entries=said["entries"][:-1]),
    "names another": lambda issuer, said: issuer.crl(
        said, entries=[{**said["entries"][0], "serial": "01" * 20}, *said["entries"][1:]]
    ),
    "gives another reason": lambda issuer, said: issuer.crl(
        said, entries=[{**each, "reason": "superseded"} for each in said["entries"]]
    ),
    "has another number": lambda issuer, said: issuer.crl(said, number=99),
    "lasts longer": lambda issuer, said: issuer.crl(said, next_update=issuer.at + timedelta(days=99)),
    "is by another key": lambda issuer, said: issuer.crl(said, by=hsm.Issuer(issuer.at).key),
    "is of another issuer": lambda issuer, said: replace(issuer, name="Other", made=None).crl(said),
}


@pytest.mark.threat("T294")
@pytest.mark.parametrize("fault", FALSE)
async def test_a_list_that_was_not_begun_is_refused(service: Service, fault: str) -> None:
    """One entry less, and a revoked certificate would be good again."""
    issuer = await hsm.registered(service)
    for n in range(2):
        await hsm.revoke(service, issuer, await hsm.issued(service, issuer, f"request-{n}"))
    said = await begun(service, issuer)
    answer = await put(service, issuer, said["number"], FALSE[fault](issuer, said))
    assert (answer.status_code, hsm.code(answer)) == (422, "request-invalid"), answer.text
    assert (await put(service, issuer, said["number"], issuer.crl(said))).status_code == 204


async def test_what_is_no_list_is_malformed(service: Service) -> None:
    """Garbage, a certificate, a list with a byte behind it."""
    issuer = await hsm.registered(service)
    said = await begun(service, issuer)
    whole = issuer.crl(said)
    for data in (
        b"",
        b"\x30\x00",
        whole[:-1],
        whole + b"\0",
        issuer.certificate().public_bytes(Encoding.DER),
    ):
        answer = await put(service, issuer, said["number"], data)
        assert answer.status_code in (400, 422), data[:20]
        assert hsm.code(answer) in ("malformed-evidence", "request-invalid")


@pytest.mark.threat("T294")
async def test_a_delta_list_is_refused(service: Service) -> None:
    """A list of ours speaks of everything; one that does not would hide what it leaves out."""
    issuer = await hsm.registered(service)
    said = await begun(service, issuer)
    whole = x509.load_der_x509_crl(issuer.crl(said))
    builder = x509.CertificateRevocationListBuilder(
        issuer_name=whole.issuer,
        last_update=whole.last_update_utc.replace(tzinfo=None),
        next_update=(whole.next_update_utc or issuer.at).replace(tzinfo=None),
    )
    for extension in whole.extensions:
        builder = builder.add_extension(extension.value, critical=False)
    delta = builder.add_extension(x509.DeltaCRLIndicator(1), critical=True).sign(issuer.key, hashes.SHA384())
    answer = await put(service, issuer, said["number"], delta.public_bytes(Encoding.DER))
    assert "other extensions" in answer.json()["detail"]


async def test_ten_thousand_entries_go_through(service: Service) -> None:
    """The list of a large issuer is begun, signed, checked and served."""
    issuer = await hsm.registered(service)
    at = service.clock.at

    def work(tx: Tx) -> None:
        for n in range(10_000):
            row = HSMCertificate(
                serial=f"{n + 1:040x}", issuer_id=issuer.issuer_id, request_uid=f"r-{n}", kind="CertificateRequest",
                namespace="seed", name="r", spki_sha256="00" * 32, subject="CN=w", names="[]", is_ca=False,
                requester="x", not_before=at, not_after=at + timedelta(days=9), reserved_at=at,
            )  # fmt: skip
            tx.hsm.reserve(row)
            tx.hsm.void(row, "given up", at)

    await service.store.write(work)
    assert len(await hsm.listed(service, issuer)) == 10_000


def question(issuer: hsm.Issuer, serial: str, hash_: Any = None) -> bytes:
    """Return an OCSP request about one certificate."""
    key_hash, name_hash = _hashes(issuer, hash_ or hashes.SHA1())
    builder = ocsp.OCSPRequestBuilder().add_certificate_by_hash(
        name_hash, key_hash, int(serial, 16), hash_ or hashes.SHA1()
    )
    return builder.build().public_bytes(Encoding.DER)


def _hashes(issuer: hsm.Issuer, hash_: Any) -> tuple[bytes, bytes]:
    found = []
    certificate = issuer.certificate()
    spki = hsm.spki_of(issuer.key)
    for data in (spki[spki.index(b"\x03\x62\x00") + 3 :], certificate.subject.public_bytes()):
        digest = hashes.Hash(hash_)
        digest.update(data)
        found.append(digest.finalize())
    return found[0], found[1]


async def status(service: Service, issuer: hsm.Issuer, serial: str) -> ocsp.OCSPResponse:
    """Ask what became of a certificate."""
    answer = await service.http.post(
        "/pki/ocsp",
        content=question(issuer, serial),
        headers={"Content-Type": "application/ocsp-request"},
    )
    return ocsp.load_der_ocsp_response(answer.content)


async def delegated(service: Service, issuer: hsm.Issuer) -> dict[str, Any]:
    """Certify the key of the service that answers; return what was asked."""
    path = f"/issuers/{issuer.issuer_id}/responder"
    asked: dict[str, Any] = await hsm.good(service, "GET", path)
    assert asked["due"]
    await hsm.good(service, "PUT", path, {"certificate": b64encode(issuer.responder(asked))})
    return asked


async def test_ocsp_is_answered_with_the_key_that_the_issuer_certified(service: Service) -> None:
    """Good, revoked at once, unknown; signed by the delegate, whose certificate comes along."""
    issuer = await hsm.registered(service)
    serial = await hsm.issued(service, issuer)
    before = await status(service, issuer, serial)
    assert before.response_status is ocsp.OCSPResponseStatus.UNAUTHORIZED
    asked = await delegated(service, issuer)
    good = await status(service, issuer, serial)
    assert good.response_status is ocsp.OCSPResponseStatus.SUCCESSFUL
    assert good.certificate_status is ocsp.OCSPCertStatus.GOOD
    (delegate,) = good.certificates
    assert f"{delegate.serial_number:040x}" == asked["serial"]
    delegate.public_key().verify(  # type: ignore[union-attr, call-arg]  # a key on P-384
        good.signature, good.tbs_response_bytes, _ecdsa(good)
    )
    await hsm.revoke(service, issuer, serial)
    assert (await status(service, issuer, serial)).certificate_status is ocsp.OCSPCertStatus.REVOKED
    assert (await status(service, issuer, "02" * 20)).certificate_status is ocsp.OCSPCertStatus.UNKNOWN
    stranger = hsm.Issuer(service.clock.at)
    found = await status(service, stranger, serial)
    assert found.response_status is ocsp.OCSPResponseStatus.UNAUTHORIZED


def _ecdsa(answer: ocsp.OCSPResponse) -> Any:
    assert answer.signature_hash_algorithm is not None
    return ec.ECDSA(answer.signature_hash_algorithm)


async def test_a_key_that_answers_is_replaced_each_day(service: Service) -> None:
    """The same request is told until it is certified; the old key answers until then, and never past its end."""
    issuer = await hsm.registered(service)
    path = f"/issuers/{issuer.issuer_id}/responder"
    first = await hsm.good(service, "GET", path)
    assert first == await hsm.good(service, "GET", path)
    await delegated(service, issuer)
    assert (await hsm.good(service, "GET", path))["due"] is False
    service.clock.advance(86_400)
    serial = await hsm.issued(service, issuer)
    second = await hsm.good(service, "GET", path)
    assert second["serial"] != first["serial"]
    (old,) = (await status(service, issuer, serial)).certificates
    assert f"{old.serial_number:040x}" == first["serial"]
    await delegated(service, issuer)
    (new,) = (await status(service, issuer, serial)).certificates
    assert f"{new.serial_number:040x}" == second["serial"]
    service.clock.advance(7 * 86_400)
    gone = await status(service, issuer, serial)
    assert gone.response_status is ocsp.OCSPResponseStatus.UNAUTHORIZED


@pytest.mark.threat("T294")
@pytest.mark.parametrize(
    "fault",
    [
        {"serial": "01" * 20},
        {"key": hsm.a_key().public_key()},
        {"by": hsm.a_key()},
        {"purpose": ExtendedKeyUsageOID.SERVER_AUTH},
        {"nocheck": False},
        {"key_id": False},
        {"days": 30},
    ],
    ids=["serial", "key", "by", "purpose", "nocheck", "key-id", "days"],
)
async def test_only_what_was_asked_for_answers(service: Service, fault: dict[str, Any]) -> None:
    """Another certificate would let somebody else answer, or ours do something else."""
    issuer = await hsm.registered(service)
    path = f"/issuers/{issuer.issuer_id}/responder"
    asked = await hsm.good(service, "GET", path)
    body = {"certificate": b64encode(issuer.responder(asked, **fault))}
    answer = await hsm.ask(service, "PUT", path, body)
    assert (answer.status_code, hsm.code(answer)) == (422, "request-invalid"), answer.text


async def test_keys_that_answer_are_sealed(service: Service) -> None:
    """The database has neither key in the clear."""
    issuer = await hsm.registered(service)
    await delegated(service, issuer)
    row = await service.store.read(lambda tx: tx.hsm.delegate(issuer.issuer_id, "active"))
    assert row is not None
    assert b"\x06\x05\x2b\x81\x04\x00\x22" not in row.sealed_key  # secp384r1 stands in each PKCS#8 of it
    assert service.resources.hsm_answers is not None


async def test_a_key_that_somebody_wrote_into_the_database_is_not_certified(service: Service) -> None:
    """Whoever holds it would answer for the CA for a week; another key is asked for, and theirs is refused."""
    issuer = await hsm.registered(service)
    path = f"/issuers/{issuer.issuer_id}/responder"
    asked = await hsm.good(service, "GET", path)
    pending = await service.store.read(lambda tx: tx.hsm.delegate(issuer.issuer_id, "pending"))
    assert pending is not None
    key = hsm.a_key()
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "theirs")])
    request = x509.CertificateSigningRequestBuilder().subject_name(name).sign(key, hashes.SHA384())
    planted = replace(pending, request=request.public_bytes(Encoding.DER))
    await service.store.write(lambda tx: tx.hsm.put_delegate(planted))
    body = {"certificate": b64encode(issuer.responder(asked, key=key.public_key()))}
    refused = await hsm.ask(service, "PUT", path, body)
    assert (refused.status_code, hsm.code(refused)) == (409, "hsm-differs"), refused.text
    again = await hsm.good(service, "GET", path)
    assert again["serial"] != asked["serial"]
    await delegated(service, issuer)
