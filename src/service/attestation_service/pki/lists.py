"""Revocation lists: made at each revocation and every few hours, by one worker at a time, kept in the database.

    unit: the lease and the next CRLNumber          a crash from here on leaves a gap in the numbers, nothing else
    one snapshot: revision and entries
    signed on a thread
    unit: kept, if it knows no less than the list before

Whoever asks for a list gets one that was read after everything that had been revoked when they asked: what is kept
carries the revision of its issuer, and a list that is behind is made anew first.
"""

from __future__ import annotations

import asyncio
import functools
import secrets
from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

import structlog

from attestation.clock import Clock
from attestation.errors import AttestationError, IssuerUnknown, SignerBusy
from attestation.pki.crl import REASONS, CRLEntry, build_crl
from attestation.pki.profiles import BACKDATE
from attestation.store import Issuer, ListedCertificate, Store, StoredCRL, Tx
from attestation_service.settings import Settings

if TYPE_CHECKING:
    from attestation_service.authority import Authority

log = structlog.get_logger("attestation_service.pki")

MAKING: Final = timedelta(seconds=10)
"""For so long a worker has the making of a list to itself; whoever died over it delays others by that. Two at once
would cost a signature more, and break nothing."""

WAIT_SECONDS: Final = 15.0
"""So long somebody who asks waits for the list of another worker: longer than one who died can delay it."""

REST: Final = timedelta(seconds=15)
"""So long nobody who asks has a list made again that is only better than the one there, after that failed."""

_EVER: Final = datetime.min.replace(tzinfo=UTC)

POLL_SECONDS: Final = 0.05


