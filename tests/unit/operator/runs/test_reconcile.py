"""What a run comes to: each row of the tables of CONFIDENTIAL §2.5 and §3; ends of processes between two actions."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from attestation.api.runs import RunCheck, RunMeasurement, RunResult, RunTcb
from attestation.clock import parse_rfc3339, rfc3339
from attestation.runs import EventType
from attestation_operator import crds
from attestation_operator.errors import ObjectChanged
from attestation_operator.objects import BUNDLE, NODE, POLICY, RESULT, SECURITY_EVENT, Key
from attestation_operator.runs.node_action import NodeAction
from attestation_operator.runs.objects import Phase, read_run
from tests.unit.operator.runs.world import (
    AT,
    AWAY,
    ENFORCED,
    NAME,
    NODE_NAME,
    OPTIONS,
    REPORTED,
    SPACE,
    Killed,
    World,
    result,
    unavailable,
)

STARTED, VERIFIED = "AttestationStarted", "AttestationVerified"
FAILED, UNDECIDED = "AttestationFailed", "AttestationIndeterminate"

ENDS: dict[str, tuple[RunResult, str, str | None, str, str, str]] = {
    "verified": (result("verified"), "Succeeded", None, VERIFIED, "Compliance", "info"),
    "undecided": (result("indeterminate"), "Succeeded", None, UNDECIDED, "Compliance", "medium"),
    "failed": (result("failed"), "Failed", "VerdictFailed", FAILED, "Detection", "critical"),
    "rejected": (
        result("failed", rejected="malformed-evidence"),
        "Failed",
        "EvidenceRejected",
        FAILED,
        "Detection",
        "critical",
    ),
    "no device": (unavailable(), "Failed", "DeviceUnavailable", FAILED, "Detection", "critical"),
}
"""What was judged -> phase, reason, and the event's type, class and severity."""


def ended(found: RunResult | None = None, **how: Any) -> World:
    """Return a world whose run was judged so, or whose agent never came."""
    world = World(**how)
    world.through(found)
    if found is None:
        world.pass_(121)
        world.settle()
    return world


@pytest.mark.parametrize("end", ENDS)
def test_phase_event_and_result_follow_what_was_judged(end: str) -> None:
    """Each row of §3 from Running, and of §2.5."""
    found, phase, reason, type_, class_, severity = ENDS[end]
    world = ended(found)
    assert world.status["phase"] == phase
    assert world.status["verdict"] == found.verdict
    assert world.said.get("Failed") == (None if reason is None else ("True", reason))
    assert world.types == sorted([STARTED, type_])
    event = world.event(type_)
    assert (event["spec"]["class"], event["spec"]["severity"]) == (class_, severity)
    assert world.result["spec"]["verdict"] == found.verdict
    assert ("quote" in world.result["spec"]) == (end != "no device")
    assert world.said["EventsEmitted"][0] == world.said["Sealed"][0] == "True"
    assert event["status"]["phase"] == "Archived"


