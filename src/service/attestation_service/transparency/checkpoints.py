"""Signing the log as it is: every so many entries or seconds, and only what continues what was signed before.

After an act that gives authority it is signed at once: what is not signed yet can be cut off by who has the database.

One process signs for all when it is due (docs/adr/0108), and each after the acts that it served; the others look
whether what was signed continues what they know. Before a signature is made the new tree is proven to begin with the
newest checkpoint in the database, if this log signed it, and with the newest that the keys remember, which no
database can take back and which is written beside them before each signature; and the entries since then are compared
with the tree. Where one of these does not hold nothing is signed, an entry `checkpoint_refused` says why, and
`/readyz` says so until it holds again.

No transaction is held while signing or talking to others, and nothing waits for them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from random import SystemRandom
from typing import Final

import structlog

from attestation.audit import GENESIS_HASH, AuditEvent
from attestation.audit.checkpoint import LOG_TYPES, Checkpoint, parse
from attestation.audit.merkle import consistency_proof, root, verify_consistency
from attestation.audit.note import MAX_SIGNATURES
from attestation.clock import Clock, rfc3339
from attestation.errors import (
    AttestationError,
    LogBroken,
    LogRejected,
    MalformedNote,
    NoteRejected,
    Unavailable,
)
from attestation.machines import LogEvent
from attestation.store import Countersignature, CountersignatureKind, RateLimit, Store, StoredCheckpoint, Tx
from attestation.wire import b64encode
from attestation_service.settings import Settings
from attestation_service.transparency.memory import Memory, MemoryFile, MemoryUnusable
from attestation_service.transparency.others import TOLD_SECONDS, Countersigner
from attestation_service.transparency.signing import LogSigner
from attestation_service.transparency.timestamps import TimeStamper
from attestation_service.transparency.walk import Walk, page
from attestation_service.transparency.witnesses import Witness, WitnessUnusable

log = structlog.get_logger("attestation_service.audit")

MAX_WITNESSES: Final = MAX_SIGNATURES - len(LOG_TYPES)
TICK_SECONDS: Final = 1.0
TOGETHER_SECONDS: Final = 0.05
"""So long an act that gives authority waits for others before the log is signed."""
ATTEMPTS: Final = 5
"""So often a signature is tried while other workers sign; then it waits for the next tick."""

SERVICE: Final = "service"
"""Who, in the audit, where nobody asked."""

REFUSALS: Final = RateLimit(requests=1, per_seconds=3600)
"""Entries about refused checkpoints, over all workers: each worker tries every second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Newest:
    """The newest checkpoint with what others said of it."""

    stored: StoredCheckpoint
    countersignatures: tuple[Countersignature, ...]

    @property
    def note(self) -> str:
        """The note with the signatures of this log and those of its witnesses."""
        return self.stored.note + "".join(
            f"{found.value.decode('utf-8')}\n"
            for found in self.countersignatures
            if found.kind is CountersignatureKind.COSIGNATURE
        )


@dataclass(frozen=True, slots=True)
class _Ground:
    """What a signature would stand on, read in one snapshot."""

    size: int
    root: bytes
    before: StoredCheckpoint | None


def countersigners(settings: Settings) -> tuple[Countersigner, ...]:
    """Return whom *settings* name: witnesses, and an authority that stamps.

    Raises:
        WitnessUnusable: One of them cannot be asked, or there are more than a note has room for.
        TimeStampingUnusable: Likewise.
    """
    witnesses = tuple(Witness(text) for text in settings.audit_witnesses)
    if len(witnesses) > MAX_WITNESSES:
        raise WitnessUnusable(
            f"{len(witnesses)} witnesses; at most {MAX_WITNESSES} have room in a checkpoint"
        )
    return (*witnesses, TimeStamper(settings)) if settings.audit_timestamp_url else witnesses


