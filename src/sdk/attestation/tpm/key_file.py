"""Keys of a TPM in files: TSS2 PRIVATE KEY, as OpenSSL's provider tpm2 and tpm2-tools read and write it.

The private part is encrypted by the TPM for its storage key: a file is of use to the TPM that made it, and to no
other. Layout: ASN.1 Specification for TPM 2.0 Key Files (draft-bottomley-tpm2-keys), DER, in PEM (RFC 7468):

    TPMKey ::= SEQUENCE {
        type        OBJECT IDENTIFIER,                  2.23.133.10.1.3, a key for TPM2_Load
        emptyAuth   [0] EXPLICIT BOOLEAN OPTIONAL,
        parent      INTEGER,                            a hierarchy, or the handle of a persistent key
        pubkey      OCTET STRING,                       TPM2B_PUBLIC
        privkey     OCTET STRING }                      TPM2B_PRIVATE

Policies, importable keys and sealed data (members [1] to [5], other types) are not read.
"""

# Algorithms for: tpm-storage, tpm-parent
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from attestation.errors import MalformedEvidence
from attestation.tpm.constants import Alg, Attr, Curve, Hierarchy
from attestation.tpm.public import Public, Symmetric, parse_public
from attestation.wire import Reader, der_of, pem, tlv

MAX_KEY_FILE_BYTES: Final = 8192
"""Longest file read; a key of RSA 4096 needs less than 3 KiB."""
_MAX_PRIVATE_BYTES: Final = 2048

LOADABLE_KEY: Final = bytes.fromhex("06066781050a0103")
"""2.23.133.10.1.3, DER with its header."""

_BOOLEAN: Final = 0x01
_INTEGER: Final = 0x02
_OCTET_STRING: Final = 0x04
_SEQUENCE: Final = 0x30
_EMPTY_AUTH: Final = 0xA0

_LABEL: Final = "TSS2 PRIVATE KEY"
_PERSISTENT: Final = range(0x81000000, 0x82000000)
_HIERARCHIES: Final = frozenset(Hierarchy)

STORAGE_ATTRIBUTES: Final = int(
    Attr.FIXED_TPM
    | Attr.FIXED_PARENT
    | Attr.SENSITIVE_DATA_ORIGIN
    | Attr.USER_WITH_AUTH
    | Attr.NO_DA
    | Attr.RESTRICTED
    | Attr.DECRYPT
)
STORAGE_TEMPLATE: Final = Public(
    type=Alg.ECC,
    name_alg=Alg.SHA256,
    attributes=STORAGE_ATTRIBUTES,
    auth_policy=b"",
    symmetric=Symmetric(alg=Alg.AES, key_bits=128, mode=Alg.CFB),
    scheme=None,
    curve=Curve.NIST_P256,
    tpmt=b"",
).serialise()
"""TPMT_PUBLIC of the primary key that a file with a hierarchy for parent means (draft-bottomley-tpm2-keys 3.1.8).

Everybody derives it from the hierarchy's seed when a key is loaded; nothing is kept. Attributes 00030472: P-256,
SHA-256, AES-128-CFB, noDA, empty unique. Another template would make another key, and no file could be loaded.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TPMKey:
    """A key that is not loaded.

    Args:
        public: TPM2B_PUBLIC, with its size.
        private: TPM2B_PRIVATE, with its size: encrypted by the TPM, of use to no other.
        parent: The hierarchy whose storage key (`STORAGE_TEMPLATE`) wraps it, or the handle of a persistent one.
        empty_auth: Its authValue is empty.
    """

    public: bytes
    private: bytes = field(repr=False)
    parent: int = Hierarchy.OWNER
    empty_auth: bool = True


def encode_key_file(key: TPMKey) -> bytes:
    """Return *key* as PEM, with a newline at the end."""
    return pem(_LABEL, encode_key(key)).encode("ascii")


def encode_key(key: TPMKey) -> bytes:
    """Return *key* as DER."""
    parent = _shortest(key.parent)
    return tlv(
        _SEQUENCE,
        LOADABLE_KEY
        + tlv(_EMPTY_AUTH, tlv(_BOOLEAN, b"\xff" if key.empty_auth else b"\0"))
        + tlv(_INTEGER, parent)
        + tlv(_OCTET_STRING, key.public)
        + tlv(_OCTET_STRING, key.private),
    )


def parse_key_file(data: bytes) -> TPMKey:
    """Parse one PEM block, or DER, with nothing around it. At most 8 KiB.

    Raises:
        MalformedEvidence: The only way to fail.
    """
    if len(data) > MAX_KEY_FILE_BYTES:
        raise MalformedEvidence(
            f"TSS2 PRIVATE KEY of {len(data)} bytes, at most {MAX_KEY_FILE_BYTES} allowed"
        )
    return parse_key(der_of(data, "key file", _LABEL))


def parse_key(data: bytes) -> TPMKey:
    """Parse the DER of a TPMKey; `encode_key` gives these bytes again, but for what is said below.

    emptyAuth may be absent, which is FALSE, and TRUE may be 01: tpm2-openssl writes it so, against DER.

    Raises:
        MalformedEvidence: The only way to fail.
    """
    outer = Reader(data, "TSS2 PRIVATE KEY")
    reader = Reader(_take(outer, _SEQUENCE), "TPMKey")
    outer.end()
    if reader.take(len(LOADABLE_KEY)) != LOADABLE_KEY:
        raise MalformedEvidence("TPMKey: the type is not that of a loadable key, 2.23.133.10.1.3")
    empty_auth = b"\0"
    if reader.peek(1) == bytes([_EMPTY_AUTH]):
        inner = Reader(_take(reader, _EMPTY_AUTH), "emptyAuth")
        empty_auth = _take(inner, _BOOLEAN)
        inner.end()
        if empty_auth not in (b"\0", b"\1", b"\xff"):
            raise MalformedEvidence("emptyAuth is no BOOLEAN")
    parent = _parent(_take(reader, _INTEGER))
    public = _take(reader, _OCTET_STRING)
    parse_public(public)
    private = _take(reader, _OCTET_STRING)
    reader.end()
    content = Reader(private, "TPM2B_PRIVATE")
    if not content.sized(_MAX_PRIVATE_BYTES):
        raise MalformedEvidence("TPM2B_PRIVATE is empty")
    content.end()
    return TPMKey(public=public, private=private, parent=parent, empty_auth=empty_auth != b"\0")


def _parent(content: bytes) -> int:
    """Read the handle of a parent: positive, in the fewest bytes."""
    parent = int.from_bytes(content)
    if content != _shortest(parent):
        raise MalformedEvidence("parent is no handle")
    if parent not in _HIERARCHIES and parent not in _PERSISTENT:
        raise MalformedEvidence("parent is neither a hierarchy nor a persistent key")
    return parent


def _shortest(value: int) -> bytes:
    """Return the content of the INTEGER *value*, which is positive."""
    return value.to_bytes(value.bit_length() // 8 + 1)


def _take(reader: Reader, tag: int) -> bytes:
    """Return the content of the next value, which must have *tag*; definite and shortest lengths only."""
    found, size = reader.u8(), reader.u8()
    if found != tag:
        raise MalformedEvidence(f"TPMKey: tag 0x{found:02x}, 0x{tag:02x} expected")
    if size >= 0x80:
        count = size & 0x7F
        size = int.from_bytes(reader.take(count))
        if size < 0x80 or size >> 8 * (count - 1) == 0:
            raise MalformedEvidence("TPMKey: a length that is not definite, or longer than needed")
    return reader.take(size)
