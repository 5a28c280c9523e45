"""Sealing over HTTP: signed, logged, archived, each once; and nothing else than what was judged."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import itertools
import json
import sqlite3
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from attestation.errors import SignerUnavailable
from attestation.wire import jcs
from attestation_service.archive import ArchiveFault, Fault
from attestation_service.process import maintenance
from attestation_service.runs import sealing
from tests.unit.service.conftest import Service, Starter
from tests.unit.service.run_requests import (
    NODE_UID,
    UID,
    admitted,
    ask,
    challenged,
    detail,
    judged,
    of_agent,
    opened,
    opening,
    pinning,
    posted,
    quoted,
    serving,
)
from tests.unit.service.seal_requests import (
    BUNDLE_UID,
    asked,
    fetched,
    nothing_spec,
    proven,
    put,
    result_spec,
    sealing_of,
    wanted,
)

pytestmark = pytest.mark.anyio


@pytest.fixture
async def service(start: Starter) -> Service:
    """A service with one cluster, and a node that was verified."""
    found = await serving(start)
    node = await admitted(found)
    await judged(found, node, opening(found, pinning(node)))
    return found


async def onward(service: Service) -> dict[str, Any]:
    """Let the log be signed and seals go on; return how far that of the run is."""
    await service.resources.transparency.advance(force=True)
    await sealing.advance_due(service.resources)
    return await asked(service, await wanted(service))


def archived(service: Service) -> Path:
    """Return where the file is to be."""
    return service.directory / "bundles/default/2026/11" / f"{BUNDLE_UID}.intoto.jsonl"


# ---------------------------------------------------------------- the way of a bundle


async def test_a_run_is_sealed(service: Service) -> None:
    """Signed and logged at once, proven by the next checkpoint, archived; the file proves what was judged."""
    said = await wanted(service)
    first = await asked(service, said)
    assert (first["phase"], first["log_entry"], first["archive"]) == ("Signed", None, None)
    (entry,) = [each for each in await service.audit() if each["action"] == "run_sealed"]
    assert json.loads(entry["detail"]) == {
        "bundle": BUNDLE_UID,
        "key": first["key_id"],
        "run": UID,
        "statement": first["statement_digest"],
    }
    assert entry["operator_cn"] == "default/itl:runs"
    last = await onward(service)
    assert last["phase"] == "Sealed"
    assert last["failures"] == []
    assert last["log_entry"]["index"] == entry["id"] - 1
    file = await fetched(service)
    assert last["archive"]["url"] == archived(service).as_uri()
    assert archived(service).read_bytes() == file
    claims = await proven(service, file)
    assert claims.key_is_pinned
    assert (claims.event, claims.result) == (said["event"]["spec"], said["result"]["spec"])
    assert (claims.digest, claims.bundle_uid) == (first["statement_digest"], BUNDLE_UID)
    assert claims.predicate["result"]["verdict"] == "verified"


async def test_the_same_may_be_asked_again(service: Service) -> None:
    """At each phase: one statement, one entry, one file, whoever asks how often."""
    said = await wanted(service)
    first = await asked(service, said)
    assert await asked(service, said) == first
    last = await onward(service)
    assert await asked(service, said) == last
    assert last["statement_digest"] == first["statement_digest"]
    assert await sealing.advance_due(service.resources) == 0
    assert len([each for each in await service.audit() if each["action"] == "run_sealed"]) == 1


async def test_another_request_is_another_bundle(service: Service) -> None:
    """Once something is sealed, nothing else is sealed of that run, nor under that bundle."""
    said = await wanted(service)
    await asked(service, said)
    said["event"]["name"] = "se-01"
    answer = await put(service, said)
    assert (answer.status_code, answer.json()["type"]) == (409, "urn:itl:problem:run-differs")


async def test_a_service_without_its_key_seals_later(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The phase stays, the reason is told, and it is tried again, not at once."""
    tried = []

    def away(*_: object, **__: object) -> bytes:
        tried.append(service.clock.now())
        raise SignerUnavailable("the token is away")

    with monkeypatch.context() as patch:
        patch.setattr(type(service.resources.signer), "sign_dsse", away)
        first = await asked(service, await wanted(service))
        await sealing.advance_due(service.resources)
        assert first == await asked(service, await wanted(service))
        assert len(tried) == 1
    assert (first["phase"], first["statement_digest"]) == ("Pending", None)
    (failure,) = first["failures"]
    assert (failure["stage"], failure["reason"]) == ("Signed", "signer-unavailable")
    service.clock.advance(5)
    assert (await onward(service))["phase"] == "Signed"
    assert (await onward(service))["phase"] == "Sealed"


