"""Sealing what was judged: signed, logged, archived (CONFIDENTIAL §2.6, docs/adr/0175).

    Pending ─ the service's key signs; one unit: signature and audit entry ─► Signed
    Signed  ─ a checkpoint covers the entry ─► Logged
    Logged  ─ the file is in the archive ─► Sealed        other content is there ─► Failed

Each arrow is one unit that goes on from the phase it saw: of any number who try exactly one goes on, and a crash
between two leaves the phase of before. What fails is written down and tried again, later and later.
"""

# Algorithms for: digest
from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from random import SystemRandom
from typing import Any, Final

import structlog

from attestation.api import RunBundle, SealArchive, SealFailure, SealLogEntry
from attestation.api import RunSeal as Wanted
from attestation.audit import AuditEvent, canonical_bytes
from attestation.audit.merkle import inclusion_proof
from attestation.errors import AttestationError, MalformedEvidence, RequestInvalid, RunDiffers, Unavailable
from attestation.reference.identifier import canonical, named
from attestation.runs import STAGES, SealPhase, SealStage
from attestation.sealing import (
    ACTION,
    MEDIA_TYPE,
    PAYLOAD_TYPE,
    SUFFIX,
    Attestor,
    LogProof,
    SealedObject,
    Statement,
    entry_detail,
    make_statement,
    parse,
    service_key,
    write,
)
from attestation.sealing.keys import public_members
from attestation.sealing.statement import digest_of
from attestation.store import Run, RunAttempt, RunBlob, RunSeal, StoredCheckpoint, Tx
from attestation.wire import b64decode, b64encode, jcs
from attestation_service import __version__
from attestation_service.archive import ArchiveFault, Fault
from attestation_service.auth import ControllerDep
from attestation_service.resources import Res, Resources
from attestation_service.runs.agreement import agreed
from attestation_service.runs.attempts import context_of
from attestation_service.runs.handlers import RunUID, demand
from attestation_service.storage.chores import MAINTENANCE

log = structlog.get_logger("attestation_service.runs")

NAME: Final = "itl-attestation-service"
FAILURES_KEPT: Final = 10
FIRST_WAIT: Final = timedelta(seconds=5)
MOST_WAIT: Final = timedelta(minutes=5)
TICK_SECONDS: Final = 2.0
BATCH: Final = 20
NOTHING_ELSE_WORKS: Final = frozenset({Fault.FULL, Fault.DENIED, Fault.UNREACHABLE, Fault.FAILED})
"""After one of these the archive is left alone until the next tick: others would fail as this one."""


class _NotYet(Exception):
    """A step cannot be done now.

    Args:
        stage: Which.
        reason: A word.
        detail: For people.
        final: Waiting does not change it.
    """

    def __init__(self, stage: SealStage, reason: str, detail: str, *, final: bool = False) -> None:
        super().__init__(detail)
        self.failure = (stage, reason, detail)
        self.final = final


async def seal(uid: RunUID, request: Wanted, *, res: Res, who: ControllerDep) -> RunBundle:
    """Have what was judged of a run sealed: its event, result, policy and evidence.

    The same may be asked again, and tells how far it is; the service goes on by itself.

    Raises:
        RunUnknown: No such run of the caller's cluster is kept.
        RunDiffers: Event or result tell something else than was judged, or another bundle is the run's.
        RequestInvalid: A spec has no canonical form, or lacks what is told of it.
    """
    at = res.clock.now()
    said = request.model_dump(mode="json")
    try:
        content = hashlib.sha256(jcs(said)).hexdigest()
    except ValueError as e:
        raise RequestInvalid(f"event or result: {e}") from e

    def begin(tx: Tx) -> RunSeal:
        run = demand(tx, who.cluster.cluster_id, uid)
        found = tx.run_seals.get(run.run_id)
        if found is not None:
            return _same(found, content)
        attempt = agreed(request, run, tx.runs.attempts(run.run_id), at)
        # Here, before anything is kept: what cannot be told never could.
        _statement(request, run, attempt, tx.runs.blobs(attempt.challenge_id), res, at)
        asked = who.event("run_sealed")
        new = RunSeal(
            run_id=run.run_id,
            cluster_id=run.cluster_id,
            run_uid=run.run_uid,
            bundle_uid=request.bundle_uid,
            challenge_id=attempt.challenge_id,
            content_sha256=content,
            request=request.model_dump_json(),
            asked_by=asked.operator_cn,
            asked_sub=asked.operator_sub,
            phase="Pending",
            next_at=at,
        )
        if not tx.run_seals.add(new):
            raise RunDiffers("this bundle is another run's")
        return new

    found = await res.store.read(lambda tx: tx.run_seals.get(demand(tx, who.cluster.cluster_id, uid).run_id))
    row = _same(found, content) if found is not None else await res.store.write(begin)
    return shown(await advance(row.run_id, res, archives=False))


