"""Attestation runs over HTTP: opened once, told to their node alone, judged once, kept for a week."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import sqlite3
from datetime import datetime, timedelta
from typing import Any

import pytest

from attestation.errors import SignerUnavailable, StoreUnavailable
from attestation.report_data import run_nonce
from attestation.store import RateLimit, RunBlob, Tx
from attestation.wire import b64decode, b64encode
from attestation_service.process import maintenance
from attestation_service.runs import attempts, evidence, handlers
from tests.unit.service.conftest import OPERATOR, Service, Starter
from tests.unit.service.node import SoftwareNode
from tests.unit.service.realm import a_key
from tests.unit.service.run_requests import (
    UID,
    admitted,
    ask,
    challenged,
    detail,
    judged,
    of_agent,
    of_controller,
    opened,
    opening,
    pinning,
    posted,
    quoted,
    result,
    serving,
)
from tests.unit.service.test_service_accounts import cluster, jwks

pytestmark = pytest.mark.anyio

PROBLEM = "urn:itl:problem:"


@pytest.fixture
async def service(start: Starter) -> Service:
    """A service with one cluster."""
    return await serving(start)


def code_of(answer: Any) -> str:
    """Return the code of a refusal."""
    found: str = answer.json()["type"].removeprefix(PROBLEM)
    return found


async def entries(service: Service, action: str) -> list[dict[str, Any]]:
    """Return the audit entries of *action*."""
    return [each for each in await service.audit() if each["action"] == action]


def checks(found: dict[str, Any], outcome: str) -> dict[str, str | None]:
    """Return the checks of a result with that outcome, with their codes."""
    return {each["id"]: each["code"] for each in found["checks"] if each["outcome"] == outcome}


# ---------------------------------------------------------------- a good node


async def test_a_good_node_is_verified(service: Service) -> None:
    """By a fresh quote of the machine's own key, with a reference value that matched; both acts are audited."""
    node = await admitted(service)
    found = await judged(service, node, opening(service, pinning(node)))
    assert (found["verdict"], found["mode"], found["policy_source"]) == ("verified", "enforce", "ref")
    assert found["machine_id"] == node.machine_id
    assert (found["rejected"], found["unavailable"]) == (None, None)
    assert {"machine", "reference", "tpm-quote", "pcr0", "pcr7"} <= checks(found, "pass").keys()
    assert not checks(found, "fail")
    assert not checks(found, "unavailable")
    assert {each["slot"]: each["digest"] for each in found["measurements"]} == {
        str(i): node.pcrs[i].hex() for i in range(8)
    }
    (one,) = await entries(service, "run_opened")
    assert (one["operator_cn"], one["machine_id"]) == ("default/itl:runs", None)
    (two,) = await entries(service, "run_judged")
    assert (two["operator_cn"], two["machine_id"]) == ("default/priv:agent", node.machine_id)
    assert "verified" in two["detail"]
    assert UID in two["detail"]


async def test_where_a_node_was_verified_there_is_room(service: Service) -> None:
    """Long bodies of its network are read while strangers flood the others; a failed run gives it none."""
    node = await admitted(service)
    await judged(service, node, opening(service, {"tpm": {"pcrs": {"1": "11" * 32}}}))
    assert await judged(service, node, opening(service, name="2"), "2")
    assert not service.resources.room.is_proven("192.0.2.7")
    await judged(service, node, opening(service, pinning(node), name="3"), "3")
    assert service.resources.room.is_proven("192.0.2.7")


async def test_what_is_kept_is_what_was_posted(service: Service) -> None:
    """Quote and signature in the result; the item whole, canonical JSON, by its SHA-256."""
    node = await admitted(service)
    await opened(service, opening(service))
    body = quoted(node, await challenged(service))
    assert (await posted(service, body)).status_code == 202
    found, value = await result(service), body["evidence"][0]["value"]
    assert (found["quote"], found["signature"]) == (value["pcr_quote"], value["pcr_signature"])

    def blobs(tx: Tx) -> list[RunBlob]:
        return tx.runs.blobs(body["challenge_id"])

    (blob,) = await service.store.read(blobs)
    assert json.loads(blob.content) == value
    assert hashlib.sha256(blob.content).hexdigest() == blob.sha256
    assert found["evidence"] == [
        {
            "media_type": blob.media_type,
            "sha256": blob.sha256,
            "size": len(blob.content),
            "url": f"{service.resources.settings.service_url}/api/v1/runs/{UID}/bundle?cluster_id=default",
        }
    ]


