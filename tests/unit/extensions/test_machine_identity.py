"""Identity tokens: for whom, for which audience, how long, and what ends them."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import sqlite3
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from joserfc import jwt
from joserfc.jwk import ECKey, KeySet
from structlog.testing import capture_logs

from attestation.keys import KeyOptions, create_key
from attestation.machines import NodeEvent
from attestation.tpm import parse_public
from attestation_extensions.machine_identity import keys, records
from attestation_extensions.machine_identity.records import Records, StoredKey
from attestation_service import extensions
from attestation_service.process import dispatch, maintenance
from tests.unit.service.conftest import Service, Starter, migrated, settings_for, start
from tests.unit.service.node import SoftwareNode
from tests.unit.service.test_enroll import holder_of
from tests.unit.service.test_enrollment import WITH_CA

__all__ = ["migrated", "start"]

pytestmark = pytest.mark.anyio

BASE = "/api/v1/identity"
ISSUER = f"https://attest.example.test{BASE}"
AUDIENCES = "vault; https://kube.test role=worker-app cluster=default; https://other.test role=controlplane"


@pytest.fixture
def anyio_backend() -> str:
    """Run the asynchronous tests on asyncio."""
    return "asyncio"


def settings(folder: Path, **changed: str) -> dict[str, Any]:
    """Return settings of a service with the extension."""
    values = {"audiences": AUDIENCES, "key": f"file:{folder}/identity.pem"} | changed
    return {
        "extensions": ("machine_identity",),
        "extension_values": {
            f"ITL_EXT_MACHINE_IDENTITY_{name.upper()}": each for name, each in values.items()
        },
    }


@pytest.fixture
async def service(start: Starter, tmp_path: Path) -> Service:
    """A service that issues tokens."""
    return await start(**settings(tmp_path))


@pytest.fixture
async def node(service: Service) -> SoftwareNode:
    """A machine that is attested."""
    found = SoftwareNode()
    await service.admitted(found, hostname="w-1")
    return found


async def ask(
    service: Service, node: SoftwareNode, audience: str = "vault", **members: Any
) -> httpx.Response:
    """Ask for a token with a fresh quote."""
    body = node.attestation(await service.challenge(node), audience=audience, **members)
    return await service.post(f"{BASE}/token", body)


async def given(service: Service, node: SoftwareNode, audience: str = "vault") -> str:
    """Return a token."""
    answer = await ask(service, node, audience)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["token"])


async def verified(service: Service, token: str) -> Mapping[str, Any]:
    """Do what a consumer does: discovery, key set, signature."""
    document = (await service.get(f"{BASE}/.well-known/openid-configuration")).json()
    assert document["issuer"] == ISSUER
    shown = await service.get(document["jwks_uri"].removeprefix("https://attest.example.test"))
    assert shown.headers["cache-control"] == "public, max-age=300"
    algorithms = document["id_token_signing_alg_values_supported"]
    return jwt.decode(token, KeySet.import_key_set(shown.json()), algorithms=algorithms).claims


async def active(service: Service, claims: Mapping[str, Any]) -> bool:
    """Ask what became of a token."""
    return bool((await service.get(f"{BASE}/status/{claims['jti']}")).json()["active"])


async def told(service: Service) -> None:
    """Let the events reach the extension."""
    await maintenance.once(service.resources)
    enabled = extensions.load(service.resources.settings)
    for name, handlers in enabled.handlers.items():
        while await dispatch.once(name, handlers, service.resources):
            pass


async def test_an_attested_machine_has_a_token_that_others_verify(
    service: Service, node: SoftwareNode
) -> None:
    """Through discovery and the key set; it says who the machine is, for whom, and for ten minutes."""
    claims = await verified(service, await given(service, node))
    at = service.clock.now()
    assert claims["iss"] == ISSUER
    assert claims["sub"] == f"machine:{node.machine_id}"
    assert claims["aud"] == "vault"
    assert claims["iat"] == claims["nbf"] == claims["attested_at"] == int(at.timestamp())
    assert claims["exp"] - claims["iat"] == 600
    assert (claims["cluster"], claims["role"], claims["hostname"]) == ("default", "worker-app", "w-1")
    assert claims["assurance"] == (await service.detail(node))["assurance"]
    document = (await service.get(f"{BASE}/.well-known/openid-configuration")).json()
    assert set(document["claims_supported"]) == claims.keys()
    assert claims["trust_vector"]["instance-identity"] == 2
    assert await active(service, claims)
    (entry,) = await service.audit(action="identity_token")
    assert (entry["machine_id"], entry["detail"]) == (node.machine_id, f"audience vault, jti {claims['jti']}")


@pytest.mark.threat("T254")
async def test_a_token_is_bound_to_a_key_of_the_tpm(service: Service, node: SoftwareNode) -> None:
    """Without a certificate that is the AK, by the thumbprint of RFC 7638."""
    claims = await verified(service, await given(service, node))
    key = parse_public(node.ak.tpm2b()).key()
    assert isinstance(key, ec.EllipticCurvePublicKey)
    assert (claims["cnf"], claims["cnf_key"]) == ({"jkt": ECKey(key, key).thumbprint()}, "ak")


@pytest.mark.threat("T254")
@pytest.mark.parametrize(
    ("change", "kept"),
    [("key_tier = NULL", False), ("machine_id = :other", False), ("subject = 'CN=x'", True)],
)
async def test_a_token_is_bound_to_no_certificate_of_another(
    start: Starter, tmp_path: Path, change: str, kept: bool
) -> None:
    """Whatever the table says: its own certificate names its EK, and its TPM certified the key."""
    service = await start(tpm_ca_bundle_dir=start.bundle(), **WITH_CA, **settings(tmp_path))
    other = await holder_of(service)
    service.clock.advance(60)
    one = await holder_of(service)
    with (
        contextlib.closing(
            sqlite3.connect(service.resources.settings.db_url.partition(":///")[2])
        ) as connection,
        connection,
    ):
        connection.execute(
            f"UPDATE certificates SET {change} WHERE serial = :serial",
            {"other": other.node.machine_id, "serial": one.serial},
        )
    asks = other if "other" in change else one
    claims = await verified(service, await given(service, asks.node))
    native = one.key.private.public_key()
    assert isinstance(native, ec.EllipticCurvePublicKey)
    bound = claims["cnf"] == {"jkt": ECKey(native, native).thumbprint()}
    assert bound is kept


@pytest.mark.threat("T249")
async def test_an_audience_that_is_not_for_this_machine_is_none(service: Service, node: SoftwareNode) -> None:
    """Not listed, listed for another role, for another cluster: one answer, and nothing is noted."""
    answers = [await ask(service, node, audience) for audience in ("nobody", "https://other.test", "Vault")]
    told_by = {(a.status_code, a.json()["type"], a.json()["detail"]) for a in answers}
    assert told_by == {(403, "urn:itl:problem:audience-forbidden", "no token for this audience")}
    assert await service.audit(action="identity_token") == []
    assert (await verified(service, await given(service, node, "https://kube.test")))[
        "aud"
    ] == "https://kube.test"
    malformed = [await ask(service, node, text) for text in ("", "two words", "a;b", "x" * 256)]
    assert {answer.status_code for answer in malformed} == {422}


async def test_a_request_is_good_once(service: Service, node: SoftwareNode) -> None:
    """Who repeats it gets nothing."""
    body = node.attestation(await service.challenge(node), audience="vault")
    assert (await service.post(f"{BASE}/token", body)).status_code == 200
    again = await service.post(f"{BASE}/token", body)
    assert (again.status_code, again.json()["type"]) == (409, "urn:itl:problem:challenge-used")


@pytest.mark.threat("T249")
async def test_only_who_is_attested_now_has_a_token(service: Service, node: SoftwareNode) -> None:
    """Neither before the approval nor locked, revoked, rejected; nor with a challenge that is over."""
    pending, rejected = SoftwareNode(), SoftwareNode()
    await service.introduce(pending)
    assert (await ask(service, pending)).status_code == 403
    await service.introduce(rejected)
    await service.act(rejected, "reject", {"reason": "x"})
    assert (await ask(service, rejected)).status_code == 403
    stale = await service.challenge(node)
    service.clock.advance(3600)
    late = await service.post(f"{BASE}/token", node.attestation(stale, audience="vault"))
    assert (late.status_code, late.json()["type"]) == (410, "urn:itl:problem:challenge-expired")
    for act in ("lock", "revoke"):
        await service.act(node, act, {"reason": "x"})
        assert (await ask(service, node)).status_code == 403
    assert await service.audit(action="identity_token") == []


@pytest.mark.threat("T250")
async def test_a_lock_between_the_quote_and_the_token_is_noticed(
    service: Service, node: SoftwareNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was signed meanwhile is thrown away: nothing is given, nothing is noted."""
    sign = keys.SigningKey.sign
    loop = asyncio.get_running_loop()

    def slow(self: keys.SigningKey, claims: Mapping[str, Any]) -> str:
        asyncio.run_coroutine_threadsafe(service.act(node, "lock", {"reason": "x"}), loop).result(60)
        return sign(self, claims)

    monkeypatch.setattr(keys.SigningKey, "sign", slow)
    answer = await ask(service, node)
    assert (answer.status_code, answer.json()["type"]) == (403, "urn:itl:problem:machine-not-admitted")
    assert await service.audit(action="identity_token") == []


