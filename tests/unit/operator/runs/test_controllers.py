"""The shell around the decisions: no run waits for the service beyond its time; no part takes another's turn."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Iterable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from attestation.api.runs import RunBundle, RunDetail, RunOpen, RunOpened, RunSeal
from attestation.errors import AttestationError
from attestation_operator.actions import Action, Delete, SetStatus
from attestation_operator.controller import Round
from attestation_operator.errors import ClusterUnavailable
from attestation_operator.metrics import Metrics
from attestation_operator.nodes.objects import ATTESTED_LABEL
from attestation_operator.objects import POLICY, RESULT, RUN, Key, Kind, Raw
from attestation_operator.runs import controllers, node_action, policies
from attestation_operator.runs.cases import Ask
from attestation_operator.runs.controllers import Policies, Results, Runs, Together, Verdicts
from attestation_operator.runs.node_action import NodeAction
from attestation_operator.settings import Settings
from tests.unit.operator.doubles import Log
from tests.unit.operator.runs.world import AT, AWAY, ENFORCED, NAME, SPACE, World, result

pytestmark = pytest.mark.anyio


class Hanging:
    """A service that answers when it is told to."""

    def __init__(self) -> None:
        self.asked = 0
        self.arrived = asyncio.Semaphore(0)
        self.open = asyncio.Event()

    async def run(self, uid: str) -> RunDetail:
        """Never answer, until it is told to."""
        self.asked += 1
        self.arrived.release()
        await self.open.wait()
        raise AWAY

    async def open_run(self, uid: str, request: RunOpen) -> RunOpened:
        """Likewise."""
        raise AssertionError(uid)

    async def seal_run(self, uid: str, request: RunSeal) -> RunBundle:
        """Likewise."""
        self.asked += 1
        self.arrived.release()
        await self.open.wait()
        raise AWAY


class Counting:
    """An executor that notes what it is given."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.done: list[Action] = []

    async def apply(self, actions: Iterable[Action]) -> None:
        """Do it."""
        given = list(actions)
        self.done += given
        self.world.cluster.apply(given)


class Answering:
    """The service of a world."""

    def __init__(self, world: World) -> None:
        self._world = world

    def _answer(self, ask: Ask, question: RunOpen | RunSeal | None) -> Any:
        answer = self._world.service.answer(ask, question)
        if isinstance(answer, AttestationError):
            raise answer
        return answer

    async def open_run(self, uid: str, request: RunOpen) -> Any:
        """Answer."""
        return self._answer(Ask.OPEN, request)

    async def run(self, uid: str) -> Any:
        """Answer."""
        return self._answer(Ask.LOOK, None)

    async def seal_run(self, uid: str, request: RunSeal) -> Any:
        """Answer."""
        return self._answer(Ask.SEAL, request)


def around(world: World, service: Any = None, workers: int = 8) -> Any:
    """Return what a controller is given."""

    async def read(key: Key) -> Raw | None:
        return world.cluster.get(key)

    return SimpleNamespace(
        cluster=SimpleNamespace(read=read),
        executor=Counting(world),
        service=service or Answering(world),
        clock=SimpleNamespace(now=lambda: world.at),
        metrics=Metrics(),
        settings=Settings(service_url="https://service.example", workers=workers),
        log=Log(),
    )


async def test_a_run_is_taken_to_its_end_by_looks() -> None:
    """Each look does what is missing next; the one that ends it is counted; a complete one is not looked at again."""
    world = World()
    given = around(world)
    runs = Runs(given, world.options)
    assert await runs.handle(world.key, None) == 1
    await runs.handle(world.key, None)
    world.service.judge(result())
    while await runs.handle(world.key, None) is not None:
        pass
    assert world.said["Sealed"] == ("True", "Sealed")
    labels = {"backend": "tpm", "phase": "Succeeded", "verdict": "verified"}
    assert given.metrics.registry.get_sample_value("itl_operator_runs_ended_total", labels) == 1
    assert "run.ended" in given.log.events
    assert "run.goes_round" not in given.log.events
    del world.cluster.objects[world.key]
    assert await runs.handle(world.key, None) is None


async def test_a_run_is_looked_at_soon_again_where_the_api_server_is_away() -> None:
    """However often it was away before: the queue would wait up to a minute, and deadlines do not."""
    world = World()
    given = around(world)

    async def away(actions: Iterable[Action]) -> None:
        raise ClusterUnavailable("503")

    given.executor = SimpleNamespace(apply=away)
    runs = Runs(given, world.options)
    assert [await runs.handle(world.key, None) for _ in range(3)] == [controllers.AWAY_SECONDS] * 3
    assert controllers.AWAY_SECONDS < 5