async def test_the_result_is_signed_for_relying_parties(service: Service) -> None:
    """An EAR over the run's nonce, with the verdict of the run, by the key that signs attestation results."""
    node = await admitted(service)
    found = await judged(service, node, opening(service, pinning(node)))
    shown = (await detail(service))["attempts"][0]["challenge"]
    payload = found["attestation_result"].split(".")[1]
    said = json.loads(b64decode_url(payload))
    assert (said["sub"], said["eat_nonce"]) == (node.machine_id, shown["nonce"])
    assert said["submods"]["tpm"]["ear_status"] == "affirming"
    assert found["policy_id"] in said["submods"]["tpm"]["ear_appraisal_policy_ids"]


def b64decode_url(text: str) -> bytes:
    """Decode base64url without padding."""
    padded = text + "=" * (-len(text) % 4)
    return b64decode(padded.replace("-", "+").replace("_", "/"), "part")


# ---------------------------------------------------------------- the challenge


@pytest.mark.threat("T280")
async def test_a_policy_that_was_changed_in_the_database_verifies_nothing(service: Service) -> None:
    """The result names what was asked: under its identifier nothing else may be judged."""
    node = await admitted(service)
    await opened(service, opening(service, {"tpm": {"pcrs": {"7": "11" * 32}}}))
    with contextlib.closing(sqlite3.connect(service.directory / "machines.db")) as db, db:
        db.execute("UPDATE runs SET policy = ?", (json.dumps(pinning(node, 7)),))
    answer = await posted(service, quoted(node, await challenged(service)))
    assert answer.status_code == 202
    found = await result(service)
    assert found["verdict"] == "indeterminate"
    assert "policy" in checks(found, "unavailable")


@pytest.mark.threat("T263")
async def test_a_challenge_is_told_to_its_node_alone(service: Service) -> None:
    """The controller learns it when the attempt has ended; then anybody computes the nonce again."""
    node = await admitted(service)
    told = await opened(service, opening(service, nonce="0123456789abcdef"))
    assert told.keys() == {"attempt", "challenge_id", "expires_at", "policy_id"}
    assert (await detail(service))["attempts"][0]["challenge"] is None
    challenge = await challenged(service)
    random = b64decode(challenge["random"], "random")
    assert len(random) == 32
    assert b64decode(challenge["nonce"], "nonce") == run_nonce(random, UID, b"0123456789abcdef")
    assert challenge["pcrs"] == list(range(8))
    assert (challenge["pcr_bank"], challenge["event_log"]) == ("sha256", False)
    assert (await posted(service, quoted(node, challenge))).status_code == 202
    shown = (await detail(service))["attempts"][0]
    assert shown["state"] == "judged"
    assert shown["challenge"] == {name: challenge[name] for name in ("id", "random", "nonce", "expires_at")}


@pytest.mark.threat("T264")
async def test_each_run_has_a_challenge_of_its_own(service: Service) -> None:
    """Evidence for one run answers no other."""
    node = await admitted(service)
    await opened(service, opening(service))
    await opened(service, opening(service, name="other"), "uid-2")
    one, two = await challenged(service), await challenged(service, "uid-2")
    assert one["random"] != two["random"]
    answer = await posted(service, quoted(node, one), "uid-2")
    assert (answer.status_code, code_of(answer)) == (404, "challenge-unknown")
    assert (
        await posted(service, quoted(node, one) | {"challenge_id": two["id"]}, "uid-2")
    ).status_code == 202
    found = await result(service, "uid-2")
    assert (found["verdict"], found["rejected"]) == ("failed", "challenge-mismatch")
    assert checks(found, "fail") == {"tpm-quote": "binding-mismatch"}


# ---------------------------------------------------------------- C9


@pytest.mark.threat("T264")
async def test_a_challenge_is_answered_once(service: Service) -> None:
    """A replay is 409, also where both are posted at the same time: one wins, with one entry of the audit."""
    node = await admitted(service)
    await opened(service, opening(service))
    body = quoted(node, await challenged(service))
    answers = await asyncio.gather(*(posted(service, body) for _ in range(4)))
    assert sorted(each.status_code for each in answers) == [202, 409, 409, 409]
    again = await posted(service, body)
    assert (again.status_code, code_of(again)) == (409, "challenge-used")
    gone = await ask(service, "GET", f"{UID}/challenge", as_=of_agent(service))
    assert (gone.status_code, code_of(gone)) == (409, "challenge-used")
    assert len(await entries(service, "run_judged")) == 1
    # Judged: there is no further attempt.
    assert (await opened(service, opening(service)))["attempt"] == 1


