"""Whether this is the database that the keys belong to, and not an older copy of it: asked at every start.

A database that is missing, exchanged or restored begins, or goes on, as if what came after had never been: a second
CA, a revoked machine that is admitted, another root for a size of the log that was signed before. The keys remember
better (`transparency/memory.py`), so such a start ends here, before anything is made. To go on nevertheless is an
act of its own, `attestation-service --accept-restored-database`, which the audit tells of.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

import structlog

from attestation.audit import AuditEvent
from attestation.audit.checkpoint import Checkpoint
from attestation.audit.checkpoint import parse as parse_checkpoint
from attestation.audit.merkle import EMPTY_ROOT, root
from attestation.clock import Clock, rfc3339
from attestation.errors import AttestationError, LogBroken, NoteRejected
from attestation.store import DatabaseIdentity, Store, Tx, place
from attestation.store.look import look_at_server
from attestation_service.settings import Settings
from attestation_service.transparency.memory import Memory, MemoryFile
from attestation_service.transparency.signing import load_log_signer, missing_keys, signed_by_retired

log = structlog.get_logger("attestation_service.database")

SERVICE = "service"
"""Who, in the audit: nobody is logged in on the host."""

BOUND, ACCEPTED = "database_bound", "database_accepted"
ADOPTING = frozenset({BOUND, ACCEPTED})
"""Actions that may tell of rows that no entry told of before."""

WHAT_TO_DO = (
    "Bring the right database back. If this one is a backup that you restored on purpose, run "
    "`attestation-service --accept-restored-database` once. If you want to begin anew, with "
    "machines and auditors that pin other keys, move the folder of the keys away"
)


class DatabaseNotRecognised(AttestationError):
    """The database is not the one that the keys remember."""

    code = "database-not-recognised"


class LogKeysMissing(AttestationError):
    """The database has an audit log whose keys are not there."""

    code = "log-keys-missing"


def demand_present(settings: Settings) -> None:
    """Refuse a missing database where keys remember one: nothing shall be made in its place.

    Raises:
        ValueError: ITL_DB_URL is not the URL of a database that we support.
        DatabaseNotRecognised: It is missing, or there is nothing in it.
        MemoryUnusable: What the keys remember cannot be read.
        StoreUnavailable: The server cannot be asked.
    """
    file, where = MemoryFile.of(settings), place(settings.db_url)
    memory = file.read()
    if memory is not None and not _holds_something(settings, where):
        raise DatabaseNotRecognised(f"{where} is missing or empty. {_remembered(memory, file)} {WHAT_TO_DO}")


def _holds_something(settings: Settings, where: Path | str) -> bool:
    if isinstance(where, Path):
        return where.exists() and where.stat().st_size > 0
    with look_at_server(settings.db_url) as look:
        return bool(look.tables)


def recognise(settings: Settings, store: Store, clock: Clock) -> None:
    """Return if this is the database that the keys remember and its log continues theirs. Blocks.

    Keys and a database that know of nobody are bound to each other: a new installation, or one that was made before
    keys remembered.

    Raises:
        DatabaseNotRecognised: With what is wrong, and what to do.
        MemoryUnusable: What the keys remember cannot be read or written.
    """
    file = MemoryFile.of(settings)
    with file.locked():
        if settings.state_dir is not None and file.read() is None:
            _remember_anew(settings, store, file)
        identity, is_new = store.read_sync(lambda tx: judge(tx, settings, file))
        if is_new:
            # The keys first: a crash in between is finished by the next start.
            file.write(Memory(database=identity.database_id, last=_nothing(settings)))
        if identity.bound_at is None:
            store.write_sync(lambda tx: _bind(tx, clock.now()))
            log.info("database.bound", database=identity.database_id, memory=str(file.path))


def _remember_anew(settings: Settings, store: Store, file: MemoryFile) -> None:
    """Take the checkpoint in the database for the last one, if the keys here signed it.

    For a replica that has copies of the keys and an empty folder of its own: it cannot know of a later one.
    """

    def signed(tx: Tx) -> Memory | None:
        identity, newest = tx.identity.get(), tx.audit.tree.newest_checkpoint()
        if identity is None or identity.bound_at is None or missing_keys(settings):
            return None
        last = _nothing(settings)
        if newest is not None:
            last = load_log_signer(settings).verify(newest.note).checkpoint
        return Memory(database=identity.database_id, last=last)

    try:
        memory = store.read_sync(signed)
    except NoteRejected as e:
        raise DatabaseNotRecognised(
            f"the newest checkpoint of the database is not signed by the keys here: {e}"
        ) from e
    if memory is not None:
        file.write(memory)
        log.warning("database.remembered_anew", memory=str(file.path), size=memory.last.size)


def judge(
    tx: Tx, settings: Settings, file: MemoryFile, *, demand_memory: bool = True
) -> tuple[DatabaseIdentity, bool]:
    """Return who this database is, and whether neither it nor the keys know of the other; changes nothing.

    Args:
        tx: Reads it.
        settings: Of the service.
        file: What the keys remember.
        demand_memory: Refuse a database whose keys are not here. Only who serves nothing may do without.

    Raises:
        DatabaseNotRecognised: It is not the one that the keys remember.
        MemoryUnusable: What the keys remember cannot be read.
    """
    memory = file.read()
    identity = tx.identity.get()
    # 1. The database has a name. Without one anything could be told of it.
    if identity is None:
        raise DatabaseNotRecognised(f"the database has lost its identity. {WHAT_TO_DO}")
    # 2. It did not go on as a copy: two services of one identity would make two histories of one log.
    if identity.moved_at is not None:
        raise DatabaseNotRecognised(
            f"this database was copied to {identity.moved_to} at {rfc3339(identity.moved_at)}, and goes on there: let "
            "ITL_DB_URL name that one. Only if that copy never served and is gone, run "
            "`attestation-service --accept-restored-database` once to go on with this one"
        )
    if memory is None:
        # 3. Neither knows the other, or they did once.
        if identity.bound_at is not None and demand_memory:
            raise DatabaseNotRecognised(
                f"the database belongs to keys since {rfc3339(identity.bound_at)}, and {file.path}, where they "
                f"remember it, is missing: restore the folder of the keys. A replica of a service that runs gets "
                f"a copy of that one's folder, and nothing else. {WHAT_TO_DO}"
            )
        return identity, True
    # 4. It is that database, and its log begins with what was signed.
    if memory.database != identity.database_id:
        raise DatabaseNotRecognised(
            f"this is another database, {identity.database_id}, made {rfc3339(identity.made_at)}. "
            f"{_remembered(memory, file)} {WHAT_TO_DO}"
        )
    if (problem := not_continued(tx, memory.last)) is not None:
        raise DatabaseNotRecognised(f"{problem}. {_remembered(memory, file)} {WHAT_TO_DO}")
    # 5. The log's name was not given up, when a database was accepted that did not continue it.
    _demand_fresh_name(settings, memory)
    # 6. Nor does it change because an address did. Auditors and witnesses know the log by it.
    _demand_chosen_name(settings, memory)
    return identity, False


def accept(settings: Settings, store: Store, clock: Clock) -> None:
    """Take the database as it is, because an operator of the host says so; the audit tells of it. Blocks.

    Also where the keys of its log are lost for good: the log that they signed ends, another one begins.

    Where its log does not continue what was signed, it goes on under another name: two histories under one name could
    not be told from a forgery, and witnesses, who know a log by its name, see a new one beside one that ended.

    Raises:
        DatabaseNotRecognised: The log needs another name, or the database has lost its identity.
        MemoryUnusable: What the keys remember cannot be read or written.
        LogBroken: The log's tree is not whole.
    """
    file = MemoryFile.of(settings)
    with file.locked():
        memory = file.read()
        identity = store.read_sync(lambda tx: tx.identity.get())
        if identity is None:
            raise DatabaseNotRecognised("the database has lost its identity: bring another copy back")
        ended = memory.ended if memory is not None else ()
        told = "nothing was remembered"
        lost = store.read_sync(lambda tx: lost_log_keys(tx, settings, ended))
        if memory is not None:
            problem = store.read_sync(lambda tx: not_continued(tx, memory.last))
            other = memory.database != identity.database_id
            if problem is None and not other and lost is None and identity.moved_at is None:
                store.write_sync(lambda tx: _forget_keys(tx, clock.now()))
                log.info("database.recognised", database=identity.database_id)
                return
            found = "another database" if other else problem or "the database is the one"
            told = f"{found}; remembered was {_shown(memory)}"
            if problem is not None:
                ended = (*ended, memory.last)
        if lost is not None:
            told = f"{told}; {lost.words}"
            ended = (*ended, lost.last)
        accepted = Memory(database=identity.database_id, last=_nothing(settings), ended=ended)
        _demand_fresh_name(settings, accepted)
        now = store.write_sync(lambda tx: _record(tx, accepted, told, clock.now()))
        file.write(replace(accepted, last=now))
        log.warning("database.accepted", database=identity.database_id, size=now.size, told=told)


def demand_log_keys(settings: Settings, store: Store) -> None:
    """Refuse a start without the keys that signed the log; with new ones it would take its own checkpoints for forged.

    Raises:
        LogKeysMissing: With what to do.
        MemoryUnusable: What the keys remember cannot be read.
    """
    memory = MemoryFile.of(settings).read()
    ended = memory.ended if memory is not None else ()
    if (lost := store.read_sync(lambda tx: lost_log_keys(tx, settings, ended))) is not None:
        raise LogKeysMissing(
            f"{lost.words}. Put the folder of the keys back from your backup; nothing is made "
            "in their place. If they are lost for good, the log ends here: give it a name that it never had, "
            f"ITL_AUDIT_ORIGIN={lost.last.origin}/2 or the like, and run "
            "`attestation-service --accept-restored-database` once"
        )


@dataclass(frozen=True, slots=True)
class LostKeys:
    """Keys of the log that are not there.

    Args:
        words: Which, and what they signed.
        last: The newest checkpoint that they signed.
    """

    words: str
    last: Checkpoint


def lost_log_keys(tx: Tx, settings: Settings, ended: tuple[Checkpoint, ...]) -> LostKeys | None:
    """Return which keys of the log are missing; None where all are there, or nothing depends on them.

    Nothing does before the first checkpoint, after the log of the newest one *ended*, and where the list of retired
    keys has those that signed it.
    """
    missing, newest = missing_keys(settings), tx.audit.tree.newest_checkpoint()
    if not missing or newest is None or signed_by_retired(settings, newest.note):
        return None
    last = parse_checkpoint(newest.note.encode("utf-8", "surrogatepass")).checkpoint
    if last in ended:
        return None
    names = " and ".join(str(path) for path in missing)
    are = "is" if len(missing) == 1 else "are"
    return LostKeys(
        f"{names} {are} missing, with which the audit log {last.origin} of this database was signed up to entry "
        f"{last.size}",
        last,
    )


def not_continued(tx: Tx, last: Checkpoint) -> str | None:
    """Return why the log does not continue *last*; None where it does."""
    size = tx.audit.tree.size()
    if size < last.size:
        return f"this is an older copy of the database: its audit log ends at entry {size}, but {last.size} were signed"
    try:
        now = root(tx.audit.tree, last.size)
    except LogBroken as e:
        return f"the tree of the audit log is not whole: {e}"
    if now != last.root:
        return f"the first {last.size} entries of the audit log are not those that were signed"
    return None


def _demand_fresh_name(settings: Settings, memory: Memory) -> None:
    if settings.audit_log_origin in {each.origin for each in memory.ended}:
        raise DatabaseNotRecognised(
            f"the audit log called {settings.audit_log_origin} ended with what the accepted database does not have: "
            f"give the log a name that it never had, ITL_AUDIT_ORIGIN={settings.audit_log_origin}/2 or the like"
        )


def _demand_chosen_name(settings: Settings, memory: Memory) -> None:
    """Refuse another name than the log has, unless an operator chose it as such."""
    last, now = memory.last, settings.audit_log_origin
    if last.size and not settings.audit_origin and last.origin != now:
        raise DatabaseNotRecognised(
            f"the audit log has been called {last.origin}, and ITL_SERVICE_URL would make it {now}. Auditors and "
            f"witnesses know it by its name: keep it with ITL_AUDIT_ORIGIN={last.origin}, or give it the new one with "
            f"ITL_AUDIT_ORIGIN={now} and tell them"
        )


def _bind(tx: Tx, at: datetime) -> None:
    """Bind the database to the keys, once; told where it was in use before."""
    if (identity := tx.identity.get()) is None or identity.bound_at is not None:
        return  # another process did, at the same moment
    tx.identity.bind(at)
    if size := tx.audit.tree.size():
        told = f"{size} entries were there before the keys of the log remembered their database"
        tx.audit.append(AuditEvent(operator_cn=SERVICE, action=BOUND, detail=told), at)
    _adopt(tx, BOUND, at)


def _adopt(tx: Tx, action: str, at: datetime) -> None:
    """Tell of every row of authority that is there, once: no entry of a version before said what it wrote."""
    if tx.audit.tells_of_authority():
        return
    for rows in tx.state.adopt():
        told = f"{rows} rows of authority were there before"
        tx.audit.append(AuditEvent(operator_cn=SERVICE, action=action, detail=told), at)


def _record(tx: Tx, accepted: Memory, told: str, at: datetime) -> Checkpoint:
    """Tell the audit of an accepted database; return where its log is now."""
    tree = tx.audit.tree
    detail = (
        f"database {accepted.database} accepted by uid {os.getuid()} of the host, with {tree.size()} entries: {told}; "
        f"the log goes on as {accepted.last.origin}"
    )
    tx.identity.bind(at)
    tx.known_keys.forget()
    tx.audit.append(AuditEvent(operator_cn=SERVICE, action=ACCEPTED, detail=detail), at)
    _adopt(tx, ACCEPTED, at)
    size = tree.size()
    return Checkpoint(origin=accepted.last.origin, size=size, root=root(tree, size))


def _forget_keys(tx: Tx, at: datetime) -> None:
    """Let the next start say which keys the service has: who lost its key is told to come here (`known_keys`)."""
    if tx.known_keys.forget():
        told = (
            f"accepted by uid {os.getuid()} of the host: the database is the one; which keys the service has is "
            "forgotten, and the next start says it"
        )
        tx.audit.append(AuditEvent(operator_cn=SERVICE, action=ACCEPTED, detail=told), at)


def _nothing(settings: Settings) -> Checkpoint:
    """Return what a log has signed before its first checkpoint."""
    return Checkpoint(origin=settings.audit_log_origin, size=0, root=EMPTY_ROOT)


def _remembered(memory: Memory, file: MemoryFile) -> str:
    return f"The keys in {file.path.parent} belong to {_shown(memory)}."


def _shown(memory: Memory) -> str:
    last = memory.last
    return (
        f"database {memory.database}, log {last.origin} with {last.size} entries and root {last.root.hex()}"
    )
