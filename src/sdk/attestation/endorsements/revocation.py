"""Certificate revocation lists from an offline store (RFC 5280, 5 and 6.3; TPM.md §2.5, check 6).

Best effort: makers publish lists rarely, and nothing is fetched. What a list says is therefore one of three
words, and whoever asks decides what `unknown` does. Read as leniently as certificates are, the signature over
the bytes received. Delta lists, indirect ones and ones with critical extensions that we do not process say
nothing here.
"""

# Algorithms for: ek-certificate
from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Final

from cryptography.hazmat.primitives import hashes

from attestation.endorsements import der
from attestation.endorsements.certificate import (
    CRL_DISTRIBUTION_POINTS,
    MAX_EXTENSIONS,
    MAX_SERIAL_BYTES,
    Certificate,
    Extension,
    SignatureScheme,
    read_extension,
    signature_scheme,
    verify_signed,
)
from attestation.endorsements.names import Name, parse_name
from attestation.errors import MalformedEvidence, SignatureInvalid
from attestation.wire import der_of

MAX_CRL_BYTES: Final = 16 << 20
"""Longest list read."""

_CRL_NUMBER: Final = "2.5.29.20"
_DELTA: Final = "2.5.29.27"
_ISSUING_POINT: Final = "2.5.29.28"
_REASON: Final = "2.5.29.21"
_INVALIDITY_DATE: Final = "2.5.29.24"
_REASONS: Final = {
    0: "unspecified",
    1: "key compromise",
    2: "CA compromise",
    3: "affiliation changed",
    4: "superseded",
    5: "cessation of operation",
    6: "certificate hold",
    8: "remove from CRL",
    9: "privilege withdrawn",
    10: "AA compromise",
}


class Revocation(StrEnum):
    """What lists say of a certificate."""

    GOOD = "good"
    REVOKED = "revoked"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class RevocationStatus:
    """What lists say of a certificate, and why.

    Args:
        status: One of three words.
        reason: One sentence for operators.
    """

    status: Revocation
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class IssuingPoint:
    """What a list covers (RFC 5280, 5.2.5).

    Args:
        points: GeneralNames of the distribution point, DER; None where the list is not cut into points.
        only_users: No CA certificates.
        only_cas: Only CA certificates.
        only_attributes: Only attribute certificates, so none of ours.
        some_reasons: Not every reason.
        indirect: Speaks of certificates of other issuers too.
    """

    points: frozenset[bytes] | None = None
    only_users: bool = False
    only_cas: bool = False
    only_attributes: bool = False
    some_reasons: bool = False
    indirect: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CRL:
    """A revocation list as read. Nothing in it may be believed until its signature was verified.

    Args:
        tbs: The signed bytes.
        sha256: SHA-256 of the DER, 64 lower-case hex.
        issuer_name: Who is said to have signed it.
        this_update: When it was made, UTC.
        next_update: When the next one is due, UTC; None where it does not say.
        number: CRLNumber, or None.
        revoked: Serial number to the reason in words.
        point: What it covers.
        unusable: Why it says nothing here, or None.
        algorithm: The AlgorithmIdentifier behind the signed part, DER.
        inner_algorithm: The one inside; must be the same.
        scheme: What *algorithm* means.
        signature: The signature value.
    """

    tbs: bytes = field(repr=False)
    sha256: str
    issuer_name: Name
    this_update: datetime
    next_update: datetime | None
    number: int | None
    revoked: Mapping[int, str] = field(repr=False)
    point: IssuingPoint
    unusable: str | None
    algorithm: bytes = field(repr=False)
    inner_algorithm: bytes = field(repr=False)
    scheme: SignatureScheme = field(repr=False)
    signature: bytes = field(repr=False)

    def verify_issued_by(self, issuer: Certificate) -> None:
        """Verify that *issuer* signed this list, and may.

        Raises:
            SignatureInvalid: It did not, or its key is not for lists, or the algorithm proves nothing.
        """
        if issuer.key_usage is not None and "crl_sign" not in issuer.key_usage:
            raise SignatureInvalid("the issuer's key may not sign revocation lists")
        if self.algorithm != self.inner_algorithm:
            raise SignatureInvalid("the signature algorithm inside the signed part is another")
        if isinstance(self.scheme.hash, hashes.SHA1):
            raise SignatureInvalid("signed over SHA-1")
        verify_signed(self.tbs, self.signature, self.scheme, issuer)

    def covers(self, certificate: Certificate) -> bool:
        """Say whether *certificate* would be on this list if it were revoked."""
        point = self.point
        if point.only_attributes or point.some_reasons:
            return False
        if point.only_cas if not certificate.is_ca else point.only_users:
            return False
        return point.points is None or bool(point.points & _distribution_points(certificate))


