"""The names in a certification request: what is read, and what two readers could understand differently."""

from __future__ import annotations

from ipaddress import ip_address
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from attestation.endorsements import der
from attestation.errors import MalformedEvidence
from attestation.pki.request import RequestParts, read_request
from attestation.pki.requested import COMMON_NAME, ORGANIZATION, RequestedNames, requested_names
from attestation.wire import tlv

KEY = ec.derive_private_key(7, ec.SECP256R1())
SUBJECT = x509.Name(
    [
        x509.NameAttribute(NameOID.ORGANIZATION_NAME, "system:nodes"),
        x509.NameAttribute(NameOID.COMMON_NAME, "system:node:worker-1"),
    ]
)


def request(names: list[x509.GeneralName] | None = None, *, more: Any = None) -> RequestParts:
    """Return a request of the subject, with names."""
    builder = x509.CertificateSigningRequestBuilder().subject_name(SUBJECT)
    if names is not None:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=True)
    if more is not None:
        builder = builder.add_extension(more, critical=False)
    return read_request(builder.sign(KEY, hashes.SHA256()).public_bytes(Encoding.DER))


def malformed(parts: RequestParts, match: str) -> None:
    """Assert that the names cannot be read."""
    with pytest.raises(MalformedEvidence, match=match):
        requested_names(parts)


def test_a_subject_alone() -> None:
    """As written, in its order."""
    names = requested_names(request())
    assert names == RequestedNames(
        subject=((ORGANIZATION, "system:nodes"), (COMMON_NAME, "system:node:worker-1"))
    )
    assert names.values(COMMON_NAME) == ("system:node:worker-1",)
    assert names.values("2.5.4.11") == ()


def test_alternative_names() -> None:
    """DNS names and addresses by value, all else by kind; other extensions by their OIDs."""
    given: list[x509.GeneralName] = [
        x509.DNSName("worker-1.example"),
        x509.IPAddress(ip_address("10.0.0.11")),
        x509.IPAddress(ip_address("fd00::1")),
        x509.RFC822Name("a@example"),
        x509.UniformResourceIdentifier("urn:x"),
        x509.DirectoryName(SUBJECT),
    ]
    names = requested_names(request(given, more=x509.BasicConstraints(ca=True, path_length=None)))
    assert names.dns_names == ("worker-1.example",)
    assert names.ip_addresses == ("10.0.0.11", "fd00::1")
    assert names.others == ("email", "uri", "0xa4")
    assert names.extensions == ("2.5.29.19",)


def pair(oid: str = COMMON_NAME, tag: int = 0x0C, value: bytes = b"x") -> bytes:
    """Return an attribute of a name."""
    return tlv(der.SEQUENCE, der.write_oid(oid) + tlv(tag, value))


def subject(*relatives: bytes) -> RequestParts:
    """Return a request whose subject has these RDNs."""
    return request()._replace(subject=tlv(der.SEQUENCE, b"".join(relatives)))


@pytest.mark.parametrize(
    ("parts", "match"),
    [
        (request()._replace(subject=b"\x31\x00"), "tag"),
        (subject(tlv(der.SEQUENCE, pair())), "no SET"),
        (subject(tlv(der.SET, b"")), "no SET"),
        (subject(tlv(der.SET, tlv(der.SET, b""))), "no SEQUENCE"),
        (subject(tlv(der.SET, tlv(der.SEQUENCE, pair()[2:] + b"\x05\x00"))), "behind"),
        (subject(tlv(der.SET, pair(tag=0x0C, value=b"\xff"))), "not of its type"),
        (subject(tlv(der.SET, pair(tag=0x13, value=b"\xe4"))), "not of its type"),
        (subject(tlv(der.SET, pair(tag=0x1E, value=b"\0x"))), "tag 0x1e"),
        (subject(*[tlv(der.SET, pair())] * 17), "more than 16"),
    ],
)
def test_subjects_that_are_refused(parts: RequestParts, match: str) -> None:
    """Of another form, in another alphabet, or of too many parts."""
    malformed(parts, match)


def test_strings_of_both_types() -> None:
    """UTF8String and PrintableString say the same; an RDN may have two attributes."""
    both = tlv(der.SET, pair(tag=0x13) + pair(ORGANIZATION, 0x0C, "ä".encode()))
    assert requested_names(subject(both)).subject == ((COMMON_NAME, "x"), (ORGANIZATION, "ä"))


EXTENSION_REQUEST = "1.2.840.113549.1.9.14"
SAN = "2.5.29.17"


def extension(oid: str = SAN, value: bytes = b"\x30\x00", critical: bytes = b"") -> bytes:
    """Return an Extension."""
    return tlv(der.SEQUENCE, der.write_oid(oid) + critical + tlv(der.OCTET_STRING, value))


def attributes(*extensions: bytes, oid: str = EXTENSION_REQUEST, behind: bytes = b"") -> RequestParts:
    """Return a request with these extensions."""
    values = tlv(der.SET, tlv(der.SEQUENCE, b"".join(extensions)) + behind)
    return request()._replace(attributes=tlv(der.SEQUENCE, der.write_oid(oid) + values))


@pytest.mark.parametrize(
    ("parts", "match"),
    [
        (attributes(oid="1.2.840.113549.1.9.7"), "other than extensionRequest"),
        (request()._replace(attributes=attributes().attributes * 2), "trailing"),
        (attributes(behind=b"\x30\x00"), "trailing"),
        (
            request()._replace(
                attributes=tlv(
                    der.SEQUENCE,
                    der.write_oid(EXTENSION_REQUEST) + tlv(der.SET, b"\x30\x00") + b"\x31\x00",
                )
            ),
            "behind the extensionRequest",
        ),
        (attributes(b"\x31\x00"), "no SEQUENCE"),
        (attributes(extension(), extension()), "twice"),
        (attributes(extension(critical=b"\x01\x01\x01")), "not DER"),
        (attributes(tlv(der.SEQUENCE, der.write_oid(SAN) + b"\x05\x00")), "another form"),
        (attributes(tlv(der.SEQUENCE, extension()[2:] + b"\x05\x00")), "another form"),
        (attributes(extension(value=b"\x31\x00")), "tag"),
        (attributes(extension(value=tlv(der.SEQUENCE, tlv(0x82, b"\xff")))), "not ASCII"),
        (attributes(extension(value=tlv(der.SEQUENCE, tlv(0x87, b"abc")))), "address of 3"),
        (attributes(extension(value=tlv(der.SEQUENCE, tlv(0x82, b"a") * 65))), "more than 64"),
    ],
)
def test_extensions_that_are_refused(parts: RequestParts, match: str) -> None:
    """Attributes and extensions of another form, twice, or of names that are none."""
    malformed(parts, match)


def test_criticality_is_passed_over() -> None:
    """A requested extension may be critical: who signs does not obey it anyway."""
    assert requested_names(attributes(extension(critical=b"\x01\x01\xff"))).extensions == ()