async def test_an_archive_that_is_full_is_asked_again(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The phase stays, each failure is told once, with its newest time; later and later, up to five minutes."""
    await asked(service, await wanted(service))
    tried = []

    def full(*_: object, **__: object) -> None:
        tried.append(service.clock.now())
        raise ArchiveFault(Fault.FULL, "no room")

    await service.resources.transparency.advance(force=True)
    with monkeypatch.context() as patch:
        patch.setattr(type(service.resources.archive), "put", full)
        for _ in range(250):
            await sealing.advance_due(service.resources)
            service.clock.advance(5)
    last = await asked(service, await wanted(service))
    assert last["phase"] == "Logged"
    assert [(each["stage"], each["reason"]) for each in last["failures"]] == [("Archived", "StorageFull")]
    waits = [(b - a).total_seconds() for a, b in itertools.pairwise(tried)]
    assert waits == [5, 10, 20, 40, 80, 160, 300, 300, 300]
    # What is logged proves itself already.
    assert (await proven(service, await fetched(service))).bundle_uid == BUNDLE_UID
    service.clock.advance(300)
    assert (await onward(service))["phase"] == "Sealed"


async def test_other_content_in_the_archive_ends_it(service: Service) -> None:
    """What stands there is not replaced, and waiting would not help."""
    archived(service).parent.mkdir(parents=True)
    archived(service).write_bytes(b"other")
    await asked(service, await wanted(service))
    last = await onward(service)
    assert (last["phase"], last["failures"][0]["reason"]) == ("Failed", "OtherContent")
    assert archived(service).read_bytes() == b"other"
    service.clock.advance(3_600)
    assert await sealing.advance_due(service.resources) == 0


async def test_a_crash_after_the_archive_is_no_harm(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file was kept, and nobody wrote that down: made again it is the same bytes, which is success."""
    await asked(service, await wanted(service))
    put_there = type(service.resources.archive).put

    def crashing(*given: Any) -> None:
        put_there(*given)
        raise ArchiveFault(Fault.UNREACHABLE, "no answer came")

    with monkeypatch.context() as patch:
        patch.setattr(type(service.resources.archive), "put", crashing)
        assert (await onward(service))["phase"] == "Logged"
    before = archived(service).stat()
    service.clock.advance(5)
    assert (await onward(service))["phase"] == "Sealed"
    assert archived(service).stat().st_ino == before.st_ino


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("UPDATE runs SET policy_id = 'ni:///sha-384;other'", "run-differs"),
        ("""UPDATE runs SET policy = '{"of": "a newer version"}'""", "policy-invalid"),
        ("""UPDATE run_seals SET request = '{"of": "a newer version"}'""", "request-invalid"),
    ],
)
async def test_one_that_cannot_go_on_holds_up_no_other(
    service: Service, monkeypatch: pytest.MonkeyPatch, change: str, reason: str
) -> None:
    """What this version reads otherwise, or not at all, is told as a failure of its bundle; others are sealed."""
    said = await wanted(service)
    with monkeypatch.context() as patch:
        # The key is away, so that nothing is signed yet.
        patch.setattr(type(service.resources.signer), "sign_dsse", _raise)
        await asked(service, said)
    with sqlite3.connect(service.directory / "machines.db") as database:
        database.execute(change)
    other = "0f6b3c1e-0000-4000-8000-0000000000ff"
    await opened(service, opening(service, name="check-2"), other)
    body = {"challenge_id": (await challenged(service, other))["id"]}
    away = {"code": "device-absent", "detail": "no TPM"}
    assert (await posted(service, {**body, "unavailable": away}, other)).status_code == 202
    second = await wanted(service, other, told="failed")
    second["bundle_uid"] = other
    assert (await asked(service, second, other))["phase"] == "Signed"
    service.clock.advance(5)
    await service.resources.transparency.advance(force=True)
    assert await sealing.advance_due(service.resources) == 2
    assert (await asked(service, second, other))["phase"] == "Sealed"
    stuck = await asked(service, said)
    assert (stuck["phase"], stuck["failures"][-1]["reason"]) == ("Pending", reason)


def _raise(*_: object, **__: object) -> bytes:
    raise SignerUnavailable("the token is away")


