"""Bytes and text at the borders: big-endian readers, strict base64 and hex, canonical JSON, envelopes.

Everything that reads raises `MalformedEvidence` and nothing else. Lengths are checked before slicing.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Mapping
from typing import Any, Final

from attestation.errors import MalformedEvidence

_HEX = re.compile(r"(?:[0-9a-f]{2})*\Z")
_PEM = re.compile(rb"-----BEGIN ([A-Z0-9 ]+)-----([A-Za-z0-9+/=\s]*)-----END \1-----")
_LINE_CHARACTERS: Final = 64


class Reader:
    """Reads big-endian integers and sized fields, front to back.

    Args:
        data: What to read.
        what: Name of the structure, for error messages.
    """

    __slots__ = ("_data", "_end", "_what", "position")

    def __init__(self, data: bytes, what: str) -> None:
        self._data = data
        self._end = len(data)
        self._what = what
        self.position = 0

    @property
    def remaining(self) -> int:
        """Bytes not yet read."""
        return self._end - self.position

    def take(self, size_bytes: int) -> bytes:
        """Return the next *size_bytes* bytes."""
        start = self.position
        stop = start + size_bytes
        if stop > self._end:
            raise MalformedEvidence(
                f"{self._what}: needs {size_bytes} bytes at offset {start}, has {self._end - start}"
            )
        self.position = stop
        return self._data[start:stop]

    def peek(self, size_bytes: int) -> bytes:
        """Return the next *size_bytes* bytes, or as many as there are, without taking them."""
        return self._data[self.position : self.position + size_bytes]

    def since(self, start: int) -> bytes:
        """Return what was taken since the position was *start*."""
        return self._data[start : self.position]

    def u8(self) -> int:
        """Return the next byte."""
        return self.take(1)[0]

    def u16(self) -> int:
        """Return the next two bytes, big-endian."""
        start = self.position
        if start + 2 > self._end:
            self.take(2)
        self.position = start + 2
        return self._data[start] << 8 | self._data[start + 1]

    def u32(self) -> int:
        """Return the next four bytes, big-endian."""
        return int.from_bytes(self.take(4))

    def u64(self) -> int:
        """Return the next eight bytes, big-endian."""
        return int.from_bytes(self.take(8))

    def sized(self, max_bytes: int | None = None) -> bytes:
        """Return a TPM2B: a u16 length, then that many bytes, at most *max_bytes*."""
        size = self.u16()
        if max_bytes is not None and size > max_bytes:
            raise MalformedEvidence(f"{self._what}: field of {size} bytes, at most {max_bytes} allowed")
        return self.take(size)

    def rest(self) -> bytes:
        """Return everything not yet read."""
        return self.take(self.remaining)

    def end(self) -> None:
        """Refuse trailing bytes."""
        if self.position != self._end:
            raise MalformedEvidence(f"{self._what}: {self._end - self.position} trailing bytes")


def u16(value: int) -> bytes:
    """Return *value* as two bytes, big-endian."""
    return value.to_bytes(2)


def u32(value: int) -> bytes:
    """Return *value* as four bytes, big-endian."""
    return value.to_bytes(4)


def u64(value: int) -> bytes:
    """Return *value* as eight bytes, big-endian."""
    return value.to_bytes(8)


def sized(data: bytes) -> bytes:
    """Return *data* as a TPM2B: u16 length, then the bytes."""
    return len(data).to_bytes(2) + data


def b64encode(data: bytes) -> str:
    """Return standard base64 with padding."""
    return base64.b64encode(data).decode("ascii")


def b64decode(text: str, what: str, *, max_bytes: int = 1 << 20) -> bytes:
    """Read standard base64 with padding, strictly: no white space, no other alphabet.

    Args:
        text: The base64 text.
        what: Name of the field, for the error message.
        max_bytes: Longest result allowed.

    Raises:
        MalformedEvidence: Not base64, not canonical, or too long.
    """
    if len(text) > (max_bytes + 2) // 3 * 4:
        raise MalformedEvidence(f"{what}: longer than {max_bytes} bytes")
    try:
        data = binascii.a2b_base64(text, strict_mode=True)
    except (ValueError, UnicodeEncodeError) as e:
        raise MalformedEvidence(f"{what}: not standard base64") from e
    if len(data) > max_bytes:
        raise MalformedEvidence(f"{what}: longer than {max_bytes} bytes")
    if binascii.b2a_base64(data, newline=False).decode("ascii") != text:
        raise MalformedEvidence(f"{what}: base64 is not canonical")
    return data


def b64url_encode(data: bytes) -> str:
    """Return base64url without padding, as JOSE has it (RFC 7515, 2)."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


