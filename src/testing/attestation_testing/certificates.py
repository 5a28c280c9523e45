"""Certificate authorities for test TPMs, and EK certificates with any one thing wrong.

Certificates are written byte by byte, because most libraries refuse to write the wrong ones. Whatever
is made from a seed is made again from it, signatures included.
Profile: TCG EK Credential Profile 2.6, 3.2 (TPM.md §2.3).
"""

# Longer than 500 lines: every fault of a certificate that a test can ask for.
from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from attestation import wire
from attestation.endorsements import der
from attestation.tpm.constants import Alg
from attestation.tpm.public import Public
from attestation.wire import tlv

SIMULATOR: Final = "id:00001014"
"""Manufacturer id of swtpm; not in the TCG registry."""

_SEQUENCE, _SET, _BOOLEAN, _INTEGER, _BITS, _OCTETS, _UTF8 = 0x30, 0x31, 1, 2, 3, 4, 12
_PRINTABLE: Final = 19
_RSAES_OAEP: Final = "1.2.840.113549.1.1.7"

PrivateKey = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey


class Defect(StrEnum):
    """One rule of the profile broken; each must be refused (TPM.md §9, N47-N60)."""

    OTHER_KEY = "other-key"
    ISSUER_IS_SUBJECT = "issuer-is-subject"
    ISSUER_EMPTY = "issuer-empty"
    EXPIRED = "expired"
    NOT_YET_VALID = "not-yet-valid"
    VERSION_1 = "version-1"
    SERIAL_ZERO = "serial-zero"
    SERIAL_NEGATIVE = "serial-negative"
    CA_TRUE = "ca-true"
    BASIC_CONSTRAINTS_MISSING = "basic-constraints-missing"
    BASIC_CONSTRAINTS_NOT_CRITICAL = "basic-constraints-not-critical"
    KEY_USAGE_MISSING = "key-usage-missing"
    KEY_USAGE_WRONG = "key-usage-wrong"
    KEY_USAGE_NOT_CRITICAL = "key-usage-not-critical"
    EKU_OTHER = "eku-other"
    EKU_CRITICAL = "eku-critical"
    AKI_MISSING = "aki-missing"
    AKI_CRITICAL = "aki-critical"
    SAN_MISSING = "san-missing"
    SAN_TWO_DIRECTORY_NAMES = "san-two-directory-names"
    SAN_EXTRA_ATTRIBUTE = "san-extra-attribute"
    SAN_WITHOUT_MANUFACTURER = "san-without-manufacturer"
    SAN_WITHOUT_MODEL = "san-without-model"
    SAN_MANUFACTURER_MALFORMED = "san-manufacturer-malformed"
    SAN_NOT_CRITICAL = "san-not-critical"
    UNKNOWN_CRITICAL = "unknown-critical"
    DUPLICATE_EXTENSION = "duplicate-extension"
    SHA1 = "sha1"
    SIGNATURE_BROKEN = "signature-broken"


class Quirk(StrEnum):
    """Something met in the field that must be accepted (TPM.md §2.2)."""

    WRAPPER = "wrapper"
    PADDING_00 = "padding-00"
    PADDING_11 = "padding-11"
    PADDING_MIXED = "padding-mixed"
    ZERO_PADDED_SERIAL = "zero-padded-serial"
    UNSORTED_RDN = "unsorted-rdn"
    NULL_ECDSA_PARAMETERS = "null-ecdsa-parameters"
    OAEP_SPKI = "oaep-spki"
    LONG_NAME = "long-name"
    NO_EXPIRY = "no-expiry"
    SAN_THREE_RDNS = "san-three-rdns"
    SUBJECT_NOT_EMPTY = "subject-not-empty"
    ISSUER_OTHER_STRINGS = "issuer-other-strings"
    SECURITY_ASSERTIONS = "security-assertions"
    SECURITY_ASSERTIONS_ODD = "security-assertions-odd"
    NO_EXTENDED_KEY_USAGE = "no-extended-key-usage"
    POINTERS = "pointers"


