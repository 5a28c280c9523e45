"""What a certificate of the cluster must be before anything on this node uses it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.x509.oid import ExtendedKeyUsageOID

from attestation_agent.exits import NoNodeCertificate
from attestation_agent.kubelet.keys import subject_of

CLOCK_SKEW = timedelta(minutes=5)
_MOST_CERTIFICATES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Issued:
    """A certificate of this node that was checked.

    Args:
        pem: The certificate, and what is sent after it.
        leaf: The certificate itself.
    """

    pem: bytes
    leaf: x509.Certificate

    @property
    def not_after(self) -> datetime:
        """When it ends."""
        return self.leaf.not_valid_after_utc

    @property
    def serial(self) -> str:
        """Its serial number, hex."""
        return f"{self.leaf.serial_number:x}"


def check(
    pem: bytes, *, spki: bytes, node_name: str, trusted: list[x509.Certificate], at: datetime
) -> Issued:
    """Return what the cluster issued, if it is ours.

    Args:
        pem: `status.certificate`: the leaf, and CAs between it and those that are trusted.
        spki: Of the key that it was asked for.
        node_name: Whose.
        trusted: CAs of clients.
        at: The instant, UTC.

    Raises:
        NoNodeCertificate: It is not.
    """
    issued = read(pem)
    leaf, *between = x509.load_pem_x509_certificates(issued.pem)
    # 1. For our key. With any other, whoever holds that one would be this node.
    if _spki(leaf) != spki:
        raise NoNodeCertificate("the certificate is for another key")
    # 2. As this node, in the group of nodes and in no other: the API server believes the subject alone.
    if leaf.subject != subject_of(node_name):
        raise NoNodeCertificate(f"the certificate is for {leaf.subject.rfc4514_string()}, not for this node")
    # 3. To be shown by a client, and not to issue others.
    if _is_ca(leaf) or not _is_for_clients(leaf):
        raise NoNodeCertificate("the certificate is not one of a client")
    # 4. From a CA of clients that we know: what another one signed, the API server would not let in.
    if not _leads_to(leaf, between, trusted):
        raise NoNodeCertificate("the certificate is from none of the CAs that this node trusts")
    # 5. Now.
    if not leaf.not_valid_before_utc - CLOCK_SKEW <= at < leaf.not_valid_after_utc:
        raise NoNodeCertificate("the certificate is not valid now; is the clock of this node right?")
    return issued


def read(pem: bytes) -> Issued:
    """Return certificates as they are, unchecked.

    Raises:
        NoNodeCertificate: There is none that can be read, or too many.
    """
    try:
        found = x509.load_pem_x509_certificates(pem)
    except ValueError as e:
        raise NoNodeCertificate("the certificate cannot be read") from e
    if len(found) > _MOST_CERTIFICATES:
        raise NoNodeCertificate(f"{len(found)} certificates where one and its issuers were expected")
    # Written anew: text around the blocks is nothing that TLS would send.
    text = b"".join(each.public_bytes(serialization.Encoding.PEM) for each in found)
    return Issued(pem=text, leaf=found[0])


def _leads_to(
    leaf: x509.Certificate, between: list[x509.Certificate], trusted: list[x509.Certificate]
) -> bool:
    """True where each certificate was issued by the next, and the last by one that is trusted."""
    last = leaf
    for issuer in between:
        if any(_issued_by(last, ca) for ca in trusted):
            return True
        if not _is_ca(issuer) or not _issued_by(last, issuer):
            return False
        last = issuer
    return any(_issued_by(last, ca) for ca in trusted)


def _issued_by(certificate: x509.Certificate, issuer: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(issuer)
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
        return False
    return True


def _is_ca(certificate: x509.Certificate) -> bool:
    try:
        return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except (x509.ExtensionNotFound, ValueError):
        return False


def _is_for_clients(certificate: x509.Certificate) -> bool:
    try:
        usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except (x509.ExtensionNotFound, ValueError):
        return False
    return ExtendedKeyUsageOID.CLIENT_AUTH in usage


def _spki(certificate: x509.Certificate) -> bytes:
    return certificate.public_key().public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