async def test_one_bundle_is_of_one_run(service: Service) -> None:
    """A controller that names the bundle of another run is refused: one file cannot be both."""
    await asked(service, await wanted(service))
    other = "0f6b3c1e-0000-4000-8000-0000000000ff"
    await opened(service, opening(service, name="check-2"), other)
    body = {"challenge_id": (await challenged(service, other))["id"]}
    away = {"code": "device-absent", "detail": "no TPM"}
    assert (await posted(service, {**body, "unavailable": away}, other)).status_code == 202
    assert (await put(service, await wanted(service, other, told="failed"), other)).status_code == 409


async def test_what_waits_for_its_seal_is_kept(service: Service) -> None:
    """A run goes after a week, with its seal; not one whose evidence is still to be archived."""
    said = await wanted(service)
    await asked(service, said)
    service.clock.advance(8 * 86_400)
    await maintenance.once(service.resources)
    assert (await ask(service, "GET", UID)).status_code == 200
    await onward(service)
    assert archived(service).exists()
    await maintenance.once(service.resources)
    assert (await ask(service, "GET", UID)).status_code == 404
    assert (await put(service, said)).status_code == 404
    assert (await service.operator("GET", f"/runs/{UID}/bundle")).status_code == 404


# ---------------------------------------------------------------- nothing else than what was judged


OTHER_RESULTS: list[dict[str, Any]] = [
    {"verdict": "failed"},
    {"derivedFromRun": {"name": "check-w-1", "uid": "0f6b3c1e-0000-4000-8000-000000000002"}},
    {"policyID": "ni:///sha-384;other"},
    {"policySource": "none"},
    {"evidence": []},
    {"evidence": None},
    {"machineID": "7a0e3c1e-6a43-4c5b-9d0a-000000000001"},
    {"nodeName": "w-2"},
    {"nodeUID": "other"},
    {"backend": "tdx"},
    {"attempt": 2},
    {"challengeID": "00" * 16},
    {"measurements": []},
    {"checks": []},
    {"attestationResult": "e30.e30.c2ln"},
    {"quote": "AAAA"},
    {"nonce": "0123456789abcdef"},
    {"verdict": "indeterminate"},
    {"trusted": "true"},
    {"verifierNotes": "and everything else was well"},
]
OTHER_EVENTS: list[dict[str, Any]] = [
    {"type": "AttestationFailed"},
    {"type": "AttestationStarted"},
    {"correlationID": "other"},
    {"clusterIdentity": {"clusterID": "other", "clusterName": "x"}},
    {"clusterIdentity": "default"},
    {"signals": {"run.uid": "other", "verdict": "verified"}},
    {"signals": {"run.uid": UID, "verdict": "failed"}},
    {"signals": {"run.uid": UID}},
    {"signals": {"run.uid": UID, "verdict": "verified", "policy.id": "other"}},
    {"signals": None},
    {"severity": "critical"},
    {"class": "Anomaly"},
    {"subject": {"kind": "Node", "name": "w-2"}},
    {"subject": {"kind": "Pod", "name": "w-1"}},
    {"subject": {"kind": "Node", "name": "w-1", "uid": "another"}},
    {"subject": None},
]
OTHER_SIGNALS = {
    "run.namespace": "other",
    "run.name": "other",
    "run.attempt": "2",
    "node.name": "w-2",
    "backend": "tdx",
    "result.name": "other",
    "result.sha256": "00" * 32,
}
ADDED_CHECKS: list[Any] = [
    {"id": "reference", "outcome": "unavailable"},
    {"id": "evidence", "outcome": "pass"},
    "evidence",
]


@pytest.mark.threat("T280")
async def test_a_result_that_was_not_judged_so_is_not_sealed(service: Service) -> None:
    """A controller that was taken over cannot have another verdict, node, policy or evidence sealed."""
    honest = await wanted(service)
    for change in OTHER_RESULTS:
        said = copy.deepcopy(honest)
        spec = said["result"]["spec"] | change
        said["result"]["spec"] = {name: value for name, value in spec.items() if value is not None}
        answer = await put(service, said)
        assert (answer.status_code, answer.json()["type"]) == (409, "urn:itl:problem:run-differs"), change
    assert not [each for each in await service.audit() if each["action"] == "run_sealed"]
    assert (await put(service, honest)).status_code == 200


