"""Delivery: sealed, once, only to whom proved itself lately; everything else is the pending answer (PROTOCOL §5)."""

from __future__ import annotations

import asyncio
import dataclasses
import sqlite3
from contextlib import closing
from typing import Any

import pytest

from attestation.keys import CONFIG_SIGNATURE_HEADER, CONFIG_TYP, verify_jwt
from attestation.tpm import parse_public
from tests.unit.service.conftest import BASE, CANARY, Service, Starter
from tests.unit.service.node import SEALED, SoftwareNode
from tests.unit.service.test_registration import code

pytestmark = pytest.mark.anyio

JSON = "application/json"


async def test_concurrent_fetches_return_the_same_envelope(service: Service) -> None:
    """One delivery, however many ask; one audit entry; the event says which token, never the token."""
    node = SoftwareNode()
    token = (await service.admitted(node))["config_token"]
    answers = await asyncio.gather(*(service.fetch(token) for _ in range(8)))
    assert {answer.status_code for answer in answers} == {200}
    assert {answer.headers["content-type"] for answer in answers} == {SEALED}
    assert len({answer.content for answer in answers}) == 1
    envelope = answers[0].json()
    (entry,) = await service.audit(action="config_delivered")
    assert envelope["config_sha256"] in entry["detail"]
    assert token not in str(await service.audit())
    assert CANARY in node.open(envelope).decode()


@pytest.mark.threat("T17")
async def test_a_delivery_is_signed_anew_for_every_fetch(service: Service) -> None:
    """Seals prove nothing about who sealed: machine, request, token and digest are signed."""
    node = SoftwareNode()
    token = (await service.admitted(node))["config_token"]
    jwks = service.resources.signer.jwks()
    for _ in range(2):
        answer = await service.fetch(token)
        claims = verify_jwt(answer.headers[CONFIG_SIGNATURE_HEADER], jwks, typ=CONFIG_TYP)
        now = int(service.clock.now().timestamp())
        assert claims == {
            "binding": claims["binding"],
            "node_nonce": answer.request.headers["Itl-Node-Nonce"],
            "token_id": answer.json()["token_id"],
            "config_sha256": answer.json()["config_sha256"],
            "iat": now,
            "exp": now + 300,
        }
        service.clock.advance(60)
    assert CONFIG_SIGNATURE_HEADER not in (await service.get("/config")).headers


@pytest.mark.threat("T18")
async def test_a_verdict_under_a_replaced_policy_releases_nothing(service: Service) -> None:
    """Operators who demand more mean it from now on, not after the lease."""
    node = SoftwareNode()
    token = (await service.admitted(node))["config_token"]
    policy = {
        "format": "itl-tpm-policy/1",
        "name": "strict",
        "version": 1,
        "bank": "sha256",
        "pcrs": {"0": {"any_of": ["ab" * 32]}},
    }
    assert (await service.operator("POST", "/policies", policy)).status_code < 300
    path = "/policies/assignments/fleet/*"
    assert (await service.operator("PUT", path, {"policy": "strict@1"})).status_code == 200
    answer = await service.fetch(token)
    assert answer.headers["content-type"].startswith("text/plain")
    assert await service.audit(action="config_delivered") == []
    assert (await service.operator("DELETE", path)).status_code < 300
    assert (await service.fetch(token)).headers["content-type"] == SEALED


async def test_another_tpm_cannot_open_it(service: Service) -> None:
    """Whoever intercepts the envelope, or holds only the EK's certificate, has nothing."""
    node, thief = SoftwareNode(), SoftwareNode()
    token = (await service.admitted(node))["config_token"]
    envelope = (await service.fetch(token)).json()
    thief.machine_id = node.machine_id
    with pytest.raises(Exception, match="integrity"):
        thief.open(envelope)


@pytest.mark.parametrize("act", ["lock", "revoke", "ak-reset"])
async def test_operators_acts_withdraw_the_token(service: Service, act: str) -> None:
    """Before and inside the repeat window: the token is gone at once."""
    for fetched_before in (False, True):
        node = SoftwareNode()
        token = (await service.admitted(node))["config_token"]
        if fetched_before:
            assert (await service.fetch(token)).status_code == 200
        await service.act(node, act, {"reason": "test"} if act == "ak-reset" else None)
        answer = await service.fetch(token)
        assert answer.status_code == 410
        assert code(answer) == "token-consumed"


async def test_unlock_alone_does_not_deliver(service: Service) -> None:
    """After an unlock a fresh quote comes first."""
    node = SoftwareNode()
    await service.admitted(node)
    await service.act(node, "redeliver")
    token = (await service.attest(node))["config_token"]
    await service.act(node, "lock")
    await service.act(node, "unlock")
    assert (await service.detail(node))["trust"] == "stale"
    assert (await service.fetch(token)).status_code == 410