@pytest.mark.threat("T264")
async def test_a_challenge_ends_after_a_minute(service: Service) -> None:
    """Evidence after it is 410, and the run may be opened again, which gives the next one."""
    node = await admitted(service)
    said = opening(service)
    first = await opened(service, said)
    body = quoted(node, await challenged(service))
    service.clock.advance(59)
    assert await opened(service, said) == first
    service.clock.advance(1)
    answer = await posted(service, body)
    assert (answer.status_code, code_of(answer)) == (410, "challenge-expired")
    gone = await ask(service, "GET", f"{UID}/challenge", as_=of_agent(service))
    assert (gone.status_code, code_of(gone)) == (410, "challenge-expired")
    assert [each["state"] for each in (await detail(service))["attempts"]] == ["expired"]
    second = await opened(service, said)
    assert (second["attempt"], second["challenge_id"]) != (1, first["challenge_id"])
    assert [each["state"] for each in (await detail(service))["attempts"]] == ["expired", "open"]
    # The first one stays over.
    assert (await posted(service, body)).status_code == 410
    assert (await posted(service, quoted(node, await challenged(service)))).status_code == 202


async def test_a_challenge_ends_with_its_run(service: Service) -> None:
    """None outlives the deadline, and after it there is no other; the run is what it was."""
    said = opening(service, deadline=(service.clock.at + timedelta(seconds=30)).isoformat())
    first = await opened(service, said)
    service.clock.advance(30)
    assert await opened(service, said) == first
    assert [each["state"] for each in (await detail(service))["attempts"]] == ["expired"]


@pytest.mark.parametrize("apart", [60, -60])
async def test_a_deadline_is_of_the_controller_s_clock(service: Service, apart: int) -> None:
    """A minute ahead of ours or behind: what is left of it is what the challenge has, at each request anew."""

    def said(seconds: int) -> dict[str, Any]:
        theirs = service.clock.at + timedelta(seconds=apart)
        return opening(service, deadline=deadline.isoformat(), asked_at=theirs.isoformat(), name=f"{seconds}")

    deadline = service.clock.at + timedelta(seconds=apart + 30)
    first = await opened(service, said(1))
    assert datetime.fromisoformat(first["expires_at"]) == service.clock.at + timedelta(seconds=30)
    service.clock.advance(29)
    assert await opened(service, said(1)) == first
    # It is over, though ours may say that it has not come.
    service.clock.advance(1)
    assert await opened(service, said(1)) == first
    assert (await ask(service, "PUT", "another", said(2))).status_code == 410
    deadline = service.clock.at + timedelta(seconds=apart + 90)
    await opened(service, said(3), "third")
    service.clock.advance(60)
    following = await opened(service, said(3), "third")
    assert following["attempt"] == 2
    assert datetime.fromisoformat(following["expires_at"]) == service.clock.at + timedelta(seconds=30)


async def test_a_clock_that_is_far_from_ours_counts_two_minutes(service: Service) -> None:
    """Nobody keeps a run open by what they say of their clock."""
    past = service.clock.at - timedelta(minutes=3)
    said = opening(service, deadline=past.isoformat(), asked_at=(past - timedelta(minutes=1)).isoformat())
    assert (await ask(service, "PUT", UID, said)).status_code == 410
    late = service.clock.at + timedelta(minutes=13)
    said = opening(service, deadline=late.isoformat(), asked_at=(late - timedelta(minutes=1)).isoformat())
    assert (await ask(service, "PUT", UID, said)).status_code == 422


async def test_of_two_who_open_a_run_one_does(service: Service) -> None:
    """Also where its challenge has ended: both get the same attempt."""
    said = opening(service)
    found = await asyncio.gather(*(opened(service, said) for _ in range(4)))
    assert {each["challenge_id"] for each in found} == {found[0]["challenge_id"]}
    service.clock.advance(60)
    found = await asyncio.gather(*(opened(service, said) for _ in range(4)))
    assert {(each["attempt"], each["challenge_id"]) for each in found} == {(2, found[0]["challenge_id"])}
    assert len(await entries(service, "run_opened")) == 1


