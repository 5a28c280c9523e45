"""What a certificate for a key on a token is asked for with, and whether what came back is that.

An issuer may be anybody's. What it sends is judged as a stranger's: for our key, with the names that were asked for and
no more, with the usages that were asked for, no CA, and for no longer than was asked for.
"""

# Algorithms for: certified-key, proof-of-possession, digest
from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from ipaddress import ip_address
from typing import Any, Final

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.asymmetric.mldsa import MLDSA87PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from attestation.errors import CertificateUntrusted, MalformedEvidence, RequestRefused
from attestation.keys.open import CAPrivateKey
from attestation.pki.request import read_request
from attestation.pki.requested import COMMON_NAME, requested_names
from attestation.pki.usages import USAGES
from attestation_operator.crds.leaves import HsmCertificateSpec
from attestation_operator.durations import parse_duration
from attestation_operator.hsm.objects import distinguished

LONGER: Final = timedelta(hours=2)
"""So much longer than it was asked for a certificate may live: issuers date them back."""
MAX_PEM_CHARACTERS: Final = 64 << 10
MAX_CHAIN: Final = 8
_BITS: Final = {"non_repudiation": "content_commitment"}
"""Where the library calls a bit of KeyUsage otherwise."""
_ONLY: Final = ("encipher_only", "decipher_only")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a certificate shall say.

    Args:
        subject: Pairs of OID and text, in their order.
        dns_names: Likewise as they are written, also the next.
        ip_addresses: In their one spelling.
        uris: As written.
        emails: As written.
        usages: Words of cert-manager.
        duration: How long it shall live.
    """

    subject: tuple[tuple[str, str], ...]
    dns_names: tuple[str, ...]
    ip_addresses: tuple[str, ...]
    uris: tuple[str, ...]
    emails: tuple[str, ...]
    usages: tuple[str, ...]
    duration: timedelta


def wanted_of(spec: HsmCertificateSpec) -> Wanted:
    """Return what *spec* wants.

    Raises:
        RequestRefused: An address that is none, a name that no certificate can say, or no name at all.
    """
    try:
        addresses = tuple(str(ip_address(each)) for each in spec.ip_addresses)
    except ValueError as e:
        raise RequestRefused("name-invalid", "ipAddresses: one of them is no address") from e
    wanted = Wanted(
        subject=tuple(distinguished(spec.subject)),
        dns_names=spec.dns_names,
        ip_addresses=addresses,
        uris=spec.uri_sans,
        emails=spec.email_addresses,
        usages=spec.usages,
        duration=parse_duration(spec.duration),
    )
    try:
        names = _names(wanted)
    except ValueError as e:
        raise RequestRefused("name-invalid", f"no request can say this: {e}") from e
    if not (wanted.subject or names):
        raise RequestRefused("name-invalid", "neither a subject nor an alternative name")
    return wanted


def _names(wanted: Wanted) -> list[x509.GeneralName]:
    return [
        *map(x509.DNSName, wanted.dns_names),
        *(x509.IPAddress(ip_address(each)) for each in wanted.ip_addresses),
        *map(x509.UniformResourceIdentifier, wanted.uris),
        *map(x509.RFC822Name, wanted.emails),
    ]


def made_request(wanted: Wanted, key: CAPrivateKey) -> bytes:
    """Return a request of *key*, PEM. Blocks: its token signs.

    Raises:
        RequestRefused: No request can say this.
        SignerUnavailable: The key does not sign now.
    """
    try:
        attributes = [x509.NameAttribute(x509.ObjectIdentifier(oid), text) for oid, text in wanted.subject]
        builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name(attributes))
        names = _names(wanted)
        if names:
            # The only names that there are must be understood (RFC 5280, 4.2.1.6).
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=not wanted.subject)
    except ValueError as e:
        raise RequestRefused("name-invalid", f"no request can say this: {e}") from e
    return builder.sign(key, _hash_of(key)).public_bytes(Encoding.PEM)


def _hash_of(key: CAPrivateKey) -> hashes.SHA256 | hashes.SHA384 | None:
    """Return the hash of the strength of *key*; None for one that does its own."""
    if isinstance(key, MLDSA87PrivateKey):
        return None
    small = isinstance(key, EllipticCurvePrivateKey) and key.key_size <= 256
    return hashes.SHA256() if small else hashes.SHA384()


def asked_spki(wanted: Wanted, request: bytes) -> bytes | None:
    """Return the key of a request that asks for what is wanted, SubjectPublicKeyInfo DER; None of any other."""
    try:
        parts = read_request(request)
        names = requested_names(parts)
    except MalformedEvidence:
        return None
    same = (
        names.subject == wanted.subject
        and names.dns_names == wanted.dns_names
        and names.ip_addresses == wanted.ip_addresses
        and names.uris == wanted.uris
        and names.emails == wanted.emails
    )
    return parts.spki if same else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """A certificate for a key of ours, as it was wanted.

    Args:
        chain: PEM, the leaf first; nothing else stands in it.
        spki: Of the leaf, DER.
        serial_number: Hex.
        not_before: UTC.
        not_after: UTC.
    """

    chain: str
    spki: bytes = field(repr=False)
    serial_number: str
    not_before: datetime
    not_after: datetime

    @property
    def fingerprint(self) -> str:
        """SHA-256 of its key, hex."""
        return hashlib.sha256(self.spki).hexdigest()

    @property
    def lifetime(self) -> timedelta:
        """From begin to end."""
        return self.not_after - self.not_before


def judged(wanted: Wanted, pem: str, *, spki: bytes) -> Certificate:
    """Return the certificates of *pem*, the leaf first, as they may be given to whoever uses the key.

    Whether it is valid now is for the caller to know: one that has ended was right all the same.

    Args:
        wanted: What was asked for.
        pem: A stranger's.
        spki: Of the key on the token, DER.

    Raises:
        CertificateUntrusted: It is something else.
    """
    chain = read_chain(pem)
    leaf = chain[0]
    try:
        # 1. Another's key: who uses this key could not use it, and somebody else could.
        found = leaf.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        if found != spki:
            raise CertificateUntrusted("the certificate is for another key")
        # 2. Other names: nobody would be who they are called.
        _compare_names(leaf, wanted)
        # 3. Less than it is needed for, or a CA, which nobody here asks for.
        _compare_usages(leaf, wanted)
    except (ValueError, TypeError, UnsupportedAlgorithm) as e:
        raise CertificateUntrusted(f"the certificate cannot be read: {type(e).__name__}") from e
    # 4. Longer than somebody wanted to answer for the key.
    certificate = Certificate(
        chain=pem_of(chain),
        spki=spki,
        serial_number=f"{leaf.serial_number:x}",
        not_before=leaf.not_valid_before_utc,
        not_after=leaf.not_valid_after_utc,
    )
    if certificate.lifetime > wanted.duration + LONGER:
        raise CertificateUntrusted(
            f"the certificate lives for {certificate.lifetime}; {wanted.duration} was asked for"
        )
    return certificate


def read_chain(pem: str) -> list[x509.Certificate]:
    """Return the certificates of *pem*.

    Raises:
        CertificateUntrusted: None, or more than anybody needs.
    """
    if len(pem) > MAX_PEM_CHARACTERS:
        raise CertificateUntrusted(f"{len(pem)} characters of PEM, at most {MAX_PEM_CHARACTERS} allowed")
    try:
        chain = x509.load_pem_x509_certificates(pem.encode())
    except ValueError as e:
        raise CertificateUntrusted("no certificates in PEM") from e
    if len(chain) > MAX_CHAIN:
        raise CertificateUntrusted(f"{len(chain)} certificates, at most {MAX_CHAIN} allowed")
    return chain


def pem_of(chain: list[x509.Certificate]) -> str:
    """Return certificates as PEM, written anew: no text that stood around them."""
    return "".join(each.public_bytes(Encoding.PEM).decode("ascii") for each in chain)


def renewal_time(certificate: Certificate, spec: HsmCertificateSpec) -> datetime:
    """Return when another is asked for: a third of the lifetime before the end, or as the spec says.

    A `renewBefore` that is no less than the whole lifetime would renew for ever: then it is a third, too.
    """
    before = certificate.lifetime / 3
    if spec.renew_before is not None and parse_duration(spec.renew_before) < certificate.lifetime:
        before = parse_duration(spec.renew_before)
    return (certificate.not_after - before).replace(microsecond=0)


def _compare_names(leaf: x509.Certificate, wanted: Wanted) -> None:
    try:
        found = set(leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value)
    except x509.ExtensionNotFound:
        found = set()
    if found != set(_names(wanted)):
        raise CertificateUntrusted("the certificate has other alternative names than were asked for")
    subject = {(each.oid.dotted_string, str(each.value)) for each in leaf.subject}
    # Some issuers repeat a DNS name as the common name: it says nothing new.
    repeated = {(COMMON_NAME, each) for each in wanted.dns_names}
    if subject - set(wanted.subject) - repeated or set(wanted.subject) - subject:
        raise CertificateUntrusted("the certificate has another subject than was asked for")


def _compare_usages(leaf: x509.Certificate, wanted: Wanted) -> None:
    extensions = leaf.extensions
    said: set[str] = set()
    is_ca = False
    for each in extensions:
        value: Any = each.value
        if isinstance(value, x509.KeyUsage):
            bits = [bit for bit in USAGES.values() if not bit[0].isdigit() and bit not in _ONLY]
            bits += _ONLY if value.key_agreement else ()
            said |= {bit for bit in bits if getattr(value, _BITS.get(bit, bit))}
        elif isinstance(value, x509.ExtendedKeyUsage):
            said |= {oid.dotted_string for oid in value}
        elif isinstance(value, x509.BasicConstraints):
            is_ca = value.ca
    if is_ca or "key_cert_sign" in said:
        raise CertificateUntrusted("the certificate is that of a CA")
    if missing := {USAGES[each] for each in wanted.usages} - said:
        raise CertificateUntrusted(
            f"the certificate is not for {', '.join(sorted(missing))}, which was asked for"
        )