def parse_crl(data: bytes) -> CRL:
    """Read one list, DER or PEM; bytes behind the DER are cut off.

    CertificateList ::= SEQUENCE { tbsCertList, signatureAlgorithm, signatureValue } (RFC 5280, 5.1)

    Raises:
        MalformedEvidence: The only way to fail; longer than 16 MiB, or no list.
    """
    if len(data) > MAX_CRL_BYTES:
        raise MalformedEvidence(f"CRL of {len(data)} bytes, at most {MAX_CRL_BYTES} allowed")
    data = der_of(data, "CRL", "X509 CRL")
    outer = der.expect(data, 0, len(data), der.SEQUENCE, "CRL")
    tbs = der.expect(data, outer.start, outer.stop, der.SEQUENCE, "CRL: signed part")
    algorithm = der.expect(data, tbs.stop, outer.stop, der.SEQUENCE, "CRL: algorithm")
    value = der.expect(data, algorithm.stop, outer.stop, der.BIT_STRING, "CRL: signature")
    if value.stop != outer.stop:
        raise MalformedEvidence("CRL: more than three parts")

    # TBSCertList ::= SEQUENCE { version OPTIONAL, signature, issuer, thisUpdate, nextUpdate OPTIONAL,
    #                            revokedCertificates OPTIONAL, [0] crlExtensions OPTIONAL }
    at, end = tbs.start, tbs.stop
    first = der.element(data, at, end)
    if first.tag == der.INTEGER:
        if der.small_integer(data, first) != 1:
            raise MalformedEvidence("CRL: a version that does not exist")
        at = first.stop
    inner_algorithm = der.expect(data, at, end, der.SEQUENCE, "CRL: inner algorithm")
    issuer = der.expect(data, inner_algorithm.stop, end, der.SEQUENCE, "CRL: issuer")
    made = der.element(data, issuer.stop, end)
    rest = list(der.elements(data, made.stop, end))
    next_update = None
    if rest and rest[0].tag in (der.UTC_TIME, der.GENERALIZED_TIME):
        next_update = der.instant(data, rest.pop(0))
    revoked: dict[int, str] = {}
    unusable = None
    if rest and rest[0].tag == der.SEQUENCE:
        unusable = _read_revoked(data, rest.pop(0), revoked)
    extensions: dict[str, Extension] = {}
    if rest and rest[0].tag == 0xA0:
        part = rest.pop(0)
        inner = der.expect(data, part.start, part.stop, der.SEQUENCE, "CRL: extensions")
        if inner.stop != part.stop:
            raise MalformedEvidence("CRL: bytes behind the extensions")
        extensions = _read_extensions(data, inner)
    if rest:
        raise MalformedEvidence(f"CRL: tag 0x{rest[0].tag:02x} where nothing should be")
    point = _read_point(extensions.get(_ISSUING_POINT))
    return CRL(
        tbs=data[tbs.at : tbs.stop],
        sha256=hashlib.sha256(data[: outer.stop]).hexdigest(),
        issuer_name=parse_name(data[issuer.at : issuer.stop]),
        this_update=der.instant(data, made),
        next_update=next_update,
        number=_read_number(extensions.get(_CRL_NUMBER)),
        revoked=revoked,
        point=point,
        unusable=unusable or _unusable(extensions, point),
        algorithm=data[algorithm.at : algorithm.stop],
        inner_algorithm=data[inner_algorithm.at : inner_algorithm.stop],
        scheme=signature_scheme(data[algorithm.at : algorithm.stop]),
        signature=der.whole_bytes(data, value),
    )


