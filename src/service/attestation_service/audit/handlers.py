"""The audit log: pages for reading; proofs, tiles and checkpoints for whoever wants to check it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import datetime
from typing import Annotated, Final, TypeVar

import structlog
from fastapi import Path, Query, Response

from attestation.api import AuditEntryDetail, AuditKeys, AuditPage, ConsistencyProof, InclusionProof
from attestation.api.base import Instant, MachineId
from attestation.audit import merkle
from attestation.audit.export import (
    MAX_CHECKPOINTS,
    MAX_TIMESTAMPS,
    TimeStamp,
    format_header,
    format_line,
)
from attestation.audit.tiles import Tile, format_bundle, format_hashes, parse_path
from attestation.errors import LogBroken, MalformedEvidence, ProofUnavailable, Unavailable
from attestation.store import AuditFilter, CountersignatureKind, Tx
from attestation.store.audit import WINDOW
from attestation.wire import b64encode
from attestation_service.auth import Operator
from attestation_service.resources import Res, Resources
from attestation_service.routing.parameters import Cursor, Limit
from attestation_service.transparency import Newest
from attestation_service.transparency.witnesses import Witness

log = structlog.get_logger("attestation_service.audit")

T = TypeVar("T")

TilePath = Annotated[
    str, Path(max_length=64, description="Path after `tile/`: `<L>/<N>[.p/<W>]` (C2SP tlog-tiles)")
]

BATCH_ENTRIES: Final = 1_000
COSIGNED_CHECKPOINTS: Final = 8
"""Of the checkpoints of an export, so many are the newest that a witness cosigned."""
CHECKPOINT_SECONDS: Final = 5.0
"""Longest that a request waits for a signature: comparing many new entries goes on without it."""


async def list_entries(
    machine_id: Annotated[MachineId | None, Query()] = None,
    action: Annotated[str | None, Query(pattern=r"^[a-z_]{1,64}$")] = None,
    operator_cn: Annotated[str | None, Query(max_length=256, pattern=r"^[^\x00-\x1f\x7f]*$")] = None,
    since: Annotated[Instant | None, Query(description="Not before this instant")] = None,
    until: Annotated[Instant | None, Query(description="Before this instant")] = None,
    text: Annotated[
        str | None,
        Query(
            min_length=1,
            max_length=128,
            pattern=r"^[^\x00-\x1f\x7f]*$",
            description="In action, name, machine id, detail or address, without regard to case; no character is "
            f"special. A page looks at {WINDOW:,} entries at most: see `searched_to`",
        ),
    ] = None,
    cursor: Cursor = None,
    limit: Limit = 50,
    *,
    res: Res,
) -> AuditPage:
    """List audit entries, newest first.

    Every column, so that a reader can recompute each hash.
    """
    wanted = AuditFilter(
        machine_id=machine_id, operator_cn=operator_cn, action=action, since=since, until=until, text=text
    )
    # To search is to look at many: it delays nobody's reads by key.
    look = res.store.read if text is None else res.store.scan
    page = await look(lambda tx: tx.audit.page(cursor, limit, wanted))
    return AuditPage(
        items=[
            AuditEntryDetail(
                id=row_id,
                **{name: getattr(entry, name) for name in AuditEntryDetail.model_fields if name != "id"},
            )
            for row_id, entry in page.items
        ],
        next_cursor=page.next_cursor,
        searched_to=page.searched_to,
    )


async def checkpoint(*, res: Resources) -> str:
    """Return the newest checkpoint with all signatures; first sign one if that is due.

    Raises:
        Unavailable: There is none yet, or the log does not continue what was signed.
    """
    newest = await _advanced(res, force=False)
    return newest.note


async def inclusion(index: int, size: int | None, *, res: Resources) -> InclusionProof:
    """Prove that entry *index*, from 0, is in the tree of *size* entries.

    Raises:
        ProofUnavailable: There is no such entry or tree.
    """

    def work(tx: Tx) -> InclusionProof:
        tree = tx.audit.tree
        asked = _within(size, tree.size())
        hashes = merkle.inclusion_proof(tree, index, asked)
        return InclusionProof(
            index=index,
            size=asked,
            leaf_hash=b64encode(tree.hashes(0, index, 1)[0]),
            root=b64encode(merkle.root(tree, asked)),
            hashes=[b64encode(found) for found in hashes],
        )

    return await _proven(work, res)


async def consistency(old: int, new: int | None, *, res: Resources) -> ConsistencyProof:
    """Prove that the tree of *old* entries is the beginning of that of *new*.

    Raises:
        ProofUnavailable: There are no such trees.
    """

    def work(tx: Tx) -> ConsistencyProof:
        tree = tx.audit.tree
        asked = _within(new, tree.size())
        hashes = merkle.consistency_proof(tree, old, asked)
        return ConsistencyProof(
            old_size=old,
            new_size=asked,
            old_root=b64encode(merkle.root(tree, old)),
            new_root=b64encode(merkle.root(tree, asked)),
            hashes=[b64encode(found) for found in hashes],
        )

    return await _proven(work, res)


async def _proven(work: Callable[[Tx], T], res: Resources) -> T:
    """Read something from the tree.

    Raises:
        Unavailable: The tree is not whole.
    """
    try:
        return await res.store.read(work)
    except LogBroken as e:
        log.error("audit.broken", reason=str(e))  # noqa: TRY400 -- the reason is for operators, a trace is not
        raise Unavailable("the tree of the audit log is not whole") from e


def _within(asked: int | None, size: int) -> int:
    if asked is not None and asked > size:
        raise ProofUnavailable(f"the log has {size} entries, not {asked}")
    return size if asked is None else asked


async def tile(path: str, *, res: Resources) -> tuple[Tile, bytes]:
    """Return the tile of hashes at *path*, which begins with `tile/`.

    Raises:
        ProofUnavailable: No such path, or the log is not that large.
    """
    wanted = _tile(path)
    level = wanted.level
    if level is None:
        raise ProofUnavailable("bundles of entries are for auditors")

    def work(tx: Tx) -> list[bytes]:
        _demand(wanted, tx)
        return tx.audit.tree.hashes(level, wanted.start, wanted.width)

    return wanted, format_hashes(await _proven(work, res))


async def bundle(path: TilePath, *, res: Res) -> Response:
    """A bundle of up to 256 entries.

    Entries hold names, so they are for auditors; the tiles of hashes are for everybody.

    Raises:
        ProofUnavailable: No such path, or the log is not that large.
    """
    wanted = _tile(f"tile/entries/{path}")

    def work(tx: Tx) -> list[bytes]:
        _demand(wanted, tx)
        return [row[3] for row in tx.audit.walk(wanted.start, wanted.width)]

    body = format_bundle(await res.store.scan(work))
    return Response(body, media_type="application/octet-stream")


def _tile(path: str) -> Tile:
    try:
        return parse_path(path)
    except MalformedEvidence as e:
        raise ProofUnavailable(str(e)) from None


def _demand(wanted: Tile, tx: Tx) -> None:
    size = tx.audit.tree.size()
    if not wanted.within(size):
        raise ProofUnavailable(f"the log has {size} entries; {wanted} is not complete")


def keys(*, res: Resources) -> AuditKeys:
    """Return who signs for the log."""
    signer = res.transparency.signer
    return AuditKeys(
        origin=signer.origin,
        vkeys=[str(key) for key in signer.vkeys],
        retired=[str(key) for key in signer.retired],
        witnesses=[str(other.key) for other in res.transparency.others if isinstance(other, Witness)],
    )


async def export(who: Operator, at: datetime, *, res: Resources) -> AsyncIterator[bytes]:
    """Record the export, sign a checkpoint that covers this record, and return the lines up to it.

    Raises:
        Unavailable: No checkpoint could be signed.
    """

    def record(tx: Tx) -> int:
        tx.audit.append(who.event("export", detail="the audit log"), at)
        return tx.audit.tree.size()

    recorded = await res.store.write(record)
    newest = await _advanced(res, force=True)
    size = newest.stored.size
    if size < recorded:
        raise Unavailable("no checkpoint covers this export yet; ask again")
    header = await res.store.scan(lambda tx: _header(tx, size, res))
    return _lines(header, size, res)


async def _lines(header: bytes, size: int, res: Resources) -> AsyncIterator[bytes]:
    yield header
    after = 0
    while after < size:
        limit = min(BATCH_ENTRIES, size - after)
        entries = await res.store.scan(lambda tx, at=after, n=limit: tx.audit.walk(at, n))  # type: ignore[misc]
        if not entries:
            raise Unavailable(
                "the log ends before its checkpoint"
            )  # the reader sees that the file is cut off
        yield await asyncio.to_thread(
            lambda: b"".join(format_line(row[0], row[2], row[3]) for row in entries)  # noqa: B023
        )
        after += len(entries)


def _header(tx: Tx, size: int, res: Resources) -> bytes:
    """Return the first line of an export of *size* entries, with checkpoints spread over the whole log."""
    signer = res.transparency.signer
    tree = tx.audit.tree
    some = tree.checkpoints(-1, size, MAX_CHECKPOINTS + 1)
    if len(some) > MAX_CHECKPOINTS:
        spread = MAX_CHECKPOINTS - COSIGNED_CHECKPOINTS
        steps = (tree.checkpoint_at_most(size * n // spread) for n in range(1, spread + 1))
        # The newest that witnesses saw stand beside them: a reader's quorum then covers as much as it can.
        some = [found for found in steps if found is not None] + tree.cosigned(size, COSIGNED_CHECKPOINTS)
    # A log that moved to another address has checkpoints of another name, which one export cannot hold.
    chosen = {found.size: found for found in some if found.note.startswith(f"{signer.origin}\n")}
    notes, stamps = [], []
    for stored in sorted(chosen.values(), key=lambda stored: stored.size):
        said = tuple(tree.countersignatures(stored.size))
        notes.append(Newest(stored=stored, countersignatures=said).note)
        stamps += [
            TimeStamp(size=stored.size, response=found.value)
            for found in said
            if found.kind is CountersignatureKind.TIMESTAMP
        ]
    witnesses = [other.key for other in res.transparency.others if isinstance(other, Witness)]
    return format_header(
        origin=signer.origin,
        size=size,
        vkeys=[*signer.vkeys, *(key for key in signer.retired if key.name == signer.origin), *witnesses],
        checkpoints=notes,
        timestamps=stamps[-MAX_TIMESTAMPS:],
    )


async def _advanced(res: Resources, *, force: bool) -> Newest:
    """Sign if that is due, and return the newest checkpoint.

    Raises:
        Unavailable: There is none, or the log does not continue what was signed.
    """
    try:
        async with asyncio.timeout(CHECKPOINT_SECONDS):
            await res.transparency.advance(force=force)
    except TimeoutError:
        pass  # what is there serves; an export says itself that it needs a newer one
    newest = await res.transparency.newest()
    if newest is None:
        raise Unavailable("no checkpoint was signed yet; ask again")
    return newest
