"""Revocation lists and OCSP over HTTP: right at once in every worker, cheap where nothing changed (FAULTS R6)."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable
from datetime import timedelta
from email.utils import parsedate_to_datetime
from typing import Any

import pytest
from asn1crypto import ocsp as asn1_ocsp
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import mldsa
from cryptography.x509 import ocsp
from cryptography.x509.oid import ExtendedKeyUsageOID
from dilithium_py.ml_dsa import ML_DSA_87
from starlette.requests import Request
from starlette.types import Message

from attestation.errors import SignerUnavailable
from attestation.pki.ocsp import MAX_REQUEST_BYTES
from attestation.store import StoredCRL
from attestation_service.authority import Authority, keyring
from attestation_service.ocsp import answers as kept_answers
from attestation_service.ocsp import sealing
from attestation_service.pki import Lists, Responder, Revocation, lists, routes
from attestation_service.process import maintenance
from tests.unit.pki.revocation_kit import pki
from tests.unit.service.ca_world import no_more, nothing, wanted
from tests.unit.service.conftest import Service, Starter
from tests.unit.service.leaves import (
    WITH_CA,
    active,
    ask,
    crl,
    get_ocsp,
    issue,
    listed,
    number_of,
    post_ocsp,
    state_of,
    status,
    words_of,
    write_down,
)
from tests.unit.service.node import SoftwareNode
from tests.unit.service.node_keys import cert_request, ecc_key
from tests.unit.service.test_enrollment import (
    certificate_challenge,
    get_certificate,
    send,
    try_certificate,
)
from tests.unit.service.test_enrollment import listed as issued_to

pytestmark = pytest.mark.anyio

MACHINE = "0b6c8a8e-6c7b-4b8e-9a55-1d2f6c1f1b01"


@pytest.fixture
async def ca(start: Starter) -> Service:
    """A service with a CA."""
    return await start(tpm_ca_bundle_dir=start.bundle(), **WITH_CA)


def lists_of(service: Service) -> Lists:
    found = service.resources.revocation
    assert isinstance(found, Revocation)
    return found.lists


def responder_of(service: Service) -> Responder:
    found = service.resources.revocation
    assert isinstance(found, Revocation)
    return found.responder


async def certificate_of(service: Service) -> bytes:
    issuer = await active(service)
    assert issuer.certificate is not None
    return issuer.certificate


# ---------------------------------------------------------------- what an act does to certificates

ACTS: dict[str, dict[str, tuple[str, str | None]]] = {
    # act: state before -> state and reason after
    "lock": {
        "reserved": ("void", "cessationOfOperation"),
        "issued": ("held", "certificateHold"),
        "held": ("held", "certificateHold"),
        "revoked": ("revoked", "superseded"),
        "void": ("void", "cessationOfOperation"),
    },
    "unlock": {
        "reserved": ("reserved", None),
        "issued": ("issued", None),
        "held": ("issued", None),
        "revoked": ("revoked", "superseded"),
        "void": ("void", "cessationOfOperation"),
    },
    "revoke": {
        "reserved": ("void", "cessationOfOperation"),
        "issued": ("revoked", "privilegeWithdrawn"),
        "held": ("revoked", "privilegeWithdrawn"),
        "revoked": ("revoked", "superseded"),
        "void": ("void", "cessationOfOperation"),
    },
    "ak-reset": {
        "reserved": ("void", "cessationOfOperation"),
        "issued": ("revoked", "keyCompromise"),
        "held": ("revoked", "keyCompromise"),
        "revoked": ("revoked", "superseded"),
        "void": ("void", "cessationOfOperation"),
    },
    "role": {
        "reserved": ("void", "cessationOfOperation"),
        "issued": ("revoked", "superseded"),
        "held": ("revoked", "superseded"),
        "revoked": ("revoked", "superseded"),
        "void": ("void", "cessationOfOperation"),
    },
    "reject": {
        "reserved": ("void", "cessationOfOperation"),
        "issued": ("revoked", "privilegeWithdrawn"),
        "held": ("revoked", "privilegeWithdrawn"),
        "revoked": ("revoked", "superseded"),
        "void": ("void", "cessationOfOperation"),
    },
    "delete": {
        "reserved": ("void", "cessationOfOperation"),
        "issued": ("revoked", "cessationOfOperation"),
        "held": ("revoked", "cessationOfOperation"),
        "revoked": ("revoked", "superseded"),
        "void": ("void", "cessationOfOperation"),
    },
    "redeliver": {
        "reserved": ("reserved", None),
        "issued": ("issued", None),
        "held": ("held", "certificateHold"),
        "revoked": ("revoked", "superseded"),
        "void": ("void", "cessationOfOperation"),
    },
}
AUDITED = {
    "lock": {"issued": "cert_held", "reserved": "cert_voided"},
    "unlock": {"held": "cert_released"},
    **{
        act: {"issued": "cert_revoked", "held": "cert_revoked", "reserved": "cert_voided"}
        for act in ("revoke", "ak-reset", "role", "reject", "delete")
    },
    "redeliver": {},
}
BODIES: dict[str, Any] = {
    "lock": {"reason": "lost"},
    "unlock": {"reason": "found"},
    "revoke": {"reason": "broken", "wipe": False},
    "ak-reset": {"reason": "new board"},
    "role": {"role": "worker-infra", "reason": "moved"},
    "reject": {"reason": "nobody knows it"},
}


@pytest.mark.threat("T113")
@pytest.mark.parametrize("before", ["reserved", "issued", "held", "revoked", "void"])
@pytest.mark.parametrize("act", ACTS)
async def test_every_act_on_every_state(ca: Service, act: str, before: str) -> None:
    """Each pair has one outcome: in the log, on the list, by OCSP, in the audit; other machines' are not touched."""
    node = SoftwareNode()
    if act in ("reject", "delete"):
        await ca.introduce(node)
    else:
        await ca.admitted(node)
    if act == "unlock":
        await ca.act(node, "lock", {"reason": "lost"})
    if act == "delete":
        await ca.act(node, "reject", {"reason": "nobody knows it"})
    assert node.machine_id is not None
    serial = await write_down(ca, node.machine_id, before)
    neighbour = await write_down(ca, MACHINE, "issued")
    await status(ca, serial)  # so that an answer from before is kept
    if act == "delete":
        assert (await ca.operator("DELETE", f"/machines/{node.machine_id}")).status_code == 204
    else:
        await ca.act(node, act, BODIES.get(act))
    expected, reason = ACTS[act][before]
    assert await state_of(ca, serial) == (expected, reason)
    assert (await state_of(ca, neighbour))[0] == "issued"
    word = _asn1(reason)
    ended = expected in ("held", "revoked", "void")
    assert await crl(ca) == ({serial: word} if ended else {})
    assert await status(ca, serial) == (word if ended else "good" if expected == "issued" else "unknown")
    entries = [
        entry
        for entry in await ca.audit(machine_id=node.machine_id)
        if entry["action"].startswith("cert_") and serial in entry["detail"]
    ]
    action = AUDITED[act].get(before)
    assert [entry["action"] for entry in entries] == ([action] if action else [])


