"""ACME accounts and what each request must be: signed, for this URL, once; and what operators see and do."""

from __future__ import annotations

import base64
import json
from typing import Any

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding

from attestation.store import RateLimit
from attestation_service.acme import accounts, finalize, orders
from attestation_service.process import maintenance
from tests.fixtures import acme_client
from tests.fixtures.acme_client import Client, Problem, csr_for, external_binding, jwk_of, jws, thumbprint
from tests.unit.service.conftest import Service, Starter
from tests.unit.service.node import SoftwareNode, rsa_key
from tests.unit.service.node_keys import ecc_key
from tests.unit.service.test_acme import SETTINGS, URL, client_of, ready

pytestmark = pytest.mark.anyio


@pytest.fixture
async def service(start: Starter) -> Service:
    """A service with ACME for everybody."""
    return await start(tpm_ca_bundle_dir=start.bundle(), **SETTINGS)


async def bound(start: Starter, **more: Any) -> Service:
    """Return a service whose accounts need a key of an operator."""
    return await start(tpm_ca_bundle_dir=start.bundle(), **SETTINGS | {"acme": "bound"} | more)


async def made_key(service: Service, **members: Any) -> dict[str, Any]:
    """Make a key for an account as an operator."""
    answer = await service.operator("POST", "/acme/keys", members)
    assert answer.status_code == 201, answer.text
    found: dict[str, Any] = answer.json()
    return found


def kind(answer: httpx.Response) -> str:
    """Return what is wrong, with a nonce for the next try."""
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert answer.headers["Replay-Nonce"]
    assert answer.json()["status"] == answer.status_code
    return str(answer.json()["type"].removeprefix(acme_client.ERROR))


async def test_off_there_is_no_acme(start: Starter) -> None:
    """By default nothing answers there."""
    service = await start(enrollment_ca_unencrypted=True)
    for method, path in (
        ("GET", "directory"),
        ("HEAD", "new-nonce"),
        ("GET", "new-nonce"),
        ("POST", "new-order"),
    ):
        answer = await service.http.request(method, f"/acme/{path}")
        assert answer.status_code == 404, path


async def test_the_directory_leads_everywhere(service: Service) -> None:
    """Each resource under the service's own address; a nonce comes with HEAD and with GET."""
    answer = await service.get("/acme/directory")
    found = answer.json()
    assert found.pop("meta") == {"externalAccountRequired": False}
    assert found.keys() == {"newNonce", "newAccount", "newOrder", "revokeCert", "keyChange"}
    assert all(url.startswith("https://attest.example.test/acme/") for url in found.values())
    for method, status in (("HEAD", 200), ("GET", 204)):
        nonce = await service.http.request(method, "/acme/new-nonce")
        assert (nonce.status_code, nonce.content, nonce.headers["Cache-Control"]) == (status, b"", "no-store")
        assert nonce.headers["Replay-Nonce"]


@pytest.mark.parametrize(
    "key",
    [
        ec.generate_private_key(ec.SECP256R1()),
        ec.generate_private_key(ec.SECP384R1()),
        ed25519.Ed25519PrivateKey.generate(),
        rsa_key(),
    ],
    ids=["ES256", "ES384", "EdDSA", "RS256"],
)
async def test_an_account_lives(service: Service, key: Any) -> None:
    """Made once for a key, found again by it, changed, ended; then it asks for nothing any more."""
    client = Client(service.http, URL, key)
    await client.begin()
    with pytest.raises(Problem) as told:
        await client.register(onlyReturnExisting=True)
    assert told.value.kind == "accountDoesNotExist"
    answer = await client.register(contact=["mailto:ops@example.test"])
    assert (answer.status_code, answer.json()["status"]) == (201, "valid")
    assert (await client.register()).status_code == 200
    assert (await client.register(onlyReturnExisting=True)).headers["Location"] == client.kid
    kid = str(client.kid)
    assert (await client.post(kid)).json()["contact"] == ["mailto:ops@example.test"]
    assert (await client.post(kid, {"contact": []})).json()["contact"] == []
    with pytest.raises(Problem):
        await client.post(kid, {"status": "valid"})
    assert (await client.post(kid, {"status": "deactivated"})).json()["status"] == "deactivated"
    for ask in (client.post(kid), client.order("m")):
        with pytest.raises(Problem) as told:
            await ask
        assert told.value.kind == "unauthorized"
    with pytest.raises(Problem) as told:
        await client.register()
    assert told.value.kind == "unauthorized"


