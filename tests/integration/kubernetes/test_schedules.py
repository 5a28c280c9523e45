"""Schedules at API servers, ours and the real one: runs are created once, told of, and taken away by their history."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final, cast

import httpx
import pytest
import structlog

from attestation.clock import SystemClock
from attestation_operator import crds
from attestation_operator.cluster import KubernetesCluster, config_from
from attestation_operator.controller import Around
from attestation_operator.executor import KubernetesExecutor
from attestation_operator.health import Health
from attestation_operator.metrics import Metrics
from attestation_operator.objects import RUN, SCHEDULE, Kind, Raw
from attestation_operator.program import Program
from attestation_operator.runs.commands import maker
from attestation_operator.runs.schedule_controller import Schedules
from attestation_operator.runs.settings import RunSettings
from attestation_operator.settings import Settings
from tests.fixtures.controllers import Running, until
from tests.fixtures.kube import FakeKube, KubeAPI, fake, kube, rest
from tests.unit.operator.doubles import Log

__all__ = ["fake", "kube"]

NODES: Final = "/api/v1/nodes"
ENDED: Final = {"backend": "tpm", "phase": "Failed", "verdict": "none"}
NAMES = (f"sched-{number}" for number in itertools.count(1))


class Clock:
    """A clock that can be moved."""

    ahead = timedelta()

    def now(self) -> datetime:
        """Return the time, so much later."""
        return datetime.now(UTC) + self.ahead


class Counting(KubernetesCluster):
    """A cluster that counts what is listed."""

    lists: list[Kind]

    async def each(self, kind: Kind, **how: Any) -> AsyncIterator[Raw]:
        """Count it."""
        self.lists = [*getattr(self, "lists", []), kind]
        async for raw in super().each(kind, **how):
            yield raw


class Here:
    """A cluster as its administrator has it, and leaders in it."""

    def __init__(self, kube: KubeAPI, http: httpx.Client) -> None:
        self.kube, self.http = kube, http
        self.clock = Clock()
        self.pool = next(NAMES)

    def path(self, kind: Kind, name: str = "") -> str:
        """Return where objects of a kind are, or one of them."""
        return f"/apis/{kind.api_version}/namespaces/default/{kind.plural}{'/' if name else ''}{name}"

    def runs(self) -> list[Any]:
        """Return the runs."""
        found: list[Any] = self.http.get(self.path(RUN)).raise_for_status().json()["items"]
        return found

    def node(self, name: str) -> None:
        """Make a Node of our pool."""
        labels = {"pool": self.pool}
        raw = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}
        self.http.post(NODES, json=raw).raise_for_status()

    def schedule(self, **spec: Any) -> Any:
        """Make a schedule for our pool."""
        raw = {
            "apiVersion": SCHEDULE.api_version,
            "kind": SCHEDULE.kind,
            "metadata": {"name": self.pool},
            "spec": {"nodeSelector": {"pool": self.pool}, "backend": "tpm", **spec},
        }
        made = self.http.post(self.path(SCHEDULE), json=raw)
        assert made.status_code == 201, made.text
        return made.json()

    def status(self) -> Any:
        """Return what the schedule says."""
        return self.http.get(self.path(SCHEDULE, self.pool)).raise_for_status().json().get("status") or {}

    def end(self, raw: Mapping[str, Any], phase: str = "Succeeded") -> None:
        """Let a run end."""
        at = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        more = {"status": "True", "reason": "Done", "message": "so it is", "lastTransitionTime": at}
        conditions = [{"type": each, **more} for each in ("EventsEmitted", "Sealed")]
        done = self.http.patch(
            f"{self.path(RUN, raw['metadata']['name'])}/status",
            json={"status": {"phase": phase, "completionTime": at, "conditions": conditions}},
            headers={"Content-Type": "application/merge-patch+json"},
        )
        assert done.status_code == 200, done.text

    @contextlib.asynccontextmanager
    async def leader(self) -> AsyncIterator[tuple[Schedules, Counting]]:
        """Yield a controller that leads, or thinks so."""
        cluster = Counting(config_from(self.kube.kubeconfig()))
        try:
            executor = KubernetesExecutor(
                cluster, name="runs", instance="pod-1", leading=lambda: True, clock=SystemClock(), log=Log()
            )
            around = Around(
                cluster=cluster,
                executor=executor,
                service=cast("Any", None),
                clock=self.clock,
                health=Health(),
                metrics=Metrics(),
                settings=Settings(service_url="https://attest.example"),
                log=Log(),
            )
            yield Schedules(around), cluster
        finally:
            await cluster.aclose()


async def new_term(leader: Schedules) -> None:
    """Look once, as who has just begun to lead."""
    (each,) = leader.rounds
    await each.run()


def run(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Do it."""
    asyncio.run(work())


