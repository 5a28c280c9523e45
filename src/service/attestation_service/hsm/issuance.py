"""Certificates of CA keys on tokens, as the durable log has them.

A serial number is taken before anything is signed, and what was signed is written down before anybody gets it.
Both come in batches, each one unit with its audit entries: all of a batch or none. A repeated request gets what the
first one got. What is written down is what was reserved, checked under the key of the issuer: a controller that was
taken over can misuse its own keys, and nothing else of this log.
"""

# Algorithms for: digest
from __future__ import annotations

import asyncio
import hashlib
import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

import structlog
from cryptography import x509

from attestation.api import (
    HSMIssued,
    HSMRecorded,
    HSMRecordedCertificate,
    HSMRequest,
    HSMReserve,
    HSMReserved,
    HSMReservedSerial,
)
from attestation.audit import AuditEvent
from attestation.clock import rfc3339
from attestation.errors import CertificateUnknown, HSMDiffers, RequestInvalid
from attestation.pki.content import SERIAL_BYTES, serial_of, serial_text
from attestation.store import HSMCertificate, HSMIssuer, Tx
from attestation.wire import b64encode
from attestation_service.auth import Controller, ControllerDep
from attestation_service.hsm import bounds
from attestation_service.hsm.issuers import CACertificate, decoded, demand, demand_signed, parsed, read_ca
from attestation_service.resources import Res, Resources
from attestation_service.routing.parameters import IssuerId

log = structlog.get_logger("attestation_service.hsm")

STALE_AFTER: Final = timedelta(minutes=10)
"""A serial number that was taken for so long and not used is given up (HSM-AND-KUBERNETES §7.4)."""
BATCH: Final = 200
SAME: Final = ("kind", "namespace", "name", "spki_sha256", "subject", "is_ca", "requester")
"""What a request may not say otherwise when its serial number is asked for again; its time may be another."""

_WORDS: Final = {
    "DNSName": "DNS",
    "IPAddress": "IP",
    "RFC822Name": "email",
    "UniformResourceIdentifier": "URI",
}


@dataclass(frozen=True, slots=True)
class _Checked:
    row: HSMCertificate
    certificate: bytes
    names: str


async def reserve(issuer_id: IssuerId, request: HSMReserve, *, res: Res, who: ControllerDep) -> HSMReserved:
    """Take serial numbers for certificates that are about to be signed.

    A request keeps its serial number for ten minutes; what was issued for it before comes back with it. All requests
    of a batch, or none.

    Raises:
        IssuerUnknown: No such key of the caller's cluster.
        HSMDiffers: A request of this UID asked for something else.
        RequestInvalid: A request stands twice, or its time is not within that of the CA.
        RateLimited: The cluster has too many certificates that are being signed, or had too many in a day; or too many
            of the key were never finished.
    """
    at = res.clock.now()
    _demand_once([each.request_uid for each in request.requests])

    def work(tx: Tx) -> list[HSMCertificate]:
        issuer = demand(tx, who, issuer_id)
        reserved = [_reserve(tx, issuer, each, at) for each in request.requests]
        new = sum(is_new for _, is_new in reserved)
        bounds.take_certificates(tx, issuer.cluster_id, issuer_id, new, res.settings, at)
        return [row for row, _ in reserved]

    rows = await res.store.write(work)
    return HSMReserved(
        reserved=[
            HSMReservedSerial(
                request_uid=row.request_uid,
                serial=row.serial,
                certificate=b64encode(row.certificate) if row.certificate is not None else None,
            )
            for row in rows
        ]
    )


async def record(issuer_id: IssuerId, request: HSMIssued, *, res: Res, who: ControllerDep) -> HSMRecorded:
    """Write down certificates that were signed, before anybody gets them.

    Each is checked: signed by the key of the issuer, with the serial number, key, subject, time and basic constraints
    that were reserved. All certificates of a batch, or none.

    Raises:
        IssuerUnknown: No such key of the caller's cluster.
        CertificateUnknown: Nothing is reserved for a request: it was given up meanwhile, and is to be reserved anew.
        HSMDiffers: Another certificate was issued for a request, or it was reserved anew meanwhile.
        MalformedEvidence: Not a certificate.
        RequestInvalid: A certificate is not what was reserved; none of the batch was written down.
    """
    at = res.clock.now()
    _demand_once([each.request_uid for each in request.certificates])
    said = {each.request_uid: decoded(each.certificate, "certificate") for each in request.certificates}

    def load(tx: Tx) -> tuple[HSMIssuer, list[HSMCertificate]]:
        issuer = demand(tx, who, issuer_id)
        return issuer, [_live(tx, issuer_id, uid) for uid in said]

    issuer, rows = await res.store.read(load)
    checked = await asyncio.to_thread(_checked, issuer, rows, said)

    def conclude(tx: Tx) -> list[tuple[HSMCertificate, str]]:
        return [(each.row, _record(tx, issuer, each, who, at)) for each in checked]

    recorded = await res.store.write(conclude)
    return HSMRecorded(
        recorded=[
            HSMRecordedCertificate(request_uid=row.request_uid, serial=row.serial, audit_entry_hash=entry)
            for row, entry in recorded
        ]
    )


async def give_up_stale(res: Resources) -> bool:
    """Give up some serial numbers that nobody finished; True if there may be more."""
    at = res.clock.now()

    def work(tx: Tx) -> int:
        stale = tx.hsm.stale(at - STALE_AFTER, BATCH)
        for each in stale:
            tx.hsm.void(each, "it was not finished", at)
            tx.audit.append(_void_event(each), at)
        return len(stale)

    return await res.store.write(work) >= BATCH


def _demand_once(uids: Sequence[str]) -> None:
    if len(set(uids)) != len(uids):
        raise RequestInvalid("a request stands twice in the batch")