@pytest.mark.parametrize(
    ("contact", "wrong"),
    [
        ("mailto:a@b", "invalidContact"),
        (["mailto:a@b"] * 5, "invalidContact"),
        (["tel:1"], "unsupportedContact"),
        ([7], "unsupportedContact"),
        (["mailto:a@b,c@d"], "invalidContact"),
        (["mailto:a@b?bcc=c"], "invalidContact"),
        (["mailto:nobody"], "invalidContact"),
        (["mailto:a@b\x1b"], "invalidContact"),
        (["mailto:a@" + "b" * 250], "invalidContact"),
    ],
)
async def test_a_contact_is_an_address(service: Service, contact: Any, wrong: str) -> None:
    """Of mail, one each, without anything that somebody who shows it would obey."""
    client = Client(service.http, URL)
    await client.begin()
    with pytest.raises(Problem) as told:
        await client.register(contact=contact)
    assert told.value.kind == wrong


# What each request must be


@pytest.mark.threat("T311")
async def test_a_request_is_good_once_and_for_its_url(service: Service) -> None:
    """Replayed, for another URL, with a foreign nonce or an old one: none of them counts."""
    client = await client_of(service)
    kid = str(client.kid)
    body = await client.signed(kid, b"")
    assert (await client.send(kid, body)).status_code == 200
    assert kind(await client.send(kid, body)) == "badNonce"
    assert kind(await client.send(f"{kid}/orders", await client.signed(kid, b""))) == "unauthorized"
    for nonce in ("", "A" * 43, "!", acme_client.b64url(bytes(33))):
        assert kind(await client.send(kid, await client.signed(kid, b"", nonce=nonce or "x"))) == "badNonce"
    old = await client.signed(kid, b"")
    service.clock.advance(3600)
    assert kind(await client.send(kid, old)) == "badNonce"


@pytest.mark.threat("T311")
async def test_what_is_no_jws_of_acme_is_refused(service: Service) -> None:
    """Form, header, key and signature, each in turn; a stranger costs no row."""
    client = await client_of(service)
    kid, other = str(client.kid), ec.generate_private_key(ec.SECP256R1())

    async def wrong(body: Any, **more: Any) -> str:
        return kind(await client.send(kid, body, **more))

    good = await client.signed(kid, b"")
    assert await wrong(good, content_type="application/json") == "malformed"
    for body in (
        b"",
        b"[]",
        b"{",
        b'"\xff"',
        b"[" * 5000,
        {**good, "header": {"alg": "none"}},
        {k: v for k, v in good.items() if k != "signature"},
        {**good, "payload": 7},
        {**good, "payload": "="},
        {**good, "protected": acme_client.b64url(b"[]")},
        {**good, "protected": acme_client.b64url(b'{"alg":"ES256","alg":"none"}')},
        {**good, "protected": acme_client.b64url(b"{" + b" " * 4097 + b"}")},
        {**good, "signature": good["signature"][:-4] + "AAAA"},
    ):
        assert await wrong(body) == "malformed", body
    jwk = jwk_of(client.key)
    for header, expected in (
        ({"crit": ["b64"]}, "malformed"),
        ({"b64": False}, "malformed"),
        ({"url": None}, "malformed"),
        ({"url": 7}, "malformed"),
        ({"kid": None}, "malformed"),
        ({"jwk": jwk}, "malformed"),
        ({"kid": None, "jwk": jwk}, "malformed"),
        ({"kid": kid + "0"}, "accountDoesNotExist"),
        ({"kid": "https://elsewhere.test/acme/accounts/x"}, "accountDoesNotExist"),
        ({"alg": "none"}, "badSignatureAlgorithm"),
        ({"alg": "ES384"}, "badSignatureAlgorithm"),
        ({"alg": "HS256"}, "badSignatureAlgorithm"),
    ):
        assert await wrong(await client.signed(kid, b"", **header)) == expected, header
    assert json.loads((await client.send(kid, await client.signed(kid, b"", alg="none"))).content)[
        "algorithms"
    ]
    client.key = other
    assert await wrong(await client.signed(kid, b"")) == "malformed"
    assert (await service.store.read(lambda tx: tx.acme.accounts(None, 9))).next_cursor is None