# ---------------------------------------------------------------- what a run may not be


async def test_a_number_that_is_none_is_refused(service: Service) -> None:
    """1e400 is read as infinity, which nothing could write down again."""
    said = json.dumps(opening(service, {"mode": "report", "tcb": {"minEvaluation": 7}})).replace(
        "7}", "1e400}"
    )
    headers = of_controller(service) | {"Content-Type": "application/json"}
    answer = await service.http.put(f"/api/v1/runs/{UID}", content=said, headers=headers)
    assert (answer.status_code, code_of(answer)) == (422, "policy-invalid")


@pytest.mark.threat("T263")
@pytest.mark.parametrize(
    ("changes", "status", "code"),
    [
        ({"cluster_id": "edge"}, 403, "forbidden"),
        ({"policy": {"tpm": {"pcrs": {"7": "00"}}}, "policy_source": "inline"}, 422, "policy-invalid"),
        ({"policy": {"tpm": {}}, "policy_source": "inline"}, 422, "policy-invalid"),
        ({"policy_source": "ref"}, 422, "schema-violation"),
        ({"nonce": "short"}, 422, "schema-violation"),
        ({"backend": "sgx"}, 422, "schema-violation"),
        ({"verdict": "verified"}, 422, "schema-violation"),
        ({"deadline": "2026-11-21T12:10:01Z"}, 422, "request-invalid"),
        ({"deadline": "2026-11-21T12:00:00Z"}, 410, "challenge-expired"),
    ],
    ids=str,
)
async def test_what_is_not_opened(service: Service, changes: dict[str, Any], status: int, code: str) -> None:
    """And leaves nothing behind."""
    answer = await ask(service, "PUT", UID, opening(service) | changes)
    assert (answer.status_code, code_of(answer)) == (status, code)
    missing = await ask(service, "GET", UID)
    assert (missing.status_code, code_of(missing)) == (404, "run-unknown")


@pytest.mark.parametrize(
    "changes",
    [{"node_name": "w-2"}, {"backend": "tdx"}, {"nonce": "0123456789abcdef"}, {"name": "other"}],
    ids=str,
)
async def test_a_run_stays_what_it_was(service: Service, changes: dict[str, Any]) -> None:
    """Something else under its UID is refused."""
    await opened(service, opening(service))
    before = await detail(service)
    answer = await ask(service, "PUT", UID, opening(service) | changes)
    assert (answer.status_code, code_of(answer)) == (409, "run-differs")
    assert await detail(service) == before


async def test_the_same_policy_has_the_same_identifier(service: Service) -> None:
    """Another one has another (C3)."""
    node = await admitted(service)
    one = await opened(service, opening(service, pinning(node)))
    two = await opened(service, opening(service, pinning(node)), "uid-2")
    three = await opened(service, opening(service, pinning(node, 0)), "uid-3")
    assert one["policy_id"] == two["policy_id"] != three["policy_id"]


# ---------------------------------------------------------------- whose node


@pytest.mark.threat("T263")
@pytest.mark.parametrize(
    "agent",
    [
        {"name": "w-2"},
        {"uid": "another-of-that-name"},
        {"node": None},
        {"node": {"name": "w-1"}},
        {"node": "w-1"},
    ],
    ids=str,
)
async def test_another_node_is_refused(service: Service, agent: dict[str, Any]) -> None:
    """By name, by UID, and where its token names none; the challenge stays its node's, and the audit has it."""
    node = await admitted(service)
    await opened(service, opening(service))
    body = quoted(node, await challenged(service))
    for answer in (
        await ask(service, "GET", f"{UID}/challenge", as_=of_agent(service, **agent)),
        await posted(service, body, **agent),
    ):
        assert (answer.status_code, code_of(answer)) == (403, "node-mismatch")
    assert len(await entries(service, "denied")) == 2
    assert (await posted(service, body)).status_code == 202


async def test_each_duty_opens_its_own_routes(service: Service) -> None:
    """An agent cannot open a run or read a result, a controller cannot answer; an operator can do neither."""
    node = await admitted(service)
    await opened(service, opening(service))
    body = quoted(node, await challenged(service))
    agent, controller = of_agent(service), of_controller(service)
    for method, path, content, who in (
        ("PUT", "uid-2", opening(service), agent),
        ("GET", UID, None, agent),
        ("GET", f"{UID}/challenge", None, controller),
        ("POST", f"{UID}/evidence", body, controller),
    ):
        answer = await ask(service, method, path, content, as_=who)
        assert (answer.status_code, code_of(answer)) == (403, "forbidden"), (method, path)
    for method, path in (
        ("PUT", UID),
        ("GET", UID),
        ("GET", f"{UID}/challenge"),
        ("POST", f"{UID}/evidence"),
    ):
        assert (await ask(service, method, path, body, as_=OPERATOR)).status_code == 401
    assert (await service.get("/api/v1/machines", headers=agent)).status_code == 401


