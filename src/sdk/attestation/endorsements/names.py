"""Distinguished names: compared as RFC 5280, 7.1 says, and put in words for people.

A byte comparison finds no path where a maker writes PrintableString here and UTF8String there. Names only
find candidates; whether a candidate signed is decided by its key, so a name taken for equal costs a
signature check and proves nothing.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from attestation.endorsements import der
from attestation.errors import MalformedEvidence

LONGEST_BY_THE_BOOK: Final = 64
"""Upper bound of most attributes in characters (RFC 5280, A.1); longer ones are met, and accepted."""

_CACHED_BYTES: Final = 1024

_ENCODINGS: Final = {
    0x0C: "utf-8",  # UTF8String
    0x12: "latin-1",  # NumericString
    0x13: "latin-1",  # PrintableString
    0x14: "latin-1",  # TeletexString, as everybody reads it
    0x16: "latin-1",  # IA5String
    0x1A: "latin-1",  # VisibleString
    0x1C: "utf-32-be",  # UniversalString
    0x1E: "utf-16-be",  # BMPString
}
_WORDS: Final = {
    "2.5.4.3": "Common Name",
    "2.5.4.4": "Surname",
    "2.5.4.5": "Serial Number",
    "2.5.4.6": "Country",
    "2.5.4.7": "Locality",
    "2.5.4.8": "State/Province",
    "2.5.4.9": "Street Address",
    "2.5.4.10": "Organization",
    "2.5.4.11": "Organizational Unit",
    "2.5.4.12": "Title",
    "2.5.4.15": "Business Category",
    "2.5.4.17": "Postal Code",
    "2.5.4.41": "Name",
    "2.5.4.42": "Given Name",
    "2.5.4.46": "DN Qualifier",
    "2.5.4.97": "Organization Identifier",
    "2.23.133.2.1": "TPM Manufacturer",
    "2.23.133.2.2": "TPM Model",
    "2.23.133.2.3": "TPM Version",
    "2.23.133.2.4": "Platform Manufacturer",
    "2.23.133.2.5": "Platform Model",
    "2.23.133.2.6": "Platform Version",
    "1.2.840.113549.1.9.1": "Email Address",
    "0.9.2342.19200300.100.1.1": "User ID",
    "0.9.2342.19200300.100.1.25": "Domain Component",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Attribute:
    """One attribute of a name.

    Args:
        oid: Its type, in dots.
        text: Its value as text; of a value that is no string, `#` and the hex of its DER.
        compared: What two values must agree in to be equal.
    """

    oid: str
    text: str
    compared: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Name:
    """A distinguished name.

    Args:
        relative: Its RDNs in order, each with its attributes in the order written.
        key: Equal for two names exactly where RFC 5280, 7.1 calls them equal.
        text: In words, for operators; not for comparing.
        anomalies: What is not as RFC 5280 demands.
    """

    relative: tuple[tuple[Attribute, ...], ...]
    key: bytes
    text: str
    anomalies: tuple[str, ...]

    @property
    def attributes(self) -> tuple[Attribute, ...]:
        """Every attribute, whether the name has one RDN or several."""
        return tuple(attribute for relative in self.relative for attribute in relative)


def parse_name(raw: bytes) -> Name:
    """Read the DER of a Name, header included.

    Raises:
        MalformedEvidence: The only way to fail.
    """
    # Makers' names come again with every machine; long ones would only fill the memory.
    return _parse_cached(raw) if len(raw) <= _CACHED_BYTES else _parse(raw)


def _parse(raw: bytes) -> Name:
    outer = der.only(raw, der.SEQUENCE, "name")
    relatives: list[tuple[Attribute, ...]] = []
    key = bytearray()
    anomalies: list[str] = []
    for part in der.elements(raw, outer.start, outer.stop):
        if part.tag != der.SET:
            raise MalformedEvidence(f"name: tag 0x{part.tag:02x}, a SET expected")
        written: list[bytes] = []
        attributes: list[Attribute] = []
        for pair in der.elements(raw, part.start, part.stop):
            written.append(raw[pair.at : pair.stop])
            attributes.append(_attribute(raw, pair))
        if not attributes:
            raise MalformedEvidence("name: an RDN without attributes")
        if len(written) > 1 and written != sorted(written):
            anomalies.append("an RDN is not sorted as DER demands")
        if any(len(a.text) > LONGEST_BY_THE_BOOK for a in attributes):
            anomalies.append(f"an attribute is longer than {LONGEST_BY_THE_BOOK} characters")
        relatives.append(tuple(attributes))
        # An RDN is a set, so the order inside does not count; the order of the RDNs does.
        key += len(attributes).to_bytes(2)
        for one in sorted(_sized(a.oid.encode()) + _sized(a.compared) for a in attributes):
            key += one
    relative = tuple(relatives)
    return Name(relative=relative, key=bytes(key), text=_in_words(relative), anomalies=tuple(anomalies))


_parse_cached = lru_cache(maxsize=512)(_parse)


def _attribute(raw: bytes, pair: der.Element) -> Attribute:
    if pair.tag != der.SEQUENCE:
        raise MalformedEvidence(f"name: tag 0x{pair.tag:02x}, a SEQUENCE expected")
    kind = der.element(raw, pair.start, pair.stop)
    value = der.element(raw, kind.stop, pair.stop)
    if value.stop != pair.stop:
        raise MalformedEvidence("name: trailing bytes in an attribute")
    text = string(raw, value)
    if text is None:
        # Not a string, or not one of its own type: equal only to the same bytes.
        binary = raw[value.at : value.stop]
        return Attribute(oid=der.oid(raw, kind), text="#" + binary.hex(), compared=b"#" + binary)
    return Attribute(oid=der.oid(raw, kind), text=text, compared=b"=" + normalised(text).encode())


def string(raw: bytes, value: der.Element) -> str | None:
    """Return the text of a string of any type; None where it is none, or its bytes are not of its type."""
    encoding = _ENCODINGS.get(value.tag)
    if encoding is None:
        return None
    try:
        return raw[value.start : value.stop].decode(encoding)
    except UnicodeDecodeError:
        return None


def normalised(text: str) -> str:
    """Prepare *text* for comparison (RFC 4518, 2; RFC 5280, 7.1): letter case, width and white space do not count.

    Characters that RFC 4518 prohibits are not refused: a name is compared here, never believed.
    """
    if not text.isascii():
        folded = unicodedata.normalize("NFKC", text).casefold()
        text = unicodedata.normalize("NFKC", folded)
    else:
        text = text.lower()
    if not text.isprintable():
        # Map: other white space to a space, controls and formatting characters to nothing.
        text = "".join(c if c.isprintable() else " " if c.isspace() else "" for c in text)
    return " ".join(text.split())


def _sized(value: bytes) -> bytes:
    return len(value).to_bytes(4) + value


def _in_words(relative: tuple[tuple[Attribute, ...], ...]) -> str:
    """Return the most particular attribute first, wherever the country stands; one kind in one place."""
    values: dict[str, list[str]] = {}
    last = ""
    for attributes in relative:
        for attribute in attributes:
            last = attribute.oid
            values.setdefault(_WORDS.get(last, last), []).insert(0, attribute.text)
    words = [f"{kind}: {', '.join(several)}" for kind, several in values.items()]
    if _WORDS.get(last) != "Country":
        words.reverse()
    return ("; " if any("," in word for word in words) else ", ").join(words)