@pytest.mark.threat("T18")
async def test_what_changes_between_sealing_and_spending_counts(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Preconditions are decided again inside the unit: a lock while we seal releases nothing."""
    from attestation_service.delivery import handlers

    node = SoftwareNode()
    token = (await service.admitted(node))["config_token"]
    prepare = handlers._prepare

    def lock_meanwhile(*arguments: Any) -> Any:
        found = prepare(*arguments)

        def lock(tx: Any) -> None:
            machine = tx.machines.by_id(node.machine_id)
            tx.machines.update(machine, trust_expires_at=None)

        service.store.write_sync(lock)
        return found

    monkeypatch.setattr(handlers, "_prepare", lock_meanwhile)
    answer = await service.fetch(token)
    assert answer.headers["content-type"].startswith("text/plain")
    assert await service.audit(action="config_delivered") == []


async def test_tokens_end(service: Service) -> None:
    """Unknown 404, expired 410; both as problem where JSON is asked for, else as words for a console."""
    node = SoftwareNode()
    token = (await service.admitted(node))["config_token"]
    service.clock.advance(900)
    assert (await service.fetch(token)).status_code == 410
    unknown = await service.fetch("x" * 43, JSON)
    assert (unknown.status_code, code(unknown)) == (404, "config-token-unknown")
    console = await service.fetch("x" * 43, None)
    assert (console.status_code, console.headers["content-type"]) == (404, "text/plain; charset=utf-8")
    assert len(console.content) <= 32


async def test_plaintext_is_not_served(service: Service) -> None:
    """406 names the Accept value; nothing is spent."""
    node = SoftwareNode()
    token = (await service.admitted(node))["config_token"]
    for named in (JSON, "application/problem+json"):
        answer = await service.fetch(token, named)
        assert (answer.status_code, code(answer)) == (406, "not-acceptable")
        assert SEALED in answer.json()["detail"]
    for accept in (None, "*/*", "application/yaml", f"{SEALED};q=0"):
        answer = await service.fetch(token, accept)
        assert answer.status_code == 406
        assert CANARY not in answer.text
    console = await service.fetch(token, None)
    assert console.text == "encrypted delivery required"
    assert (await service.fetch(token, f"text/plain;q=0.1, {SEALED};q=0.9")).status_code == 200


async def test_plaintext_where_an_operator_allowed_it(start: Starter) -> None:
    """Once, never repeated, never kept."""
    service = await start(require_encrypted_delivery=False)
    node = SoftwareNode()
    token = (await service.admitted(node))["config_token"]
    answer = await service.fetch(token, None)
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/yaml")
    assert CANARY in answer.text
    for accept in (None, SEALED):
        again = await service.fetch(token, accept)
        assert again.status_code == 410
        assert CANARY not in again.text
    database = b"".join(path.read_bytes() for path in service.directory.glob("machines.db*"))
    assert CANARY.encode() not in database


async def test_a_sealed_answer_is_not_repeated_as_plaintext(start: Starter) -> None:
    """Whoever fetched the envelope cannot have the YAML too."""
    service = await start(require_encrypted_delivery=False)
    node = SoftwareNode()
    token = (await service.admitted(node))["config_token"]
    assert (await service.fetch(token)).status_code == 200
    assert (await service.fetch(token, None)).status_code == 410


PARTIAL = """\
apiVersion: v1alpha1
kind: ExtensionServiceConfig
name: itl-tpm-register
environment:
  - "ITL_REG_URL=https://attest.example.test"
"""


@pytest.mark.parametrize(
    ("setting", "accept", "status", "text"),
    [
        ("partial", None, 200, PARTIAL),
        ("empty", None, 204, ""),
        ("retry", None, 503, "attest to get a configuration"),
        ("retry", JSON, 503, None),
    ],
)
async def test_the_pending_answer(
    start: Starter, setting: str, accept: str | None, status: int, text: str | None
) -> None:
    """MAC, UUID and serial release nothing in any form, not even whether we know the machine."""
    service = await start(pending_answer=setting)
    node = SoftwareNode()
    await service.introduce(node, hw_mac="02:00:00:00:00:01")
    await service.act(node, "approve", {"role": "worker-app"})
    await service.attest(node)
    headers = {"Accept": accept or ""}
    known = await service.get("/api/v1/config", params={"mac": "02:00:00:00:00:01"}, headers=headers)
    unknown = await service.get("/api/v1/config", params={"mac": "02:00:00:00:00:02"}, headers=headers)
    for answer in (known, unknown):
        assert answer.status_code == status
        assert answer.headers["cache-control"] == "no-store"
        if text is not None:
            assert answer.text == text
        else:
            assert code(answer) == "unavailable"
        if status == 503:
            assert "retry-after" in answer.headers
        if answer.headers.get("content-type", "").startswith("text/plain") and status != 200:
            assert len(answer.content) <= 32


async def test_console_words_tell_the_state(start: Starter) -> None:
    """Whoever holds a token of a machine that is not ready reads on its console why."""
    service = await start(pending_answer="retry")
    node = SoftwareNode()
    issued = await service.operator(
        "POST",
        "/registration-tokens",
        {"role": "worker-app", "expires_in_seconds": 600, "minimum_assurance": "tofu"},
    )
    token = (await service.introduce(node, registration_token=issued.json()["token"]))["config_token"]
    assert (await service.fetch(token, None)).text == f"attestation required {node.machine_id[:4]}"


async def test_a_missing_or_broken_base_is_503(service: Service) -> None:
    """Nothing is spent and nothing is quoted: the token works once the base is mended."""
    node = SoftwareNode()
    token = (await service.admitted(node))["config_token"]
    base = service.directory / "configs" / "worker-app-final.yaml"
    good = base.read_text()
    base.write_text(good + "machine: {}\n")
    answer = await service.fetch(token, f"{SEALED}, {JSON}")
    assert (answer.status_code, code(answer)) == (503, "base-config-invalid")
    assert CANARY not in answer.text
    base.unlink()
    answer = await service.fetch(token)
    assert (answer.status_code, code(answer)) == (503, "base-config-missing")
    base.write_text(good)
    assert (await service.fetch(token)).status_code == 200


@pytest.mark.threat("T121")
async def test_secrets_of_one_cluster_never_reach_another(service: Service) -> None:
    """What a machine gets follows the cluster that operators decided; a cluster without a base gets nothing."""
    node = SoftwareNode()
    await service.introduce(node, cluster_id="default")
    await service.act(node, "approve", {"role": "worker-app", "cluster_id": "prod"})
    token = (await service.attest(node))["config_token"]
    answer = await service.fetch(token)
    assert (answer.status_code, code(answer)) == (503, "base-config-missing")
    assert CANARY not in answer.text
    own = service.directory / "configs" / "prod"
    own.mkdir()
    (own / "worker-app-final.yaml").write_text(BASE.replace(CANARY, "secret-of-prod"))
    config = node.open((await service.fetch(token)).json()).decode()
    assert "secret-of-prod" in config
    assert CANARY not in config


@pytest.mark.threat("T121")
async def test_another_cluster_is_another_configuration_after_another_proof(service: Service) -> None:
    """A token of the cluster that a machine leaves loses its right, also in the repeat window; its trust ends."""
    node = SoftwareNode()
    token = (await service.admitted(node))["config_token"]
    assert (await service.fetch(token)).status_code == 200
    move = {"role": "worker-app", "cluster_id": "prod", "reason": "moved"}
    moved = await service.act(node, "role", move)
    assert (moved["cluster_id"], moved["trust"]) == ("prod", "stale")
    assert code(await service.fetch(token)) == "token-consumed"
    (entry,) = await service.audit(action="role_change")
    assert "cluster prod" in entry["detail"]
    assert "before: role worker-app, cluster default" in entry["detail"]
    assert (await service.attest(node))["action"] == "apply-config"


@pytest.mark.threat("T121")
@pytest.mark.parametrize(("cluster_id", "trust"), [("default", "verified"), ("prod", "stale")])
async def test_what_was_proven_while_waiting_is_no_trust_in_another_cluster(
    service: Service, cluster_id: str, trust: str
) -> None:
    """A machine attests while it waits, under the policies of `default`: approved elsewhere, it proves itself anew."""
    node = SoftwareNode()
    await service.introduce(node)
    assert (await service.attest(node))["status"] == "pending_approval"
    assert (await service.detail(node))["trust"] == "verified"
    await service.act(node, "approve", {"role": "worker-app", "cluster_id": cluster_id})
    assert (await service.detail(node))["trust"] == trust


async def test_an_ek_that_cannot_be_sealed_to_releases_nothing(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wrapping error is an error, never plaintext (FAULTS R9)."""
    from attestation_service.delivery import handlers

    node = SoftwareNode()
    token = (await service.admitted(node))["config_token"]
    broken = dataclasses.replace(parse_public(node.ek.tpm2b()), x=b"\1" * 32)
    monkeypatch.setattr(handlers, "parse_public", lambda _: broken)
    answer = await service.fetch(token)
    assert answer.status_code == 503
    assert CANARY not in answer.text


@pytest.mark.threat("T16")
async def test_tokens_are_stored_hashed(service: Service) -> None:
    """No token is in the database in the clear."""
    node = SoftwareNode()
    token = (await service.admitted(node))["config_token"]
    with closing(sqlite3.connect(service.directory / "machines.db")) as db:
        rows = [str(row) for (t,) in db.execute("select name from sqlite_master where type='table'")
                for row in db.execute(f"select * from {t}")]  # fmt: skip
    assert rows
    assert token not in "".join(rows)