def _read_revoked(data: bytes, listed: der.Element, into: dict[int, str]) -> str | None:
    """Read SEQUENCE OF SEQUENCE { userCertificate, revocationDate, crlEntryExtensions OPTIONAL } into *into*.

    Returns:
        Why the list says nothing here: a critical extension of an entry is not processed; else None.
    """
    unusable = None
    for entry in der.elements(data, listed.start, listed.stop):
        serial = der.expect(data, entry.start, entry.stop, der.INTEGER, "CRL: serial number")
        if entry.tag != der.SEQUENCE or serial.stop - serial.start > MAX_SERIAL_BYTES:
            raise MalformedEvidence("CRL: an entry cannot be read")
        reason = "unspecified"
        date = der.element(data, serial.stop, entry.stop)
        if date.stop < entry.stop:
            inner = der.expect(data, date.stop, entry.stop, der.SEQUENCE, "CRL: extensions of an entry")
            extensions = _read_extensions(data, inner)
            reason = _read_reason(extensions.get(_REASON))
            unknown = _critical(extensions, {_REASON, _INVALIDITY_DATE})
            if unknown is not None:
                unusable = f"an entry has the unknown critical extension {unknown}"
        into[der.integer(data, serial)] = reason
    return unusable


def _read_extensions(data: bytes, outer: der.Element) -> dict[str, Extension]:
    extensions: dict[str, Extension] = {}
    for found in der.elements(data, outer.start, outer.stop):
        kind, extension = read_extension(data, found)
        if found.tag != der.SEQUENCE or kind in extensions or len(extensions) == MAX_EXTENSIONS:
            raise MalformedEvidence("CRL: extensions cannot be read")
        extensions[kind] = extension
    return extensions


def _read_reason(extension: Extension | None) -> str:
    if extension is None:
        return "unspecified"
    found = der.only(extension.value, der.ENUMERATED, "CRL: reason")
    return _REASONS.get(der.small_integer(extension.value, found), "unspecified")


def _read_number(extension: Extension | None) -> int | None:
    if extension is None:
        return None
    found = der.only(extension.value, der.INTEGER, "CRL number")
    if found.stop - found.start > MAX_SERIAL_BYTES:
        raise MalformedEvidence("CRL number is too long")
    return der.integer(extension.value, found)


def _read_point(extension: Extension | None) -> IssuingPoint:
    """Read IssuingDistributionPoint: [0] distributionPoint, [1] to [5] flags (RFC 5280, 5.2.5)."""
    if extension is None:
        return IssuingPoint()
    value = extension.value
    outer = der.only(value, der.SEQUENCE, "issuing distribution point")
    members = {found.tag: found for found in der.elements(value, outer.start, outer.stop)}

    def flag(tag: int) -> bool:
        found = members.get(tag)
        return found is not None and any(value[found.start : found.stop])

    return IssuingPoint(
        points=_general_names(value, members[0xA0]) if 0xA0 in members else None,
        only_users=flag(0x81),
        only_cas=flag(0x82),
        only_attributes=flag(0x85),
        some_reasons=0x83 in members,
        indirect=flag(0x84),
    )


def _general_names(value: bytes, point: der.Element) -> frozenset[bytes]:
    """Return each GeneralName of DistributionPointName's [0] fullName, DER; none of a relative name."""
    return frozenset(
        value[name.at : name.stop]
        for choice in der.elements(value, point.start, point.stop)
        if choice.tag == 0xA0
        for name in der.elements(value, choice.start, choice.stop)
    )


