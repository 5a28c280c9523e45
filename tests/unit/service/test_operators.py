"""Tokens, allow-list, policies, audit, lists: what operators do beside the lifecycle (PROTOCOL §7)."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from contextlib import closing
from typing import Any

import httpx
import pytest

from attestation.reference import IDENTITY_ONLY
from tests.unit.service.conftest import OPERATOR, Service
from tests.unit.service.node import SoftwareNode
from tests.unit.service.test_registration import code

pytestmark = pytest.mark.anyio

EK = "ab" * 48


async def test_registration_tokens(service: Service) -> None:
    """The secret is shown once and stored hashed; creating and revoking are audited."""
    body = {"role": "worker-app", "uses": 3, "expires_in_seconds": 3600}
    answer = await service.operator("POST", "/registration-tokens", body)
    assert answer.status_code == 201
    created = answer.json()
    assert len(created["token"]) >= 43
    listed = (await service.operator("GET", "/registration-tokens")).json()["items"]
    assert created["jwks_sha256"] == service.resources.signer.sha256.hex()
    assert listed == [{k: v for k, v in created.items() if k not in ("token", "jwks_sha256")}]
    assert created["token"] not in json.dumps(await service.audit())
    with closing(sqlite3.connect(service.directory / "machines.db")) as db:
        (stored,) = db.execute("select token_sha256 from registration_tokens").fetchone()
    assert stored == hashlib.sha256(created["token"].encode()).digest()
    gone = await service.operator("DELETE", f"/registration-tokens/{created['token_id']}")
    assert (gone.status_code, gone.content) == (204, b"")
    again = await service.operator("DELETE", f"/registration-tokens/{created['token_id']}")
    assert again.status_code == 204
    unknown = await service.operator("DELETE", f"/registration-tokens/{'0' * 16}")
    assert (unknown.status_code, code(unknown)) == (404, "registration-token-unknown")
    actions = [entry["action"] for entry in await service.audit()]
    assert actions == ["token_revoked", "token_revoked", "token_issued"]


async def test_allow_list_as_json(service: Service) -> None:
    """Imported all or nothing; a known EK gets the new entry; removed by fingerprint."""
    entries = [{"ek_fingerprint": EK, "role": "worker-app", "note": "rack 4"}]
    first = await service.operator("POST", "/allow-list", {"entries": entries})
    assert first.json() == {"added": 1, "replaced": 0}
    second = await service.operator(
        "POST", "/allow-list", {"entries": [{"ek_fingerprint": EK, "role": "linux"}]}
    )
    assert second.json() == {"added": 0, "replaced": 1}
    (item,) = (await service.operator("GET", "/allow-list")).json()["items"]
    assert (item["role"], item["note"], item["created_by"]) == ("linux", None, "SYSTEM")
    twice = await service.operator("POST", "/allow-list", {"entries": entries * 2})
    assert (twice.status_code, code(twice)) == (422, "request-invalid")
    assert (await service.operator("DELETE", f"/allow-list/{EK}")).status_code == 204
    gone = await service.operator("DELETE", f"/allow-list/{EK}")
    assert (gone.status_code, code(gone)) == (404, "allow-list-entry-unknown")
    audited = await service.audit()
    assert [e["action"] for e in audited] == ["allow_list_remove", "allow_list_import", "allow_list_import"]
    assert json.loads(audited[1]["detail"]) == {EK: "linux"}


async def upload(service: Service, text: str | bytes, kind: str = "text/csv") -> Any:
    """Send a CSV file."""
    headers = OPERATOR | {"Content-Type": kind}
    return await service.http.post("/api/v1/allow-list", content=text, headers=headers)


async def test_allow_list_as_csv(service: Service) -> None:
    """A header names the columns in any order; empty optional values are absent; a byte order mark is no harm."""
    text = f'role,ek_fingerprint,hostname,note\nworker-app,{EK},w-1,\nlinux,{"cd" * 48},,"rack 4, left"\n'
    assert (await upload(service, "\ufeff" + text, "text/csv; charset=utf-8")).json() == {
        "added": 2,
        "replaced": 0,
    }
    items = (await service.operator("GET", "/allow-list")).json()["items"]
    assert [(i["hostname"], i["note"]) for i in items] == [("w-1", None), (None, "rack 4, left")]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "request-invalid"),
        ("ek_fingerprint\n" + EK + "\n", "request-invalid"),
        ("ek_fingerprint,role,colour\n", "request-invalid"),
        ("ek_fingerprint,role,role\n", "request-invalid"),
        (f"ek_fingerprint,role\n{EK}\n", "request-invalid"),
        (f"ek_fingerprint,role\n{EK},linux,more\n", "request-invalid"),
        (f'ek_fingerprint,role\n"{EK},linux\n', "request-invalid"),
        (b"ek_fingerprint,role\n\xff,linux\n", "request-invalid"),
        (f"ek_fingerprint,role\n{EK},king\n", "schema-violation"),
        (f"ek_fingerprint,role\n{EK[:-1]},linux\n", "schema-violation"),
        ("ek_fingerprint,role\n", "schema-violation"),
    ],
    ids=lambda v: repr(v)[:40],
)
async def test_csv_that_is_not_ours(service: Service, text: str, expected: str) -> None:
    """Refused whole, with the line or the value that is wrong."""
    answer = await upload(service, text)
    assert (answer.status_code, code(answer)) == (422, expected)
    assert (await service.operator("GET", "/allow-list")).json()["items"] == []


async def test_allow_list_reads_two_media_types(service: Service) -> None:
    """Anything else is 415."""
    answer = await upload(service, "x", "application/xml")
    assert (answer.status_code, code(answer)) == (415, "unsupported-media-type")


async def test_large_imports_are_audited_completely(service: Service) -> None:
    """Every admitted EK stands in the audit, in entries that stay within their limit."""
    entries = [{"ek_fingerprint": f"{i:096x}", "role": "linux"} for i in range(450)]
    assert (await service.operator("POST", "/allow-list", {"entries": entries})).json()["added"] == 450
    named: dict[str, str] = {}
    for entry in await service.audit(action="allow_list_import"):
        named |= json.loads(entry["detail"])
    assert len(named) == 450


POLICY = {
    "format": "itl-tpm-policy/1",
    "name": "workers",
    "version": 1,
    "bank": "sha256",
    "pcrs": {"7": {"any_of": ["ab" * 32]}, "1": {"ignore": "serial numbers"}},
}


async def test_policies_are_immutable(service: Service) -> None:
    """A name and version are taken once; a change is a new version; the shipped one is always listed."""
    created = await service.operator("POST", "/policies", POLICY)
    assert created.status_code == 201
    assert created.json()["document"] == POLICY
    again = await service.operator("POST", "/policies", POLICY)
    assert (again.status_code, code(again)) == (409, "already-exists")
    listed = (await service.operator("GET", "/policies")).json()
    assert [(p["name"], p["version"]) for p in listed["policies"]] == [("identity-only", 1), ("workers", 1)]
    assert listed["policies"][0]["sha256"] == IDENTITY_ONLY.sha256


@pytest.mark.parametrize(
    "document",
    [
        b"",
        b"[]",
        b'{"format": 1, "format": 2}',
        json.dumps(POLICY | {"pcrs": {}}).encode(),
        json.dumps(POLICY | {"pcrs": {"16": {"any_of": ["ab" * 32]}}}).encode(),
        json.dumps(POLICY | {"surprise": 1}).encode(),
        json.dumps(POLICY | {"name": "identity-only"}).encode(),
    ],
    ids=lambda d: d[:40].decode(),
)
async def test_policies_that_break_the_format(service: Service, document: bytes) -> None:
    """Refused when written, with the rule."""
    answer = await service.http.post(
        "/api/v1/policies", content=document, headers=OPERATOR | {"Content-Type": "application/json"}
    )
    assert (answer.status_code, code(answer)) == (422, "policy-invalid")


async def test_assignments(service: Service) -> None:
    """The narrowest wins; each act is audited; what does not exist cannot be assigned."""
    node = SoftwareNode()
    await service.introduce(node)
    await service.operator("POST", "/policies", POLICY)
    put = await service.operator("PUT", "/policies/assignments/fleet/*", {"policy": "workers@1"})
    assert (put.status_code, put.json()["policy"]) == (200, "workers@1")
    assert (await service.challenge(node))["pcr_selection"] == {"sha256": [1, 7]}
    # The shipped policy can be assigned where a narrower exception is needed.
    one = f"/policies/assignments/machine/{node.machine_id}"
    assert (await service.operator("PUT", one, {"policy": "identity-only@1"})).status_code == 200
    assert (await service.operator("PUT", one, {"policy": "identity-only@1"})).status_code == 200
    assert (await service.challenge(node))["pcr_selection"]["sha256"] != [1, 7]
    listed = (await service.operator("GET", "/policies")).json()
    assert [(a["scope"], a["policy"]) for a in listed["assignments"]] == [
        ("fleet", "workers@1"),
        ("machine", "identity-only@1"),
    ]
    assert len(listed["policies"]) == 2
    assert (await service.operator("DELETE", one)).status_code == 204
    gone = await service.operator("DELETE", one)
    assert (gone.status_code, code(gone)) == (404, "policy-unknown")
    unknown = await service.operator("PUT", "/policies/assignments/fleet/*", {"policy": "nothing@1"})
    assert (unknown.status_code, code(unknown)) == (404, "policy-unknown")
    nobody = "/policies/assignments/machine/00000000-0000-4000-8000-000000000000"
    assert code(await service.operator("PUT", nobody, {"policy": "workers@1"})) == "machine-unknown"
    for scope, subject in (("fleet", "x"), ("role", "king"), ("cluster", "No")):
        answer = await service.operator(
            "PUT", f"/policies/assignments/{scope}/{subject}", {"policy": "workers@1"}
        )
        assert (answer.status_code, code(answer)) == (422, "request-invalid")
    actions = {entry["action"] for entry in await service.audit()}
    assert {"policy_create", "policy_assign", "policy_unassign"} <= actions


async def test_machines_are_listed_in_pages_and_by_filter(service: Service) -> None:
    """Newest first; each machine once; filters combine; a foreign cursor is an error."""
    nodes = [SoftwareNode() for _ in range(5)]
    for number, node in enumerate(nodes):
        await service.introduce(node, hw_serial=f"S{number}", cluster_id="prod")
    for number in (1, 3):
        granted = {"role": "linux", "cluster_id": "prod"}
        await service.act(nodes[number], "approve", granted)
    await service.act(nodes[0], "approve", {"role": "worker-app", "hostname": "w-0"})
    seen: list[str] = []
    cursor: str | None = None
    while True:
        params = {"limit": "2"} | ({"cursor": cursor} if cursor else {})
        page = (await service.operator("GET", "/machines", params=params)).json()
        seen += [machine["machine_id"] for machine in page["items"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert seen == [node.machine_id for node in reversed(nodes)]

    async def ids(**query: str) -> set[str]:
        answer = await service.operator("GET", "/machines", params=query)
        return {machine["machine_id"] for machine in answer.json()["items"]}

    assert await ids(status="registered", role="worker-app") == {nodes[0].machine_id}
    assert await ids(role="worker-app") == {nodes[0].machine_id}
    assert await ids(cluster_id="prod") == {nodes[1].machine_id, nodes[3].machine_id}
    assert await ids(q="s3") == {nodes[3].machine_id}
    assert await ids(q="w-0", cluster_id="prod") == set()
    assert await ids(q="%") == set()
    bad = await service.operator("GET", "/machines", params={"cursor": "abc"})
    assert (bad.status_code, code(bad)) == (422, "request-invalid")
    for wrong in ({"status": "king"}, {"limit": "0"}, {"limit": "1000"}, {"q": "\x00"}):
        assert (await service.operator("GET", "/machines", params=wrong)).status_code == 422


async def test_expected_version(service: Service) -> None:
    """Who decides about version n cannot thereby change version n + 1."""
    node = SoftwareNode()
    await service.introduce(node)
    version = (await service.detail(node))["version"]
    await service.act(node, "ak-reset", {"reason": "test"})
    stale = await service.operator(
        "POST", f"/machines/{node.machine_id}/approve", {"role": "linux", "expected_version": version}
    )
    assert (stale.status_code, code(stale)) == (409, "machine-changed")
    assert (await service.detail(node))["status"] == "pending_approval"
    await service.act(node, "approve", {"role": "linux", "expected_version": version + 1})


@pytest.mark.threat("T275")
@pytest.mark.parametrize("hostname", ["w-1", None])
@pytest.mark.parametrize("act", ["revoke", "wipe", "ak-reset", "replace", "delete"])
async def test_what_was_typed_is_compared_by_the_service(
    service: Service, act: str, hostname: str | None
) -> None:
    """Whoever asks: another name, a part of it and an empty one do nothing; one without a name has its short id."""
    node, waits = SoftwareNode(), SoftwareNode()
    await service.introduce(waits)
    await service.admitted(node, **({"hostname": hostname} if hostname else {}))
    at, name = f"/machines/{node.machine_id}", hostname or node.machine_id[:8]
    if act == "delete":
        await service.act(node, "revoke", {"wipe": True})
        await service.acknowledge(node, await service.attest(node))
    ways: dict[str, tuple[str, dict[str, Any]]] = {
        "revoke": (f"{at}/revoke", {}),
        "wipe": (f"{at}/revoke", {"wipe": True}),
        "ak-reset": (f"{at}/ak-reset", {"reason": "r"}),
        "replace": (f"{at}/replace", {"reason": "r", "new": waits.machine_id, "accept_ek": True}),
        "delete": (at, {}),
    }
    path, body = ways[act]

    async def asked(typed: str) -> httpx.Response:
        said = {"confirm_name": typed}
        if act == "delete":
            return await service.operator("DELETE", path, params=said)
        return await service.operator("POST", path, body | said)

    before, entries = await service.detail(node), len(await service.audit())
    for wrong in ("w-2", name[:-1], f"{name}0", ""):
        refused = await asked(wrong)
        assert refused.status_code == 409, wrong
        assert code(refused) == "machine-changed"
        assert f"is called {name}," in refused.json()["detail"]
    assert await service.detail(node) == before
    assert len(await service.audit()) == entries
    assert (await asked(name)).is_success


async def test_deleting(service: Service) -> None:
    """Only rejected or wiped machines; the audit stays; the same EK may introduce itself again."""
    node = SoftwareNode()
    await service.introduce(node)
    url = f"/machines/{node.machine_id}"
    refused = await service.operator("DELETE", url)
    assert (refused.status_code, code(refused)) == (409, "transition-forbidden")
    await service.act(node, "reject", {"reason": "not ours"})
    assert (await service.operator("DELETE", url)).status_code == 204
    unknown = await service.operator("GET", url)
    assert (unknown.status_code, code(unknown)) == (404, "machine-unknown")
    actions = [entry["action"] for entry in await service.audit(machine_id=node.machine_id)]
    assert actions == ["delete", "reject", "register"]
    old = node.machine_id
    await service.introduce(node)
    assert node.machine_id != old


async def test_acts_write_state_audit_and_event_or_nothing(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the event cannot be written, the act did not happen."""
    from attestation_service.machines import acting

    node = SoftwareNode()
    await service.introduce(node)
    entries = len(await service.audit())

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("outbox")

    monkeypatch.setattr(acting, "emit", fail)
    answer = await service.operator("POST", f"/machines/{node.machine_id}/approve", {"role": "linux"})
    assert answer.status_code == 500
    assert (await service.detail(node))["status"] == "pending_approval"
    assert len(await service.audit()) == entries