class Log:
    """The transparency log of this process; lives as long as it.

    Args:
        settings: How often to sign, and who cosigns.
        clock: Tells the time.
        store: Where log and checkpoints are.
        signer: The log's keys.
        hurried: Set where an act was committed that is to be signed at once.
        on_call: Says whether this process signs for all when it is due; else only after its own acts.
    """

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        store: Store,
        signer: LogSigner,
        hurried: asyncio.Event | None = None,
        *,
        on_call: Callable[[], bool] = lambda: True,
    ) -> None:
        self.signer = signer
        self.hurried = hurried or asyncio.Event()
        self.refused: str | None = None
        self._refused_at: datetime | None = None
        self.failures: Counter[str] = Counter()
        self.others = countersigners(settings)
        self._entries = settings.audit_checkpoint_entries
        self._interval = timedelta(seconds=settings.audit_checkpoint_seconds)
        self._clock = clock
        self._store = store
        self._on_call = on_call
        self._one_at_a_time = asyncio.Lock()
        self._memory = MemoryFile.of(settings)
        # What this process saw in the memory last. No database can take it back.
        self.signed: Checkpoint | None = None
        self._walked: tuple[int, str] | None = None
        self._untold: StoredCheckpoint | None = None
        self._tell_from: datetime | None = None

    async def run(self) -> None:
        """Sign and tell others again and again until cancelled; an error is logged and waited out."""
        while True:
            # Jitter: workers that started together shall not all sign at the same moment.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TICK_SECONDS * SystemRandom().uniform(0.5, 1.5)):
                    await self.hurried.wait()
                    # One signature for acts that come together.
                    await asyncio.sleep(TOGETHER_SECONDS)
            acted = self.hurried.is_set()
            self.hurried.clear()
            try:
                if acted or self._on_call():
                    await self.advance(force=False)
                else:
                    await self.follow()
                await self.tell_others()
            except AttestationError as e:
                if self.refused is None:  # else it was told with its reason, and is tried every second
                    log.warning("audit.checkpoint_failed", code=e.code)
            except Exception as e:  # noqa: BLE001 -- the outermost border of this task: it must not end
                log.error("audit.checkpoint_failed", kind=type(e).__name__)  # noqa: TRY400 -- it may quote a row

    async def newest(self) -> Newest | None:
        """Return the newest checkpoint in the database."""

        def work(tx: Tx) -> Newest | None:
            stored = tx.audit.tree.newest_checkpoint()
            if stored is None:
                return None
            return Newest(
                stored=stored, countersignatures=tuple(tx.audit.tree.countersignatures(stored.size))
            )

        return await self._store.read(work)

    async def advance(self, *, force: bool) -> None:
        """Sign the log as it is now if that is due: so many entries, or so long, after the last time.

        Args:
            force: It is due as soon as there is one entry more than the newest checkpoint covers.

        Raises:
            Unavailable: What there is does not continue what was signed; nothing was signed.
        """
        async with self._one_at_a_time:
            at = self._clock.now()
            if not await self._store.read(lambda tx: self._is_due(tx, at, force=force)):
                return
            async with self._refusing(at):
                for _ in range(ATTEMPTS):
                    if await self._sign(at):
                        break

    async def follow(self) -> None:
        """Prove that what another process signed continues what this one knows, and remember it.

        The keys of another host may have a memory of their own: what they signed is in none of ours until then.

        Raises:
            Unavailable: It does not; nothing more is signed here until it does.
        """
        async with self._one_at_a_time:
            newest, size = await self._store.read(
                lambda tx: (tx.audit.tree.newest_checkpoint(), tx.audit.tree.size())
            )
            known = -1 if self.signed is None else self.signed.size
            if self.refused is None and (0 if newest is None else newest.size) <= known <= size:
                return
            async with self._refusing(self._clock.now()):
                memory = await asyncio.to_thread(self._memory.demand)
                ground = await self._store.read(lambda tx: self._ground(tx, tx.audit.tree.size(), memory))
                signed = await self._read_again(ground, memory) or memory.last
                if signed.size > memory.last.size:
                    await asyncio.to_thread(self._memory.advance, memory, signed)
                self.signed = max(signed, memory.last, key=lambda each: each.size)

    @contextlib.asynccontextmanager
    async def _refusing(self, at: datetime) -> AsyncIterator[None]:
        """Tell of what does not continue what was signed, and sign nothing then."""
        try:
            yield
        except (LogRejected, MalformedNote, MemoryUnusable) as e:
            await self._refuse(str(e), at)
            raise Unavailable("the audit log does not continue what was signed; nothing was signed") from e
        self.refused = None

    def _is_due(self, tx: Tx, at: datetime, *, force: bool) -> bool:
        size = tx.audit.tree.size()
        newest = tx.audit.tree.newest_checkpoint()
        if newest is None or self.refused is not None:
            return True  # what did not fit before is looked at again, until it fits
        if newest.size > size or (self.signed is not None and self.signed.size > size):
            return True  # entries are gone; looking closer will say so
        return size > newest.size and (
            force
            or size - newest.size >= self._entries
            or at - newest.created_at >= self._interval
            # Who was given authority, and by whom, is signed at once: until then its entry can be cut off.
            or tx.audit.authority_after(newest.size)
        )

    async def _sign(self, at: datetime) -> bool:
        """Sign the log as it is; False where another worker did so at the same moment."""
        # 1. What the keys remember, before the entries are read: another worker may sign more meanwhile.
        memory = await asyncio.to_thread(self._memory.demand)
        # 2. The entries since the last signature are the tree's. Otherwise we would sign what nobody can list.
        size = await self._walk()
        # 3. The tree begins with what was signed before. Otherwise two histories would bear our signature.
        ground = await self._store.read(lambda tx: self._ground(tx, size, memory))
        await self._read_again(ground, memory)
        # 4. The keys remember it first. Otherwise a database that is lost now could be signed again, with another root.
        checkpoint = Checkpoint(origin=self.signer.origin, size=ground.size, root=ground.root)
        if not await asyncio.to_thread(self._memory.advance, memory, checkpoint):
            return False
        # 5. Now it may be signed, once, whoever else does so at the same time.
        note = await asyncio.to_thread(self.signer.sign, checkpoint, at)
        stored = StoredCheckpoint(size=ground.size, root=ground.root, note=note, created_at=at)
        self.signed = checkpoint
        if await self._store.write(lambda tx: self._add(tx, stored)):
            self._untold, self._tell_from = stored, None
            log.info("audit.checkpoint", size=stored.size)
        return True

    def _add(self, tx: Tx, stored: StoredCheckpoint) -> bool:
        if not tx.audit.tree.add_checkpoint(stored):
            return False
        told = {"origin": self.signer.origin, "size": stored.size, "root": b64encode(stored.root)}
        payload = {"ek_fingerprint": None, "timestamp": rfc3339(stored.created_at), "node": {}, "meta": told}
        tx.outbox.add(LogEvent.CHECKPOINT, None, payload, stored.created_at)
        return True

    async def _read_again(self, ground: _Ground, memory: Memory) -> Checkpoint | None:
        """Return the newest checkpoint of the database, signed by the keys here; None where this log has none.

        Outside of the unit: a row of a database is no proof that we signed it.

        Raises:
            LogBroken: It is not of the size or root that its row says.
            NoteRejected: Other keys signed it.
        """
        if ground.before is None or self._is_ended(ground.before, memory):
            return None
        try:
            signed = (await asyncio.to_thread(self.signer.verify, ground.before.note)).checkpoint
        except NoteRejected as e:
            raise NoteRejected(
                f"the newest checkpoint of the database, of {ground.before.size} entries, is not signed by the "
                f"keys in {self._memory.path.parent} ({e}). Either they are other keys than before: put those "
                "of your backup back, or list the old ones in audit-retired-vkeys.txt; or somebody put that "
                "checkpoint there"
            ) from e
        if (signed.size, signed.root) != (ground.before.size, ground.before.root):
            raise LogBroken(
                f"the checkpoint stored for size {ground.before.size} is of size {signed.size}",
                entry_id=None,
            )
        return signed

    @staticmethod
    def _is_ended(stored: StoredCheckpoint, memory: Memory) -> bool:
        """Return True where the keys remember that a log ended with *stored*: they need not know its signature again.

        Raises:
            MalformedNote: It is no checkpoint.
        """
        told = parse(stored.note.encode("utf-8", "surrogatepass")).checkpoint
        return (told.size, told.root) == (stored.size, stored.root) and told in memory.ended

    async def _walk(self) -> int:
        """Compare the entries that this process has not compared yet with the tree; return how many there are.

        Raises:
            LogBroken: They are not the same log.
        """
        after, last_hash = await self._store.read(self._walk_from)
        walk = Walk(after, last_hash)
        while True:
            found = await self._store.scan(lambda tx: page(tx, walk.size))
            if not found.entries:
                return walk.size
            await asyncio.to_thread(walk.feed, found)
            self._walked = (walk.size, walk.last_hash)

    def _walk_from(self, tx: Tx) -> tuple[int, str]:
        """Return where to go on: what this process compared, or what was signed before it started."""
        if self._walked is not None:
            return self._walked
        newest = tx.audit.tree.newest_checkpoint()
        before = tx.audit.entries(newest.size - 1, 1) if newest is not None and newest.size else []
        return (before[0][0], before[0][1].entry_hash) if before else (0, GENESIS_HASH)

    async def ended(self) -> tuple[Checkpoint, ...]:
        """Return the last checkpoints of logs that ended; none where that is not remembered."""
        with contextlib.suppress(MemoryUnusable):
            memory = await asyncio.to_thread(self._memory.read)
            return memory.ended if memory is not None else ()
        return ()

    async def demand_continued(self) -> None:
        """Prove that the log still begins with what was signed, as before signing.

        Raises:
            LogRejected: It does not.
        MemoryUnusable: What the keys remember cannot be read.
        """
        memory = await asyncio.to_thread(self._memory.demand)
        await self._store.read(lambda tx: self._ground(tx, tx.audit.tree.size(), memory))

    def _ground(self, tx: Tx, size: int, memory: Memory) -> _Ground:
        """Prove that the tree of *size* entries begins with what was signed.

        Raises:
            LogBroken: Entries are gone.
            ProofRejected: It does not.
        """
        tree = tx.audit.tree
        size = min(size, tree.size())
        now = root(tree, size)
        before = tree.newest_checkpoint()
        for old in (before, self.signed, memory.last):
            if old is not None:
                if old.size > size:
                    raise LogBroken(
                        f"entries {size + 1} to {old.size} are missing: a checkpoint covers {old.size}",
                        entry_id=size + 1,
                    )
                verify_consistency(old.size, size, old.root, now, consistency_proof(tree, old.size, size))
        return _Ground(size, now, before)

    async def _refuse(self, reason: str, at: datetime) -> None:
        told = self._refused_at
        if reason != self.refused or told is None or at - told >= timedelta(seconds=REFUSALS.per_seconds):
            log.error("audit.checkpoint_refused", reason=reason)
            self._refused_at = at
        self.refused = reason
        event = AuditEvent(operator_cn=SERVICE, action="checkpoint_refused", detail=reason)

        def work(tx: Tx) -> None:
            key = "audit:checkpoint_refused"
            if tx.rate_limits.check(key, at, REFUSALS) is None:
                tx.rate_limits.take(key, at, REFUSALS)
                tx.audit.append(event, at)

        await self._store.write(work)

    async def tell_others(self) -> None:
        """Let witnesses cosign and the authority stamp what this process signed last; failures are logged.

        Who failed is asked again after the interval between checkpoints, unless a newer one came first.
        """
        at = self._clock.now()
        stored = self._untold
        if stored is None or (self._tell_from is not None and at < self._tell_from):
            return
        said = await self._store.read(lambda tx: tx.audit.tree.countersignatures(stored.size))
        heard = {(found.kind, found.signer) for found in said}
        done = await asyncio.gather(
            *(self._ask(other, stored, at) for other in self.others if (other.kind, other.name) not in heard)
        )
        if self._untold is stored:
            self._untold, self._tell_from = (None, None) if all(done) else (stored, at + self._interval)

    async def _ask(self, other: Countersigner, stored: StoredCheckpoint, at: datetime) -> bool:
        """Store what *other* says of *stored*; return False, and count it, where it says nothing good."""
        try:
            async with asyncio.timeout(TOLD_SECONDS):
                value = await other.countersign(stored, self._store)
        except (TimeoutError, AttestationError) as e:
            self.failures[other.name] += 1
            reason = e.code if isinstance(e, AttestationError) else type(e).__name__
            log.warning(
                "audit.countersignature_failed",
                kind=other.kind,
                signer=other.name,
                size=stored.size,
                failures=self.failures[other.name],
                code=reason,
                reason=str(e)[:200],
            )
            return False
        found = Countersignature(kind=other.kind, signer=other.name, value=value, created_at=at)
        await self._store.write(lambda tx: tx.audit.tree.countersign(stored.size, found))
        self.failures.pop(other.name, None)
        return True
