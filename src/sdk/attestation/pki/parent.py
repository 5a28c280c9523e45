"""A CA of ours below one that a company has: what is asked of the parent, and whether what came back is good.

    request     our key under our name, PKCS #10, with what the certificate should limit (RFC 2986, 5280)
    chain       that key's certificate, each certificate that signed the one before, the self-signed root last

The key and the name stay as they are, so what was signed before still verifies, where the parent names the key as we do
(SubjectKeyIdentifier); only who vouches for them changes.
Names that a chain permits are compared with each certificate before it is signed (`outside`), because a relying party
compares them afterwards (RFC 5280 §4.2.1.10).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from itertools import pairwise
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtensionOID

from attestation.endorsements.certificate import Certificate, key_weakness, parse_certificate
from attestation.errors import CAChainInvalid, CertificateNotConformant, MalformedEvidence, SignatureInvalid
from attestation.pki.content import CertificateContent, SigningKey, key_identifier, signing_hash

MAX_CHAIN: Final = 8
"""Certificates of a chain, ours and the root counted."""
MAX_CERTIFICATE_BYTES: Final = 16_384
MAX_PATH_LENGTH: Final = 8

ANY_PURPOSE: Final = "2.5.29.37.0"
_NARROWING: Final = {"2.5.29.36": "policyConstraints", "2.5.29.54": "inhibitAnyPolicy"}
"""Extensions that make relying parties refuse what we issue, critical or not: we write no policies of the parent."""

_UNDERSTOOD: Final = frozenset(
    {
        ExtensionOID.BASIC_CONSTRAINTS.dotted_string,
        ExtensionOID.KEY_USAGE.dotted_string,
        ExtensionOID.NAME_CONSTRAINTS.dotted_string,
        ExtensionOID.CERTIFICATE_POLICIES.dotted_string,
        ExtensionOID.SUBJECT_ALTERNATIVE_NAME.dotted_string,
    }
)
"""Extensions that may be critical in a chain. Any other one would make relying parties refuse it, or should."""

IPNetwork = IPv4Network | IPv6Network


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a request asks the parent to limit; what the parent makes of it stands in the certificate.

    Args:
        path_length: pathLenConstraint: CAs below ours. None: no limit is asked for.
        dns: Domains whose host names may be certified, each with those below it.
        ip: Networks whose addresses may be.
        policies: OIDs of CertificatePolicies.
    """

    path_length: int | None = None
    dns: tuple[str, ...] = ()
    ip: tuple[IPNetwork, ...] = ()
    policies: tuple[str, ...] = ()


def make_request(subject: x509.Name, spki: bytes, key: SigningKey, limits: Limits) -> bytes:
    """Return the request that a parent is given, DER.

    Args:
        subject: Our name; the parent may not change it.
        spki: SubjectPublicKeyInfo of *key*, DER.
        key: Signs the request.
        limits: What the certificate should limit.

    Raises:
        CertificateNotConformant: No request can say this.
        SignerUnavailable: The key cannot sign now.
    """
    try:
        builder = (
            x509.CertificateSigningRequestBuilder()
            .subject_name(subject)
            .add_extension(x509.BasicConstraints(ca=True, path_length=limits.path_length), critical=True)
            .add_extension(_USAGE, critical=True)
            .add_extension(x509.SubjectKeyIdentifier(key_identifier(spki)), critical=False)
        )
        permitted: list[x509.GeneralName] = [*map(x509.DNSName, limits.dns), *map(x509.IPAddress, limits.ip)]
        if permitted:
            builder = builder.add_extension(x509.NameConstraints(permitted, None), critical=True)
        if limits.policies:
            policies = [x509.PolicyInformation(x509.ObjectIdentifier(each), None) for each in limits.policies]
            builder = builder.add_extension(x509.CertificatePolicies(policies), critical=False)
    except (ValueError, TypeError) as e:
        raise CertificateNotConformant(f"no request can say this: {e}") from e
    return builder.sign(key, signing_hash(key)).public_bytes(Encoding.DER)


_USAGE: Final = x509.KeyUsage(
    digital_signature=True,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=True,
    crl_sign=True,
    encipher_only=False,
    decipher_only=False,
)