@dataclass(frozen=True, slots=True, kw_only=True)
class EKCertificateOptions:
    """What an EK certificate says.

    Args:
        manufacturer: `id:` and eight hex digits.
        model: TPM model.
        version: TPM firmware version.
        valid_days: Length of validity.
        defect: The one rule to break.
        quirks: Oddities to write.
        seed: Makes the serial number and all filling; None takes the EK's.
        validity: Beginning and end, instead of what *valid_days* and the defect make.
        chip_serial: Serial number of the chip in the subject, as some makers write it.
    """

    manufacturer: str = SIMULATOR
    model: str = "swtpm"
    version: str = "id:00010001"
    valid_days: int = 3650
    defect: Defect | None = None
    quirks: frozenset[Quirk] = frozenset()
    seed: int | None = None
    validity: tuple[datetime, datetime] | None = None
    chip_serial: str | None = None

    def has(self, defect: Defect) -> bool:
        """Say whether *defect* is the one to make."""
        return self.defect == defect


@dataclass(frozen=True, slots=True, kw_only=True)
class CAOptions:
    """What the certificate of a CA says, where it is not the plain one.

    Args:
        attributes: The subject, as (OID, value); None for one common name.
        one_rdn: Write them as one RDN, in the wrong order.
        issuer: DER of the Name written as issuer; None for the parent's subject.
        serial: Content of the serial number's INTEGER; None makes one.
        validity: Beginning and end; None for a hundred years.
        key_usage: Content of KeyUsage's BIT STRING; None for keyCertSign and cRLSign, empty leaves it out.
        unknown_critical: Add a critical extension that nobody knows.
        null_parameters: The certificate's own algorithm, where ECDSA, has NULL parameters.
        sha1: The certificate is signed over SHA-1.
        padding: Bytes behind the certificate.
        pss: This CA, where RSA, signs with PSS.
        key_identifier: Its SubjectKeyIdentifier; None for that of its key.
    """

    attributes: Sequence[tuple[str, str]] | None = None
    one_rdn: bool = False
    issuer: bytes | None = None
    serial: bytes | None = None
    validity: tuple[datetime, datetime] | None = None
    key_usage: bytes | None = None
    unknown_critical: bool = False
    null_parameters: bool = False
    sha1: bool = False
    padding: bytes = b""
    pss: bool = False
    key_identifier: bytes | None = None