def _asn1(reason: str | None) -> str:
    """Return a reason as asn1crypto spells it."""
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in reason or "")


async def test_a_revocation_holds_on_every_path(ca: Service) -> None:
    """R6 in one: what was given is revoked, what is asked for is refused, and nobody can approve it again."""
    node = SoftwareNode()
    token = (await ca.admitted(node))["config_token"]
    given = await get_certificate(ca, node)
    serial = given["serial"]
    assert await status(ca, serial) == "good"
    before = await certificate_challenge(ca, node)
    await ca.act(node, "revoke", {"reason": "stolen", "wipe": False})
    assert await crl(ca) == {serial: "privilege_withdrawn"}
    assert await status(ca, serial) == "privilege_withdrawn"
    asked = [
        await send(ca, node, cert_request(node, before, ecc_key())),
        await try_certificate(ca, node),
        await ca.operator("POST", f"/machines/{node.machine_id}/approve", {"role": "worker-app"}),
        await ca.fetch(token),
    ]
    assert [answer.status_code for answer in asked] == [403, 403, 409, 410], [a.text for a in asked]
    assert "config_token" not in await ca.attest(node)
    again = await ca.introduce(node)
    assert (again["status"], again.get("config_token")) == ("revoked", None)
    assert [row["state"] for row in await issued_to(ca, node)] == ["revoked"]


async def test_the_audit_names_so_many_and_no_more(ca: Service) -> None:
    """A machine with many certificates makes no entry that does not fit; how many there were stands in it."""
    node = SoftwareNode()
    await ca.admitted(node)
    assert node.machine_id is not None
    for _ in range(22):
        await write_down(ca, node.machine_id, "issued")
    await ca.act(node, "lock", {"reason": "lost"})
    (entry,) = await ca.audit(action="cert_held")
    assert entry["detail"].endswith(" and 2 more")
    assert entry["detail"].count(",") == 19


async def test_a_release_is_of_holds_only(ca: Service) -> None:
    """What was revoked while the machine was locked stays revoked when the lock ends."""
    node = SoftwareNode()
    await ca.admitted(node)
    assert node.machine_id is not None
    serial = await write_down(ca, node.machine_id, "issued")
    await ca.act(node, "lock", {"reason": "lost"})
    await ca.act(node, "role", BODIES["role"])
    await ca.act(node, "unlock", {"reason": "found"})
    assert await state_of(ca, serial) == ("revoked", "superseded")


# ---------------------------------------------------------------- lists


async def test_a_list_of_nothing(ca: Service) -> None:
    """Before anything was revoked there is a list, signed by the CA, under both of its addresses."""
    issuer = await active(ca)
    answer = await ca.get("/pki/crl")
    assert answer.headers["content-type"] == "application/pkix-crl"
    found = x509.load_der_x509_crl(answer.content)
    certificate = x509.load_der_x509_certificate(await certificate_of(ca))
    assert found.is_signature_valid(certificate.public_key())  # type: ignore[arg-type]
    assert len(found) == 0
    assert number_of(answer.content) == 1
    assert (await ca.get(f"/pki/crl/{issuer.issuer_id}")).content == answer.content


async def test_what_was_revoked_before_is_on_every_list(ca: Service) -> None:
    """The number rises with each list, and nothing is made anew where nothing changed."""
    serials = []
    for expected in range(1, 4):
        serials.append(await write_down(ca, MACHINE, "revoked"))
        data = (await ca.get("/pki/crl")).content
        assert set(listed(data)) == set(serials)
        assert number_of(data) == expected
        assert (await ca.get("/pki/crl")).content == data


