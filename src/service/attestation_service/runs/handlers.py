"""What the controller of a cluster asks of attestation runs: to open one, and what became of it (CONFIDENTIAL §3).

A run is opened once under its UID; whoever opens it again, with the same content, gets the open attempt, or the next
one where the last ended unanswered. The challenge itself is told to the agent of the node alone (docs/adr/0172).
"""

# Algorithms for: digest
from __future__ import annotations

import asyncio
import hashlib
import json
import secrets
from datetime import datetime, timedelta
from typing import Annotated, Final

import structlog
from fastapi import Path

from attestation.api import RunAttempt as Shown
from attestation.api import RunDetail, RunOpen, RunOpened
from attestation.api.node_csr import ObjectUID
from attestation.errors import (
    ChallengeExpired,
    Forbidden,
    PolicyInvalid,
    RateLimited,
    RequestInvalid,
    RunDiffers,
    RunUnknown,
)
from attestation.reference import identifier
from attestation.store import RateLimit, Run, RunAttempt, Tx
from attestation.wire import canonical_json
from attestation_service.auth import Controller, ControllerDep
from attestation_service.resources import Res, Resources
from attestation_service.runs import attempts

log = structlog.get_logger("attestation_service.runs")

RunUID = Annotated[ObjectUID, Path(description="`metadata.uid` of the run")]

LONGEST: Final = timedelta(minutes=10)
"""A deadline that is further away is refused: a run lasts five minutes at most, and clocks differ."""
APART: Final = timedelta(minutes=2)
"""So much the clock of a controller may differ from ours, that its deadlines are still kept by its own."""
OPENED: Final = RateLimit(requests=5_000, per_seconds=3_600)
"""So many runs of one namespace are opened in an hour, all at once where it wants to."""
OPENED_IN_CLUSTER: Final = RateLimit(requests=20_000, per_seconds=3_600)
"""Likewise of all: who may create runs in one namespace takes none from those of the others."""


async def open_run(uid: RunUID, request: RunOpen, *, res: Res, who: ControllerDep) -> RunOpened:
    """Open an attestation run of a node.

    The same run may be opened again: that gives the open attempt, or the next one where the last one ended without an
    answer and the deadline has not come.

    Raises:
        Forbidden: It is of another cluster than the token.
        PolicyInvalid: Its policy cannot be judged by.
        RequestInvalid: Its deadline is too far away.
        RunDiffers: Another run was opened under this UID.
        ChallengeExpired: Its deadline was over before it was opened.
    """
    at = res.clock.now()
    # Beside the loop: a policy may list hundreds of values.
    run = await asyncio.to_thread(_run, uid, request, who, at)
    left = request.deadline - _by_its_clock(request, at)
    before = await res.store.read(lambda tx: _before(tx, run))
    if before is not None and not _is_over(before[1], left, at):
        return _opened(*before)

    def conclude(tx: Tx) -> tuple[Run, RunAttempt, bool]:
        # Two controllers, or one that was restarted: the first opened it.
        again = _before(tx, run)
        if again is None:
            _write(tx, run, who, res, at, left)
            first = attempts.new_attempt(run, 1, res.settings, at, left=left)
            tx.runs.issue(first)
            return run, first, True
        found, latest = again
        if not _is_over(latest, left, at):
            return found, latest, False
        following = attempts.new_attempt(found, latest.attempt + 1, res.settings, at, left=left)
        tx.runs.issue(following)
        return found, following, True

    opened, attempt, new = await res.store.write(conclude)
    if new:
        log.info(
            "run.opened",
            cluster_id=opened.cluster_id,
            run=f"{opened.namespace}/{opened.name}",
            uid=opened.run_uid,
            node=opened.node_name,
            backend=opened.backend,
            attempt=attempt.attempt,
            service_account=who.service_account,
        )
    return _opened(opened, attempt)


async def show(uid: RunUID, *, res: Res, who: ControllerDep) -> RunDetail:
    """Return what became of an attestation run.

    Raises:
        RunUnknown: No such run of the caller's cluster is kept.
        RunDiffers: Its row is not what it was when an attempt was judged.
    """
    at = res.clock.now()

    def load(tx: Tx) -> tuple[Run, list[RunAttempt]]:
        run = demand(tx, who.cluster.cluster_id, uid)
        return run, tx.runs.attempts(run.run_id)

    run, made = await res.store.read(load)
    return RunDetail(
        uid=run.run_uid,
        cluster_id=run.cluster_id,
        namespace=run.namespace,
        name=run.name,
        node_name=run.node_name,
        node_uid=run.node_uid,
        backend=run.backend,
        policy_id=run.policy_id,
        policy_source=run.policy_source,
        deadline=run.deadline,
        attempts=tuple(_attempt(run, each, at) for each in made),
    )