def test_a_run_is_accepted_opened_and_told_before_it_runs() -> None:
    """§3, the first two rows: startTime and deadline first; the event Started before the phase says Running."""
    world = World()
    world.look()
    assert world.status["phase"] == "Pending"
    assert world.status["startTime"] == rfc3339(AT)
    assert world.status["deadline"] == rfc3339(AT + timedelta(minutes=2))
    assert world.status["attempt"] == 1
    assert world.service.asked == []
    world.look()
    assert world.status["phase"] == "Running"
    assert world.types == [STARTED]
    assert world.service.opened is not None
    assert world.service.opened.policy_source == "ref"
    assert world.service.opened.policy_name == "prod"
    assert [kind for _, kind, _ in world.cluster.history] == [
        "ConfidentialAttestationRun",
        "SecurityEvent",
        "SecurityEvent",
        "ConfidentialAttestationRun",
    ]


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ({"policyRef": {"name": "absent"}}, "PolicyNotFound"),
        ({"policy": {"tpm": {"pcrs": {"24": "ab" * 32}}}, "source": "inline"}, "PolicyInvalid"),
        ({"policy": {}, "source": "inline"}, "PolicyInvalid"),
        ({"policyRef": {"name": "prod"}, "extra": True}, "PolicyInvalid"),
        # It enforces, and has no reference value of this backend.
        ({"backend": "tdx"}, "PolicyInvalid"),
        ({"targetNodeName": "absent"}, "NodeNotFound"),
        ({"targetNodeName": ""}, "NodeNotFound"),
        ({"timeout": "4s"}, "PolicyInvalid"),
        ({"timeout": "5m1s"}, "PolicyInvalid"),
        ({"timeout": "soon"}, "PolicyInvalid"),
        ({"nonce": "short"}, "PolicyInvalid"),
        ({"nonce": "n" * 129}, "PolicyInvalid"),
    ],
)
def test_what_cannot_be_asked_fails_at_once_and_is_no_detection(how: dict[str, Any], reason: str) -> None:
    """§3, first row, the other half; the rules hold also where the API server knows no CEL."""
    if how.pop("extra", False):
        world = World()
        world.run["spec"]["policy"] = dict(ENFORCED)
    else:
        world = World(**how)
    world.settle()
    assert world.status["phase"] == "Failed"
    assert world.said == {"Accepted": ("False", reason), "Failed": ("True", reason)}
    # In our words, not in those of a library.
    (why,) = {each["message"] for each in world.status["conditions"]}
    assert not re.search(r"Value error|should|\^", why)
    assert world.service.asked == []
    assert world.cluster.of(SECURITY_EVENT) == world.cluster.of(RESULT) == []


@pytest.mark.parametrize("phase", ["", "Pending", "Running"])
def test_a_spec_that_is_edited_ends_the_run(phase: str) -> None:
    """An API server before 1.25 lets that happen: what was judged would be an answer to another question."""
    world = World(source="inline")
    for _ in ("", "Pending", "Running")[: ("", "Pending", "Running").index(phase)]:
        world.look()
    assert world.status.get("phase", "") == phase
    world.choose(NodeAction.TAINT)
    world.run["spec"]["policyRef"] = {"name": "prod"}
    del world.run["spec"]["policy"]
    world.run["metadata"]["generation"] = 2
    if world.service.attempts:
        world.service.judge(result("verified", source="inline"))
    world.settle()
    assert world.said["Failed"] == ("True", "PolicyInvalid")
    assert "taints" not in world.node.get("spec", {})
    if phase == "Running":
        assert world.result["spec"]["verdict"] == "indeterminate"


def test_the_seeds_example_works_as_written() -> None:
    """Inline policy, `timeout: 30s`, no nonce."""
    world = ended(result(source="inline"), source="inline", timeout="30s")
    assert world.status["phase"] == "Succeeded"
    assert world.status["deadline"] == rfc3339(AT + timedelta(seconds=30))
    assert world.event(STARTED)["spec"]["signals"]["nonce.shaPresent"] == "false"


def test_without_the_service_a_run_waits_and_ends_with_its_time() -> None:
    """Pending stays Pending; the deadline ends it, and nothing was ever asked of anybody."""
    world = World()
    world.service.away = AWAY
    world.settle()
    assert world.status["phase"] == "Pending"
    world.pass_(119)
    after = world.look().after
    assert after is not None
    assert after <= 1
    assert world.status["phase"] == "Pending"
    world.pass_(1)
    world.settle()
    assert world.status["phase"] == "Failed"
    assert world.said["Failed"] == ("True", "DeadlineExceeded")
    assert world.cluster.of(RESULT) == []
    world.service.away = None
    world.settle()
    assert world.said["Sealed"] == ("False", "NothingToSeal")
    asked = len(world.service.asked)
    assert world.look().after is None
    assert len(world.service.asked) == asked


