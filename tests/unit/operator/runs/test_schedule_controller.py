"""The round that looks at schedules: what it knows, what it asks for, and what it does where something fails."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Any, cast

import pytest
import structlog

from attestation.errors import AttestationError
from attestation_operator.actions import Action, Create, Delete, EmitEvent, SetStatus
from attestation_operator.controller import Around
from attestation_operator.errors import ClusterRefused, ClusterUnavailable, NotLeading, ObjectExists
from attestation_operator.health import Health
from attestation_operator.metrics import Metrics
from attestation_operator.objects import NODE, RUN, SCHEDULE, Key, Kind, Raw
from attestation_operator.runs.schedule_controller import AGAIN, AWAY, NODES_KEPT, Schedules
from attestation_operator.settings import Settings
from tests.unit.operator.runs.schedule_world import AT, ended, later, raw_node, raw_schedule, stored

pytestmark = pytest.mark.anyio


class Clock:
    """A clock that is held."""

    at = AT

    def now(self) -> Any:
        """Return the instant that it is set to."""
        return self.at


class World:
    """A cluster, and the executor that changes it; it tells the controller what a watch would, where it is to."""

    def __init__(self) -> None:
        self.objects: dict[Key, dict[str, Any]] = {}
        self.listed: list[Kind] = []
        self.done: list[Action] = []
        self.events: list[str] = []
        self.failing: dict[type, list[AttestationError]] = {}
        self.clock = Clock()
        self.telling: list[Schedules] = []
        self.number = 0
        self.meanwhile: Callable[[], None] = lambda: None

    def put(self, *raws: dict[str, Any]) -> None:
        """Have these objects, and tell of them."""
        kinds = {kind.kind: kind for kind in (NODE, RUN, SCHEDULE)}
        for raw in raws:
            key = Key.of(kinds[raw["kind"]], raw)
            self.objects[key] = copy.deepcopy(raw)
            self._tell(key)

    def remove(self, key: Key) -> None:
        """Have it no more, and tell."""
        del self.objects[key]
        self._tell(key)

    def _tell(self, key: Key) -> None:
        for each in self.telling:
            each.note(key, copy.deepcopy(self.objects.get(key)))

    def leader(self, *, told: bool = True) -> Schedules:
        """Return a controller, which a watch tells of changes or not."""
        around = Around(
            cluster=self,
            executor=self,
            service=cast("Any", None),
            clock=self.clock,
            health=Health(),
            metrics=Metrics(),
            settings=Settings(service_url="https://attest.example"),
            log=structlog.get_logger(),
        )
        made = Schedules(around)
        if told:
            self.telling.append(made)
        return made

    # As a cluster

    async def read(self, key: Key) -> Raw | None:
        """Return an object."""
        return copy.deepcopy(self.objects.get(key))

    async def list(
        self,
        kind: Kind,
        *,
        namespace: str | None = None,
        labels: Mapping[str, str] | None = None,
        fields: Mapping[str, str] | None = None,
    ) -> list[Raw]:
        """Return all of a kind that have the labels."""
        assert namespace is None
        assert fields is None
        self._fail(World)
        self.listed.append(kind)
        wanted = dict(labels or {}).items()
        found: list[Raw] = [
            copy.deepcopy(raw)
            for key, raw in self.objects.items()
            if key.kind == kind and wanted <= dict(raw["metadata"].get("labels") or {}).items()
        ]
        await asyncio.sleep(0)
        self.meanwhile()
        return found

    async def review(self, spec: Raw) -> bool:
        """Nobody asks."""
        raise NotImplementedError

    # As an executor

    async def apply(self, actions: Iterable[Action]) -> None:
        """Do them."""
        for action in actions:
            self._fail(type(action))
            if not isinstance(action, EmitEvent):
                self.done.append(action)
            match action:
                case Create():
                    if action.target in self.objects:
                        raise ObjectExists(str(action.target))
                    self.number += 1
                    self.put(stored(action.raw, self.number, self.clock.at))
                case Delete():
                    self.remove(action.target.key)
                case SetStatus():
                    raw = self.objects[action.target.key]
                    self.put({**raw, "status": dict(action.status)})
                case EmitEvent():
                    self.events.append(action.reason)
                case _:
                    raise NotImplementedError(action)

    def _fail(self, what: type) -> None:
        if self.failing.get(what):
            raise self.failing[what].pop(0)

    @property
    def runs(self) -> dict[str, dict[str, Any]]:
        """The runs there are."""
        return {key.name: raw for key, raw in self.objects.items() if key.kind == RUN}

    @property
    def status(self) -> dict[str, Any]:
        """What the one schedule says."""
        (raw,) = (raw for key, raw in self.objects.items() if key.kind == SCHEDULE)
        found: dict[str, Any] = raw["status"]
        return found

    def end_all(self, phase: str = "Succeeded") -> None:
        """Let all runs that have not ended end."""
        for raw in self.runs.values():
            if not raw.get("status"):
                self.put(ended(raw, phase, self.clock.at))


@pytest.fixture
def world() -> World:
    """One schedule, hourly, and two nodes."""
    made = World()
    made.put(raw_schedule(history={"succeeded": 1, "failed": 1}), raw_node("worker-1"), raw_node("worker-2"))
    return made


async def test_runs_are_created_told_of_and_taken_away(world: World) -> None:
    """An afternoon: two runs an hour, the older ones go; nothing is written in between."""
    leader = world.leader()
    (each,) = leader.rounds
    for hour in range(4):
        world.clock.at = later(hours=hour)
        await each.run()
        assert world.status["active"] == 2
        assert (
            world.status["lastScheduleTime"] == world.clock.at.isoformat(timespec="microseconds")[:-6] + "Z"
        )
        world.end_all()
        world.clock.at += timedelta(seconds=5)
        await each.run()
        assert world.status["active"] == 0
        done = len(world.done)
        for minute in (1, 20, 40, 59):
            world.clock.at = later(hours=hour, minutes=minute)
            await each.run()
        assert len(world.done) == done
        assert len(world.runs) == 2
    assert len([each for each in world.done if isinstance(each, Create)]) == 8


async def test_nothing_is_listed_for_a_run(world: World) -> None:
    """Schedules and runs are listed once; Nodes once where something is due, not for each of a thousand runs."""
    nodes = [raw_node(f"n-{i}") for i in range(500)]
    world.put(*nodes)
    leader = world.leader()
    (each,) = leader.rounds
    await each.run()
    world.end_all()
    world.clock.at = later(hours=1)
    await each.run()
    world.end_all()
    listed = len(world.listed)
    world.clock.at += timedelta(seconds=1)
    await each.run()
    assert len([each for each in world.done if isinstance(each, Delete)]) == 502
    assert len(world.listed) == listed
    assert world.listed == [SCHEDULE, RUN, NODE] * 2


async def test_two_leaders_create_one_run(world: World) -> None:
    """Both think that they lead, no watch tells them of the other, and their clocks differ by a minute."""
    one, two = world.leader(told=False), world.leader(told=False)
    (first,), (second,) = one.rounds, two.rounds
    await asyncio.gather(first.run(), second.run())
    world.clock.at = later(hours=1, minutes=1)
    await first.run()
    world.clock.at = later(hours=1)
    await second.run()
    assert len(world.runs) == 2
    assert world.status["active"] == 2


@pytest.mark.parametrize("change", [{"backend": "tdx"}, {"targetNodeName": "worker-2"}, None])
async def test_a_run_that_somebody_put_there_is_none_of_ours(
    world: World, change: dict[str, str] | None
) -> None:
    """The name can be computed: a run of another hardware, node or owner does not count as the one that was due."""
    other = World()
    other.put(raw_schedule(), raw_node("worker-1"))
    (each,) = other.leader().rounds
    await each.run()
    (planted,) = other.runs.values()
    if change is None:
        del planted["metadata"]["ownerReferences"]
    else:
        planted["spec"] |= change
        planted["metadata"]["labels"] = {}
    world.put(planted)
    (each,) = world.leader(told=False).rounds
    await each.run()
    (ready,) = world.status["conditions"]
    assert ready["reason"] == "RunRefused"
    assert "somebody else" in ready["message"]


@pytest.mark.parametrize("of_a_schedule", [True, False])
async def test_no_node_is_asked_by_two_at_once(world: World, of_a_schedule: bool) -> None:
    """A run of another schedule, or of somebody, is waited for, and the status says so."""
    other = World()
    other.put(raw_schedule(name="other", uid="uid-of-other"), raw_node("worker-1"))
    (each,) = other.leader().rounds
    await each.run()
    (run,) = other.runs.values()
    if not of_a_schedule:
        run["metadata"] = {**run["metadata"], "labels": {}, "ownerReferences": []}
    world.put(run)
    (look,) = world.leader().rounds
    await look.run()
    await look.run()  # what it created itself is no news any more
    assert [raw["spec"]["targetNodeName"] for raw in world.runs.values()] == ["worker-1", "worker-2"]
    (ready,) = world.status["conditions"]
    assert (ready["status"], ready["reason"]) == ("True", "NodesBusy")
    assert "worker-1" in ready["message"]
    assert "worker-2" not in ready["message"]
    world.put(ended(run, "Succeeded", world.clock.at))
    await look.run()
    assert len(world.runs) == 3
    assert world.status["conditions"][0]["reason"] == "Scheduled"


async def test_two_schedules_of_a_node_take_turns(world: World) -> None:
    """One that is always due keeps the other from no node."""
    world.put(raw_schedule(every="1m"), raw_schedule(name="other", uid="uid-of-other", every="1m"))
    (look,) = world.leader().rounds
    asked = []
    for minute in range(6):
        world.clock.at = later(minutes=minute)
        await look.run()
        (name,) = [key for key, raw in world.runs.items() if "worker-1" in str(raw) and not raw.get("status")]
        asked.append(name.partition("-")[0])
        world.end_all()
    assert asked == ["nightly", "other"] * 3


async def test_a_new_term_knows_nothing_from_the_last(world: World) -> None:
    """What another leader did meanwhile no watch told of: all is listed again."""
    world.put(raw_schedule(every="1m"))
    leader = world.leader(told=False)
    (old,) = leader.rounds
    await old.run()
    world.end_all()
    world.clock.at = later(minutes=1)
    await old.run()
    assert len(world.runs) == 2
    (new,) = leader.rounds
    await new.run()
    assert len([raw for raw in world.runs.values() if not raw.get("status")]) == 2


async def test_a_new_term_knows_what_is_gone(world: World) -> None:
    """Runs that were deleted while another one led keep no node from its next; Nodes that went get none."""
    world.put(raw_schedule(every="1m"))
    leader = world.leader(told=False)
    (old,) = leader.rounds
    world.clock.at = later(seconds=30)
    await old.run()
    for key in list(world.objects):
        if key.kind == RUN or key.name == "worker-2":
            del world.objects[key]
    world.clock.at = later(minutes=1) - timedelta(seconds=1)
    (new,) = leader.rounds
    await new.run()
    world.clock.at = later(minutes=1)
    await new.run()
    assert [raw["spec"]["targetNodeName"] for raw in world.runs.values()] == ["worker-1"]


async def test_a_watch_that_is_behind_brings_nothing_back(world: World) -> None:
    """It shows the schedule without the status that we wrote, and the run is gone by now: it is not created again."""
    raw = raw_schedule(history={"succeeded": 0, "failed": 0})
    world.put(raw)
    leader = world.leader()
    (each,) = leader.rounds
    await each.run()
    world.end_all()
    await each.run()
    assert world.runs == {}
    leader.note(Key(kind=SCHEDULE, name="nightly", namespace="attest"), raw)
    await each.run()
    assert world.runs == {}


async def test_another_schedule_of_the_name_begins_anew(world: World) -> None:
    """Somebody deleted it and made one: no watch told of the time in between."""
    leader = world.leader()
    (each,) = leader.rounds
    await each.run()
    await each.run()
    world.clock.at += timedelta(minutes=1)
    world.end_all()
    world.put(raw_schedule(uid="another", created_at=world.clock.at))
    await each.run()
    assert len(world.runs) == 4


async def test_a_change_during_the_listing_is_not_lost(world: World) -> None:
    """What a watch told while it was listed is newer than the list."""
    leader = world.leader()
    (each,) = leader.rounds
    key = Key(kind=SCHEDULE, name="nightly", namespace="attest")
    changed = {**world.objects[key], "spec": {"every": "1h", "suspend": True}}
    world.meanwhile = lambda: world.put(changed)
    await each.run()
    assert world.runs == {}


async def test_what_the_api_server_refuses_is_said_and_over(world: World) -> None:
    """A quota: the other node gets its run, the time is not tried again each second, the next one is."""
    world.failing[Create] = [ClusterRefused("exceeded quota: runs")]
    leader = world.leader()
    (each,) = leader.rounds
    await each.run()
    (ready,) = world.status["conditions"]
    assert (ready["reason"], ready["message"]) == ("RunRefused", "exceeded quota: runs")
    assert len(world.runs) == 1
    world.end_all()
    world.clock.at = later(minutes=30)
    await each.run()
    assert len(world.runs) == 1
    world.clock.at = later(hours=1)
    await each.run()
    assert len([raw for raw in world.runs.values() if not raw.get("status")]) == 2


async def test_an_api_server_that_is_away_is_left_alone_for_a_while(world: World) -> None:
    """No request each second; then all goes on where it stood, and what was missed is made up once."""
    leader = world.leader()
    (each,) = leader.rounds
    world.failing[World] = [ClusterUnavailable("away")]
    with pytest.raises(ClusterUnavailable):
        await each.run()
    world.clock.at += timedelta(seconds=1)
    await each.run()
    assert world.listed == []
    world.failing[Create] = [ClusterUnavailable("away")]
    world.clock.at = AT + AWAY
    with pytest.raises(ClusterUnavailable):
        await each.run()
    assert world.runs == {}
    world.clock.at += AWAY
    await each.run()
    assert len(world.runs) == 2


async def test_who_does_not_lead_any_more_ends(world: World) -> None:
    """The round is told, and nothing more is asked for."""
    leader = world.leader()
    (each,) = leader.rounds
    world.failing[Create] = [NotLeading("lost")]
    with pytest.raises(NotLeading):
        await each.run()
    assert world.done == []


async def test_one_schedule_does_not_hold_up_another(world: World) -> None:
    """The status of one is refused; it is tried again, not at once."""
    world.put(raw_schedule(name="other", uid="u-2"))
    leader = world.leader()
    (each,) = leader.rounds
    world.failing[SetStatus] = [ClusterRefused("no right")]
    await each.run()
    key = Key(kind=SCHEDULE, name="other", namespace="attest")
    assert world.objects[key]["status"]["conditions"][0]["reason"] == "NodesBusy"
    first = Key(kind=SCHEDULE, name="nightly", namespace="attest")
    assert world.objects[first]["status"] == {}
    world.clock.at += AGAIN
    await each.run()
    assert world.objects[first]["status"]["active"] == 2


async def test_a_faulty_schedule_says_so_until_it_is_mended(world: World) -> None:
    """By its condition, once; a change of its spec is followed at once."""
    key = Key(kind=SCHEDULE, name="nightly", namespace="attest")
    world.put(raw_schedule(schedule="61 * * * *"))
    leader = world.leader()
    (each,) = leader.rounds
    await each.run()
    world.clock.at += timedelta(minutes=1)
    await each.run()
    assert len(world.done) == 1
    assert world.status["conditions"][0]["reason"] == "ScheduleInvalid"
    mended = raw_schedule(schedule="* * * * *", generation=2, status=world.objects[key]["status"])
    world.put(mended)
    await each.run()
    assert len(world.runs) == 2


async def test_a_schedule_that_is_being_deleted_creates_nothing(world: World) -> None:
    """Garbage collection would race with it; and one that is gone creates nothing either."""
    raw = raw_schedule()
    raw["metadata"]["deletionTimestamp"] = "2026-11-23T12:00:00Z"
    world.put(raw)
    leader = world.leader()
    (each,) = leader.rounds
    await each.run()
    world.remove(Key(kind=SCHEDULE, name="nightly", namespace="attest"))
    world.clock.at = later(hours=1)
    await each.run()
    assert world.done == []


async def test_a_node_that_joins_takes_part_within_a_minute(world: World) -> None:
    """Also in a time that is due already for others, if its own moment is not over."""
    leader = world.leader()
    (each,) = leader.rounds
    await each.run()
    world.end_all()
    world.put(raw_node("worker-3"))
    world.clock.at = later(hours=1) + NODES_KEPT
    await each.run()
    assert sorted(raw["spec"]["targetNodeName"] for raw in world.runs.values() if not raw.get("status")) == [
        "worker-1",
        "worker-2",
        "worker-3",
    ]


async def test_a_deleted_run_frees_its_node(world: World) -> None:
    """Somebody deleted it: the handler is told a name, and reads that there is nothing."""
    leader = world.leader(told=False)
    (each,) = leader.rounds
    await each.run()
    for name in list(world.runs):
        key = Key(kind=RUN, name=name, namespace="attest")
        del world.objects[key]
        await leader.handle(key, None)
    world.clock.at = later(hours=1)
    await each.run()
    assert len(world.runs) == 2