class CertificateAuthority:
    """A CA of test TPMs. Safe to use from several threads.

    Args:
        name: Common name.
        seed: Makes its P-256 key; the same seed is the same CA.
        parent: Who signs its certificate; None makes a self-signed root.
        path_length: pathLenConstraint, None for none.
        ca: False makes an issuer that may not issue.
        at: Beginning of validity.
        key: Its key instead, RSA or ECC.
        options: What its certificate says.

    Attributes:
        certificate: DER, with the padding asked for.
        subject: DER of the Name.
        key_identifier: SubjectKeyIdentifier.
        parent: As given.
        path_length: As given.
        signs_ecdsa: Its key is ECC.
    """

    def __init__(
        self,
        name: str = "Test TPM CA",
        *,
        seed: int = 0,
        parent: CertificateAuthority | None = None,
        path_length: int | None = None,
        ca: bool = True,
        at: datetime = datetime(2020, 1, 1, tzinfo=UTC),
        key: PrivateKey | None = None,
        options: CAOptions | None = None,
    ) -> None:
        options = options or CAOptions()
        material = hashlib.sha512(b"certificate authority" + seed.to_bytes(16) + name.encode()).digest()
        secret = int.from_bytes(material) % (ec.SECP256R1().group_order - 1) + 1
        self._key: PrivateKey = key or ec.derive_private_key(secret, ec.SECP256R1())
        self._pss = options.pss
        self.signs_ecdsa = isinstance(self._key, ec.EllipticCurvePrivateKey)
        self.name = name
        self.attributes = tuple(options.attributes or (("2.5.4.3", name),))
        self.subject = _one_rdn(self.attributes) if options.one_rdn else _name(self.attributes)
        self._spki = self._key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        self.key_identifier = options.key_identifier or _key_identifier(self._spki)
        self.parent, self.path_length = parent, path_length
        issuer = parent or self
        constraints = b"" if not ca else tlv(_BOOLEAN, b"\xff")
        if path_length is not None:
            constraints += _integer(path_length)
        usage = options.key_usage
        if usage is None:
            usage = b"\x01\x06" if ca else b"\x07\x80"
        extensions = [
            _extension("2.5.29.19", tlv(_SEQUENCE, constraints), critical=True),
            _extension("2.5.29.15", tlv(_BITS, usage), critical=True),
            _extension("2.5.29.14", tlv(_OCTETS, self.key_identifier)),
            _extension("2.5.29.35", tlv(_SEQUENCE, tlv(0x80, issuer.key_identifier))),
        ]
        if not usage:
            del extensions[1]
        if options.unknown_critical:
            extensions.append(_extension("1.3.6.1.4.1.99999.1", b"\x05\0", critical=True))
        algorithm, hash_ = issuer.algorithm(sha1=options.sha1, null=options.null_parameters)
        tbs = _tbs(
            serial=_integer(int.from_bytes(material[:8]) >> 1 | 1)
            if options.serial is None
            else tlv(_INTEGER, options.serial),
            algorithm=algorithm,
            issuer=options.issuer or issuer.subject,
            validity=options.validity or (at, at + timedelta(days=36500)),
            subject=self.subject,
            spki=self._spki,
            extensions=extensions,
        )
        self.certificate = issuer.sign(tbs, algorithm=algorithm, hash_=hash_) + options.padding

    def written_otherwise(self) -> bytes:
        """Return the same name by RFC 5280, 7.1, DER: another string type, other letter case, more white space."""
        return _name(
            [(oid, text.upper().replace(" ", "  ") + " ") for oid, text in self.attributes], _PRINTABLE
        )

    def algorithm(self, *, sha1: bool = False, null: bool = False) -> tuple[bytes, hashes.HashAlgorithm]:
        """Return the AlgorithmIdentifier, DER, of what this CA signs, and the hash: the one that fits its key.

        Args:
            sha1: SHA-1 instead.
            null: With NULL parameters where ECDSA has none.
        """
        size = self._key.key_size if isinstance(self._key, ec.EllipticCurvePrivateKey) else 0
        hash_: hashes.HashAlgorithm = hashes.SHA256()
        if sha1:
            hash_ = hashes.SHA1()
        elif size > 256:
            hash_ = hashes.SHA384() if size == 384 else hashes.SHA512()
        if size:
            return tlv(_SEQUENCE, _oid(_ECDSA_WITH[hash_.name]) + (b"\x05\0" if null else b"")), hash_
        if self._pss:
            digest = tlv(_SEQUENCE, _oid(_DIGEST[hash_.name]) + b"\x05\0")
            parameters = (
                tlv(0xA0, digest)
                + tlv(0xA1, tlv(_SEQUENCE, _oid("1.2.840.113549.1.1.8") + digest))
                + tlv(0xA2, _integer(hash_.digest_size))
            )
            return tlv(_SEQUENCE, _oid(_RSASSA_PSS) + tlv(_SEQUENCE, parameters)), hash_
        return tlv(_SEQUENCE, _oid(_RSA_WITH[hash_.name]) + b"\x05\0"), hash_

    def sign(
        self,
        tbs: bytes,
        *,
        algorithm: bytes | None = None,
        hash_: hashes.HashAlgorithm | None = None,
    ) -> bytes:
        """Return the certificate over *tbs*; every signature is deterministic (ECDSA by RFC 6979).

        Args:
            tbs: The signed part; names the algorithm too.
            algorithm: AlgorithmIdentifier to write, DER; None for the usual one of this CA.
            hash_: What to sign over; None for the usual one.
        """
        usual, usual_hash = self.algorithm()
        algorithm, hash_ = algorithm or usual, hash_ or usual_hash
        if isinstance(self._key, ec.EllipticCurvePrivateKey):
            signature = self._key.sign(tbs, ec.ECDSA(hash_, deterministic_signing=True))
        elif _oid(_RSASSA_PSS) in algorithm:
            signature = _pss(self._key, hash_, tbs)
        else:
            signature = self._key.sign(tbs, padding.PKCS1v15(), hash_)
        return tlv(_SEQUENCE, tbs + algorithm + tlv(_BITS, b"\0" + signature))

    def issue_ek_certificate(
        self, ek: Public, *, at: datetime, options: EKCertificateOptions | None = None
    ) -> bytes:
        """Certify *ek*: the content of the NV index, so with wrapper and padding where a quirk asks for them.

        Args:
            ek: The key.
            at: The certificate is valid at this instant, unless the defect is about dates.
            options: What it says; the profile's minimum by default.
        """
        options = options or EKCertificateOptions()
        has = options.has
        quirks = options.quirks
        spki = ek.spki_der()
        seed = int.from_bytes(hashlib.sha256(spki).digest()) if options.seed is None else options.seed
        rng = random.Random(seed)
        rsa_key = ek.type == Alg.RSA
        if has(Defect.OTHER_KEY):
            spki = _other_spki(rng)
            rsa_key = False
        if Quirk.OAEP_SPKI in quirks and rsa_key:
            spki = _with_oaep(ek)

        not_before = at - timedelta(days=1)
        not_after = not_before + timedelta(days=options.valid_days)
        if has(Defect.EXPIRED):
            not_before, not_after = at - timedelta(days=800), at - timedelta(days=1)
        if has(Defect.NOT_YET_VALID):
            not_before, not_after = at + timedelta(days=1), at + timedelta(days=800)
        if options.validity is not None:
            not_before, not_after = options.validity
        if Quirk.NO_EXPIRY in quirks:
            not_after = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)

        subject = tlv(_SEQUENCE, b"")
        if Quirk.SUBJECT_NOT_EMPTY in quirks or has(Defect.ISSUER_IS_SUBJECT):
            subject = _name([("2.5.4.3", f"TPM {rng.getrandbits(32):08x}")])
        if options.chip_serial is not None:
            subject = _name([("2.5.4.5", options.chip_serial)])
        issuer = self.subject
        if Quirk.UNSORTED_RDN in quirks:
            # DER sorts a SET; these are written the wrong way round.
            pairs = [_attribute("2.5.4.3", self.name), _attribute("2.5.4.6", "TW")]
            issuer = tlv(_SEQUENCE, tlv(_SET, b"".join(sorted(pairs, reverse=True))))
        if Quirk.LONG_NAME in quirks:
            issuer = _name([("2.5.4.3", self.name), ("2.5.4.11", "unit " * 20)])
        if Quirk.ISSUER_OTHER_STRINGS in quirks:
            issuer = self.written_otherwise()
        if has(Defect.ISSUER_IS_SUBJECT):
            issuer = subject
        if has(Defect.ISSUER_EMPTY):
            issuer = tlv(_SEQUENCE, b"")

        serial = _integer(rng.getrandbits(120) | 1)
        if has(Defect.SERIAL_ZERO):
            serial = _integer(0)
        if has(Defect.SERIAL_NEGATIVE):
            serial = tlv(_INTEGER, b"\x85" + rng.randbytes(8))
        if Quirk.ZERO_PADDED_SERIAL in quirks:
            serial = tlv(_INTEGER, b"\0\0\x17" + rng.randbytes(8))

        algorithm, hash_ = self.algorithm(
            sha1=has(Defect.SHA1),
            null=Quirk.NULL_ECDSA_PARAMETERS in quirks,
        )

        tbs = _tbs(
            serial=serial,
            algorithm=algorithm,
            issuer=issuer,
            validity=(not_before, not_after),
            subject=subject,
            spki=spki,
            extensions=self._ek_extensions(options, rsa_key=rsa_key, subject_empty=len(subject) == 2),
            version_1=has(Defect.VERSION_1),
        )
        certificate = self.sign(tbs, algorithm=algorithm, hash_=hash_)
        if has(Defect.SIGNATURE_BROKEN):
            certificate = certificate[:-1] + bytes([certificate[-1] ^ 1])
        return _as_in_nv(certificate, quirks, rng)

    def _ek_extensions(
        self, options: EKCertificateOptions, *, rsa_key: bool, subject_empty: bool
    ) -> list[bytes]:
        has = options.has
        usage = b"\x05\x20" if rsa_key else b"\x03\x08"
        if has(Defect.KEY_USAGE_WRONG):
            usage = b"\x07\x80"
        extensions = [
            _extension("2.5.29.15", tlv(_BITS, usage), critical=not has(Defect.KEY_USAGE_NOT_CRITICAL)),
            _extension(
                "2.5.29.19",
                tlv(_SEQUENCE, tlv(_BOOLEAN, b"\xff") if has(Defect.CA_TRUE) else b""),
                critical=not has(Defect.BASIC_CONSTRAINTS_NOT_CRITICAL),
            ),
            _extension(
                "2.5.29.35",
                tlv(_SEQUENCE, tlv(0x80, self.key_identifier)),
                critical=has(Defect.AKI_CRITICAL),
            ),
            _extension(
                "2.5.29.17",
                _san(options),
                critical=subject_empty and not has(Defect.SAN_NOT_CRITICAL),
            ),
            _extension(
                "2.5.29.37",
                tlv(_SEQUENCE, _oid("1.3.6.1.5.5.7.3.1" if has(Defect.EKU_OTHER) else "2.23.133.8.1")),
                critical=has(Defect.EKU_CRITICAL),
            ),
            _extension("2.5.29.9", _directory_attributes(options.quirks)),
        ]
        if Quirk.POINTERS in options.quirks:
            place = tlv(0x86, b"http://ca.example/zoo")
            extensions += [
                _extension("2.5.29.31", tlv(_SEQUENCE, tlv(_SEQUENCE, tlv(0xA0, tlv(0xA0, place))))),
                _extension(
                    "1.3.6.1.5.5.7.1.1", tlv(_SEQUENCE, tlv(_SEQUENCE, _oid("1.3.6.1.5.5.7.48.2") + place))
                ),
            ]
        if Quirk.NO_EXTENDED_KEY_USAGE in options.quirks:
            del extensions[4]
        left_out = {
            Defect.KEY_USAGE_MISSING: 0,
            Defect.BASIC_CONSTRAINTS_MISSING: 1,
            Defect.AKI_MISSING: 2,
            Defect.SAN_MISSING: 3,
        }
        if options.defect in left_out:
            del extensions[left_out[options.defect]]
        if has(Defect.UNKNOWN_CRITICAL):
            extensions.append(_extension("1.3.6.1.4.1.99999.1", b"\x05\0", critical=True))
        if has(Defect.DUPLICATE_EXTENSION):
            extensions.append(extensions[0])
        return extensions


