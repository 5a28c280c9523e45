"""Which runs a schedule wants: a table of instants, and what holds whatever happens in between."""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attestation.clock import parse_rfc3339, rfc3339
from attestation_operator.actions import EmitEvent, SetStatus
from attestation_operator.objects import RUN, Key
from attestation_operator.runs.schedule import (
    FAULTS,
    PATIENCE,
    Decision,
    reconcile,
    spread,
    status,
    unreadable,
)
from attestation_operator.runs.schedule_objects import (
    AHEAD,
    BACKEND_LABEL,
    SCHEDULE_LABEL,
    SCHEDULED_AT,
    Candidate,
    OpenRun,
    ScheduledRun,
    Unreadable,
    read_run,
    read_schedule,
)
from tests.unit.operator.runs.schedule_world import AT, UID, ended, later, raw_schedule, stored

KEPT = timedelta(days=3)
NODES = [Candidate(name="worker-1"), Candidate(name="worker-2")]


def look(
    raw: dict[str, Any], at: datetime, *runs: dict[str, Any], nodes: list[Candidate] = NODES
) -> Decision:
    """Look at a schedule."""
    return reconcile(read_schedule(raw), nodes, _read(runs), at)


def _read(runs: Any) -> list[ScheduledRun]:
    found = [read_run(raw) for raw in runs]
    assert None not in found
    return found  # type: ignore[return-value]


def made(looked: Decision) -> list[tuple[str, str, str]]:
    """Return node, backend and instant of what is created."""
    return [
        (
            each.raw["spec"]["targetNodeName"],
            each.raw["spec"]["backend"],
            each.raw["metadata"]["annotations"][SCHEDULED_AT][11:19],
        )
        for each in looked.create
    ]


def at_hour(hour: int, **members: Any) -> dict[str, Any]:
    """Return an hourly schedule of which all up to 12:00 + *hour* is dealt with."""
    return raw_schedule(status={"lastScheduleTime": rfc3339(later(hours=hour))}, **members)


def test_a_run_says_what_the_schedule_says() -> None:
    """Owner, policy, timeout, and a name that says schedule, node, backend and time."""
    raw = raw_schedule(policyRef={"name": "prod"}, timeout="30s")
    (first, _) = look(raw, AT).create
    metadata = first.raw["metadata"]
    assert first.raw["spec"] == {
        "backend": "tpm",
        "targetNodeName": "worker-1",
        "policyRef": {"name": "prod"},
        "timeout": "30s",
    }
    assert metadata["namespace"] == "attest"
    assert metadata["name"] == "nightly-cdb5d5d499-20261123120000"
    assert metadata["labels"][SCHEDULE_LABEL] == "nightly"
    (owner,) = metadata["ownerReferences"]
    assert (owner["uid"], owner["controller"]) == (UID, True)


@pytest.mark.parametrize(
    ("raw", "at", "wanted"),
    [
        # Every hour since 12:00, the first at once; a minute before, nothing.
        (raw_schedule(), later(minutes=-1), []),
        (raw_schedule(), AT, ["12:00:00", "12:00:00"]),
        (raw_schedule(), later(minutes=59), ["12:00:00", "12:00:00"]),
        (at_hour(0), later(minutes=59), []),
        (at_hour(0), later(hours=1), ["13:00:00", "13:00:00"]),
        # Five hours without a leader: made up once, as the newest.
        (at_hour(0), later(hours=5, minutes=30), ["17:00:00", "17:00:00"]),
        # A clock that is a minute behind who wrote the status.
        (at_hour(1), later(minutes=59), []),
        (at_hour(1), later(hours=1, minutes=1), []),
        # A clock that was years ahead wrote it: from now on as ever, and nothing at once.
        (at_hour(24 * 700), later(hours=1, minutes=1), []),
        # It does nothing.
        (raw_schedule(suspend=True), later(hours=3), []),
    ],
)
def test_what_is_due(raw: dict[str, Any], at: datetime, wanted: list[str]) -> None:
    """At each instant of the table, for two nodes."""
    assert [instant for _, _, instant in made(look(raw, at))] == wanted


def test_a_status_from_the_future_counts_from_now() -> None:
    """The next time comes as if the wrong clock had never been."""
    raw = at_hour(24 * 700)
    looked = look(raw, later(minutes=30))
    assert looked.dealt_with == later(minutes=30)
    near = raw_schedule(status={"lastScheduleTime": rfc3339(later(minutes=30) + AHEAD)})
    assert look(near, later(minutes=30)).dealt_with == later(minutes=30) + AHEAD


