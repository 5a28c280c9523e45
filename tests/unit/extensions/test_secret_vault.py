"""The vault: who gets a value, what is kept of it, and what a copy of the database is worth."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import sqlite3
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

import httpx
import pytest

from attestation.clock import rfc3339
from attestation.keys import create_kek
from attestation.store.results import Results, StoredResult
from attestation_extensions.secret_vault import sealing
from attestation_extensions.secret_vault.records import Secrets
from attestation_service import extensions
from attestation_service.process import dispatch, maintenance
from tests.unit.service.conftest import Service, Starter, migrated, start
from tests.unit.service.node import SoftwareNode

__all__ = ["migrated", "start"]

pytestmark = pytest.mark.anyio

CANARY = "canary-4f1d-swordfish"
OWN = "/secrets"
SHARED = "/shared-secrets"
FORBIDDEN = (403, "urn:itl:problem:secret-forbidden")


@pytest.fixture
def anyio_backend() -> str:
    """Run the asynchronous tests on asyncio."""
    return "asyncio"


def settings(folder: Path, **values: str) -> dict[str, Any]:
    """Return settings of a service with the vault, whose KEK is a file."""
    if not values:
        create_kek(f"file:{folder}/kek").close()
        values = {"KEK": f"file:{folder}/kek"}
    named = {
        name if name.startswith("ITL_") else f"ITL_EXT_SECRET_VAULT_{name}": value
        for name, value in values.items()
    }
    return {"extensions": ("secret_vault",), "extension_values": named}


@pytest.fixture
async def service(start: Starter, tmp_path: Path) -> Service:
    """A service with the vault."""
    return await start(**settings(tmp_path))


@pytest.fixture
async def node(service: Service) -> SoftwareNode:
    """A machine that is attested."""
    found = SoftwareNode()
    await service.admitted(found, hostname="w-1")
    return found


async def made(service: Service, node: SoftwareNode, name: str = "db", **more: Any) -> Mapping[str, Any]:
    """Keep a secret of a machine."""
    body = {"name": name, "value": CANARY, **more}
    answer = await service.operator("POST", f"{OWN}/machines/{node.machine_id}/secrets", body)
    assert answer.status_code == 201, answer.text
    return dict(answer.json())


async def shared(service: Service, *nodes: SoftwareNode, name: str = "token", **more: Any) -> str:
    """Keep a shared secret, granted to *nodes*; return its id."""
    answer = await service.operator("POST", f"{SHARED}/", {"name": name, "value": CANARY, **more})
    assert answer.status_code == 201, answer.text
    secret_id = str(answer.json()["shared_secret_id"])
    if nodes:
        ids = [node.machine_id for node in nodes]
        granted = await service.operator("POST", f"{SHARED}/{secret_id}/access", {"machine_ids": ids})
        assert (granted.status_code, granted.json()["granted"]) == (201, len(ids))
    return secret_id


async def read(service: Service, node: SoftwareNode, path: str) -> httpx.Response:
    """Ask for a value with a fresh quote."""
    return await service.post(f"/api/v1{path}", node.attestation(await service.challenge(node)))


async def read_own(service: Service, node: SoftwareNode, name: str = "db") -> httpx.Response:
    """Ask for a value of the machine's own."""
    return await read(service, node, f"{OWN}/machines/{node.machine_id}/secrets/{name}/read")


async def read_shared(service: Service, node: SoftwareNode, name: str = "token") -> httpx.Response:
    """Ask for a shared value."""
    return await read(service, node, f"{SHARED}/by-name/{name}/read")


def refused(answer: httpx.Response) -> tuple[int, str]:
    """Return status and type of a problem."""
    return answer.status_code, answer.json()["type"]


async def value_of(answer: httpx.Response, node: SoftwareNode) -> bytes:
    """Open what came."""
    assert answer.status_code == 200, answer.text
    return node.open(answer.json()["envelope"])


# Who gets a value


