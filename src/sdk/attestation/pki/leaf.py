"""Certificates that users of a cluster ask its issuers for: judged, and signed (HSM-AND-KUBERNETES §7, §16).

`judge_leaf` is pure: request, rules of the issuer and its certificate go in, what the certificate will say comes out.
Everything is honoured as it was asked for or refused; nothing is left out in silence, for who asked would believe
that they have it. Two things are not refused but shortened: a certificate never outlives its CA, and one that names no
duration lives as long as the issuer lets it, at most 90 days. And a CA is held to the rules of its issuer: its
certificate limits the names that it may certify, and where it names no purpose, what for.
"""

# Algorithms for: proof-of-possession
from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from functools import cached_property
from ipaddress import ip_address
from typing import Final

from cryptography import x509

from attestation.endorsements import der
from attestation.endorsements.certificate import (
    BASIC_CONSTRAINTS,
    EXTENDED_KEY_USAGE,
    KEY_USAGE,
    KEY_USAGES,
    SUBJECT_ALT_NAME,
)
from attestation.errors import CSRInvalid, MalformedEvidence, RequestRefused
from attestation.pki.content import CertificateContent, SigningKey
from attestation.pki.external import IssuingCA, sign_content
from attestation.pki.leaf_names import NameRules, forbidden_names, unwritable_names
from attestation.pki.name_limits import NameLimits, inexpressible, limits_of
from attestation.pki.parent import outside
from attestation.pki.profiles import BACKDATE, Pointer, Profile
from attestation.pki.request import RequestParts, read_request, verify_request
from attestation.pki.requested import RequestedNames, requested_extensions, requested_names
from attestation.pki.usages import CA_USAGES, NEVER_OF_LEAVES, USAGES, KeyPurposes, key_purposes

DEFAULT_DURATION: Final = timedelta(days=90)
"""Of a request that names none (cert-manager: 2160h)."""

MIN_DURATION: Final = timedelta(minutes=10)
"""Shortest that is issued, as of the API of Kubernetes (expirationSeconds)."""

MAX_USAGES: Final = len(USAGES)
_READ_EXTENSIONS: Final = frozenset({SUBJECT_ALT_NAME, KEY_USAGE, EXTENDED_KEY_USAGE, BASIC_CONSTRAINTS})
_NO_ENCIPHERMENT: Final = ("key_encipherment", "data_encipherment")


class Refusal(StrEnum):
    """Why a request is refused, in one stable word."""

    MALFORMED = "malformed"
    NOT_ITS_KEY = "not-its-key"
    USAGE_UNKNOWN = "usage-unknown"
    USAGE_MISMATCH = "usage-mismatch"
    USAGE_FORBIDDEN = "usage-forbidden"
    EXTENSION_UNKNOWN = "extension-unknown"
    CA_MISMATCH = "ca-mismatch"
    CA_FORBIDDEN = "ca-forbidden"
    NAME_INVALID = "name-invalid"
    NAME_FORBIDDEN = "name-forbidden"
    DURATION_FORBIDDEN = "duration-forbidden"
    CA_ENDS = "ca-ends"