def test_a_lost_service_is_told_once_and_so_is_its_return() -> None:
    """AttestorUnavailable when it stays away, AttestorRecovered when it is back; a restart of it is neither."""
    world = World()
    world.settle()
    world.service.away = AWAY
    world.settle()
    world.pass_(4)
    world.settle()
    world.service.away = None
    world.settle()
    assert world.types == [STARTED]
    world.service.away = AWAY
    world.settle()
    world.pass_(5)
    world.settle()
    world.pass_(5)
    world.settle()
    assert world.said["Judged"] == ("Unknown", "ServiceUnavailable")
    lost = world.event("AttestorUnavailable")
    assert (lost["spec"]["class"], lost["spec"]["severity"]) == ("Anomaly", "high")
    world.service.away = None
    world.service.judge(result())
    world.settle()
    back = world.event("AttestorRecovered")
    assert (back["spec"]["class"], back["spec"]["severity"]) == ("Anomaly", "info")
    assert world.status["phase"] == "Succeeded"
    assert len(world.types) == 4


def test_a_run_that_ended_while_the_service_was_away_gets_its_result_later() -> None:
    """The phase stays as it ended, whatever the service says afterwards; so does the verdict."""
    world = World()
    world.settle()
    world.service.away = AWAY
    world.service.judge(result("verified"))
    world.pass_(120)
    world.settle()
    assert world.status["phase"] == "Failed"
    assert world.cluster.of(RESULT) == []
    world.service.away = None
    world.settle()
    assert world.said["Failed"] == ("True", "DeadlineExceeded")
    assert world.result["spec"]["verdict"] == world.status["verdict"] == "indeterminate"
    assert world.result["status"] == {"trusted": False}
    assert world.said["Sealed"] == ("True", "Sealed")


def test_a_challenge_that_expired_unused_is_followed_by_another() -> None:
    """Attempt + 1 while there is time; Started is told once for the run."""
    world = World()
    world.settle()
    world.pass_(61)
    world.service.expire()
    world.settle()
    assert world.status["attempt"] == 2
    assert world.types == [STARTED]
    world.service.judge(result())
    world.settle()
    assert world.result["spec"]["attempt"] == 2
    assert world.event(VERIFIED)["spec"]["signals"]["run.attempt"] == "2"


def test_without_an_agent_a_run_ends_at_its_deadline() -> None:
    """C11: AgentAbsent, with a Result that says so."""
    world = World()
    world.settle()
    world.pass_(120.5)
    looked = world.look()
    assert world.status["phase"] == "Running"
    assert looked.after is not None
    assert looked.after <= 0.5
    world.pass_(0.5)
    world.settle()
    assert world.said["Failed"] == ("True", "AgentAbsent")
    assert world.types == [FAILED, STARTED]
    assert world.result["spec"]["verdict"] == "indeterminate"
    assert world.status["completionTime"] == rfc3339(AT + timedelta(seconds=121))


def test_what_was_judged_in_time_counts_also_where_nobody_looked() -> None:
    """A leader that comes back after the deadline finds the verdict."""
    world = World()
    world.settle()
    world.service.judge(result())
    world.pass_(3600)
    world.settle()
    assert world.status["phase"] == "Succeeded"


def test_what_was_opened_and_never_noted_is_told_before_it_ends() -> None:
    """Killed between the answer and its note, and nobody led until the deadline had passed."""
    world = World()
    world.look()
    with pytest.raises(Killed):
        world.look(kill_before=0)
    world.service.judge(result())
    world.pass_(3600)
    world.settle()
    assert world.status["phase"] == "Succeeded"
    assert world.types == [STARTED, VERIFIED]


def test_the_challenge_stands_nowhere_while_it_is_open() -> None:
    """docs/adr/0172: any node's agent may read all runs; so its challenge is shown when the attempt has ended."""
    world = World()
    world.settle()
    assert world.status["phase"] == "Running"
    assert "challenge" not in world.status
    world.service.judge(result())
    world.settle()
    assert set(world.status["challenge"]) == {"id", "random", "nonce", "expiresAt"}


def test_a_run_that_another_opened_with_an_older_policy_is_taken_as_it_was_opened() -> None:
    """A process ended between the answer and its note, and somebody edited the policy in between."""
    world = World()
    world.look()
    with pytest.raises(Killed):
        world.look(kill_before=0)
    policy = world.cluster.objects[Key(kind=POLICY, name="prod", namespace=SPACE)]
    policy["spec"] = {"tpm": {"pcrs": {"7": "cd" * 32}}}
    world.settle()
    assert world.status["phase"] == "Running"