def check_chain(chain: Sequence[bytes], own: bytes, at: datetime) -> None:
    """Prove that *chain* certifies our key up to a root, so that certificates below it verify (RFC 5280, 6.1).

    Whose root it is nobody can tell here: that is for the operators who agree to it.

    Args:
        chain: DER; ours first, the root last.
        own: The certificate of our key so far, DER: key and name must be the same.
        at: Now.

    Raises:
        CAChainInvalid: It does not; in words.
    """
    if not 2 <= len(chain) <= MAX_CHAIN:
        raise CAChainInvalid(
            f"a chain of {len(chain)}: ours first, those between, the self-signed root last are 2 to {MAX_CHAIN}"
        )
    read = [_read(der, depth) for depth, der in enumerate(chain)]
    before = _read(own, 0)
    ours = read[0]
    # Its own key. With another, nothing that we signed, or will, verifies.
    if ours.spki != before.spki:
        raise CAChainInvalid("the first certificate is for another key than ours")
    # Its own name, byte for byte, because what we signed names it so.
    if _subject(chain[0]) != _subject(own):
        raise CAChainInvalid(f"the parent changed our name: {ours.subject}")
    if ours.ski is None:
        raise CAChainInvalid("the first certificate has no SubjectKeyIdentifier")
    _check_path(read, at)


def check_imported(chain: Sequence[bytes], at: datetime) -> None:
    """Prove that *chain* is that of a CA which may go on here: a root itself, or certified up to one.

    Whose CA it is nobody can tell here: that is for the operators who agree to it, as is its key for who opens it.

    Args:
        chain: DER; the CA first, the root last.
        at: Now.

    Raises:
        CAChainInvalid: It is not; in words.
    """
    if not 1 <= len(chain) <= MAX_CHAIN:
        raise CAChainInvalid(
            f"a chain of {len(chain)}: the CA first, those between, the root last are 1 to {MAX_CHAIN}"
        )
    read = [_read(der, depth) for depth, der in enumerate(chain)]
    if read[0].ski is None:
        raise CAChainInvalid("the first certificate has no SubjectKeyIdentifier")
    # Of another's making, so it is looked at as those of parents are.
    if (weakness := key_weakness(read[0])) is not None:
        raise CAChainInvalid(f"{read[0].subject} has a key that proves nothing: {weakness}")
    _check_path(read, at)


def _check_path(read: Sequence[Certificate], at: datetime) -> None:
    for depth, certificate in enumerate(read):
        _check_ca(certificate, depth, at)
    for below, above in pairwise(read):
        _check_link(below, above)
    root = read[-1]
    _check_link(root, root)


def _read(der: bytes, depth: int) -> Certificate:
    try:
        return parse_certificate(der, max_bytes=MAX_CERTIFICATE_BYTES)
    except MalformedEvidence as e:
        raise CAChainInvalid(f"certificate {depth + 1} of the chain: {e}") from e


def _subject(der: bytes) -> bytes:
    return x509.load_der_x509_certificate(der).subject.public_bytes()


def _check_ca(certificate: Certificate, depth: int, at: datetime) -> None:
    """Check what one certificate says of itself; *depth* CAs are below it."""
    usage = certificate.key_usage
    problem = None
    if not certificate.is_ca:
        problem = "is none of a CA"
    elif usage is None:
        problem = "has no KeyUsage, which a CA must have, with keyCertSign and cRLSign (RFC 5280, 4.2.1.3)"
    elif not {"key_cert_sign", "crl_sign"} <= usage:
        problem = "may not sign certificates and revocation lists (keyCertSign, cRLSign)"
    elif certificate.path_length is not None and certificate.path_length < depth:
        problem = f"allows {certificate.path_length} CAs below it, not {depth}"
    elif not certificate.not_before <= at <= certificate.not_after:
        problem = (
            f"is valid from {certificate.not_before:%Y-%m-%d} to {certificate.not_after:%Y-%m-%d}, not now"
        )
    elif certificate.repeated_extension is not None:
        problem = f"has extension {certificate.repeated_extension} twice"
    elif unknown := sorted(
        oid for oid, each in certificate.extensions.items() if each.critical and oid not in _UNDERSTOOD
    ):
        problem = f"has a critical extension that relying parties may not know: {unknown[0]}"
    elif narrowing := sorted(oid for oid in certificate.extensions if oid in _NARROWING):
        problem = (
            f"limits policies ({_NARROWING[narrowing[0]]}), and certificates of ours have others or none"
        )
    elif certificate.extended_key_usage and ANY_PURPOSE not in certificate.extended_key_usage:
        problem = "limits what certificates are for (extendedKeyUsage); ours are for several purposes"
    # The kinds of our own key are not among those that are read here; which they are was decided when it was made.
    elif depth and (weakness := key_weakness(certificate)) is not None:
        problem = f"has a key that proves nothing: {weakness}"
    if problem is not None:
        raise CAChainInvalid(f"{certificate.subject} {problem}")


