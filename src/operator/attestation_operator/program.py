"""What runs: probes always; watches, queue and rounds on the replica that holds the lease.

run ── probes, facts, rounds everywhere
 └── lead: as long as nobody says stop
      ├── Lease.attempt every 2 s, until it is held
      ├── act: Lease.lost ‖ Watcher ‖ WorkQueue ‖ relist ‖ rounds; the first that ends, ends them all
      └── Lease.release
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Final

import kopf

from attestation.clock import Clock
from attestation.errors import AttestationError
from attestation_operator.cluster import KubernetesCluster, config_from
from attestation_operator.controller import Around, Controller, Round
from attestation_operator.executor import KubernetesExecutor
from attestation_operator.health import Fact, Health
from attestation_operator.leadership import RETRY_SECONDS, Lease
from attestation_operator.metrics import Metrics
from attestation_operator.objects import MANAGER, Key, Kind
from attestation_operator.probes import answering
from attestation_operator.service import HTTPService
from attestation_operator.settings import LeaderSettings
from attestation_operator.watching import Watcher, connection
from attestation_operator.work import LONGEST_PAUSE_SECONDS, WorkQueue, pause_seconds

FACTS_SECONDS: Final = 15.0
ABSENT_SECONDS: Final = 30.0
"""How often it is asked for a kind that the API server does not have."""
END_SECONDS: Final = 25.0
"""From the word to stop until the process ends anyway; a pod has 30."""

_SPREAD: Final = random.SystemRandom()
"""Spreads pauses, so that replicas do not try again together."""

Make = Callable[[Around], Controller]


class _Lost(Exception):
    """The lease is not held any more; no error."""


class Program:
    """One controller with all that it stands on.

    Args:
        name: Of the controller.
        settings: What was chosen.
        make: Builds the controller.
        clock: Tells the time.
        log: structlog's.
    """

    def __init__(self, name: str, settings: LeaderSettings, make: Make, *, clock: Clock, log: Any) -> None:
        self._name = name
        self._settings = settings
        self._make = make
        self._clock = clock
        self._log = log
        self._stopped = asyncio.Event()
        self.health = Health()
        self.health.say("cluster", Fact(well=False, said="not asked yet"))
        self.metrics = Metrics()
        self.port: int | None = None

    def stop(self) -> None:
        """Come to the end."""
        self._stopped.set()

    async def run(self) -> None:
        """Run until told to stop.

        Raises:
            ClusterUnavailable: Nothing says where the API server is.
            SettingsInvalid: No namespace is known.
            RequestInvalid: The service's address or CA file cannot be used.
            OSError: The port of the probes is taken.
        """
        settings = self._settings
        namespace = settings.lease_namespace
        config = config_from(settings.kubeconfig)
        async with contextlib.AsyncExitStack() as stack:
            # The lease has a connection of its own: with much to do it would wait behind everything else, and end.
            cluster, of_lease = KubernetesCluster(config), KubernetesCluster(config)
            stack.push_async_callback(cluster.aclose)
            stack.push_async_callback(of_lease.aclose)
            service = HTTPService(
                settings.service_url,
                token_file=settings.token_file,
                ca_file=settings.service_ca_file,
                metrics=self.metrics,
                threads=settings.workers,
            )
            stack.callback(service.close)
            lease = Lease(
                of_lease,
                namespace=namespace,
                name=f"{MANAGER}-{self._name}",
                identity=settings.identity,
                clock=self._clock,
                log=self._log,
                tell=self._cluster_answers,
            )
            executor = KubernetesExecutor(
                cluster,
                name=self._name,
                instance=settings.identity,
                leading=lambda: lease.held,
                clock=self._clock,
                log=self._log,
            )
            controller = self._make(
                Around(
                    cluster=cluster,
                    executor=executor,
                    service=service,
                    clock=self._clock,
                    health=self.health,
                    metrics=self.metrics,
                    settings=settings,
                    log=self._log,
                )
            )
            self.port = await stack.enter_async_context(
                answering(settings.probes_at, settings.metrics_at, health=self.health, metrics=self.metrics)
            )
            self._log.info("operator.starts", controller=self._name, port=self.port, namespace=namespace)
            async with self._ending(), asyncio.TaskGroup() as tasks:
                tasks.create_task(self._service_answers(service))
                for each in controller.rounds:
                    if each.everywhere:
                        tasks.create_task(self._round(each))
                tasks.create_task(
                    self._lead(
                        lease, cluster, controller, lambda: connection(config_from(settings.kubeconfig))
                    )
                )
        self._log.info("operator.ends", controller=self._name)

    @contextlib.asynccontextmanager
    async def _ending(self) -> AsyncIterator[None]:
        """Cancel what the block does when the program is told to stop; wait for its end so long, and no longer."""
        inside = asyncio.current_task()
        assert inside is not None

        async def watch() -> None:
            await self._stopped.wait()
            inside.cancel()
            await asyncio.sleep(END_SECONDS)
            self._log.error("operator.not_ended")
            inside.cancel()

        watching = asyncio.create_task(watch())
        try:
            yield
        except asyncio.CancelledError:
            if not self._stopped.is_set():
                raise
            inside.uncancel()
        finally:
            watching.cancel()

    def _cluster_answers(self, well: bool) -> None:
        said = "answers" if well else "away, or it refuses the lease"
        self.health.say("cluster", Fact(well=well, said=said))

    async def _service_answers(self, service: HTTPService) -> None:
        """Note again and again whether the service answers.

        Without it nothing is decided, and no more would be if this pod were not ready: so it is told, and no more.
        """
        while True:
            away = await service.reachable()
            said = "answers" if away is None else f"away: {away}; nothing is decided until it is back"
            self.health.say("service", Fact(well=away is None, said=said, holds_back=False))
            await asyncio.sleep(FACTS_SECONDS)

    async def _round(self, each: Round) -> None:
        """Do it at the start and again and again; where it fails, soon again."""
        failures = 0
        if each.everywhere:
            self.health.say(f"round.{each.name}", Fact(well=False, said="not done yet"))
        while True:
            try:
                await each.run()
            except AttestationError as e:
                failures += 1
                self._log.warning("round.failed", round=each.name, code=e.code, reason=str(e))
                await asyncio.sleep(min(each.seconds, pause_seconds(failures, _SPREAD.random())))
                continue
            except Exception:  # noqa: BLE001 -- the border of a round: the next one may end better
                failures += 1
                self._log.exception("round.failed", round=each.name)
                await asyncio.sleep(min(each.seconds, pause_seconds(failures, _SPREAD.random())))
                continue
            failures = 0
            if each.everywhere:
                self.health.say(f"round.{each.name}", Fact(well=True, said="done"))
            await asyncio.sleep(each.seconds)

    async def _lead(
        self,
        lease: Lease,
        cluster: KubernetesCluster,
        controller: Controller,
        login: Callable[[], kopf.ConnectionInfo],
    ) -> None:
        """Wait for the lease, act while it is held, and so on."""
        try:
            while True:
                if not await lease.attempt():
                    await asyncio.sleep(RETRY_SECONDS)
                    continue
                self._log.info("lease.held", controller=self._name)
                self.metrics.leading.set(1)
                try:
                    await self._act(lease, cluster, controller, login)
                finally:
                    self.metrics.leading.set(0)
                self._log.warning("lease.lost", controller=self._name)
        finally:
            await asyncio.shield(lease.release())

    async def _act(
        self,
        lease: Lease,
        cluster: KubernetesCluster,
        controller: Controller,
        login: Callable[[], kopf.ConnectionInfo],
    ) -> None:
        """Do the work until the lease is lost."""
        queue = WorkQueue(
            controller.handle, metrics=self.metrics, log=self._log, workers=self._settings.workers
        )

        async def until_lost() -> None:
            await lease.lost()
            raise _Lost

        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(until_lost())
                tasks.create_task(queue.run())
                tasks.create_task(self._watch(cluster, controller, queue, login))
                tasks.create_task(self._relist(cluster, controller, queue))
                for each in controller.rounds:
                    if not each.everywhere:
                        tasks.create_task(self._round(each))
        except* _Lost:
            pass

    async def _watch(
        self,
        cluster: KubernetesCluster,
        controller: Controller,
        queue: WorkQueue,
        login: Callable[[], kopf.ConnectionInfo],
    ) -> None:
        """Have kopf watch; where it ends by itself, or not all kinds were there, begin anew after a pause."""
        failures = 0
        loop = asyncio.get_running_loop()
        while True:
            self.metrics.watches.inc()
            begun = loop.time()
            try:
                reason = await self._watched(cluster, Watcher(controller.watches, queue.add, login))
            except Exception as e:  # noqa: BLE001 -- the border of kopf: whatever ended it, it begins anew
                reason = f"{type(e).__name__}: {e}"
            # One that ran for long was well: what ended it is not what ended the last one.
            failures = 1 if loop.time() >= begun + LONGEST_PAUSE_SECONDS else failures + 1
            self._log.warning("watch.ended", reason=reason[:500])
            await asyncio.sleep(pause_seconds(failures, _SPREAD.random()))

    async def _watched(self, cluster: KubernetesCluster, watcher: Watcher) -> str:
        """Have kopf watch what is there until it ends, or until a kind comes that was not there; return why.

        kopf looks once which kinds there are. cert-manager may be installed after us, and anew.
        """
        absent = [kind for kind in watcher.kinds if not await self._serves(cluster, kind, unknown=True)]
        for kind in absent:
            self._log.warning("watch.kind_absent", kind=kind.kind, group=kind.group)
        tasks = [asyncio.create_task(watcher.run()), asyncio.create_task(self._comes(cluster, absent))]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            watching, coming = tasks
            if coming.done() and not watching.done():
                return f"there is a {coming.result()} now"
            await watching
            return "it ended"
        finally:
            for each in tasks:
                each.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _comes(self, cluster: KubernetesCluster, absent: Sequence[Kind]) -> str:
        """Return the first of *absent* that is there; never where none is absent."""
        while True:
            await asyncio.sleep(ABSENT_SECONDS)
            for kind in absent:
                if await self._serves(cluster, kind, unknown=False):
                    return kind.kind

    @staticmethod
    async def _serves(cluster: KubernetesCluster, kind: Kind, *, unknown: bool) -> bool:
        try:
            return await cluster.serves(kind)
        except AttestationError:
            return unknown

    async def _relist(self, cluster: KubernetesCluster, controller: Controller, queue: WorkQueue) -> None:
        """Look at everything again, from time to time: what a watch missed is found so."""
        while True:
            await asyncio.sleep(self._settings.relist_seconds)
            for kind in controller.watches:
                try:
                    async for raw in cluster.each(kind):
                        queue.add(Key.of(kind, raw), raw)
                except AttestationError as e:
                    self._log.warning("relist.failed", kind=kind.kind, code=e.code, reason=str(e))


async def run(name: str, settings: LeaderSettings, make: Make, *, clock: Clock, log: Any) -> None:
    """Run a controller until SIGTERM or SIGINT; see `Program.run`."""
    program = Program(name, settings, make, clock=clock, log=log)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, program.stop)
    await program.run()