@pytest.mark.parametrize("code", ["policy", "node"])
def test_a_pending_run_whose_policy_or_node_went_fails(code: str) -> None:
    """It was accepted, so its end is told."""
    world = World()
    world.look()
    key = (
        Key(kind=POLICY, name="prod", namespace=SPACE) if code == "policy" else Key(kind=NODE, name=NODE_NAME)
    )
    del world.cluster.objects[key]
    world.settle()
    assert world.said["Failed"] == ("True", "PolicyNotFound" if code == "policy" else "NodeNotFound")
    assert world.types == [FAILED]
    assert world.said["Sealed"] == ("False", "NothingToSeal")


def test_a_policy_that_the_service_refuses_fails_the_run() -> None:
    """Its word counts, whatever was found here."""
    world = World()
    world.service.refuses_policy = True
    world.settle()
    assert world.said["Failed"] == ("True", "PolicyInvalid")


# ---------------------------------------------------------------- what a verdict is worth


@pytest.mark.parametrize(
    ("source", "verdict", "trusted"),
    [("ref", "verified", True), ("ref", "failed", False), ("inline", "verified", False)],
)
def test_trusted_is_verified_under_a_policy_of_the_namespace(
    source: str, verdict: str, trusted: bool
) -> None:
    """C8, C14: written through /status, after create has dropped it."""
    world = ended(result(verdict, source=source), source=source)
    assert world.result["status"]["trusted"] is trusted
    assert ("trustedUntil" in world.result["status"]) is trusted


def test_without_a_policy_or_in_report_nothing_is_demanded() -> None:
    """§2.5: undecided is info then, medium where a policy is enforced."""
    for policy in (None, REPORTED):
        found = result("indeterminate", source="none" if policy is None else "ref", mode="report")
        world = ended(found, policy=policy)
        event = world.event(UNDECIDED)
        assert event["spec"]["severity"] == "info"
        assert event["metadata"]["labels"] == {"ugallu.io/type-experimental": "true"}


def test_the_seeds_mapping_publishes_what_the_seed_published() -> None:
    """Undecided as AttestationVerified/info; trust is unaffected."""
    world = World()
    world.choose(seed_mapping=True)
    world.through(result("indeterminate"))
    event = world.event(VERIFIED)
    assert event["spec"]["severity"] == "info"
    assert "labels" not in event["metadata"]
    assert event["spec"]["signals"]["verdict"] == "indeterminate"
    assert world.result["status"]["trusted"] is False


def test_an_event_says_which_node_run_and_result() -> None:
    """§2.5: subject, correlation, signals."""
    world = ended(result())
    spec = world.event(VERIFIED)["spec"]
    assert spec["subject"]["kind"] == "Node"
    assert spec["subject"]["uid"] == world.node["metadata"]["uid"]
    assert spec["subject"]["node"] == {"roles": ["worker"]}
    assert spec["correlationID"] == world.run["metadata"]["uid"]
    assert set(spec["signals"]) == {
        "run.namespace", "run.name", "run.uid", "run.attempt", "node.name", "backend", "nonce.shaPresent",
        "verdict", "policy.id", "result.name", "result.sha256",
    }  # fmt: skip
    assert spec["signals"]["result.name"] == f"{NAME}-result"
    assert all(isinstance(value, str) for value in spec["signals"].values())


def test_another_fact_under_our_name_is_no_success() -> None:
    """An event that is there counts as told only if its signals are the same."""
    world = World()
    world.settle()
    forged = world.options.recorder.name(read_run(world.run), 1, EventType(VERIFIED))
    world.cluster.put(
        SECURITY_EVENT,
        {"metadata": {"name": forged}, "spec": {"type": VERIFIED, "signals": {"verdict": "verified"}}},
    )
    world.service.judge(result())
    world.settle()
    assert world.said["EventsEmitted"] == ("False", "EventDiffers")
    assert world.warnings
    assert "Sealed" not in world.said


