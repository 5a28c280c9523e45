"""One walk over the whole log: chain, tree, stored checkpoints, and the rows that rest on it; in constant memory."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from attestation.api import AuditState, AuditVerification
from attestation.audit.checkpoint import Checkpoint, parse
from attestation.errors import LogBroken, LogRejected, MalformedNote, NoteRejected
from attestation.store import AUTHORITY, AuthorityTable, StoredCheckpoint, Tx
from attestation.wire import b64encode
from attestation_service.audit.ledger import Ledger
from attestation_service.resources import Res, Resources
from attestation_service.transparency import LogSigner, Page, Walk, page
from attestation_service.transparency.memory import MemoryUnusable

_NO_END = 1 << 62
PAGE_ROWS = 1_000


@dataclass(frozen=True, slots=True)
class _Step:
    """What one read brings.

    Args:
        page: The next entries.
        checkpoints: Those that end among them; where there are none, one that ends behind the end of the log.
        leaf_beyond: The tree has a leaf behind the last entry.
    """

    page: Page
    checkpoints: list[StoredCheckpoint]
    leaf_beyond: bool


class Verification:
    """Takes steps over the whole log, in order.

    Args:
        signer: Knows what we signed.
        ended: Last checkpoints of logs that ended.
    """

    def __init__(self, signer: LogSigner, ended: tuple[Checkpoint, ...]) -> None:
        self._ended = {each.origin: each.size for each in ended}
        self.walk = Walk()
        self.checkpoints = 0
        self.newest: int | None = None
        self._signer = signer

    def step(self, tx: Tx) -> _Step:
        """Read what comes next, on one snapshot."""
        after = self.walk.size
        found = page(tx, after)
        last = found.entries[-1][0] if found.entries else _NO_END
        # A checkpoint of no entries is the first of all.
        first = -1 if self.newest is None and not after else after
        checkpoints = tx.audit.tree.checkpoints(first, last, len(found.entries) + 2)
        beyond = not found.entries and bool(tx.audit.tree.nodes(0, after, 1))
        return _Step(found, checkpoints, beyond)

    def take(self, step: _Step) -> bool:
        """Check *step*; return False at the end of the log.

        Raises:
            LogRejected: Something does not fit.
            MalformedNote: A stored checkpoint is none.
        """
        # 1. We signed these. Otherwise whoever rewrote the log would have written them too.
        roots: dict[int, bytes] = {}
        for stored in step.checkpoints:
            signed = self._signed(stored)
            if (signed.size, signed.root) != (stored.size, stored.root):
                raise LogBroken(
                    f"the checkpoint stored for size {stored.size} speaks of {signed.size}", entry_id=None
                )
            roots[stored.size] = signed.root
        # 2. The entries fit one another, the tree, and what was signed.
        if 0 in roots:
            self.walk.check(roots[0])
        self.walk.feed(step.page, roots)
        covered = [size for size in roots if size <= self.walk.size]
        self.checkpoints += len(covered)
        self.newest = max(covered, default=self.newest)
        if step.page.entries:
            return True
        # 3. Nothing is missing at the end, and the tree has nothing more.
        demand(self.walk.size, [size for size in roots if size > self.walk.size])
        if step.leaf_beyond:
            raise LogBroken(
                f"the tree has a leaf for entry {self.walk.size + 1}, which is missing",
                entry_id=self.walk.size + 1,
            )
        return False

    def _signed(self, stored: StoredCheckpoint) -> Checkpoint:
        """Return what *stored* says, if we signed it; or if keys that are lost did, whose log ended, and not later.

        Then it proves nothing by itself, but the entries must still fit it.

        Raises:
            NoteRejected: Neither.
            MalformedNote: It is none.
        """
        try:
            return self._signer.verify(stored.note).checkpoint
        except NoteRejected:
            told = parse(stored.note.encode("utf-8", "surrogatepass")).checkpoint
            if told.size > self._ended.get(told.origin, -1):
                raise
            return told


def demand(size: int, covered: Sequence[int]) -> None:
    """Refuse a log of *size* entries where a checkpoint covers more.

    Raises:
        LogBroken: Names what is missing.
    """
    if covered:
        most = max(covered)
        which = f"entry {most} is" if most == size + 1 else f"entries {size + 1} to {most} are"
        raise LogBroken(f"{which} missing: a checkpoint covers {most} entries", entry_id=size + 1)


async def verify(*, res: Res) -> AuditVerification:
    """Verify the whole audit log: chain, tree and checkpoints.

    Walks every entry; says which one is the first that does not fit.
    """
    # Entries that come meanwhile are part of the walk; none can change behind it, for the chain would not fit any more.
    found = Verification(res.transparency.signer, await res.transparency.ended())
    walk = found.walk
    signed = res.transparency.signed
    ledger = Ledger()
    try:
        more = True
        while more:
            step = await res.store.scan(found.step)
            more = await asyncio.to_thread(found.take, step)
            await asyncio.to_thread(ledger.tell, step.page.entries)
            # Otherwise two pages are held while the next one is read.
            del step
        # What this process signed last is known without the database.
        if signed is not None:
            demand(walk.size, [signed.size] if signed.size > walk.size else [])
        await res.transparency.demand_continued()
        state = await _state(ledger, walk.size, res)
    except (LogRejected, MalformedNote, MemoryUnusable) as e:
        return AuditVerification(
            valid=False,
            entries=walk.size,
            root_hash=None,
            first_invalid_id=e.entry_id if isinstance(e, LogBroken) else None,
            error=str(e),
        )
    finally:
        ledger.close()
    first = next(iter(state.unproven), None)
    return AuditVerification(
        valid=first is None,
        entries=walk.size,
        root_hash=walk.last_hash if walk.size else None,
        first_invalid_id=None,
        error=f"{first.kind} {first.key}: {first.problem}" if first is not None else None,
        tree_size=walk.size,
        tree_root=b64encode(walk.root()),
        checkpoints=found.checkpoints,
        checkpoint_size=found.newest,
        state=state,
    )


def _rows(tx: Tx, *, kind: AuthorityTable, after: Sequence[object] | None) -> Sequence[Sequence[object]]:
    return tx.state.page(kind, after, PAGE_ROWS)


async def _state(ledger: Ledger, size: int, res: Resources) -> AuditState:
    """Compare every row of authority with what the log of *size* entries, which *ledger* was told, says of it."""
    for kind in AUTHORITY.values():
        after: Sequence[object] | None = None
        while rows := await res.store.scan(partial(_rows, kind=kind, after=after)):
            await asyncio.to_thread(ledger.find, kind, rows)
            after = rows[-1][: len(kind.key)]
    # What was appended since tells which rows changed while they were read.
    seen = size
    while entries := (await res.store.scan(partial(page, after=seen))).entries:
        await asyncio.to_thread(ledger.tell, entries)
        seen = entries[-1][0]
    return await asyncio.to_thread(ledger.compare, size)