@pytest.mark.threat("T263")
async def test_each_cluster_has_its_own_runs(start: Starter) -> None:
    """The same UID, and a node of the same name and UID: neither controllers nor agents reach into the other."""
    edge = a_key("RS256", 1)
    rules = [cluster(), cluster(cluster_id="edge", jwks=jwks(edge))]
    service = await start(kubernetes_clusters=json.dumps(rules))
    node = await admitted(service)
    mine = await opened(service, opening(service))
    controller = of_controller(service, edge)
    agent = of_agent(service, key=edge)
    for method, path, who in (("GET", UID, controller), ("GET", f"{UID}/challenge", agent)):
        answer = await ask(service, method, path, as_=who)
        assert (answer.status_code, code_of(answer)) == (404, "run-unknown")
    honest = quoted(node, await challenged(service))
    assert (await ask(service, "POST", f"{UID}/evidence", honest, as_=agent)).status_code == 404
    answer = await ask(service, "PUT", UID, opening(service, cluster_id="edge"), as_=controller)
    assert answer.json()["challenge_id"] != mine["challenge_id"]
    # The challenge of the other cluster's run of this UID is none of this one.
    assert (await ask(service, "POST", f"{UID}/evidence", honest, as_=agent)).status_code == 404
    assert (await posted(service, honest)).status_code == 202
    # The machine is one of its own cluster: in the other nobody is called so.
    theirs = (await ask(service, "GET", f"{UID}/challenge", as_=agent)).json()
    assert (await ask(service, "POST", f"{UID}/evidence", quoted(node, theirs), as_=agent)).status_code == 202
    found = (await ask(service, "GET", UID, as_=controller)).json()["attempts"][-1]["result"]
    assert (found["verdict"], found["machine_id"]) == ("indeterminate", None)


@pytest.mark.threat("T265")
async def test_no_node_takes_the_others_their_turn(service: Service) -> None:
    """Who asks for ever is refused alone; each refusal counts, so guessing runs costs the same."""
    await admitted(service)
    await opened(service, opening(service))
    found = [await ask(service, "GET", f"none-{i}/challenge", as_=of_agent(service)) for i in range(121)]
    assert [each.status_code for each in found[:120]] == [404] * 120
    assert (found[120].status_code, code_of(found[120])) == (429, "rate-limited")
    other = of_agent(service, "w-2", "uid-of-w-2")
    await opened(service, opening(service, node_name="w-2", node_uid="uid-of-w-2"), "uid-2")
    assert (await ask(service, "GET", "uid-2/challenge", as_=other)).status_code == 200
    assert (await ask(service, "GET", "none/challenge", as_=other)).status_code == 404


@pytest.mark.threat("T265")
async def test_no_namespace_takes_another_its_turn_on_a_node(service: Service) -> None:
    """Whose runs ask a node without end are refused alone: the node still answers those of other namespaces."""
    await admitted(service)
    for name in ("many", "seed"):
        await opened(service, opening(service, namespace=name), f"uid-{name}")
    answers = [await ask(service, "GET", "uid-many/challenge", as_=of_agent(service)) for _ in range(121)]
    assert [each.status_code for each in answers] == [200] * 120 + [429]
    assert (await ask(service, "GET", "uid-seed/challenge", as_=of_agent(service))).status_code == 200
    unknown: dict[str, Any] = {
        "challenge_id": "0" * 32,
        "unavailable": {"code": "device-busy", "detail": "x"},
    }
    answers = [await posted(service, unknown, "uid-many") for _ in range(61)]
    assert [each.status_code for each in answers] == [404] * 60 + [429]
    # What is about no run of this node counts by itself too: it takes nothing from those that are.
    answers = [await posted(service, unknown, "uid-none") for _ in range(61)]
    assert [each.status_code for each in answers] == [404] * 60 + [429]
    mine = {**unknown, "challenge_id": (await challenged(service, "uid-seed"))["id"]}
    assert (await posted(service, mine, "uid-seed")).status_code == 202