@pytest.mark.threat("T280")
async def test_an_event_that_tells_another_verdict_is_not_sealed(service: Service) -> None:
    """Nor one of another run, node or cluster, nor one that is told as if it mattered less or more."""
    for event in OTHER_EVENTS:
        answer = await put(service, await wanted(service, event=event))
        assert (answer.status_code, answer.json()["type"]) == (409, "urn:itl:problem:run-differs"), event
    honest = await wanted(service)
    signals = honest["event"]["spec"]["signals"]
    for name, value in OTHER_SIGNALS.items():
        answer = await put(service, await wanted(service, event={"signals": {**signals, name: value}}))
        assert (answer.status_code, answer.json()["type"]) == (409, "urn:itl:problem:run-differs"), name
    good = OTHER_SIGNALS | {
        "run.namespace": "seed",
        "run.name": "check-w-1",
        "run.attempt": "1",
        "node.name": "w-1",
        "backend": "tpm",
        "result.name": "check-w-1-result",
        "result.sha256": hashlib.sha256(jcs(honest["result"]["spec"])).hexdigest(),
    }
    assert (await put(service, await wanted(service, event={"signals": signals | good}))).status_code == 200


@pytest.mark.threat("T280")
async def test_a_controller_adds_no_check_of_its_own(service: Service) -> None:
    """But why there is no evidence: a `pass` would be read as one of the service's."""
    for check in ADDED_CHECKS:
        said = await wanted(service)
        said["result"]["spec"]["checks"].append(check)
        answer = await put(service, said)
        assert (answer.status_code, answer.json()["type"]) == (409, "urn:itl:problem:run-differs"), check


