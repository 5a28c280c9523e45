"""A forge for TPM structures, signatures and EK certificates with software keys, honest and hostile.

It shares no code with `attestation`: what both agree on was written twice. Everything is deterministic: keys
come from labels or `keys.json`, ECDSA nonces from RFC 6979, PSS salts and dates from constants.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

SHA1, SHA256, SHA384, SHA512, SM3, NULL = 0x0004, 0x000B, 0x000C, 0x000D, 0x0012, 0x0010
RSASSA, RSAPSS, ECDSA, ECDAA = 0x0014, 0x0016, 0x0018, 0x001A
HASHES = {SHA1: "sha1", SHA256: "sha256", SHA384: "sha384", SHA512: "sha512"}
CURVES: dict[int, ec.EllipticCurve] = {3: ec.SECP256R1(), 4: ec.SECP384R1(), 5: ec.SECP521R1()}
AK_ATTRIBUTES = 0x00050472
EK_LOW, EK_HIGH = 0x000300B2, 0x000300F2
POLICY_A = bytes.fromhex("837197674484b3f81a90cc8d46a5d724fd52d76e06520b64f2a1da1b331469aa")
POLICY_B = {
    SHA256: bytes.fromhex("ca3d0a99a2b93906f7a3342414efcfb3a385d44cd1fd459089d19b5071c0b7a0"),
    SHA384: bytes.fromhex(
        "b26e7d28d11a50bc53d882bcf5fd3a1a074148bb35d3b4e4cb1c0ad9bde419cacb47ba09699646150f9fc000f3f80e12"
    ),
    SHA512: bytes.fromhex(
        "b8221ca69e8550a4914de3faa6a18c072cc01208073a928d5d66d59ef79e49a4"
        "29c41a6b269571d57edb25fbdb1838425608b413cd616a5f6db5b6071af99bea"
    ),
}
_KEYS = Path(__file__).parent / "tpm" / "own" / "keys.json"

PrivateKey = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey


def u16(value: int) -> bytes:
    return struct.pack(">H", value)


def u32(value: int) -> bytes:
    return struct.pack(">I", value)


def tpm2b(data: bytes) -> bytes:
    return u16(len(data)) + data


def digest(alg: int, data: bytes) -> bytes:
    return hashlib.new(HASHES[alg], data).digest()


# ---------------------------------------------------------------- keys


@cache
def ec_private(label: str, curve: int) -> ec.EllipticCurvePrivateKey:
    """Return the EC key of *label*: its scalar is SHA-512(label), shortened where the curve is smaller."""
    seed = hashlib.sha512(label.encode()).digest()[: CURVES[curve].key_size // 8 - 1]
    return ec.derive_private_key(int.from_bytes(seed), CURVES[curve])


@cache
def rsa_private(label: str) -> rsa.RSAPrivateKey:
    """Return the RSA key of *label* from `keys.json`, which `regenerate.py` writes."""
    return rsa_from_primes(*(int(prime, 16) for prime in json.loads(_KEYS.read_text())[label]))


def rsa_from_primes(p: int, q: int) -> rsa.RSAPrivateKey:
    d = pow(65537, -1, (p - 1) * (q - 1))
    numbers = rsa.RSAPrivateNumbers(
        p=p,
        q=q,
        d=d,
        dmp1=d % (p - 1),
        dmq1=d % (q - 1),
        iqmp=pow(q, -1, p),
        public_numbers=rsa.RSAPublicNumbers(65537, p * q),
    )
    return numbers.private_key(unsafe_skip_rsa_key_validation=True)  # ours; the check takes 0.3 s


def private(label: str) -> PrivateKey:
    """Return the key of a label like `ek-rsa2048` or `ak-p384`."""
    kind = label.rpartition("-")[2]
    curves = {"p256": 3, "p384": 4, "p521": 5}
    return ec_private(label, curves[kind]) if kind in curves else rsa_private(label)


# ---------------------------------------------------------------- public areas


def scheme_bytes(scheme: int, hash_alg: int) -> bytes:
    if scheme == NULL:
        return u16(NULL)
    return u16(scheme) + u16(hash_alg) + (u16(0) if scheme == ECDAA else b"")


def rsa_public(
    modulus: bytes,
    *,
    attributes: int = AK_ATTRIBUTES,
    name_alg: int = SHA256,
    policy: bytes = b"",
    symmetric: bytes = u16(NULL),
    scheme: int = RSASSA,
    hash_alg: int = SHA256,
    bits: int | None = None,
    exponent: int = 0,
) -> bytes:
    """Return a TPM2B_PUBLIC of an RSA key."""
    head = u16(0x0001) + u16(name_alg) + u32(attributes) + tpm2b(policy) + symmetric
    size = u16(bits if bits is not None else len(modulus) * 8)
    return tpm2b(head + scheme_bytes(scheme, hash_alg) + size + u32(exponent) + tpm2b(modulus))


def ecc_public(
    x: bytes,
    y: bytes,
    *,
    attributes: int = AK_ATTRIBUTES,
    name_alg: int = SHA256,
    policy: bytes = b"",
    symmetric: bytes = u16(NULL),
    scheme: int = ECDSA,
    hash_alg: int = SHA256,
    curve: int = 3,
    kdf: bytes = u16(NULL),
) -> bytes:
    """Return a TPM2B_PUBLIC of an ECC key."""
    head = u16(0x0023) + u16(name_alg) + u32(attributes) + tpm2b(policy) + symmetric
    return tpm2b(head + scheme_bytes(scheme, hash_alg) + u16(curve) + kdf + tpm2b(x) + tpm2b(y))


def public_area(key: PrivateKey, **fields: object) -> bytes:
    """Return the TPM2B_PUBLIC of *key*; *fields* as of `rsa_public` or `ecc_public`."""
    if isinstance(key, rsa.RSAPrivateKey):
        return rsa_public(key.public_key().public_numbers().n.to_bytes(key.key_size // 8), **fields)  # type: ignore[arg-type]  # passed on
    size = (key.key_size + 7) // 8
    numbers = key.public_key().public_numbers()
    curve = {256: 3, 384: 4, 521: 5}[key.key_size]
    return ecc_public(numbers.x.to_bytes(size), numbers.y.to_bytes(size), **{"curve": curve, **fields})  # type: ignore[arg-type]  # passed on


def aes_cfb(bits: int) -> bytes:
    return u16(0x0006) + u16(bits) + u16(0x0043)


EK_TEMPLATE_FIELDS: dict[str, tuple[str, dict[str, object]]] = {
    name: (
        f"ek-{kind}",
        {
            "attributes": EK_LOW if name[0] == "L" else EK_HIGH,
            "name_alg": alg,
            "policy": POLICY_A if name[0] == "L" else POLICY_B[alg],
            "symmetric": aes_cfb(aes),
            "scheme": NULL,
        },
    )
    for name, kind, alg, aes in (
        ("L-1", "rsa2048", SHA256, 128),
        ("L-2", "p256", SHA256, 128),
        ("H-1", "rsa2048", SHA256, 128),
        ("H-2", "p256", SHA256, 128),
        ("H-3", "p384", SHA384, 256),
        ("H-4", "p521", SHA512, 256),
        ("H-6", "rsa3072", SHA384, 256),
        ("H-7", "rsa4096", SHA384, 256),
    )
}
"""Template -> label of the key, fields of its public area (TPM.md §2.4)."""


def ek_public(template: str, **changes: object) -> bytes:
    """Return the TPM2B_PUBLIC of our EK of *template*, with *changes* to make it wrong."""
    label, fields = EK_TEMPLATE_FIELDS[template]
    return public_area(private(label), **{**fields, **changes})


@dataclass(frozen=True)
class AK:
    """A software key that signs like a TPM's."""

    label: str
    scheme: int
    hash_alg: int
    name_alg: int = SHA256

    @cached_property
    def key(self) -> PrivateKey:
        """The private half."""
        return private(self.label)

    @cached_property
    def public(self) -> bytes:
        """TPM2B_PUBLIC."""
        return public_area(self.key, scheme=self.scheme, hash_alg=self.hash_alg, name_alg=self.name_alg)

    @cached_property
    def name(self) -> bytes:
        """The Name, nameAlg u16 ‖ digest."""
        return name_of(self.public)

    def sign(self, message: bytes) -> bytes:
        """Return a TPMT_SIGNATURE."""
        head = u16(self.scheme) + u16(self.hash_alg)
        if isinstance(self.key, ec.EllipticCurvePrivateKey):
            return head + b"".join(map(tpm2b, self.ecdsa(message)))
        if self.scheme == RSASSA:
            return head + tpm2b(self.key.sign(message, padding.PKCS1v15(), crypto(self.hash_alg)))
        return head + tpm2b(_pss(self.key, self.hash_alg, message))

    def ecdsa(self, message: bytes) -> tuple[bytes, bytes]:
        """Return r and s, as long as the field."""
        assert isinstance(self.key, ec.EllipticCurvePrivateKey)
        size = (self.key.key_size + 7) // 8
        der = self.key.sign(message, ec.ECDSA(crypto(self.hash_alg), deterministic_signing=True))
        r, s = decode_dss_signature(der)
        return r.to_bytes(size), s.to_bytes(size)


