"""Answers of OCSP (RFC 6960) that are signed once and kept, for CA keys of whichever kind.

What a kept answer says is right as long as its issuer's revision in the database is the one it was made under, and
that is compared for every request: a lock or revocation in any worker is seen at once in all of them.

A kept answer costs one read, as much as a refusal would, so it is not counted. What must be signed (a nonce, an
unknown serial number, the first question about a certificate) is counted like every request of a stranger.
"""

# Algorithms for: ca-key
from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from cryptography.hazmat.primitives.asymmetric import ec, mldsa

from attestation.clock import Clock
from attestation.pki.content import SERIAL_BYTES, SigningKey, serial_text
from attestation.pki.crl import REASONS
from attestation.pki.ocsp import (
    CertStatus,
    Good,
    OCSPRequest,
    Revoked,
    Unknown,
    build_ocsp_response,
)
from attestation.pki.profiles import BACKDATE
from attestation.store import Store, Tx
from attestation_service.border import limits
from attestation_service.context.request import Origin
from attestation_service.settings import Settings

KEPT_BYTES: Final = 16 << 20
"""Answers that a worker keeps: about 12,000 of P-384, 1,300 of ML-DSA-87."""

RENEW_AFTER: Final = timedelta(days=1)
"""A delegated key is replaced each day, of the seven that it is good for: an outage finds six left."""

Hashes = tuple[str, bytes, bytes]
"""As a request names a CA key: the hash, that of the name, that of the key."""


class NotOurs(Exception):
    """The certificate is of none of our CA keys that answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A signed response.

    Args:
        body: OCSPResponse, DER.
        made_at: When it was signed.
        next_update: Until when it may be used.
        may_be_kept: False where it is for one asker only, or may be wrong in a moment: nonce, unknown.
    """

    body: bytes = field(repr=False)
    made_at: datetime
    next_update: datetime
    may_be_kept: bool


@dataclass(frozen=True, slots=True)
class _Kept:
    answer: Answer
    issuer_id: str
    revision: Hashable
    renew_at: datetime


@dataclass(frozen=True, slots=True)
class Delegate:
    """A key that may answer for one CA key until `not_after`."""

    key: SigningKey = field(repr=False)
    certificate: bytes = field(repr=False)
    not_after: datetime
    renew_at: datetime


class Answers(ABC):
    """Answers OCSP requests about certificates of some CA keys: which, and who signs for them, a subclass says.

    Args:
        settings: How long answers are good.
        store: What became of each certificate.
        clock: What tells the time.
    """

    def __init__(self, settings: Settings, store: Store, clock: Clock) -> None:
        self._settings = settings
        self._store = store
        self._clock = clock
        self._valid = timedelta(seconds=settings.ocsp_valid_seconds)
        self._known_ids: frozenset[str] = frozenset()
        self._by_hashes: Mapping[Hashes, str] = {}
        self._kept: OrderedDict[bytes, _Kept] = OrderedDict()
        self._kept_bytes = 0

    @abstractmethod
    def revisions(self, tx: Tx) -> Mapping[str, Hashable]:
        """Return what tells whether an answer is still right, for each CA key that requests may name."""

    @abstractmethod
    async def names(self) -> Mapping[Hashes, str]:
        """Return the CA keys of `revisions`, as requests name them."""

    @abstractmethod
    def look(self, tx: Tx, issuer_id: str, serial: str | None) -> tuple[Hashable, CertStatus]:
        """Return the revision of a CA key and what became of a certificate of it, of one snapshot.

        Args:
            tx: The unit.
            issuer_id: A CA key.
            serial: 40 lower-case hex; None where it is none that a certificate could have.

        Raises:
            NotOurs: The key does not answer now.
        """

    @abstractmethod
    async def delegate(self, issuer_id: str, at: datetime) -> Delegate:
        """Return a key that may answer for *issuer_id*.

        Raises:
            NotOurs: There is none.
        """

    async def answer(self, request: OCSPRequest, origin: Origin) -> Answer:
        """Return the answer to *request*.

        Raises:
            NotOurs: We have no word on this certificate.
            RateLimited: It would have to be signed, and this address asks too often.
            SignerUnavailable: Nobody can certify our key now; other errors of the CA likewise.
        """
        at = self._clock.now()
        revisions = await self._store.read(self.revisions)
        if revisions.keys() != self._known_ids:
            self._by_hashes = await self.names()
            self._known_ids = frozenset(revisions)
        issuer_id = self._issuer_of(request)
        kept = self._kept.get(request.cert_id.der) if request.nonce is None else None
        if kept is not None and kept.revision == revisions.get(kept.issuer_id) and at < kept.renew_at:
            return kept.answer
        return await self._sign(request, issuer_id, origin, at)

    def _issuer_of(self, request: OCSPRequest) -> str:
        asked = request.cert_id
        issuer_id = self._by_hashes.get((asked.hash_name, asked.name_hash, asked.key_hash))
        if issuer_id is None:
            raise NotOurs
        return issuer_id

    async def _sign(self, request: OCSPRequest, issuer_id: str, origin: Origin, at: datetime) -> Answer:
        counted = limits.of_client(self._settings, origin.address)
        number = request.cert_id.serial
        serial = serial_text(number) if 0 < number < 1 << 8 * SERIAL_BYTES else None

        def look(tx: Tx) -> tuple[Hashable, CertStatus]:
            limits.check(tx, counted, at)
            return self.look(tx, issuer_id, serial)

        revision, status = await self._store.read(look)
        await self._store.write(lambda tx: limits.take(tx, counted, at))
        delegate = await self.delegate(issuer_id, at)
        next_update = min(at + self._valid, delegate.not_after)
        body = await asyncio.to_thread(
            build_ocsp_response,
            request.cert_id,
            status,
            responder=delegate.certificate,
            key=delegate.key,
            produced_at=at,
            this_update=at - BACKDATE,
            next_update=next_update,
            nonce=request.nonce,
        )
        may_be_kept = request.nonce is None and not isinstance(status, Unknown)
        answer = Answer(body=body, made_at=at, next_update=next_update, may_be_kept=may_be_kept)
        if may_be_kept:
            self._keep(request.cert_id.der, _Kept(answer, issuer_id, revision, at + (next_update - at) / 2))
        return answer

    def _keep(self, cert_id: bytes, kept: _Kept) -> None:
        before = self._kept.pop(cert_id, None)
        if before is not None:
            self._kept_bytes -= len(cert_id) + len(before.answer.body)
        self._kept[cert_id] = kept
        self._kept_bytes += len(cert_id) + len(kept.answer.body)
        while self._kept_bytes > KEPT_BYTES:
            oldest, gone = self._kept.popitem(last=False)
            self._kept_bytes -= len(oldest) + len(gone.answer.body)


def new_key(algorithm: str) -> SigningKey:
    """Return a key that is as strong as the one it answers for: P-384 is as RSA-4096, and quicker."""
    if algorithm == "ml-dsa-87":
        return mldsa.MLDSA87PrivateKey.generate()
    return ec.generate_private_key(ec.SECP384R1())


def status_of(state: str, ended_at: datetime | None, reason: str | None) -> CertStatus:
    """Return what is said of a certificate in *state*; where nobody knows yet whether it was signed: unknown."""
    if state == "reserved":
        return Unknown()
    if state == "issued":
        return Good()
    assert ended_at is not None
    return Revoked(at=ended_at, reason=REASONS[reason or "unspecified"])
