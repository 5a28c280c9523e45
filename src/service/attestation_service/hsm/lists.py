"""Revocation lists of CA keys on tokens: the service says what a list says, the controller signs, the service checks.

What was begun is remembered as a digest: the list that comes back names exactly that, or it is refused. A controller
that omits an entry would let a revoked certificate live.
"""

# Algorithms for: digest
from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final

import structlog
from cryptography import x509

from attestation.api import HSMList, HSMListEntry, HSMListPut
from attestation.endorsements import der
from attestation.errors import HSMDiffers, MalformedEvidence, RequestInvalid, SignatureInvalid
from attestation.pki.content import SERIAL_BYTES, serial_text
from attestation.pki.crl import REASONS
from attestation.pki.profiles import BACKDATE
from attestation.pki.signature import verify_signature
from attestation.store import HSMBegunCRL, HSMIssuer, ListedCertificate, StoredCRL, Tx
from attestation_service.auth import ControllerDep
from attestation_service.hsm.issuers import decoded, demand, read_ca
from attestation_service.resources import Res
from attestation_service.routing.parameters import IssuerId
from attestation_service.settings import Settings

log = structlog.get_logger("attestation_service.hsm")

MAKING: Final = timedelta(minutes=5)
"""For so long the same list is told again: whoever began it may still be signing."""
MAX_LIST_BYTES: Final = 3 << 20
MAX_LISTED: Final = 55_000
"""An entry has 54 bytes with its reason: so many fit into `MAX_LIST_BYTES`."""
TRIES: Final = 5
_ALLOWED: Final = frozenset({x509.AuthorityKeyIdentifier.oid, x509.CRLNumber.oid})
_WORDS: Final = {reason.name: word for word, reason in REASONS.items()}


@dataclass(frozen=True, slots=True)
class _Times:
    made_at: datetime
    this_update: datetime
    next_update: datetime


async def begin(issuer_id: IssuerId, *, res: Res, who: ControllerDep) -> HSMList:
    """Begin a revocation list of an issuer, where one is due.

    One is due after each revocation, and every few hours. The same list is told again for five minutes, to all who
    ask; its number no other list ever gets.

    Raises:
        HSMDiffers: Others began one at the same moment, several times.
        IssuerUnknown: No such key of the caller's cluster.
        RequestInvalid: It would name more certificates than a list can.
    """
    at = res.clock.now().replace(microsecond=0)
    for _ in range(TRIES):
        # What it names is read and digested while others may write: it may be tens of thousands.
        known = await res.store.read(lambda tx: _about(tx, demand(tx, who, issuer_id), res.settings, at))
        if isinstance(known, HSMList):
            return known
        issuer, listed, since, last_end = known
        if len(listed) > MAX_LISTED:
            raise RequestInvalid(f"the list would name more than {MAX_LISTED}: this CA key is to be replaced")
        if since is not None:
            times = _times(since, res.settings)
            return await asyncio.to_thread(_told, issuer.crl_number, issuer.revision, listed, times, last_end)
        begun = HSMBegunCRL(
            issuer_id=issuer_id,
            number=issuer.crl_number + 1,
            revision=issuer.revision,
            entries=len(listed),
            digest=await asyncio.to_thread(_digest, map(_entry, listed)),
        )
        # What ended since it was read stands on the next one; a number that another worker took is not ours.
        if await res.store.write(partial(_begin, begun, at)):
            times = _times(at, res.settings)
            return await asyncio.to_thread(_told, begun.number, begun.revision, listed, times, last_end)
    raise HSMDiffers("others began lists of this CA key again and again; begin anew")