@pytest.mark.parametrize(
    "jwk",
    [
        None,
        {},
        {"kty": "oct", "k": "AAAA"},
        {"kty": ["EC"]},
        {"kty": "EC", "crv": "P-256", "x": "AAAA"},
        {"kty": "EC", "crv": "P-256", "x": "AAAA", "y": "AAAA"},
        {"kty": "EC", "crv": "secp256k1", "x": "AAAA", "y": "AAAA"},
        {"kty": "EC", "crv": 7, "x": "AAAA", "y": "AAAA"},
        {"kty": "OKP", "crv": "X25519", "x": "A" * 43},
        {"kty": "OKP", "crv": "Ed25519", "x": "AAAA"},
        {"kty": "RSA", "n": "AQAB", "e": "AQAB"},
        {**jwk_of(rsa.generate_private_key(65537, 1024)), "e": "AQAB"},
        {**jwk_of(rsa_key()), "e": "Aw"},
        {**jwk_of(ec.generate_private_key(ec.SECP256R1())), "d": "AAAA"},
    ],
)
async def test_a_key_is_a_public_key_that_signs(service: Service, jwk: Any) -> None:
    """Anything else makes no account."""
    client = Client(service.http, URL)
    await client.begin()
    new = client.directory["newAccount"]
    body = (
        await client.signed(new, b"{}", jwk=jwk)
        if jwk is not None
        else await client.signed(new, b"{}", jwk=7)
    )
    assert kind(await client.send(new, body)) == "badPublicKey"


async def test_a_policy_forbids_keys(start: Starter) -> None:
    """Under CNSA 1.0 an account has P-384 or RSA from 3072 bits."""
    service = await start(**SETTINGS, crypto_policy="cnsa1")
    for key, good in ((ec.SECP256R1(), False), (ec.SECP384R1(), True)):
        client = Client(service.http, URL, ec.generate_private_key(key))
        await client.begin()
        if good:
            await client.register()
            continue
        with pytest.raises(Problem) as told:
            await client.register()
        assert told.value.kind == "badPublicKey"


@pytest.mark.threat("T311")
async def test_strangers_are_slowed_down(start: Starter) -> None:
    """Each request counts against its address, also one that is refused; the answer says when again."""
    service = await start(**SETTINGS | {"rate_limits": True, "rate_limit_address_burst": 8})
    answers = [await service.http.post("/acme/new-account", content=b"{}") for _ in range(12)]
    assert kind(answers[0]) == "malformed"
    assert (kind(answers[-1]), answers[-1].status_code) == ("rateLimited", 429)
    assert int(answers[-1].headers["Retry-After"]) > 0