@pytest.mark.threat("T220")
async def test_a_value_reaches_its_machine_and_opens_there_alone(
    service: Service, node: SoftwareNode
) -> None:
    """Sealed to its TPM, named by the signature, counted, audited, told; the wire never shows it."""
    secret = await made(service, node)
    answer = await read_own(service, node)
    assert CANARY not in answer.text
    assert await value_of(answer, node) == CANARY.encode()
    stranger = SoftwareNode()
    await service.admitted(stranger)
    with pytest.raises(Exception, match=r"."):
        stranger.open(answer.json()["envelope"])
    claims = json.loads(base64.urlsafe_b64decode(answer.json()["signature"].split(".")[1] + "=="))
    assert claims["what"] == "secret_vault.machine/db"
    (version,) = (await service.operator("GET", f"{OWN}/{secret['secret_id']}/versions")).json()["versions"]
    assert claims["token_id"] == version["token_id"]
    shown = (await service.operator("GET", f"{OWN}/{secret['secret_id']}")).json()
    assert (shown["access_count"], shown["last_accessed_at"]) == (1, "2026-11-21T12:00:00Z")
    (entry,) = await service.audit(action="secret_accessed")
    assert (entry["machine_id"], entry["detail"]) == (
        node.machine_id,
        f"db ({secret['secret_id']}), version 1",
    )


@pytest.mark.threat("T220")
async def test_a_header_opens_nothing(service: Service, node: SoftwareNode) -> None:
    """The seed gave values to whoever named an EK; here a GET needs a certificate that the TPM vouched for."""
    await made(service, node)
    await shared(service, node)
    named = {"X-EK-Fingerprint": node.ek_fingerprint}
    for path in (f"{OWN}/machines/{node.machine_id}/secrets/db", f"{SHARED}/by-name/token/value"):
        assert refused(await service.http.get(f"/api/v1{path}", headers=named)) == (
            401,
            "urn:itl:problem:unauthenticated",
        )


@pytest.mark.threat("T220")
async def test_what_belongs_to_another_machine_is_refused(service: Service, node: SoftwareNode) -> None:
    """By its path or by its name; and a request is good once."""
    other = SoftwareNode()
    await service.admitted(other)
    await made(service, node)
    path = f"{OWN}/machines/{node.machine_id}/secrets/db/read"
    assert refused(await read(service, other, path)) == FORBIDDEN
    assert (await read_own(service, other)).status_code == 404
    body = node.attestation(await service.challenge(node))
    assert (await service.post(f"/api/v1{path}", body)).status_code == 200
    assert refused(await service.post(f"/api/v1{path}", body)) == (409, "urn:itl:problem:challenge-used")


@pytest.mark.threat("T221")
async def test_a_shared_value_reaches_exactly_who_was_granted_it(
    service: Service, node: SoftwareNode
) -> None:
    """And no longer once that is taken back; what is refused is in the audit log with its reason."""
    other = SoftwareNode()
    await service.admitted(other)
    secret_id = await shared(service, node)
    assert await value_of(await read_shared(service, node), node) == CANARY.encode()
    assert refused(await read_shared(service, other)) == FORBIDDEN
    (entry,) = await service.audit(action="secret_refused")
    assert (entry["machine_id"], entry["detail"]) == (other.machine_id, f"token ({secret_id}): not granted")
    (grant,) = (await service.operator("GET", f"{SHARED}/{secret_id}/access")).json()["access_grants"]
    assert (grant["machine_id"], grant["access_count"]) == (node.machine_id, 1)
    body = {"machine_ids": [node.machine_id]}
    answer = await service.operator("DELETE", f"{SHARED}/{secret_id}/access", body)
    assert answer.json() == {"revoked": 1, "machine_ids": [node.machine_id]}
    assert refused(await read_shared(service, node)) == FORBIDDEN
    # Granted twice is granted once; whom nobody knows, not at all.
    again = await service.operator(
        "POST", f"{SHARED}/{secret_id}/access", {"machine_ids": [node.machine_id] * 2}
    )
    assert again.json()["granted"] == 1
    unknown = await service.operator("POST", f"{SHARED}/{secret_id}/access", {"machine_ids": ["nobody"]})
    assert refused(unknown) == (404, "urn:itl:problem:machine-unknown")