@pytest.mark.threat("T113")
async def test_two_workers_agree(start: Starter) -> None:
    """What one worker revokes is on the list that another serves, and its kept OCSP answer is void, at once."""
    one = await start(tpm_ca_bundle_dir=start.bundle(), **WITH_CA)
    other = await start(one.clock, tpm_ca_bundle_dir=start.bundle(), **WITH_CA)
    assert (await active(one)).issuer_id == (await active(other)).issuer_id
    node = SoftwareNode()
    await one.admitted(node)
    assert node.machine_id is not None
    (issued,) = await issue(one, node.machine_id)
    for worker in (one, other):
        assert [await status(worker, issued.serial) for _ in range(2)] == ["good", "good"]
        assert await crl(worker) == {}
    await one.act(node, "lock", {"reason": "lost"})
    for worker in (other, one):
        assert await status(worker, issued.serial) == "certificate_hold"
        assert await crl(worker) == {issued.serial: "certificate_hold"}
    await other.act(node, "unlock", {"reason": "found"})
    for worker in (one, other):
        assert await status(worker, issued.serial) == "good"
        assert await crl(worker) == {}


async def test_many_who_ask_at_once_make_one_list(start: Starter) -> None:
    """After a revocation, forty who ask two workers get the same list, and one number was used."""
    one = await start(**WITH_CA)
    other = await start(one.clock, **WITH_CA)
    serial = await write_down(one, MACHINE, "revoked")
    found = await asyncio.gather(*(worker.get("/pki/crl") for worker in (one, other) * 20))
    assert {answer.status_code for answer in found} == {200}
    assert {tuple(listed(answer.content)) for answer in found} == {(serial,)}
    assert len({answer.content for answer in found}) == 1
    assert (await active(one)).crl_number == 1


