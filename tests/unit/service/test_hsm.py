"""CA keys in hardware: what is registered, reserved, written down and revoked, and what of it is refused."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from attestation.wire import b64encode
from attestation_service.hsm import issuance
from tests.unit.service import hsm_requests as hsm
from tests.unit.service.conftest import Service, Starter
from tests.unit.service.realm import a_key as cluster_key
from tests.unit.service.test_service_accounts import cluster, jwks

pytestmark = pytest.mark.anyio


@pytest.fixture
async def service(start: Starter) -> Service:
    """A service that knows one cluster."""
    return await hsm.serving(start)


async def test_an_issuer_is_registered_once_and_its_key_keeps_its_name(service: Service) -> None:
    """Asked again: the same answer, and one entry in the audit. Its addresses are public."""
    issuer = await hsm.registered(service)
    again = await hsm.good(service, "PUT", f"/issuers/{hsm.UID}", issuer.put())
    renewed = issuer.certificate(serial=8)
    same = await hsm.good(service, "PUT", f"/issuers/{hsm.UID}", issuer.put(certificate=renewed))
    assert {again["issuer_id"], same["issuer_id"]} == {issuer.issuer_id}
    assert again["crl_url"] == f"https://attest.example/pki/hsm/{issuer.issuer_id}.crl"
    assert (again["ocsp_url"], again["crl_number"]) == ("https://attest.example/pki/ocsp", 0)
    served = await service.get(f"/pki/hsm/{issuer.issuer_id}.crt")
    assert served.content == renewed.public_bytes(Encoding.DER)
    told = await service.audit(action="hsm_issuer_registered")
    assert len(told) == 2


@pytest.mark.threat("T294")
async def test_the_key_of_another_issuer_is_not_taken(service: Service) -> None:
    """An issuer in a namespace has a key of its own; one of the cluster may go on with one that was there."""
    issuer = await hsm.registered(service)
    body = issuer.put() | {"kind": "HsmIssuer", "namespace": "other", "name": "mine"}
    refused = await hsm.ask(service, "PUT", "/issuers/another-uid", body)
    assert (refused.status_code, hsm.code(refused)) == (422, "request-invalid"), refused.text
    (item,) = (await service.operator("GET", "/hsm/issuers")).json()["items"]
    assert item["uid"] == hsm.UID
    body = issuer.put() | {"kind": "HsmClusterIssuer", "namespace": None, "name": "goes-on"}
    assert (await hsm.good(service, "PUT", "/issuers/another-uid", body))["issuer_id"] == issuer.issuer_id


async def test_another_key_of_an_issuer_follows_the_one_before(service: Service) -> None:
    """Both stay known; the first is marked, and still has its lists."""
    first, second = await hsm.registered(service), await hsm.registered(service)
    assert first.issuer_id != second.issuer_id
    items = (await service.operator("GET", "/hsm/issuers")).json()["items"]
    marked = {each["issuer_id"]: each["superseded_at"] is not None for each in items}
    assert marked == {first.issuer_id: True, second.issuer_id: False}
    assert (await hsm.listed(service, first)).issuer.rfc4514_string() == "CN=Seed CA"


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ({"ca": False}, "not the certificate of a CA"),
        ({"sign_lists": False}, "cRLSign"),
        ({"days": -0.01}, "not valid now"),
    ],
    ids=["leaf", "no-lists", "over"],
)
async def test_only_a_ca_is_registered(service: Service, fault: dict[str, Any], words: str) -> None:
    """What could not sign lists, or certifies nothing, is no issuer."""
    issuer = hsm.Issuer(service.clock.at)
    answer = await hsm.ask(
        service, "PUT", f"/issuers/{hsm.UID}", issuer.put(certificate=issuer.certificate(**fault))
    )
    assert (answer.status_code, hsm.code(answer)) == (422, "request-invalid")
    assert words in answer.json()["detail"]


async def test_a_chain_must_hold(service: Service) -> None:
    """A CA that another one certified comes with it; a stranger's certificate in its place is refused."""
    root, sub = hsm.Issuer(service.clock.at, "Root"), hsm.Issuer(service.clock.at, "Sub")
    certificate = sub.certificate(by=root)
    for above, status in ((root, 200), (hsm.Issuer(service.clock.at, "Root"), 422)):
        chain = [b64encode(above.certificate().public_bytes(Encoding.DER))]
        body = sub.put(certificate=certificate, chain=chain)
        assert (await hsm.ask(service, "PUT", f"/issuers/{hsm.UID}", body)).status_code == status
    lonely = await hsm.ask(service, "PUT", f"/issuers/{hsm.UID}", sub.put(certificate=certificate))
    assert lonely.status_code == 422