@pytest.mark.parametrize(
    "change",
    [
        {"severity": "info"},
        {"class": "Compliance"},
        {"type": VERIFIED},
        {"correlationID": "other"},
        {"subject": {"kind": "Node", "name": "another"}},
        {"clusterIdentity": {"clusterID": "another"}},
    ],
    ids=str,
)
def test_a_fact_that_is_told_otherwise_is_another(change: dict[str, Any]) -> None:
    """The name of an event is known before: who may write events could tell a failure as a note, or of another."""
    told = ended(result("failed")).event(FAILED)["spec"]
    world = World()
    world.settle()
    forged = world.options.recorder.name(read_run(world.run), 1, EventType(FAILED))
    world.cluster.put(SECURITY_EVENT, {"metadata": {"name": forged}, "spec": told | change})
    world.service.judge(result("failed"))
    world.settle()
    assert world.said["EventsEmitted"] == ("False", "EventDiffers")


@pytest.mark.parametrize(
    "other",
    [
        {"node_name": "another"},
        {"namespace": "other"},
        {"name": "other"},
        {"backend": "tdx"},
        {"deadline": AT},
    ],
    ids=str,
)
def test_a_verdict_about_another_run_is_none(other: dict[str, Any]) -> None:
    """Whoever writes to the service's database may give a run another node: its answer is not this one's."""
    world = World()
    world.settle()
    assert world.service.opened is not None
    world.service.judge(result())
    world.service.opened = world.service.opened.model_copy(update=other)
    world.settle()
    assert world.status["phase"] == "Running"
    assert "another run" in world.warnings[-1]
    world.pass_(121)
    world.settle()
    assert world.said["Failed"] == ("True", "DeadlineExceeded")
    assert not world.cluster.of(RESULT)


# ---------------------------------------------------------------- ends between two actions


def test_a_process_may_end_before_any_action() -> None:
    """C12: actions cut at every index, and looked at again: one Result, one event of each type, one bundle."""
    for end, (found, phase, _, type_, _, _) in ENDS.items():
        whole = World()
        looks = _looks(whole, found)
        for look, count in enumerate(looks):
            for cut in range(count):
                world = World()
                _looks(world, found, kill=(look, cut))
                world.settle()
                if world.service.attempts[-1].state == "open":
                    world.service.judge(found)
                    world.settle()
                assert world.status["phase"] == phase, (end, look, cut)
                assert world.types == sorted([STARTED, type_]), (end, look, cut)
                assert len(world.cluster.of(RESULT)) == 1
                assert len(world.cluster.of(BUNDLE)) == 1
                assert world.result["status"]["trusted"] is (end == "verified")
                assert world.said["Sealed"] == ("True", "Sealed")
                assert world.cluster.of(BUNDLE)[0]["status"]["phase"] == "Sealed"
                assert {each["status"]["phase"] for each in world.cluster.of(SECURITY_EVENT)} == {
                    "Active",
                    "Archived",
                }


def _looks(world: World, found: RunResult, kill: tuple[int, int] | None = None) -> list[int]:
    """Take a run to its end; return how many actions each look did; end one look early where *kill* says."""
    counts: list[int] = []
    for number in range(30):
        before = world.actions
        if kill is not None and kill[0] == number:
            with pytest.raises(Killed):
                world.look(kill_before=kill[1])
            return counts
        world.look()
        counts.append(world.actions - before)
        if world.status.get("phase") == Phase.RUNNING and world.service.attempts[-1].state == "open":
            world.service.judge(found)
        elif counts[-1] == 0:
            return counts
    raise AssertionError("it does not end")


def test_two_that_lead_at_once_make_one_of_each() -> None:
    """C12: each look of one is overtaken by a look of the other, which saw the same."""
    for found, phase, _, type_, _, _ in ENDS.values():
        world = World()
        for _ in range(30):
            seen = dict(world.cluster.objects)
            try:
                world.look()
                world.look()
            except ObjectChanged:
                pass
            if world.status.get("phase") == Phase.RUNNING and world.service.attempts[-1].state == "open":
                world.service.judge(found)
            if seen == world.cluster.objects:
                break
        world.settle()
        assert world.status["phase"] == phase
        assert world.types == sorted([STARTED, type_])