def _san(options: EKCertificateOptions) -> bytes:
    """Return GeneralNames with one directoryName of manufacturer, model and version."""
    attributes = [
        ("2.23.133.2.1", options.manufacturer),
        ("2.23.133.2.2", options.model),
        ("2.23.133.2.3", options.version),
    ]
    match options.defect:
        case Defect.SAN_WITHOUT_MANUFACTURER:
            del attributes[0]
        case Defect.SAN_WITHOUT_MODEL:
            del attributes[1]
        case Defect.SAN_MANUFACTURER_MALFORMED:
            attributes[0] = ("2.23.133.2.1", "id:XYZ")
        case Defect.SAN_EXTRA_ATTRIBUTE:
            attributes.append(("2.5.4.3", "extra"))
        case _:
            pass
    if Quirk.SAN_THREE_RDNS in options.quirks:
        name = _name(attributes)
    else:
        encoded = sorted(_attribute(oid, value) for oid, value in attributes)
        name = tlv(_SEQUENCE, tlv(_SET, b"".join(encoded)))
    directory_name = tlv(0xA4, name)
    count = 2 if options.defect == Defect.SAN_TWO_DIRECTORY_NAMES else 1
    return tlv(_SEQUENCE, directory_name * count)


def _directory_attributes(quirks: frozenset[Quirk]) -> bytes:
    """Return SubjectDirectoryAttributes: family 2.0, level 0, revision 164; security assertions where asked for."""
    specification = tlv(_SEQUENCE, tlv(_UTF8, b"2.0") + _integer(0) + _integer(164))
    attributes = tlv(_SEQUENCE, _oid("2.23.133.2.16") + tlv(_SET, specification))
    assertions = b""
    if Quirk.SECURITY_ASSERTIONS in quirks:
        # Field upgradable, EK made in the TPM, by its maker; Common Criteria EAL 4+, FIPS 140-2 level 2.
        criteria = tlv(22, b"3.1") + tlv(10, b"\x04") + tlv(10, b"\x02") + tlv(_BOOLEAN, b"\xff")
        fips = tlv(22, b"140-2") + tlv(10, b"\x02") + tlv(_BOOLEAN, b"\0")
        assertions = _integer(1) + tlv(_BOOLEAN, b"\xff") + tlv(0x80, b"\0") + tlv(0x81, b"\0")
        assertions += tlv(0xA3, criteria) + tlv(0xA4, fips)
    if Quirk.SECURITY_ASSERTIONS_ODD in quirks:
        # A value that says more bytes than there are.
        assertions = b"\x02\x05\x01"
    if assertions:
        attributes += tlv(_SEQUENCE, _oid("2.23.133.2.18") + tlv(_SET, tlv(_SEQUENCE, assertions)))
    return tlv(_SEQUENCE, attributes)