async def test_a_list_that_appears_in_between_is_taken(
    start: Starter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another worker begins and ends between our look and our turn: its list is the answer, no second is made."""
    one = await start(**WITH_CA)
    other = await start(one.clock, **WITH_CA)
    await write_down(one, MACHINE, "revoked")
    mine = lists_of(one)
    look = mine._look
    found: list[bytes] = []

    async def slowly(issuer_id: str) -> Any:
        seen = await look(issuer_id)
        if len(found) == 1:  # in `current`, then in `_make`
            found.append((await other.get("/pki/crl")).content)
        elif not found:
            found.append(b"")
        return seen

    monkeypatch.setattr(mine, "_look", slowly)
    assert (await one.get("/pki/crl")).content == found[1]
    assert (await active(one)).crl_number == 1


async def test_who_died_over_a_list_leaves_a_gap_only(ca: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that took a number and died delays others by its lease; the next list has the next number."""
    monkeypatch.setattr(lists, "WAIT_SECONDS", 0.1)
    issuer = await active(ca)
    at = ca.clock.now()
    until = at + timedelta(seconds=30)
    await ca.store.write(lambda tx: tx.issuers.begin_crl(issuer.issuer_id, owner="dead", at=at, until=until))
    busy = await ca.get("/pki/crl")
    assert (busy.status_code, busy.json()["type"]) == (503, "urn:itl:problem:signer-busy")
    ca.clock.advance(30)
    assert number_of((await ca.get("/pki/crl")).content) == 2


async def test_a_key_that_cannot_sign_blocks_nobody(ca: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the key there is no list; the lease is given back, so the next who asks gets one when it is there."""

    def gone(*_: object) -> None:
        raise SignerUnavailable("the token is gone")

    with monkeypatch.context() as patch:
        patch.setattr(Authority, "signing_key", gone)
        assert (await ca.get("/pki/crl")).status_code == 503
        assert await lists_of(ca).refresh() == 0
    assert number_of((await ca.get("/pki/crl")).content) == 3


@pytest.mark.threat("T113")
async def test_a_list_that_is_behind_is_never_served(ca: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the key is gone after a revocation, the old list is not given out: 503 is honest, and it is not."""
    assert (await ca.get("/pki/crl")).status_code == 200
    await write_down(ca, MACHINE, "revoked")

    def gone(*_: object) -> None:
        raise SignerUnavailable("the token is gone")

    monkeypatch.setattr(Authority, "signing_key", gone)
    assert (await ca.get("/pki/crl")).status_code == 503


async def test_a_list_in_the_making_is_not_the_newest(ca: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was given up after another task had read the log is named to who asks then: one more list is made."""
    being = lists_of(ca)
    signed, make = being._signed, being._make
    read, asked, go_on = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def slowly(*args: Any) -> StoredCRL:
        made = await signed(*args)
        read.set()
        await go_on.wait()
        return made

    async def waiting(*args: Any, **kwargs: Any) -> StoredCRL:
        if read.is_set():
            asked.set()
        return await make(*args, **kwargs)

    monkeypatch.setattr(being, "_signed", slowly)
    monkeypatch.setattr(being, "_make", waiting)
    refreshing = asyncio.create_task(being.refresh())
    await read.wait()
    serial = await write_down(ca, MACHINE, "void")
    found = asyncio.create_task(crl(ca))
    await asked.wait()
    go_on.set()
    assert await found == {serial: "cessation_of_operation"}
    assert await refreshing == 1


async def test_maintenance_makes_what_is_due(ca: Service) -> None:
    """A list is made when there is none, when it is behind, and when it is six hours old; not otherwise."""
    made = lists_of(ca)
    assert await made.refresh() == 1
    assert await made.refresh() == 0
    await write_down(ca, MACHINE, "revoked")
    assert await made.refresh() == 1
    ca.clock.advance(21_599)
    assert await made.refresh() == 0
    ca.clock.advance(1)
    assert await made.refresh() == 1
    await maintenance.once(ca.resources)
    assert number_of((await ca.get("/pki/crl")).content) == 3


async def test_an_act_makes_a_list_without_being_asked(ca: Service) -> None:
    """The list is there before the first who fetches it."""
    node = SoftwareNode()
    await ca.admitted(node)
    await ca.act(node, "lock", {"reason": "lost"})
    issuer = await active(ca)
    await _list_made(ca, issuer.issuer_id)


async def test_nothing_ends_the_task_that_makes_lists(ca: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of ours, or one that nobody expected, is logged; the next act makes a list again."""
    found = ca.resources.revocation
    assert found is not None
    raised = 0

    async def fails(_: Lists) -> int:
        nonlocal raised
        raised += 1
        raise SignerUnavailable("the token is gone") if raised == 1 else RuntimeError("unexpected")

    with monkeypatch.context() as patch:
        patch.setattr(Lists, "refresh", fails)
        for expected in (1, 2):
            found.changed()
            await _until(lambda expected=expected: raised == expected)  # type: ignore[misc]
    found.changed()
    issuer = await active(ca)
    await _list_made(ca, issuer.issuer_id)


async def _until(holds: Callable[[], bool]) -> None:
    for _ in range(6000):
        if holds():
            return
        await asyncio.sleep(0.01)
    pytest.fail("it never came to be so")


async def _list_made(service: Service, issuer_id: str) -> None:
    for _ in range(6000):
        if await service.store.read(lambda tx: tx.issuers.crl(issuer_id)) is not None:
            return
        await asyncio.sleep(0.01)
    pytest.fail("nobody made a list")


async def test_a_key_that_retires_goes_on_listing(ca: Service) -> None:
    """A retiring key signs lists and answers; a retired one keeps its last list and answers nothing."""
    issuer = await active(ca)
    serial = await write_down(ca, MACHINE, "issued")
    at = ca.clock.now()
    await ca.store.write(lambda tx: tx.issuers.move(issuer.issuer_id, "active", "retiring", at))
    assert (await ca.get("/pki/crl")).status_code == 503  # none is active
    assert await crl(ca, issuer.issuer_id) == {}
    request = ask(await _certificate(ca, issuer.issuer_id), serial)
    assert words_of(await post_ocsp(ca, request)) == ["good"]
    await ca.store.write(lambda tx: tx.issuers.move(issuer.issuer_id, "retiring", "retired", at))
    await ca.store.write(lambda tx: tx.issuers.bump([issuer.issuer_id], held_by_somebody=True))
    assert await crl(ca, issuer.issuer_id) == {}
    assert words_of(await post_ocsp(ca, request)) == ["unauthorized"]
    assert await lists_of(ca).refresh() == 0
    await ca.store.write(lambda tx: tx.issuers.move(issuer.issuer_id, "retired", "abandoned", at))
    assert (await ca.get(f"/pki/crl/{issuer.issuer_id}")).status_code == 404


async def test_a_retired_key_without_a_list(ca: Service) -> None:
    """There is nothing to give, and nothing to make it with."""
    issuer = await active(ca)
    at = ca.clock.now()
    await ca.store.write(lambda tx: tx.issuers.move(issuer.issuer_id, "active", "retired", at))
    assert (await ca.get(f"/pki/crl/{issuer.issuer_id}")).status_code == 404


async def test_a_key_to_come_lists_when_asked(ca: Service) -> None:
    """Nothing is made in advance for a key that signed nothing, but whoever asks gets a list."""
    issuer = await active(ca)
    at = ca.clock.now()
    await ca.store.write(lambda tx: tx.issuers.move(issuer.issuer_id, "active", "next", at))
    assert await lists_of(ca).refresh() == 0
    assert await crl(ca, issuer.issuer_id) == {}


async def _certificate(service: Service, issuer_id: str) -> bytes:
    found = await service.store.read(lambda tx: tx.issuers.get(issuer_id))
    assert found is not None
    assert found.certificate is not None
    return found.certificate


async def test_entries_outlive_their_certificates_a_little(ca: Service) -> None:
    """An entry stays until it was on a list made after the certificate's end, then it goes (RFC 5280 §3.3)."""
    serial = await write_down(ca, MACHINE, "revoked", hours=1)
    assert set(await crl(ca)) == {serial}
    ca.clock.advance(3600 + 21_600)
    await lists_of(ca).refresh()
    assert set(await crl(ca)) == {serial}
    ca.clock.advance(86_400)
    await lists_of(ca).refresh()
    assert await crl(ca) == {}


# ---------------------------------------------------------------- caches


@pytest.mark.parametrize("path", ["/pki/crl", "/pki/ca", "/pki/bundle"])
async def test_caches_may_keep_it_for_a_while(ca: Service, path: str) -> None:
    """max-age, Expires and ETag agree; who has it already gets 304 and no body."""
    answer = await ca.get(path)
    assert answer.headers["cache-control"] == "public, max-age=60, must-revalidate, no-transform"
    assert parsedate_to_datetime(answer.headers["expires"]) == ca.clock.now() + timedelta(seconds=60)
    tag = answer.headers["etag"]
    for tags in (tag, f'W/{tag}, "other"', "*"):
        again = await ca.get(path, headers={"If-None-Match": tags})
        assert (again.status_code, again.content) == (304, b"")
        assert again.headers["etag"] == tag
    assert (await ca.get(path, headers={"If-None-Match": '"other"'})).status_code == 200


async def test_no_cache_keeps_a_list_past_its_end(start: Starter) -> None:
    """Seconds before nextUpdate only those may be kept; at nextUpdate another list is made."""
    ca = await start(**WITH_CA, crl_valid_seconds=300, crl_refresh_seconds=86_400)
    first = (await ca.get("/pki/crl")).content
    ca.clock.advance(290)
    late = await ca.get("/pki/crl")
    assert late.content == first
    assert "max-age=10," in late.headers["cache-control"]
    ca.clock.advance(10)
    assert number_of((await ca.get("/pki/crl")).content) == 2


@pytest.mark.threat("T114")
async def test_no_cache_keeps_an_answer_past_its_end(start: Starter) -> None:
    """An OCSP answer is given again until half of its life is over, and never kept past its end."""
    ca = await start(**WITH_CA, ocsp_valid_seconds=40)
    serial = await write_down(ca, MACHINE, "issued")
    request = ask(await certificate_of(ca), serial)
    first = await get_ocsp(ca, request)
    assert "max-age=40," in first.headers["cache-control"]
    ca.clock.advance(19)
    again = await get_ocsp(ca, request)
    assert again.content == first.content
    assert "max-age=21," in again.headers["cache-control"]
    assert (await get_ocsp(ca, request, headers={"If-None-Match": first.headers["etag"]})).status_code == 304
    ca.clock.advance(1)
    assert (await get_ocsp(ca, request)).content != first.content


# ---------------------------------------------------------------- certificates of the CA


async def test_the_addresses_in_a_certificate_lead_somewhere(start: Starter) -> None:
    """CDP, OCSP and CA issuers of a leaf are served under exactly these paths; the chain verifies."""
    ca = await start(**WITH_CA, pki_url="http://pki.example.test")
    (issued,) = await issue(ca, MACHINE)
    leaf = x509.load_der_x509_certificate(issued.certificate)
    access = {
        each.access_method._name: each.access_location.value
        for each in leaf.extensions.get_extension_for_class(x509.AuthorityInformationAccess).value
    }
    (point,) = leaf.extensions.get_extension_for_class(x509.CRLDistributionPoints).value
    assert point.full_name is not None
    base = "http://pki.example.test"
    found = await ca.get(access["caIssuers"].removeprefix(base))
    assert found.headers["content-type"] == "application/pkix-cert"
    issuer = x509.load_der_x509_certificate(found.content)
    leaf.verify_directly_issued_by(issuer)
    assert (await ca.get(point.full_name[0].value.removeprefix(base))).status_code == 200
    assert access["OCSP"] == f"{base}/pki/ocsp"
    assert words_of(await post_ocsp(ca, ask(found.content, issued.serial))) == ["good"]
    pem = await ca.get("/pki/ca")
    assert pem.headers["content-type"] == "application/x-pem-file"
    assert x509.load_pem_x509_certificate(pem.content) == issuer
    assert x509.load_pem_x509_certificates((await ca.get("/pki/bundle")).content) == [issuer]


@pytest.mark.parametrize("path", ["/pki/crl/0000000000000000", "/pki/ca/0000000000000000"])
async def test_unknown_keys(ca: Service, path: str) -> None:
    """A key that we never had is not found."""
    answer = await ca.get(path)
    assert (answer.status_code, answer.json()["type"]) == (404, "urn:itl:problem:issuer-unknown")


@pytest.mark.parametrize("path", ["/pki/crl", "/pki/ca", "/pki/bundle"])
async def test_no_ca_for_operators(ca: Service, path: str) -> None:
    """Unless it is asked for in the settings, there is no CA for operators."""
    answer = await ca.get(path, params={"purpose": "operator"})
    assert (answer.status_code, answer.json()["type"]) == (503, "urn:itl:problem:ca-not-configured")


@pytest.mark.parametrize(
    "path", ["/pki/crl", "/pki/crl/0000000000000000", "/pki/ca", "/pki/ca/0000000000000000", "/pki/bundle",
             "/pki/ocsp/MAA="]
)  # fmt: skip
async def test_without_a_ca(service: Service, path: str) -> None:
    """A service without a CA says so."""
    answer = await service.get(path)
    assert (answer.status_code, answer.json()["type"]) == (503, "urn:itl:problem:ca-not-configured")


async def test_lists_are_counted(start: Starter) -> None:
    """Who fetches too often is told to wait."""
    ca = await start(**WITH_CA, rate_limit_address_per_second=0.1, rate_limit_address_burst=4)
    found = [
        (await ca.get(path)).status_code
        for path in ("/pki/crl", "/pki/ca", "/pki/bundle", "/pki/crl", "/pki/crl")
    ]
    assert found == [200, 200, 200, 200, 429]


# ---------------------------------------------------------------- OCSP


@pytest.mark.parametrize(
    ("state", "word"),
    [
        ("reserved", "unknown"),
        ("issued", "good"),
        ("held", "certificate_hold"),
        ("revoked", "superseded"),
        ("void", "cessation_of_operation"),
    ],
)
@pytest.mark.parametrize("hash_name", ["sha1", "sha256"])
async def test_what_ocsp_says(ca: Service, state: str, word: str, hash_name: str) -> None:
    """Each state has its word, by either hash, by GET and by POST, with and without a nonce, once and again."""
    serial = await write_down(ca, MACHINE, state)
    issuer = await certificate_of(ca)
    plain = ask(issuer, serial, hash_name=hash_name)
    nonced = ask(issuer, serial, hash_name=hash_name, nonce=b"n" * 32)
    for request in (plain, plain, nonced):
        for answer in (await post_ocsp(ca, request), await get_ocsp(ca, request)):
            assert answer.headers["content-type"] == "application/ocsp-response"
            assert words_of(answer) == [word]
            nonce = asn1_ocsp.OCSPResponse.load(answer.content).nonce_value
            assert (nonce.native if nonce else None) == (b"n" * 32 if request is nonced else None)
            may_be_kept = request is plain and word != "unknown"
            assert (answer.headers["cache-control"] == "no-store") is not may_be_kept


async def test_what_was_never_issued_is_unknown(ca: Service) -> None:
    """Also a number that no certificate of ours can have; and it is not remembered: it may be issued next."""
    serial = f"{77:040x}"
    assert await status(ca, serial) == "unknown"
    assert await status(ca, "ff" * 20) == "unknown"
    assert await status(ca, "00") == "unknown"
    (issued,) = await issue(ca, MACHINE)
    other = await certificate_of(ca)
    for asked, word in ((serial, "unknown"), (issued.serial, "good")):
        assert words_of(await post_ocsp(ca, ask(other, asked))) == [word]


async def test_several_at_once(ca: Service) -> None:
    """One certificate is asked about at a time (RFC 5019 §2.1.1)."""
    serials = [await write_down(ca, MACHINE, "issued") for _ in range(2)]
    assert words_of(await post_ocsp(ca, ask(await certificate_of(ca), *serials))) == ["malformed_request"]


async def test_another_ca(ca: Service) -> None:
    """We say nothing about certificates of others."""
    stranger = pki("ecdsa-p384").ca
    serial = await write_down(ca, MACHINE, "issued")
    assert words_of(await post_ocsp(ca, ask(stranger, serial))) == ["unauthorized"]
    assert words_of(await post_ocsp(ca, ask(await certificate_of(ca), serial, hash_name="sha512"))) == [
        "unauthorized"
    ]


@pytest.mark.parametrize("body", [b"", b"garbage", b"\x30\x00", b"x" * (MAX_REQUEST_BYTES + 1)])
async def test_garbage(ca: Service, body: bytes) -> None:
    """Answered in the language of OCSP, and nothing is done for it."""
    answer = await post_ocsp(ca, body)
    assert (answer.status_code, words_of(answer)) == (200, ["malformed_request"])
    answer = await ca.get("/pki/ocsp/" + base64.b64encode(body).decode())
    assert words_of(answer) == ["malformed_request"]


@pytest.mark.parametrize("path", ["%", "é", "A", "a" * 20_000, "****", "../healthz"])
async def test_paths_that_are_no_request(ca: Service, path: str) -> None:
    """What is not base64 is malformed."""
    answer = await ca.get(f"/pki/ocsp/{path}") if ".." not in path else await ca.get("/pki/ocsp/..%2fhealthz")
    assert words_of(answer) == ["malformed_request"]


async def test_base64_without_padding(ca: Service) -> None:
    """Some clients leave the padding away."""
    serial = await write_down(ca, MACHINE, "issued")
    text = base64.b64encode(ask(await certificate_of(ca), serial)).decode().rstrip("=")
    assert words_of(await ca.get(f"/pki/ocsp/{text}")) == ["good"]


async def test_the_media_type_is_demanded(ca: Service) -> None:
    """A form or JSON is no request."""
    serial = await write_down(ca, MACHINE, "issued")
    request = ask(await certificate_of(ca), serial)
    for kind in ("application/json", ""):
        answer = await post_ocsp(ca, request, headers={"Content-Type": kind})
        assert words_of(answer) == ["malformed_request"]
    for kind in ("application/ocsp-request; x=y", "Application/OCSP-Request"):
        assert words_of(await post_ocsp(ca, request, headers={"Content-Type": kind})) == ["good"]


async def test_who_goes_away_in_the_middle() -> None:
    """A client that leaves while it sends is no error of ours."""

    async def gone() -> Message:
        return {"type": "http.disconnect"}

    assert await routes._body(Request({"type": "http", "headers": []}, gone)) is None


async def test_other_methods(ca: Service) -> None:
    """Neither PUT nor a GET without a request."""
    assert (await ca.http.put("/pki/ocsp", content=b"")).status_code == 405
    assert (await ca.get("/pki/ocsp")).status_code == 405
    assert (await ca.http.delete("/pki/ocsp/MAA=")).status_code == 405


@pytest.mark.threat("T115")
async def test_only_what_is_signed_is_counted(start: Starter) -> None:
    """Kept answers are given to whoever asks however often; what must be signed is limited, in OCSP's own words."""
    ca = await start(**WITH_CA, rate_limit_address_per_second=0.1, rate_limit_address_burst=2)
    serial = await write_down(ca, MACHINE, "issued")
    issuer = await certificate_of(ca)
    for _ in range(20):
        assert words_of(await post_ocsp(ca, ask(issuer, serial))) == ["good"]
    assert words_of(await post_ocsp(ca, ask(issuer, serial, nonce=b"1"))) == ["good"]
    refused = await post_ocsp(ca, ask(issuer, serial, nonce=b"2"))
    assert (refused.status_code, words_of(refused)) == (429, ["try_later"])
    assert int(refused.headers["retry-after"]) > 0
    assert words_of(await post_ocsp(ca, ask(issuer, serial))) == ["good"]


# ---------------------------------------------------------------- the delegated key


async def test_the_key_is_delegated_once(ca: Service) -> None:
    """However many ask at first, one key is certified: for OCSP only, seven days, in the log and in the audit."""
    serials = [await write_down(ca, MACHINE, "issued") for _ in range(10)]
    issuer = await certificate_of(ca)
    found = await asyncio.gather(*(post_ocsp(ca, ask(issuer, serial)) for serial in serials))
    answers = [ocsp.load_der_ocsp_response(answer.content) for answer in found]
    certificates = {certificate for answer in answers for certificate in answer.certificates}
    (delegated,) = certificates
    delegated.verify_directly_issued_by(x509.load_der_x509_certificate(issuer))
    usages = delegated.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usages) == [ExtendedKeyUsageOID.OCSP_SIGNING]
    assert delegated.extensions.get_extension_for_class(x509.OCSPNoCheck) is not None
    assert delegated.not_valid_after_utc == ca.clock.now() + timedelta(days=7)
    serial = f"{delegated.serial_number:040x}"
    assert (await state_of(ca, serial))[0] == "issued"
    (entry,) = await ca.audit(action="cert_issued")
    assert serial in entry["detail"]


async def test_the_key_is_renewed_early(ca: Service) -> None:
    """Each day another key is certified, by maintenance: an outage of the CA's key finds six days left."""
    serial = await write_down(ca, MACHINE, "issued", hours=24 * 30)
    request = ask(await certificate_of(ca), serial)
    (first,) = ocsp.load_der_ocsp_response((await post_ocsp(ca, request)).content).certificates
    ca.clock.advance(0.9 * 86_400)
    await responder_of(ca).renew()
    assert len(await ca.audit(action="cert_issued")) == 1
    ca.clock.advance(0.1 * 86_400)
    await maintenance.once(ca.resources)
    assert len(await ca.audit(action="cert_issued")) == 2
    (second,) = ocsp.load_der_ocsp_response((await post_ocsp(ca, request)).content).certificates
    assert second != first


@pytest.mark.threat("T145")
async def test_a_start_during_an_outage_answers(start: Starter, monkeypatch: pytest.MonkeyPatch) -> None:
    """The key that answers was made at a start, not at a question; the next start has it without the CA's key."""
    first = await start(**WITH_CA)
    serial = await write_down(first, MACHINE, "issued")
    request = ask(await certificate_of(first), serial)

    def away(*_: object) -> None:
        raise SignerUnavailable("the token does not answer")

    monkeypatch.setattr(keyring, "open_key", away)
    for days in (0, 6.9):
        first.clock.advance(days * 86_400)
        second = await start(first.clock, **WITH_CA)
        assert second.resources.authority is not None
        assert second.resources.authority.health == "failed: signer-unavailable"
        await maintenance.once(second.resources)
        assert words_of(await post_ocsp(second, request)) == ["good"]
        assert await second.audit(action="cert_voided") == []


@pytest.mark.threat("T145")
async def test_keys_that_answer_are_sealed(start: Starter, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the service's key, their certificate and their CA key: who has the database has none, nor who moves them."""
    ca = await start(**WITH_CA)
    (kept,) = await ca.store.read(lambda tx: tx.issuers.delegates())
    secret = ca.resources.signer.secret(sealing.PURPOSE)
    assert secret is not None
    key = sealing.unseal(secret, kept.issuer_id, kept.certificate, kept.sealed_key)
    assert key is not None
    public = x509.load_der_x509_certificate(kept.certificate).public_key()
    assert key.public_key() == public
    scalar = key.private_numbers().private_value.to_bytes(48)  # type: ignore[union-attr]
    assert scalar not in (ca.directory / "machines.db").read_bytes()
    assert scalar not in kept.sealed_key
    flipped = bytes([kept.sealed_key[0] ^ 1]) + kept.sealed_key[1:]
    for wrong in (
        (bytes(32), kept.issuer_id, kept.certificate, kept.sealed_key),
        (secret, "0" * 16, kept.certificate, kept.sealed_key),
        (secret, kept.issuer_id, kept.certificate + b"\0", kept.sealed_key),
        (secret, kept.issuer_id, kept.certificate, flipped),
        (secret, kept.issuer_id, kept.certificate, b""),
    ):
        assert sealing.unseal(*wrong) is None
    # Another service key: what is there is of no use, and another one is made.
    monkeypatch.setattr(type(ca.resources.service_keys), "secret", lambda *_: bytes(32))
    await start(ca.clock, **WITH_CA)
    (after,) = await ca.store.read(lambda tx: tx.issuers.delegates())
    assert after.certificate != kept.certificate
    # A device that only signs seals nothing: such keys stay in memory.
    monkeypatch.setattr(type(ca.resources.service_keys), "secret", lambda *_: None)
    other = await start(ca.clock, **WITH_CA)
    assert await ca.store.read(lambda tx: tx.issuers.delegates()) == (after,)
    serial = await write_down(other, MACHINE, "issued")
    assert words_of(await post_ocsp(other, ask(await certificate_of(other), serial))) == ["good"]


@pytest.mark.threat("T145")
async def test_what_nobody_got_takes_no_list_away(ca: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request fails because the key is away: the list is served on. When the key is back, the next one names it."""
    served = (await ca.get("/pki/crl")).content
    authority = ca.resources.authority
    assert authority is not None

    def away(*_: object) -> None:
        raise SignerUnavailable("the token does not answer")

    with monkeypatch.context() as patch:
        patch.setattr(Authority, "_sign", away)
        patch.setattr(Authority, "signing_key", away)
        with pytest.raises(SignerUnavailable):
            await authority.issue(wanted(), at=ca.clock.now(), admit=nothing, conclude=no_more)
        assert await lists_of(ca).refresh() == 0
        answer = await ca.get("/pki/crl")
        assert (answer.status_code, answer.content) == (200, served)
        # What somebody has and was revoked does.
        await write_down(ca, MACHINE, "revoked")
        assert (await ca.get("/pki/crl")).status_code == 503
    assert await lists_of(ca).refresh() == 1
    assert len(listed((await ca.get("/pki/crl")).content)) == 2


async def test_no_answer_outlives_the_key(start: Starter) -> None:
    """NextUpdate is never after the end of the delegated certificate; and where no other is given, it is used on."""
    ca = await start(**WITH_CA, ocsp_valid_seconds=86_400)
    serial = await write_down(ca, MACHINE, "issued", hours=24 * 30)
    request = ask(await certificate_of(ca), serial)
    first = ocsp.load_der_ocsp_response((await post_ocsp(ca, request)).content)
    authority = ca.resources.authority
    assert authority is not None

    async def unavailable(*_: object, **__: object) -> None:
        raise SignerUnavailable("the token is gone")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Authority, "issue", unavailable)
        ca.clock.advance(5.9 * 86_400)
        await responder_of(ca).renew()
        again = ocsp.load_der_ocsp_response((await post_ocsp(ca, request)).content)
        assert again.certificates == first.certificates
        assert again.next_update_utc is not None
        assert again.next_update_utc <= first.certificates[0].not_valid_after_utc
        ca.clock.advance(0.2 * 86_400)
        await responder_of(ca).renew()
        refused = await post_ocsp(ca, ask(await certificate_of(ca), serial, nonce=b"n"))
        assert (refused.status_code, words_of(refused)) == (503, ["try_later"])
    ca.clock.advance(600)
    assert words_of(await post_ocsp(ca, request)) == ["good"]


@pytest.mark.threat("T115")
async def test_who_cannot_be_delegated_does_not_try_on_and_on(
    ca: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key that does not answer is asked after five seconds, ten, twenty, …: each attempt takes a serial number."""
    tried = 0

    async def unavailable(*_: object, **__: object) -> None:
        nonlocal tried
        tried += 1
        raise SignerUnavailable("the token is gone")

    serial = await write_down(ca, MACHINE, "issued")
    request = ask(await certificate_of(ca), serial)
    responder_of(ca)._delegates.clear()
    with monkeypatch.context() as patch:
        patch.setattr(Authority, "issue", unavailable)
        for _ in range(5):
            answer = await post_ocsp(ca, request)
            assert (answer.status_code, words_of(answer)) == (503, ["try_later"])
            assert answer.headers["retry-after"] == "5"
        assert tried == 1
        for attempt, seconds in enumerate([5, 10, 20, 40, 80, 160, 320, 600, 600], start=2):
            ca.clock.advance(seconds - 1)
            await post_ocsp(ca, request)
            ca.clock.advance(1)
            await post_ocsp(ca, request)
            assert tried == attempt
    ca.clock.advance(600)
    assert words_of(await post_ocsp(ca, request)) == ["good"]


async def test_the_delegation_ends_with_its_key(ca: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the CA key is retired nobody tries to renew the delegation."""
    issuer = await active(ca)
    await status(ca, await write_down(ca, MACHINE, "issued"))
    at = ca.clock.now()
    await ca.store.write(lambda tx: tx.issuers.move(issuer.issuer_id, "active", "retired", at))
    ca.clock.advance(6 * 86_400)

    async def unexpected(*_: object, **__: object) -> None:
        pytest.fail("nobody may be delegated for this key")

    monkeypatch.setattr(Authority, "issue", unexpected)
    for _ in range(2):
        await responder_of(ca).renew()


@pytest.mark.threat("T115")
async def test_kept_answers_have_a_limit(ca: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest go: strangers choose what is asked, and shall not choose how much memory that takes."""
    monkeypatch.setattr(kept_answers, "KEPT_BYTES", 3_000)
    issuer = await certificate_of(ca)
    serials = [await write_down(ca, MACHINE, "issued") for _ in range(4)]
    answers = [(await post_ocsp(ca, ask(issuer, serial))).content for serial in serials]
    assert (await post_ocsp(ca, ask(issuer, serials[-1]))).content == answers[-1]
    assert (await post_ocsp(ca, ask(issuer, serials[0]))).content != answers[0]


async def test_hybrid_keys_answer_each_for_itself(start: Starter) -> None:
    """The ML-DSA key has its own list, and its answers are signed by ML-DSA: an independent verifier agrees."""
    ca = await start(**WITH_CA, enrollment_ca_algorithm="hybrid")
    classical, quantum = await issue(ca, MACHINE)
    issuer = await active(ca, "ml-dsa-87")
    assert issuer.certificate is not None
    answer = await post_ocsp(ca, ask(issuer.certificate, quantum.serial))
    assert words_of(answer) == ["good"]
    assert words_of(await post_ocsp(ca, ask(issuer.certificate, classical.serial))) == ["unknown"]
    basic = asn1_ocsp.OCSPResponse.load(answer.content).basic_ocsp_response
    delegated = x509.load_der_x509_certificate(basic["certs"][0].dump())
    delegated.verify_directly_issued_by(x509.load_der_x509_certificate(issuer.certificate))
    public = delegated.public_key()
    assert isinstance(public, mldsa.MLDSA87PublicKey)
    signed, signature = basic["tbs_response_data"].dump(), bytes(basic["signature"].native)
    assert ML_DSA_87.verify(public.public_bytes_raw(), signed, signature)
    both = await ca.get("/pki/ca")
    assert len(x509.load_pem_x509_certificates(both.content)) == 2
    at = ca.clock.now()
    await ca.store.write(lambda tx: tx.issuances.hold(MACHINE, "test", at))
    assert await crl(ca, issuer.issuer_id) == {quantum.serial: "certificate_hold"}
    assert await crl(ca) == {classical.serial: "certificate_hold"}