def demand(tx: Tx, cluster_id: str, uid: str) -> Run:
    """Return a run of a cluster.

    Raises:
        RunUnknown: There is none.
    """
    run = tx.runs.get(cluster_id, uid)
    if run is None:
        raise RunUnknown("no such run of this cluster was opened, or it is kept no longer")
    return run


def _by_its_clock(request: RunOpen, at: datetime) -> datetime:
    """Return what time it is by the clock that the deadline is of, which may be ahead of ours or behind."""
    return at if request.asked_at is None else min(max(request.asked_at, at - APART), at + APART)


def _run(uid: str, request: RunOpen, who: Controller, at: datetime) -> Run:
    """Return the run that *request* describes; it is kept only if none is known under its UID."""
    cluster_id = who.cluster.cluster_id
    if request.cluster_id != cluster_id:
        raise Forbidden(f"the token is of the cluster {cluster_id}, the run of {request.cluster_id}")
    if request.deadline > _by_its_clock(request, at) + LONGEST:
        raise RequestInvalid(f"deadline: more than {LONGEST.seconds} s from now; compare the clocks")
    # When it is said is no part of what is said.
    said = request.model_dump(mode="json", exclude={"asked_at"})
    try:
        policy = canonical_json(request.policy).decode() if request.policy is not None else None
    except ValueError:
        # 1e400 is read as infinity, which JSON cannot say again.
        raise PolicyInvalid("policy: a number in it is none") from None
    return Run(
        run_id=secrets.token_bytes(attempts.ID_BYTES).hex(),
        cluster_id=cluster_id,
        run_uid=uid,
        namespace=request.namespace,
        name=request.name,
        node_name=request.node_name,
        node_uid=request.node_uid,
        backend=request.backend,
        nonce=request.nonce,
        policy=policy,
        policy_source=request.policy_source,
        policy_name=request.policy_name,
        policy_id=identifier(attempts.policy_in(policy, request.backend)[0]),
        content_sha256=hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest(),
        opened_at=at,
        deadline=request.deadline,
    )


def _before(tx: Tx, said: Run) -> tuple[Run, RunAttempt] | None:
    """Return a run that was opened before, and its last attempt; None where it is opened for the first time.

    Raises:
        RunDiffers: Another run is under its UID.
    """
    known = tx.runs.get(said.cluster_id, said.run_uid)
    if known is None:
        return None
    if known.content_sha256 != said.content_sha256:
        raise RunDiffers("another run was opened under this UID; GET shows it")
    # The unit that writes a run writes its first attempt.
    return known, tx.runs.attempts(known.run_id)[-1]


def _is_over(attempt: RunAttempt, left: timedelta, at: datetime) -> bool:
    """Return True where nobody answered in time, and there is time for another attempt."""
    return attempt.used_at is None and attempt.expires_at <= at and left > timedelta()


def _write(tx: Tx, run: Run, who: Controller, res: Resources, at: datetime, left: timedelta) -> None:
    if left <= timedelta():
        raise ChallengeExpired("the deadline of this run is over, and it was not opened before")
    if res.settings.rate_limits:
        # That of the namespace first: one that is refused takes nothing from its cluster.
        for key, limit in (
            (f"runs:{run.cluster_id}/{run.namespace}", OPENED),
            (f"runs:{run.cluster_id}", OPENED_IN_CLUSTER),
        ):
            seconds = tx.rate_limits.check(key, at, limit)
            if seconds is not None:
                raise RateLimited("too many runs of this namespace or cluster", retry_after_seconds=seconds)
            tx.rate_limits.take(key, at, limit)
    tx.runs.add(run)
    told = (
        f"{run.namespace}/{run.name} ({run.run_uid}): {run.backend} of node {run.node_name} ({run.node_uid})"
    )
    source = f"{run.policy_source} {run.policy_name}" if run.policy_name else run.policy_source
    tx.audit.append(who.event("run_opened", detail=f"{told}; policy {source}, {run.policy_id}"), at)


def _opened(run: Run, attempt: RunAttempt) -> RunOpened:
    return RunOpened(
        attempt=attempt.attempt,
        challenge_id=attempt.challenge_id,
        expires_at=attempt.expires_at,
        policy_id=run.policy_id,
    )


def _attempt(run: Run, attempt: RunAttempt, at: datetime) -> Shown:
    is_open = attempt.used_at is None and at < attempt.expires_at
    return Shown(
        attempt=attempt.attempt,
        state="open" if is_open else "expired" if attempt.used_at is None else "judged",
        challenge_id=attempt.challenge_id,
        expires_at=attempt.expires_at,
        challenge=None if is_open else attempts.shown(run, attempt),
        result=attempts.result_of(run, attempt),
    )