@pytest.mark.threat("T311")
async def test_what_is_kept_for_long_is_counted(start: Starter, monkeypatch: pytest.MonkeyPatch) -> None:
    """Orders that were given up, keys that were changed, certificates that were revoked make room for nothing."""
    service = await start(**SETTINGS | {"rate_limits": True, "enrollment_ca_unencrypted": True})
    node = SoftwareNode()
    await service.admitted(node)
    client = await client_of(service)
    few = RateLimit(requests=2, per_seconds=60)
    for module, name in ((orders, "ORDERS"), (accounts, "KEY_CHANGES"), (finalize, "CERTIFICATES")):
        monkeypatch.setattr(module, name, few)

    async def order() -> None:
        _, made = await client.order(node.machine_id)
        await client.post(made["authorizations"][0], {"status": "deactivated"})

    async def change() -> None:
        place, new = client.directory["keyChange"], ec.generate_private_key(ec.SECP256R1())
        said = acme_client.compact({"account": client.kid, "oldKey": jwk_of(client.key)})
        await client.post(place, jws(new, {"jwk": jwk_of(new), "url": place}, said))
        client.key = new

    async def certified() -> None:
        client.kid = None
        await client.register()
        key = ecc_key()
        _, made = await ready(service, node, key, client)
        leaf, *_ = await client.download(await client.finalize(made, csr_for(key.private)))
        der = acme_client.b64url(leaf.public_bytes(Encoding.DER))
        await client.post(client.directory["revokeCert"], {"certificate": der})

    for act in (change, order, certified):
        if act is certified:
            monkeypatch.setattr(orders, "ORDERS", RateLimit(requests=60, per_seconds=60))
            service.clock.advance(60)
        await act()
        await act()
        with pytest.raises(Problem) as told:
            await act()
        assert told.value.kind == "rateLimited", act
        assert int(told.value.body["status"]) == 429


# Another key


async def test_an_account_gets_another_key(service: Service) -> None:
    """Both keys agree, for this account; the old one asks for nothing then."""
    client, other = await client_of(service), await client_of(service)
    change, new = client.directory["keyChange"], ec.generate_private_key(ec.SECP384R1())
    kid = str(client.kid)
    body = {"account": kid, "oldKey": jwk_of(client.key)}

    def inner(key: Any = new, payload: Any = body, **header: Any) -> dict[str, str]:
        found = {"jwk": jwk_of(key), "url": change} | header
        return jws(key, {k: v for k, v in found.items() if v is not None}, acme_client.compact(payload))

    for wrong, expected in (
        (inner(url="https://attest.example.test/acme/new-order"), "malformed"),
        (inner(nonce="x"), "malformed"),
        (inner(kid=kid), "malformed"),
        (inner(jwk=None), "badPublicKey"),
        (inner(jwk=jwk_of(other.key)), "badSignatureAlgorithm"),
        (inner(jwk=jwk_of(ec.generate_private_key(ec.SECP384R1()))), "malformed"),
        (inner(payload=body | {"account": other.kid}), "malformed"),
        (inner(payload=body | {"oldKey": jwk_of(other.key)}), "malformed"),
        (inner(payload=body | {"oldKey": 7}), "badPublicKey"),
        ({"protected": "x"}, "malformed"),
    ):
        with pytest.raises(Problem) as told:
            await client.post(change, wrong)
        assert told.value.kind == expected, wrong
    with pytest.raises(Problem) as told:
        await client.post(change, inner(other.key))
    assert told.value.status == 409
    assert (await client.post(change, inner())).json()["status"] == "valid"
    with pytest.raises(Problem):
        await client.post(kid)
    client.key = new
    assert (await client.post(kid)).status_code == 200


# Keys of operators