def test_a_node_with_a_run_waits_and_so_does_the_instant() -> None:
    """The other node gets its run; the status stays behind until both have."""
    (one, two) = (stored(each.raw, i) for i, each in enumerate(look(raw_schedule(), AT).create))
    raw, at = at_hour(0), later(hours=1)
    looked = look(raw, at, one, ended(two, "Succeeded", AT))
    assert made(looked) == [("worker-2", "tpm", "13:00:00")]
    assert looked.dealt_with == AT
    third = stored(looked.create[0].raw, 3)
    looked = look(raw, at, ended(one, "Failed", at), ended(two, "Succeeded", AT), third)
    assert made(looked) == [("worker-1", "tpm", "13:00:00")]
    assert looked.dealt_with == at


def test_one_run_of_a_node_after_the_other() -> None:
    """Where a node has two kinds of hardware the second waits for the first, for whatever time it was."""
    node = Candidate(name="a", labels={f"{BACKEND_LABEL}{each}": "true" for each in ("sev-snp", "tpm")})
    raw = raw_schedule(backend="auto")
    looked = look(raw, AT, nodes=[node])
    assert made(looked) == [("a", "tpm", "12:00:00")]
    assert looked.dealt_with is None
    first = stored(looked.create[0].raw, 1)
    assert look(raw, later(minutes=1), first, nodes=[node]).create == ()
    looked = look(raw, later(minutes=2), ended(first, "Failed", later(minutes=2)), nodes=[node])
    assert made(looked) == [("a", "sev-snp", "12:00:00")]
    assert looked.dealt_with == AT


@pytest.mark.parametrize(
    ("backend", "labels", "wanted"),
    [
        ("tdx", {}, ("tdx",)),
        ("auto", {}, ("tpm",)),
        ("auto", {f"{BACKEND_LABEL}tdx": "true"}, ("tdx",)),
        ("auto", {f"{BACKEND_LABEL}tdx": "false"}, ("tpm",)),
        ("auto", {f"{BACKEND_LABEL}tdx": "true", f"{BACKEND_LABEL}tpm": "true"}, ("tpm", "tdx")),
    ],
)
def test_auto_is_what_labels_say(backend: str, labels: dict[str, str], wanted: tuple[str, ...]) -> None:
    """Labels that no kubelet can write; a node without any is asked for its TPM."""
    node = Candidate(name="a", labels=labels)
    assert read_schedule(raw_schedule(backend=backend)).backends(node) == wanted


def test_nodes_are_chosen_by_all_labels() -> None:
    """Each of them, with its value."""
    raw = raw_schedule(nodeSelector={"pool": "tee", "zone": "a"})
    nodes = [
        Candidate(name="both", labels={"pool": "tee", "zone": "a", "more": ""}),
        Candidate(name="one", labels={"pool": "tee"}),
        Candidate(name="other", labels={"pool": "tee", "zone": "b"}),
    ]
    looked = look(raw, AT, nodes=nodes)
    assert [node for node, _, _ in made(looked)] == ["both"]
    assert looked.chosen == 1


def test_jitter_is_of_the_node_and_stays() -> None:
    """Spread over the whole of it, for each schedule in its own way; nothing is due before its second."""
    schedule = read_schedule(raw_schedule(jitter="10m"))
    names = [f"worker-{i}" for i in range(300)]
    offsets = [spread(schedule, name) for name in names]
    assert offsets == [spread(schedule, name) for name in names]
    assert offsets != [spread(read_schedule(raw_schedule(jitter="10m", uid="other")), name) for name in names]
    assert min(offsets) < timedelta(minutes=1) < timedelta(minutes=9) < max(offsets) <= timedelta(minutes=10)

    node = Candidate(name="worker-7")
    offset = spread(schedule, node.name)
    assert offset > timedelta()
    early = look(raw_schedule(jitter="10m"), AT + offset - timedelta(seconds=1), nodes=[node])
    assert early.create == ()
    assert early.wake_at == AT + offset
    assert len(look(raw_schedule(jitter="10m"), AT + offset, nodes=[node]).create) == 1


def test_longer_jitter_than_the_interval_loses_no_time() -> None:
    """Each node has its own clock, late by its offset: between two times of it there is one interval."""
    raw = raw_schedule(every="1m", jitter="10m")
    node = Candidate(name="worker-7")
    offset = spread(read_schedule(raw), node.name)
    looked = look(raw, AT + offset + timedelta(seconds=61), nodes=[node])
    assert made(looked)[0][2] == f"{AT + offset + timedelta(seconds=60):%H:%M:%S}"