def _is_served(http: httpx.Client, kind: Kind) -> bool:
    return http.get(f"/apis/{kind.api_version}/{kind.plural}").status_code == 200


@contextlib.contextmanager
def prepared(kube: KubeAPI) -> Iterator[Here]:
    """Give the cluster our kinds, and take away what a test made."""
    with rest(kube) as http:
        for definition in crds.definitions():
            made = http.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", json=definition)
            assert made.status_code in (201, 409), made.text
        for kind in (RUN, SCHEDULE):
            until(partial(_is_served, http, kind))
        here = Here(kube, http)
        yield here
        http.delete(here.path(SCHEDULE, here.pool))
        for raw in here.runs():
            http.delete(here.path(RUN, raw["metadata"]["name"]))
        for raw in http.get(NODES, params={"labelSelector": f"pool={here.pool}"}).json()["items"]:
            http.delete(f"{NODES}/{raw['metadata']['name']}")


@pytest.fixture
def here(kube: KubeAPI) -> Iterator[Here]:
    """A cluster with our kinds."""
    with prepared(kube) as made:
        yield made


def test_a_schedule_lives_at_an_api_server(here: Here) -> None:
    """Created for chosen Nodes, owned by the schedule, told in its status; the next time only where the last ended."""
    for name in ("one", "two"):
        here.node(f"{here.pool}-{name}")
    made = here.schedule(every="1h", history={"succeeded": 0, "failed": 0}, timeout="30s")

    async def work() -> None:
        async with here.leader() as (leader, _):
            await new_term(leader)
            one, two = sorted(here.runs(), key=lambda raw: raw["spec"]["targetNodeName"])
            assert one["spec"] == {"backend": "tpm", "targetNodeName": f"{here.pool}-one", "timeout": "30s"}
            assert one["metadata"]["ownerReferences"][0]["uid"] == made["metadata"]["uid"]
            status = here.status()
            assert status["active"] == 2
            assert status["conditions"][0]["reason"] == "Scheduled"
            assert {"lastScheduleTime", "nextScheduleTime"} <= status.keys()

            here.end(one)
            here.clock.ahead = timedelta(hours=1)
            await new_term(leader)
            names = {raw["metadata"]["name"] for raw in here.runs()}
            assert two["metadata"]["name"] in names
            assert len(names) == 2
            assert one["metadata"]["name"] in names or here.status()["active"] == 2
            for raw in here.runs():
                if not raw.get("status"):
                    here.end(raw, "Failed")
            await new_term(leader)
            await new_term(leader)
            assert here.status()["lastScheduleTime"] > status["lastScheduleTime"]

    run(work)


def test_two_leaders_at_once_create_one_run(here: Here) -> None:
    """Each looks at the same moment, and neither knows of the other."""
    for name in range(3):
        here.node(f"{here.pool}-{name}")
    here.schedule(schedule="* * * * *")
    here.clock.ahead = timedelta(minutes=1)

    async def work() -> None:
        async with here.leader() as (one, _), here.leader() as (two, _):
            await asyncio.gather(new_term(one), new_term(two))

    run(work)
    assert len(here.runs()) == len({raw["spec"]["targetNodeName"] for raw in here.runs()}) == 3
    assert here.status()["active"] == 3