@pytest.mark.threat("T311")
async def test_an_account_needs_a_key_of_an_operator(start: Starter) -> None:
    """Bound to the account's key and to this URL, used once, in time; whatever else is sent makes none."""
    service = await bound(start)
    assert (await service.get("/acme/directory")).json()["meta"] == {"externalAccountRequired": True}
    made = await made_key(service, note="app-1")
    secret = base64.urlsafe_b64decode(made["hmac_key"] + "==")
    client = Client(service.http, URL)
    await client.begin()
    new = client.directory["newAccount"]
    with pytest.raises(Problem) as told:
        await client.register()
    assert told.value.kind == "externalAccountRequired"
    other = ec.generate_private_key(ec.SECP256R1())
    for binding, expected in (
        (7, "malformed"),
        (external_binding(client.key, new, made["key_id"], bytes(32)), "unauthorized"),
        (external_binding(client.key, new, "é", secret), "malformed"),
        (external_binding(client.key, new, "0" * 16, secret), "unauthorized"),
        (external_binding(other, new, made["key_id"], secret), "malformed"),
        (external_binding(client.key, URL, made["key_id"], secret), "malformed"),
        (external_binding(client.key, new, made["key_id"], secret, nonce="x"), "malformed"),
        (external_binding(client.key, new, made["key_id"], secret, alg="ES256"), "unauthorized"),
    ):
        with pytest.raises(Problem) as told:
            await client.register(externalAccountBinding=binding)
        assert told.value.kind == expected, binding
    good = external_binding(client.key, new, made["key_id"], secret)
    assert (await client.register(externalAccountBinding=good)).status_code == 201
    # The same request finds the account; another key of a client gets nothing from the key any more.
    assert (await client.register()).status_code == 200
    thief = Client(service.http, URL)
    await thief.begin()
    with pytest.raises(Problem) as told:
        await thief.register(externalAccountBinding=external_binding(thief.key, new, made["key_id"], secret))
    assert told.value.kind == "unauthorized"
    (listed,) = (await service.operator("GET", "/acme/keys")).json()["items"]
    assert (listed["account_id"], "hmac_key" in listed) == (str(client.kid).rpartition("/")[2], False)
    entries = await service.audit()
    assert [each["action"] for each in entries][:2] == ["acme_account_created", "acme_key_made"]
    assert made["hmac_key"] not in json.dumps(entries)


async def test_a_key_ends_or_is_taken_back(start: Starter) -> None:
    """Then it makes no account; one that made its account cannot be taken back, the account can."""
    service = await bound(start)
    client = Client(service.http, URL)
    await client.begin()
    new = client.directory["newAccount"]

    async def register(made: dict[str, Any]) -> httpx.Response:
        secret = base64.urlsafe_b64decode(made["hmac_key"] + "==")
        return await client.register(
            externalAccountBinding=external_binding(client.key, new, made["key_id"], secret)
        )

    old = await made_key(service, expires_in_seconds=60)
    service.clock.advance(60)
    taken = await made_key(service)
    path = f"/acme/keys/{taken['key_id']}/revoke"
    assert (await service.operator("POST", path)).json()["revoked_at"] is not None
    assert (await service.operator("POST", path)).status_code == 409
    for made in (old, taken):
        with pytest.raises(Problem) as told:
            await register(made)
        assert told.value.kind == "unauthorized"
    used = await made_key(service)
    await register(used)
    assert (await service.operator("POST", f"/acme/keys/{used['key_id']}/revoke")).status_code == 409
    account = str(client.kid).rpartition("/")[2]
    assert (await service.operator("POST", f"/acme/keys/{'0' * 16}/revoke")).status_code == 404
    assert (
        await service.operator("POST", f"/acme/accounts/{'0' * 32}/revoke", {"reason": "x"})
    ).status_code == 404
    answer = await service.operator("POST", f"/acme/accounts/{account}/revoke", {"reason": "gone"})
    assert answer.json()["status"] == "revoked"
    again = await service.operator("POST", f"/acme/accounts/{account}/revoke", {"reason": "gone"})
    assert again.status_code == 409
    with pytest.raises(Problem) as told:
        await client.post(str(client.kid))
    assert told.value.kind == "unauthorized"
    (listed,) = (await service.operator("GET", "/acme/accounts")).json()["items"]
    assert (listed["status"], listed["thumbprint"]) == ("revoked", thumbprint(client.key))
    # A day later nothing is left of it, and its key may make another one.
    service.clock.advance(86_401)
    await maintenance.once(service.resources)
    assert (await service.operator("GET", "/acme/accounts")).json()["items"] == []


