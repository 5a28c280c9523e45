"""ACME over HTTP: directory, account, order, device-attest-01, certificate; and everything that gets none."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from attestation.store import IssuanceFilter
from attestation_service.process import maintenance
from tests.fixtures import acme_client
from tests.fixtures.acme_client import Client, Problem, b64url, csr_for
from tests.unit.service.conftest import Service, Starter
from tests.unit.service.node import SoftwareNode
from tests.unit.service.node_keys import EXTERNAL, NodeKey, certify, ecc_key
from tests.unit.service.test_audit_state import Intruder, state
from tests.unit.service.test_enrollment import get_certificate

pytestmark = pytest.mark.anyio

URL = "https://attest.example.test/acme/directory"
SETTINGS: dict[str, Any] = {"enrollment_ca_unencrypted": True, "rate_limits": False, "acme": "open"}


@pytest.fixture
async def service(start: Starter) -> Service:
    """A service with ACME for everybody."""
    return await start(tpm_ca_bundle_dir=start.bundle(), **SETTINGS)


async def client_of(service: Service, key: Any = None, **more: Any) -> Client:
    """Return a client with an account."""
    made = Client(service.http, URL, **({"key": key} if key else {}))
    await made.begin()
    await made.register(**more)
    return made


def statement(node: SoftwareNode, key: NodeKey, **changes: Any) -> Callable[[bytes], dict[str, Any]]:
    """Return what the TPM of *node* says of *key*, for any qualifyingData."""

    def by_tpm(binding: bytes) -> dict[str, Any]:
        said = certify(node, key, binding, **changes)
        parts = {name: base64.b64decode(text) for name, text in said.items()}
        return {
            "alg": -7,
            "sig": parts["certify_signature"],
            "certInfo": parts["certify_info"],
            "pubArea": parts["key_public"][2:],
        }

    return by_tpm


async def test_a_certificate_by_device_attest_01(service: Service) -> None:
    """From the directory to the chain; the certificate is for the key in the TPM, and says what the record says."""
    node, key = SoftwareNode(), ecc_key()
    await service.admitted(node, hostname="app-1")
    client = await client_of(service)
    place, order = await client.order(node.machine_id)
    assert order["status"] == "pending"
    challenge = await client.attest(order, statement(node, key))
    assert challenge["status"] == "valid"
    assert (await client.post(place)).json()["status"] == "ready"
    done = await client.finalize(order, csr_for(key.private))
    assert done["status"] == "valid"
    leaf, *above = await client.download(done)
    spki = leaf.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    assert spki == key.public.spki_der()
    assert leaf.subject.rfc4514_string() == f"CN={node.machine_id},OU=worker-app,O=ITL Usions,C=NL"
    assert above == []
    row = await service.store.read(lambda tx: tx.issuances.get(f"{leaf.serial_number:040x}"))
    assert row is not None
    assert (row.profile, row.key_tier, row.machine_id) == ("node-client", 4, node.machine_id)
    assert row.requester == f"acme:{str(client.kid).rpartition('/')[2]}"
    actions = [(each["operator_cn"], each["action"]) for each in await service.audit()][:3]
    assert actions == [("acme", "cert_issued"), ("acme", "acme_validated"), ("acme", "acme_account_created")]


async def ready(
    service: Service, node: SoftwareNode, key: NodeKey, client: Client
) -> tuple[str, dict[str, Any]]:
    """Return an order of *client* whose challenge was answered."""
    place, order = await client.order(node.machine_id)
    assert (await client.attest(order, statement(node, key)))["status"] == "valid"
    return place, order


@pytest.fixture
async def node(service: Service) -> SoftwareNode:
    """A machine that may have certificates."""
    made = SoftwareNode()
    await service.admitted(made, hostname="app-1", assigned_ip="10.0.0.7/24")
    return made


# What an attestation must be


async def refused_attestation(service: Service, node: SoftwareNode, client: Client, **how: Any) -> None:
    """Answer a challenge wrongly: it is refused without a reason, recorded, and the order is over."""
    place, order = await client.order(node.machine_id)
    by = how.pop("by", statement(node, ecc_key()))
    with pytest.raises(Problem) as told:
        await client.attest(order, by, **how)
    assert (told.value.status, told.value.kind) == (403, "badAttestationStatement")
    assert (await client.post(place)).json()["status"] == "invalid"
    challenge = await client.challenge(order)
    assert (challenge["status"], challenge["error"]["type"]) == ("invalid", told.value.body["type"])
    (newest, *_) = await service.audit()
    assert (newest["action"], newest["machine_id"]) == ("cert_refused", node.machine_id)
    with pytest.raises(Problem) as told:
        await client.finalize(order, csr_for(ecc_key().private))
    assert told.value.kind == "orderNotReady"


@pytest.mark.threat("T310")
async def test_only_a_key_of_this_machine_s_tpm_for_this_token_and_account(
    service: Service, node: SoftwareNode
) -> None:
    """Another machine's AK, an external key, another token, another account's key, a quote: each proves nothing."""
    client, other = await client_of(service), SoftwareNode()
    await service.admitted(other)
    good = ecc_key()
    await refused_attestation(service, node, client, by=statement(other, good))
    software = ecc_key(EXTERNAL, external=True)
    await refused_attestation(service, node, client, by=statement(node, software))
    await refused_attestation(service, node, client, by=statement(node, good, extra_data=bytes(32)))
    await refused_attestation(service, node, client, by=statement(node, good, type=0x8018))
    await refused_attestation(service, node, client, pubArea=ecc_key().public.tpm2b()[2:])
    await refused_attestation(service, node, client, x5c=[b"no certificate"])
    await refused_attestation(service, node, client, alg=-35)
    # What another account's key would make of the same token.
    stranger = await client_of(service)
    _, order = await client.order(node.machine_id)
    challenge = await client.challenge(order)
    stolen = stranger.attestation(challenge, statement(node, good))
    with pytest.raises(Problem) as told:
        await client.post(challenge["url"], {"attObj": b64url(stolen)})
    assert told.value.kind == "badAttestationStatement"
    assert (
        await service.store.read(
            lambda tx: tx.issuances.live(node.machine_id, "node-client", service.clock.at, 9)
        )
        == ()
    )


async def test_what_is_no_object_is_told_so(service: Service, node: SoftwareNode) -> None:
    """A member that is missing leaves the order; bytes that are none end it, and say which."""
    client = await client_of(service)
    place, order = await client.order(node.machine_id)
    challenge = await client.challenge(order)
    for payload in ({}, {"attObj": 7}, {"attObj": None}):
        with pytest.raises(Problem) as told:
            await client.post(challenge["url"], payload)
        assert told.value.kind == "malformed"
    assert (await client.post(place)).json()["status"] == "pending"
    with pytest.raises(Problem) as told:
        await client.post(challenge["url"], {"attObj": "=="})
    assert (told.value.kind, "base64url" in told.value.body["detail"]) == ("badAttestationStatement", True)
    # Over: a right answer comes too late, and changes nothing.
    answer = await client.attest(order, statement(node, ecc_key()))
    assert answer["status"] == "invalid"


@pytest.mark.threat("T310")
async def test_a_machine_that_is_not_attested_gets_nothing_and_may_try_again(
    service: Service, node: SoftwareNode
) -> None:
    """R6: locked, it is told only after its TPM answered; the order stays, and goes on after it attested again."""
    client, key = await client_of(service), ecc_key()
    place, order = await client.order(node.machine_id)
    await service.act(node, "lock")
    with pytest.raises(Problem) as told:
        await client.attest(order, statement(node, key))
    assert (told.value.kind, (await client.post(place)).json()["status"]) == ("unauthorized", "pending")
    await service.act(node, "unlock")
    await service.attest(node)
    assert (await client.attest(order, statement(node, key)))["status"] == "valid"
    # Between the answer and the certificate, likewise.
    await service.act(node, "lock")
    with pytest.raises(Problem) as told:
        await client.finalize(order, csr_for(key.private))
    assert told.value.kind == "unauthorized"
    await service.act(node, "revoke", {"confirm_name": "app-1"})
    with pytest.raises(Problem) as told:
        await client.finalize(order, csr_for(key.private))
    assert told.value.kind == "unauthorized"
    assert (
        await service.store.read(
            lambda tx: tx.issuances.live(node.machine_id, "node-client", service.clock.at, 9)
        )
        == ()
    )


# What a request must be


@pytest.mark.threat("T310")
async def test_the_request_is_for_the_attested_key_and_for_what_was_ordered(
    service: Service, node: SoftwareNode
) -> None:
    """The draft's MUST: another key is refused; so is another name, another form, the account's own key."""
    client, key = await client_of(service), ecc_key()
    place, order = await ready(service, node, key, client)
    identifier = acme_client.permanent_identifier(node.machine_id)
    for csr in (
        csr_for(ecc_key().private),
        csr_for(client.key),
        csr_for(key.private, common_name="root"),
        csr_for(key.private, x509.DNSName("app-1")),
        csr_for(key.private, identifier, x509.DNSName("app-1")),
        csr_for(key.private, acme_client.permanent_identifier("another")),
        b"-----BEGIN CERTIFICATE REQUEST-----",
        b"",
        csr_for(key.private)[:-1],
        csr_for(key.private)[:-3] + bytes(3),
    ):
        with pytest.raises(Problem) as told:
            await client.finalize(order, csr)
        assert told.value.kind == "badCSR", csr
    for payload in ({}, {"csr": 1}):
        with pytest.raises(Problem) as told:
            await client.post(order["finalize"], payload)
        assert told.value.kind == "malformed"
    # Nothing of that spent the order; with the identifier in both places it is as good as without.
    done = await client.finalize(order, csr_for(key.private, identifier, common_name=node.machine_id))
    assert done["status"] == (await client.post(place)).json()["status"] == "valid"


@pytest.mark.threat("T310")
async def test_an_order_gives_one_certificate(service: Service, node: SoftwareNode) -> None:
    """Of racers one gets it; what the others had signed is void, and reaches nobody."""
    client, key = await client_of(service), ecc_key()
    _, order = await ready(service, node, key, client)
    bodies = []
    for _ in range(3):
        payload = acme_client.compact({"csr": b64url(csr_for(key.private))})
        bodies.append(await client.signed(order["finalize"], payload))
        client.nonce = None
    answers = await asyncio.gather(*(client.send(order["finalize"], body) for body in bodies))
    assert sorted(answer.status_code for answer in answers) == [200, 403, 403]
    kinds = {a.json()["type"].rpartition(":")[2] for a in answers if a.status_code == 403}
    assert kinds == {"orderNotReady"}
    rows = await service.store.read(
        lambda tx: tx.issuances.page(IssuanceFilter(machine_id=node.machine_id), None, 9)
    )
    assert [row.state for row in rows.items].count("issued") == 1
    assert {row.state for row in rows.items} <= {"issued", "void"}
    assert (await state(service))["unproven"] == []


@pytest.mark.threat("T310")
async def test_another_ak_than_the_one_that_answered_is_not_enough(
    service: Service, node: SoftwareNode
) -> None:
    """What an AK said is good while the machine has it."""
    client, key = await client_of(service), ecc_key()
    _, order = await ready(service, node, key, client)

    Intruder(service.directory / "machines.db").run("UPDATE acme_orders SET ak_name = ?", b"another")
    with pytest.raises(Problem) as told:
        await client.finalize(order, csr_for(key.private))
    assert told.value.kind == "orderNotReady"


@pytest.mark.threat("T310")
async def test_only_the_key_that_answered_finalizes(service: Service, node: SoftwareNode) -> None:
    """The account's key is in what the TPM signed; with another one the account orders again."""
    client, key = await client_of(service), ecc_key()
    _, order = await ready(service, node, key, client)
    change, new = client.directory["keyChange"], ec.generate_private_key(ec.SECP256R1())
    payload = {"account": client.kid, "oldKey": acme_client.jwk_of(client.key)}
    header = {"jwk": acme_client.jwk_of(new), "url": change}
    await client.post(change, acme_client.jws(new, header, acme_client.compact(payload)))
    client.key = new
    with pytest.raises(Problem) as told:
        await client.finalize(order, csr_for(key.private))
    assert told.value.kind == "orderNotReady"
    _, again = await ready(service, node, key, client)
    assert (await client.finalize(again, csr_for(key.private)))["status"] == "valid"