async def test_a_service_that_hangs_costs_one_wait_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first who asks waits; the others are told for a while that it is away, so that deadlines are kept."""
    monkeypatch.setattr(controllers, "ASK_SECONDS", 0.01)
    service, steady = Hanging(), [100.0]
    asked = controllers._ServiceClient(around(World(), service), steady=lambda: steady[0])
    first = await asked.ask(Ask.LOOK, "uid", None)
    assert isinstance(first, AttestationError)
    assert first.code == "service-away"
    assert await asked.ask(Ask.LOOK, "other", None) is first
    assert service.asked == 1
    steady[0] += controllers.PASSED_OVER_SECONDS
    await asked.ask(Ask.LOOK, "other", None)
    assert service.asked == 2


async def test_seals_that_hang_keep_no_run_from_the_service() -> None:
    """Half of what may be asked at once is for seals; who finds none free comes again."""
    service = Hanging()
    asked = controllers._ServiceClient(around(World(), service, workers=4))
    seal: Any = RunSeal.model_construct()
    waiting = [asyncio.create_task(asked.ask(Ask.SEAL, "uid", seal)) for _ in range(2)]
    for _ in waiting:
        await service.arrived.acquire()
    refused = await asked.ask(Ask.SEAL, "uid", seal)
    assert isinstance(refused, AttestationError)
    assert service.asked == 2
    service.open.set()
    for each in await asyncio.gather(*waiting):
        assert each is AWAY
    # And that a seal failed says nothing about the rest.
    assert asked._away is None


@pytest.mark.parametrize("phase", ["Pending", "Running"])
async def test_no_look_lies_beyond_the_deadline(phase: str) -> None:
    """C11, ± 5 s: whatever is waited for, the run is looked at when its time is over, and once more a second later."""
    for away in (False, True):
        world = World()
        world.settle()
        if phase == "Pending":
            world = World()
            world.look()
        world.service.away = AWAY if away or phase == "Pending" else None
        for second in range(0, 121, 5):
            world.cluster.at = AT + timedelta(seconds=second)
            after = world.look().after
            if world.status["phase"] == "Failed":
                break
            assert after is not None
            left = (AT + timedelta(seconds=120) - world.at).total_seconds()
            assert after <= max(left, 1.0)
            assert after <= 5
        world.cluster.at = AT + timedelta(seconds=121)
        world.settle()
        assert world.status["phase"] == "Failed"


async def test_results_and_policies_are_looked_after() -> None:
    """One that is old goes; one that can be followed is said to be."""
    world = World()
    world.through(result())
    given = around(world)
    results = Results(given, timedelta(hours=1))
    key = Key(kind=RESULT, name=f"{NAME}-result", namespace=SPACE)
    assert await results.handle(key, None) == 3600
    world.pass_(3600)
    await results.handle(key, None)
    assert [type(each) for each in given.executor.done] == [Delete]
    assert await results.handle(key, None) is None
    policy = Key(kind=POLICY, name="prod", namespace=SPACE)
    await Policies(given).handle(policy, None)
    assert world.cluster.objects[policy]["status"]["conditions"][0]["status"] == "True"


def policy(spec: Raw, **more: Any) -> dict[str, Any]:
    """Return an AttestationPolicy as an API server shows it."""
    metadata = {"name": "prod", "namespace": SPACE, "uid": "u", "resourceVersion": "1", "generation": 3}
    return {"metadata": metadata, "spec": spec, **more}


async def test_a_policy_says_whether_it_can_be_followed() -> None:
    """Ready, policyID of just this content, observedGeneration; written once, and anew when it changed."""
    [one] = policies.reconcile(policy(ENFORCED), AT)
    [other] = policies.reconcile(policy({"tpm": {"pcrs": {"7": "cd" * 32}}}), AT)
    assert isinstance(one, SetStatus)
    assert isinstance(other, SetStatus)
    assert one.status["observedGeneration"] == 3
    assert one.status["policyID"].startswith("ni:///sha-384;")
    assert one.status["policyID"] != other.status["policyID"]
    assert policies.reconcile(policy(ENFORCED, status=dict(one.status)), AT + timedelta(hours=1)) == ()
    [bad] = policies.reconcile(policy({"tpm": {}}, status=dict(one.status)), AT)
    assert isinstance(bad, SetStatus)
    assert "policyID" not in bad.status
    assert (bad.status["conditions"][0]["status"], bad.status["conditions"][0]["reason"]) == (
        "False",
        "PolicyInvalid",
    )


async def test_a_policy_that_no_run_can_meet_is_not_ready() -> None:
    """No run collects evidence of a GPU, so its block is told, and not waited for."""
    [told] = policies.reconcile(policy({**ENFORCED, "gpu": {"arch": ["HOPPER"]}}), AT)
    assert isinstance(told, SetStatus)
    ready = told.status["conditions"][0]
    assert (ready["status"], ready["reason"]) == ("False", "GPUNotCollected")
    assert "gpu" in ready["message"]


@pytest.mark.parametrize("action", [NodeAction.LABEL, NodeAction.TAINT, NodeAction.CORDON])
async def test_a_verdict_that_nobody_said_again_lapses(action: NodeAction) -> None:
    """Two days after a verified run its Node is as after an undecided one; a new run lifts that."""
    world = World()
    world.choose(action)
    world.through(result())
    given = around(world)
    given.cluster.list = _listing(world)
    verdicts = Verdicts(given, action, timedelta(hours=48))
    before = copy.deepcopy(world.node)
    world.pass_(48 * 3600)
    await verdicts.look()
    assert world.node == before
    world.pass_(1)
    (each,) = verdicts.rounds
    await each.run()
    after = copy.deepcopy(world.node)
    assert is_open(before)
    assert not is_open(after)
    await each.run()
    assert world.node == after
    later = world.at + timedelta(seconds=1)
    world.cluster.apply(node_action.reconcile(world.node, action=action, verdict="verified", ended_at=later))
    assert is_open(world.node)


def is_open(node: Raw) -> bool:
    """Return whether what gates look at lets pods through."""
    labels, spec = node["metadata"]["labels"], node.get("spec") or {}
    return (
        labels.get(ATTESTED_LABEL, "verified") == "verified"
        and not spec.get("taints")
        and not spec.get("unschedulable")
    )


def _listing(world: World) -> Any:
    async def listing(kind: Kind) -> list[Raw]:
        return [copy.deepcopy(raw) for raw in world.cluster.of(kind)]

    return listing


async def test_nodes_are_left_alone_where_no_action_was_chosen() -> None:
    """No round, so no list of Nodes."""
    assert Verdicts(around(World()), NodeAction.NONE, timedelta(hours=48)).rounds == ()


async def test_a_node_that_changed_keeps_no_other_from_lapsing() -> None:
    """Its turn comes again."""
    world = World()
    world.choose(NodeAction.LABEL)
    world.through(result())
    given = around(world)
    stale = {**world.node, "metadata": {**world.node["metadata"], "resourceVersion": "0"}}

    async def listing(kind: Kind) -> list[Raw]:
        return [stale, copy.deepcopy(world.node)]

    given.cluster.list = listing
    world.pass_(49 * 3600)
    await Verdicts(given, NodeAction.LABEL, timedelta(hours=48)).look()
    assert world.node["metadata"]["labels"][ATTESTED_LABEL] == "indeterminate"


class Part:
    """A duty that notes what it is told."""

    def __init__(self, *kinds: Kind, after: float | None = None) -> None:
        self.name = "part"
        self.watches = kinds
        self.rounds = (Round(name="r", seconds=1, run=self._nothing),)
        self.told: list[Key] = []
        self._after = after

    async def _nothing(self) -> None:
        pass

    async def handle(self, key: Key, seen: Raw | None) -> float | None:
        """Take note."""
        self.told.append(key)
        return self._after


async def test_duties_of_one_program_are_told_of_their_kinds() -> None:
    """And the first that wants to look again says when."""
    one, two, three = Part(RUN, after=9), Part(RUN, POLICY, after=4), Part(RESULT)
    whole = Together("runs", (one, two, three))
    assert whole.watches == (RUN, POLICY, RESULT)
    assert len(whole.rounds) == 3
    run, outcome = (Key(kind=kind, name="x", namespace=SPACE) for kind in (RUN, RESULT))
    assert await whole.handle(run, None) == 4
    assert await whole.handle(outcome, None) is None
    assert (one.told, two.told, three.told) == ([run], [run], [outcome])