def test_what_is_there_is_not_created() -> None:
    """Another leader was faster, or this one ended before it wrote the status."""
    runs = [stored(each.raw, i) for i, each in enumerate(look(raw_schedule(), AT).create)]
    looked = look(raw_schedule(), AT, *runs)
    assert looked.create == ()
    assert looked.dealt_with == AT


def test_a_stranger_s_run_counts_for_nothing() -> None:
    """Labels are not enough: whoever may create a Run somewhere could keep a node from being asked."""
    (run,) = (stored(each.raw, 0) for each in look(raw_schedule(), AT, nodes=NODES[:1]).create)
    del run["metadata"]["ownerReferences"]
    assert read_run(run) is None


# What goes


def history(*ends: str, settled: bool = True) -> list[dict[str, Any]]:
    """Return the runs of worker-1 at 12:00, 13:00… that ended so."""
    found = []
    for hour, phase in enumerate(ends):
        raw = at_hour(hour - 1) if hour else raw_schedule()
        (create,) = look(raw, later(hours=hour), nodes=NODES[:1]).create
        run = stored(create.raw, hour)
        found.append(ended(run, phase, later(hours=hour), settled=settled) if phase else run)
    return found


def test_the_newest_of_each_end_stay() -> None:
    """So many that succeeded, so many that failed; one that has not ended always."""
    runs = history("Failed", "Succeeded", "Failed", "Succeeded", "Succeeded", "")
    raw = at_hour(5, history={"succeeded": 2, "failed": 1})
    gone = [each.target.name[-6:-4] for each in look(raw, later(hours=5, minutes=1), *runs).prune]
    assert gone == ["12", "13"]


def test_nodes_and_backends_have_their_own_history() -> None:
    """A fleet's runs of one hour do not push each other out."""
    runs = [
        ended(stored(each.raw, i), "Succeeded", AT) for i, each in enumerate(look(raw_schedule(), AT).create)
    ]
    assert len(runs) == 2
    assert look(at_hour(0, history={"succeeded": 1, "failed": 1}), later(minutes=1), *runs).prune == ()
    both = look(at_hour(0, history={"succeeded": 0, "failed": 0}), later(minutes=1), *runs).prune
    assert len(both) == 2


def test_what_is_not_dealt_with_stays() -> None:
    """Its name would be free, and it would be created again."""
    runs = history("Succeeded")
    none = {"succeeded": 0, "failed": 0}
    assert look(raw_schedule(history=none, suspend=True), later(minutes=1), *runs).prune == ()
    node_2_waits = stored(look(raw_schedule(), AT, nodes=NODES[1:]).create[0].raw, 9)
    looked = look(at_hour(0, history=none), later(hours=1), *history("Succeeded", "Succeeded"), node_2_waits)
    assert [each.target.name[-6:-4] for each in looked.prune] == ["12"]
    assert looked.dealt_with == AT


def test_what_is_not_sealed_stays_for_its_time() -> None:
    """Who prunes it takes what its bundle is made of."""
    runs = history("Succeeded", settled=False)
    raw = at_hour(0, history={"succeeded": 0, "failed": 0}, every="1000h")
    assert look(raw, AT + KEPT - timedelta(seconds=1), *runs).prune == ()
    assert len(look(raw, AT + KEPT, *runs).prune) == 1


def test_what_was_never_asked_has_nothing_to_wait_for() -> None:
    """A schedule whose policy is missing would pile up runs otherwise; one with words of others waits its day."""
    (run,) = history("Failed", settled=False)
    raw = at_hour(0, history={"succeeded": 0, "failed": 0}, every="1000h")
    accepted = run["status"]["conditions"][0]
    accepted |= {"status": "False", "reason": "PolicyNotFound"}
    assert len(look(raw, later(seconds=1), run).prune) == 1
    accepted |= {"status": "True", "reason": "Strange"}
    assert look(raw, later(seconds=1), run).prune == ()


# Whose a run is


@pytest.mark.parametrize(
    "change",
    [
        {"metadata": {"name": "nightly-0000000000-20261123120000"}},
        {"metadata": {"labels": {}}},
        {"metadata": {"annotations": {}}},
        {"metadata": {"annotations": {SCHEDULED_AT: rfc3339(later(hours=2))}}},
        {"metadata": {"ownerReferences": []}},
        {"spec": {"targetNodeName": "worker-2"}},
        {"spec": {"backend": "tdx"}},
        {"spec": {"policy": {"mode": "report"}}},
        {"spec": {"nonce": "0" * 16}},
    ],
    ids=["name", "label", "no-instant", "instant-ahead", "owner", "node", "backend", "policy", "nonce"],
)
def test_only_what_a_schedule_would_have_created_is_its_run(change: dict[str, dict[str, Any]]) -> None:
    """A run that differs in anything is somebody's: it is counted in no history, and no time is done by it."""
    raw = stored(look(raw_schedule(), AT).create[0].raw, 1)
    assert read_run(raw) is not None
    assert read_run({**raw, **{part: {**raw[part], **more} for part, more in change.items()}}) is None
    owners = [{**raw["metadata"]["ownerReferences"][0], "controller": False}]
    assert read_run({**raw, "metadata": {**raw["metadata"], "ownerReferences": owners}}) is None