@pytest.mark.threat("T310")
async def test_an_account_of_one_machine_asks_for_no_other(start: Starter) -> None:
    """And is not told whether there is another one."""
    service = await bound(start)
    node, other = SoftwareNode(), SoftwareNode()
    await service.admitted(node)
    await service.admitted(other)
    assert (
        await service.operator("POST", "/acme/keys", {"machine_id": "0" * 8 + "-0000-4000-8000-" + "0" * 12})
    ).status_code == 404
    made = await made_key(service, machine_id=node.machine_id)
    secret = base64.urlsafe_b64decode(made["hmac_key"] + "==")
    client = Client(service.http, URL)
    await client.begin()
    binding = external_binding(client.key, client.directory["newAccount"], made["key_id"], secret)
    await client.register(externalAccountBinding=binding)
    for value in (other.machine_id, "nobody"):
        with pytest.raises(Problem) as told:
            await client.order(value)
        assert told.value.kind == "rejectedIdentifier"
        assert told.value.body["detail"] == "there is no such machine for this account"
    place, _ = await client.order(node.machine_id)
    (listed,) = (await service.operator("GET", "/acme/orders")).json()["items"]
    assert (listed["identifier"], listed["status"], listed["serials"]) == (node.machine_id, "pending", [])
    assert place.endswith(listed["order_id"])


@pytest.mark.threat("T311")
async def test_strangers_cannot_fill_the_database(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without keys of operators there is room for so many accounts."""
    monkeypatch.setattr(accounts, "MOST_UNBOUND", 2)
    await client_of(service)
    await client_of(service)
    with pytest.raises(Problem) as told:
        await client_of(service)
    assert told.value.kind == "rateLimited"
    assert int(told.value.body["status"]) == 429


@pytest.mark.threat("T311")
async def test_what_no_database_can_hold_is_refused(service: Service) -> None:
    """Half of a character, or a NUL, which databases take otherwise: in a name, in a key's name, in a URL."""
    client = await client_of(service)
    for text in ("a\ud800", "a\0b"):
        with pytest.raises(Problem) as told:
            await client.order(text)
        assert told.value.kind == "malformed", text
    place = f"{client.kid}".replace("accounts", "orders")
    for wrong in ("%00", "%EF%BF%BF"):
        with pytest.raises(Problem) as told:
            await client.post(place.rpartition("/")[0] + f"/{wrong}")
        assert told.value.kind in ("malformed", "unauthorized"), wrong
    client.kid = f"{client.kid}\ud800"
    with pytest.raises(Problem) as told:
        await client.post(client.directory["newOrder"], {})
    assert told.value.kind == "malformed"


@pytest.mark.threat("T311")
async def test_one_stranger_leaves_room_for_others(start: Starter, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one network so many accounts a day; those that it has are found as before, and a key of an operator helps."""
    monkeypatch.setattr(accounts, "UNBOUND", RateLimit(requests=1, per_seconds=86_400))
    service = await start(**SETTINGS | {"rate_limits": True})
    client = await client_of(service)
    stranger = Client(service.http, URL)
    await stranger.begin()
    with pytest.raises(Problem) as told:
        await stranger.register()
    assert told.value.kind == "rateLimited"
    assert (await client.register()).status_code == 200
    made = await made_key(service, note="for the stranger")
    secret = base64.urlsafe_b64decode(made["hmac_key"] + "==")
    new = stranger.directory["newAccount"]
    given = external_binding(stranger.key, new, made["key_id"], secret)
    assert (await stranger.register(externalAccountBinding=given)).status_code == 201


async def test_a_service_key_that_only_signs_has_no_acme(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing to derive nonces from: unavailable, in whatever words the client understands."""
    client = await client_of(service)
    body = await client.signed(str(client.kid), b"")
    monkeypatch.setattr(type(service.resources.service_keys), "secret", lambda _self, _purpose: None)
    assert (await service.get("/acme/new-nonce")).status_code == 503
    answer = await client.send(str(client.kid), body)
    assert (answer.status_code, answer.json()["type"]) == (503, f"{acme_client.ERROR}serverInternal")
    assert "Replay-Nonce" not in answer.headers