def _as_in_nv(certificate: bytes, quirks: frozenset[Quirk], rng: random.Random) -> bytes:
    if Quirk.PADDING_00 in quirks:
        certificate += bytes(300)
    if Quirk.PADDING_11 in quirks:
        certificate += b"\x11" * 192
    if Quirk.PADDING_MIXED in quirks:
        certificate += rng.randbytes(431)
    if Quirk.WRAPPER in quirks:
        inner = b"\x10\x02" + certificate
        certificate = b"\x10\x01\0" + len(inner).to_bytes(2) + inner
    return certificate


def _other_spki(rng: random.Random) -> bytes:
    key = ec.derive_private_key(rng.getrandbits(255) + 1, ec.SECP256R1()).public_key()
    return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def _with_oaep(ek: Public) -> bytes:
    key = ek.key()
    if not isinstance(key, rsa.RSAPublicKey):
        raise TypeError("only an RSA key can be marked RSAES-OAEP")
    bare = key.public_bytes(Encoding.DER, PublicFormat.PKCS1)
    return tlv(_SEQUENCE, tlv(_SEQUENCE, _oid(_RSAES_OAEP)) + tlv(_BITS, b"\0" + bare))


# DER, as far as certificates need it

_integer, _oid = der.write_unsigned, der.write_oid