def test_runs_of_others_are_waited_for_so_long() -> None:
    """Of schedules as long as they take; of anybody else ten minutes: they could go on for ever."""
    schedule = read_schedule(raw_schedule())
    key = Key(kind=RUN, name="by-hand", namespace="elsewhere")
    for scheduled, at, waits in (
        (True, AT, True),
        (True, AT + PATIENCE, True),
        (False, AT + PATIENCE - timedelta(seconds=1), True),
        (False, AT + PATIENCE, False),
    ):
        others = [OpenRun(key=key, node="worker-1", scheduled=scheduled)]
        looked = reconcile(schedule, NODES, [], at, others=others)
        assert looked.waits_for == (("worker-1",) if waits else ())
        assert len(looked.create) == 2 - waits
        assert looked.wake_at is not None
        if waits and not scheduled:
            assert looked.wake_at == AT + PATIENCE


# What is said


def said(raw: dict[str, Any], at: datetime, *runs: dict[str, Any], **more: Any) -> dict[str, Any] | None:
    """Return the status that is written, None where none is."""
    looked = look(raw, at, *runs)
    active = len(looked.create) + sum(not run.ended for run in _read(runs))
    found = status(read_schedule(raw), looked, at, active=active, **more)
    if not found:
        return None
    first, *events = found
    assert isinstance(first, SetStatus)
    # What hinders it is told as an Event too, once.
    reason = first.status["conditions"][0]["reason"]
    told = [each.reason for each in events if isinstance(each, EmitEvent)]
    before = (raw.get("status") or {}).get("conditions") or [{"reason": ""}]
    assert told == ([reason] if reason in FAULTS and before[0]["reason"] != reason else [])
    return dict(first.status)


def test_the_status_says_what_was_done_and_what_comes() -> None:
    """Once: the second look writes nothing."""
    first = said(raw_schedule(), AT)
    assert first is not None
    (ready,) = first["conditions"]
    assert (first["active"], first["lastScheduleTime"]) == (2, rfc3339(AT))
    assert parse_rfc3339(first["nextScheduleTime"]) == later(hours=1)
    assert (ready["status"], ready["reason"]) == ("True", "Scheduled")
    runs = [stored(each.raw, i) for i, each in enumerate(look(raw_schedule(), AT).create)]
    assert said(raw_schedule(status=first), later(minutes=5), *runs) is None


@pytest.mark.parametrize(
    ("members", "more", "reason"),
    [
        ({"suspend": True}, {}, "Suspended"),
        ({"nodeSelector": {"pool": "none"}}, {}, "NoNode"),
        ({}, {"refused": "exceeded quota"}, "RunRefused"),
    ],
)
def test_the_condition_says_why_nothing_is_created(
    members: dict[str, Any], more: dict[str, Any], reason: str
) -> None:
    """With its reason, and since when."""
    found = said(raw_schedule(**members), AT, **more)
    assert found is not None
    (ready,) = found["conditions"]
    assert (ready["status"], ready["reason"]) == ("False", reason)
    again = said(raw_schedule(status=found, **members), later(minutes=1), **more)
    assert again is None or again["conditions"][0]["lastTransitionTime"] == ready["lastTransitionTime"]


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"schedule": "61 * * * *"}, "schedule: Bad minute"),
        ({"schedule": "* * * * *", "every": "1h"}, "either schedule or every"),
        ({"every": "59s"}, "every"),
        ({"every": "1h", "jitter": "25h"}, "jitter"),
        ({"every": "1h", "backend": "sgx"}, "backend"),
        ({"every": "1h", "more": 1}, "more"),
    ],
)
def test_what_the_api_server_let_through_is_refused(spec: dict[str, Any], words: str) -> None:
    """An old one knows no rules; the words say where."""
    with pytest.raises(Unreadable, match=words):
        read_schedule(raw_schedule(**spec))