def b64url_decode(text: str, what: str, *, max_bytes: int = 1 << 20) -> bytes:
    """Read base64url without padding, in its one form.

    Args:
        text: What was written.
        what: Name of the field, for the error message.
        max_bytes: Longest result allowed.

    Raises:
        MalformedEvidence: Not base64url, not canonical, or too long.
    """
    if len(text) > (max_bytes + 2) // 3 * 4:
        raise MalformedEvidence(f"{what}: longer than {max_bytes} bytes")
    try:
        data = base64.urlsafe_b64decode(text.encode("ascii") + b"=" * (-len(text) % 4))
    except ValueError as e:
        raise MalformedEvidence(f"{what}: not base64url") from e
    if len(data) > max_bytes or b64url_encode(data) != text:
        raise MalformedEvidence(f"{what}: not base64url in its one form, or too long")
    return data


def cbor_tags(data: bytes) -> frozenset[int]:
    """Return the tags that stand in CBOR of definite lengths, without making anything of it.

    A reader of CBOR follows tags that let one value stand in many places: then a few hundred bytes are gigabytes once
    they are written again.

    Raises:
        MalformedEvidence: An indefinite length, or a value that ends behind the data.
    """
    found, position = set[int](), 0
    # A head, its argument, and the bytes of a string; what a list or map holds is behind its head, one after another.
    while position < len(data):
        major, info = data[position] >> 5, data[position] & 31
        size = {24: 1, 25: 2, 26: 4, 27: 8}.get(info, 0)
        value = int.from_bytes(data[position + 1 : position + 1 + size]) if size else info
        position += 1 + size + (value if major in (2, 3) else 0)
        if major == 6:
            found.add(value)
        if info > 27 or position > len(data):
            raise MalformedEvidence("CBOR: an indefinite length, or a value that ends behind the data")
    return frozenset(found)