@pytest.mark.threat("T310")
async def test_an_account_that_ends_meanwhile_gets_nothing(
    service: Service, node: SoftwareNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An operator ends it while its certificate is signed: what was signed reaches nobody."""
    client, key = await client_of(service), ecc_key()
    _, order = await ready(service, node, key, client)
    authority = service.resources.authority
    assert authority is not None
    sign = authority.in_thread

    async def slow(work: Any) -> Any:
        await service.store.write(
            lambda tx: tx.acme.end_account(str(client.kid).rpartition("/")[2], "revoked", service.clock.at)
        )
        return await sign(work)

    monkeypatch.setattr(authority, "in_thread", slow)
    with pytest.raises(Problem) as told:
        await client.finalize(order, csr_for(key.private))
    assert told.value.kind == "unauthorized"
    rows = await service.store.read(
        lambda tx: tx.issuances.page(IssuanceFilter(machine_id=node.machine_id), None, 9)
    )
    assert "issued" not in {row.state for row in rows.items}


async def test_a_boot_in_between_lowers_what_is_known_of_the_key(
    service: Service, node: SoftwareNode
) -> None:
    """Tier 4 is of one boot: quoted after a reset, the machine is not the one whose boot the key was certified in."""
    client, key = await client_of(service), ecc_key()
    _, order = await ready(service, node, key, client)
    node.reset_count += 1
    await service.attest(node)
    leaf, *_ = await client.download(await client.finalize(order, csr_for(key.private)))
    row = await service.store.read(lambda tx: tx.issuances.get(f"{leaf.serial_number:040x}"))
    assert row is not None
    assert row.key_tier == 3


@pytest.mark.threat("T311")
async def test_orders_end(service: Service, node: SoftwareNode) -> None:
    """An hour after it was made nothing follows from an order; maintenance takes it away a day later."""
    client, key = await client_of(service), ecc_key()
    place, order = await ready(service, node, key, client)
    pending, other = await client.order(node.machine_id)
    challenge = await client.challenge(other)
    service.clock.advance(3600)
    assert {(await client.post(each)).json()["status"] for each in (place, pending)} == {"invalid"}
    assert (await client.post(order["authorizations"][0])).json()["status"] == "expired"
    assert (await client.post(other["authorizations"][0])).json()["status"] == "invalid"
    for ask in (client.finalize(order, csr_for(key.private)), client.post(challenge["url"], {})):
        with pytest.raises(Problem):
            await ask
    service.clock.advance(86_401)
    await maintenance.once(service.resources)
    assert (await client.post(f"{client.kid}/orders")).json() == {"orders": []}
    with pytest.raises(Problem):
        await client.post(place)


async def test_an_authorization_can_be_given_up(service: Service, node: SoftwareNode) -> None:
    """RFC 8555, 7.5.2: for good; nothing else can be done to one."""
    client = await client_of(service)
    place, order = await client.order(node.machine_id)
    with pytest.raises(Problem):
        await client.post(order["authorizations"][0], {"status": "valid"})
    answer = await client.post(order["authorizations"][0], {"status": "deactivated"})
    assert answer.json()["status"] == "deactivated"
    assert (await client.post(place)).json()["status"] == "invalid"


# What can be ordered


async def test_an_order_names_one_machine_that_is_there(service: Service, node: SoftwareNode) -> None:
    """One identifier, of a type that is served, of a machine; no times."""
    client = await client_of(service)
    new = client.directory["newOrder"]
    this = {"type": "permanent-identifier", "value": node.machine_id}
    for payload, kind in (
        ({}, "malformed"),
        ({"identifiers": []}, "malformed"),
        ({"identifiers": [this, this]}, "malformed"),
        ({"identifiers": ["m"]}, "malformed"),
        ({"identifiers": [this | {"value": 7}]}, "malformed"),
        ({"identifiers": [this | {"value": "x" * 254}]}, "malformed"),
        ({"identifiers": [this | {"value": "another"}]}, "rejectedIdentifier"),
        ({"identifiers": [this | {"value": f"{node.machine_id}/1.2.3.4"}]}, "rejectedIdentifier"),
        ({"identifiers": [this | {"value": f"{node.machine_id}/2.999"}]}, "rejectedIdentifier"),
        ({"identifiers": [this | {"value": f"{node.machine_id}/1.40"}]}, "malformed"),
        ({"identifiers": [this | {"value": f"{node.machine_id}/a"}]}, "malformed"),
        ({"identifiers": [this | {"value": "/1.2"}]}, "malformed"),
        ({"identifiers": [this | {"type": "hardware-module"}]}, "unsupportedIdentifier"),
        ({"identifiers": [{"type": "dns", "value": "app-1"}]}, "unsupportedIdentifier"),
        ({"identifiers": [this], "notAfter": "2027-01-01T00:00:00Z"}, "malformed"),
    ):
        with pytest.raises(Problem) as told:
            await client.post(new, payload)
        assert told.value.kind == kind, payload
    for _ in range(20):
        await client.order(node.machine_id)
    with pytest.raises(Problem) as told:
        await client.order(node.machine_id)
    assert (told.value.status, told.value.kind) == (429, "rateLimited")


@pytest.mark.threat("T310")
async def test_an_order_is_its_account_s(service: Service, node: SoftwareNode) -> None:
    """Nobody else sees, answers or finalizes it, nor fetches what became of it."""
    client, other, key = await client_of(service), await client_of(service), ecc_key()
    place, order = await ready(service, node, key, client)
    done = await client.finalize(order, csr_for(key.private))
    for url, payload in (
        (place, None),
        (order["authorizations"][0], None),
        (order["authorizations"][0].replace("authorizations", "challenges"), {}),
        (order["finalize"], {"csr": b64url(csr_for(key.private))}),
        (done["certificate"], None),
        (f"{client.kid}/orders", None),
        (str(client.kid), None),
    ):
        with pytest.raises(Problem) as told:
            await other.post(url, payload)
        assert told.value.kind in ("malformed", "unauthorized"), url
    with pytest.raises(Problem):
        await client.post(done["certificate"].rpartition("/")[0] + "/" + "0" * 40)


# Revocation


@pytest.mark.threat("T310")
async def test_a_certificate_is_revoked_by_who_has_it(service: Service, node: SoftwareNode) -> None:
    """Its account or its own key, once; nobody else, and no certificate that ACME did not give."""
    client, other, key = await client_of(service), await client_of(service), ecc_key()
    _, order = await ready(service, node, key, client)
    leaf, *_ = await client.download(await client.finalize(order, csr_for(key.private)))
    der = leaf.public_bytes(Encoding.DER)
    revoke = client.directory["revokeCert"]

    async def fails(by: Client, kind: str, **payload: Any) -> None:
        with pytest.raises(Problem) as told:
            await by.post(revoke, {"certificate": b64url(der)} | payload)
        assert told.value.kind == kind

    await fails(other, "unauthorized")
    await fails(client, "badRevocationReason", reason=2)
    await fails(client, "badRevocationReason", reason="1")
    await fails(client, "malformed", certificate="!")
    await fails(client, "malformed", certificate=b64url(b"no certificate"))
    await fails(client, "malformed", certificate=7)
    # One that the machine got by its own protocol: neither the account nor its own key revokes it here.
    asked = ecc_key()
    own = await get_certificate(service, node, asked)
    given = x509.load_pem_x509_certificate(own["enrollment_cert_pem"].encode())
    of_node = b64url(given.public_bytes(Encoding.DER))
    await fails(client, "unauthorized", certificate=of_node)
    assert isinstance(asked.private, ec.EllipticCurvePrivateKey)
    itself = Client(service.http, URL, asked.private)
    await itself.begin()
    await fails(itself, "unauthorized", certificate=of_node)
    stranger = Client(service.http, URL)
    await stranger.begin()
    await fails(stranger, "unauthorized")
    assert isinstance(key.private, ec.EllipticCurvePrivateKey)
    holder = Client(service.http, URL, key.private)
    await holder.begin()
    await holder.post(revoke, {"certificate": b64url(der), "reason": 4})
    await fails(client, "alreadyRevoked")
    row = await service.store.read(lambda tx: tx.issuances.get(f"{leaf.serial_number:040x}"))
    assert row is not None
    assert (row.state, row.reason) == ("revoked", "superseded")
    (newest, *_) = await service.audit()
    assert (newest["action"], newest["operator_cn"]) == ("cert_revoked", "acme")


async def test_an_account_revokes_and_the_key_never_comes_back(service: Service, node: SoftwareNode) -> None:
    """keyCompromise, said by the account, refuses the key for good."""
    client, key = await client_of(service), ecc_key()
    _, order = await ready(service, node, key, client)
    leaf, *_ = await client.download(await client.finalize(order, csr_for(key.private)))
    payload = {"certificate": b64url(leaf.public_bytes(Encoding.DER)), "reason": 1}
    await client.post(client.directory["revokeCert"], payload)
    _, again = await ready(service, node, key, client)
    with pytest.raises(Problem) as told:
        await client.finalize(again, csr_for(key.private))
    assert told.value.kind == "badPublicKey"


async def test_two_keys_of_a_ca_give_two_chains(start: Starter) -> None:
    """Of a hybrid CA the other certificate is the alternate (RFC 8555, 7.4.2)."""
    service = await start(tpm_ca_bundle_dir=start.bundle(), enrollment_ca_algorithm="hybrid", **SETTINGS)
    node, key, client = SoftwareNode(), ecc_key(), await client_of(service)
    await service.admitted(node)
    _, order = await ready(service, node, key, client)
    done = await client.finalize(order, csr_for(key.private))
    answer = await client.post(done["certificate"])
    links = answer.headers.get_list("Link")
    (other,) = (each[1:].partition(">")[0] for each in links if 'rel="alternate"' in each)
    first, second = (x509.load_pem_x509_certificate(a.content) for a in (answer, await client.post(other)))
    assert first.serial_number != second.serial_number
    assert first.public_key() == second.public_key()