def _reserve(tx: Tx, issuer: HSMIssuer, said: HSMRequest, at: datetime) -> tuple[HSMCertificate, bool]:
    """Return the serial number of a request, and whether it was taken just now."""
    not_before = said.not_before.replace(microsecond=0)
    not_after = said.not_after.replace(microsecond=0)
    # 1. No certificate outlives its CA, and none is over already: neither could be revoked with any effect.
    if not (issuer.not_before <= not_before < not_after <= issuer.not_after and at < not_after):
        raise RequestInvalid(f"{said.request_uid}: its time is not within that of the CA, or over")
    planned = HSMCertificate(
        serial=serial_text(serial_of(secrets.token_bytes(SERIAL_BYTES))),
        issuer_id=issuer.issuer_id,
        request_uid=said.request_uid,
        kind=said.kind,
        namespace=said.namespace,
        name=said.name,
        spki_sha256=said.spki_sha256,
        subject=said.subject,
        names=json.dumps(said.names),
        is_ca=said.is_ca,
        requester=said.requester,
        not_before=not_before,
        not_after=not_after,
        reserved_at=at,
    )
    if tx.hsm.reserve(planned):
        return planned, True
    # 2. It has one: two controllers, or one that was restarted. The same request has the same serial number.
    found = tx.hsm.live(issuer.issuer_id, said.request_uid)
    assert found is not None  # what kept `reserve` from it, in this unit
    if any(getattr(found, each) != getattr(planned, each) for each in SAME):
        raise HSMDiffers(f"{said.request_uid}: another certificate was asked for under this UID")
    if found.state == "reserved" and (found.not_before, found.not_after) != (not_before, not_after):
        tx.hsm.reserve_again(found.serial, not_before, not_after, at)
    return found, False


def _live(tx: Tx, issuer_id: str, request_uid: str) -> HSMCertificate:
    found = tx.hsm.live(issuer_id, request_uid)
    if found is None:
        raise CertificateUnknown(f"{request_uid}: no serial number is reserved for it")
    return found


def _checked(issuer: HSMIssuer, rows: Sequence[HSMCertificate], said: dict[str, bytes]) -> list[_Checked]:
    ca = read_ca(issuer.certificate)
    return [_check(ca, row, said[row.request_uid]) for row in rows]


def _check(ca: CACertificate, row: HSMCertificate, der: bytes) -> _Checked:
    """Check that a certificate is what was reserved.

    Raises:
        HSMDiffers: Another one was issued.
        MalformedEvidence: Not a certificate.
        RequestInvalid: It is not.
    """
    if row.certificate is not None:
        if row.certificate != der:
            raise HSMDiffers(f"{row.request_uid}: another certificate was issued for it")
        return _Checked(row, der, row.names)
    found = parsed(der)
    # 1. The key of this issuer signed it. Until then nobody need look at the rest.
    demand_signed(found, ca)
    # 2. It is the one that was reserved. Otherwise a revocation would name another one.
    loaded = x509.load_der_x509_certificate(der)
    for what, differs in (
        ("serial number", not _is_serial(found.serial, row.serial)),
        ("key", hashlib.sha256(found.spki).hexdigest() != row.spki_sha256),
        ("time", (found.not_before, found.not_after) != (row.not_before, row.not_after)),
        ("CA flag", found.is_ca != row.is_ca),
        ("subject", loaded.subject.rfc4514_string() != row.subject),
    ):
        if differs:
            raise RequestInvalid(f"{row.request_uid}: the {what} of the certificate is not what was reserved")
    return _Checked(row, der, json.dumps(_names(loaded)))


def _is_serial(number: int, text: str) -> bool:
    return 0 < number < 1 << 8 * SERIAL_BYTES and serial_text(number) == text


def _names(certificate: x509.Certificate) -> list[str]:
    """Return the names that a certificate says, in words: the log tells of what was signed, not of what was asked."""
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return [f"{_WORDS.get(type(name).__name__, 'other')}:{_text(name)}" for name in found]


def _text(name: x509.GeneralName) -> str:
    value = name.value
    return value.rfc4514_string() if isinstance(value, x509.Name) else str(value)


def _record(tx: Tx, issuer: HSMIssuer, checked: _Checked, who: Controller, at: datetime) -> str:
    before = checked.row
    now = tx.hsm.live(before.issuer_id, before.request_uid)
    if now is None:
        raise CertificateUnknown(f"{before.request_uid}: its serial number was given up meanwhile")
    if now.certificate is not None:
        if now.certificate != checked.certificate or now.audit_entry_hash is None:
            raise HSMDiffers(f"{before.request_uid}: another certificate was issued for it")
        return now.audit_entry_hash
    if now != before:
        raise HSMDiffers(f"{before.request_uid}: it was reserved anew meanwhile")
    where = f"{now.namespace}/{now.name}" if now.namespace else now.name
    detail = (
        f"serial {now.serial} of CA {issuer.issuer_id}: {now.subject or 'no subject'}, names {checked.names}, "
        f"{'CA, ' if now.is_ca else ''}until {rfc3339(now.not_after)}, certificate "
        f"{hashlib.sha256(checked.certificate).hexdigest()}; {now.kind} {where} ({now.request_uid}) of {now.requester}"
    )
    entry = tx.audit.append(who.event("hsm_certificate_issued", detail=detail), at)
    tx.hsm.issued(now.serial, checked.certificate, checked.names, entry.entry_hash, at)
    return entry.entry_hash


def _void_event(row: HSMCertificate) -> AuditEvent:
    return AuditEvent(
        operator_cn="service",
        action="hsm_certificate_void",
        detail=f"serial {row.serial} of CA {row.issuer_id}: it was not finished; {row.kind} {row.request_uid}",
    )