def test_a_result_of_another_run_of_the_name_goes_first() -> None:
    """§3: other uid → deleted with its UID, then created."""
    world = World()
    world.settle()
    old = world.cluster.put(
        RESULT,
        {
            "metadata": {"name": f"{NAME}-result", "namespace": SPACE},
            "spec": {"derivedFromRun": {"name": NAME, "uid": "another"}, "attempt": 1, "verdict": "verified"},
        },
    )
    world.service.judge(result("failed"))
    world.settle()
    assert world.result["metadata"]["uid"] != old["metadata"]["uid"]
    assert world.result["spec"]["derivedFromRun"]["uid"] == world.run["metadata"]["uid"]
    assert world.result["spec"]["verdict"] == "failed"


def test_a_result_that_the_service_does_not_bear_out_is_replaced() -> None:
    """Of this run, and made up: the service says what was found."""
    world = World()
    world.settle()
    world.cluster.put(
        RESULT,
        {
            "metadata": {"name": f"{NAME}-result", "namespace": SPACE},
            "spec": {
                "derivedFromRun": {"name": NAME, "uid": world.run["metadata"]["uid"]},
                "attempt": 1,
                "verdict": "verified",
            },
        },
    )
    world.service.judge(result("failed"))
    world.settle()
    assert world.result["spec"]["verdict"] == "failed"


def test_a_seal_is_asked_for_until_it_is_whole() -> None:
    """§2.5, §2.6: the bundle says how far it is; the event is Attested when that is proven, Archived when kept."""
    world = World()
    world.service.seals_after = 3
    world.settle()
    world.service.judge(result())
    for _ in range(4):
        world.look()
    [bundle] = world.cluster.of(BUNDLE)
    assert bundle["status"]["phase"] == "Signed"
    assert world.event(VERIFIED)["status"]["phase"] == "Active"
    assert "Sealed" not in world.said
    while world.service.sealed < world.service.seals_after:
        world.pass_(60)
        world.look()
    [bundle] = world.cluster.of(BUNDLE)
    assert bundle["status"]["phase"] == "Logged"
    event = world.event(VERIFIED)
    assert (event["status"]["phase"], "archivedAt" in event["status"]) == ("Attested", False)
    assert event["status"]["attestationDigest"] == bundle["status"]["statementDigest"]
    assert "Sealed" not in world.said
    world.settle()
    world.settle()
    [bundle] = world.cluster.of(BUNDLE)
    assert bundle["status"]["phase"] == "Sealed"
    assert {each["type"]: each["status"] for each in bundle["status"]["conditions"]} == {
        "Signed": "True",
        "Logged": "True",
        "Archived": "True",
    }
    event = world.event(VERIFIED)
    assert (event["status"]["phase"], event["status"]["archivedAt"]) == (
        "Archived",
        bundle["status"]["sealedAt"],
    )
    assert event["status"]["attestationDigest"] == bundle["status"]["statementDigest"]
    assert event["status"]["attestationBundleRef"]["name"] == bundle["metadata"]["name"]
    assert bundle["metadata"]["name"] == event["metadata"]["name"].replace("se-", "ab-")


def test_a_seal_that_is_refused_is_said_and_asked_for_again() -> None:
    """What the service finds other than it was judged nobody seals; the run says so."""
    world = World()
    world.service.refuses_seals = True
    world.through(result())
    assert world.said["Sealed"] == ("False", "SealRefused")
    written = world.actions
    world.pass_(3600)
    assert world.look().after == 600
    assert world.actions == written
    world.service.refuses_seals = False
    world.settle()
    assert world.said["Sealed"] == ("True", "Sealed")


def _not_archived(world: World) -> None:
    world.service.seals_after = 10**6
    world.through(result())


def _refused(world: World) -> None:
    world.service.refuses_seals = True
    world.through(result())


def _away(world: World) -> None:
    world.service.refuses_seals = True
    world.through(result())
    world.service.away = AWAY


def _never_back(world: World) -> None:
    world.settle()
    world.service.away = AWAY
    world.pass_(125)
    world.settle()


def _planted(world: World) -> None:
    world.through(result())
    [bundle] = world.cluster.of(BUNDLE)
    world.run["status"]["conditions"] = [
        each for each in world.run["status"]["conditions"] if each["type"] not in ("EventsEmitted", "Sealed")
    ]
    world.event(VERIFIED)["spec"]["signals"] = {"verdict": "failed"}
    del world.cluster.objects[Key.of(BUNDLE, bundle)]
    world.settle()