async def test_a_certificate_is_reserved_signed_and_written_down(service: Service) -> None:
    """Each step may be repeated: the same serial number, the same entry; what was issued comes back."""
    issuer, key = await hsm.registered(service), hsm.a_key()
    said = hsm.request(service, key)
    (first,) = await hsm.reserve(service, issuer, said)
    (again,) = await hsm.reserve(service, issuer, said)
    assert again == first
    assert first["certificate"] is None
    leaf = issuer.leaf(first["serial"], said, key)
    answers = [(await hsm.record(service, issuer, ("request-1", leaf))).json() for _ in range(2)]
    assert answers[0] == answers[1]
    (issued,) = await hsm.reserve(service, issuer, said)
    assert issued["certificate"] == b64encode(leaf)
    (told,) = await service.audit(action="hsm_certificate_issued")
    assert answers[0]["recorded"][0]["audit_entry_hash"] == told["entry_hash"]
    assert first["serial"] in told["detail"]
    assert "w-1.example" in told["detail"]


@pytest.mark.threat("T294")
async def test_a_request_that_asks_for_something_else_is_another(service: Service) -> None:
    """Under one UID there is one certificate; only its time may be moved while it is not signed."""
    issuer, key = await hsm.registered(service), hsm.a_key()
    said = hsm.request(service, key)
    (first,) = await hsm.reserve(service, issuer, said)
    later = said | {"not_after": (service.clock.at + timedelta(days=20)).isoformat()}
    (moved,) = await hsm.reserve(service, issuer, later)
    assert moved["serial"] == first["serial"]
    for other in ({"subject": "CN=x"}, {"is_ca": True}, {"spki_sha256": "00" * 32}, {"requester": "eve"}):
        path = f"/issuers/{issuer.issuer_id}/certificates"
        answer = await hsm.ask(service, "POST", path, {"requests": [said | other]})
        assert (answer.status_code, hsm.code(answer)) == (409, "hsm-differs"), other


FAULTS: dict[str, Any] = {
    "by another key": lambda _: {"by": hsm.Issuer(_.clock.at).key},
    "for another key": lambda _: {"key": hsm.a_key()},
    "of another issuer": lambda _: {"issuer": "CN=Other"},
    "with another serial number": lambda _: {"serial": "01" * 20},
    "of a CA": lambda _: {"ca": True},
    "with another subject": lambda _: {"subject": "CN=admin"},
    "longer": lambda _: {"not_after": _.clock.at.replace(microsecond=0) + timedelta(days=3000)},
}


@pytest.mark.threat("T294")
@pytest.mark.parametrize("fault", FAULTS)
async def test_what_was_not_reserved_is_not_written_down(service: Service, fault: str) -> None:
    """None of the batch is: its good half neither."""
    issuer, keys = await hsm.registered(service), (hsm.a_key(), hsm.a_key())
    said = [hsm.request(service, key, f"request-{n}") for n, key in enumerate(keys)]
    reserved = await hsm.reserve(service, issuer, *said)
    made = [
        issuer.leaf(each["serial"], what, key, **(FAULTS[fault](service) if bad else {}))
        for each, what, key, bad in zip(reserved, said, keys, (False, True), strict=True)
    ]
    answer = await hsm.record(service, issuer, ("request-0", made[0]), ("request-1", made[1]))
    assert (answer.status_code, hsm.code(answer)) == (422, "request-invalid"), answer.text
    assert await service.audit(action="hsm_certificate_issued") == []
    path = f"/hsm/issuers/{issuer.issuer_id}/certificates"
    items = (await service.operator("GET", path)).json()["items"]
    assert [each["state"] for each in items] == ["reserved", "reserved"]


