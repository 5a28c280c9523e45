"""Reading DER (X.690), as far as certificates and revocation lists need it.

Positions instead of copies: whoever reads knows where each value stood, so that signatures are verified over
the bytes received. Definite, shortest lengths and one-byte tags only; everything else raises
`MalformedEvidence`. Nothing here recurses, so no nesting is too deep.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final, NamedTuple

from attestation.errors import MalformedEvidence
from attestation.wire import tlv

BOOLEAN: Final = 0x01
INTEGER: Final = 0x02
BIT_STRING: Final = 0x03
OCTET_STRING: Final = 0x04
NULL: Final = 0x05
OID: Final = 0x06
ENUMERATED: Final = 0x0A
UTC_TIME: Final = 0x17
GENERALIZED_TIME: Final = 0x18
SEQUENCE: Final = 0x30
SET: Final = 0x31

_MAX_OID_BYTES: Final = 64


class Element(NamedTuple):
    """One value of DER inside *data*: `data[at:stop]` with its header, `data[start:stop]` without.

    Args:
        tag: The identifier octet.
        at: Where its header begins.
        start: Where its content begins.
        stop: One behind its last byte.
    """

    tag: int
    at: int
    start: int
    stop: int


def element(data: bytes, at: int, end: int) -> Element:
    """Return the value at *at*; it must end at or before *end*.

    Raises:
        MalformedEvidence: Cut, of indefinite or needlessly long length, or with a tag of several bytes.
    """
    start = at + 2
    if start > end:
        raise MalformedEvidence("DER: a value is cut")
    tag, size = data[at], data[at + 1]
    if tag & 0x1F == 0x1F:
        raise MalformedEvidence("DER: a tag of several bytes")
    if size >= 0x80:
        count = size & 0x7F
        if not 1 <= count <= 4 or start + count > end:
            raise MalformedEvidence("DER: a length that is not definite, or too long")
        size = int.from_bytes(data[start : start + count])
        if size < 0x80 or size >> 8 * (count - 1) == 0:
            raise MalformedEvidence("DER: a length that is longer than needed")
        start += count
    stop = start + size
    if stop > end:
        raise MalformedEvidence(f"DER: says {stop - at} bytes, has {end - at}")
    return Element(tag, at, start, stop)


def expect(data: bytes, at: int, end: int, tag: int, what: str) -> Element:
    """Return the value at *at*, which must have *tag*.

    Raises:
        MalformedEvidence: As `element`, or another tag.
    """
    found = element(data, at, end)
    if found.tag != tag:
        raise MalformedEvidence(f"{what}: tag 0x{found.tag:02x}, 0x{tag:02x} expected")
    return found


def only(data: bytes, tag: int, what: str) -> Element:
    """Return the one value that *data* consists of, which must have *tag*.

    Raises:
        MalformedEvidence: As `expect`, or bytes behind it.
    """
    found = expect(data, 0, len(data), tag, what)
    if found.stop != len(data):
        raise MalformedEvidence(f"{what}: {len(data) - found.stop} trailing bytes")
    return found


def elements(data: bytes, start: int, stop: int) -> Iterator[Element]:
    """Yield the values that fill *data* from *start* to *stop* exactly."""
    while start < stop:
        found = element(data, start, stop)
        yield found
        start = found.stop


def integer(data: bytes, found: Element) -> int:
    """Return a two's complement INTEGER; leading bytes more than needed are let through, none at all is not."""
    if found.start == found.stop:
        raise MalformedEvidence("DER: an INTEGER of no bytes")
    return int.from_bytes(data[found.start : found.stop], signed=True)


def small_integer(data: bytes, found: Element) -> int:
    """Return an INTEGER or ENUMERATED from 0 to 2^31-1, as versions, path lengths and salt lengths are.

    Raises:
        MalformedEvidence: Negative, or greater.
    """
    if found.stop - found.start > 8 or not 0 <= (value := integer(data, found)) < 1 << 31:
        raise MalformedEvidence("DER: not a small INTEGER")
    return value