@pytest.mark.parametrize("hindered", [_not_archived, _refused, _away, _never_back, _planted])
def test_what_comes_of_a_run_is_waited_for_so_long(hindered: Callable[[World], None]) -> None:
    """72 h after its end nobody asks any more: the run is complete, says what was missing, and costs nothing."""
    world = World()
    hindered(world)
    over = (
        parse_rfc3339(world.status["completionTime"]) + world.options.seal_timeout - world.at
    ).total_seconds()
    world.pass_(over - 1)
    world.settle()
    assert world.look().after == 600
    assert world.said.get("Sealed") != ("False", "SealAbandoned")
    world.pass_(1)
    world.settle()
    assert world.said["Sealed"] == ("False", "SealAbandoned")
    assert ("Warning", "SealAbandoned") in world.cluster.told
    asked = len(world.service.asked)
    assert world.look().after is None
    assert len(world.service.asked) == asked


def test_what_can_be_sealed_after_that_time_is_sealed() -> None:
    """A controller that was away for a week asks once more before it gives anything up."""
    world = World()
    world.service.seals_after = 2
    world.settle()
    world.service.judge(result())
    for _ in range(4):
        world.look()
    assert "Sealed" not in world.said
    world.service.seals_after = 0
    world.pass_(7 * 86_400)
    world.settle()
    assert world.said["Sealed"] == ("True", "Sealed")


def test_a_bundle_that_failed_is_said_at_once() -> None:
    """Other content is under its name in the archive: a person looks; what they mend is sealed all the same."""
    world = World()
    world.service.seal_fails = True
    world.through(result())
    assert world.said["Sealed"] == ("False", "SealFailed")
    assert world.cluster.told[-1] == ("Warning", "SealFailed")
    written = world.actions
    world.pass_(3600)
    assert world.look().after == 600
    assert world.actions == written
    world.service.seal_fails = False
    world.settle()
    assert world.said["Sealed"] == ("True", "Sealed")


@pytest.mark.parametrize(
    ("found", "told"),
    [
        (result(), ("Normal", "Verified")),
        (result("indeterminate"), ("Normal", "Indeterminate")),
        (result("failed"), ("Warning", "VerdictFailed")),
        (unavailable(), ("Warning", "DeviceUnavailable")),
    ],
)
def test_the_end_of_a_run_is_told_to_people(found: RunResult, told: tuple[str, str]) -> None:
    """An Event of Kubernetes, once, beside the SecurityEvent."""
    world = World()
    world.through(found)
    assert world.cluster.told == [told]


def test_a_run_that_cannot_be_asked_is_told_to_people() -> None:
    """Its reason is the one of the condition."""
    world = World(policyRef={"name": "missing"})
    world.settle()
    assert world.cluster.told == [("Warning", "PolicyNotFound")]


@pytest.mark.parametrize("source", ["ref", "inline"])
def test_a_policy_about_gpus_is_not_asked(source: str) -> None:
    """No backend collects them: such a run would be undecided whatever the node is."""
    world = World(policy={**ENFORCED, "gpu": {"arch": ["HOPPER"]}}, source=source)
    world.settle()
    assert world.said["Failed"] == ("True", "PolicyInvalid")
    assert world.service.asked == []


def test_a_result_that_has_gone_ends_the_wait_for_its_seal() -> None:
    """It was kept for its time; it is not written again."""
    world = World()
    world.service.seals_after = 100
    world.settle()
    world.service.judge(result())
    for _ in range(4):
        world.look()
    del world.cluster.objects[Key(kind=RESULT, name=f"{NAME}-result", namespace=SPACE)]
    world.settle()
    assert world.said["Sealed"] == ("False", "ResultGone")
    assert world.cluster.of(RESULT) == []


def test_a_complete_run_costs_nothing() -> None:
    """A thousand of them are looked at every ten minutes: no object is read, and nobody is asked."""
    world = ended(result())
    reads, asked = world.cluster.reads, len(world.service.asked)
    looked = world.look()
    assert looked.actions == ()
    assert looked.after is None
    assert (world.cluster.reads, len(world.service.asked)) == (reads + 1, asked)


