"""Certificates and revocation lists written byte by byte: what libraries refuse to write is what vendors ship.

A VEK has the serial number 0, and a test wants each field wrong alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from importlib.resources import files
from typing import Final

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from attestation.endorsements import der
from attestation.wire import tlv

PrivateKey = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey
Names = Sequence[tuple[str, str]]
"""OID in dots and text of each attribute, in order."""

COUNTRY, STATE, LOCALITY = "2.5.4.6", "2.5.4.8", "2.5.4.7"
ORGANIZATION, UNIT, COMMON_NAME = "2.5.4.10", "2.5.4.11", "2.5.4.3"
BASIC_CONSTRAINTS, KEY_USAGE, CRL_POINTS = "2.5.29.19", "2.5.29.15", "2.5.29.31"
SUBJECT_KEY, AUTHORITY_KEY, CRL_NUMBER = "2.5.29.14", "2.5.29.35", "2.5.29.20"

START: Final = datetime(2024, 1, 1, tzinfo=UTC)
FAR: Final = datetime(2049, 12, 31, 23, 59, 59, tzinfo=UTC)
_SEQUENCE, _SET, _UTF8, _PRINTABLE, _OCTETS, _BITS, _BOOLEAN = 0x30, 0x31, 12, 19, 4, 3, 1
_SHA384: Final = "2.16.840.1.101.3.4.2.2"
_ALGORITHMS: Final = {
    "secp256r1": ("1.2.840.10045.4.3.2", hashes.SHA256()),
    "secp384r1": ("1.2.840.10045.4.3.3", hashes.SHA384()),
}


def sequence(*parts: bytes) -> bytes:
    """Return SEQUENCE of *parts*."""
    return tlv(_SEQUENCE, b"".join(parts))


def integer(value: int) -> bytes:
    """Return INTEGER."""
    return der.write_unsigned(value)


def octets(value: bytes) -> bytes:
    """Return OCTET STRING."""
    return tlv(_OCTETS, value)


def text(value: str, tag: int = _UTF8) -> bytes:
    """Return a string, UTF8String unless *tag* says otherwise."""
    return tlv(tag, value.encode())


def oid(dots: str) -> bytes:
    """Return OBJECT IDENTIFIER."""
    return der.write_oid(dots)


def name(attributes: Names) -> bytes:
    """Return Name."""
    return sequence(
        *(
            tlv(_SET, sequence(oid(kind), text(value, _PRINTABLE if kind == COUNTRY else _UTF8)))
            for kind, value in attributes
        )
    )


def instant(at: datetime) -> bytes:
    """Return Time: UTCTime before 2050, GeneralizedTime after."""
    if at.year < 2050:
        return tlv(0x17, at.strftime("%y%m%d%H%M%SZ").encode())
    return tlv(0x18, at.strftime("%Y%m%d%H%M%SZ").encode())


def extension(kind: str, value: bytes, *, critical: bool = False) -> bytes:
    """Return Extension; *value* is the DER in it."""
    return sequence(oid(kind), tlv(_BOOLEAN, b"\xff") if critical else b"", octets(value))


def ca_extensions(path_length: int | None = None) -> list[bytes]:
    """Return BasicConstraints and KeyUsage of a CA that signs certificates and lists."""
    length = integer(path_length) if path_length is not None else b""
    return [
        extension(BASIC_CONSTRAINTS, sequence(tlv(_BOOLEAN, b"\xff"), length), critical=True),
        extension(KEY_USAGE, tlv(_BITS, b"\x01\x06"), critical=True),
    ]


def key_identifiers(key: PrivateKey, issuer: PrivateKey) -> list[bytes]:
    """Return SubjectKeyIdentifier and AuthorityKeyIdentifier."""
    return [
        extension(SUBJECT_KEY, octets(key_id(key))),
        extension(AUTHORITY_KEY, sequence(tlv(0x80, key_id(issuer)))),
    ]


def crl_point(url: str) -> bytes:
    """Return CRLDistributionPoints with one URL."""
    return extension(CRL_POINTS, sequence(sequence(tlv(0xA0, tlv(0xA0, tlv(0x86, url.encode()))))))


def key_id(key: PrivateKey) -> bytes:
    """Return the first 20 bytes of SHA-384 over the SPKI: an identifier is any octets."""
    digest = hashes.Hash(hashes.SHA384())
    digest.update(spki(key))
    return digest.finalize()[:20]


def spki(key: PrivateKey) -> bytes:
    """Return SubjectPublicKeyInfo."""
    return key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def certificate(
    *,
    subject: Names,
    issuer: Names,
    key: PrivateKey,
    signer: PrivateKey,
    serial: int,
    extensions: Iterable[bytes] = (),
    not_before: datetime = START,
    not_after: datetime = FAR,
) -> bytes:
    """Return a certificate of version 3, DER; RSA keys sign RSASSA-PSS with SHA-384 and a salt of 48 bytes."""
    tbs = sequence(
        tlv(0xA0, integer(2)),
        integer(serial),
        _algorithm(signer),
        name(issuer),
        sequence(instant(not_before), instant(not_after)),
        name(subject),
        spki(key),
        tlv(0xA3, sequence(*extensions)),
    )
    return _signed(tbs, signer)


def crl(
    *,
    issuer: Names,
    signer: PrivateKey,
    revoked: Iterable[int] = (),
    this_update: datetime = START,
    next_update: datetime | None = None,
    ends: bool = True,
) -> bytes:
    """Return a revocation list of version 2, DER; one that does not end has no nextUpdate."""
    entries = [sequence(integer(serial), instant(this_update)) for serial in revoked]
    tbs = sequence(
        integer(1),
        _algorithm(signer),
        name(issuer),
        instant(this_update),
        instant(next_update or this_update + timedelta(days=365)) if ends else b"",
        sequence(*entries) if entries else b"",
        tlv(
            0xA0,
            sequence(
                extension(AUTHORITY_KEY, sequence(tlv(0x80, key_id(signer)))),
                extension(CRL_NUMBER, integer(1)),
            ),
        ),
    )
    return _signed(tbs, signer)


def _signed(tbs: bytes, signer: PrivateKey) -> bytes:
    return sequence(tbs, _algorithm(signer), tlv(_BITS, b"\x00" + sign(signer, tbs)))


def sign(key: PrivateKey, data: bytes) -> bytes:
    """Return a signature as certificates carry it."""
    if isinstance(key, rsa.RSAPrivateKey):
        return key.sign(data, padding.PSS(padding.MGF1(hashes.SHA384()), 48), hashes.SHA384())
    return key.sign(data, ec.ECDSA(_ALGORITHMS[key.curve.name][1]))


def _algorithm(key: PrivateKey) -> bytes:
    if isinstance(key, rsa.RSAPrivateKey):
        sha384 = sequence(oid(_SHA384), b"\x05\x00")
        return sequence(
            oid("1.2.840.113549.1.1.10"),
            sequence(
                tlv(0xA0, sha384),
                tlv(0xA1, sequence(oid("1.2.840.113549.1.1.8"), sha384)),
                tlv(0xA2, integer(48)),
            ),
        )
    return sequence(oid(_ALGORITHMS[key.curve.name][0]))


@cache
def rsa_key(index: int) -> rsa.RSAPrivateKey:
    """Return an RSA-4096 key whose private half is published here: trust nothing of it anywhere."""
    primes = json.loads(
        files("attestation_testing.tee").joinpath("rsa_keys.json").read_text(encoding="utf-8")
    )
    p, q = (int(prime, 16) for prime in primes[index])
    d = rsa.rsa_recover_private_exponent(65537, p, q)
    return rsa.RSAPrivateNumbers(
        p,
        q,
        d,
        rsa.rsa_crt_dmp1(d, p),
        rsa.rsa_crt_dmq1(d, q),
        rsa.rsa_crt_iqmp(p, q),
        rsa.RSAPublicNumbers(65537, p * q),
    ).private_key(unsafe_skip_rsa_key_validation=True)


def ec_key(curve: ec.EllipticCurve, seed: str) -> ec.EllipticCurvePrivateKey:
    """Return a key made from *seed*, the same each time."""
    digest = hashes.Hash(hashes.SHA384())
    digest.update(b"attestation_testing.tee " + seed.encode())
    return ec.derive_private_key(int.from_bytes(digest.finalize()[: curve.key_size // 8 - 1]) + 1, curve)