async def test_another_certificate_of_a_request_is_refused(service: Service) -> None:
    """Two controllers signed the same serial number: what was written down first is what there is."""
    issuer, key = await hsm.registered(service), hsm.a_key()
    said = hsm.request(service, key)
    (found,) = await hsm.reserve(service, issuer, said)
    first, second = (issuer.leaf(found["serial"], said, key) for _ in range(2))
    answers = await asyncio.gather(
        *(hsm.record(service, issuer, ("request-1", each)) for each in (first, second))
    )
    assert sorted(each.status_code for each in answers) == [200, 409]
    assert len(await service.audit(action="hsm_certificate_issued")) == 1


async def test_two_controllers_reserve_one_serial_number(service: Service) -> None:
    """Whoever asks for a request, and when: it has one."""
    issuer, key = await hsm.registered(service), hsm.a_key()
    said = hsm.request(service, key)
    found = await asyncio.gather(*(hsm.reserve(service, issuer, said) for _ in range(8)))
    assert len({each["serial"] for (each,) in found}) == 1


async def test_a_time_outside_that_of_the_ca_is_refused(service: Service) -> None:
    """A certificate that outlives its CA could not be revoked to any effect; neither one that is over."""
    issuer, key = await hsm.registered(service), hsm.a_key()
    at = service.clock.at
    for members in (
        {"not_after": (at + timedelta(days=4000)).isoformat()},
        {"not_before": (at - timedelta(days=1)).isoformat()},
        {"not_after": (at - timedelta(minutes=1)).isoformat()},
        {"not_after": (at - timedelta(minutes=6)).isoformat()},
    ):
        path = f"/issuers/{issuer.issuer_id}/certificates"
        answer = await hsm.ask(service, "POST", path, {"requests": [hsm.request(service, key, **members)]})
        assert (answer.status_code, hsm.code(answer)) == (422, "request-invalid"), members


async def test_a_batch_names_each_request_once(service: Service) -> None:
    """Twice in one batch would be two answers about one serial number."""
    issuer, key = await hsm.registered(service), hsm.a_key()
    said = hsm.request(service, key)
    path = f"/issuers/{issuer.issuer_id}/certificates"
    assert (await hsm.ask(service, "POST", path, {"requests": [said, said]})).status_code == 422
    (found,) = await hsm.reserve(service, issuer, said)
    leaf = issuer.leaf(found["serial"], said, key)
    assert (await hsm.record(service, issuer, ("request-1", leaf), ("request-1", leaf))).status_code == 422


async def test_what_is_not_finished_is_given_up_and_listed(service: Service) -> None:
    """After ten minutes nobody may get it any more; the request gets another serial number."""
    issuer, key = await hsm.registered(service), hsm.a_key()
    said = hsm.request(service, key)
    (first,) = await hsm.reserve(service, issuer, said)
    assert not await issuance.give_up_stale(service.resources)
    assert len(await hsm.listed(service, issuer)) == 0
    service.clock.advance(601)
    await issuance.give_up_stale(service.resources)
    answer = await hsm.record(service, issuer, ("request-1", issuer.leaf(first["serial"], said, key)))
    assert (answer.status_code, hsm.code(answer)) == (404, "certificate-unknown")
    (second,) = await hsm.reserve(service, issuer, said)
    assert second["serial"] != first["serial"]
    found = await hsm.listed(service, issuer)
    assert [f"{each.serial_number:040x}" for each in found] == [first["serial"]]
    (told,) = await service.audit(action="hsm_certificate_void")
    assert first["serial"] in told["detail"]


