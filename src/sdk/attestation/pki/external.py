"""CAs that are none of ours: their keys live in hardware that somebody gave to a cluster (HSM-AND-KUBERNETES §§6, 7).

What they sign goes the way of everything that we sign: content, rehearsal with a key that nobody trusts, the linter,
one signature, and a comparison of what was signed with what was linted. Their profiles stand here and not in
`profiles.PROFILES`: no CA of the service ever signs one, and the linter says so.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final, get_args

from cryptography import x509
from cryptography.x509.oid import ExtensionOID, NameOID

from attestation.endorsements.certificate import UNDERSTOOD_IF_CRITICAL, Certificate, parse_certificate
from attestation.errors import CAInvalid, CertificateNotConformant, CSRInvalid, MalformedEvidence
from attestation.pki.content import (
    Algorithm,
    CertificateContent,
    SigningKey,
    check_signed,
    key_identifier,
    make_certificate,
    rehearse,
)
from attestation.pki.lint import MAX_CERTIFICATE_BYTES, lint
from attestation.pki.profiles import ANY_POLICY, BACKDATE, OCSP_SIGNING, Pointer, Profile
from attestation.pki.signature import PublicKey, load_spki

MAX_CA_DURATION: Final = timedelta(days=9125)
"""Longest life of a CA certificate, as that of our own."""

RESPONDER_DURATION: Final = timedelta(days=7)
_UNDERSTOOD: Final = UNDERSTOOD_IF_CRITICAL | {ExtensionOID.NAME_CONSTRAINTS.dotted_string}
"""Extensions that may be critical in the certificate of a CA: what its names may be is compared before it signs."""
_CA_USAGE: Final = ("digital_signature", "key_cert_sign", "crl_sign")
_ALGORITHMS: Final[tuple[Algorithm, ...]] = get_args(Algorithm)


@dataclass(frozen=True, slots=True, kw_only=True)
class IssuingCA:
    """A CA whose certificate can stand above others.

    Args:
        certificate: Its certificate, DER.
        subject: Its name.
        key_id: Its SubjectKeyIdentifier.
        spki: Its key, SubjectPublicKeyInfo, DER.
        public_key: The same.
        algorithm: Its kind.
        not_before: Since when it is valid, UTC.
        not_after: Until when, UTC; still valid then.
        path_length: How many CAs may stand below it; None where it does not say.
    """

    certificate: bytes = field(repr=False)
    subject: x509.Name
    key_id: bytes
    spki: bytes = field(repr=False)
    public_key: PublicKey = field(repr=False)
    algorithm: Algorithm
    not_before: datetime
    not_after: datetime
    path_length: int | None


def read_ca(certificate: bytes, *, at: datetime) -> IssuingCA:
    """Read the certificate of a CA that is to issue, and prove that it may (§6).

    Args:
        certificate: DER, of any origin.
        at: The instant of use, UTC.

    Raises:
        CAInvalid: No certificate of a CA whose key may sign certificates and lists, not valid at *at*, without
            SubjectKeyIdentifier, or with a key of another kind than those of `content.Algorithm`.
    """
    found, key, kind, subject = _demanded(certificate, at)
    algorithm = next((one for one in _ALGORITHMS if one == kind), None)
    if algorithm is None:
        raise CAInvalid(f"the CA certificate: a key of {kind}; {', '.join(_ALGORITHMS)} expected")
    assert found.ski is not None
    return IssuingCA(
        certificate=certificate,
        subject=subject,
        key_id=found.ski,
        spki=found.spki,
        public_key=key,
        algorithm=algorithm,
        not_before=found.not_before,
        not_after=found.not_after,
        path_length=found.path_length,
    )


def demand_parent(certificate: bytes, *, at: datetime) -> None:
    """Prove that a certificate may stand above that of a CA: as `read_ca`, with a key of any kind that we verify.

    A company's root is what it is, P-521 or RSA-2048 too.

    Raises:
        CAInvalid: It may not.
    """
    _demanded(certificate, at)


def _demanded(certificate: bytes, at: datetime) -> tuple[Certificate, PublicKey, str, x509.Name]:
    """Return what the certificate of a CA that may sign certificates and lists at *at* says, its key and its name."""
    try:
        found = parse_certificate(certificate, max_bytes=MAX_CERTIFICATE_BYTES)
        key, kind = load_spki(found.spki)
        subject = x509.load_der_x509_certificate(certificate).subject
    except (MalformedEvidence, CSRInvalid, ValueError) as e:
        raise CAInvalid(
            "the CA certificate cannot be read, or its key is of no kind that is certified"
        ) from e
    wrong = [
        what
        for what, holds in (
            ("bytes behind it", not found.padding_bytes),
            ("an extension twice", found.repeated_extension is None),
            ("not that of a CA", found.is_ca),
            ("its key may not sign certificates", "key_cert_sign" in (found.key_usage or ())),
            ("its key may not sign lists", "crl_sign" in (found.key_usage or ())),
            ("no SubjectKeyIdentifier", bool(found.ski)),
            ("no subject", bool(found.subject_name.attributes)),
            ("not valid yet", found.not_before <= at),
            ("expired", at <= found.not_after),
            ("a critical extension that nobody here knows", unknown_critical(found) is None),
        )
        if not holds
    ]
    if wrong:
        raise CAInvalid(f"the CA certificate: {'; '.join(wrong)}")
    return found, key, kind, subject


def unknown_critical(certificate: Certificate) -> str | None:
    """Return the OID of a critical extension of a CA that is not followed here, None where there is none."""
    return next(
        (oid for oid, each in certificate.extensions.items() if each.critical and oid not in _UNDERSTOOD),
        None,
    )


def sign_content(content: CertificateContent, *, ca: IssuingCA, key: SigningKey) -> bytes:
    """Return the certificate that says *content*, DER: rehearsed, linted, signed once, and compared.

    It asks a token or a TPM to sign: never on the event loop.

    Raises:
        CertificateNotConformant: A rule of the linter does not hold; the key of the CA signed nothing.
        SignatureInvalid: What came from *key* is no signature of the CA's key.
        KeyUnsupported: *key* is none that signs certificates.
    """
    # What a key of hardware signs cannot be taken back: so the same bytes, signed by nobody, are judged first.
    rehearsed = rehearse(content, ca.algorithm)
    wrong = lint(rehearsed, content, None if content.rules.self_signed else ca.certificate)
    if wrong:
        raise CertificateNotConformant("; ".join(wrong))
    signed = make_certificate(content, key)
    check_signed(signed, rehearsed=rehearsed, issuer=ca.public_key)
    return signed


def make_ca(
    *,
    subject: x509.Name,
    spki: bytes,
    key: SigningKey,
    serial: int,
    at: datetime,
    duration: timedelta,
    path_length: int,
) -> bytes:
    """Return the certificate of a CA key by itself, DER.

    Args:
        subject: Its name; at least one attribute.
        spki: Its key, SubjectPublicKeyInfo, DER.
        key: The same key, private.
        serial: 20 bytes as a number (`serial_of`).
        at: Now, UTC.
        duration: How long it lives, at most `MAX_CA_DURATION`.
        path_length: How many CAs may stand below it. A key that is to certify its successor needs 1 (§8, rotation).

    Raises:
        CertificateNotConformant: As `sign_content`; no or another subject than a certificate can carry.
        CAInvalid: A key of a kind that no CA has.
        SignatureInvalid: *key* is not that of *spki*.
    """
    try:
        public_key, kind = load_spki(spki)
    except CSRInvalid as e:
        raise CAInvalid(f"the key of the CA: {e}") from e
    algorithm = next((one for one in _ALGORITHMS if one == kind), None)
    if algorithm is None:
        raise CAInvalid(f"the key of the CA is of {kind}; {', '.join(_ALGORITHMS)} expected")
    if not subject.rdns:
        raise CertificateNotConformant("a CA without a name")
    begin, end = _validity(at, duration, None)
    key_id = key_identifier(spki)
    content = CertificateContent(
        profile=_ca_profile(path_length, self_signed=True),
        serial=serial,
        subject=subject,
        issuer_subject=subject,
        spki=spki,
        not_before=begin,
        not_after=end,
        authority_key_id=key_id,
    )
    itself = IssuingCA(
        certificate=b"",
        subject=subject,
        key_id=key_id,
        spki=spki,
        public_key=public_key,
        algorithm=algorithm,
        not_before=begin,
        not_after=end,
        path_length=path_length,
    )
    return sign_content(content, ca=itself, key=key)


def make_cross(
    *,
    of: IssuingCA,
    by: IssuingCA,
    key: SigningKey,
    serial: int,
    validity: tuple[datetime, datetime],
    crl_url: str | None,
    ca_url: str | None,
) -> bytes:
    """Return a certificate of the CA *of* by the CA *by*, its predecessor or successor (§8, rotation), DER.

    Nothing but end entities stands below it.

    Args:
        of: Whose key and name it certifies.
        by: Who certifies.
        key: Private key of *by*.
        serial: 20 bytes as a number.
        validity: Of `cross_validity`.
        crl_url: Where the list of *by* is; None where its certificates do not say.
        ca_url: Where the certificate of *by* is, DER; likewise.

    Raises:
        CertificateNotConformant: As `sign_content`; the path length of *by* leaves no room.
    """
    begin, end = validity
    told = {Pointer.CRL: crl_url, Pointer.CA: ca_url}
    pointers = frozenset(kind for kind, url in told.items() if url is not None)
    content = CertificateContent(
        profile=_ca_profile(0, pointers=pointers, policies=(ANY_POLICY,)),
        serial=serial,
        subject=of.subject,
        issuer_subject=by.subject,
        spki=of.spki,
        not_before=begin,
        not_after=end,
        authority_key_id=by.key_id,
        policies=(ANY_POLICY,),
        crl_url=crl_url,
        ca_url=ca_url,
    )
    return sign_content(content, ca=by, key=key)


def cross_validity(
    *, of: IssuingCA, by: IssuingCA, at: datetime, duration: timedelta = MAX_CA_DURATION
) -> tuple[datetime, datetime]:
    """Return begin and end of a certificate of *of* by *by*: within the life of both, whole seconds, UTC.

    Args:
        of: Whose key is certified.
        by: Who certifies.
        at: Now, UTC.
        duration: How long it lives at most.
    """
    begin, end = _validity(at, duration, min(of.not_after, by.not_after))
    return max(begin, of.not_before, by.not_before), end


def make_responder(
    *, name: str, spki: bytes, ca: IssuingCA, key: SigningKey, serial: int, at: datetime
) -> bytes:
    """Return the certificate of a key that answers OCSP for *ca*, DER: 7 days, and nobody asks whether it is revoked.

    Args:
        name: Its common name.
        spki: Its key, of a request that this key signed.
        ca: For whose certificates it answers.
        key: Private key of *ca*.
        serial: 20 bytes as a number.
        at: Now, UTC.

    Raises:
        CertificateNotConformant: As `sign_content`.
    """
    begin, end = _validity(at, RESPONDER_DURATION, ca.not_after)
    try:
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    except ValueError as e:
        raise CertificateNotConformant(f"no common name: {e}") from e
    content = CertificateContent(
        profile=_RESPONDER,
        serial=serial,
        subject=subject,
        issuer_subject=ca.subject,
        spki=spki,
        not_before=begin,
        not_after=end,
        authority_key_id=ca.key_id,
    )
    return sign_content(content, ca=ca, key=key)


_RESPONDER: Final = Profile(
    name="hsm-responder",
    what="a key that answers OCSP for a CA in a cluster's hardware",
    key_usage=("digital_signature",),
    purposes=(OCSP_SIGNING,),
    max_validity=RESPONDER_DURATION,
    pointers=frozenset(),
    no_check=True,
    is_foreign=True,
)


def _ca_profile(
    path_length: int,
    *,
    self_signed: bool = False,
    pointers: frozenset[Pointer] = frozenset(),
    policies: tuple[str, ...] = (),
) -> Profile:
    return Profile(
        name="hsm-ca",
        what="a CA in a cluster's hardware",
        key_usage=_CA_USAGE,
        max_validity=MAX_CA_DURATION,
        pointers=pointers,
        path_length=path_length,
        self_signed=self_signed,
        fixed_policies=policies,
        is_foreign=True,
    )


def _validity(at: datetime, duration: timedelta, cap: datetime | None) -> tuple[datetime, datetime]:
    """Return begin and end in whole seconds, the end not behind *cap*."""
    at = at.replace(microsecond=0)
    end = at + duration
    return at - BACKDATE, end if cap is None else min(end, cap)
