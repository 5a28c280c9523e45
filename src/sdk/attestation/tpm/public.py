"""Public areas of keys: TPM2B_PUBLIC and TPMT_PUBLIC (TPM 2.0 Part 2, 12.2), their Names and their SPKI."""

# Algorithms for: tpm-ek, tpm-ak, tpm-hash, tpm-storage
from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Final

from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from attestation.errors import MalformedEvidence
from attestation.tpm.constants import MAX_PUBLIC_BYTES, Alg, Attr, Curve
from attestation.tpm.hashes import digest_size, hash_new
from attestation.wire import Reader, sized, u16, u32

PublicKey = rsa.RSAPublicKey | ec.EllipticCurvePublicKey

_KEY_BITS: Final = frozenset({1024, 2048, 3072, 4096})
_SYMMETRIC_BITS: Final = frozenset({128, 192, 256})
_CURVES: Final[dict[int, type[ec.EllipticCurve]]] = {
    Curve.NIST_P256: ec.SECP256R1,
    Curve.NIST_P384: ec.SECP384R1,
    Curve.NIST_P521: ec.SECP521R1,
}
_FIELD_BYTES: Final[dict[int, int]] = {
    Curve.NIST_P192: 24,
    Curve.NIST_P224: 28,
    Curve.NIST_P256: 32,
    Curve.NIST_P384: 48,
    Curve.NIST_P521: 66,
    Curve.BN_P256: 32,
    Curve.BN_P638: 80,
    Curve.SM2_P256: 32,
}
_SCHEMES_WITH_HASH: Final[dict[int, frozenset[int]]] = {
    Alg.RSA: frozenset({Alg.RSASSA, Alg.RSAPSS, Alg.OAEP}),
    Alg.ECC: frozenset({Alg.ECDSA, Alg.ECDAA, Alg.SM2, Alg.ECSCHNORR, Alg.ECDH, Alg.ECMQV}),
    Alg.KEYEDHASH: frozenset({Alg.HMAC}),
}
_KDFS: Final = frozenset({Alg.KDF1_SP800_56A, Alg.KDF2, Alg.KDF1_SP800_108})


@dataclass(frozen=True, slots=True, kw_only=True)
class Symmetric:
    """TPMT_SYM_DEF_OBJECT other than NULL: a block cipher, its key size in bits, its mode."""

    alg: int
    key_bits: int
    mode: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheme:
    """A signing, encryption or key derivation scheme other than NULL.

    Args:
        alg: TPM_ALG_ID of the scheme.
        hash_alg: Its hash; None for RSAES, which has none.
        count: Only for ECDAA, u16.
    """

    alg: int
    hash_alg: int | None
    count: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Public:
    """A parsed public area. Nothing about it may be believed until it was checked against a rule.

    Which fields mean something depends on `type`: RSA uses `key_bits`, `exponent` (0 = 65537), `modulus`;
    ECC uses `curve`, `kdf`, `x`, `y`; KEYEDHASH uses `unique`. `tpmt` is the TPMT_PUBLIC exactly as received:
    the Name is computed over it, never over a re-encoding.
    """

    type: int
    name_alg: int
    attributes: int
    auth_policy: bytes
    symmetric: Symmetric | None
    scheme: Scheme | None
    tpmt: bytes
    key_bits: int = 0
    exponent: int = 0
    modulus: bytes = b""
    curve: int = 0
    kdf: Scheme | None = None
    x: bytes = b""
    y: bytes = b""
    unique: bytes = b""

    @property
    def name(self) -> bytes:
        """The Name: nameAlg u16 ‖ H_nameAlg(TPMT_PUBLIC) (Part 1, 16).

        Raises:
            MalformedEvidence: nameAlg is a hash that we do not compute.
        """
        return u16(self.name_alg) + hash_new(self.name_alg, self.tpmt).digest()

    def tpm2b(self) -> bytes:
        """Return the TPM2B_PUBLIC: u16 length ‖ TPMT_PUBLIC."""
        return sized(self.tpmt)

    def serialise(self) -> bytes:
        """Return the TPMT_PUBLIC written from the fields; equal to `tpmt` for whatever was parsed."""
        parts = [u16(self.type), u16(self.name_alg), u32(self.attributes), sized(self.auth_policy)]
        if self.type == Alg.KEYEDHASH:
            return b"".join([*parts, write_scheme(self.scheme), sized(self.unique)])
        parts += [_write_symmetric(self.symmetric), write_scheme(self.scheme)]
        if self.type == Alg.RSA:
            parts += [u16(self.key_bits), u32(self.exponent), sized(self.modulus)]
        else:
            parts += [u16(self.curve), write_scheme(self.kdf), sized(self.x), sized(self.y)]
        return b"".join(parts)

    def key(self) -> PublicKey:
        """Return the key for use with `cryptography`; an ECC point is checked to be on its curve.

        Raises:
            MalformedEvidence: No such key exists, or its kind or curve is not one that we use.
        """
        try:
            if self.type == Alg.RSA:
                return rsa.RSAPublicNumbers(self.exponent or 65537, int.from_bytes(self.modulus)).public_key()
            if self.type == Alg.ECC and self.curve in _CURVES:
                size = _FIELD_BYTES[self.curve]
                point = b"\x04" + self.x.rjust(size, b"\0") + self.y.rjust(size, b"\0")
                return ec.EllipticCurvePublicKey.from_encoded_point(_CURVES[self.curve](), point)
        except ValueError as e:
            raise MalformedEvidence("public area holds no valid key") from e
        raise MalformedEvidence(f"key type 0x{self.type:04x} with curve 0x{self.curve:04x} is not supported")

    def spki_der(self) -> bytes:
        """Return the canonical SubjectPublicKeyInfo DER (TPM.md §1.4); compare keys by this, never by bytes.

        RSA is rsaEncryption with NULL parameters; ECC is id-ecPublicKey, named curve, uncompressed point.

        Raises:
            MalformedEvidence: As `key`.
        """
        return self.key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)

    def fingerprint(self) -> str:
        """Return SHA-384 of `spki_der()`, 96 lower-case hex: the `ek_fingerprint` where this is an EK."""
        return hashlib.sha384(self.spki_der()).hexdigest()


