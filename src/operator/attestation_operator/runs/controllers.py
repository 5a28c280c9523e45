"""The controller of attestation runs: it gathers what a decision rests on, asks the service, has the result applied.

Nothing is decided here, and nothing is remembered that matters: whatever line a process ends at, the next one looks
again at the run, and the service gives the answer that it gave.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Final

from prometheus_client import Counter

from attestation.api.runs import RunOpen, RunSeal
from attestation.errors import AttestationError, Unavailable
from attestation_operator.actions import Action, MergeStatus
from attestation_operator.controller import Around, Controller, Round
from attestation_operator.errors import ClusterRefused, ClusterUnavailable, ObjectChanged, ServiceAway
from attestation_operator.objects import NODE, POLICY, RESULT, RUN, Key, Kind, Raw
from attestation_operator.runs import policies, results
from attestation_operator.runs.cases import STEP_SECONDS, Answer, Ask, Case, Objects, RunOptions
from attestation_operator.runs.node_action import NodeAction, lapsed
from attestation_operator.runs.objects import Run, read_run
from attestation_operator.runs.reconcile import reconcile

ASK_SECONDS: Final = 3.0
"""Longest wait for the service to open a run or tell of it: a run ends at its deadline, ± 5 s, whatever it does."""
SEAL_SECONDS: Final = 30.0
"""Longest wait for a seal: it is logged and archived meanwhile."""
PASSED_OVER_SECONDS: Final = 2.0
"""So long after the service was away nobody asks it: a hundred runs must not wait one after the other."""
AWAY_SECONDS: Final = 3.0
"""After so long a run is looked at again where the API server is away."""
VERDICTS_SECONDS: Final = 60.0
"""How often it is looked whether a verdict on a Node is too old."""
MAX_TURNS: Final = 64
"""Of one look: objects read, questions asked, steps taken. More would be a decision that goes round."""


class Runs:
    """Takes runs to their end, and has written what comes of them.

    Args:
        around: What a controller is given.
        options: What the administrator chose.
    """

    name = "runs"

    def __init__(self, around: Around, options: RunOptions) -> None:
        self._around = around
        self._options = options
        self._service = _ServiceClient(around)
        self._ended = Counter(
            "itl_operator_runs_ended",
            "Attestation runs that this replica ended",
            ["backend", "phase", "verdict"],
            registry=around.metrics.registry,
        )

    @property
    def watches(self) -> Sequence[Kind]:
        """Runs."""
        return (RUN,)

    @property
    def rounds(self) -> Sequence[Round]:
        """None: a run says when it is to be looked at again."""
        return ()

    async def handle(self, key: Key, seen: Raw | None) -> float | None:
        """Do what is to be done about a run now."""
        try:
            return await self._look(key, seen)
        except ClusterUnavailable as e:
            # Not later and later, as the queue would: the deadline of a run does not wait for an API server.
            self._around.log.warning("run.waits", name=str(key), code=e.code, reason=str(e))
            return AWAY_SECONDS

    async def _look(self, key: Key, seen: Raw | None) -> float | None:
        raw = seen if seen is not None else await self._around.cluster.read(key)
        if raw is None:
            return None
        run = read_run(raw)
        objects, answers = Objects(), dict[Ask, Answer]()
        for _ in range(MAX_TURNS):
            looked = reconcile(
                Case(
                    run=run,
                    objects=objects,
                    at=self._around.clock.now(),
                    options=self._options,
                    answers=answers,
                )
            )
            if looked.read is not None:
                objects[looked.read] = await self._around.cluster.read(looked.read)
            elif looked.ask is not None:
                answers[looked.ask] = await self._service.ask(looked.ask, run.uid, looked.question)
            else:
                if looked.warning is not None:
                    self._around.log.warning(
                        "run.hindered", name=str(key), uid=run.uid, reason=looked.warning
                    )
                await self._around.executor.apply(looked.actions)
                self._count(run, looked.actions)
                if not looked.again:
                    return looked.after
                objects = Objects()
        self._around.log.error("run.goes_round", name=str(key), uid=run.uid)
        return STEP_SECONDS

    def _count(self, run: Run, actions: Sequence[Action]) -> None:
        for action in actions:
            if isinstance(action, MergeStatus) and "completionTime" in action.status:
                verdict = action.status.get("verdict", "none")
                self._ended.labels(run.backend, action.status["phase"], verdict).inc()
                self._around.log.info(
                    "run.ended", name=str(action.target), uid=run.uid, verdict=verdict, node=run.node_name
                )


class _ServiceClient:
    """The service, asked so that no run waits for it beyond its time.

    Args:
        around: What a controller is given.
        steady: Seconds that never jump.
    """

    def __init__(self, around: Around, *, steady: Callable[[], float] = time.monotonic) -> None:
        self._service = around.service
        self._steady = steady
        self._away: tuple[float, AttestationError] | None = None
        # A seal may take long. Others must not wait for it.
        self._seals = asyncio.Semaphore(max(1, around.settings.workers // 2))

    async def ask(self, ask: Ask, uid: str, question: RunOpen | RunSeal | None) -> Answer:
        """Return what the service says, or why it says nothing."""
        service = self._service
        if ask is Ask.SEAL:
            assert isinstance(question, RunSeal)
            if self._seals.locked():
                return ServiceAway("other seals come first")
            async with self._seals:
                return await self._answer(service.seal_run(uid, question), SEAL_SECONDS)
        if self._away is not None and self._steady() < self._away[0]:
            return self._away[1]
        if ask is Ask.OPEN:
            assert isinstance(question, RunOpen)
            answer = await self._answer(service.open_run(uid, question), ASK_SECONDS)
        else:
            answer = await self._answer(service.run(uid), ASK_SECONDS)
        until = self._steady() + PASSED_OVER_SECONDS
        self._away = (until, answer) if isinstance(answer, Unavailable) else None
        return answer

    async def _answer(self, asking: Awaitable[Answer], seconds: float) -> Answer:
        try:
            async with asyncio.timeout(seconds):
                return await asking
        except TimeoutError:
            return ServiceAway(f"no answer in {seconds:g} s")
        except AttestationError as e:
            return e


class Results:
    """Lets Results go when their time is over, and says when they are trusted no more.

    Args:
        around: What a controller is given.
        ttl: How long they are kept.
    """

    name = "results"

    def __init__(self, around: Around, ttl: timedelta) -> None:
        self._around = around
        self._ttl = ttl

    @property
    def watches(self) -> Sequence[Kind]:
        """Results."""
        return (RESULT,)

    @property
    def rounds(self) -> Sequence[Round]:
        """None."""
        return ()

    async def handle(self, key: Key, seen: Raw | None) -> float | None:
        """Look at one Result."""
        raw = seen if seen is not None else await self._around.cluster.read(key)
        if raw is None:
            return None
        actions, after = results.reconcile(raw, ttl=self._ttl, at=self._around.clock.now())
        await self._around.executor.apply(actions)
        return after


class Policies:
    """Says of each AttestationPolicy whether it can be followed.

    Args:
        around: What a controller is given.
    """

    name = "policies"

    def __init__(self, around: Around) -> None:
        self._around = around

    @property
    def watches(self) -> Sequence[Kind]:
        """AttestationPolicies."""
        return (POLICY,)

    @property
    def rounds(self) -> Sequence[Round]:
        """None."""
        return ()

    async def handle(self, key: Key, seen: Raw | None) -> float | None:
        """Look at one AttestationPolicy."""
        raw = seen if seen is not None else await self._around.cluster.read(key)
        if raw is not None:
            await self._around.executor.apply(policies.reconcile(raw, self._around.clock.now()))
        return None


class Verdicts:
    """Takes back what runs did to their Nodes, where no run has said it again for too long.

    Args:
        around: What a controller is given.
        action: What runs do to their Nodes.
        max_age: How long that holds.
    """

    name = "verdicts"

    def __init__(self, around: Around, action: NodeAction, max_age: timedelta) -> None:
        self._around = around
        self._action = action
        self._max_age = max_age

    @property
    def watches(self) -> Sequence[Kind]:
        """None: Nodes change all the time, and this is about those that do not."""
        return ()

    @property
    def rounds(self) -> Sequence[Round]:
        """Looking at all Nodes, where runs do anything to them."""
        if self._action is NodeAction.NONE:
            return ()
        return (Round(name="verdicts", seconds=VERDICTS_SECONDS, run=self.look),)

    async def handle(self, key: Key, seen: Raw | None) -> float | None:
        """Nothing is watched."""
        raise AssertionError(key, seen)

    async def look(self) -> None:
        """Look at all Nodes."""
        before = self._around.clock.now() - self._max_age
        for node in await self._around.cluster.list(NODE):
            try:
                await self._around.executor.apply(lapsed(node, action=self._action, before=before))
            except (ObjectChanged, ClusterRefused) as e:
                # The others are not kept waiting; its turn comes again.
                name = node["metadata"]["name"]
                self._around.log.info("verdict.not_lapsed", name=name, code=e.code, reason=str(e))


class Together:
    """Several duties of one program: each is told of the kinds that it watches.

    Args:
        name: Of the program.
        parts: The duties.
    """

    def __init__(self, name: str, parts: Sequence[Controller]) -> None:
        self.name = name
        self._parts = tuple(parts)

    @property
    def watches(self) -> Sequence[Kind]:
        """What any of them watches."""
        return tuple(dict.fromkeys(kind for part in self._parts for kind in part.watches))

    @property
    def rounds(self) -> Sequence[Round]:
        """What any of them does in between."""
        return tuple(each for part in self._parts for each in part.rounds)

    async def handle(self, key: Key, seen: Raw | None) -> float | None:
        """Have each look whose kind it is; again when the first of them wants to."""
        wanted = [await part.handle(key, seen) for part in self._parts if key.kind in part.watches]
        return min((each for each in wanted if each is not None), default=None)