def test_a_node_that_somebody_has_asked_is_waited_for(here: Here) -> None:
    """No two at once for a node, whoever began; the status says whose end is waited for."""
    here.node(f"{here.pool}-one")
    by_hand: dict[str, Any] = {
        "apiVersion": RUN.api_version,
        "kind": RUN.kind,
        "metadata": {"name": f"{here.pool}-by-hand"},
        "spec": {"backend": "tpm", "targetNodeName": f"{here.pool}-one"},
    }
    raw = here.http.post(here.path(RUN), json=by_hand).raise_for_status().json()
    here.schedule(every="1h")
    run(partial(_look, here))
    assert [each["metadata"]["name"] for each in here.runs()] == [by_hand["metadata"]["name"]]
    (ready,) = here.status()["conditions"]
    assert (ready["status"], ready["reason"]) == ("True", "NodesBusy")
    assert f"{here.pool}-one" in ready["message"]
    here.end(raw)
    run(partial(_look, here))
    assert len(here.runs()) == 2
    assert here.status()["conditions"][0]["reason"] == "Scheduled"


def test_a_run_that_was_planted_is_refused_in_the_status(here: Here) -> None:
    """Its name could be computed; what it asks for, or whose it is, is something else."""
    here.node(f"{here.pool}-one")
    here.schedule(every="1h")

    run(partial(_look, here))
    (raw,) = here.runs()
    here.http.delete(here.path(RUN, raw["metadata"]["name"])).raise_for_status()
    # As if nothing had been done yet: whoever may see the schedule can compute the name before.
    done = here.http.patch(
        f"{here.path(SCHEDULE, here.pool)}/status",
        json={"status": {"lastScheduleTime": None}},
        headers={"Content-Type": "application/merge-patch+json"},
    )
    done.raise_for_status()
    planted = {
        "apiVersion": RUN.api_version,
        "kind": RUN.kind,
        "metadata": {"name": raw["metadata"]["name"]},
        "spec": {"backend": "tdx", "targetNodeName": "elsewhere"},
    }
    assert here.http.post(here.path(RUN), json=planted).status_code == 201
    run(partial(_look, here))
    (ready,) = here.status()["conditions"]
    assert (ready["status"], ready["reason"]) == ("False", "RunRefused")
    assert "somebody else created a Run of this name" in ready["message"]


async def _look(here: Here) -> None:
    async with here.leader() as (leader, _):
        await new_term(leader)


def test_runs_go_without_a_list_for_each(fake: FakeKube) -> None:
    """Three lists when it begins to lead, whatever their number is; none to prune. The bench `node_runs` has 1,000."""
    with prepared(fake) as here:
        for number in range(40):
            here.node(f"{here.pool}-{number}")
        here.schedule(every="1m", history={"succeeded": 0, "failed": 0})

        async def work() -> None:
            async with here.leader() as (leader, cluster):
                for minute in range(2):
                    here.clock.ahead = timedelta(minutes=minute)
                    (each,) = leader.rounds
                    await each.run()
                    cluster.lists = []
                    for raw in here.runs():
                        here.end(raw)
                    await new_term(leader)
                    assert here.runs() == []
                    assert len(cluster.lists) == 3

        run(work)


def test_the_program_creates_and_prunes_by_what_its_watches_tell(fake: FakeKube, tmp_path: Path) -> None:
    """All of `attestation-operator runs`: a run is created, ends (there is no such policy), and goes."""
    token = tmp_path / "token"
    token.write_text("token-of-the-pod")
    with prepared(fake) as here:
        settings = RunSettings(
            service_url="http://127.0.0.1:9",
            kubeconfig=fake.kubeconfig(),
            namespace="default",
            token_file=token,
            metrics_bind_address="127.0.0.1:0",
            health_probe_bind_address="127.0.0.1:0",
            cluster_id="default",
        )
        running = Running(
            Program("runs", settings, maker(settings), clock=SystemClock(), log=structlog.get_logger())
        )
        try:
            until(lambda: running.metric("itl_operator_leading") == 1)
            here.node(f"{here.pool}-one")
            here.schedule(every="1h", policyRef={"name": "missing"}, history={"succeeded": 0, "failed": 0})
            until(lambda: running.metric("itl_operator_runs_ended_total", **ENDED) == 1)
            until(lambda: here.status().get("active") == 0 and here.runs() == [])
        finally:
            running.stop()
