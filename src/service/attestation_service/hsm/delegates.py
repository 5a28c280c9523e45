"""OCSP for CA keys on tokens: the service makes a key, the issuer certifies it, the service answers with it.

The key is sealed in the database before its request is told to anybody, so every worker has it, and what is certified
can always be used. It is replaced each day, of the seven that it is good for.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Hashable, Mapping
from datetime import datetime, timedelta
from typing import Final

import structlog
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from attestation.api import HSMResponder, HSMResponderPut
from attestation.clock import Clock, rfc3339
from attestation.errors import HSMDiffers, RequestInvalid, SignerUnavailable
from attestation.pki.content import SERIAL_BYTES, serial_of, serial_text, signing_hash
from attestation.pki.issuer import identity_of
from attestation.pki.ocsp import CertStatus, Unknown, issuer_hashes
from attestation.store import HSMDelegate, HSMIssuer, Store, Tx
from attestation.wire import b64encode
from attestation_service.auth import ControllerDep
from attestation_service.hsm.issuers import decoded, demand, demand_signed, parsed, read_ca
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
from attestation_service.resources import Res, Resources
from attestation_service.routing.parameters import IssuerId
from attestation_service.settings import Settings

log = structlog.get_logger("attestation_service.hsm")

LONGEST: Final = timedelta(days=8)
"""A certificate of a key that answers lasts seven days; clocks differ."""
OCSP_SIGNING: Final = "1.3.6.1.5.5.7.3.9"
OCSP_NO_CHECK: Final = "1.3.6.1.5.5.7.48.1.5"


class HSMAnswers(Answers):
    """Answers OCSP requests about certificates of CA keys on tokens.

    Args:
        settings: How long answers are good.
        store: What became of each certificate, and the keys that answer.
        clock: What tells the time.
        secret: Seals the keys that answer, 32 bytes; None where the service's key gives none: nobody answers then.
    """

    def __init__(self, settings: Settings, store: Store, clock: Clock, secret: bytes | None) -> None:
        super().__init__(settings, store, clock)
        self.secret = secret
        self._opened: dict[str, tuple[str, Delegate]] = {}

    def revisions(self, tx: Tx) -> Mapping[str, Hashable]:
        """Return revision, and who answers, of each key for which somebody does."""
        return tx.hsm.revisions()

    async def names(self) -> Mapping[Hashes, str]:
        """Return the keys for which somebody answers, as requests name them."""

        def load(tx: Tx) -> list[HSMIssuer]:
            found = [tx.hsm.issuer(issuer_id) for issuer_id in tx.hsm.revisions()]
            return [each for each in found if each is not None]

        by_hashes: dict[Hashes, str] = {}
        for issuer in await self._store.read(load):
            for name, (name_hash, key_hash) in issuer_hashes(identity_of(issuer.certificate)).items():
                by_hashes[name, name_hash, key_hash] = issuer.issuer_id
        return by_hashes

    def look(self, tx: Tx, issuer_id: str, serial: str | None) -> tuple[Hashable, CertStatus]:
        """Return the revision of a key and what became of a certificate of it.

        Raises:
            NotOurs: Nobody answers for the key.
        """
        revision = tx.hsm.revisions().get(issuer_id)
        if revision is None:
            raise NotOurs
        row = tx.hsm.certificate(serial) if serial is not None else None
        if row is None or row.issuer_id != issuer_id:
            return revision, Unknown()
        return revision, status_of(row.state, row.ended_at, row.reason)

    async def delegate(self, issuer_id: str, at: datetime) -> Delegate:
        """Return the key that answers for *issuer_id*.

        Raises:
            NotOurs: There is none, or what certified it has ended.
        """
        row = await self._store.read(lambda tx: tx.hsm.delegate(issuer_id, "active"))
        if row is None or row.certificate is None or row.not_after is None or at >= row.not_after:
            raise NotOurs
        serial, opened = self._opened.get(issuer_id, ("", None))
        if opened is None or serial != row.serial:
            key = unseal(self.secret, issuer_id, row.request, row.sealed_key) if self.secret else None
            if key is None:
                raise NotOurs
            opened = Delegate(key, row.certificate, row.not_after, row.made_at + RENEW_AFTER)
            self._opened[issuer_id] = row.serial, opened
        return opened


async def ask(issuer_id: IssuerId, *, res: Res, who: ControllerDep) -> HSMResponder:
    """Return what is to be certified, so that the service answers OCSP for an issuer.

    A key of the service, as a PKCS#10 request: the certificate has `serial`, id-kp-OCSPSigning, id-pkix-ocsp-nocheck
    and seven days. One is due each day; the same is told until it is handed in.

    Raises:
        IssuerUnknown: No such key of the caller's cluster.
        SignerUnavailable: The service's key gives nothing to seal keys with.
    """
    at = res.clock.now()
    secret = _secret(res)

    def load(tx: Tx) -> tuple[HSMIssuer, HSMDelegate | None, HSMDelegate | None]:
        issuer = demand(tx, who, issuer_id)
        return issuer, tx.hsm.delegate(issuer_id, "active"), tx.hsm.delegate(issuer_id, "pending")

    issuer, active, pending = await res.store.read(load)
    if active is not None and at < active.made_at + RENEW_AFTER:
        return HSMResponder(due=False, again_at=active.made_at + RENEW_AFTER)
    if pending is None or not _is_ours(pending, secret):
        made = await asyncio.to_thread(_make, issuer, secret, at)

        def keep(tx: Tx) -> HSMDelegate:
            # Two workers: the first one's is told by both.
            first = tx.hsm.delegate(issuer_id, "pending")
            if first is not None and _is_ours(first, secret):
                return first
            tx.hsm.put_delegate(made)
            return made

        pending = await res.store.write(keep)
    return HSMResponder(due=True, request=b64encode(pending.request), serial=pending.serial)


async def put(issuer_id: IssuerId, request: HSMResponderPut, *, res: Res, who: ControllerDep) -> None:
    """Hand in the certificate of the key that answers OCSP for an issuer.

    Raises:
        IssuerUnknown: No such key of the caller's cluster.
        HSMDiffers: No such certificate was asked for.
        MalformedEvidence: Not a certificate.
        RequestInvalid: It is not what was asked for.
    """
    at = res.clock.now()
    certificate = decoded(request.certificate, "certificate")

    def load(tx: Tx) -> tuple[HSMIssuer, HSMDelegate | None, HSMDelegate | None]:
        issuer = demand(tx, who, issuer_id)
        return issuer, tx.hsm.delegate(issuer_id, "active"), tx.hsm.delegate(issuer_id, "pending")

    issuer, active, pending = await res.store.read(load)
    if active is not None and active.certificate == certificate:
        return  # the same again
    if pending is None or not _is_ours(pending, _secret(res)):
        raise HSMDiffers("no key is to be certified for this issuer")
    made = await asyncio.to_thread(_checked, issuer, pending, certificate, at)

    def keep(tx: Tx) -> None:
        now = tx.hsm.delegate(issuer_id, "pending")
        if now is None or now.serial != made.serial:
            raise HSMDiffers("another key was certified for this issuer meanwhile")
        tx.hsm.put_delegate(made)
        assert made.not_after is not None
        detail = f"serial {made.serial} of CA {issuer_id}: a key of this service that answers OCSP"
        until = f"until {rfc3339(made.not_after)}"
        tx.audit.append(who.event("hsm_certificate_issued", detail=f"{detail}, {until}"), at)

    await res.store.write(keep)
    log.info("hsm.ocsp_delegated", issuer_id=issuer_id, serial=made.serial)


def _secret(res: Resources) -> bytes:
    answers = res.hsm_answers
    if not isinstance(answers, HSMAnswers) or answers.secret is None:
        raise SignerUnavailable("the service's key gives nothing to seal keys with that answer OCSP")
    return answers.secret


def _is_ours(pending: HSMDelegate, secret: bytes) -> bool:
    """Return True where the key of the request is the one that is sealed beside it, by this service's key.

    Who writes the database would have a key of their own certified, and answer for a CA for a week.
    """
    key = unseal(secret, pending.issuer_id, pending.request, pending.sealed_key)
    return key is not None and key.public_key() == x509.load_der_x509_csr(pending.request).public_key()


def _make(issuer: HSMIssuer, secret: bytes, at: datetime) -> HSMDelegate:
    key = new_key(read_ca(issuer.certificate).algorithm)
    serial = serial_text(serial_of(secrets.token_bytes(SERIAL_BYTES)))
    name = x509.Name.from_rfc4514_string(f"CN=ITL OCSP Responder {serial[:8]}")
    built = x509.CertificateSigningRequestBuilder().subject_name(name).sign(key, signing_hash(key))
    request = built.public_bytes(Encoding.DER)
    return HSMDelegate(
        issuer_id=issuer.issuer_id,
        state="pending",
        serial=serial,
        request=request,
        sealed_key=seal(secret, issuer.issuer_id, request, key),
        made_at=at,
    )


def _checked(issuer: HSMIssuer, pending: HSMDelegate, certificate: bytes, at: datetime) -> HSMDelegate:
    """Return the key with its certificate.

    Raises:
        MalformedEvidence: Not a certificate.
        RequestInvalid: Not by this issuer, for another key, or not one that may answer OCSP and nothing else.
    """
    found = parsed(certificate)
    demand_signed(found, read_ca(issuer.certificate))
    wanted = x509.load_der_x509_csr(pending.request).public_key()
    loaded = x509.load_der_x509_certificate(certificate)
    for what, fault in (
        ("key", loaded.public_key() != wanted),
        ("serial number", f"{found.serial:040x}" != pending.serial),
        ("purpose", found.is_ca or found.extended_key_usage != {OCSP_SIGNING}),
        ("SubjectKeyIdentifier", found.ski is None),
        ("ocsp-nocheck", OCSP_NO_CHECK not in found.extensions),
        ("time", not found.not_before <= at < found.not_after <= at + LONGEST),
    ):
        if fault:
            raise RequestInvalid(f"the {what} of the certificate is not what was asked for")
    return HSMDelegate(
        issuer_id=pending.issuer_id,
        state="active",
        serial=pending.serial,
        request=pending.request,
        sealed_key=pending.sealed_key,
        certificate=certificate,
        made_at=at,
        not_after=found.not_after,
    )
