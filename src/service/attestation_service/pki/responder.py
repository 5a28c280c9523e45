"""The OCSP responder: a delegated key for each CA key, and answers that are signed once and kept.

The delegated key is made at the start and replaced each day, long before its end; the database keeps it, sealed
(`delegates`), for other workers and the next start. So a CA key that is away does not end the answers.

What a kept answer says is right as long as its issuer's revision in the database is the one it was made under, and
that is compared for every request: a lock or revocation in any worker is seen at once in all of them.

A kept answer costs one read, as much as a refusal would, so it is not counted. What must be signed (a nonce, an
unknown serial number, the first question about a certificate) is counted like every request of a stranger.
"""

# Algorithms for: ca-key
from __future__ import annotations

import asyncio
import contextlib
import functools
import secrets
from collections import OrderedDict, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

import structlog
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, mldsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from attestation.audit import AuditEvent
from attestation.clock import Clock, rfc3339
from attestation.errors import AttestationError
from attestation.pki.content import SERIAL_BYTES, SigningKey, serial_text
from attestation.pki.issuer import identity_of
from attestation.pki.names import responder_subject
from attestation.pki.ocsp import (
    CertID,
    CertStatus,
    Good,
    OCSPRequest,
    Revoked,
    Unknown,
    build_ocsp_response,
    issuer_hashes,
)
from attestation.pki.profiles import BACKDATE, ProfileName
from attestation.store import Issuer, Store, StoredDelegate, Tx
from attestation_service.authority import Authority, Issued, Wanted
from attestation_service.border import limits
from attestation_service.context.request import Origin
from attestation_service.pki.delegates import seal, unseal
from attestation_service.pki.lists import REASONS
from attestation_service.settings import Settings

log = structlog.get_logger("attestation_service.pki")

KEPT_BYTES: Final = 16 << 20
"""Answers that a worker keeps: about 12,000 of P-384, 1,300 of ML-DSA-87."""

RETRY_AFTER: Final = timedelta(seconds=5)
RETRY_AT_MOST: Final = timedelta(minutes=10)
"""So long a failed delegation is not tried again, doubled each time: each attempt takes a serial number, which then
stands on the revocation list as void."""

RENEW_AFTER: Final = timedelta(days=1)
"""A delegated key is replaced each day, of the seven that it is good for: an outage finds six left."""

ANSWERING: Final = frozenset({"active", "retiring"})
"""States of a CA key for which somebody is delegated."""

_Hashes = tuple[str, bytes, bytes]


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
    revision: int
    renew_at: datetime


@dataclass(frozen=True, slots=True)
class _Delegate:
    """A key that may answer for one CA key until `not_after`."""

    key: SigningKey = field(repr=False)
    certificate: bytes = field(repr=False)
    not_after: datetime
    renew_at: datetime


@dataclass(frozen=True, slots=True)
class _Failure:
    """Why a key could not be delegated, and when that is tried again."""

    error: AttestationError
    waits: timedelta
    again_at: datetime


@dataclass(frozen=True, slots=True)
class _Known:
    """The CA keys as requests name them; good as long as these are all that there are."""

    issuer_ids: frozenset[str]
    by_hashes: Mapping[_Hashes, str]
    subjects: Mapping[str, x509.Name]
    algorithms: Mapping[str, str]