def bits(data: bytes, found: Element) -> tuple[int, bytes]:
    """Return how many of the last bits of a BIT STRING are unused, and its bytes.

    Raises:
        MalformedEvidence: No first byte, or one that no BIT STRING has.
    """
    if found.start == found.stop or data[found.start] > 7:
        raise MalformedEvidence("DER: a BIT STRING without its first byte")
    return data[found.start], data[found.start + 1 : found.stop]


def whole_bytes(data: bytes, found: Element) -> bytes:
    """Return the bytes of a BIT STRING that has no unused bits, as keys and signatures are."""
    unused, content = bits(data, found)
    if unused:
        raise MalformedEvidence("DER: a key or signature of a broken number of bytes")
    return content


def named_bits(data: bytes, found: Element, names: tuple[str, ...]) -> frozenset[str]:
    """Return the *names* of the bits that are set in a BIT STRING, the first bit first."""
    _, content = bits(data, found)
    return frozenset(
        name for i, name in enumerate(names) if i < 8 * len(content) and content[i >> 3] & 0x80 >> (i & 7)
    )


@lru_cache(maxsize=1024)
def dotted(content: bytes) -> str:
    """Return an OBJECT IDENTIFIER's content in dots: each arc base 128, big-endian (X.690, 8.19).

    Raises:
        MalformedEvidence: Empty, cut, longer than 64 bytes, or an arc with leading zeros.
    """
    if not content or len(content) > _MAX_OID_BYTES or content[-1] & 0x80:
        raise MalformedEvidence("DER: not an OBJECT IDENTIFIER")
    arcs: list[int] = []
    value, begins = 0, True
    for byte in content:
        if begins and byte == 0x80:
            raise MalformedEvidence("DER: an OBJECT IDENTIFIER with leading zeros")
        value = value << 7 | byte & 0x7F
        begins = not byte & 0x80
        if begins:
            arcs.append(value)
            value = 0
    first = min(arcs[0] // 40, 2)
    return ".".join(map(str, (first, arcs[0] - 40 * first, *arcs[1:])))


def oid(data: bytes, found: Element) -> str:
    """Return the OBJECT IDENTIFIER *found*, in dots."""
    if found.tag != OID:
        raise MalformedEvidence(f"DER: tag 0x{found.tag:02x}, an OBJECT IDENTIFIER expected")
    return dotted(data[found.start : found.stop])


def instant(data: bytes, found: Element) -> datetime:
    """Return a UTCTime or GeneralizedTime in UTC, `Z` at its end (RFC 5280, 4.1.2.5); seconds may be absent.

    Raises:
        MalformedEvidence: Another type, another form, or no such day.
    """
    text = data[found.start : found.stop]
    if found.tag == UTC_TIME:
        # Two digits of the year: 50 to 99 are of the last century.
        text = (b"19" if text[:1] >= b"5" else b"20") + text
    elif found.tag != GENERALIZED_TIME:
        raise MalformedEvidence(f"DER: tag 0x{found.tag:02x} where a time should be")
    digits = text[:-1]
    if text[-1:] != b"Z" or len(digits) not in (12, 14) or not digits.isdigit():
        raise MalformedEvidence("DER: not a time in UTC")
    n = digits.decode("ascii")
    try:
        return datetime(
            int(n[:4]), int(n[4:6]), int(n[6:8]), int(n[8:10]), int(n[10:12]), int(n[12:] or 0), tzinfo=UTC
        )
    except ValueError as e:
        raise MalformedEvidence("DER: no such day or time") from e


write: Final = tlv


def write_unsigned(value: int) -> bytes:
    """Return a non-negative INTEGER."""
    return write(INTEGER, value.to_bytes(value.bit_length() // 8 + 1))


@lru_cache(maxsize=1024)
def write_oid(dots: str) -> bytes:
    """Return an OBJECT IDENTIFIER, given in dots: each arc base 128, big-endian (X.690, 8.19)."""
    first, second, *rest = map(int, dots.split("."))
    content = bytearray()
    for arc in (40 * first + second, *rest):
        digits = [arc & 0x7F]
        while arc := arc >> 7:
            digits.append(0x80 | arc & 0x7F)
        content += bytes(reversed(digits))
    return write(OID, bytes(content))