# ---------------------------------------------------------------- what a node may not say


@pytest.mark.threat("T264")
async def test_a_verdict_of_the_node_counts_for_nothing(service: Service) -> None:
    """C4: a member that is not listed is refused, wherever it stands; nothing of it is a result."""
    node = await admitted(service)
    node.pcrs[7] = bytes(32)
    said = opening(service, pinning(SoftwareNode()))
    await opened(service, said)
    honest = quoted(node, await challenged(service))
    (item,) = honest["evidence"]
    for body in (
        {**honest, "verdict": "verified"},
        {**honest, "evidence": [{**item, "verdict": "verified"}]},
    ):
        answer = await posted(service, body)
        assert (answer.status_code, code_of(answer)) == (422, "schema-violation")
    lying = {**honest, "evidence": [{**item, "value": {**item["value"], "verdict": b64encode(b"verified")}}]}
    answer = await posted(service, lying)
    assert (answer.status_code, code_of(answer)) == (400, "malformed-evidence")
    found = await result(service)
    assert (found["verdict"], found["rejected"]) == ("failed", "malformed-evidence")


MALFORMED: list[Any] = [
    {},
    {"pcr_values": None},
    {"pcr_values": b64encode(b"{")},
    {"pcr_values": b64encode(b'{"sha256": {}, "sha256": {}}')},
    {"pcr_values": b64encode(b"[" * 9_000)},
    {"pcr_values": b64encode(b" " * 20_000)},
    {"pcr_values": b64encode(b'{"sha256": {"\\ud800": "00"}}')},
    {"pcr_values": b64encode('{"sha256": {"ü": "00"}}'.encode())},
    {"pcr_values": b64encode(json.dumps({"sha256": {}}).encode("utf-16"))},
    {"pcr_values": b64encode(b"[]")},
    {"pcr_quote": b64encode(b"\0" * 100)},
    {"pcr_quote": "****"},
    {"pcr_signature": b64encode(b"")},
]


@pytest.mark.parametrize("members", MALFORMED, ids=lambda each: str(each)[:40])
async def test_what_cannot_be_parsed_is_the_result(service: Service, members: dict[str, Any]) -> None:
    """400, the challenge is spent, the attempt rejected; nothing of it is kept."""
    node = await admitted(service)
    await opened(service, opening(service, pinning(node)))
    body = quoted(node, await challenged(service), **members)
    if not members:
        body["evidence"] *= 2
    answer = await posted(service, body)
    assert (answer.status_code, code_of(answer)) == (400, "malformed-evidence")
    found = await result(service)
    assert (found["verdict"], found["rejected"]) == ("failed", "malformed-evidence")
    assert checks(found, "fail") == {"evidence": "envelope-invalid"}
    assert (found["quote"], found["evidence"], found["attestation_result"]) == (None, [], None)
    assert (await posted(service, body)).status_code == 409
    assert await service.store.read(lambda tx: tx.runs.blobs(body["challenge_id"])) == []


@pytest.mark.parametrize(
    "code",
    [
        "device-absent",
        "device-denied",
        "device-busy",
        "device-no-provider",
        "device-malformed",
        "device-failed",
    ],
)
async def test_a_device_that_is_not_there_is_the_result(service: Service, code: str) -> None:
    """C13, as the service takes it: indeterminate, with the code and no quote; the challenge is spent."""
    await admitted(service)
    await opened(service, opening(service, pinning(SoftwareNode())))
    challenge = await challenged(service)
    body = {"challenge_id": challenge["id"], "unavailable": {"code": code, "detail": "/dev/tpmrm0"}}
    assert (await posted(service, body)).status_code == 202
    found = await result(service)
    assert (found["verdict"], found["rejected"]) == ("indeterminate", None)
    assert found["unavailable"] == {"code": code, "detail": "/dev/tpmrm0"}
    assert (found["quote"], found["evidence"], found["attestation_result"]) == (None, [], None)
    assert checks(found, "unavailable").keys() == {"evidence"}
    assert (await posted(service, body)).status_code == 409
    (entry,) = await entries(service, "run_judged")
    assert code in entry["detail"]