class Responder:
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
        self._settings = settings
        self._store = store
        self._clock = clock
        self._authority = authority
        self._secret = secret
        self._valid = timedelta(seconds=settings.ocsp_valid_seconds)
        self._worker = secrets.token_hex(4)
        self._known = _Known(frozenset(), {}, {}, {})
        self._delegates: dict[str, _Delegate] = {}
        self._failed: dict[str, _Failure] = {}
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._kept: OrderedDict[bytes, _Kept] = OrderedDict()
        self._kept_bytes = 0

    async def answer(self, request: OCSPRequest, origin: Origin) -> Answer:
        """Return the answer to *request*.

        Raises:
            NotOurs: We have no word on this certificate.
            RateLimited: It would have to be signed, and this address asks too often.
            SignerUnavailable: Nobody can certify our key now; other errors of the CA likewise.
        """
        at = self._clock.now()
        revisions = await self._store.read(lambda tx: tx.issuers.revisions())
        if revisions.keys() != self._known.issuer_ids:
            await self._learn()
        issuer_id = self._issuer_of(request)
        kept = self._kept.get(request.cert_id.der) if request.nonce is None else None
        if kept is not None and kept.revision == revisions[kept.issuer_id] and at < kept.renew_at:
            return kept.answer
        return await self._sign(request, issuer_id, origin, at)

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
                    self._delegates[kept.issuer_id] = _Delegate(
                        key, kept.certificate, kept.not_after, kept.made_at + RENEW_AFTER
                    )

    def _issuer_of(self, request: OCSPRequest) -> str:
        asked = request.cert_id
        issuer_id = self._known.by_hashes.get((asked.hash_name, asked.name_hash, asked.key_hash))
        if issuer_id is None:
            raise NotOurs
        return issuer_id

    async def _learn(self) -> None:
        """Read the names of all CA keys again; there are as many as rotations."""
        issuers = await self._store.read(lambda tx: tx.issuers.all())
        named = [(issuer, issuer.certificate) for issuer in issuers if issuer.certificate is not None]
        by_hashes: dict[_Hashes, str] = {}
        for issuer, certificate in named:
            for name, (name_hash, key_hash) in issuer_hashes(identity_of(certificate)).items():
                by_hashes[name, name_hash, key_hash] = issuer.issuer_id
        self._known = _Known(
            issuer_ids=frozenset(issuer.issuer_id for issuer, _ in named),
            by_hashes=by_hashes,
            subjects={
                issuer.issuer_id: x509.load_der_x509_certificate(certificate).subject
                for issuer, certificate in named
            },
            algorithms={issuer.issuer_id: issuer.algorithm for issuer, _ in named},
        )

    async def _sign(self, request: OCSPRequest, issuer_id: str, origin: Origin, at: datetime) -> Answer:
        counted = limits.of_client(self._settings, origin.address)

        def look(tx: Tx) -> tuple[Issuer | None, CertStatus]:
            limits.check(tx, counted, at)
            return tx.issuers.get(issuer_id), _status(tx, issuer_id, request.cert_id)

        issuer, status = await self._store.read(look)
        if issuer is None or issuer.state not in ANSWERING:
            raise NotOurs
        await self._store.write(lambda tx: limits.take(tx, counted, at))
        delegate = await self._delegate(issuer_id, at)
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
            self._keep(
                request.cert_id.der, _Kept(answer, issuer_id, issuer.demanded, at + (next_update - at) / 2)
            )
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

    async def _delegate(self, issuer_id: str, at: datetime, *, early: bool = False) -> _Delegate:
        """Return a key that may answer for *issuer_id*, made and certified where there is none or it ends soon.

        Args:
            issuer_id: A CA key.
            at: Now.
            early: Also where it is only due: whoever asks does not wait for that.
        """

        def usable() -> _Delegate | None:
            found = self._delegates.get(issuer_id)
            good = found is not None and at < (found.renew_at if early else found.not_after - self._valid)
            return found if good else None

        if (found := usable()) is not None:
            return found
        async with self._turns[issuer_id]:
            return usable() or await self._certify(issuer_id, at)

    async def _certify(self, issuer_id: str, at: datetime) -> _Delegate:
        failed = self._failed.get(issuer_id)
        if failed is not None and at < failed.again_at:
            raise failed.error
        key = await asyncio.to_thread(_new_key, self._known.algorithms[issuer_id])
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
        delegate = _Delegate(
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


def _new_key(algorithm: str) -> SigningKey:
    """Return a key that is as strong as the one it answers for: P-384 is as RSA-4096, and quicker."""
    if algorithm == "ml-dsa-87":
        return mldsa.MLDSA87PrivateKey.generate()
    return ec.generate_private_key(ec.SECP384R1())


def _status(tx: Tx, issuer_id: str, cert_id: CertID) -> CertStatus:
    """Return what became of a certificate; one of which nobody knows yet whether it was signed is unknown."""
    if not 0 < cert_id.serial < 1 << 8 * SERIAL_BYTES:
        return Unknown()
    row = tx.issuances.get(serial_text(cert_id.serial))
    if row is None or row.issuer_id != issuer_id or row.state == "reserved":
        return Unknown()
    if row.state == "issued":
        return Good()
    assert row.ended_at is not None
    return Revoked(at=row.ended_at, reason=REASONS[row.reason or "unspecified"])