@pytest.mark.threat("T280")
async def test_who_writes_the_row_has_nothing_else_signed(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request that was changed in the database is compared again before the key signs."""
    said = await wanted(service)
    with monkeypatch.context() as patch:
        patch.setattr(type(service.resources.signer), "sign_dsse", _raise)
        assert (await asked(service, said))["phase"] == "Pending"
    other = copy.deepcopy(said)
    other["event"]["spec"]["subject"]["name"] = "w-2"
    with contextlib.closing(sqlite3.connect(service.directory / "machines.db")) as db, db:
        db.execute("UPDATE run_seals SET request = ?", (json.dumps(other),))
    service.clock.advance(5)
    assert await sealing.advance_due(service.resources) == 1
    last = await asked(service, said)
    assert (last["phase"], last["failures"][-1]["reason"]) == ("Pending", "run-differs")


@pytest.mark.threat("T280")
async def test_who_writes_the_row_has_no_broken_file_kept(service: Service) -> None:
    """What is archived stands there for good: it is read before, and waits while it is not what was signed."""
    said = await wanted(service)
    assert (await asked(service, said))["phase"] == "Signed"
    with contextlib.closing(sqlite3.connect(service.directory / "machines.db")) as db, db:
        db.execute("UPDATE run_seals SET request = replace(request, 'se-00', 'se-01')")
    last = await onward(service)
    assert (last["phase"], last["failures"][-1]["reason"]) == ("Logged", "run-differs")
    assert not archived(service).exists()


ELSEWHERE: dict[str, tuple[str, str]] = {
    "another node": ("node_name = 'w-9'", "node_name = 'w-1'"),
    "an earlier node": ("node_uid = 'another'", f"node_uid = '{NODE_UID}'"),
    "another run": ("name = 'other'", "name = 'check-w-1'"),
    "another namespace": ("namespace = 'other'", "namespace = 'seed'"),
    "another source": ("policy_source = 'inline'", "policy_source = 'ref'"),
    "another nonce": ("nonce = 'of somebody else'", "nonce = NULL"),
    "a later end": ("deadline = deadline + 1000000", "deadline = deadline - 1000000"),
}


@pytest.mark.threat("T280")
@pytest.mark.parametrize("which", ELSEWHERE)
async def test_a_verdict_of_another_run_is_not_sealed(start: Starter, which: str) -> None:
    """Who writes another node, say, into the row while evidence is judged, and takes it back, has nothing sealed.

    Nor does the controller get that verdict: the result names the run that it was made for.
    """
    service = await serving(start)
    node = await admitted(service, "w-9" if which == "another node" else "w-1")
    agent = {"another node": {"name": "w-9"}, "an earlier node": {"uid": "another"}}.get(which, {})
    during, before = ELSEWHERE[which]

    def write(change: str) -> None:
        with contextlib.closing(sqlite3.connect(service.directory / "machines.db")) as db, db:
            db.execute(f"UPDATE runs SET {change}")

    await opened(service, opening(service, pinning(node)))
    write(during)
    answer = await posted(service, quoted(node, await challenged(service, **agent)), **agent)
    assert answer.status_code == 202
    run = await detail(service)
    assert run["attempts"][-1]["result"]["verdict"] == "verified"
    write(before)
    refused = await ask(service, "GET", UID)
    assert (refused.status_code, refused.json()["type"]) == (409, "urn:itl:problem:run-differs")
    asked_for = opening(service)
    run |= {name: asked_for[name] for name in ("namespace", "name", "node_name", "node_uid")}
    run |= {"policy_source": "ref"}
    refused = await put(service, sealing_of(run, result_spec(run, run["attempts"][-1])))
    assert (refused.status_code, refused.json()["type"]) == (409, "urn:itl:problem:run-differs")
    assert not [each for each in await service.audit() if each["action"] == "run_sealed"]


async def test_an_event_that_names_another_result_is_not_sealed(service: Service) -> None:
    """Its signal `result.sha256` is the digest of the Result that is sealed beside it."""
    answer = await put(service, await wanted(service, result_sha256="ab" * 32))
    assert (answer.status_code, answer.json()["type"]) == (409, "urn:itl:problem:run-differs")
    spec = (await wanted(service))["result"]["spec"]
    honest = await wanted(service, result_sha256=hashlib.sha256(jcs(spec)).hexdigest())
    assert (await put(service, honest)).status_code == 200


async def test_a_result_in_another_namespace_is_not_sealed(service: Service) -> None:
    """Its name in the statement has the namespace in it."""
    said = await wanted(service)
    said["result"]["namespace"] = "other"
    assert (await put(service, said)).status_code == 409


@pytest.mark.parametrize("change", [{"signals": {"x": 1.5}}, {"detectedAt": 7}, {"severity": None}], ids=str)
async def test_what_cannot_be_told_is_refused(service: Service, change: dict[str, Any]) -> None:
    """A number without canonical form, a member of another type, one that is missing."""
    said = await wanted(service)
    spec = said["event"]["spec"]
    spec |= {**change, "signals": {**spec["signals"], **change.get("signals", {})}}
    answer = await put(service, said)
    assert (answer.status_code, answer.json()["type"]) == (422, "urn:itl:problem:request-invalid")
    assert (await asked(service, await wanted(service)))["phase"] == "Signed"


async def test_what_is_undecided_may_be_told_as_the_seed_tells_it(start: Starter) -> None:
    """`AttestationVerified` of a run that only reports, because its signals say what was found; and device errors."""
    service = await serving(start)
    node = await admitted(service)
    await judged(service, node, opening(service))
    answer = await put(service, await wanted(service, told="verified", verdict="verified"))
    assert answer.status_code == 409
    assert (await put(service, await wanted(service, told="failed"))).status_code == 409
    assert (await asked(service, await wanted(service, told="verified")))["phase"] == "Signed"


async def test_a_device_that_is_missing_is_sealed(start: Starter) -> None:
    """Indeterminate, no evidence, told as failed: what was found was nothing, and that is proven."""
    service = await serving(start)
    await opened(service, opening(service))
    challenge = await challenged(service)
    body = {"challenge_id": challenge["id"], "unavailable": {"code": "device-absent", "detail": "no TPM"}}
    assert (await posted(service, body)).status_code == 202
    assert (await put(service, await wanted(service))).status_code == 409
    assert (await asked(service, await wanted(service, told="failed")))["phase"] == "Signed"
    assert (await onward_as(service, told="failed"))["phase"] == "Sealed"
    assert (await proven(service, await fetched(service))).evidence == ()


async def onward_as(service: Service, **more: Any) -> dict[str, Any]:
    """As `onward`, of a run that is told otherwise."""
    await service.resources.transparency.advance(force=True)
    await sealing.advance_due(service.resources)
    return await asked(service, await wanted(service, **more))


@pytest.mark.threat("T280")
async def test_nothing_is_sealed_of_a_run_that_may_still_be_answered(start: Starter) -> None:
    """Its deadline is of a clock that is behind ours: over here, and not there."""
    service = await serving(start)
    await admitted(service)
    theirs = service.clock.at - timedelta(seconds=60)
    deadline = theirs + timedelta(seconds=30)
    said = opening(service, deadline=deadline.isoformat(), asked_at=theirs.isoformat())
    await opened(service, said)
    run = await detail(service)
    absent = sealing_of(
        run, nothing_spec(run, run["attempts"][0], "AgentAbsent"), told="failed", reason="AgentAbsent"
    )
    assert (await put(service, absent)).status_code == 409
    service.clock.advance(30)
    assert (await put(service, absent)).status_code == 200


@pytest.mark.threat("T280")
async def test_a_run_that_ended_by_its_deadline_claims_nothing(start: Starter) -> None:
    """Sealed as indeterminate and told as failed; absent was the agent only where it never answered."""
    service = await serving(start)
    node = await admitted(service)
    await opened(service, opening(service, pinning(node)))
    run = await detail(service)
    absent = sealing_of(
        run, nothing_spec(run, run["attempts"][0], "AgentAbsent"), told="failed", reason="AgentAbsent"
    )
    unsaid = sealing_of(run, nothing_spec(run, run["attempts"][0], "AgentAbsent"), told="failed")
    assert (await put(service, unsaid)).status_code == 409
    answer = await posted(service, quoted(node, await challenged(service)))
    assert answer.status_code == 202
    early = sealing_of(
        run,
        nothing_spec(run, run["attempts"][0], "DeadlineExceeded"),
        told="failed",
        reason="DeadlineExceeded",
    )
    # A run has one seal: one of nothing before its time would be all that is ever sealed of it.
    assert (await put(service, early)).status_code == 409
    service.clock.advance(120)
    assert (await put(service, absent)).status_code == 409
    notes = copy.deepcopy(early)
    notes["result"]["spec"]["verifierNotes"] = "all was well"
    assert (await put(service, notes)).status_code == 409
    passed = copy.deepcopy(early)
    passed["result"]["spec"]["checks"][0]["outcome"] = "pass"
    assert (await put(service, passed)).status_code == 409
    late = sealing_of(
        run,
        nothing_spec(run, run["attempts"][0], "DeadlineExceeded"),
        told="failed",
        reason="DeadlineExceeded",
    )
    claims_more: tuple[dict[str, Any], ...] = (
        {"verdict": "verified"},
        {"machineID": node.machine_id},
        {"measurements": [{}]},
    )
    for more in claims_more:
        bold = sealing_of(run, late["result"]["spec"] | more, told="failed", reason="DeadlineExceeded")
        assert (await put(service, bold)).status_code == 409, more
    for kind in ("verified", "indeterminate"):
        good = sealing_of(run, late["result"]["spec"], told=kind, reason="DeadlineExceeded")
        assert (await put(service, good)).status_code == 409
    assert (await asked(service, late))["phase"] == "Signed"
    await service.resources.transparency.advance(force=True)
    await sealing.advance_due(service.resources)
    claims = await proven(service, await fetched(service))
    assert (claims.predicate["result"]["verdict"], claims.evidence) == ("indeterminate", ())


# ---------------------------------------------------------------- who may


async def test_only_the_controller_of_the_cluster_seals(service: Service) -> None:
    """An agent may not, nor may it read what it could not write; a run that was never opened is unknown."""
    said = await wanted(service)
    assert (await put(service, said, as_=of_agent(service))).status_code == 403
    other = "0f6b3c1e-0000-4000-8000-0000000000ff"
    assert (await put(service, said, other)).status_code == 404
    assert (await service.http.get(f"/api/v1/runs/{UID}/bundle", headers=of_agent(service))).status_code in (
        401,
        403,
    )


async def test_a_bundle_is_given_when_it_is_logged(service: Service) -> None:
    """Before that there is nothing that proves itself; what the archive lost or changed is not given."""
    assert (await service.operator("GET", f"/runs/{UID}/bundle")).status_code == 404
    await asked(service, await wanted(service))
    assert (await service.operator("GET", f"/runs/{UID}/bundle")).status_code == 503
    await onward(service)
    answer = await service.operator("GET", f"/runs/{UID}/bundle", params={"cluster_id": "default"})
    assert answer.headers["content-type"] == "application/vnd.dev.sigstore.bundle+dsse"
    assert f'filename="{BUNDLE_UID}.intoto.jsonl"' in answer.headers["content-disposition"]
    other = await service.operator("GET", f"/runs/{UID}/bundle", params={"cluster_id": "other"})
    assert other.status_code == 404
    archived(service).chmod(0o600)
    archived(service).write_bytes(b"other")
    assert (await service.operator("GET", f"/runs/{UID}/bundle")).status_code == 503
    archived(service).unlink()
    assert (await service.operator("GET", f"/runs/{UID}/bundle")).status_code == 503
