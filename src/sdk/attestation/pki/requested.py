"""The names that a certification request asks for: its subject, and the subjectAltName in its extensionRequest.

A CA of this project takes none of them from a request; a signer of a cluster takes them all. So what judges a request
for such a signer reads them as strictly as can be: what two readers could understand differently is malformed.

    Attributes ::= SET OF SEQUENCE { type OBJECT IDENTIFIER, values SET OF ANY }   (RFC 2986)
    extensionRequest 1.2.840.113549.1.9.14, one value: Extensions                   (RFC 2985, 5.4.2)
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import Final

from attestation.endorsements import der
from attestation.errors import MalformedEvidence
from attestation.pki.request import RequestParts

COMMON_NAME: Final = "2.5.4.3"
ORGANIZATION: Final = "2.5.4.10"

_EXTENSION_REQUEST: Final = "1.2.840.113549.1.9.14"
_SUBJECT_ALT_NAME: Final = "2.5.29.17"
_UTF8_STRING: Final = 0x0C
_PRINTABLE_STRING: Final = 0x13
_IA5_STRING: Final = 0x16
_IA5_ATTRIBUTES: Final = ("0.9.2342.19200300.100.1.25", "1.2.840.113549.1.9.1")
"""domainComponent and emailAddress, which are IA5String and nothing else (RFC 5280, A.1)."""
_MAX_ATTRIBUTES: Final = 16
_MAX_NAMES: Final = 64
_EMAIL, _DNS, _URI, _IP = 0x81, 0x82, 0x86, 0x87


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedNames:
    """What a request wants to be called.

    Args:
        subject: Pairs of OID and text, as written.
        dns_names: In the order of the request, likewise the next.
        ip_addresses: In their one spelling.
        uris: In the order of the request, likewise the next.
        emails: Addresses.
        others: Kinds of names beside DNS names and addresses: `email`, `uri`, or a tag like `0xa4`.
        extensions: OIDs of requested extensions beside subjectAltName.
    """

    subject: tuple[tuple[str, str], ...]
    dns_names: tuple[str, ...] = ()
    ip_addresses: tuple[str, ...] = ()
    uris: tuple[str, ...] = ()
    emails: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    extensions: tuple[str, ...] = ()

    def values(self, oid: str) -> tuple[str, ...]:
        """Return the values of the attribute *oid* in the subject."""
        return tuple(text for kind, text in self.subject if kind == oid)


def requested_names(parts: RequestParts) -> RequestedNames:
    """Read the names in a request.

    Raises:
        MalformedEvidence: The only way to fail. A string of the subject other than UTF8String or PrintableString, an
            attribute of the request other than one extensionRequest, or an extension twice is malformed here.
    """
    subject = _subject(parts.subject)
    extensions = requested_extensions(parts)
    alternatives = extensions.pop(_SUBJECT_ALT_NAME, None)
    names = RequestedNames(subject=subject, extensions=tuple(extensions))
    return names if alternatives is None else _with_alternatives(names, alternatives)


def _subject(raw: bytes) -> tuple[tuple[str, str], ...]:
    outer = der.only(raw, der.SEQUENCE, "subject")
    found: list[tuple[str, str]] = []
    for relative in der.elements(raw, outer.start, outer.stop):
        if relative.tag != der.SET or relative.start == relative.stop:
            raise MalformedEvidence("subject: an RDN that is no SET of attributes")
        for pair in der.elements(raw, relative.start, relative.stop):
            if pair.tag != der.SEQUENCE:
                raise MalformedEvidence("subject: an attribute that is no SEQUENCE")
            kind = der.element(raw, pair.start, pair.stop)
            value = der.element(raw, kind.stop, pair.stop)
            if value.stop != pair.stop:
                raise MalformedEvidence("subject: bytes behind an attribute")
            found.append((der.oid(raw, kind), _text(raw, value, der.oid(raw, kind))))
            if len(found) > _MAX_ATTRIBUTES:
                raise MalformedEvidence(f"subject: more than {_MAX_ATTRIBUTES} attributes")
    return tuple(found)


def _text(raw: bytes, value: der.Element, oid: str) -> str:
    """Return a string of a type that every reader reads alike."""
    content = raw[value.start : value.stop]
    try:
        if value.tag == (_IA5_STRING if oid in _IA5_ATTRIBUTES else _PRINTABLE_STRING):
            return content.decode("ascii")
        if value.tag == _UTF8_STRING:
            return content.decode("utf-8")
    except UnicodeDecodeError as e:
        raise MalformedEvidence("subject: a string that is not of its type") from e
    raise MalformedEvidence(f"subject: a value of tag 0x{value.tag:02x}")


def requested_extensions(parts: RequestParts) -> dict[str, bytes]:
    """Return OID -> content of each extension that a request asks for.

    Raises:
        MalformedEvidence: The only way to fail, as of `requested_names`.
    """
    attributes = parts.attributes
    if not attributes:
        return {}
    outer = der.only(attributes, der.SEQUENCE, "request: attributes")
    kind = der.element(attributes, outer.start, outer.stop)
    if der.oid(attributes, kind) != _EXTENSION_REQUEST:
        raise MalformedEvidence("request: an attribute other than extensionRequest")
    values = der.expect(attributes, kind.stop, outer.stop, der.SET, "request: extensionRequest")
    if values.stop != outer.stop:
        raise MalformedEvidence("request: bytes behind the extensionRequest")
    listed = der.only(attributes[values.start : values.stop], der.SEQUENCE, "request: extensions")
    content = attributes[values.start : values.stop]
    found: dict[str, bytes] = {}
    for each in der.elements(content, listed.start, listed.stop):
        if each.tag != der.SEQUENCE:
            raise MalformedEvidence("request: an extension that is no SEQUENCE")
        name = der.element(content, each.start, each.stop)
        value = der.element(content, name.stop, each.stop)
        if value.tag == der.BOOLEAN:
            if content[value.start : value.stop] != b"\xff":
                raise MalformedEvidence("request: an extension whose criticality is not DER")
            value = der.element(content, value.stop, each.stop)
        if value.tag != der.OCTET_STRING or value.stop != each.stop:
            raise MalformedEvidence("request: an extension of another form")
        oid = der.oid(content, name)
        if oid in found:
            raise MalformedEvidence(f"request: extension {oid} twice")
        found[oid] = content[value.start : value.stop]
    return found


def _with_alternatives(names: RequestedNames, raw: bytes) -> RequestedNames:
    outer = der.only(raw, der.SEQUENCE, "subjectAltName")
    dns_names: list[str] = []
    addresses: list[str] = []
    uris: list[str] = []
    emails: list[str] = []
    others: list[str] = []
    for count, each in enumerate(der.elements(raw, outer.start, outer.stop)):
        if count >= _MAX_NAMES:
            raise MalformedEvidence(f"subjectAltName: more than {_MAX_NAMES} names")
        content = raw[each.start : each.stop]
        if each.tag == _DNS:
            dns_names.append(_ascii(content, "a DNS name"))
        elif each.tag == _IP:
            if len(content) not in (4, 16):
                raise MalformedEvidence(f"subjectAltName: an address of {len(content)} bytes")
            addresses.append(str(ipaddress.ip_address(content)))
        elif each.tag == _URI:
            uris.append(_ascii(content, "a URI"))
            others.append("uri")
        elif each.tag == _EMAIL:
            emails.append(_ascii(content, "an address of e-mail"))
            others.append("email")
        else:
            others.append(f"0x{each.tag:02x}")
    return RequestedNames(
        subject=names.subject,
        dns_names=tuple(dns_names),
        ip_addresses=tuple(addresses),
        uris=tuple(uris),
        emails=tuple(emails),
        others=tuple(others),
        extensions=names.extensions,
    )


def _ascii(content: bytes, what: str) -> str:
    if not content.isascii():
        raise MalformedEvidence(f"subjectAltName: {what} that is not ASCII")
    return content.decode("ascii")