def parse_public(data: bytes) -> Public:
    """Parse a TPM2B_PUBLIC: u16 length, TPMT_PUBLIC, nothing behind it. At most 2 KiB.

    Raises:
        MalformedEvidence: The only way to fail.
    """
    if len(data) > MAX_PUBLIC_BYTES:
        raise MalformedEvidence(f"TPM2B_PUBLIC of {len(data)} bytes, at most {MAX_PUBLIC_BYTES} allowed")
    reader = Reader(data, "TPM2B_PUBLIC")
    tpmt = reader.sized()
    reader.end()
    return parse_tpmt_public(tpmt)


def parse_tpmt_public(data: bytes) -> Public:
    """Parse a TPMT_PUBLIC (Part 2, 12.2.4). At most 2 KiB.

    Raises:
        MalformedEvidence: The only way to fail.
    """
    if len(data) > MAX_PUBLIC_BYTES:
        raise MalformedEvidence(f"TPMT_PUBLIC of {len(data)} bytes, at most {MAX_PUBLIC_BYTES} allowed")
    reader = Reader(data, "TPMT_PUBLIC")
    kind = reader.u16()
    name_alg = reader.u16()
    policy_size = digest_size(name_alg)
    attributes = reader.u32()
    auth_policy = reader.sized(policy_size)
    if auth_policy and len(auth_policy) != policy_size:
        raise MalformedEvidence(f"authPolicy of {len(auth_policy)} bytes under a nameAlg of {policy_size}")
    if kind == Alg.RSA:
        public = _parse_rsa(reader, data, name_alg, attributes, auth_policy)
    elif kind == Alg.ECC:
        public = _parse_ecc(reader, data, name_alg, attributes, auth_policy)
    elif kind == Alg.KEYEDHASH:
        public = Public(
            type=Alg.KEYEDHASH,
            name_alg=name_alg,
            attributes=attributes,
            auth_policy=auth_policy,
            symmetric=None,
            scheme=_read_scheme(reader, Alg.KEYEDHASH),
            unique=reader.sized(64),
            tpmt=data,
        )
    else:
        raise MalformedEvidence(f"object type 0x{kind:04x} is not RSA, ECC or KEYEDHASH")
    reader.end()
    return public