@pytest.mark.threat("T221")
@pytest.mark.parametrize("act", ["lock", "revoke"])
async def test_a_machine_that_is_locked_or_revoked_gets_nothing(
    service: Service, node: SoftwareNode, act: str
) -> None:
    """Whatever its quote says."""
    await made(service, node)
    await service.act(node, act, {"reason": "x"})
    assert (await read_own(service, node)).status_code == 403
    assert await service.audit(action="secret_accessed") == []


@pytest.mark.threat("T221")
async def test_a_lock_between_the_quote_and_the_value_is_noticed(
    service: Service, node: SoftwareNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was sealed meanwhile is thrown away."""
    await made(service, node)
    unseal = sealing.unseal
    loop = asyncio.get_running_loop()

    def slow(*arguments: Any) -> bytes:
        asyncio.run_coroutine_threadsafe(service.act(node, "lock", {"reason": "x"}), loop).result(60)
        return unseal(*arguments)

    monkeypatch.setattr(sealing, "unseal", slow)
    assert refused(await read_own(service, node)) == (403, "urn:itl:problem:machine-not-admitted")
    assert await service.audit(action="secret_accessed") == []


@pytest.mark.threat("T221")
async def test_a_grant_taken_back_between_the_quote_and_the_value_is_noticed(
    service: Service, node: SoftwareNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Likewise."""
    secret_id = await shared(service, node)
    unseal = sealing.unseal

    def slow(*arguments: Any) -> bytes:
        service.store.write_sync(lambda tx: tx.of(Secrets).revoke(secret_id, node.machine_id))
        return unseal(*arguments)

    monkeypatch.setattr(sealing, "unseal", slow)
    assert refused(await read_shared(service, node)) == FORBIDDEN


@pytest.mark.threat("T222")
async def test_a_rule_written_between_the_quote_and_the_value_decides(
    service: Service, node: SoftwareNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What operators say last is asked, not what they said when the machine began."""
    secret = await made(service, node)
    unseal = sealing.unseal
    loop = asyncio.get_running_loop()

    def slow(*arguments: Any) -> bytes:
        body = {"rule": 'machine.role == "controlplane"'}
        changing = service.operator("PUT", f"{OWN}/{secret['secret_id']}", body)
        assert asyncio.run_coroutine_threadsafe(changing, loop).result(60).status_code == 200
        return unseal(*arguments)

    monkeypatch.setattr(sealing, "unseal", slow)
    assert refused(await read_own(service, node)) == FORBIDDEN


@pytest.mark.threat("T223")
async def test_a_value_under_a_key_of_another_replica_is_not_here_now(
    start: Starter, service: Service, node: SoftwareNode, tmp_path: Path
) -> None:
    """While the key-encryption key is being exchanged, a replica that has the former one alone says 503."""
    create_kek(f"file:{tmp_path}/next").close()
    uris = {"KEK": f"file:{tmp_path}/next", "PREVIOUS_KEKS": f"file:{tmp_path}/kek"}
    newer = await start(service.clock, **settings(tmp_path, **uris))
    await made(newer, node)
    assert refused(await read_own(service, node)) == (503, "urn:itl:problem:unavailable")
    assert (await read_own(newer, node)).status_code == 200


async def test_what_cannot_be_read_again_is_not_kept(service: Service, node: SoftwareNode) -> None:
    """An end that only its own time zone can write, and no version that there could be."""
    secret = await made(service, node)
    never = {"expires_at": "9999-12-31T23:59:59-23:59"}
    path = f"{OWN}/machines/{node.machine_id}/secrets"
    for method, where, body in (
        ("POST", path, {"name": "late", "value": "x", **never}),
        ("PUT", f"{OWN}/{secret['secret_id']}", never),
        ("POST", f"{OWN}/{secret['secret_id']}/restore", {"version": 1 << 63}),
    ):
        assert (await service.operator(method, where, body)).status_code == 422
    assert (await service.operator("GET", path)).json()["total"] == 1


async def test_a_secret_ends(service: Service, node: SoftwareNode) -> None:
    """By its own time, and when it is deleted: then nothing of it is left but that it was."""
    at = service.clock.now()
    secret = await made(service, node, expires_at=rfc3339(at + timedelta(minutes=5)))
    service.clock.advance(299)
    await service.attest(node)
    assert (await read_own(service, node)).status_code == 200
    service.clock.advance(1)
    assert refused(await read_own(service, node)) == FORBIDDEN
    (shown,) = (await service.operator("GET", f"{OWN}/{secret['secret_id']}/preview")).json()["machines"]
    assert (shown["released"], shown["why"]) == (False, "it has expired")
    late = await service.operator(
        "POST",
        f"{OWN}/machines/{node.machine_id}/secrets",
        {"name": "late", "value": "x", "expires_at": rfc3339(at)},
    )
    assert refused(late) == (422, "urn:itl:problem:request-invalid")
    answer = await service.operator("DELETE", f"{OWN}/{secret['secret_id']}")
    assert answer.status_code == 204
    assert service.store.read_sync(lambda tx: tx.of(Secrets).versions(secret["secret_id"])) == []
    assert (await read_own(service, node)).status_code == 404
    assert (await service.operator("GET", f"{OWN}/{secret['secret_id']}")).status_code == 404
    # Its name is free again.
    await made(service, node)


async def test_the_secrets_of_a_machine_end_with_it(
    service: Service, node: SoftwareNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once it is revoked: its own values are erased, however many, and what it was granted."""
    monkeypatch.setattr(Secrets.of_owner, "__defaults__", ("", 1))
    kept = [(await made(service, node, name))["secret_id"] for name in ("db", "mail")]
    secret_id = await shared(service, node)
    await service.act(node, "revoke", {"reason": "x"})
    await maintenance.once(service.resources)
    enabled = extensions.load(service.resources.settings)
    while await dispatch.once("secret_vault", enabled.handlers["secret_vault"], service.resources):
        pass
    values = service.store.read_sync(lambda tx: [tx.of(Secrets).versions(each) for each in kept])
    assert values == [[], []]
    assert (await service.operator("GET", f"{SHARED}/{secret_id}/access")).json()["total"] == 0
    late = await service.operator(
        "POST", f"{OWN}/machines/{node.machine_id}/secrets", {"name": "late", "value": "x"}
    )
    assert refused(late) == (409, "urn:itl:problem:conflict")


# Rules


@pytest.mark.threat("T222")
@pytest.mark.parametrize(
    ("rule", "released"),
    [
        ('machine.role == "worker-app"', True),
        ('machine.role == "controlplane"', False),
        ('machine.cluster == "other"', False),
        ("vector.instance_identity == 2", True),
        ("vector.instance_identity > 2", False),
        ("quote.age_seconds < 60", True),
        ("quote.age_seconds > 60", False),
        ("vector.nothing_of_the_kind == 2", False),
    ],
)
async def test_a_rule_decides(service: Service, node: SoftwareNode, rule: str, released: bool) -> None:
    """Over machine, trust vector and age of the quote; what cannot be told does not hold. The preview agrees."""
    secret = await made(service, node, rule=rule)
    previewed = (await service.operator("GET", f"{OWN}/{secret['secret_id']}/preview")).json()
    assert (previewed["released"], previewed["refused"]) == ((1, 0) if released else (0, 1))
    answer = await read_own(service, node)
    assert (answer.status_code == 200) is released
    if not released:
        assert refused(answer) == FORBIDDEN
        (entry,) = await service.audit(action="secret_refused")
        assert "its rule: " in entry["detail"]
        assert rule not in answer.text


async def test_a_rule_that_is_none_is_refused_where_it_is_written(
    service: Service, node: SoftwareNode
) -> None:
    """At creation, at a change, in a preview."""
    secret = await made(service, node)
    one = f"{OWN}/{secret['secret_id']}"
    for rule in ("machine.role ==", "nobody.role == 1"):
        answers = [
            await service.operator(
                "POST", f"{OWN}/machines/{node.machine_id}/secrets", {"name": "x", "value": "x", "rule": rule}
            ),
            await service.operator("PUT", one, {"rule": rule}),
            await service.operator("GET", f"{one}/preview", params={"rule": rule}),
        ]
        assert {refused(answer) for answer in answers} == {(422, "urn:itl:problem:policy-invalid")}


async def test_a_rule_is_tried_before_it_is_written(service: Service, node: SoftwareNode) -> None:
    """On the whole fleet, for those to whom a shared secret is granted; with why not."""
    other = SoftwareNode()
    await service.admitted(other)
    secret_id = await shared(service, node)
    path = f"{OWN}/{secret_id}/preview"
    found = (await service.operator("GET", path, params={"rule": 'machine.hostname == "w-1"'})).json()
    assert {each["machine_id"]: each["why"] for each in found["machines"]} == {
        node.machine_id: None,
        other.machine_id: "not granted",
    }
    found = (await service.operator("GET", path, params={"rule": 'machine.hostname == "w-2"'})).json()
    assert found["released"] == 0
    await service.act(node, "lock", {"reason": "x"})
    (locked,) = [
        each["why"]
        for each in (await service.operator("GET", path)).json()["machines"]
        if each["machine_id"] == node.machine_id
    ]
    assert locked.startswith("locked")


async def test_a_preview_asks_no_more_than_it_must(
    service: Service, node: SoftwareNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For a secret of one machine that one is looked at; for a shared one a page of machines is one question."""
    other = SoftwareNode()
    await service.admitted(other)
    own, secret_id = await made(service, node), await shared(service, node)
    asked: list[list[str]] = []
    inner = Results.newest_of_each

    def newest(results: Results, machine_ids: list[str]) -> dict[str, StoredResult]:
        asked.append(sorted(machine_ids))
        return inner(results, machine_ids)

    def never(*_: object) -> NoReturn:
        raise AssertionError("one machine after another")

    monkeypatch.setattr(Results, "newest_of_each", newest)
    monkeypatch.setattr(Results, "page", never)
    (only,) = (await service.operator("GET", f"{OWN}/{own['secret_id']}/preview")).json()["machines"]
    assert (only["machine_id"], only["released"]) == (node.machine_id, True)
    both = (await service.operator("GET", f"{OWN}/{secret_id}/preview")).json()["machines"]
    ids = sorted((node.machine_id, other.machine_id))
    assert sorted(each["machine_id"] for each in both) == ids
    assert asked == [[node.machine_id], ids]
    # One that is revoked is in neither, also before what was kept for it is erased.
    await service.act(node, "revoke", {"reason": "x"})
    assert (await service.operator("GET", f"{OWN}/{own['secret_id']}/preview")).json()["machines"] == []


# Versions


async def test_a_value_is_exchanged_and_set_back(service: Service, node: SoftwareNode) -> None:
    """The newest goes out; the last five are kept, and are names to operators."""
    secret = await made(service, node, value="first")
    one = f"{OWN}/{secret['secret_id']}"
    for number in range(2, 8):
        answer = await service.operator("PUT", one, {"value": f"value {number}"})
        assert answer.json()["version"] == number
    assert await value_of(await read_own(service, node), node) == b"value 7"
    versions = (await service.operator("GET", f"{one}/versions")).json()["versions"]
    assert [each["version"] for each in versions] == [7, 6, 5, 4, 3]
    assert (await service.operator("POST", f"{one}/restore", {"version": 4})).json()["versions"][0][
        "version"
    ] == 8
    assert await value_of(await read_own(service, node), node) == b"value 4"
    gone = await service.operator("POST", f"{one}/restore", {"version": 1})
    assert refused(gone) == (422, "urn:itl:problem:request-invalid")
    # What is left out stays; null takes away.
    await service.operator(
        "PUT", one, {"rule": 'machine.role == "worker-app"', "description": "the database"}
    )
    changed = (await service.operator("PUT", one, {"rule": None})).json()
    assert (changed["rule"], changed["description"], changed["version"]) == (None, "the database", 8)


async def test_of_two_changes_at_once_one_is_told(
    service: Service, node: SoftwareNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is lost without a word."""
    secret = await made(service, node)
    one = f"{OWN}/{secret['secret_id']}"
    seal = sealing.seal
    loop = asyncio.get_running_loop()

    def slow(*arguments: Any) -> sealing.Kept:
        monkeypatch.setattr(sealing, "seal", seal)
        asyncio.run_coroutine_threadsafe(service.operator("PUT", one, {"value": "theirs"}), loop).result(60)
        return seal(*arguments)

    monkeypatch.setattr(sealing, "seal", slow)
    assert refused(await service.operator("PUT", one, {"value": "ours"})) == (409, "urn:itl:problem:conflict")
    assert await value_of(await read_own(service, node), node) == b"theirs"


async def test_a_machine_that_reads_is_no_other_change(
    service: Service, node: SoftwareNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A value that a whole fleet reads can be exchanged meanwhile."""
    secret = await made(service, node)
    seal = sealing.seal
    loop = asyncio.get_running_loop()

    def slow(*arguments: Any) -> sealing.Kept:
        monkeypatch.setattr(sealing, "seal", seal)
        assert asyncio.run_coroutine_threadsafe(read_own(service, node), loop).result(60).status_code == 200
        return seal(*arguments)

    monkeypatch.setattr(sealing, "seal", slow)
    answer = await service.operator("PUT", f"{OWN}/{secret['secret_id']}", {"value": "ours"})
    assert (answer.status_code, answer.json()["version"]) == (200, 2)


async def test_names_are_taken_once_and_values_have_a_size(service: Service, node: SoftwareNode) -> None:
    """For each machine, and for what is shared; binary values come in base64."""
    await made(service, node)
    await shared(service)
    of_machine = f"{OWN}/machines/{node.machine_id}/secrets"
    assert refused(await service.operator("POST", of_machine, {"name": "db", "value": "x"})) == (
        409,
        "urn:itl:problem:secret-exists",
    )
    assert refused(await service.operator("POST", f"{SHARED}/", {"name": "token", "value": "x"})) == (
        409,
        "urn:itl:problem:secret-exists",
    )
    nobody = await service.operator("POST", f"{OWN}/machines/nobody/secrets", {"name": "a", "value": "x"})
    assert nobody.status_code == 404
    for wrong in (
        {"name": "", "value": "x"},
        {"name": "../x", "value": "x"},
        {"name": "n", "value": ""},
        {"name": "n", "value": "x" * ((64 << 10) + 1)},
        {"name": "n", "value": "not base64!", "encoding": "base64"},
    ):
        answer = await service.operator("POST", of_machine, wrong)
        assert answer.status_code == 422
        assert "not base64!" not in answer.text
    await made(service, node, "raw", value=base64.b64encode(b"\x00\xff").decode(), encoding="base64")
    assert await value_of(await read_own(service, node, "raw"), node) == b"\x00\xff"
    listed = (await service.operator("GET", of_machine)).json()
    assert ([each["name"] for each in listed["secrets"]], listed["total"]) == (["db", "raw"], 2)
    assert [each["name"] for each in (await service.operator("GET", f"{SHARED}/")).json()["secrets"]] == [
        "token"
    ]


# What is kept


def rows(service: Service, statement: str, *values: Any) -> list[tuple[Any, ...]]:
    """Run SQL as whoever writes to the database."""
    path = service.resources.settings.db_url.partition(":///")[2]
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        return connection.execute(statement, values).fetchall()


@pytest.mark.threat("T223")
async def test_the_database_alone_says_nothing(
    service: Service, node: SoftwareNode, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No column, no file of it, no log, no entry has the value; with another KEK the vault does not start."""
    await made(service, node)
    await shared(service, node)
    await read_own(service, node)
    await read_shared(service, node)
    told = capsys.readouterr()
    assert CANARY not in told.out + told.err
    assert CANARY not in str(await service.audit())
    for file in Path(service.resources.settings.db_url.partition(":///")[2]).parent.glob("*.db*"):
        assert CANARY.encode() not in file.read_bytes()


@pytest.mark.threat("T224")
async def test_a_row_that_is_moved_opens_nothing(service: Service, node: SoftwareNode) -> None:
    """A value under another secret's name, or an older version's in the place of the newest."""
    first, second = await made(service, node, "one"), await made(service, node, "two", value="other")
    rows(
        service,
        "UPDATE extension_secret_versions SET (key_id, wrapped, blob) = (SELECT key_id, wrapped, blob FROM "
        "extension_secret_versions WHERE secret_id = ?) WHERE secret_id = ?",
        first["secret_id"],
        second["secret_id"],
    )
    assert refused(await read_own(service, node, "two")) == FORBIDDEN
    assert (await read_own(service, node, "one")).status_code == 200


@pytest.mark.threat("T224")
@pytest.mark.parametrize(
    "change",
    [
        "UPDATE extension_secrets SET rule = NULL",
        "UPDATE extension_secrets SET expires_at = NULL",
        "UPDATE extension_secrets SET newest = 1",
        "UPDATE extension_secrets SET owner = ''",
    ],
)
async def test_who_writes_to_the_database_changes_no_terms(
    service: Service, node: SoftwareNode, change: str
) -> None:
    """Neither the rule, nor the end, nor which value is the newest, nor whose it is."""
    until = rfc3339(service.clock.now() + timedelta(hours=1))
    secret = await made(service, node, rule='machine.role == "nobody"', expires_at=until)
    await service.operator("PUT", f"{OWN}/{secret['secret_id']}", {"value": "newer"})
    rows(service, change)
    answer = await (read_shared(service, node, "db") if "owner" in change else read_own(service, node))
    assert refused(answer) == FORBIDDEN
    (entry,) = await service.audit(action="secret_refused")
    assert "its terms were not written by the vault" in entry["detail"]


@pytest.mark.threat("T224")
@pytest.mark.parametrize("forged", ["rule = NULL", "rule = NULL, owner = ?"])
@pytest.mark.parametrize(
    ("path", "body"), [("", {"value": "newest"}), ("", {"description": "x"}), ("/restore", {"version": 1})]
)
async def test_an_operator_does_not_vouch_for_what_another_wrote(
    service: Service, node: SoftwareNode, path: str, body: dict[str, Any], forged: str
) -> None:
    """A rule was dropped, the owner changed: whatever operators change next would be marked with it."""
    thief = SoftwareNode()
    await service.admitted(thief)
    secret = await made(service, node, rule='machine.role == "nobody"')
    rows(
        service, f"UPDATE extension_secrets SET {forged}", *([thief.machine_id] if "owner" in forged else [])
    )
    changed = await service.operator("POST" if path else "PUT", f"{OWN}/{secret['secret_id']}{path}", body)
    assert refused(changed) == (409, "urn:itl:problem:conflict")
    assert "not written by the vault" in changed.json()["detail"]
    assert refused(await read_own(service, thief if "owner" in forged else node)) == FORBIDDEN


async def test_a_version_that_somebody_changed_is_not_set_back_to(
    service: Service, node: SoftwareNode
) -> None:
    """And that is said."""
    secret = await made(service, node)
    rows(service, "UPDATE extension_secret_versions SET key_id = x'0000000000000000'")
    answer = await service.operator("POST", f"{OWN}/{secret['secret_id']}/restore", {"version": 1})
    assert refused(answer) == (409, "urn:itl:problem:conflict")


@pytest.mark.threat("T224")
async def test_who_writes_to_the_database_grants_nothing(service: Service, node: SoftwareNode) -> None:
    """A grant has a mark that only the vault makes; another's does not do."""
    other = SoftwareNode()
    await service.admitted(other)
    secret_id = await shared(service, node)
    rows(
        service,
        "INSERT INTO extension_shared_secret_access SELECT secret_id, ?, granted_at, granted_by, NULL, 0, mark "
        "FROM extension_shared_secret_access",
        other.machine_id,
    )
    assert refused(await read_shared(service, other)) == FORBIDDEN
    (entry,) = await service.audit(action="secret_refused")
    assert entry["detail"] == f"token ({secret_id}): its grant was not written by the vault"
    # The preview says what the release does.
    shown = (await service.operator("GET", f"{OWN}/{secret_id}/preview")).json()["machines"]
    assert {each["machine_id"]: each["why"] for each in shown} == {
        node.machine_id: None,
        other.machine_id: "its grant was not written by the vault",
    }


# Keys


async def test_without_a_key_the_service_does_not_start(start: Starter, tmp_path: Path) -> None:
    """Nothing is derived from anything."""
    with pytest.raises(extensions.ExtensionInvalid, match="needs a key-encryption key"):
        await start(**settings(tmp_path, PREVIOUS_KEKS=""))


@pytest.mark.threat("T223")
async def test_with_another_key_the_service_does_not_start(
    start: Starter, service: Service, node: SoftwareNode, tmp_path: Path
) -> None:
    """It says which one it misses, at once and not at the first read."""
    await made(service, node)
    create_kek(f"file:{tmp_path}/other").close()
    with pytest.raises(extensions.ExtensionInvalid, match="under a key-encryption key that is not set"):
        await start(**settings(tmp_path, KEK=f"file:{tmp_path}/other"))


@pytest.mark.threat("T223")
async def test_a_master_key_is_a_key_or_a_passphrase(
    start: Starter, service: Service, node: SoftwareNode, tmp_path: Path
) -> None:
    """It is salted once for all workers; the KEK can be exchanged for one of another kind, without a value in sight."""
    await made(service, node)
    passphrase = "correct horse battery staple"
    both = {"KEK": f"file:{tmp_path}/kek", "ITL_SHARED_SECRET_MASTER_KEY": passphrase}
    await start(**settings(tmp_path, **both))
    create_kek(f"file:{tmp_path}/next").close()
    uris = {"KEK": f"file:{tmp_path}/next", "PREVIOUS_KEKS": f"file:{tmp_path}/kek"}
    rotated = await start(service.clock, **settings(tmp_path, **uris))
    assert await value_of(await read_own(rotated, node), node) == CANARY.encode()
    before = [each[0] for each in rows(rotated, "SELECT kek_id FROM extension_secret_versions")]
    answer = (await rotated.operator("POST", f"{OWN}/rewrap")).json()
    assert answer == {"rewrapped": 1, "unreachable": 0}
    after = [each[0] for each in rows(rotated, "SELECT kek_id FROM extension_secret_versions")]
    assert before != after
    alone = await start(service.clock, **settings(tmp_path, KEK=f"file:{tmp_path}/next"))
    assert await value_of(await read_own(alone, node), node) == CANARY.encode()
    (entry,) = await alone.audit(action="secrets_rewrapped")
    assert entry["detail"].startswith("1 data keys under ")


async def test_a_passphrase_alone_keeps_secrets(start: Starter, tmp_path: Path) -> None:
    """The seed's variable is enough; another passphrase opens nothing, and a short one is refused."""
    passphrase = {"ITL_SHARED_SECRET_MASTER_KEY": "correct horse battery staple"}
    service = await start(**settings(tmp_path, **passphrase))
    node = SoftwareNode()
    await service.admitted(node)
    await made(service, node)
    again = await start(service.clock, **settings(tmp_path, **passphrase))
    assert await value_of(await read_own(again, node), node) == CANARY.encode()
    for wrong, words in (("another horse battery staple", "is not set"), ("short", "20 characters")):
        with pytest.raises(extensions.ExtensionInvalid, match=words):
            await start(**settings(tmp_path, ITL_SHARED_SECRET_MASTER_KEY=wrong))


async def test_a_changed_row_keeps_no_other_under_the_old_key(
    start: Starter, service: Service, node: SoftwareNode, tmp_path: Path
) -> None:
    """It is counted, and the rest is brought over."""
    first, _ = await made(service, node, "one"), await made(service, node, "two")
    change = "UPDATE extension_secret_versions SET wrapped = x'00' WHERE secret_id = ?"
    rows(service, change, first["secret_id"])
    create_kek(f"file:{tmp_path}/next").close()
    uris = {"KEK": f"file:{tmp_path}/next", "PREVIOUS_KEKS": f"file:{tmp_path}/kek"}
    newer = await start(service.clock, **settings(tmp_path, **uris))
    answer = (await newer.operator("POST", f"{OWN}/rewrap")).json()
    assert answer == {"rewrapped": 1, "unreachable": 1}