async def test_what_a_node_says_of_its_device_obeys_no_terminal(service: Service) -> None:
    """It stands in conditions and Results, which people read."""
    await opened(service, opening(service))
    body = {
        "challenge_id": (await challenged(service))["id"],
        "unavailable": {"code": "device-absent", "detail": "no \x1b[2J\u202eTPM\n"},
    }
    assert (await posted(service, body)).status_code == 202
    found = await result(service)
    assert found["unavailable"]["detail"] == "no \ufffd[2J\ufffdTPM\ufffd"
    assert found["checks"][0]["actual"] == "device-absent: no \ufffd[2J\ufffdTPM\ufffd"


async def test_a_device_code_that_nobody_knows_is_refused(service: Service) -> None:
    """And spends nothing; neither does an answer that is both, or neither."""
    node = await admitted(service)
    await opened(service, opening(service))
    honest = quoted(node, await challenged(service))
    unavailable = {"code": "device-absent", "detail": "x"}
    for body in (
        {"challenge_id": honest["challenge_id"], "unavailable": {"code": "verified", "detail": "x"}},
        {**honest, "unavailable": unavailable},
        {"challenge_id": honest["challenge_id"]},
    ):
        assert (await posted(service, body)).status_code == 422
    assert (await posted(service, honest)).status_code == 202


# ---------------------------------------------------------------- faults


@pytest.mark.parametrize("where", ["unit", "signer"])
async def test_what_cannot_be_written_leaves_nothing(
    service: Service, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """A fault behind the last statement of the unit, or before it: 503, nothing spent, and the same answer counts."""
    node = await admitted(service)
    await opened(service, opening(service, pinning(node)))
    body = quoted(node, await challenged(service))

    def fail(*_: Any, **__: Any) -> Any:
        raise StoreUnavailable("away") if where == "unit" else SignerUnavailable("away")

    with monkeypatch.context() as patched:
        if where == "unit":
            patched.setattr(evidence, "_event", fail)
        else:
            patched.setattr(type(service.resources.signer), "sign_jwt", fail)
        assert (await posted(service, body)).status_code == 503
    (attempt,) = (await detail(service))["attempts"]
    assert (attempt["state"], attempt["result"]) == ("open", None)
    assert await service.store.read(lambda tx: tx.runs.blobs(body["challenge_id"])) == []
    assert await entries(service, "run_judged") == []
    assert (await posted(service, body)).status_code == 202
    assert (await result(service))["verdict"] == "verified"


async def test_a_run_that_cannot_be_written_is_not_opened(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fault before its first attempt: no run without a challenge is left."""

    def fail(*_: Any, **__: Any) -> Any:
        raise StoreUnavailable("away")

    with monkeypatch.context() as patched:
        patched.setattr(attempts, "new_attempt", fail)
        assert (await ask(service, "PUT", UID, opening(service))).status_code == 503
    assert code_of(await ask(service, "GET", UID)) == "run-unknown"
    assert (await opened(service, opening(service)))["attempt"] == 1
    assert len(await entries(service, "run_opened")) == 1


async def test_a_cluster_opens_so_many_runs(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond them it waits; one that is open already may be opened again."""
    monkeypatch.setattr(handlers, "OPENED", RateLimit(requests=2, per_seconds=3_600))
    monkeypatch.setattr(handlers, "OPENED_IN_CLUSTER", RateLimit(requests=3, per_seconds=3_600))
    answers = [await ask(service, "PUT", f"uid-{i}", opening(service)) for i in range(3)]
    assert [each.status_code for each in answers] == [200, 200, 429]
    assert (await opened(service, opening(service), "uid-1"))["attempt"] == 1
    # Another namespace has its own, as long as the cluster has some.
    for uid, namespace, status in (("uid-3", "other", 200), ("uid-4", "third", 429)):
        assert (await ask(service, "PUT", uid, opening(service, namespace=namespace))).status_code == status


# ---------------------------------------------------------------- kept


async def test_a_run_is_kept_for_a_week(service: Service) -> None:
    """With its evidence; then all of it goes, and its UID is nobody's."""
    node = await admitted(service)
    await judged(service, node, opening(service))
    challenge = (await detail(service))["attempts"][0]["challenge_id"]
    service.clock.advance(120 + 168 * 3600)
    await maintenance.once(service.resources)
    assert (await detail(service))["attempts"][0]["state"] == "judged"
    service.clock.advance(1)
    await maintenance.once(service.resources)
    assert code_of(await ask(service, "GET", UID)) == "run-unknown"
    assert await service.store.read(lambda tx: tx.runs.blobs(challenge)) == []