def _parse_rsa(reader: Reader, data: bytes, name_alg: int, attributes: int, auth_policy: bytes) -> Public:
    symmetric = _read_symmetric(reader)
    scheme = _read_scheme(reader, Alg.RSA)
    key_bits = reader.u16()
    if key_bits not in _KEY_BITS:
        raise MalformedEvidence(f"RSA key of {key_bits} bits")
    return Public(
        type=Alg.RSA,
        name_alg=name_alg,
        attributes=attributes,
        auth_policy=auth_policy,
        symmetric=symmetric,
        scheme=scheme,
        key_bits=key_bits,
        exponent=reader.u32(),
        modulus=reader.sized(key_bits // 8),
        tpmt=data,
    )


def _parse_ecc(reader: Reader, data: bytes, name_alg: int, attributes: int, auth_policy: bytes) -> Public:
    symmetric = _read_symmetric(reader)
    scheme = _read_scheme(reader, Alg.ECC)
    curve = reader.u16()
    field_bytes = _FIELD_BYTES.get(curve)
    if field_bytes is None:
        raise MalformedEvidence(f"unknown curve 0x{curve:04x}")
    return Public(
        type=Alg.ECC,
        name_alg=name_alg,
        attributes=attributes,
        auth_policy=auth_policy,
        symmetric=symmetric,
        scheme=scheme,
        curve=curve,
        kdf=_read_kdf(reader),
        x=reader.sized(field_bytes),
        y=reader.sized(field_bytes),
        tpmt=data,
    )


def _read_symmetric(reader: Reader) -> Symmetric | None:
    alg = reader.u16()
    if alg == Alg.NULL:
        return None
    if alg not in (Alg.AES, Alg.SM4):
        raise MalformedEvidence(f"unknown symmetric algorithm 0x{alg:04x}")
    key_bits = reader.u16()
    mode = reader.u16()
    if key_bits not in _SYMMETRIC_BITS or mode != Alg.CFB:
        raise MalformedEvidence(f"symmetric cipher of {key_bits} bits in mode 0x{mode:04x}")
    return Symmetric(alg=alg, key_bits=key_bits, mode=mode)


def _read_scheme(reader: Reader, kind: int) -> Scheme | None:
    alg = reader.u16()
    if alg == Alg.NULL:
        return None
    if alg == Alg.RSAES and kind == Alg.RSA:
        return Scheme(alg=alg, hash_alg=None)
    if alg not in _SCHEMES_WITH_HASH[kind]:
        raise MalformedEvidence(f"unknown scheme 0x{alg:04x}")
    hash_alg = reader.u16()
    digest_size(hash_alg)
    return Scheme(alg=alg, hash_alg=hash_alg, count=reader.u16() if alg == Alg.ECDAA else None)


def _read_kdf(reader: Reader) -> Scheme | None:
    alg = reader.u16()
    if alg == Alg.NULL:
        return None
    if alg not in _KDFS:
        raise MalformedEvidence(f"unknown key derivation 0x{alg:04x}")
    hash_alg = reader.u16()
    digest_size(hash_alg)
    return Scheme(alg=alg, hash_alg=hash_alg)


def _write_symmetric(symmetric: Symmetric | None) -> bytes:
    if symmetric is None:
        return u16(Alg.NULL)
    return u16(symmetric.alg) + u16(symmetric.key_bits) + u16(symmetric.mode)


def write_scheme(scheme: Scheme | None) -> bytes:
    """Return a TPMT_*_SCHEME: alg u16, then what it needs; NULL for none."""
    if scheme is None:
        return u16(Alg.NULL)
    written = u16(scheme.alg)
    if scheme.hash_alg is not None:
        written += u16(scheme.hash_alg)
    if scheme.count is not None:
        written += u16(scheme.count)
    return written


def attribute_words(attributes: int) -> str:
    """Return the names of the set bits, for messages, e.g. `fixedTPM|sign`."""
    words = [word for bit, word in _WORDS if attributes & bit]
    reserved = attributes & ~sum(bit for bit, _ in _WORDS)
    if reserved:
        words.append(f"reserved 0x{reserved:08x}")
    return "|".join(words) or "none"


_WORDS: Final = (
    (Attr.FIXED_TPM, "fixedTPM"),
    (Attr.ST_CLEAR, "stClear"),
    (Attr.FIXED_PARENT, "fixedParent"),
    (Attr.SENSITIVE_DATA_ORIGIN, "sensitiveDataOrigin"),
    (Attr.USER_WITH_AUTH, "userWithAuth"),
    (Attr.ADMIN_WITH_POLICY, "adminWithPolicy"),
    (Attr.FIRMWARE_LIMITED, "firmwareLimited"),
    (Attr.SVN_LIMITED, "svnLimited"),
    (Attr.NO_DA, "noDA"),
    (Attr.ENCRYPTED_DUPLICATION, "encryptedDuplication"),
    (Attr.RESTRICTED, "restricted"),
    (Attr.DECRYPT, "decrypt"),
    (Attr.SIGN_ENCRYPT, "sign"),
    (Attr.X509_SIGN, "x509sign"),
)


def external_p256(x: bytes, y: bytes) -> bytes:
    """Return the TPMT_PUBLIC of a software key on P-256 for TPM2_LoadExternal (TPM.md §3.3).

    Attributes 00040040, userWithAuth and sign: a TPM refuses fixedTPM beside a private part.

    Args:
        x: Coordinate, big-endian, at most 32 bytes; written as given, and the TPM names what is written.
        y: Likewise.
    """
    return Public(
        type=Alg.ECC,
        name_alg=Alg.SHA256,
        attributes=int(Attr.USER_WITH_AUTH | Attr.SIGN_ENCRYPT),
        auth_policy=b"",
        symmetric=None,
        scheme=Scheme(alg=Alg.ECDSA, hash_alg=Alg.SHA256),
        curve=Curve.NIST_P256,
        x=x,
        y=y,
        tpmt=b"",
    ).serialise()
