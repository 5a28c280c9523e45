"""The watch of an agent: from where it goes on, when it lists anew, and what it tells."""

# ruff: noqa: D102 -- they do what the names say
from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from typing import Any, Final

from attestation_operator.errors import ClusterUnavailable, SelectorRefused, WatchExpired
from attestation_operator.nodewatch import NodeWatch
from attestation_operator.objects import RUN, Key, Raw
from tests.unit.operator.doubles import Log

FIELD: Final = "spec.targetNodeName"


def run(name: str, version: int, node: Any = "n1") -> Raw:
    return {
        "metadata": {"name": name, "namespace": "team", "resourceVersion": str(version)},
        "spec": {"targetNodeName": node},
    }


SILENCE: Final = object()
"""A watch of which nothing comes, and no end."""
BOOKMARK: Final = ("BOOKMARK", {"metadata": {"resourceVersion": "50"}})


class Script:
    """Stands for `KubernetesCluster`: answers as it is told, and ends the test where nothing is left."""

    def __init__(self, *answers: Any, selects: bool = True) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[str, str | None, bool]] = []
        self.selects = selects

    def _next(self, verb: str, since: str | None, fields: Mapping[str, str] | None) -> Any:
        assert fields in (None, {FIELD: "n1"})
        self.asked.append((verb, since, fields is not None))
        if fields and not self.selects:
            raise SelectorRefused("400")
        if not self.answers:
            raise asyncio.CancelledError
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def listed(self, kind: Any, *, fields: Mapping[str, str] | None = None) -> tuple[list[Raw], str]:
        assert kind is RUN
        return self._next("list", None, fields), "10"

    async def watch(
        self, kind: Any, since: str, *, fields: Mapping[str, str] | None = None
    ) -> AsyncGenerator[tuple[str, Raw], None]:
        assert kind is RUN
        answer = self._next("watch", since, fields)
        if answer is SILENCE:
            await asyncio.Event().wait()
        for each in answer:
            if isinstance(each, Exception):
                raise each
            yield each


class World:
    """A watch over a script, and what it told."""

    def __init__(self, *answers: Any, selects: bool = True, relist_seconds: float = 600) -> None:
        self.script, self.log = Script(*answers, selects=selects), Log()
        self.told: list[tuple[str, bool]] = []
        self.said: list[str | None] = []
        watch = NodeWatch(
            self.script,  # type: ignore[arg-type]  # a double
            RUN,
            field=FIELD,
            value="n1",
            tell=self.tell,
            say=self.said.append,
            log=self.log,
            relist_seconds=relist_seconds,
            spread=lambda: 0.0,
        )

        async def go() -> None:
            task = asyncio.create_task(watch.run())
            await asyncio.wait([task])
            assert task.cancelled()

        asyncio.run(go())

    def tell(self, key: Key, raw: Raw | None) -> None:
        assert key == Key(kind=RUN, name=key.name, namespace="team")
        self.told.append((key.name, raw is not None))


def test_it_goes_on_where_the_watch_ended() -> None:
    """From the last object or bookmark; nothing is listed for that."""
    world = World([run("a", 1)], [("MODIFIED", run("a", 20))], [BOOKMARK], [])
    assert [since for _, since, _ in world.script.asked] == [None, "10", "20", "50", "50"]
    assert world.told == [("a", True)] * 2


def test_it_lists_anew_where_the_past_is_forgotten() -> None:
    """What went meanwhile is told as gone; that the past is forgotten is nothing to complain of."""
    world = World([run("a", 1), run("b", 2)], [BOOKMARK, WatchExpired("410")], [run("b", 2)])
    assert [verb for verb, _, _ in world.script.asked] == ["list", "watch", "list", "watch"]
    assert world.told == [("a", True), ("b", True), ("b", True), ("a", False)]
    assert world.said == [None, None]
    assert world.log.events == ["watch.expired"]


def test_it_lists_anew_from_time_to_time() -> None:
    """What a watch missed is found so."""
    world = World([], SILENCE, [run("a", 1)], SILENCE, relist_seconds=0)
    assert [verb for verb, _, _ in world.script.asked].count("list") == 3
    assert world.told == [("a", True)]


def test_a_server_that_is_away_is_asked_again() -> None:
    """And the reason is said, until a list is good again."""
    world = World(ClusterUnavailable("away"), [], [ClusterUnavailable("cut")], [])
    assert world.said == ["away", None, "cut", None]
    assert world.log.events == ["watch.failed"] * 2


def test_where_it_cannot_be_selected_there_it_is_selected_here() -> None:
    """All are asked for, and those of others are passed over; a server that selects badly is not believed either."""
    for selects in (False, True):
        world = World(
            [run("a", 1), run("b", 2, "n2"), run("c", 3, None), {**run("d", 4), "spec": "n1"}],
            [
                ("ADDED", run("e", 5, "n2")),
                ("MODIFIED", run("a", 6, "n2")),
                ("DELETED", run("b", 7, "n2")),
                ("ADDED", run("f", 8)),
                ("DELETED", run("f", 9)),
                ("DELETED", run("f", 9)),
            ],
            selects=selects,
        )
        assert world.told == [("a", True), ("a", False), ("f", True), ("f", False)]
        assert [fields for _, _, fields in world.script.asked][-1] is selects