async def put(issuer_id: IssuerId, request: HSMListPut, *, res: Res, who: ControllerDep) -> None:
    """Hand in the revocation list that was begun, signed.

    Raises:
        IssuerUnknown: No such key of the caller's cluster.
        HSMDiffers: Another list was begun, or the one that is served knows more.
        MalformedEvidence: Not a revocation list.
        RequestInvalid: It is not signed by the issuer, or not what was begun.
    """
    crl = decoded(request.crl, "crl", MAX_LIST_BYTES)

    def load(tx: Tx) -> tuple[HSMIssuer, StoredCRL | None]:
        return demand(tx, who, issuer_id), tx.hsm.crl(issuer_id)

    issuer, kept = await res.store.read(load)
    if kept is not None and kept.number == request.number and kept.crl == crl:
        return  # the same again
    if issuer.begun_at is None or issuer.crl_number != request.number:
        raise HSMDiffers("no list of this number is being made; begin anew")
    times = _times(issuer.begun_at, res.settings)
    await asyncio.to_thread(_check, issuer, crl, request.number, times)

    def keep(tx: Tx) -> None:
        now = demand(tx, who, issuer_id)
        if now.begun_digest != issuer.begun_digest or now.crl_number != request.number:
            raise HSMDiffers("another list was begun meanwhile; begin anew")
        assert now.begun_revision is not None
        assert now.begun_entries is not None
        made = StoredCRL(
            issuer_id=issuer_id,
            number=request.number,
            revision=now.begun_revision,
            entries=now.begun_entries,
            this_update=times.made_at,
            next_update=times.next_update,
            crl=crl,
        )
        if not tx.hsm.put_crl(made):
            raise HSMDiffers("the list that is served is newer, or knows more")

    await res.store.write(keep)
    log.info("hsm.crl_made", issuer_id=issuer_id, number=request.number, entries=issuer.begun_entries)


def _fresh(tx: Tx, issuer: HSMIssuer, settings: Settings, at: datetime) -> HSMList | None:
    """Return that nothing is due; None where something is."""
    kept = tx.hsm.crl_state(issuer.issuer_id)
    if kept is None:
        return None
    _, revision, this_update, next_update = kept
    again = min(this_update + timedelta(seconds=settings.crl_refresh_seconds), next_update)
    if revision < issuer.revision or at >= again:
        return None
    return HSMList(due=False, revision=issuer.revision, again_at=again, last_end=_last_end(tx, issuer))


def _last_end(tx: Tx, issuer: HSMIssuer) -> datetime | None:
    """Return when nobody needs a key any more that another one followed; None of one that signs."""
    if issuer.superseded_at is None:
        return None
    return tx.hsm.last_end(issuer.issuer_id) or issuer.superseded_at


def _begin(begun: HSMBegunCRL, at: datetime, tx: Tx) -> bool:
    return tx.hsm.begin_crl(begun, at)


def _about(
    tx: Tx, issuer: HSMIssuer, settings: Settings, at: datetime
) -> HSMList | tuple[HSMIssuer, list[ListedCertificate], datetime | None, datetime | None]:
    """Return what a list says now, since when it is being made, and `_last_end`; or that none is due."""
    fresh = _fresh(tx, issuer, settings, at)
    if fresh is not None:
        return fresh
    since = issuer.begun_at
    if since is not None and (issuer.begun_revision != issuer.revision or at >= since + MAKING):
        since = None
    return issuer, _listed(tx, issuer, settings, since or at), since, _last_end(tx, issuer)


def _listed(tx: Tx, issuer: HSMIssuer, settings: Settings, begun: datetime) -> list[ListedCertificate]:
    # RFC 5280 §3.3: an entry stays until it was on a list that was made after the certificate's end.
    ended = begun - timedelta(seconds=settings.crl_valid_seconds)
    return list(tx.hsm.listed(issuer.issuer_id, ended, MAX_LISTED + 1))


def _times(begun: datetime, settings: Settings) -> _Times:
    # For clocks that are late, as in certificates: a list of the future is refused.
    return _Times(begun, begun - BACKDATE, begun + timedelta(seconds=settings.crl_valid_seconds))


def _told(
    number: int,
    revision: int,
    listed: list[ListedCertificate],
    times: _Times,
    last_end: datetime | None,
) -> HSMList:
    return HSMList(
        due=True,
        last_end=last_end,
        number=number,
        revision=revision,
        entries=[
            HSMListEntry(serial=each.serial, at=each.ended_at, reason=each.reason or "unspecified")
            for each in listed
        ],
        this_update=times.this_update,
        next_update=times.next_update,
    )


