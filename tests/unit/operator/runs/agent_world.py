"""A service and devices that are told what to do, and runs as a watch shows them: what tests of the agent are given."""

# ruff: noqa: D102 -- they do what the names say
from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from prometheus_client import CollectorRegistry

from attestation.api.node import EvidenceItem
from attestation.api.runs import RunChallenge, RunEvidence
from attestation.report_data import run_nonce
from attestation.wire import b64encode
from attestation_operator.objects import RUN, Key
from attestation_operator.runs.agent import AgentMetrics, RunAgent
from attestation_operator.runs.agent_service import NodeClaim
from tests.unit.operator.doubles import Log

NODE = NodeClaim(name="n1", uid="node-uid-1")
EXPIRES = datetime(2026, 11, 26, 12, 1, tzinfo=UTC)
ITEM = EvidenceItem(media_type="application/vnd.itl.tpm-quote", value={"pcr_quote": b64encode(b"signed")})
RANDOM = bytes(range(32))


def run(uid: str = "u1", **changed: Any) -> dict[str, Any]:
    """Return a run that runs; *changed* are members of `spec` and `status`."""
    spec = {"backend": "tpm", "targetNodeName": NODE.name, "timeout": "2m"}
    status = {"phase": "Running", "attempt": 1}
    spec |= {name: value for name, value in changed.items() if name in ("backend", "targetNodeName", "nonce")}
    status |= {name: value for name, value in changed.items() if name in ("phase", "attempt")}
    return {
        "metadata": {"uid": uid, "name": f"run-{uid}", "namespace": "attest", "resourceVersion": "1"},
        "spec": spec,
        "status": status,
    }


def challenge(uid: str = "u1", attempt: int = 1, caller_nonce: str = "", **changed: Any) -> RunChallenge:
    """Return the challenge of an attempt."""
    members: dict[str, Any] = {
        "id": f"{attempt:032x}",
        "random": b64encode(RANDOM),
        "nonce": b64encode(run_nonce(RANDOM, uid, caller_nonce.encode())),
        "expires_at": EXPIRES,
        "attempt": attempt,
        "backend": "tpm",
        "pcr_bank": "sha256",
        "pcrs": (0, 1, 7),
    }
    return RunChallenge.model_validate(members | changed)


class Service:
    """Answers as it is told: for each question the next of its answers, the last one again and again."""

    def __init__(self) -> None:
        self.challenges: list[Any] = [challenge()]
        self.answers: list[Any] = [None]
        self.asked: list[str] = []
        self.delivered: list[tuple[str, RunEvidence]] = []

    async def challenge(self, uid: str) -> RunChallenge:
        self.asked.append(uid)
        said: RunChallenge = _next(self.challenges)
        return said

    async def deliver(self, uid: str, evidence: RunEvidence) -> None:
        self.delivered.append((uid, evidence))
        _next(self.answers)


def _next(answers: list[Any]) -> Any:
    said = answers.pop(0) if len(answers) > 1 else answers[0]
    if isinstance(said, Exception):
        raise said
    return said


class Device:
    """Collects what it is told, and says for which node and how many at the same time."""

    def __init__(self) -> None:
        self.says: Callable[[RunChallenge], tuple[EvidenceItem, ...]] = lambda _: (ITEM,)
        self.asked: list[tuple[str, str]] = []

    def collect(self, challenge: RunChallenge, node_uid: str) -> tuple[EvidenceItem, ...]:
        self.asked.append((challenge.backend, node_uid))
        return self.says(challenge)


class World:
    """An agent among them. Its pauses are told and not waited for; its clock moves by them."""

    def __init__(self) -> None:
        self.service, self.device, self.log = Service(), Device(), Log()
        self.node: NodeClaim | None = NODE
        self.at = 0.0
        self.paused: list[float] = []
        self.on_pause: Callable[[], None] = lambda: None
        self.registry = CollectorRegistry()
        self._runner = asyncio.Runner()  # one loop: the agent belongs to it
        self.agent = RunAgent(
            service=self.service,
            devices=self.device,
            node=lambda: self.node,
            metrics=AgentMetrics(self.registry),
            log=self.log,
            steady=lambda: self.at,
            pause=self._pause,
        )

    def close(self) -> None:
        """End the loop."""
        self._runner.close()

    async def _pause(self, seconds: float) -> None:
        self.paused.append(seconds)
        self.at += seconds
        self.on_pause()
        await asyncio.sleep(0)

    def tell(self, raw: dict[str, Any], *, gone: bool = False) -> None:
        """Tell the agent of a run as it is now, or that it is deleted."""
        self.agent.told(Key.of(RUN, raw), None if gone else raw)

    def outcomes(self, backend: str = "tpm") -> dict[str, float]:
        """Return how often each outcome came."""
        return {
            sample.labels["outcome"]: sample.value
            for metric in self.registry.collect()
            for sample in metric.samples
            if sample.name == "itl_operator_agent_runs_total" and sample.labels["backend"] == backend
        }

    def until(self, found: Callable[[], bool], *runs: dict[str, Any]) -> None:
        """Tell the agent of *runs* and let it work until it is so."""

        async def work() -> None:
            async with asyncio.timeout(30):
                task = asyncio.create_task(self.agent.run())
                for raw in runs:
                    self.tell(raw)
                while not found():
                    assert not task.done(), task.exception()
                    await asyncio.sleep(0.001)
                task.cancel()
                await asyncio.wait([task])

        self._runner.run(work())

    def after(self, outcomes: int, *runs: dict[str, Any]) -> dict[str, float]:
        """Tell it of *runs*, let it come to so many outcomes, and return them."""
        self.until(lambda: sum(self.outcomes().values()) >= outcomes, *runs)
        return self.outcomes()