def _distribution_points(certificate: Certificate) -> frozenset[bytes]:
    """Return each GeneralName of the certificate's CRLDistributionPoints; none where they cannot be read."""
    extension = certificate.extensions.get(CRL_DISTRIBUTION_POINTS)
    if extension is None:
        return frozenset()
    value = extension.value
    try:
        outer = der.only(value, der.SEQUENCE, "CRL distribution points")
        return frozenset(
            name
            for point in der.elements(value, outer.start, outer.stop)
            for member in der.elements(value, point.start, point.stop)
            if member.tag == 0xA0
            for name in _general_names(value, member)
        )
    except MalformedEvidence:
        return frozenset()


def _unusable(extensions: Mapping[str, Extension], point: IssuingPoint) -> str | None:
    if _DELTA in extensions:
        return "it is a delta list"
    if point.indirect:
        return "it is an indirect list"
    unknown = _critical(extensions, {_ISSUING_POINT})
    return f"unknown critical extension {unknown}" if unknown is not None else None


def _critical(extensions: Mapping[str, Extension], understood: set[str]) -> str | None:
    """Return the first critical extension that is not understood, or None."""
    return next((kind for kind, e in extensions.items() if e.critical and kind not in understood), None)


class CRLStore:
    """Revocation lists by issuer. Immutable; safe to use from several threads.

    Args:
        crls: Lists, of any issuers, in any order.
    """

    def __init__(self, crls: Iterable[CRL] = ()) -> None:
        by_issuer: dict[bytes, list[CRL]] = {}
        for crl in crls:
            by_issuer.setdefault(crl.issuer_name.key, []).append(crl)
        for several in by_issuer.values():
            several.sort(key=lambda crl: crl.this_update, reverse=True)
        self._by_issuer = by_issuer
        self._verified: set[tuple[str, str]] = set()

    def __len__(self) -> int:
        return sum(map(len, self._by_issuer.values()))

    def status(self, certificate: Certificate, issuer: Certificate, at: datetime) -> RevocationStatus:
        """Return what the newest list that can speak of *certificate* says.

        Args:
            certificate: Of whom to ask.
            issuer: Who signed it, itself good: a list is believed because this key signed it.
            at: The instant to judge at, UTC.
        """
        why = f"no list of {issuer.subject}"
        for crl in self._by_issuer.get(issuer.subject_key, ()):
            refusal = self._refusal(crl, issuer, at)
            if refusal is not None:
                why = f"the list of {crl.this_update:%Y-%m-%d}: {refusal}"
                continue
            # A list that is due for replacement, or covers only a part, still says who is revoked.
            reason = crl.revoked.get(certificate.serial)
            if reason is not None:
                text = f"{reason}, by the list of {crl.this_update:%Y-%m-%d}"
                return RevocationStatus(status=Revocation.REVOKED, reason=text)
            if crl.next_update is None or crl.next_update < at:
                why = f"the list of {crl.this_update:%Y-%m-%d} is out of date"
            elif not crl.covers(certificate):
                why = f"the list of {crl.this_update:%Y-%m-%d} is not about such certificates"
            else:
                text = f"not on the list of {crl.this_update:%Y-%m-%d}"
                return RevocationStatus(status=Revocation.GOOD, reason=text)
        return RevocationStatus(status=Revocation.UNKNOWN, reason=why)

    def _refusal(self, crl: CRL, issuer: Certificate, at: datetime) -> str | None:
        """Return why *crl* says nothing, or None."""
        if crl.unusable is not None:
            return crl.unusable
        if crl.this_update > at:
            return "not yet valid"
        # A list may be long: whether this issuer signed it is a function of their bytes, asked once.
        link = (crl.sha256, issuer.sha256)
        if link not in self._verified:
            try:
                crl.verify_issued_by(issuer)
            except SignatureInvalid as e:
                return str(e)
            self._verified.add(link)
        return None