def _same(found: RunSeal, content: str) -> RunSeal:
    if found.content_sha256 != content:
        raise RunDiffers("another event, result or bundle of this run is being sealed")
    return found


async def run(res: Resources) -> None:
    """Let seals go on, again and again until cancelled; an error is logged and waited out."""
    while True:
        await asyncio.sleep(TICK_SECONDS * SystemRandom().uniform(0.5, 1.5))
        if not res.chores.holds(MAINTENANCE):
            continue
        try:
            await advance_due(res)
        except AttestationError as e:
            log.warning("run.seals_wait", code=e.code)
        except Exception as e:  # noqa: BLE001 -- the outermost border of this task: it must not end
            log.error("run.seals_wait", kind=type(e).__name__)  # noqa: TRY400 -- the message may quote a row


async def advance_due(res: Resources) -> int:
    """Let the seals that are due go on, a batch of them; return how many."""
    at = res.clock.now()

    def load(tx: Tx) -> list[str]:
        newest = tx.audit.tree.newest_checkpoint()
        return tx.run_seals.due(at, 0 if newest is None else newest.size, BATCH)

    due = await res.store.read(load)
    for number, run_id in enumerate(due, 1):
        row = await advance(run_id, res, archives=True)
        if row.failures != "[]" and row.tries and _failures(row)[-1].reason in NOTHING_ELSE_WORKS:
            return number
    return len(due)


async def advance(run_id: str, res: Resources, *, archives: bool) -> RunSeal:
    """Let a seal go on as far as it can, and return it.

    Args:
        run_id: Of which run.
        res: What the process owns.
        archives: The archive may be asked, which may take long.
    """
    while True:
        at = res.clock.now()
        row = await res.store.read(lambda tx: tx.run_seals.get(run_id))
        assert row is not None
        if row.next_at is None or row.next_at > at:
            return row
        following: bool | None
        try:
            match row.phase:
                case "Pending":
                    following = await _sign(row, res, at)
                case "Signed":
                    following = await _prove(row, res)
                case "Logged" if archives:
                    following = await _archive(row, res, at)
                case _:
                    return row
        except _NotYet as e:
            return await _fail(row, e, res, at)
        except Unavailable:
            raise
        except AttestationError as e:
            # Of a newer version, perhaps: what was good when it was asked for. No reason to hold up others.
            return await _fail(row, _NotYet(STAGES[row.phase], e.code, str(e)), res, at)
        except ValueError as e:
            # Likewise, where what is kept cannot be read. The message may quote it.
            unread = f"what is kept of it cannot be read: {type(e).__name__}"
            return await _fail(row, _NotYet(STAGES[row.phase], RequestInvalid.code, unread), res, at)
        if following is None:
            return row