def _attribute(oid: str, value: str, string: int = _UTF8) -> bytes:
    return tlv(_SEQUENCE, _oid(oid) + tlv(string, value.encode()))


def _name(attributes: Sequence[tuple[str, str]], string: int = _UTF8) -> bytes:
    return tlv(_SEQUENCE, b"".join(tlv(_SET, _attribute(oid, value, string)) for oid, value in attributes))


def _one_rdn(attributes: Sequence[tuple[str, str]]) -> bytes:
    """Return a Name of one RDN, its attributes in the opposite of the order that DER demands."""
    written = sorted((_attribute(oid, value) for oid, value in attributes), reverse=True)
    return tlv(_SEQUENCE, tlv(_SET, b"".join(written)))


def _time(at: datetime) -> bytes:
    """Return UTCTime before 2050 and GeneralizedTime from then on (RFC 5280, 4.1.2.5)."""
    at = at.astimezone(UTC)
    if at.year < 2050:
        return tlv(23, at.strftime("%y%m%d%H%M%SZ").encode())
    return tlv(24, at.strftime("%Y%m%d%H%M%SZ").encode())


def _extension(oid: str, value: bytes, *, critical: bool = False) -> bytes:
    flag = tlv(_BOOLEAN, b"\xff") if critical else b""
    return tlv(_SEQUENCE, _oid(oid) + flag + tlv(_OCTETS, value))