def _check_link(below: Certificate, above: Certificate) -> None:
    if below.issuer_key != above.subject_key:
        raise CAChainInvalid(
            f"{below.subject} is certified by {below.issuer}, and {above.subject} follows; the root must be last"
        )
    # Found by key identifier, where both have one: programs that look for the issuer so find nobody else.
    if below.aki is not None and above.ski is not None and below.aki != above.ski:
        raise CAChainInvalid(f"{below.subject} names another key of {above.subject}")
    try:
        below.verify_issued_by(above)
    except SignatureInvalid as e:
        raise CAChainInvalid(f"{above.subject} did not sign {below.subject}: {e}") from e


def ends(chain: Iterable[bytes]) -> datetime:
    """Return when the first certificate of *chain* ends: nothing below it verifies any longer."""
    return min(x509.load_der_x509_certificate(der).not_valid_after_utc for der in chain)


def key_id(der: bytes) -> bytes:
    """Return the SubjectKeyIdentifier of a CA's certificate."""
    extensions = x509.load_der_x509_certificate(der).extensions
    return extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value.digest


def outside(content: CertificateContent, chain: Iterable[bytes]) -> str | None:
    """Return the first name of *content* that a certificate of *chain* does not permit, in words; None if none.

    Alternative names alone: of a URI without a host nothing can be permitted, so any limit on URIs refuses ours; one
    on e-mail addresses, which is of three forms, refuses each of them.
    """
    for der in chain:
        certificate = x509.load_der_x509_certificate(der)
        try:
            limits = certificate.extensions.get_extension_for_class(x509.NameConstraints).value
        except x509.ExtensionNotFound:
            continue
        permitted, excluded = limits.permitted_subtrees or (), limits.excluded_subtrees or ()
        named = f"{certificate.subject.rfc4514_string()} does not permit"
        if content.uris and any(
            isinstance(each, x509.UniformResourceIdentifier) for each in (*permitted, *excluded)
        ):
            return f"{named} {content.uris[0]}: it limits URIs, and this one has no host"
        if content.emails and any(isinstance(each, x509.RFC822Name) for each in (*permitted, *excluded)):
            return f"{named} {content.emails[0]}: it limits e-mail addresses"
        directory = [each for each in (*permitted, *excluded) if isinstance(each, x509.DirectoryName)]
        if directory and not _within_directory(content.subject, permitted, excluded):
            return f"{named} {content.subject.rfc4514_string()}"
        for host in content.dns_names:
            if not _allowed(
                [_below(host, each.value) for each in permitted if isinstance(each, x509.DNSName)],
                [_below(host, each.value) for each in excluded if isinstance(each, x509.DNSName)],
            ):
                return f"{named} {host}"
        for address in content.ip_addresses:
            if not _allowed(
                [_inside(address, each) for each in permitted if isinstance(each, x509.IPAddress)],
                [_inside(address, each) for each in excluded if isinstance(each, x509.IPAddress)],
            ):
                return f"{named} {address}"
    return None


def _allowed(permitted: Sequence[bool], excluded: Sequence[bool]) -> bool:
    """Return whether a name is in one of the permitted trees, where there are any, and in no excluded one."""
    return (not permitted or any(permitted)) and not any(excluded)


def _below(host: str, domain: str) -> bool:
    host, domain = host.lower(), domain.lower().lstrip(".")
    return not domain or host == domain or host.endswith(f".{domain}")


def _inside(address: IPv4Address | IPv6Address, tree: x509.IPAddress) -> bool:
    network = tree.value
    assert isinstance(network, IPv4Network | IPv6Network)  # in name constraints there is nothing else
    return address in network


def _within_directory(
    subject: x509.Name, permitted: Iterable[x509.GeneralName], excluded: Iterable[x509.GeneralName]
) -> bool:
    def begins(tree: x509.GeneralName) -> bool:
        assert isinstance(tree, x509.DirectoryName)
        return subject.rdns[: len(tree.value.rdns)] == tree.value.rdns

    return _allowed(
        [begins(each) for each in permitted if isinstance(each, x509.DirectoryName)],
        [begins(each) for each in excluded if isinstance(each, x509.DirectoryName)],
    )