def test_a_schedule_that_cannot_be_followed_says_so() -> None:
    """What is dealt with stays, for when it is mended."""
    raw = at_hour(3, schedule="61 * * * *")
    action, event = unreadable(raw, "schedule: Bad minute", AT)
    assert isinstance(action, SetStatus)
    assert isinstance(event, EmitEvent)
    assert (event.reason, event.type) == ("ScheduleInvalid", "Warning")
    assert action.status["lastScheduleTime"] == rfc3339(later(hours=3))
    assert action.status["conditions"][0]["reason"] == "ScheduleInvalid"
    assert unreadable({**raw, "status": action.status}, "schedule: Bad minute", later(hours=1)) == ()


# Whatever happens


class Fleet:
    """A schedule over time: leaders whose clocks differ and which end anywhere, nodes that take their time."""

    def __init__(self, raw: dict[str, Any], nodes: list[Candidate]) -> None:
        self.raw, self.nodes = raw, nodes
        self.runs: dict[str, dict[str, Any]] = {}
        self.ever: list[tuple[str, str, str]] = []
        self.at = AT

    def look(self, *, skew: int, ends_after: int) -> None:
        """Have a leader look that ends after so many writes."""
        at = self.at + timedelta(seconds=skew)
        schedule = read_schedule(self.raw)
        looked = reconcile(schedule, self.nodes, _read(self.runs.values()), at)
        writes: list[Any] = [
            *looked.create,
            *status(schedule, looked, at, active=len(looked.create)),
            *looked.prune,
        ]
        for each in writes[:ends_after]:
            if each in looked.create:
                name = each.raw["metadata"]["name"]
                assert name not in self.runs
                self.runs[name] = stored(each.raw, len(self.ever))
                spec = each.raw["spec"]
                self.ever.append((spec["targetNodeName"], spec["backend"], name[-14:]))
            elif isinstance(each, SetStatus):
                self.raw = {**self.raw, "status": dict(each.status)}
            else:
                del self.runs[each.target.name]

    def end(self, nth: int, phase: str) -> None:
        """Let a run that has not ended end so."""
        active = [name for name, raw in sorted(self.runs.items()) if not raw.get("status")]
        if active:
            name = active[nth % len(active)]
            self.runs[name] = ended(self.runs[name], phase, self.at)


STEPS = st.lists(
    st.tuples(st.just("wait"), st.integers(1, 200), st.just(0))
    | st.tuples(st.just("look"), st.integers(-60, 60), st.integers(0, 6))
    | st.tuples(st.just("end"), st.integers(0, 5), st.sampled_from([0, 1])),
    max_size=60,
)


@settings(max_examples=60, deadline=None)
@given(
    STEPS,
    st.sampled_from(["0s", "30s", "3m"]),
    st.integers(0, 2),
    st.sampled_from([{"every": "1m"}, {"schedule": "*/2 * * * *"}]),
)
def test_no_run_twice_and_no_two_at_once(
    steps: list[tuple[str, int, int]], jitter: str, keep: int, said: dict[str, Any]
) -> None:
    """However leaders end, clocks differ and runs take their time; and in the end each node has had its turn."""
    both = {f"{BACKEND_LABEL}{each}": "true" for each in ("tpm", "tdx")}
    nodes = [Candidate(name="a", labels=both), Candidate(name="b"), Candidate(name="c")]
    raw = raw_schedule(backend="auto", jitter=jitter, history={"succeeded": keep, "failed": keep}, **said)
    fleet = Fleet(raw, nodes)
    for step, first, second in steps:
        match step:
            case "wait":
                fleet.at += timedelta(seconds=first)
            case "look":
                fleet.look(skew=first, ends_after=second)
            case _:
                fleet.end(first, ["Succeeded", "Failed"][second])
        active = Counter(
            run["spec"]["targetNodeName"] for run in fleet.runs.values() if not run.get("status")
        )
        assert max(active.values(), default=0) <= 1, "two at once"
        assert max(Counter(fleet.ever).values(), default=0) <= 1, "one twice"
    # From now on leaders live, and what runs ends: each node gets a time of its own, and no more than the history.
    fleet.at += timedelta(minutes=10)
    for _ in range(4):
        fleet.look(skew=0, ends_after=100)
        for _ in range(4):
            fleet.end(0, "Succeeded")
    last = {
        (node, backend): max(name for n, b, name in fleet.ever if (n, b) == (node, backend))
        for node, backend in (("a", "tpm"), ("a", "tdx"), ("b", "tpm"), ("c", "tpm"))
    }
    schedule = read_schedule(fleet.raw)
    for (node, _), name in last.items():
        due = schedule.times.last(fleet.at - spread(schedule, node))
        assert name == f"{due:%Y%m%d%H%M%S}"
    kept = Counter((r["spec"]["targetNodeName"], r["spec"]["backend"]) for r in fleet.runs.values())
    assert max(kept.values(), default=0) <= 2 * keep