INVALID: Final = frozenset(
    {
        Refusal.MALFORMED,
        Refusal.NOT_ITS_KEY,
        Refusal.USAGE_UNKNOWN,
        Refusal.USAGE_MISMATCH,
        Refusal.EXTENSION_UNKNOWN,
        Refusal.CA_MISMATCH,
        Refusal.NAME_INVALID,
    }
)
"""Refusals of what no issuer could sign: for cert-manager, condition InvalidRequest. The others are of the issuer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeafPolicy:
    """What an issuer certifies.

    Args:
        max_duration: Longest life of a certificate.
        usages: Words of `usages.USAGES` that may be asked for.
        allow_ca: Whether it certifies CAs.
        max_path_length: How many CAs may stand below such a CA.
        names: Which names.
        no_rev_avail: Certificates say that nowhere is told whether they are revoked (RFC 9608); then *max_duration*
            is at most `profiles.SHORT_LIVED`, and CAs are not certified.
    """

    max_duration: timedelta
    usages: frozenset[str]
    allow_ca: bool
    max_path_length: int
    names: NameRules
    no_rev_avail: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LeafAsked:
    """What somebody asks for: nothing in it is believed yet.

    Args:
        request: PKCS#10, one PEM block or DER.
        usages: As cert-manager and Kubernetes name them; none means those of `usages.DEFAULT_USAGES`.
        is_ca: Whether it shall be a CA.
        duration: None where it names none.
    """

    request: bytes = field(repr=False)
    usages: tuple[str, ...]
    is_ca: bool
    duration: timedelta | None


@dataclass(frozen=True, kw_only=True)
class LeafContent:
    """What a certificate will say, but for its serial number and the addresses of its issuer.

    Args:
        subject: As asked for.
        spki: Its key, SubjectPublicKeyInfo, DER.
        names: As asked for.
        purposes: What the key is for.
        path_length: How many CAs may stand below it; None of what is no CA.
        not_before: UTC, whole seconds.
        not_after: UTC, whole seconds; still valid then.
        no_rev_avail: It says that nowhere is told whether it is revoked.
        limits: Which names it may certify; None of what is no CA, or where its issuer certifies any.
    """

    subject: x509.Name
    spki: bytes = field(repr=False)
    names: RequestedNames
    purposes: KeyPurposes
    path_length: int | None
    not_before: datetime
    not_after: datetime
    no_rev_avail: bool = False
    limits: NameLimits | None = None

    @property
    def is_ca(self) -> bool:
        """True where it may issue certificates."""
        return self.path_length is not None

    @cached_property
    def spki_sha256(self) -> str:
        """SHA-256 of its key, 64 lower-case hex."""
        return hashlib.sha256(self.spki).hexdigest()

    @cached_property
    def alternative_names(self) -> tuple[str, ...]:
        """Its alternative names for people and logs, with their kinds: `DNS:…`, `IP:…`, `URI:…`, `email:…`."""
        return (
            *(f"DNS:{name}" for name in self.names.dns_names),
            *(f"IP:{address}" for address in self.names.ip_addresses),
            *(f"URI:{uri}" for uri in self.names.uris),
            *(f"email:{email}" for email in self.names.emails),
        )


def judge_leaf(asked: LeafAsked, policy: LeafPolicy, *, ca: IssuingCA, at: datetime) -> LeafContent:
    """Return what the certificate for *asked* will say.

    Args:
        asked: The request, and what its API says beside it.
        policy: Rules of the issuer.
        ca: Its certificate.
        at: Now, UTC.

    Raises:
        RequestRefused: With a word of `Refusal`.
    """
    # 1. It can be read in one way only.
    try:
        parts = read_request(asked.request)
        names = requested_names(parts)
        extensions = requested_extensions(parts)
        # 2. Its key signed it: or somebody could have it certified that another's key is theirs.
        request = verify_request(parts)
    except MalformedEvidence as e:
        raise RequestRefused(Refusal.MALFORMED, str(e)) from e
    except CSRInvalid as e:
        raise RequestRefused(Refusal.NOT_ITS_KEY, str(e)) from e
    subject = _subject(parts)
    # 3. Nothing is asked for that would silently not be there.
    foreign = [oid for oid in extensions if oid not in _READ_EXTENSIONS]
    if foreign:
        raise RequestRefused(Refusal.EXTENSION_UNKNOWN, f"extension {foreign[0]} is not certified here")
    # 4. What the key may be used for, and whether it is that of a CA: said twice alike, and allowed.
    purposes = _purposes(asked, policy, extensions, kind=request.algorithm)
    path_length = _path_length(asked, policy, extensions, ca)
    # 5. Names that a certificate can carry, and that this issuer certifies.
    for reason, found in (
        (Refusal.NAME_INVALID, unwritable_names(names)),
        (Refusal.NAME_FORBIDDEN, forbidden_names(names, policy.names)),
    ):
        if found:
            raise RequestRefused(reason, "; ".join(found))
    if path_length is not None and not names.subject:
        raise RequestRefused(Refusal.NAME_INVALID, "a CA without a subject")
    # 6. A life within that of its issuer.
    begin, end = _validity(asked, policy, ca, at)
    return LeafContent(
        subject=subject,
        spki=request.spki,
        names=names,
        purposes=purposes,
        path_length=path_length,
        not_before=begin,
        not_after=end,
        no_rev_avail=policy.no_rev_avail,
        limits=_limits(policy.names) if path_length is not None else None,
    )


def _limits(rules: NameRules) -> NameLimits | None:
    """Return which names a CA below may certify: those of its issuer, and no others."""
    if (why := inexpressible(rules)) is not None:
        raise RequestRefused(Refusal.CA_FORBIDDEN, why)
    return limits_of(rules)


def _subject(parts: RequestParts) -> x509.Name:
    """Return the subject for the library to write; it reads DER in its one form only, and writes what it read."""
    try:
        return x509.load_der_x509_csr(parts.der).subject
    except ValueError as e:
        raise RequestRefused(Refusal.NAME_INVALID, "a subject that no certificate can carry") from e


def _purposes(
    asked: LeafAsked, policy: LeafPolicy, extensions: dict[str, bytes], *, kind: str
) -> KeyPurposes:
    unknown = [word for word in asked.usages if word not in USAGES]
    if unknown:
        raise RequestRefused(Refusal.USAGE_UNKNOWN, f"usage {unknown[0]!r}")
    wanted = key_purposes(asked.usages, is_ca=asked.is_ca)
    for oid, found in ((KEY_USAGE, _bits), (EXTENDED_KEY_USAGE, _oids)):
        said = frozenset(wanted.key_usage if oid == KEY_USAGE else wanted.purposes)
        if oid in extensions and found(extensions[oid]) != said:
            raise RequestRefused(
                Refusal.USAGE_MISMATCH,
                f"the request and its usages differ: {', '.join(sorted(said)) or 'none'}",
            )
    if not asked.is_ca and CA_USAGES & {*asked.usages}:
        raise RequestRefused(Refusal.CA_MISMATCH, "usages of a CA for what shall be none")
    allowed = {USAGES[word] for word in policy.usages - NEVER_OF_LEAVES}
    asked_for = {*wanted.key_usage, *wanted.purposes}
    # Whether a CA may sign certificates and lists is for `allow_ca` to say.
    of_a_ca = {USAGES[word] for word in CA_USAGES} if asked.is_ca else set[str]()
    forbidden = [word for word, said in USAGES.items() if said in asked_for - allowed - of_a_ca]
    if forbidden:
        raise RequestRefused(Refusal.USAGE_FORBIDDEN, f"usage {forbidden[0]!r} is not among the issuer's")
    if {"encipher_only", "decipher_only"} & asked_for and "key_agreement" not in asked_for:
        raise RequestRefused(Refusal.USAGE_MISMATCH, "encipher only, decipher only: they need key agreement")
    # cert-manager's default enciphers keys whatever the key; a key of ML-DSA is none that it knows (RFC 9881, 4).
    if kind.startswith("ml-dsa") and asked_for & {*_NO_ENCIPHERMENT, "key_agreement"}:
        raise RequestRefused(Refusal.USAGE_MISMATCH, "a key of ML-DSA signs, and does nothing else")
    if asked.is_ca and not wanted.purposes:
        # A CA that names no purpose certifies for each of them: so it has those of its issuer's rules.
        return replace(wanted, purposes=key_purposes(policy.usages - NEVER_OF_LEAVES, is_ca=True).purposes)
    return wanted


def _path_length(
    asked: LeafAsked, policy: LeafPolicy, extensions: dict[str, bytes], ca: IssuingCA
) -> int | None:
    said: tuple[bool, int | None] | None = None
    if BASIC_CONSTRAINTS in extensions:
        said = _constraints(extensions[BASIC_CONSTRAINTS])
    if said is not None and said[0] != asked.is_ca:
        raise RequestRefused(Refusal.CA_MISMATCH, "the request and its isCA differ")
    if not asked.is_ca:
        return None
    if not policy.allow_ca:
        raise RequestRefused(Refusal.CA_FORBIDDEN, "the issuer certifies no CAs")
    if policy.no_rev_avail:
        raise RequestRefused(
            Refusal.CA_FORBIDDEN, "the issuer's certificates cannot be revoked: it certifies no CAs"
        )
    room = (
        policy.max_path_length if ca.path_length is None else min(policy.max_path_length, ca.path_length - 1)
    )
    wanted = room if said is None or said[1] is None else said[1]
    if room < 0 or wanted > room:
        raise RequestRefused(
            Refusal.CA_FORBIDDEN, "the path length of the issuer, or its rules, leave no room for this CA"
        )
    return wanted


def _as_written(duration: timedelta) -> str:
    """Return a duration as requests and issuers have it: `720h`, `2h1m`."""
    minutes, seconds = divmod(int(duration.total_seconds()), 60)
    hours, minutes = divmod(minutes, 60)
    return "".join(f"{n}{unit}" for n, unit in ((hours, "h"), (minutes, "m"), (seconds, "s")) if n) or "0s"


def _validity(asked: LeafAsked, policy: LeafPolicy, ca: IssuingCA, at: datetime) -> tuple[datetime, datetime]:
    duration = min(DEFAULT_DURATION, policy.max_duration) if asked.duration is None else asked.duration
    if not MIN_DURATION <= duration <= policy.max_duration:
        raise RequestRefused(
            Refusal.DURATION_FORBIDDEN,
            f"{_as_written(duration)}; {_as_written(MIN_DURATION)} to {_as_written(policy.max_duration)} is certified",
        )
    at = at.replace(microsecond=0)
    end = min(at + duration, ca.not_after)
    if end - at < MIN_DURATION:
        raise RequestRefused(
            Refusal.CA_ENDS, "the certificate of the issuer ends before this one could be used"
        )
    return max(at - BACKDATE, ca.not_before), end


def _bits(value: bytes) -> frozenset[str] | None:
    """Return the words of a KeyUsage; None where it is not in its one form."""
    try:
        found = der.only(value, der.BIT_STRING, "KeyUsage")
    except MalformedEvidence:
        return None
    content = value[found.start : found.stop]
    return frozenset(
        word
        for i, word in enumerate(KEY_USAGES)
        if len(content) > 1 + i // 8 and content[1 + i // 8] & 0x80 >> i % 8
    )


def _oids(value: bytes) -> frozenset[str] | None:
    """Return the purposes of an ExtendedKeyUsage; None where it is none, or one stands twice."""
    try:
        outer = der.only(value, der.SEQUENCE, "ExtendedKeyUsage")
        found = [der.oid(value, each) for each in der.elements(value, outer.start, outer.stop)]
    except MalformedEvidence:
        return None
    return frozenset(found) if len(set(found)) == len(found) else None


def _constraints(value: bytes) -> tuple[bool, int | None]:
    """Return the two of BasicConstraints ::= SEQUENCE { cA BOOLEAN DEFAULT FALSE, pathLen INTEGER OPTIONAL }."""
    try:
        outer = der.only(value, der.SEQUENCE, "BasicConstraints")
        members = list(der.elements(value, outer.start, outer.stop))
        number = (
            der.integer(value, members[1]) if [m.tag for m in members] == [der.BOOLEAN, der.INTEGER] else None
        )
    except MalformedEvidence as e:
        raise RequestRefused(Refusal.MALFORMED, str(e)) from e
    if [m.tag for m in members] not in ([], [der.BOOLEAN], [der.BOOLEAN, der.INTEGER]) or (number or 0) < 0:
        raise RequestRefused(Refusal.MALFORMED, "BasicConstraints in another form")
    # Go writes cA FALSE out, though DER has a default no place: that says what an empty sequence says.
    return bool(members) and value[members[0].start : members[0].stop] != b"\0", number


def demand_permitted(content: LeafContent, *, ca: IssuingCA, above: Sequence[bytes]) -> None:
    """Check that the certificates above *content* permit its names: what they would refuse is not signed.

    Args:
        content: Of `judge_leaf`.
        ca: Who is to certify it.
        above: Certificates that stand above that of *ca*, DER, as far as they are known.

    Raises:
        RequestRefused: The CA's certificate, or one above it, does not permit a name (RFC 5280, 4.2.1.10).
    """
    if (why := outside(certificate_content(content, serial=0, ca=ca), (ca.certificate, *above))) is not None:
        raise RequestRefused(Refusal.NAME_FORBIDDEN, why)


def make_leaf(
    content: LeafContent,
    *,
    serial: int,
    ca: IssuingCA,
    key: SigningKey,
    above: Sequence[bytes] = (),
    crl_url: str | None = None,
    ocsp_url: str | None = None,
    ca_url: str | None = None,
) -> bytes:
    """Return the certificate that says *content*, DER, signed once after the linter passed it.

    It asks a token or a TPM to sign: never on the event loop.

    Args:
        content: Of `judge_leaf`.
        serial: What was reserved for it, 20 bytes as a number (`serial_of`).
        ca: Who certifies.
        key: Private key of *ca*.
        above: Certificates that stand above that of *ca*, DER, as far as they are known.
        crl_url: Where the list of the CA is; not said where *content* has `no_rev_avail`.
        ocsp_url: Where its responder answers; likewise.
        ca_url: Where its certificate is, DER.

    Raises:
        RequestRefused: As of `demand_permitted`.
        CertificateNotConformant: A rule of the linter does not hold; the CA's key signed nothing.
        SignatureInvalid: What came from *key* is no signature of the CA's key.
    """
    said = certificate_content(
        content, serial=serial, ca=ca, crl_url=crl_url, ocsp_url=ocsp_url, ca_url=ca_url
    )
    demand_permitted(content, ca=ca, above=above)
    return sign_content(said, ca=ca, key=key)


def certificate_content(
    content: LeafContent,
    *,
    serial: int,
    ca: IssuingCA,
    crl_url: str | None = None,
    ocsp_url: str | None = None,
    ca_url: str | None = None,
) -> CertificateContent:
    """Return all that the certificate for *content* says; arguments as of `make_leaf`."""
    if content.no_rev_avail:
        crl_url = ocsp_url = None
    pointers = {Pointer.CRL: crl_url, Pointer.OCSP: ocsp_url, Pointer.CA: ca_url}
    profile = Profile(
        name="hsm-leaf",
        what="what a user of a cluster asked its issuer for",
        key_usage=content.purposes.key_usage,
        purposes=content.purposes.purposes,
        max_validity=content.not_after - content.not_before,
        pointers=frozenset(kind for kind, url in pointers.items() if url is not None),
        path_length=content.path_length,
        no_rev_avail=content.no_rev_avail,
        is_foreign=True,
    )
    return CertificateContent(
        profile=profile,
        serial=serial,
        subject=content.subject,
        issuer_subject=ca.subject,
        spki=content.spki,
        not_before=content.not_before,
        not_after=content.not_after,
        authority_key_id=ca.key_id,
        uris=content.names.uris,
        dns_names=content.names.dns_names,
        ip_addresses=tuple(map(ip_address, content.names.ip_addresses)),
        emails=content.names.emails,
        limits=content.limits,
        crl_url=crl_url,
        ocsp_url=ocsp_url,
        ca_url=ca_url,
    )
