"""`db check`: is the database whole, is its schema ours, is its audit log what was signed, do the keys know it.

All of it is read on one snapshot while the service goes on, in constant memory.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

from attestation.errors import AttestationError
from attestation.store import AUTHORITY, Branch, is_postgresql, place
from attestation.store.copying import Source, source
from attestation.store.differences import differences
from attestation.store.migrate import HEAD
from attestation_service import extensions
from attestation_service.audit.ledger import Ledger
from attestation_service.audit.verification import PAGE_ROWS, Verification
from attestation_service.commands.carrying import walk
from attestation_service.commands.progress import Progress
from attestation_service.commands.telling import tell
from attestation_service.inspection import Finding
from attestation_service.inspection.case import failed, ok, warning
from attestation_service.settings import Settings
from attestation_service.storage.database import judge
from attestation_service.transparency import load_log_signer
from attestation_service.transparency.memory import MemoryFile
from attestation_service.transparency.signing import missing_keys

WHO = "find out who could write to the database; compare with a checkpoint that you kept elsewhere"
RESTORE = "keep a copy of it, then restore a backup (attestation-service restore)"


def run(settings: Settings, options: argparse.Namespace) -> int:
    """Tell what was found; return 1 where something fails.

    Raises:
        AttestationError: The database cannot be read.
        ValueError: No URL of a database that we support.
        SettingsInvalid: An extension cannot be used.
    """
    with source(settings.db_url, alone=False) as db:
        found = list(_file(settings, db))
        if (revision := db.revisions.get("alembic_version")) != HEAD:
            found.append(
                failed(
                    "schema",
                    what=f"it is at revision {revision}, and this program looks at {HEAD} only",
                    todo="attestation-service db upgrade, or the program of that revision",
                )
            )
        else:
            found += [*_schema(settings, db), *_log(settings, db), *_identity(settings, db)]
    where = place(settings.db_url)
    return tell(found, options.output, good=f"{where} is whole.", bad=f"{where} is not as it should be")


def _file(settings: Settings, db: Source) -> Iterator[Finding]:
    if is_postgresql(settings.db_url):
        yield ok("file", what="the server looks after its files: pg_amcheck, and data_checksums = on")
        return
    if (told := db.value("PRAGMA integrity_check(1)")) != "ok":
        yield failed("file", what=f"it is damaged: {told}", todo=RESTORE)
    elif (table := db.value("PRAGMA foreign_key_check")) is not None:
        yield failed("file", what=f"a row of {table} refers to one that is not there", todo=RESTORE)
    else:
        yield ok("file", what="pages, indexes and references fit")


def _schema(settings: Settings, db: Source) -> Iterator[Finding]:
    enabled = extensions.load(settings).extensions
    branches: Sequence[Branch] = [
        extensions.branch_of(each) for each in enabled if each.migrations is not None
    ]
    try:
        found = differences(settings.db_url, [each for each in branches if each.version_table in db.tables])
    except AttestationError as e:
        yield warning("schema", what=f"{e}: not compared", todo="--url with the role that owns the tables")
        return
    for each in found:
        more = each.endswith("besides")
        yield (warning if more else failed)(
            "schema",
            what=f"{each}: {'no revision made it' if more else 'the invariants of the record rest on it'}",
            todo="drop it, or enable its extension" if more else RESTORE,
        )
    if not found:
        yield ok(
            "schema",
            what=f"revision {HEAD}: tables, constraints, indexes and triggers are those of this program",
        )


def _log(settings: Settings, db: Source) -> Iterator[Finding]:
    size = db.tx.audit.tree.size()
    with Progress("checked", {"audit_log": size}) as progress:
        try:
            if missing := missing_keys(settings):
                head = walk(db.tx, lambda rows: progress.advance("audit_log", rows))
                yield warning(
                    "audit log",
                    what=f"{head.size} entries: chain and tree verify. Who signed the checkpoints was not looked at: "
                    f"{missing[0]} is not here",
                    todo="run it where the keys are",
                )
                return
            yield from _signed_log(settings, db, progress)
        except AttestationError as e:
            yield failed("audit log", what=str(e), todo=WHO)


def _signed_log(settings: Settings, db: Source, progress: Progress) -> Iterator[Finding]:
    memory = MemoryFile.of(settings).read()
    verification = Verification(load_log_signer(settings), memory.ended if memory is not None else ())
    ledger = Ledger()
    try:
        more = True
        while more:
            step = verification.step(db.tx)
            more = verification.take(step)
            ledger.tell(step.page.entries)
            progress.advance("audit_log", len(step.page.entries))
        for kind in AUTHORITY.values():
            after: Sequence[object] | None = None
            while rows := db.tx.state.page(kind, after, PAGE_ROWS):
                ledger.find(kind, rows)
                after = rows[-1][: len(kind.key)]
        state = ledger.compare(verification.walk.size)
    finally:
        ledger.close()
    for each in state.unproven:
        yield failed("audit log", what=f"{each.kind} {each.key}: {each.problem}", todo=WHO)
    if not state.unproven:
        yield ok(
            "audit log",
            what=f"{verification.walk.size} entries, {verification.checkpoints} signed checkpoints, {state.rows} rows "
            "of authority: chain, tree, signatures and rows fit",
        )


def _identity(settings: Settings, db: Source) -> Iterator[Finding]:
    try:
        identity, _ = judge(db.tx, settings, MemoryFile.of(settings))
    except AttestationError as e:
        yield failed("identity", what=str(e))
    else:
        yield ok("identity", what=f"{identity.database_id}: it is the one that the keys know")
