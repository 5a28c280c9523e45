"""What `db copy`, `backup` and `restore` do alike: carry a database into an empty one, and prove that it is the same.

Before anything is made, the source's audit log is walked: chain, tree, and the root of each checkpoint. Then all rows
go over in one transaction, are read back and compared by their digests, and the copy's log is walked as well. Only
what passed is committed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sqlalchemy import Table

from attestation.errors import LogBroken, StoreUnavailable
from attestation.store import Branch, DatabaseIdentity, Tx
from attestation.store.copying import Copied, Source, copy, tables_of, target
from attestation_service import extensions
from attestation_service.audit.verification import demand
from attestation_service.commands.progress import Progress
from attestation_service.settings import Settings
from attestation_service.storage.database import judge
from attestation_service.transparency import Walk, page
from attestation_service.transparency.memory import MemoryFile


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """Where an audit log ends.

    Args:
        size: Its entries.
        root: Of its tree, 32 bytes.
        entry_hash: Of the last entry, lower-case hex.
    """

    size: int
    root: bytes
    entry_hash: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Carried:
    """What was carried over.

    Args:
        identity: Which database it is.
        head: Where its log ends.
        tables: What was copied.
    """

    identity: DatabaseIdentity
    head: Head
    tables: Sequence[Copied]

    @property
    def rows(self) -> int:
        """How many rows in all."""
        return sum(each.rows for each in self.tables)


def carry(settings: Settings, source: Source, url: str, know: Callable[[Tx], DatabaseIdentity]) -> Carried:
    """Carry *source* into the empty database at *url*; *know* says which database it is, or refuses it.

    Raises:
        AttestationError: The source cannot be copied as it is, the target is not empty, or the copy is not the same.
        SettingsInvalid: An extension cannot be used.
    """
    own = [
        (extensions.branch_of(each), [model.__table__ for model in each.get_models()])
        for each in extensions.load(settings).extensions
        if each.migrations is not None
    ]
    branches: list[tuple[Branch, list[Table]]] = [
        (branch, [each for each in tables if isinstance(each, Table)])
        for branch, tables in own
        if branch.version_table in source.tables
    ]
    tables = tables_of(source, branches)
    identity = know(source.tx)
    totals = {each.name: source.count(each) for each in tables}
    head = walk(source.tx)
    with target(url, [branch for branch, _ in branches]) as made:
        with Progress("copied", totals) as progress:
            copied = copy(source, made, tables, progress.advance)
        if (found := walk(made.tx)) != head:
            raise StoreUnavailable(f"the copy's audit log ends with {found}, that of the source with {head}")
        know(made.tx)
    return Carried(identity=identity, head=head, tables=copied)


def known(settings: Settings, tx: Tx) -> DatabaseIdentity:
    """Return which database this is, if the keys recognise it, or do not lie here.

    Raises:
        DatabaseNotRecognised: It is another one, an older copy, or one that moved.
        MemoryUnusable: What the keys remember cannot be read.
    """
    return judge(tx, settings, MemoryFile.of(settings), demand_memory=False)[0]


def walk(tx: Tx, advance: Callable[[int], None] = lambda _: None) -> Head:
    """Walk the whole audit log, in constant memory; signatures are not looked at.

    Raises:
        LogBroken: With the first entry that does not fit.
    """
    tree, walked = tx.audit.tree, Walk()
    while (found := page(tx, walked.size)).entries:
        size, last = len(found.entries), found.entries[-1][0]
        walked.feed(found, {each.size: each.root for each in tree.checkpoints(walked.size, last, size)})
        advance(size)
    if (newest := tree.newest_checkpoint()) is not None:
        demand(walked.size, [newest.size] if newest.size > walked.size else [])
    if tree.nodes(0, walked.size, 1):
        beyond = walked.size + 1
        raise LogBroken(f"the tree has a leaf for entry {beyond}, which is missing", entry_id=beyond)
    return Head(size=walked.size, root=walked.root(), entry_hash=walked.last_hash)