def crypto(alg: int) -> hashes.HashAlgorithm:
    return {SHA1: hashes.SHA1(), SHA256: hashes.SHA256(), SHA384: hashes.SHA384(), SHA512: hashes.SHA512()}[
        alg
    ]


def _pss(key: rsa.RSAPrivateKey, alg: int, message: bytes) -> bytes:
    """RSASSA-PSS (RFC 8017, 8.1.1) with a salt of digest length that follows from the message."""
    size = len(digest(alg, b""))
    salt = digest(alg, b"salt" + message)
    h = digest(alg, bytes(8) + digest(alg, message) + salt)
    length = key.key_size // 8
    block = bytes(length - 2 * size - 2) + b"\x01" + salt
    mask = b"".join(digest(alg, h + u32(i)) for i in range(-(-len(block) // size)))[: len(block)]
    masked = bytes(a ^ b for a, b in zip(block, mask, strict=True))
    encoded = bytes([masked[0] & 0x7F]) + masked[1:] + h + b"\xbc"
    numbers = key.private_numbers()
    return pow(int.from_bytes(encoded), numbers.d, numbers.public_numbers.n).to_bytes(length)


AKS = {
    "p256": AK("ak-p256", ECDSA, SHA256),
    "p384": AK("ak-p384", ECDSA, SHA384, SHA384),
    "rsassa": AK("ak-rsa2048", RSASSA, SHA256),
    "rsapss": AK("ak-rsa2048", RSAPSS, SHA256),
}
EK_OF = {"p256": "L-2", "p384": "H-3", "rsassa": "L-1", "rsapss": "H-1"}
"""Which EK each of our AKs stands under."""


def name_of(public: bytes) -> bytes:
    """Return the Name of a TPM2B_PUBLIC."""
    alg = int.from_bytes(public[4:6])
    return u16(alg) + digest(alg, public[2:])


def qualified_name(ek: bytes, ak: bytes) -> bytes:
    """Return the Qualified Name of *ak* under *ek*, an endorsement primary; both TPM2B_PUBLIC."""
    ek_name, ak_name = name_of(ek), name_of(ak)
    parent = ek_name[:2] + digest(int.from_bytes(ek_name[:2]), u32(0x4000000B) + ek_name)
    return ak_name[:2] + digest(int.from_bytes(ak_name[:2]), parent + ak_name)


# ---------------------------------------------------------------- statements

NONCE = hashlib.sha256(b"own nonce").digest()
FIRMWARE = 0x0007_003F_4A2B_0001
PCRS = {i: hashlib.sha256(b"own pcr %d" % i).digest() for i in range(16)}
SELECTED = (0, 1, 2, 3, 4, 5, 6, 7, 11)


def selection(banks: Sequence[tuple[int, Sequence[int]]], size: int = 3) -> bytes:
    """Return a TPML_PCR_SELECTION."""
    return u32(len(banks)) + b"".join(
        u16(alg) + bytes([size]) + sum(1 << i for i in pcrs).to_bytes(size, "little") for alg, pcrs in banks
    )


def pcr_digest(hash_alg: int, values: Sequence[bytes]) -> bytes:
    return digest(hash_alg, b"".join(values))


def statement(
    body: bytes,
    *,
    signer: bytes,
    nonce: bytes = NONCE,
    magic: int = 0xFF544347,
    kind: int = 0x8018,
    clock: int = 123_456,
    reset: int = 7,
    restart: int = 2,
    safe: int = 1,
    firmware: int = FIRMWARE,
) -> bytes:
    """Return a TPMS_ATTEST."""
    head = struct.pack(">IH", magic, kind) + tpm2b(signer) + tpm2b(nonce)
    return head + struct.pack(">QIIBQ", clock, reset, restart, safe, firmware) + body


def quote(
    which: str,
    *,
    banks: Sequence[tuple[int, Sequence[int]]] = ((SHA256, SELECTED),),
    values: Sequence[bytes] | None = None,
    bitmap_bytes: int = 3,
    signer: bytes | None = None,
    **header: int | bytes,
) -> tuple[bytes, bytes]:
    """Return TPMS_ATTEST and TPMT_SIGNATURE of a quote by our AK *which*; keywords make it wrong."""
    ak = AKS[which]
    if values is None:
        values = [PCRS[i] for _, pcrs in banks for i in pcrs]
    body = selection(banks, bitmap_bytes) + tpm2b(pcr_digest(ak.hash_alg, values))
    if signer is None:
        signer = qualified_name(ek_public(EK_OF[which]), ak.public)
    attest = statement(body, signer=signer, **header)  # type: ignore[arg-type]  # passed on
    return attest, ak.sign(attest)


# ---------------------------------------------------------------- key derivation, credentials


def kdfa(alg: int, key: bytes, label: bytes, u: bytes, v: bytes, bits: int) -> bytes:
    """KDFa for whole bytes, written down again from Part 1, 11.4.10.2."""
    out, i = b"", 0
    while len(out) * 8 < bits:
        i += 1
        out += hmac.digest(key, u32(i) + label + b"\0" + u + v + u32(bits), HASHES[alg])
    return out[: bits // 8]


def id_object(ek_alg: int, key_bits: int, seed: bytes, name: bytes, secret: bytes) -> bytes:
    """Return a TPM2B_ID_OBJECT; the cipher is CFB written out over AES-ECB."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    block = Cipher(
        algorithms.AES(kdfa(ek_alg, seed, b"STORAGE", name, b"", key_bits)),
        modes.ECB(),
    ).encryptor()
    plain, encrypted, feedback = tpm2b(secret), b"", bytes(16)
    for at in range(0, len(plain), 16):
        feedback = bytes(a ^ b for a, b in zip(plain[at : at + 16], block.update(feedback), strict=False))
        encrypted += feedback
    bits = 8 * len(digest(ek_alg, b""))
    mac_key = kdfa(ek_alg, seed, b"INTEGRITY", b"", b"", bits)
    return tpm2b(tpm2b(hmac.digest(mac_key, encrypted + name, HASHES[ek_alg])) + encrypted)


# ---------------------------------------------------------------- certificates, in DER by hand


def tlv(tag: int, *parts: bytes) -> bytes:
    body = b"".join(parts)
    if len(body) < 128:
        return bytes([tag, len(body)]) + body
    size = (len(body).bit_length() + 7) // 8
    return bytes([tag, 0x80 | size]) + len(body).to_bytes(size) + body


def seq(*parts: bytes) -> bytes:
    return tlv(0x30, *parts)


def oid(text: str) -> bytes:
    first, second, *rest = map(int, text.split("."))
    out = b""
    for arc in (first * 40 + second, *rest):
        chunk = bytes([arc & 0x7F])
        while arc := arc >> 7:
            chunk = bytes([arc & 0x7F | 0x80]) + chunk
        out += chunk
    return tlv(0x06, out)


def utf8(text: str) -> bytes:
    return tlv(0x0C, text.encode())


def integer(value: int) -> bytes:
    return tlv(0x02, value.to_bytes(value.bit_length() // 8 + 1))


def bit_string(data: bytes, unused: int = 0) -> bytes:
    return tlv(0x03, bytes([unused]) + data)


def rdn(*attributes: tuple[str, str]) -> bytes:
    """Return one RelativeDistinguishedName, its attributes in the order given, sorted or not."""
    return tlv(0x31, *(seq(oid(kind), utf8(value)) for kind, value in attributes))


def utc_time(text: str) -> bytes:
    return tlv(0x17, text.encode())


def generalized_time(text: str) -> bytes:
    return tlv(0x18, text.encode())


MANUFACTURER, MODEL, VERSION = "2.23.133.2.1", "2.23.133.2.2", "2.23.133.2.3"
TPM_NAMES = ((MANUFACTURER, "id:49465800"), (MODEL, "OWN-1"), (VERSION, "id:00070002"))
"""Infineon's registered id on a model nobody makes."""


def extension(kind: str, value: bytes, *, critical: bool = False) -> bytes:
    return seq(oid(kind), tlv(0x01, b"\xff") if critical else b"", tlv(0x04, value))


def san(*names: Sequence[tuple[str, str]], one_rdn: bool = False) -> bytes:
    """Return a GeneralNames of directory names, each attribute in an RDN of its own or all in one."""
    return seq(
        *(
            tlv(0xA4, seq(rdn(*name)) if one_rdn else seq(*(rdn(attribute) for attribute in name)))
            for name in names
        )
    )


def profile(*, is_rsa: bool) -> dict[str, bytes]:
    """Return the extensions of an EK certificate that meets TPM.md §2.3, by short name."""
    usage = bit_string(b"\x20", 5) if is_rsa else bit_string(b"\x08", 3)
    return {
        "bc": extension("2.5.29.19", seq(), critical=True),
        "ku": extension("2.5.29.15", usage, critical=True),
        "aki": extension("2.5.29.35", seq(tlv(0x80, b"own authority key id"))),
        "san": extension("2.5.29.17", san(TPM_NAMES), critical=True),
        "eku": extension("2.5.29.37", seq(oid("2.23.133.8.1"))),
    }


def spki(key: PrivateKey) -> bytes:
    return key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def oaep_spki(key: rsa.RSAPrivateKey) -> bytes:
    """Return the SPKI with the OID of RSAES-OAEP, as certificates of the TPM 1.2 era have it."""
    return spki(key).replace(oid("1.2.840.113549.1.1.1"), oid("1.2.840.113549.1.1.7"))


ISSUER = seq(rdn(("2.5.4.10", "Own vectors")), rdn(("2.5.4.3", "Own EK Issuing CA")))
ECDSA_SHA256 = oid("1.2.840.10045.4.3.2")


def certificate(
    key_info: bytes,
    extensions: Mapping[str, bytes],
    *,
    version: bytes = tlv(0xA0, integer(2)),
    serial: bytes = integer(0x1234567890),
    algorithm: bytes = seq(ECDSA_SHA256),
    issuer: bytes = ISSUER,
    subject: bytes = seq(),
    not_before: bytes = utc_time("250101000000Z"),
    not_after: bytes = generalized_time("20550101000000Z"),
) -> bytes:
    """Return a certificate signed by our issuing CA (P-256)."""
    tbs = seq(
        version,
        serial,
        algorithm,
        issuer,
        seq(not_before, not_after),
        subject,
        key_info,
        tlv(0xA3, seq(*extensions.values())) if extensions else b"",
    )
    ca = ec_private("ca-p256", 3)
    return seq(
        tbs, algorithm, bit_string(ca.sign(tbs, ec.ECDSA(hashes.SHA256(), deterministic_signing=True)))
    )


def wrapped(der: bytes, *, inner: bool = False) -> bytes:
    """Return *der* in the wrapper of TPM 1.2: 10 01 00 ‖ u16 length, inside it optionally 10 02."""
    if inner:
        der = b"\x10\x02" + der
    return b"\x10\x01\x00" + tpm2b(der)