async def test_operators_revoke_and_the_list_names_it(service: Service) -> None:
    """For good, once, with its reason; only under the key that issued it."""
    issuer, other = await hsm.registered(service), await hsm.registered(service, "other-uid", name="Other")
    serial = await hsm.issued(service, issuer)
    assert (await hsm.revoke(service, other, serial)).status_code == 404
    answer = await hsm.revoke(service, issuer, serial)
    assert (answer.status_code, answer.json()["state"]) == (200, "revoked")
    assert (await hsm.revoke(service, issuer, serial)).status_code == 409
    (entry,) = await hsm.listed(service, issuer)
    assert f"{entry.serial_number:040x}" == serial
    reason = entry.extensions.get_extension_for_class(x509.CRLReason).value.reason
    assert reason is x509.ReasonFlags.key_compromise
    assert len(await service.audit(action="hsm_certificate_revoked")) == 1
    path = f"/hsm/issuers/{issuer.issuer_id}/certificates"
    items = (await service.operator("GET", path, params={"state": "revoked"})).json()["items"]
    assert [each["serial"] for each in items] == [serial]


async def test_a_revoked_certificate_stays_what_was_issued(service: Service) -> None:
    """Its request asked again gets it, not another one: a revocation is no way to a new certificate."""
    issuer, key = await hsm.registered(service), hsm.a_key()
    said = hsm.request(service, key)
    (found,) = await hsm.reserve(service, issuer, said)
    leaf = issuer.leaf(found["serial"], said, key)
    await hsm.record(service, issuer, ("request-1", leaf))
    await hsm.revoke(service, issuer, found["serial"])
    (again,) = await hsm.reserve(service, issuer, said)
    assert (again["serial"], again["certificate"]) == (found["serial"], b64encode(leaf))


@pytest.mark.threat("T294")
async def test_keys_of_another_cluster_do_not_exist(start: Starter) -> None:
    """Neither to reserve under, nor to make lists or answers for; the same key may be registered in both."""
    key = cluster_key(number=1)
    rules = [cluster(), cluster(cluster_id="other", jwks=jwks(key))]
    service = await hsm.serving(start, clusters=rules)
    issuer = await hsm.registered(service)
    headers = hsm.bearer(service, key)
    for method, path in (
        ("POST", "/certificates"),
        ("POST", "/certificates/issued"),
        ("GET", "/crl"),
        ("PUT", "/crl"),
        ("GET", "/responder"),
        ("PUT", "/responder"),
    ):
        body: Any = {
            "/certificates": {"requests": [hsm.request(service, hsm.a_key())]},
            "/certificates/issued": {"certificates": [{"request_uid": "x", "certificate": "AAAA"}]},
        }.get(path)
        if method == "PUT":
            body = {"number": 1, "crl": "AAAA"} if path == "/crl" else {"certificate": "AAAA"}
        url = f"/api/v1/hsm/issuers/{issuer.issuer_id}{path}"
        answer = await service.http.request(method, url, json=body, headers=headers)
        assert (answer.status_code, hsm.code(answer)) == (404, "issuer-unknown"), path
    answer = await service.http.put(f"/api/v1/hsm/issuers/{hsm.UID}", json=issuer.put(), headers=headers)
    assert answer.status_code == 200
    assert answer.json()["issuer_id"] != issuer.issuer_id


async def test_what_they_issued_can_be_asked_for(service: Service) -> None:
    """In the language of queries: one row for each serial number, with its request."""
    issuer = await hsm.registered(service)
    serial = await hsm.issued(service, issuer)
    await hsm.reserve(service, issuer, hsm.request(service, hsm.a_key(), "open"))
    text = "HsmCertificates | sort by state asc | project serial, state, valid, issuer_id, name, names"
    answer = await service.operator("POST", "/query", {"query": text})
    assert answer.status_code == 200, answer.text
    first, second = answer.json()["rows"]
    assert first == [serial, "issued", True, issuer.issuer_id, "request-1", '["DNS:w-1.example"]']
    assert second[1:5] == ["reserved", False, issuer.issuer_id, "open"]