def _key_identifier(spki: bytes) -> bytes:
    return hashlib.sha256(spki).digest()[:20]


def _tbs(
    *,
    serial: bytes,
    algorithm: bytes,
    issuer: bytes,
    validity: tuple[datetime, datetime],
    subject: bytes,
    spki: bytes,
    extensions: list[bytes],
    version_1: bool = False,
) -> bytes:
    """Return the TBSCertificate (RFC 5280, 4.1); version 1 has neither version nor extensions."""
    parts = [
        serial,
        algorithm,
        issuer,
        tlv(_SEQUENCE, _time(validity[0]) + _time(validity[1])),
        subject,
        spki,
    ]
    if not version_1:
        parts = [tlv(0xA0, _integer(2)), *parts, tlv(0xA3, tlv(_SEQUENCE, b"".join(extensions)))]
    return tlv(_SEQUENCE, b"".join(parts))


def _pss(key: rsa.RSAPrivateKey, algorithm: hashes.HashAlgorithm, message: bytes) -> bytes:
    """Sign as RSASSA-PSS (RFC 8017, 8.1.1), with a salt of digest length that follows from the message."""

    def digest(data: bytes) -> bytes:
        return hashlib.new(algorithm.name, data).digest()

    size, length = algorithm.digest_size, key.key_size // 8
    salt = digest(b"salt" + message)
    h = digest(bytes(8) + digest(message) + salt)
    block = bytes(length - 2 * size - 2) + b"\x01" + salt
    mask = b"".join(digest(h + i.to_bytes(4)) for i in range(-(-len(block) // size)))
    masked = bytes(a ^ b for a, b in zip(block, mask, strict=False))
    encoded = bytes([masked[0] & 0x7F]) + masked[1:] + h + b"\xbc"
    numbers = key.private_numbers()
    return pow(int.from_bytes(encoded), numbers.d, numbers.public_numbers.n).to_bytes(length)


_RSASSA_PSS: Final = "1.2.840.113549.1.1.10"
_ECDSA_WITH: Final = {
    "sha1": "1.2.840.10045.4.1",
    "sha256": "1.2.840.10045.4.3.2",
    "sha384": "1.2.840.10045.4.3.3",
    "sha512": "1.2.840.10045.4.3.4",
}
_RSA_WITH: Final = {"sha1": "1.2.840.113549.1.1.5", "sha256": "1.2.840.113549.1.1.11"}
_DIGEST: Final = {"sha1": "1.3.14.3.2.26", "sha256": "2.16.840.1.101.3.4.2.1"}


def make_ek_certificate(
    ek: Public,
    authority: CertificateAuthority,
    *,
    at: datetime,
    options: EKCertificateOptions | None = None,
) -> bytes:
    """Return an EK certificate; as `CertificateAuthority.issue_ek_certificate`."""
    return authority.issue_ek_certificate(ek, at=at, options=options)


def pem(der: bytes) -> bytes:
    """Return *der* as a PEM certificate."""
    return wire.pem("CERTIFICATE", der).encode()
