"""The agent as a process: probes and metrics, one watch, the devices. No lease: each node has its own.

run ── probes ‖ metrics ‖ service answers? ‖ NodeWatch ‖ RunAgent; until SIGTERM or SIGINT
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from typing import Any, Final

from attestation.clock import Clock
from attestation.runs import BACKENDS
from attestation_operator.cluster import KubernetesCluster, config_from
from attestation_operator.errors import TokenMissing
from attestation_operator.health import Fact, Health
from attestation_operator.metrics import Metrics
from attestation_operator.nodewatch import NodeWatch
from attestation_operator.objects import RUN
from attestation_operator.probes import answering
from attestation_operator.runs.agent import AgentMetrics, RunAgent
from attestation_operator.runs.agent_devices import Devices
from attestation_operator.runs.agent_service import HTTPRunService, NodeClaim, claim_of
from attestation_operator.runs.agent_settings import AgentSettings
from attestation_operator.settings import PREFIX, SettingsInvalid

FIELD: Final = "spec.targetNodeName"
FACTS_SECONDS: Final = 15.0
THREADS: Final = 4
"""Requests at the same time: one for each device, and whether the service answers."""
END_SECONDS: Final = 5.0


class AgentProgram:
    """The agent with all that it stands on.

    Args:
        settings: What was chosen.
        log: structlog's.
        devices: Those that *settings* name, unless a test brings others.

    Attributes:
        port: Of the probes, once it runs.
    """

    def __init__(self, settings: AgentSettings, *, log: Any, devices: Devices | None = None) -> None:
        self._settings = settings
        self._log = log
        self._devices = devices or Devices(settings.places, warn=log.warning)
        self._stopped = asyncio.Event()
        self.health = Health()
        self.health.say("cluster", Fact(well=False, said="not asked yet"))
        self.metrics = Metrics()
        self.agent_metrics = AgentMetrics(self.metrics.registry)
        self.port: int | None = None

    def stop(self) -> None:
        """Come to the end."""
        self._stopped.set()

    async def run(self) -> None:
        """Run until told to stop.

        Raises:
            SettingsInvalid: The token names another node than the settings, or none.
            TokenMissing: There is no token.
            ClusterUnavailable: Nothing says where the API server is.
            RequestInvalid: The service's address or CA file cannot be used.
            OSError: A port is taken.
        """
        settings = self._settings
        demand_of_node(settings)
        async with contextlib.AsyncExitStack() as stack:
            service = HTTPRunService(
                settings.service_url,
                token_file=settings.token_file,
                ca_file=settings.service_ca_file,
                metrics=self.metrics,
                threads=THREADS,
            )
            stack.callback(service.close)
            self.port = await stack.enter_async_context(
                answering(settings.probes_at, settings.metrics_at, health=self.health, metrics=self.metrics)
            )
            agent = RunAgent(
                service=service,
                devices=self._devices,
                node=self._node,
                metrics=self.agent_metrics,
                log=self._log,
            )
            cluster = KubernetesCluster(config_from(settings.kubeconfig))
            stack.push_async_callback(cluster.aclose)
            watch = NodeWatch(
                cluster,
                RUN,
                field=FIELD,
                value=settings.node_name,
                tell=agent.told,
                say=self._cluster_answers,
                log=self._log,
            )
            self._log.info("agent.starts", node=settings.node_name, port=self.port)
            tasks = [
                asyncio.create_task(each)
                for each in (watch.run(), agent.run(), self._service_answers(service), self._tell_backends())
            ]
            await self._until_stopped(tasks)
        self._log.info("agent.ends")

    async def _until_stopped(self, tasks: list[asyncio.Task[None]]) -> None:
        """Wait for the word to stop, or for a task to fail; end all of them."""
        stopped = asyncio.create_task(self._stopped.wait())
        try:
            running = {stopped, *tasks}
            while not stopped.done():
                done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for each in done - {stopped}:
                    each.result()  # a task that fails ends the program; one that is through does not
        finally:
            for each in (stopped, *tasks):
                each.cancel()
            await asyncio.wait([stopped, *tasks], timeout=END_SECONDS)

    def _node(self) -> NodeClaim | None:
        return claim_of(self._settings.token_file)

    def _cluster_answers(self, fault: str | None) -> None:
        self.health.say("cluster", Fact(well=fault is None, said=fault or "answers"))

    async def _service_answers(self, service: HTTPRunService) -> None:
        while True:
            away = await service.reachable()
            said = "answers" if away is None else f"away: {away}; runs are answered when it is back"
            self.health.say("service", Fact(well=away is None, said=said, holds_back=False))
            await asyncio.sleep(FACTS_SECONDS)

    async def _tell_backends(self) -> None:
        """Tell once which devices are there; a run is answered in any case."""
        found = await asyncio.to_thread(self._devices.found)
        for backend in BACKENDS:
            self.agent_metrics.backends.labels(backend).set(backend in found)
        words = ", ".join(each for each in BACKENDS if each in found) or "none"
        self._log.info("agent.backends", found=words)
        said = words if found else "none: runs are answered with `unavailable`"
        self.health.say("devices", Fact(well=bool(found), said=said, holds_back=False))


def demand_of_node(settings: AgentSettings) -> None:
    """Check that our token names the node that the settings name.

    Raises:
        SettingsInvalid: It does not. The service would refuse each answer.
        TokenMissing: There is none.
    """
    claim = claim_of(settings.token_file)
    if claim is None:
        raise TokenMissing(
            f"{settings.token_file}: names no node: a token that is bound to a pod does, from Kubernetes 1.32 on"
        )
    if claim.name != settings.node_name:
        raise SettingsInvalid(
            f"{PREFIX}NODE_NAME: is {settings.node_name}, the token in {settings.token_file} is of {claim.name}"
        )


async def run(settings: AgentSettings, *, clock: Clock, log: Any) -> None:  # noqa: ARG001 -- it asks no clock
    """Run the agent until SIGTERM or SIGINT; see `AgentProgram.run`."""
    program = AgentProgram(settings, log=log)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, program.stop)
    await program.run()