async def test_why_is_on_record(service: Service) -> None:
    """What somebody gave as a reason stands beside what was done, for admitting and unlocking too."""
    node = SoftwareNode()
    await service.introduce(node)
    await service.act(node, "approve", {"role": "linux", "reason": "order 4711"})
    await service.attest(node)
    await service.act(node, "lock", {"reason": "lid open"})
    await service.act(node, "unlock", {"reason": "seal checked"})
    about = await service.audit(machine_id=node.machine_id)
    told = {entry["action"]: entry["detail"] for entry in about}
    assert told["approve"] == "role linux; order 4711"
    assert (told["lock"], told["unlock"]) == ("lid open", "seal checked")


async def test_audit_pages_and_filters(service: Service) -> None:
    """Newest first, every column, filters for machine, action and operator."""
    nodes = [SoftwareNode() for _ in range(3)]
    for node in nodes:
        await service.introduce(node)
    await service.act(nodes[0], "approve", {"role": "linux"})
    page = (await service.operator("GET", "/audit", params={"limit": "5"})).json()
    used = "break_glass"  # before each act and each look at the log
    assert [e["action"] for e in page["items"]] == [used, "approve", used, "register", "register"]
    rest = (await service.operator("GET", "/audit", params={"cursor": page["next_cursor"]})).json()
    assert [entry["action"] for entry in rest["items"] if entry["action"] != used] == ["register"]
    assert rest["items"][-1]["prev_hash"] == "0" * 64
    assert len(await service.audit(machine_id=nodes[0].machine_id)) == 2
    assert len(await service.audit(operator_cn="SYSTEM")) == 1
    assert len(await service.audit(operator_cn="SYSTEM", action=used)) >= 5