class Lists:
    """The lists of every CA key.

    Args:
        settings: How often, and for how long.
        store: Where they are kept.
        clock: What tells the time.
        authority: Lends the keys.
    """

    def __init__(self, settings: Settings, store: Store, clock: Clock, authority: Authority) -> None:
        self._settings = settings
        self._store = store
        self._clock = clock
        self._authority = authority
        self._owner = secrets.token_hex(8)
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._kept: dict[str, StoredCRL] = {}
        self._resting: dict[str, datetime] = {}

    async def current(self, issuer_id: str) -> StoredCRL:
        """Return a list of *issuer_id* that names everything revoked before this call; made now if there is none.

        Raises:
            IssuerUnknown: No such key, or one that never signed.
            SignerBusy: Another worker takes too long over it.
            SignerUnavailable: The key cannot sign now.
        """
        issuer, kept = await self._look(issuer_id)
        if issuer is None or issuer.certificate is None or issuer.state == "abandoned":
            raise IssuerUnknown("there is no such CA key")
        if issuer.state == "retired":
            # All that it certified has ended; its last list stays, for whoever looks back.
            if kept is None:
                raise IssuerUnknown("this CA key makes no lists any more")
            return kept
        if kept is None or not self._serves(kept, issuer.demanded):
            # The one that another task is making at this moment may know no more than what is demanded.
            kept = await self._make(issuer_id, issuer.demanded)
        if self._serves(kept, issuer.revision) or self._clock.now() < self._resting.get(issuer_id, _EVER):
            return kept
        # What it does not name nobody got: a newer one is better, and this one is no worse without the key.
        try:
            return await self._make(issuer_id, issuer.revision)
        except AttestationError as e:
            self._resting[issuer_id] = self._clock.now() + REST
            log.warning("crl.not_made", issuer_id=issuer_id, code=e.code)
            return kept

    async def refresh(self) -> int:
        """Make every list that is behind or due; return how many.

        One that cannot be made does not stop the others.
        """
        issuers = await self._store.read(lambda tx: tx.issuers.all())
        made = 0
        for issuer in issuers:
            if issuer.state not in ("next", "active", "retiring"):
                continue
            _, kept = await self._look(issuer.issuer_id)
            if kept is not None and self._serves(kept, issuer.revision) and not self._is_due(kept):
                continue
            if kept is None and issuer.state == "next":
                # It signs nothing yet; whoever asks gets one all the same.
                continue
            try:
                await self._make(issuer.issuer_id, issuer.revision, due=True)
            except AttestationError as e:
                log.warning("crl.not_made", issuer_id=issuer.issuer_id, code=e.code)
            else:
                made += 1
        return made

    def _serves(self, kept: StoredCRL, revision: int) -> bool:
        return kept.revision >= revision and self._clock.now() < kept.next_update

    def _is_due(self, kept: StoredCRL) -> bool:
        return self._clock.now() >= kept.this_update + timedelta(seconds=self._settings.crl_refresh_seconds)

    async def _look(self, issuer_id: str) -> tuple[Issuer | None, StoredCRL | None]:
        """Return the key and its list, of one snapshot; a list that this process has at hand is not read again."""
        at_hand = self._kept.get(issuer_id)

        def work(tx: Tx) -> tuple[Issuer | None, StoredCRL | None]:
            number = tx.issuers.kept_crl_number(issuer_id)
            same = at_hand is not None and at_hand.number == number
            kept = at_hand if same else tx.issuers.crl(issuer_id) if number is not None else None
            return tx.issuers.get(issuer_id), kept

        issuer, kept = await self._store.read(work)
        if kept is not None:
            self._kept[issuer_id] = kept
        return issuer, kept

    async def _make(self, issuer_id: str, revision: int, *, due: bool = False) -> StoredCRL:
        """Make a list that knows *revision*, or wait until another worker did."""
        ends = asyncio.get_running_loop().time() + WAIT_SECONDS
        began = self._clock.now()
        async with self._turns[issuer_id]:
            while True:
                _, kept = await self._look(issuer_id)
                if kept is not None and self._serves(kept, revision) and not (due and self._is_due(kept)):
                    return kept
                at = self._clock.now()
                begin = functools.partial(_begin, issuer_id, self._owner, at, kept.number if kept else None)
                number = await self._store.write(begin)
                if number is not None:
                    return await self._sign(issuer_id, number, at)
                if asyncio.get_running_loop().time() >= ends:
                    raise SignerBusy(
                        f"another worker is making the list of {issuer_id} since {began:%H:%M:%S}"
                    )
                await asyncio.sleep(POLL_SECONDS)

    async def _sign(self, issuer_id: str, number: int, at: datetime) -> StoredCRL:
        try:
            made = await self._signed(issuer_id, number, at)

            def keep(tx: Tx) -> bool:
                tx.issuers.end_crl(issuer_id, owner=self._owner)
                return tx.issuers.put_crl(made)

            kept = await self._store.write(keep)
        except BaseException:
            await self._store.write(lambda tx: tx.issuers.end_crl(issuer_id, owner=self._owner))
            raise
        log.info("crl.made", issuer_id=issuer_id, number=number, entries=made.entries, kept=kept)
        return made

    async def _signed(self, issuer_id: str, number: int, at: datetime) -> StoredCRL:
        # RFC 5280 §3.3: an entry stays until it was on a list that was made after the certificate's end.
        ended = at - timedelta(seconds=self._settings.crl_valid_seconds)

        def snapshot(tx: Tx) -> tuple[Issuer | None, Sequence[ListedCertificate]]:
            return tx.issuers.get(issuer_id), tx.issuances.listed(issuer_id, ended)

        issuer, listed = await self._store.scan(snapshot)
        assert issuer is not None  # whoever asked found it, and keys are never deleted
        certificate = issuer.path[0]
        next_update = at + timedelta(seconds=self._settings.crl_valid_seconds)

        def build() -> bytes:
            return build_crl(
                certificate,
                self._authority.signing_key(issuer_id).private_key,
                number=number,
                entries=map(_entry, listed),
                # For clocks that are late, as in certificates: a list of the future is refused.
                this_update=at - BACKDATE,
                next_update=next_update,
            )

        return StoredCRL(
            issuer_id=issuer_id,
            number=number,
            revision=issuer.revision,
            entries=len(listed),
            this_update=at,
            next_update=next_update,
            crl=await self._authority.in_thread(build),
        )


def _begin(issuer_id: str, owner: str, at: datetime, seen: int | None, tx: Tx) -> int | None:
    # Between the look and this unit another worker may have finished: then its list is the one to look at.
    if tx.issuers.kept_crl_number(issuer_id) != seen:
        return None
    return tx.issuers.begin_crl(issuer_id, owner=owner, at=at, until=at + MAKING)


def _entry(listed: ListedCertificate) -> CRLEntry:
    return CRLEntry(
        serial=int(listed.serial, 16), at=listed.ended_at, reason=REASONS[listed.reason or "unspecified"]
    )
