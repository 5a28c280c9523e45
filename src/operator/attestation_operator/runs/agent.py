"""What an agent does: for each run of its node that runs, one challenge, what the hardware signs, one answer.

A run is looked at when the watch tells of it; one device answers one at a time. Nothing is kept that matters: an agent
that begins anew asks for the challenge again, which is the same until it was answered, and collects again. It judges
nothing and writes nothing in Kubernetes: what it says is evidence, or why there is none.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Protocol, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from attestation.api.node import EvidenceItem
from attestation.api.runs import DeviceUnavailable, RunChallenge, RunEvidence
from attestation.errors import (
    AttestationError,
    ChallengeUsed,
    Conflict,
    DeviceError,
    Expired,
    RateLimited,
    Unavailable,
    Unknown,
)
from attestation.report_data import run_nonce
from attestation.runs import BACKENDS, Backend
from attestation.wire import b64decode
from attestation_operator.objects import RUN, Key, Raw, clipped
from attestation_operator.runs.agent_devices import DEVICES, ChallengeRefused, nonce_of
from attestation_operator.runs.agent_service import NodeClaim, RunService

T = TypeVar("T")

MAX_RUNS: Final = 256
"""So many runs of this node are known at the same time; what comes beyond waits for the next list."""
MAX_RUNS_OF_NAMESPACE: Final = MAX_RUNS // 2
"""Of them so many are of one namespace: who may create runs there leaves room for those of others."""
RUN_SECONDS: Final = 300.0
"""No run lasts longer (CONFIDENTIAL §2.1): so long a challenge is asked for where the service is away."""
CHALLENGE_SECONDS: Final = 60.0
"""No challenge lives longer (§1.5): so long its answer is brought again. The clock of this node is not asked."""
LONGEST_PAUSE_SECONDS: Final = 8.0
FIRST_PAUSE_SECONDS: Final = 0.25
MAX_DETAIL_BYTES: Final = 1024

_SPREAD: Final = random.SystemRandom()


class Outcome(StrEnum):
    """What became of an attempt, as far as the agent knows."""

    DELIVERED = "delivered"
    """Evidence was taken; the service judges it."""
    UNAVAILABLE = "unavailable"
    """The service was told why there is no evidence."""
    FORGOTTEN = "forgotten"
    """The challenge is over, or the run is not known to the service, or has ended."""
    REFUSED = "refused"
    """The service refused the answer, or asked what this node does not sign."""
    AWAY = "away"
    """The service could not be reached in time."""
    FAILED = "failed"
    """A fault of this program; the log has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A run that runs, as the watch told it.

    Args:
        uid: Of the run.
        name: `namespace/name`, for logs.
        backend: Which device answers.
        attempt: `status.attempt`; 1 where it says none.
        caller_nonce: `spec.nonce`, which is mixed into what is signed.
    """

    uid: str
    name: str
    backend: Backend
    attempt: int
    caller_nonce: str

    @classmethod
    def of(cls, raw: Raw) -> Seen | None:
        """Return what *raw* says; None where it does not run, or says what no run does."""
        metadata, spec, status = raw["metadata"], raw.get("spec") or {}, raw.get("status") or {}
        attempt, nonce = status.get("attempt", 1), spec.get("nonce") or ""
        if status.get("phase") != "Running" or spec.get("backend") not in BACKENDS:
            return None
        if not isinstance(attempt, int) or not isinstance(nonce, str):
            return None
        return cls(
            uid=metadata["uid"],
            name=str(Key.of(RUN, raw)),
            backend=spec["backend"],
            attempt=attempt,
            caller_nonce=nonce,
        )


class Collects(Protocol):
    """The devices of this node."""

    def collect(self, challenge: RunChallenge, node_uid: str) -> tuple[EvidenceItem, ...]:
        """Return what the hardware signs for *challenge*; `DeviceError` where it says nothing."""
        ...


class AgentMetrics:
    """What is counted, beside what each program of the operator counts."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.backends = Gauge(
            "itl_operator_agent_backend",
            "1 where the device of a backend was there at the start",
            ["backend"],
            registry=registry,
        )
        self.runs = Counter(
            "itl_operator_agent_runs",
            "Attempts of runs: delivered, unavailable, forgotten, refused, away, failed",
            ["backend", "outcome"],
            registry=registry,
        )
        self.collecting = Histogram(
            "itl_operator_agent_collecting_seconds",
            "How long a device takes over a challenge",
            ["backend"],
            buckets=(0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
            registry=registry,
        )
        self.waiting = Gauge(
            "itl_operator_agent_waiting", "Runs that wait for a device", ["device"], registry=registry
        )


class RunAgent:
    """The runs of this node, and who answers them. Belongs to one event loop.

    Args:
        service: Where challenges come from and answers go.
        devices: What collects evidence.
        node: Returns the node that our token names now.
        metrics: What is counted.
        log: structlog's.
        steady: Seconds that only grow.
        pause: Waits so many seconds.
    """

    def __init__(
        self,
        *,
        service: RunService,
        devices: Collects,
        node: Callable[[], NodeClaim | None],
        metrics: AgentMetrics,
        log: Any,
        steady: Callable[[], float] = time.monotonic,
        pause: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._service = service
        self._devices = devices
        self._node = node
        self._metrics = metrics
        self._log = log
        self._steady = steady
        self._pause = pause
        self._open: dict[str, Seen] = {}
        self._settled: dict[str, int] = {}
        self._waiting: dict[str, dict[str, None]] = {device: {} for device in DEVICES.values()}
        self._busy: set[str] = set()
        self._came = {device: asyncio.Event() for device in self._waiting}
        self._turns: dict[str, int] = {}
        self._failures = dict.fromkeys(self._waiting, 0)

    # What the watch tells

    def told(self, key: Key, raw: Raw | None) -> None:
        """Take note of a run as it is now; None where it is deleted."""
        name, run = str(key), None if raw is None else Seen.of(raw)
        known = self._open.get(name)
        if known is not None and (run is None or run.uid != known.uid):
            del self._open[name]
            self._settled.pop(known.uid, None)
            known = None
        if run is None:
            return
        if known is None and not self._has_room(name):
            self._log.warning("run.too_many", run=name, most=MAX_RUNS)
            return
        self._open[name] = run
        self._enqueue(run)

    def _has_room(self, name: str) -> bool:
        beside = sum(_namespace(each) == _namespace(name) for each in self._open)
        return len(self._open) < MAX_RUNS and beside < MAX_RUNS_OF_NAMESPACE

    def _next(self, waiting: dict[str, None]) -> str:
        """Take the run that comes first in the namespace whose turn was longest ago.

        Whoever may create runs in one namespace could otherwise keep a node from ever answering those of another.
        """
        name = min(waiting, key=lambda each: self._turns.get(_namespace(each), 0))
        del waiting[name]
        there = {_namespace(each) for each in self._open}
        self._turns = {space: turn for space, turn in self._turns.items() if space in there}
        self._turns[_namespace(name)] = max(self._turns.values(), default=0) + 1
        return name

    def _is_open(self, run: Seen) -> bool:
        now = self._open.get(run.name)
        return now is not None and now.uid == run.uid

    def _enqueue(self, run: Seen) -> None:
        if run.uid in self._busy or run.attempt <= self._settled.get(run.uid, 0):
            return
        device = DEVICES[run.backend]
        self._waiting[device][run.name] = None
        self._metrics.waiting.labels(device).set(len(self._waiting[device]))
        self._came[device].set()

    # What is done

    async def run(self) -> None:
        """Answer until cancelled: a task for each device."""
        async with asyncio.TaskGroup() as tasks:
            for device in self._waiting:
                tasks.create_task(self._serve(device))

    async def _serve(self, device: str) -> None:
        waiting, came = self._waiting[device], self._came[device]
        thread = ThreadPoolExecutor(1, thread_name_prefix=f"device-{device}")
        try:
            while True:
                while not waiting:
                    came.clear()
                    await came.wait()
                name = self._next(waiting)
                self._metrics.waiting.labels(device).set(len(waiting))
                if (run := self._open.get(name)) is not None:
                    await self._handle(run, thread)
        finally:
            # A device that hangs is not waited for: the process ends anyway.
            thread.shutdown(wait=False, cancel_futures=True)

    async def _handle(self, run: Seen, thread: ThreadPoolExecutor) -> None:
        self._busy.add(run.uid)
        settled = run.attempt
        try:
            outcome, attempt = await self._answer(run, thread)
            settled = max(settled, attempt)
        except _Later:
            # Behind the others: a run that the service cannot serve keeps none of them waiting for long.
            self._busy.discard(run.uid)
            self._enqueue(self._open.get(run.name) or run)
            return
        except Exception:  # noqa: BLE001 -- the border of one run: the others are answered all the same
            self._log.exception("run.failed", run=run.name, uid=run.uid)
            outcome = Outcome.FAILED
        finally:
            self._busy.discard(run.uid)
        self._metrics.runs.labels(run.backend, outcome.value).inc()
        self._log.info(
            "run.answered", run=run.name, uid=run.uid, attempt=settled, backend=run.backend, outcome=outcome
        )
        if self._is_open(run):
            self._settled[run.uid] = settled
        if (now := self._open.get(run.name)) is not None:
            # What the watch told in the meantime may be the next attempt, or another run of that name.
            self._enqueue(now)

    async def _answer(self, run: Seen, thread: ThreadPoolExecutor) -> tuple[Outcome, int]:
        """Fetch, collect and deliver; return what became of it, and of which attempt."""
        attempt = run.attempt
        try:
            node, challenge = await self._until(run, RUN_SECONDS, lambda: self._asked(run), yields=True)
            asked_at, attempt = self._steady(), challenge.attempt
            said = await self._collected(run, node, challenge, thread)
            left = CHALLENGE_SECONDS - (self._steady() - asked_at)
            await self._until(run, left, lambda: self._service.deliver(run.uid, said))
        except ChallengeUsed:
            # An answer of ours arrived, and what was said to it did not.
            return Outcome.DELIVERED, attempt
        except (Expired, Unknown, _Over) as e:
            self._log.info("run.forgotten", run=run.name, uid=run.uid, attempt=attempt, code=_code(e))
            return Outcome.FORGOTTEN, attempt
        except Unavailable as e:
            self._log.warning("run.not_answered", run=run.name, uid=run.uid, code=e.code, reason=str(e))
            return Outcome.AWAY, attempt
        except AttestationError as e:
            self._log.error(
                "run.refused", run=run.name, uid=run.uid, attempt=attempt, code=e.code, reason=str(e)
            )
            return Outcome.REFUSED, attempt
        return (Outcome.DELIVERED if said.unavailable is None else Outcome.UNAVAILABLE), attempt

    async def _asked(self, run: Seen) -> tuple[NodeClaim, RunChallenge]:
        """Return the challenge, and the node that our token named when it was asked for.

        Raises:
            ChallengeRefused: The token names no node: what would the evidence be of?
        """
        node = self._node()
        if node is None:
            raise ChallengeRefused("our token names no node any more")
        return node, await self._service.challenge(run.uid)

    async def _collected(
        self, run: Seen, node: NodeClaim, challenge: RunChallenge, thread: ThreadPoolExecutor
    ) -> RunEvidence:
        """Return what the device says, or why it says nothing.

        Raises:
            ChallengeRefused: It is none for this run.
        """
        _demand_of_run(run, challenge)
        loop = asyncio.get_running_loop()
        try:
            with self._metrics.collecting.labels(run.backend).time():
                items = await loop.run_in_executor(thread, self._devices.collect, challenge, node.uid)
        except DeviceError as e:
            self._log.warning(
                "device.unavailable",
                run=run.name,
                backend=run.backend,
                code=f"device-{e.fault}",
                reason=e.found,
            )
            why = DeviceUnavailable.model_validate(
                {"code": f"device-{e.fault}", "detail": clipped(e.found, MAX_DETAIL_BYTES)}
            )
            return RunEvidence(challenge_id=challenge.id, unavailable=why)
        return RunEvidence(challenge_id=challenge.id, evidence=items)

    async def _until(
        self, run: Seen, seconds: float, ask: Callable[[], Awaitable[T]], *, yields: bool = False
    ) -> T:
        """Ask, and again with growing pauses while the service is away, for so many seconds at most.

        Args:
            run: For which.
            seconds: How long.
            ask: What is asked.
            yields: After a failure it is the turn of the others, where any wait.

        Raises:
            _Over: The run ended in the meantime.
            _Later: Others wait.
            AttestationError: What the service refuses with; `Unavailable` where the time is over.
        """
        device, ends = DEVICES[run.backend], self._steady() + seconds
        while True:
            if not self._is_open(run):
                raise _Over
            try:
                answer = await ask()
            except ChallengeUsed:
                raise
            except (Unavailable, RateLimited, Conflict) as e:
                self._failures[device] += 1
                wait = _pause_seconds(self._failures[device], getattr(e, "retry_after_seconds", None))
                if self._steady() + wait > ends:
                    if isinstance(e, Unavailable):
                        raise
                    raise Unavailable(f"the service answered {e.code} until the time was over") from e
                await self._pause(wait)
                if yields and self._waiting[device]:
                    raise _Later from e
            else:
                self._failures[device] = 0
                return answer


class _Later(Exception):
    """Others wait for the device, and this run for the service; no error."""


class _Over(Exception):
    """The run ended while it was being answered; no error."""


def _namespace(name: str) -> str:
    return name.partition("/")[0]


def _code(error: Exception) -> str:
    return error.code if isinstance(error, AttestationError) else "run-ended"


def _pause_seconds(failures: int, asked_for: int | None) -> float:
    longest = min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2.0 ** min(failures, 16))
    pause = longest * _SPREAD.uniform(0.5, 1.0)
    # All nodes are told the same: they come back apart.
    return pause if not asked_for else max(pause, asked_for + _SPREAD.uniform(0.0, 1.0))


def _demand_of_run(run: Seen, challenge: RunChallenge) -> None:
    """Check that what is to be signed is the nonce of this run, and so a statement of no other protocol.

    Without it, whoever answers as the service could have the AK sign what counts elsewhere: an acknowledgement, a key.

    Raises:
        ChallengeRefused: It is not.
    """
    if challenge.backend != run.backend:
        raise ChallengeRefused(f"a challenge for {challenge.backend}, the run is for {run.backend}")
    mixed = run_nonce(b64decode(challenge.random, "random"), run.uid, run.caller_nonce.encode())
    if nonce_of(challenge) != mixed:
        raise ChallengeRefused("a nonce that is not the run's")