async def test_a_changed_entry_is_found(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """Verification walks in batches and names the first entry that does not fit."""
    from attestation_service.audit import handlers

    monkeypatch.setattr(handlers, "BATCH_ENTRIES", 2)
    for _ in range(5):
        await service.introduce(SoftwareNode())
    good = (await service.operator("GET", "/audit/verify")).json()
    assert (good["valid"], good["entries"], good["first_invalid_id"]) == (True, 6, None)
    assert len(good["root_hash"]) == 64
    with closing(sqlite3.connect(service.directory / "machines.db", isolation_level=None)) as db:
        for (name,) in db.execute("select name from sqlite_master where type='trigger'").fetchall():
            db.execute(f"drop trigger {name}")
        db.execute("update audit_log set detail = 'forged' where id = 4")
    bad = (await service.operator("GET", "/audit/verify")).json()
    assert (bad["valid"], bad["entries"], bad["first_invalid_id"]) == (False, 3, 4)
    assert bad["root_hash"] is None


async def test_machine_views_hold_no_secret(service: Service) -> None:
    """No token, nonce or key in what operators see."""
    node = SoftwareNode()
    answer = await service.admitted(node)
    seen = json.dumps(await service.detail(node))
    seen += json.dumps((await service.operator("GET", f"/machines/{node.machine_id}/results")).json())
    seen += json.dumps(await service.audit())
    for secret in (answer["config_token"], answer["next_challenge"]["nonce"], "ak_public", "ek_public"):
        assert secret not in seen