def named_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of JSON, for `object_pairs_hook`; of a member named twice, which counts depends on the reader.

    Raises:
        ValueError: A member is named twice.
    """
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("a member is named twice")
    return members


def tlv(tag: int, content: bytes) -> bytes:
    """Return *content* behind *tag* and its shortest length, DER (X.690 §10.1)."""
    size = len(content)
    if size < 0x80:
        return bytes((tag, size)) + content
    length = size.to_bytes((size.bit_length() + 7) // 8)
    return bytes((tag, 0x80 | len(length))) + length + content


def pem(label: str, data: bytes) -> str:
    """Return *data* as one PEM block (RFC 7468), with a newline at the end."""
    text = b64encode(data)
    lines = [text[i : i + _LINE_CHARACTERS] for i in range(0, len(text), _LINE_CHARACTERS)]
    return "\n".join([f"-----BEGIN {label}-----", *lines, f"-----END {label}-----", ""])


def pem_blocks(data: bytes, what: str) -> list[tuple[str, bytes]]:
    """Return label and content of every PEM block in *data*, in their order; text between them is for people.

    Raises:
        MalformedEvidence: A block cannot be read. Passed over, it would silently not be there.
    """
    found = [(label.decode("ascii"), _pem_content(text, what)) for label, text in _PEM.findall(data)]
    if len(found) != data.count(b"-----BEGIN "):
        raise MalformedEvidence(f"{what}: PEM with a block that cannot be read")
    return found


def pem_block(data: bytes, what: str, *labels: str) -> bytes:
    """Return the content of the one PEM block that *data* is; of white space there may be any (RFC 7468 §3, lax).

    Args:
        data: One block with one of *labels*, no headers in it and no text around it.
        what: Name of the field, for the error message.
        labels: Those allowed, like `CERTIFICATE`.

    Raises:
        MalformedEvidence: The only way to fail.
    """
    block = _PEM.fullmatch(data.strip())
    if block is None or block[1].decode("ascii") not in labels:
        raise MalformedEvidence(f"{what}: not one PEM block {labels[0]} alone")
    return _pem_content(block[2], what)


def der_of(data: bytes, what: str, *labels: str) -> bytes:
    """Return *data* where it begins as DER, else what `pem_block` reads in it."""
    if data[:1] == b"\x30":
        return data
    if not data.lstrip().startswith(b"-----"):
        raise MalformedEvidence(f"{what}: neither DER nor PEM")
    return pem_block(data, what, *labels)


def _pem_content(text: bytes, what: str) -> bytes:
    return b64decode(b"".join(text.split()).decode("ascii"), f"{what}: PEM", max_bytes=len(text))


def hexdecode(text: str, what: str, *, size_bytes: int | None = None) -> bytes:
    """Read lower-case hex, strictly.

    Args:
        text: The hex text.
        what: Name of the field, for the error message.
        size_bytes: Exact length demanded, in bytes.

    Raises:
        MalformedEvidence: Not lower-case hex, or of another length.
    """
    if not _HEX.match(text):
        raise MalformedEvidence(f"{what}: not lower-case hex")
    if size_bytes is not None and len(text) != 2 * size_bytes:
        raise MalformedEvidence(f"{what}: {len(text) // 2} bytes, expected {size_bytes}")
    return bytes.fromhex(text)


def canonical_json(members: Mapping[str, object]) -> bytes:
    """Return the canonical bytes of a JSON object: sorted keys, no white space, ASCII escapes, UTF-8.

    The form of the audit chain (spec DELIVERY-AND-OPERATORS §19.1): strings, integers, null and objects or
    lists of these; floats have no canonical text and do not belong here.
    """
    return _CANONICAL.encode(members).encode("ascii")


_CANONICAL: Final = json.JSONEncoder(
    sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
)


MAX_INTEGER: Final = 2**53 - 1
"""Greatest integer that every reader of JSON reads alike (RFC 7493 §2.2)."""


def jcs(value: object) -> bytes:
    """Return the canonical bytes of a JSON value as others compute them too (RFC 8785).

    UTF-8, members in the order of their UTF-16, no escapes but those that JSON demands.

    Raises:
        ValueError: It has a number that is not whole or beyond 53 bits, a text that is none, another type, or is
            deeper than can be written.
    """
    try:
        return _JCS.encode(_ordered(value)).encode("utf-8")
    except RecursionError as e:
        raise ValueError("JSON too deep") from e


def _ordered(value: object) -> object:
    match value:
        case None | bool() | str():
            return value
        case int():
            if abs(value) > MAX_INTEGER:
                raise ValueError("an integer of JSON is beyond 53 bits")
            return value
        case Mapping():
            if not all(isinstance(name, str) for name in value):
                raise ValueError("a member of JSON is not named by a text")
            return {name: _ordered(value[name]) for name in sorted(value, key=_utf16)}
        case list() | tuple():
            return [_ordered(each) for each in value]
    raise ValueError(f"{type(value).__name__} has no canonical form here")


def _utf16(name: str) -> bytes:
    return name.encode("utf-16-be", "surrogatepass")


_JCS: Final = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def pae(payload_type: str, payload: bytes) -> bytes:
    """Return what is signed for *payload* in an envelope: the pre-authentication encoding of DSSE v1."""
    kind = payload_type.encode()
    return b" ".join((b"DSSEv1", b"%d" % len(kind), kind, b"%d" % len(payload), payload))