def _entry(listed: ListedCertificate) -> str:
    return f"{listed.serial} {int(listed.ended_at.timestamp())} {listed.reason or 'unspecified'}"


def _digest(entries: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(sorted(entries)).encode()).hexdigest()


def _check(issuer: HSMIssuer, crl: bytes, number: int, times: _Times) -> None:
    """Check that *crl* is the list that was begun.

    Raises:
        MalformedEvidence: Not a revocation list.
        RequestInvalid: It is not.
    """
    ca = read_ca(issuer.certificate)
    # 1. The key of this issuer signed exactly these bytes.
    signed, algorithm, signature = _parts(crl)
    try:
        verify_signature(ca.key, algorithm=algorithm, signature=signature, signed=signed)
    except SignatureInvalid as e:
        raise RequestInvalid(f"the list: {e}") from None
    # 2. It is the issuer's, of this number and time.
    try:
        found = x509.load_der_x509_crl(crl)
        extensions = {each.oid: each.value for each in found.extensions}
        entries = _digest(_read_entry(each) for each in found)
        issuer_name = found.issuer.public_bytes()
    except ValueError as e:
        raise MalformedEvidence("not a revocation list that can be read") from e
    if issuer_name != x509.load_der_x509_certificate(issuer.certificate).subject.public_bytes():
        raise RequestInvalid("the list names another issuer")
    # 3. It speaks of everything: no delta, no part of an issuer's certificates.
    if extensions.keys() != _ALLOWED:
        raise RequestInvalid("the list has other extensions than AuthorityKeyIdentifier and CRLNumber")
    key_id, said = extensions[x509.AuthorityKeyIdentifier.oid], extensions[x509.CRLNumber.oid]
    assert isinstance(key_id, x509.AuthorityKeyIdentifier)
    assert isinstance(said, x509.CRLNumber)
    if key_id.key_identifier != ca.parsed.ski:
        raise RequestInvalid("the list names another key")
    if (said.crl_number, found.last_update_utc, found.next_update_utc) != (
        number,
        times.this_update,
        times.next_update,
    ):
        raise RequestInvalid("number or times of the list are not those that were begun")
    # 4. It names exactly what was begun. One entry less, and a revoked certificate is good again.
    if entries != issuer.begun_digest:
        raise RequestInvalid("the list does not name exactly what was begun")


def _parts(crl: bytes) -> tuple[bytes, bytes, bytes]:
    """Return what is signed, the AlgorithmIdentifier and the signature (RFC 5280 §5.1)."""
    outer = der.only(crl, der.SEQUENCE, "revocation list")
    signed = der.expect(crl, outer.start, outer.stop, der.SEQUENCE, "revocation list: signed part")
    algorithm = der.expect(crl, signed.stop, outer.stop, der.SEQUENCE, "revocation list: algorithm")
    value = der.expect(crl, algorithm.stop, outer.stop, der.BIT_STRING, "revocation list: signature")
    if value.stop != outer.stop:
        raise MalformedEvidence("revocation list: more than three parts")
    return crl[signed.at : signed.stop], crl[algorithm.at : algorithm.stop], der.whole_bytes(crl, value)


def _read_entry(entry: x509.RevokedCertificate) -> str:
    if not 0 < entry.serial_number < 1 << 8 * SERIAL_BYTES:
        raise RequestInvalid("the list names a serial number that no certificate has")
    word = "unspecified"
    for extension in entry.extensions:
        if not isinstance(extension.value, x509.CRLReason):
            raise RequestInvalid("an entry of the list has another extension than its reason")
        word = _WORDS.get(extension.value.reason.name.upper(), "")
    at = entry.revocation_date_utc.astimezone(UTC)
    return f"{serial_text(entry.serial_number)} {int(at.timestamp())} {word}"