@pytest.mark.threat("T251")
async def test_a_lock_ends_the_tokens_of_a_machine(service: Service, node: SoftwareNode) -> None:
    """At once for who asks; in the list when the event has come; and for good, whatever happens afterwards."""
    other = SoftwareNode(rsa_ek=True)
    await service.admitted(other)
    claims = await verified(service, await given(service, node))
    others = await verified(service, await given(service, other))
    service.clock.advance(1)
    await service.act(node, "lock", {"reason": "x"})
    assert not await active(service, claims)
    await told(service)
    listed = (await service.get(f"{BASE}/revoked")).json()["revoked"]
    assert [each["jti"] for each in listed] == [claims["jti"]]
    await service.act(node, "unlock", {"reason": "x"})
    await service.attest(node)
    await service.attest(node)
    assert (await service.detail(node))["status"] == "attested"
    assert not await active(service, claims)
    assert await active(service, await verified(service, await given(service, node)))
    assert await active(service, others)
    # Over anyway: nobody needs it listed any more.
    service.clock.advance(600)
    assert (await service.get(f"{BASE}/revoked")).json() == {"revoked": [], "truncated": False}


async def test_a_list_that_is_too_long_says_so(
    service: Service, node: SoftwareNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who believes that what is not listed counts must ask for each."""
    monkeypatch.setattr(records, "MAX_LISTED", 1)
    for _ in range(2):
        await given(service, node)
    service.clock.advance(1)
    await service.act(node, "lock", {"reason": "x"})
    await told(service)
    answer = (await service.get(f"{BASE}/revoked")).json()
    assert (len(answer["revoked"]), answer["truncated"]) == (1, True)


async def test_tokens_of_machines_that_left_are_forgotten(service: Service, node: SoftwareNode) -> None:
    """With the next token of any machine, once they are over and out of the hour that is counted."""
    await given(service, node)
    other = SoftwareNode()
    await service.admitted(other, hostname="w-2")
    service.clock.advance(3599)
    await service.attest(other)
    await given(service, other)

    def kept(tx: Any) -> list[int]:
        long_ago = service.clock.now() - timedelta(days=1)
        return [tx.of(Records).issued_since(each.machine_id, long_ago)[0] for each in (node, other)]

    assert await service.store.scan(kept) == [1, 1]
    service.clock.advance(1)
    await given(service, other)
    assert await service.store.scan(kept) == [0, 2]


async def test_a_token_counts_while_the_machine_is_what_it_says(service: Service, node: SoftwareNode) -> None:
    """Another role, or trust that ran out, end it before any event; so does its own end."""
    claims = await verified(service, await given(service, node))
    assert not await active(service, {"jti": "0" * 32})
    service.clock.advance(599)
    await service.attest(node)
    assert await active(service, claims)
    service.clock.advance(1)
    assert not await active(service, claims)
    claims = await verified(service, await given(service, node))

    def change(tx: Any) -> None:
        machine = tx.machines.require(node.machine_id)
        tx.machines.update(machine, trust_expires_at=service.clock.now())

    service.store.write_sync(change)
    assert not await active(service, claims)
    await service.attest(node)
    assert await active(service, claims)

    def move(tx: Any) -> None:
        tx.machines.update(tx.machines.require(node.machine_id), cluster_id="other")

    service.store.write_sync(move)
    assert not await active(service, claims)


@pytest.mark.threat("T251")
async def test_a_lock_that_is_over_ended_them_too(service: Service, node: SoftwareNode) -> None:
    """Also where its event comes when the machine was unlocked and proved itself since."""
    claims = await verified(service, await given(service, node))
    service.clock.advance(1)
    await service.act(node, "lock", {"reason": "x"})
    service.clock.advance(1)
    await service.act(node, "unlock", {"reason": "x"})
    await service.attest(node)
    await service.attest(node)
    assert (await service.detail(node))["status"] == "attested"
    fresh = await verified(service, await given(service, node))
    await told(service)
    assert not await active(service, claims)
    assert await active(service, fresh)


@pytest.mark.threat("T251")
@pytest.mark.parametrize(
    "event",
    [
        NodeEvent.LOCKED,
        NodeEvent.REJECTED,
        NodeEvent.DECOMMISSIONED,
        NodeEvent.WIPED,
        NodeEvent.ROLE_CHANGED,
        NodeEvent.ATTESTATION_FAILED,
    ],
)
async def test_each_of_these_ends_the_tokens_of_a_machine(
    service: Service, node: SoftwareNode, event: NodeEvent
) -> None:
    """Those before it, and not those of another machine."""
    other = SoftwareNode()
    await service.admitted(other, hostname="w-2")
    claims = await verified(service, await given(service, node))
    await given(service, other)
    service.clock.advance(1)
    at = service.clock.now()
    await service.store.write(lambda tx: tx.outbox.add(event, node.machine_id, {}, at))
    await told(service)
    listed = (await service.get(f"{BASE}/revoked")).json()["revoked"]
    assert [each["jti"] for each in listed] == [claims["jti"]]


@pytest.mark.threat("T255")
async def test_a_machine_has_so_many_tokens_within_an_hour(start: Starter, tmp_path: Path) -> None:
    """Each is an entry of the audit log. What is over is forgotten, so the table does not grow."""
    service = await start(**settings(tmp_path, tokens_per_hour="3"))
    node = SoftwareNode()
    await service.admitted(node)
    for _ in range(3):
        await given(service, node)
        service.clock.advance(60)
    answer = await ask(service, node)
    assert (answer.status_code, answer.json()["type"]) == (429, "urn:itl:problem:rate-limited")
    assert int(answer.headers["retry-after"]) == 3600 - 180 + 1
    service.clock.advance(3600 - 180)
    await service.attest(node)
    await given(service, node)
    count, _ = service.store.read_sync(
        lambda tx: tx.of(Records).issued_since(node.machine_id, service.clock.now() - timedelta(days=9))
    )
    assert count == 3


# Keys


async def rotated(service: Service, **how: bool) -> httpx.Response:
    """Exchange the key."""
    return await service.operator("POST", "/identity/keys/rotate", how)


async def test_a_key_is_published_before_it_signs_and_after(service: Service, node: SoftwareNode) -> None:
    """Who keeps the set for as long as it says never meets a token that it cannot verify."""

    async def kids() -> list[str]:
        return [each["kid"] for each in (await service.get(f"{BASE}/jwks.json")).json()["keys"]]

    (first,) = await kids()
    answer = await rotated(service)
    assert answer.status_code == 200, answer.text
    second = answer.json()["keys"][1]["kid"]
    assert [each["signs"] for each in answer.json()["keys"]] == [True, False]
    assert await kids() == [first, second]
    old = await given(service, node)
    service.clock.advance(899)
    assert (await rotated(service)).status_code == 409
    service.clock.advance(1)
    await service.attest(node)
    new = await given(service, node)
    await verified(service, old)
    await verified(service, new)
    assert [jwt_kid(each) for each in (old, new)] == [first, second]
    service.clock.advance(659)
    assert await kids() == [first, second]
    service.clock.advance(1)
    assert await kids() == [second]
    (entry,) = await service.audit(action="identity_key_rotated")
    assert entry["detail"] == f"number 2, {second}"


async def test_a_withdrawn_key_is_gone_with_all_that_it_signed(service: Service, node: SoftwareNode) -> None:
    """Where somebody else may have it."""
    claims = await verified(service, await given(service, node))
    answer = await rotated(service, withdraw=True)
    ((only,), shown) = answer.json()["keys"], (await service.get(f"{BASE}/jwks.json")).json()["keys"]
    assert [each["kid"] for each in shown] == [only["kid"]]
    assert not await active(service, claims)
    assert jwt_kid(await given(service, node)) == only["kid"]


@pytest.mark.threat("T252")
async def test_who_writes_to_the_database_adds_no_key(
    service: Service, node: SoftwareNode, tmp_path: Path
) -> None:
    """The published halves come from the private keys: a row without one, or of another key, is none."""
    before = (await service.get(f"{BASE}/jwks.json")).json()
    at = service.clock.now()

    def forge(tx: Any) -> None:
        tx.of(Records).add_key(StoredKey(number=2, kid="forged", published_at=at, signs_at=at))

    service.store.write_sync(forge)
    assert (await service.get(f"{BASE}/jwks.json")).json() == before
    refused = await ask(service, node)
    assert (refused.status_code, refused.json()["type"]) == (503, "urn:itl:problem:signer-unavailable")
    # A key that lies there, under the name of another.
    (tmp_path / "identity-2.pem").write_bytes((tmp_path / "identity.pem").read_bytes())
    (tmp_path / "identity-2.pem").chmod(0o600)
    assert (await service.get(f"{BASE}/jwks.json")).json() == before


async def test_who_asks_for_the_keys_fills_no_log(service: Service, tmp_path: Path) -> None:
    """A key that is not here is not looked for with each request, which anybody can send; it may come."""

    async def shown() -> list[str]:
        return [each["kid"] for each in (await service.get(f"{BASE}/jwks.json")).json()["keys"]]

    at, before = service.clock.now(), await shown()
    options = KeyOptions(allow_unencrypted=True)
    made = keys.SigningKey(create_key(f"file:{tmp_path}/elsewhere.pem", "ecdsa-p256", options))
    row = StoredKey(number=2, kid=made.kid, published_at=at, signs_at=at + timedelta(hours=1))
    service.store.write_sync(lambda tx: tx.of(Records).add_key(row))
    with capture_logs() as lines:
        for _ in range(20):
            assert await shown() == before
    assert len([line for line in lines if line["event"] == "identity.key_unusable"]) == 1
    (tmp_path / "elsewhere.pem").rename(tmp_path / "identity-2.pem")
    service.clock.advance(keys.TRIED_AGAIN.total_seconds())
    assert await shown() == [*before, made.kid]


async def test_rsa_where_a_cloud_knows_nothing_else(start: Starter, tmp_path: Path) -> None:
    """RS256 with 4096 bits."""
    service = await start(**settings(tmp_path, algorithm="RS256", issuer="https://id.example.test/machines"))
    node = SoftwareNode()
    await service.admitted(node)
    document = (await service.get(f"{BASE}/.well-known/openid-configuration")).json()
    assert document["issuer"] == "https://id.example.test/machines"
    assert document["jwks_uri"] == "https://id.example.test/machines/jwks.json"
    shown = (await service.get(f"{BASE}/jwks.json")).json()
    found = jwt.decode(await given(service, node), KeySet.import_key_set(shown), algorithms=["RS256"])
    assert found.claims["iss"] == document["issuer"]


async def test_a_key_of_another_kind_stops_the_start(start: Starter, tmp_path: Path) -> None:
    """P-384 is what the service signs with otherwise; clouds verify none."""
    create_key(f"file:{tmp_path}/identity.pem", "ecdsa-p384", KeyOptions(allow_unencrypted=True))
    with pytest.raises(extensions.ExtensionInvalid, match="cannot begin"):
        await start(**settings(tmp_path))


def jwt_kid(token: str) -> str:
    """Return which key a token says that it was signed by."""
    header = token.split(".")[0]
    return str(json.loads(base64.urlsafe_b64decode(header + "=" * (-len(header) % 4)))["kid"])


# Settings


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"audiences": ";"}, "1 to 64 audiences"),
        ({"audiences": "a; a"}, "a stands there twice"),
        ({"audiences": "a rule=x"}, "role=… or cluster=…"),
        ({"audiences": "a role=king"}, "a role is one of"),
        ({"audiences": "a cluster="}, "a cluster is"),
        ({"issuer": "http://id.example.test"}, "an https URL"),
        ({"issuer": "https://id.example.test/"}, "slash at its end"),
        ({"issuer": "https://me@id.example.test"}, "without user"),
        ({"key": "identity.pem"}, "a key is named by"),
        ({"algorithm": "none"}, "ALGORITHM"),
        ({"lifetime_seconds": "3601"}, "LIFETIME_SECONDS"),
    ],
)
def test_settings_that_cannot_be_meant_stop_the_start(
    tmp_path: Path, changed: dict[str, str], why: str
) -> None:
    """With the variable that is wrong."""
    with pytest.raises(extensions.ExtensionInvalid, match="ITL_EXT_MACHINE_IDENTITY_") as refused:
        extensions.load(settings_for(tmp_path, **settings(tmp_path, **changed)))
    assert why in str(refused.value)