async def _sign(row: RunSeal, res: Resources, at: datetime) -> bool:
    """Sign the statement, and bind it to the log: what is signed and not logged proves nothing.

    Raises:
        RunDiffers: The row says something else than was judged.
    """
    request = Wanted.model_validate_json(row.request)

    def load(tx: Tx) -> tuple[Run, RunAttempt, list[RunBlob]]:
        run = demand(tx, row.cluster_id, row.run_uid)
        # Once more: between what was asked and what is signed is a row, which authority does not cover. What it is
        # compared with is covered: who changes both is found by the audit.
        attempt = agreed(request, run, tx.runs.attempts(run.run_id), at)
        return run, attempt, tx.runs.blobs(attempt.challenge_id)

    run, attempt, blobs = await res.store.read(load)
    if attempt.challenge_id != row.challenge_id:
        raise RunDiffers("the row names another attempt than its request")
    statement = _statement(request, run, attempt, blobs, res, at)
    try:
        signer = res.signer
        key = service_key(public_members(signer.active_jwk()))
        signature = await asyncio.to_thread(signer.sign_dsse, statement.data, payload_type=PAYLOAD_TYPE)
    except AttestationError as e:
        raise _NotYet("Signed", e.code, str(e)) from e
    event = AuditEvent(
        operator_cn=row.asked_by,
        operator_sub=row.asked_sub,
        action=ACTION,
        machine_id=attempt.machine_id,
        detail=entry_detail(
            statement=statement.digest, key_id=key.key_id, bundle_uid=row.bundle_uid, run_uid=row.run_uid
        ),
    )

    def conclude(tx: Tx) -> bool:
        now = tx.run_seals.get(row.run_id)
        if now is None or now.phase != row.phase:
            return True  # another was faster; this signature is nobody's
        entry = tx.audit.append(event, at)
        signed = replace(
            row,
            phase="Signed",
            statement=statement.data,
            signature=signature,
            key=jcs(key.jwk).decode(),
            signed_at=at,
            entry=canonical_bytes(entry),
            entry_index=tx.audit.tree.size() - 1,
            tries=0,
            next_at=at,
        )
        return tx.run_seals.go_on(signed, was=row.phase)

    await res.store.write(conclude)
    log.info("run.sealed", uid=row.run_uid, cluster_id=row.cluster_id, statement=statement.digest)
    return True


async def _prove(row: RunSeal, res: Resources) -> bool | None:
    """Prove that a checkpoint covers the entry; None where none does yet."""

    def load(tx: Tx) -> tuple[StoredCheckpoint, list[bytes]] | None:
        assert row.entry_index is not None
        newest = tx.audit.tree.newest_checkpoint()
        if newest is None or newest.size <= row.entry_index:
            return None
        return newest, inclusion_proof(tx.audit.tree, row.entry_index, newest.size)

    found = await res.store.read(load)
    if found is None:
        return None
    newest, hashes = found
    # The row of a database is no proof that this log signed it; what is archived could not be taken back.
    try:
        await asyncio.to_thread(res.transparency.signer.verify, newest.note)
    except AttestationError as e:
        raise _NotYet("Logged", e.code, str(e)) from e
    entry = SealLogEntry(
        origin=newest.note.partition("\n")[0],
        index=row.entry_index or 0,
        tree_size=newest.size,
        root_hash=b64encode(newest.root),
        hashes=tuple(map(b64encode, hashes)),
        checkpoint=newest.note,
    )
    logged = replace(row, phase="Logged", log=entry.model_dump_json(), tries=0)
    await res.store.write(lambda tx: tx.run_seals.go_on(logged, was=row.phase))
    return True


async def _archive(row: RunSeal, res: Resources, at: datetime) -> bool:
    data = await file_of(row, res)
    # What is kept cannot be taken back: a file that nobody could believe must not stand in the place of this one.
    await asyncio.to_thread(_demand_readable, data)
    assert row.signed_at is not None
    name = f"{row.cluster_id}/{row.signed_at:%Y}/{row.signed_at:%m}/{row.bundle_uid}{SUFFIX}"
    try:
        stored = await asyncio.to_thread(res.archive.put, name, data, MEDIA_TYPE)
    except ArchiveFault as e:
        raise _NotYet("Archived", e.fault, str(e), final=e.fault is Fault.OTHER_CONTENT) from e
    except ValueError as e:
        raise _NotYet("Archived", Fault.FAILED, str(e), final=True) from e
    kept = SealArchive(
        media_type=MEDIA_TYPE, url=stored.url, sha256=hashlib.sha256(data).hexdigest(), size=len(data)
    )
    sealed = replace(
        row,
        phase="Sealed",
        archive=kept.model_dump_json(),
        sealed_at=at,
        tries=0,
        next_at=None,
    )
    await res.store.write(lambda tx: tx.run_seals.go_on(sealed, was=row.phase))
    log.info("run.archived", uid=row.run_uid, cluster_id=row.cluster_id, url=stored.url)
    return True


def _demand_readable(data: bytes) -> None:
    """Check that *data* reads as a bundle whose lines are what was signed.

    Raises:
        MalformedEvidence: It is longer, or otherwise, than readers take.
        RunDiffers: The rows say something else than when it was signed.
    """
    seal = parse(data)
    if json.loads(seal.statement)["subject"] != [each.descriptor() for each in seal.subjects]:
        raise RunDiffers("what was signed is not what is kept of the run")