@pytest.mark.parametrize("end", [*ENDS, "no agent"])
def test_what_is_written_is_what_the_kinds_have(end: str) -> None:
    """An API server drops what no schema knows, and refuses what breaks one."""
    found = None if end == "no agent" else ENDS[end][0]
    world = ended(found, nonce="0123456789abcdef")
    for each in crds.DEFINITIONS:
        for raw in world.cluster.of(each.kind):
            each.model.model_validate({name: raw[name] for name in ("spec", "status") if name in raw})
    assert len(world.cluster.of(SECURITY_EVENT)) == 2


@pytest.mark.parametrize("phase", ["Pending", "Running"])
@pytest.mark.parametrize("is_away", [False, True])
def test_a_run_whose_status_was_taken_away_ends_in_its_time(phase: str, is_away: bool) -> None:
    """Who may write a status may leave of it nothing but the phase: it had stayed for ever, each look a fault."""
    world = World()
    world.look()
    if phase == "Running":
        world.settle()
    world.run["status"] = {"phase": phase}
    world.service.away = AWAY if is_away else None
    world.settle()
    world.pass_(121)
    world.settle()
    assert world.status["phase"] == "Failed"
    assert world.status["completionTime"] == rfc3339(world.at)


def test_an_ended_run_whose_status_was_rewritten_is_waited_for_no_longer_than_others() -> None:
    """Neither a time that is missing nor a word that is nobody's is a fault at each look."""
    world = ended(result("failed"))
    conditions = [
        {**each, "reason": "Mine"} for each in world.status["conditions"] if each["status"] == "True"
    ]
    told = [each for each in conditions if each["type"] not in ("EventsEmitted", "Sealed")]
    world.run["status"] = {"phase": "Failed", "verdict": "failed", "conditions": told}
    world.settle()
    world.pass_(OPTIONS.seal_timeout.total_seconds() + 600)
    world.settle()
    assert world.look().after is None


def test_more_than_a_result_holds_is_cut_with_a_note() -> None:
    """An API server would refuse the Result, and the run stay for ever: what did not pass is told in any case."""
    checks = [RunCheck(id=f"c{i}", outcome="pass") for i in range(600)]
    checks.append(RunCheck(id="last", outcome="fail"))
    measured = tuple(RunMeasurement(slot=str(i), digest="ab") for i in range(70))
    tcb = RunTcb(advisory_ids=tuple(f"A-{i}" for i in range(300)))
    found = result("failed", checks=tuple(checks), measurements=measured, tcb=tcb, notes="n" * 1024)
    world = ended(found.model_copy(update={"rejected": "malformed-evidence"}))
    spec = world.result["spec"]
    assert world.said["Failed"] == ("True", "EvidenceRejected")
    assert [each["id"] for each in spec["checks"][-3:]] == ["c508", "last", "evidence"]
    assert len(spec["checks"]) == 511
    assert spec["verifierNotes"].startswith(
        "told here: 510 of 601 checks, 64 of 70 measurements, 256 of 300 advisories; nnn"
    )
    assert world.said["Sealed"][0] == "True"


@pytest.mark.parametrize(
    ("more", "fault"),
    [
        ({"attestation_result": "e" * 600_000}, "spec.attestationResult: "),
        (
            {"checks": tuple(RunCheck(id="c", outcome="pass", actual="x" * 1024) for _ in range(510))}
            | {"attestation_result": "e" * 500_000},
            "bytes",
        ),
    ],
)
def test_what_no_result_can_say_is_not_waited_for_beyond_the_time_of_the_run(
    more: dict[str, Any], fault: str
) -> None:
    """Nothing that was signed is cut: its Result says that the run ended without a verdict, and is sealed as such."""
    world = ended(result("verified", **more))
    assert world.status["phase"] == "Running"
    assert fault in world.warnings[-1]
    world.pass_(121)
    world.settle()
    assert world.said["Failed"] == ("True", "DeadlineExceeded")
    assert world.result["spec"]["verdict"] == "indeterminate"
    assert world.said["Sealed"][0] == "True"
