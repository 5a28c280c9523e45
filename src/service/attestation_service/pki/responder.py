"""The OCSP responder of our own CAs: a delegated key for each CA key.

The delegated key is made at the start and replaced each day, long before its end; the database keeps it, sealed
(`attestation_service.ocsp.sealing`), for other workers and the next start. So a CA key that is away does not end the
answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import secrets
from collections import defaultdict
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

import structlog
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from attestation.audit import AuditEvent
from attestation.clock import Clock, rfc3339
from attestation.errors import AttestationError
from attestation.pki.issuer import identity_of
from attestation.pki.names import responder_subject
from attestation.pki.ocsp import (
    CertStatus,
    Unknown,
    issuer_hashes,
)
from attestation.pki.profiles import ProfileName
from attestation.store import Issuer, Store, StoredDelegate, Tx
from attestation_service.authority import Authority, Issued, Wanted
from attestation_service.ocsp.answers import (
    RENEW_AFTER,
    Answers,
    Delegate,
    Hashes,
    NotOurs,
    new_key,
    status_of,
)
from attestation_service.ocsp.sealing import seal, unseal
from attestation_service.settings import Settings

log = structlog.get_logger("attestation_service.pki")

RETRY_AFTER: Final = timedelta(seconds=5)
RETRY_AT_MOST: Final = timedelta(minutes=10)
"""So long a failed delegation is not tried again, doubled each time: each attempt takes a serial number, which then
stands on the revocation list as void."""

ANSWERING: Final = frozenset({"active", "retiring"})
"""States of a CA key for which somebody is delegated."""


@dataclass(frozen=True, slots=True)
class _Failure:
    """Why a key could not be delegated, and when that is tried again."""

    error: AttestationError
    waits: timedelta
    again_at: datetime


@dataclass(frozen=True, slots=True)
class _Known:
    """What certificates of our CA keys say; good as long as these are all that there are."""

    issuer_ids: frozenset[str]
    subjects: Mapping[str, x509.Name]
    algorithms: Mapping[str, str]


class Responder(Answers):
    """Answers OCSP requests.

    Args:
        settings: How long answers are good.
        store: What became of each certificate.
        clock: What tells the time.
        authority: Certifies the delegated keys.
        secret: Seals them, 32 bytes; None where there is nothing to seal them with: they stay in memory.
    """

    def __init__(
        self, settings: Settings, store: Store, clock: Clock, authority: Authority, secret: bytes | None
    ) -> None:
        super().__init__(settings, store, clock)
        self._authority = authority
        self._secret = secret
        self._worker = secrets.token_hex(4)
        self._known = _Known(frozenset(), {}, {})
        self._delegates: dict[str, Delegate] = {}
        self._failed: dict[str, _Failure] = {}
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    def revisions(self, tx: Tx) -> Mapping[str, Hashable]:
        """Return the demanded revision of each CA key that has a certificate."""
        return tx.issuers.revisions()

    def look(self, tx: Tx, issuer_id: str, serial: str | None) -> tuple[Hashable, CertStatus]:
        """Return the demanded revision of a CA key and what became of a certificate.

        Raises:
            NotOurs: The key answers no more.
        """
        issuer = tx.issuers.get(issuer_id)
        if issuer is None or issuer.state not in ANSWERING:
            raise NotOurs
        row = tx.issuances.get(serial) if serial is not None else None
        if row is None or row.issuer_id != issuer_id:
            return issuer.demanded, Unknown()
        return issuer.demanded, status_of(row.state, row.ended_at, row.reason)

    async def renew(self, *, for_all: bool = True) -> None:
        """Have a delegated key for every CA key that answers, made early enough that nobody who asks waits for it.

        Args:
            for_all: Replace one that is due. Others take it from the database, where it is sealed.
        """
        at = self._clock.now()
        issuers = await self._store.read(lambda tx: tx.issuers.all())
        answering = {issuer.issuer_id for issuer in issuers if issuer.state in ANSWERING}
        for issuer_id in self._delegates.keys() - answering:
            # Nothing of a key that is retired is left to ask about.
            del self._delegates[issuer_id]
        await self._adopt(answering)
        if not answering <= self._known.issuer_ids:
            await self._learn()
        for issuer_id in sorted(answering):
            found = self._delegates.get(issuer_id)
            due = found is None or (at >= found.renew_at and (for_all or self._secret is None))
            # One that is away takes no serial number for nothing, and holds up no start.
            if due and self._authority.answers(issuer_id):
                with contextlib.suppress(AttestationError):  # logged where it arose
                    await self._delegate(issuer_id, at, early=True)

    async def _adopt(self, answering: set[str]) -> None:
        """Take from the database what another worker, or an earlier start, had certified."""
        if self._secret is None:
            return
        for kept in await self._store.read(lambda tx: tx.issuers.delegates()):
            found = self._delegates.get(kept.issuer_id)
            if kept.issuer_id not in answering:
                await self._store.write(functools.partial(_drop, kept.issuer_id))
            elif found is None or found.not_after < kept.not_after:
                key = unseal(self._secret, kept.issuer_id, kept.certificate, kept.sealed_key)
                if key is not None:
                    self._delegates[kept.issuer_id] = Delegate(
                        key, kept.certificate, kept.not_after, kept.made_at + RENEW_AFTER
                    )

    async def names(self) -> Mapping[Hashes, str]:
        """Return all CA keys as requests name them."""
        by_hashes: dict[Hashes, str] = {}
        for issuer, certificate in await self._learn():
            for name, (name_hash, key_hash) in issuer_hashes(identity_of(certificate)).items():
                by_hashes[name, name_hash, key_hash] = issuer.issuer_id
        return by_hashes

    async def _learn(self) -> list[tuple[Issuer, bytes]]:
        """Read all CA keys again; there are as many as rotations."""
        issuers = await self._store.read(lambda tx: tx.issuers.all())
        named = [(issuer, issuer.certificate) for issuer in issuers if issuer.certificate is not None]
        self._known = _Known(
            issuer_ids=frozenset(issuer.issuer_id for issuer, _ in named),
            subjects={
                issuer.issuer_id: x509.load_der_x509_certificate(certificate).subject
                for issuer, certificate in named
            },
            algorithms={issuer.issuer_id: issuer.algorithm for issuer, _ in named},
        )
        return named

    async def delegate(self, issuer_id: str, at: datetime) -> Delegate:
        """Return a key that may answer for *issuer_id*, made and certified where there is none."""
        return await self._delegate(issuer_id, at)

    async def _delegate(self, issuer_id: str, at: datetime, *, early: bool = False) -> Delegate:
        """Return a key that may answer for *issuer_id*, made and certified where there is none or it ends soon.

        Args:
            issuer_id: A CA key.
            at: Now.
            early: Also where it is only due: whoever asks does not wait for that.
        """

        def usable() -> Delegate | None:
            found = self._delegates.get(issuer_id)
            good = found is not None and at < (found.renew_at if early else found.not_after - self._valid)
            return found if good else None

        if (found := usable()) is not None:
            return found
        async with self._turns[issuer_id]:
            return usable() or await self._certify(issuer_id, at)

    async def _certify(self, issuer_id: str, at: datetime) -> Delegate:
        failed = self._failed.get(issuer_id)
        if failed is not None and at < failed.again_at:
            raise failed.error
        key = await asyncio.to_thread(new_key, self._known.algorithms[issuer_id])
        wanted = Wanted(
            profile=ProfileName.OCSP_SIGNING,
            subject=responder_subject(self._known.subjects[issuer_id], self._worker),
            spki=key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo),
            requester="service",
            issuer_id=issuer_id,
        )

        def conclude(tx: Tx, made: tuple[Issued, ...]) -> None:
            _record(tx, made, at)
            if self._secret is None:
                return
            for each in made:
                sealed = seal(self._secret, issuer_id, each.certificate, key)
                tx.issuers.put_delegate(
                    StoredDelegate(
                        issuer_id=issuer_id,
                        certificate=each.certificate,
                        sealed_key=sealed,
                        made_at=at,
                        not_after=each.not_after,
                    )
                )

        try:
            (issued,) = await self._authority.issue(wanted, at=at, admit=lambda _: None, conclude=conclude)
        except AttestationError as e:
            waits = RETRY_AFTER if failed is None else min(2 * failed.waits, RETRY_AT_MOST)
            self._failed[issuer_id] = _Failure(e, waits, at + waits)
            log.warning(
                "ocsp.not_delegated", issuer_id=issuer_id, code=e.code, again_in=waits.total_seconds()
            )
            raise
        self._failed.pop(issuer_id, None)
        delegate = Delegate(
            key=key,
            certificate=issued.certificate,
            not_after=issued.not_after,
            renew_at=at + RENEW_AFTER,
        )
        self._delegates[issuer_id] = delegate
        log.info(
            "ocsp.delegated", issuer_id=issuer_id, serial=issued.serial, not_after=rfc3339(issued.not_after)
        )
        return delegate


def _drop(issuer_id: str, tx: Tx) -> None:
    tx.issuers.drop_delegate(issuer_id)


def _record(tx: Tx, issued: tuple[Issued, ...], at: datetime) -> None:
    for each in issued:
        tx.audit.append(
            AuditEvent(
                operator_cn="service",
                action="cert_issued",
                detail=f"serial {each.serial} of CA {each.issuer_id}: {ProfileName.OCSP_SIGNING}, "
                f"until {rfc3339(each.not_after)}",
            ),
            at,
        )