async def file_of(row: RunSeal, res: Resources) -> bytes:
    """Return the file of a seal that is logged: the same bytes each time."""

    def load(tx: Tx) -> tuple[Run, RunAttempt, list[RunBlob]]:
        run = demand(tx, row.cluster_id, row.run_uid)
        (attempt,) = (each for each in tx.runs.attempts(run.run_id) if each.challenge_id == row.challenge_id)
        return run, attempt, tx.runs.blobs(row.challenge_id)

    run, attempt, blobs = await res.store.read(load)

    def make() -> bytes:
        assert row.statement is not None
        assert row.signature is not None
        assert row.key is not None
        assert row.log is not None
        assert row.entry is not None
        assert row.signed_at is not None
        made = _statement(Wanted.model_validate_json(row.request), run, attempt, blobs, res, row.signed_at)
        entry = SealLogEntry.model_validate_json(row.log)
        return write(
            replace(made, data=row.statement),
            signature=row.signature,
            key=service_key(json.loads(row.key)),
            log=LogProof(
                entry=row.entry,
                origin=entry.origin,
                index=entry.index,
                tree_size=entry.tree_size,
                root=b64decode(entry.root_hash, "root"),
                hashes=tuple(b64decode(each, "hash") for each in entry.hashes),
                checkpoint=entry.checkpoint,
            ),
        )

    return await asyncio.to_thread(make)


def _statement(
    request: Wanted,
    run: Run,
    attempt: RunAttempt,
    blobs: Sequence[RunBlob],
    res: Resources,
    at: datetime,
) -> Statement:
    """Return what is stated of a run.

    Raises:
        RequestInvalid: A spec has no canonical form, or lacks what is told of it.
        RunDiffers: The policy is read otherwise than when the run was opened.
    """
    policy = canonical(context_of(run, attempt).policy)
    if named(policy) != run.policy_id:
        raise RunDiffers("the policy is read otherwise by this version than when the run was opened")
    try:
        return make_statement(
            event=_object(request.event),
            result=_object(request.result),
            policy=policy,
            # What a run that ended by its deadline was answered is not what its Result rests on.
            evidence=[(each.media_type, each.content) for each in blobs]
            if request.result.spec.get("evidence")
            else (),
            attestor=Attestor(
                name=NAME, version=__version__, instance=res.settings.service_url, attested_at=at
            ),
        )
    except (ValueError, MalformedEvidence) as e:
        raise RequestInvalid(f"event or result: {e}") from e


def _object(found: Any) -> SealedObject:
    return SealedObject(name=found.name, uid=found.uid, spec=found.spec, namespace=found.namespace)


async def _fail(row: RunSeal, error: _NotYet, res: Resources, at: datetime) -> RunSeal:
    """Write down why a seal does not go on, and when it is tried again."""
    stage, reason, detail = error.failure
    before = _failures(row)
    if before and (before[-1].stage, before[-1].reason) == (stage, reason):
        before.pop()  # the same again: its newest time is enough
    else:
        log.warning("run.seal_waits", uid=row.run_uid, stage=stage, reason=reason, detail=detail[:200])
    told = SealFailure(stage=stage, reason=reason, detail=detail[:1024], timestamp=at)
    kept = [each.model_dump(mode="json") for each in (*before, told)][-FAILURES_KEPT:]
    phase: SealPhase = "Failed" if error.final else row.phase
    failed = replace(
        row,
        phase=phase,
        failures=json.dumps(kept),
        tries=row.tries + 1,
        next_at=None if error.final else at + min(MOST_WAIT, FIRST_WAIT * 2 ** min(row.tries, 10)),
    )
    await res.store.write(lambda tx: tx.run_seals.go_on(failed, was=row.phase))
    return failed


def _failures(row: RunSeal) -> list[SealFailure]:
    return [SealFailure.model_validate(each) for each in json.loads(row.failures)]


def shown(row: RunSeal) -> RunBundle:
    """Return how far a seal is, as its controller reads it."""
    return RunBundle(
        phase=row.phase,
        statement_digest=digest_of(row.statement) if row.statement is not None else None,
        key_id=service_key(json.loads(row.key)).key_id if row.key is not None else None,
        signed_at=row.signed_at,
        log_entry=SealLogEntry.model_validate_json(row.log) if row.log is not None else None,
        archive=SealArchive.model_validate_json(row.archive) if row.archive is not None else None,
        sealed_at=row.sealed_at,
        failures=tuple(_failures(row)),
    )
