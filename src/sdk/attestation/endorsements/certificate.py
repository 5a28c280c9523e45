"""X.509 certificates as makers of TPMs really write them (RFC 5280; TPM.md §2.2, check 2).

The reader is lenient where published certificates are odd and strict in everything else. Signatures are
verified over the TBS bytes as received, never over a re-encoding: re-encoding breaks those of four published
roots. `cryptography.x509` is never used to load a certificate: it refuses some that vendors have shipped.

Accepted, and named in `anomalies`: RDNs that DER would sort otherwise, ECDSA with NULL parameters, serial
numbers that are zero padded, zero or negative, the key type RSAES-OAEP, attributes of any length, and bytes
behind the certificate. A serial number decides nothing in a CA certificate, so any is read; the profile of
EK certificates refuses those that are not positive.
"""

# Algorithms for: ek-certificate, key-identifier, digest
# Longer than 500 lines: one parser of one structure, field by field.
from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from typing import Final

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_der_public_key

from attestation.endorsements import der
from attestation.endorsements.names import Name, parse_name
from attestation.errors import MalformedEvidence, SignatureInvalid

MAX_CERTIFICATE_BYTES: Final = 8192
"""Longest certificate read, with what follows it (TPM.md §1.1)."""
MAX_EXTENSIONS: Final = 64
MAX_SERIAL_BYTES: Final = 64
"""RFC 5280 asks for at most 20; padded ones are met."""
MIN_RSA_BITS: Final = 2048
MAX_RSA_BITS: Final = 8192
MAX_RSA_EXPONENT: Final = (1 << 32) - 1

PublicKey = rsa.RSAPublicKey | ec.EllipticCurvePublicKey

BASIC_CONSTRAINTS: Final = "2.5.29.19"
NAME_CONSTRAINTS: Final = "2.5.29.30"
KEY_USAGE: Final = "2.5.29.15"
SUBJECT_KEY_IDENTIFIER: Final = "2.5.29.14"
AUTHORITY_KEY_IDENTIFIER: Final = "2.5.29.35"
EXTENDED_KEY_USAGE: Final = "2.5.29.37"
SUBJECT_ALT_NAME: Final = "2.5.29.17"
SUBJECT_DIRECTORY_ATTRIBUTES: Final = "2.5.29.9"
CERTIFICATE_POLICIES: Final = "2.5.29.32"
CRL_DISTRIBUTION_POINTS: Final = "2.5.29.31"
AUTHORITY_INFORMATION_ACCESS: Final = "1.3.6.1.5.5.7.1.1"

UNDERSTOOD_IF_CRITICAL: Final = frozenset(
    {BASIC_CONSTRAINTS, KEY_USAGE, SUBJECT_ALT_NAME, EXTENDED_KEY_USAGE, CERTIFICATE_POLICIES}
)
"""Extensions that may be critical. Policies: any will do, none is asked for, so nothing is left unprocessed.

Name and policy constraints are not processed, so a certificate where they are critical is refused.
"""

KEY_USAGES: Final = (
    "digital_signature",
    "non_repudiation",
    "key_encipherment",
    "data_encipherment",
    "key_agreement",
    "key_cert_sign",
    "crl_sign",
    "encipher_only",
    "decipher_only",
)
"""Bits of KeyUsage, the first first (RFC 5280, 4.2.1.3)."""

_RSA_KEY: Final = "1.2.840.113549.1.1.1"
_OAEP_KEY: Final = "1.2.840.113549.1.1.7"
_EC_KEY: Final = "1.2.840.10045.2.1"
_RSA_ALGORITHM: Final = bytes.fromhex("300d06092a864886f70d0101010500")
_CURVES: Final[Mapping[str, tuple[str, ec.EllipticCurve, int]]] = {
    "1.2.840.10045.3.1.7": ("secp256r1", ec.SECP256R1(), 65),
    "1.3.132.0.34": ("secp384r1", ec.SECP384R1(), 97),
    "1.3.132.0.35": ("secp521r1", ec.SECP521R1(), 133),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SignatureScheme:
    """How something is said to be signed.

    Args:
        name: Like `sha256_rsa`, `sha384_rsa_pss`, `sha512_ecdsa`; of another algorithm its OID.
        kind: `rsa`, `pss`, `ecdsa`, or `other`, which is never accepted.
        hash: Digest of what is signed; None where the algorithm is another.
        mgf_hash: Digest of the mask generation; only for `pss`.
        salt_bytes: Length of the salt; only for `pss`.
        null_parameters: ECDSA with NULL where nothing should stand.
    """

    name: str
    kind: str
    hash: hashes.HashAlgorithm | None = None
    mgf_hash: hashes.HashAlgorithm | None = None
    salt_bytes: int = 0
    null_parameters: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Extension:
    """One extension: whether it is critical, and the DER in it."""

    critical: bool
    value: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """A certificate as read. Nothing in it may be believed until a path to an anchor was found.

    Args:
        der: The certificate, without what followed it.
        tbs: The signed bytes, a slice of *der*.
        sha256: SHA-256 of *der*, 64 lower-case hex.
        spki: SubjectPublicKeyInfo in its canonical form (TPM.md §1.4); keys are compared by this.
        spki_sha256: SHA-256 of *spki*, 64 lower-case hex.
        key_id: SHA-1 of the key's bits, the usual SubjectKeyIdentifier (RFC 5280, 4.2.1.2); finds, proves nothing.
        key: Like `rsa-2048`, `ec-secp256r1`; `other` for a kind that we do not use.
        version: 1, 2 or 3.
        serial: Serial number, of any sign.
        subject_name: Whom it is about.
        issuer_name: Who is said to have signed it.
        not_before: Start of validity, UTC.
        not_after: End of validity, UTC.
        ski: SubjectKeyIdentifier, or None.
        aki: keyIdentifier of the AuthorityKeyIdentifier, or None.
        is_ca: BasicConstraints says CA=true.
        path_length: pathLenConstraint, or None.
        key_usage: Words of `KEY_USAGES`, or None without the extension.
        extended_key_usage: OIDs; empty without the extension.
        extensions: By OID; of one that stands twice, the first.
        critical_unknown: The first critical extension that we do not process, or None.
        repeated_extension: The first extension that stands twice, or None.
        algorithm: The AlgorithmIdentifier behind the TBS, DER.
        inner_algorithm: The one inside the TBS; must be the same.
        scheme: What *algorithm* means.
        signature: The signature value.
        anomalies: What is not as the standard demands, in words.
        padding_bytes: How many bytes followed the certificate.
    """

    der: bytes = field(repr=False)
    tbs: bytes = field(repr=False)
    sha256: str
    spki: bytes = field(repr=False)
    spki_sha256: str
    key_id: bytes = field(repr=False)
    key: str
    version: int
    serial: int
    subject_name: Name = field(repr=False)
    issuer_name: Name = field(repr=False)
    not_before: datetime
    not_after: datetime
    ski: bytes | None = field(repr=False)
    aki: bytes | None = field(repr=False)
    is_ca: bool
    path_length: int | None
    key_usage: frozenset[str] | None
    extended_key_usage: frozenset[str]
    extensions: Mapping[str, Extension] = field(repr=False)
    critical_unknown: str | None
    repeated_extension: str | None
    algorithm: bytes = field(repr=False)
    inner_algorithm: bytes = field(repr=False)
    scheme: SignatureScheme = field(repr=False)
    signature: bytes = field(repr=False)
    anomalies: tuple[str, ...]
    padding_bytes: int
    _loaded: list[PublicKey] = field(default_factory=list, init=False, repr=False, compare=False)

    def __hash__(self) -> int:
        """Hash by the bytes: two certificates are the same where these are."""
        return hash(self.sha256)

    @property
    def subject(self) -> str:
        """The subject in words; may be empty."""
        return self.subject_name.text

    @property
    def issuer(self) -> str:
        """The issuer in words."""
        return self.issuer_name.text

    @property
    def subject_key(self) -> bytes:
        """The subject, for comparing (RFC 5280, 7.1)."""
        return self.subject_name.key

    @property
    def issuer_key(self) -> bytes:
        """The issuer, for comparing (RFC 5280, 7.1)."""
        return self.issuer_name.key

    @property
    def self_issued(self) -> bool:
        """Subject and issuer are one name (RFC 5280, 3.2); says nothing of who signed."""
        return self.subject_key == self.issuer_key

    @property
    def signature_algorithm(self) -> str:
        """Name of the signature algorithm, like `sha384_ecdsa`."""
        return self.scheme.name

    @property
    def public_key(self) -> PublicKey:
        """The certified key, loaded when first asked for; an ECC point is then checked to be on its curve.

        Raises:
            SignatureInvalid: No such key exists, or its kind is not one that we use.
        """
        if self._loaded:
            return self._loaded[0]
        try:
            key = load_der_public_key(self.spki) if self.key != "other" else None
        except (ValueError, UnsupportedAlgorithm) as e:
            raise SignatureInvalid("the certified key does not exist") from e
        if not isinstance(key, (rsa.RSAPublicKey, ec.EllipticCurvePublicKey)):
            raise SignatureInvalid("the certified key is neither RSA nor ECC on P-256, P-384 or P-521")
        self._loaded.append(key)
        return key

    def verify_issued_by(self, issuer: Certificate, *, sha1_allowed: Collection[str] = ()) -> None:
        """Verify that the key of *issuer* signed this certificate; nothing else about *issuer* is looked at.

        Args:
            issuer: Whose key it is said to be.
            sha1_allowed: SHA-256, hex, of the certificates that may be signed over SHA-1.

        Raises:
            SignatureInvalid: It did not, or by an algorithm that proves nothing.
        """
        refusal = self.algorithm_refusal(sha1_allowed)
        if refusal is not None:
            raise SignatureInvalid(refusal)
        verify_signed(self.tbs, self.signature, self.scheme, issuer)

    def algorithm_refusal(self, sha1_allowed: Collection[str]) -> str | None:
        """Return why no signature by this algorithm is looked at, or None."""
        # Unsigned and signed statement of the algorithm agree. Otherwise the unsigned one could choose.
        if self.algorithm != self.inner_algorithm:
            return "the signature algorithm inside the signed part is another"
        # SHA-1 has collisions: only of bytes that somebody has pinned, so that no second certificate fits.
        if isinstance(self.scheme.hash, hashes.SHA1) and self.sha256 not in sha1_allowed:
            return "signed over SHA-1, and not one of the certificates where that is allowed"
        return None


def verify_signed(signed: bytes, signature: bytes, scheme: SignatureScheme, issuer: Certificate) -> None:
    """Verify *signature* over *signed* under the key of *issuer*.

    Raises:
        SignatureInvalid: Not signed by it, the key is too weak, or of another kind than the algorithm.
    """
    weakness = key_weakness(issuer)
    if weakness is not None:
        raise SignatureInvalid(weakness)
    key = issuer.public_key
    try:
        if isinstance(key, rsa.RSAPublicKey) and scheme.hash is not None and scheme.kind == "rsa":
            key.verify(signature, signed, padding.PKCS1v15(), scheme.hash)
        elif isinstance(key, rsa.RSAPublicKey) and scheme.hash is not None and scheme.mgf_hash is not None:
            pss = padding.PSS(mgf=padding.MGF1(scheme.mgf_hash), salt_length=scheme.salt_bytes)
            key.verify(signature, signed, pss, scheme.hash)
        elif (
            isinstance(key, ec.EllipticCurvePublicKey) and scheme.hash is not None and scheme.kind == "ecdsa"
        ):
            key.verify(signature, signed, ec.ECDSA(scheme.hash))
        else:
            raise SignatureInvalid(f"algorithm {scheme.name} does not fit a key of {issuer.key}")
    except (InvalidSignature, ValueError) as e:
        raise SignatureInvalid(f"not signed by the key of {issuer.subject or 'its issuer'}") from e


def key_weakness(certificate: Certificate) -> str | None:
    """Return why the key of *certificate* may sign nothing, or None: RSA from 2048 bits, P-256, P-384, P-521."""
    if certificate.key == "other":
        return "the key is neither RSA nor ECC on P-256, P-384 or P-521"
    if certificate.key.startswith("rsa-"):
        size = int(certificate.key[4:])
        if size < MIN_RSA_BITS:
            return f"RSA key of {size} bits, at least {MIN_RSA_BITS} expected"
        if size > MAX_RSA_BITS:
            # Longer ones take longer to use than whoever shows them should be able to ask for.
            return f"RSA key of {size} bits, at most {MAX_RSA_BITS} allowed"
    return None


def outer_length(data: bytes, what: str) -> int:
    """Return the length of the SEQUENCE that *data* begins with, header included.

    Raises:
        MalformedEvidence: There is none, or it says more bytes than there are.
    """
    return der.expect(data, 0, len(data), der.SEQUENCE, what).stop


def parse_certificate(data: bytes, *, max_bytes: int = MAX_CERTIFICATE_BYTES) -> Certificate:
    """Read one DER certificate; bytes behind it are counted and cut off.

    Args:
        data: The certificate.
        max_bytes: Longest *data* read; ours of ML-DSA need more than those of vendors.

    Raises:
        MalformedEvidence: The only way to fail; longer than *max_bytes*, or no certificate.
    """
    if len(data) > max_bytes:
        raise MalformedEvidence(f"certificate of {len(data)} bytes, at most {max_bytes} allowed")
    # Certificate ::= SEQUENCE { tbsCertificate, signatureAlgorithm, signatureValue } (RFC 5280, 4.1)
    outer = der.expect(data, 0, len(data), der.SEQUENCE, "certificate")
    padding_bytes = len(data) - outer.stop
    if padding_bytes:
        data = data[: outer.stop]
    tbs = der.expect(data, outer.start, outer.stop, der.SEQUENCE, "certificate: signed part")
    algorithm = der.expect(data, tbs.stop, outer.stop, der.SEQUENCE, "certificate: algorithm")
    value = der.expect(data, algorithm.stop, outer.stop, der.BIT_STRING, "certificate: signature")
    if value.stop != outer.stop:
        raise MalformedEvidence("certificate: more than three parts")
    signature = der.whole_bytes(data, value)

    # TBSCertificate ::= SEQUENCE { [0] version, serialNumber, signature, issuer, validity, subject,
    #                               subjectPublicKeyInfo, [1] [2] unique identifiers, [3] extensions }
    at, end = tbs.start, tbs.stop
    version = 1
    first = der.element(data, at, end)
    if first.tag == 0xA0:
        inner = der.expect(data, first.start, first.stop, der.INTEGER, "certificate: version")
        version = der.small_integer(data, inner) + 1
        at = first.stop
    number = der.expect(data, at, end, der.INTEGER, "certificate: serial number")
    if number.stop - number.start > MAX_SERIAL_BYTES:
        raise MalformedEvidence(f"certificate: serial number of more than {MAX_SERIAL_BYTES} bytes")
    serial = der.integer(data, number)
    inner_algorithm = der.expect(data, number.stop, end, der.SEQUENCE, "certificate: inner algorithm")
    issuer = der.expect(data, inner_algorithm.stop, end, der.SEQUENCE, "certificate: issuer")
    validity = der.expect(data, issuer.stop, end, der.SEQUENCE, "certificate: validity")
    begin = der.element(data, validity.start, validity.stop)
    finish = der.element(data, begin.stop, validity.stop)
    if finish.stop != validity.stop:
        raise MalformedEvidence("certificate: validity of more than two instants")
    subject = der.expect(data, validity.stop, end, der.SEQUENCE, "certificate: subject")
    info = der.expect(data, subject.stop, end, der.SEQUENCE, "certificate: key")
    extensions: dict[str, Extension] = {}
    repeated: str | None = None
    at = info.stop
    last = 0xA0
    while at < end:
        part = der.element(data, at, end)
        if part.tag not in (0x81, 0xA1, 0x82, 0xA2, 0xA3) or part.tag & 0x1F <= last & 0x1F:
            raise MalformedEvidence(f"certificate: tag 0x{part.tag:02x} behind the key")
        if part.tag == 0xA3:
            repeated = _read_extensions(data, part, extensions)
        last, at = part.tag, part.stop

    issuer_name = parse_name(data[issuer.at : issuer.stop])
    subject_name = parse_name(data[subject.at : subject.stop])
    key, spki, key_id, is_oaep = _read_key(data, info)
    scheme = signature_scheme(data[algorithm.at : algorithm.stop])
    is_ca, path_length = _read_constraints(extensions.get(BASIC_CONSTRAINTS))
    anomalies = [
        *(f"issuer: {text}" for text in issuer_name.anomalies),
        *(f"subject: {text}" for text in subject_name.anomalies),
    ]
    if padding_bytes:
        anomalies.append(f"{padding_bytes} bytes of padding")
    if serial <= 0:
        anomalies.append("serial number is not positive")
    elif data[number.start] == 0 and data[number.start + 1] < 0x80:
        anomalies.append("serial number is zero padded")
    if is_oaep:
        anomalies.append("key type is RSAES-OAEP")
    if scheme.null_parameters:
        anomalies.append("ECDSA with NULL parameters")
    cut = bytes(data)
    return Certificate(
        der=cut,
        tbs=cut[tbs.at : tbs.stop],
        sha256=hashlib.sha256(cut).hexdigest(),
        spki=spki,
        spki_sha256=hashlib.sha256(spki).hexdigest(),
        key_id=key_id,
        key=key,
        version=version,
        serial=serial,
        subject_name=subject_name,
        issuer_name=issuer_name,
        not_before=der.instant(data, begin),
        not_after=der.instant(data, finish),
        ski=_read_subject_key(extensions.get(SUBJECT_KEY_IDENTIFIER)),
        aki=_read_authority_key(extensions.get(AUTHORITY_KEY_IDENTIFIER)),
        is_ca=is_ca,
        path_length=path_length,
        key_usage=_read_usage(extensions.get(KEY_USAGE)),
        extended_key_usage=_read_purposes(extensions.get(EXTENDED_KEY_USAGE)),
        extensions=extensions,
        critical_unknown=next(
            (kind for kind, e in extensions.items() if e.critical and kind not in UNDERSTOOD_IF_CRITICAL),
            None,
        ),
        repeated_extension=repeated,
        algorithm=data[algorithm.at : algorithm.stop],
        inner_algorithm=data[inner_algorithm.at : inner_algorithm.stop],
        scheme=scheme,
        signature=signature,
        anomalies=tuple(anomalies),
        padding_bytes=padding_bytes,
    )


def _read_extensions(data: bytes, part: der.Element, into: dict[str, Extension]) -> str | None:
    """Read Extensions into *into*; return the first OID that stands twice, or None."""
    repeated = None
    outer = der.expect(data, part.start, part.stop, der.SEQUENCE, "certificate: extensions")
    if outer.stop != part.stop:
        raise MalformedEvidence("certificate: bytes behind the extensions")
    for i, found in enumerate(der.elements(data, outer.start, outer.stop)):
        if found.tag != der.SEQUENCE or i == MAX_EXTENSIONS:
            raise MalformedEvidence("certificate: extensions cannot be read")
        kind, extension = read_extension(data, found)
        if kind in into:
            repeated = repeated or kind
        else:
            into[kind] = extension
    return repeated


def read_extension(data: bytes, found: der.Element) -> tuple[str, Extension]:
    """Return OID and content of Extension ::= SEQUENCE { extnID, critical DEFAULT FALSE, extnValue }."""
    name = der.element(data, found.start, found.stop)
    value = der.element(data, name.stop, found.stop)
    critical = False
    if value.tag == der.BOOLEAN:
        # BER lets any byte but 00 be true; to read such a one as false would drop the word critical.
        critical = any(data[value.start : value.stop])
        value = der.element(data, value.stop, found.stop)
    if value.tag != der.OCTET_STRING or value.stop != found.stop:
        raise MalformedEvidence("an extension cannot be read")
    return der.oid(data, name), Extension(critical=critical, value=data[value.start : value.stop])


def _read_constraints(extension: Extension | None) -> tuple[bool, int | None]:
    """Return CA and path length of BasicConstraints ::= SEQUENCE { cA DEFAULT FALSE, pathLenConstraint OPTIONAL }."""
    if extension is None:
        return False, None
    value = extension.value
    outer = der.only(value, der.SEQUENCE, "BasicConstraints")
    at, is_ca, length = outer.start, False, None
    for found in der.elements(value, at, outer.stop):
        if found.tag == der.BOOLEAN and found.at == outer.start:
            is_ca = any(value[found.start : found.stop])
        elif found.tag == der.INTEGER and length is None:
            length = der.small_integer(value, found)
        else:
            raise MalformedEvidence("BasicConstraints: neither CA nor path length")
    return is_ca, length


def _read_usage(extension: Extension | None) -> frozenset[str] | None:
    if extension is None:
        return None
    return der.named_bits(extension.value, der.only(extension.value, der.BIT_STRING, "KeyUsage"), KEY_USAGES)


def _read_subject_key(extension: Extension | None) -> bytes | None:
    if extension is None:
        return None
    found = der.only(extension.value, der.OCTET_STRING, "SubjectKeyIdentifier")
    return extension.value[found.start : found.stop]


def _read_authority_key(extension: Extension | None) -> bytes | None:
    """Return [0] keyIdentifier; issuer and serial number, where they stand, are not used to find a path."""
    if extension is None:
        return None
    outer = der.only(extension.value, der.SEQUENCE, "AuthorityKeyIdentifier")
    for found in der.elements(extension.value, outer.start, outer.stop):
        if found.tag == 0x80:
            return extension.value[found.start : found.stop]
    return None


def _read_purposes(extension: Extension | None) -> frozenset[str]:
    if extension is None:
        return frozenset()
    value = extension.value
    outer = der.only(value, der.SEQUENCE, "ExtendedKeyUsage")
    return frozenset(der.oid(value, found) for found in der.elements(value, outer.start, outer.stop))


def _read_key(data: bytes, info: der.Element) -> tuple[str, bytes, bytes, bool]:
    """Return kind, canonical SPKI, SHA-1 of the key's bits, and whether it was marked RSAES-OAEP.

    SubjectPublicKeyInfo ::= SEQUENCE { SEQUENCE { OID, parameters }, BIT STRING }
    """
    algorithm = der.expect(data, info.start, info.stop, der.SEQUENCE, "certificate: key algorithm")
    name = der.element(data, algorithm.start, algorithm.stop)
    value = der.expect(data, algorithm.stop, info.stop, der.BIT_STRING, "certificate: key bits")
    if value.stop != info.stop:
        raise MalformedEvidence("certificate: bytes behind the key")
    content = der.whole_bytes(data, value)
    key_id = hashlib.sha1(content, usedforsecurity=False).digest()
    kind = der.oid(data, name)
    if kind in (_RSA_KEY, _OAEP_KEY):
        found = _rsa_key(content)
        if found is not None:
            return *found, key_id, kind == _OAEP_KEY
    elif kind == _EC_KEY and name.stop < algorithm.stop:
        parameters = der.element(data, name.stop, algorithm.stop)
        curve = (
            _CURVES.get(der.dotted(data[parameters.start : parameters.stop]))
            if parameters.tag == der.OID
            else None
        )
        if curve is not None and parameters.stop == algorithm.stop:
            words, group, size = curve
            spki = data[info.at : info.stop]
            if content[:1] != b"\x04" or len(content) != size:
                spki = _uncompressed(group, content) or b""
            if spki:
                return f"ec-{words}", spki, key_id, False
    return "other", data[info.at : info.stop], key_id, False


def _rsa_key(content: bytes) -> tuple[str, bytes] | None:
    """Return kind and canonical SPKI of RSAPublicKey ::= SEQUENCE { modulus, publicExponent }; None for no such key."""
    outer = der.only(content, der.SEQUENCE, "RSA key")
    numbers = list(der.elements(content, outer.start, outer.stop))
    if len(numbers) != 2 or any(n.tag != der.INTEGER for n in numbers):
        return None
    modulus, exponent = (der.integer(content, n) for n in numbers)
    if modulus <= 0 or not 3 <= exponent <= MAX_RSA_EXPONENT or not exponent & 1:
        return None
    # Written anew: with a zero in front of the modulus one key would have two fingerprints.
    bare = der.write(der.SEQUENCE, der.write_unsigned(modulus) + der.write_unsigned(exponent))
    spki = der.write(der.SEQUENCE, _RSA_ALGORITHM + der.write(der.BIT_STRING, b"\0" + bare))
    return f"rsa-{modulus.bit_length()}", spki


def _uncompressed(curve: ec.EllipticCurve, point: bytes) -> bytes | None:
    try:
        key = ec.EllipticCurvePublicKey.from_encoded_point(curve, point)
    except ValueError:
        return None
    return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


_SHA1: Final = hashes.SHA1()  # noqa: S303 -- to name it; it is refused but for pinned certificates
_HASHES: Final[Mapping[str, hashes.HashAlgorithm]] = {
    "1.3.14.3.2.26": _SHA1,
    "2.16.840.1.101.3.4.2.1": hashes.SHA256(),
    "2.16.840.1.101.3.4.2.2": hashes.SHA384(),
    "2.16.840.1.101.3.4.2.3": hashes.SHA512(),
}
_SCHEMES: Final[Mapping[str, tuple[str, hashes.HashAlgorithm]]] = {
    "1.2.840.113549.1.1.5": ("rsa", _SHA1),
    "1.2.840.113549.1.1.11": ("rsa", hashes.SHA256()),
    "1.2.840.113549.1.1.12": ("rsa", hashes.SHA384()),
    "1.2.840.113549.1.1.13": ("rsa", hashes.SHA512()),
    "1.2.840.10045.4.1": ("ecdsa", _SHA1),
    "1.2.840.10045.4.3.2": ("ecdsa", hashes.SHA256()),
    "1.2.840.10045.4.3.3": ("ecdsa", hashes.SHA384()),
    "1.2.840.10045.4.3.4": ("ecdsa", hashes.SHA512()),
}
_RSASSA_PSS: Final = "1.2.840.113549.1.1.10"
_MGF1: Final = "1.2.840.113549.1.1.8"


def signature_scheme(algorithm: bytes) -> SignatureScheme:
    """Return what an AlgorithmIdentifier of a signature means; DER, header included.

    Raises:
        MalformedEvidence: Not an AlgorithmIdentifier, or its parameters cannot be read.
    """
    return _scheme_cached(algorithm) if len(algorithm) <= 128 else _scheme(algorithm)


def _scheme(algorithm: bytes) -> SignatureScheme:
    outer = der.only(algorithm, der.SEQUENCE, "signature algorithm")
    name = der.element(algorithm, outer.start, outer.stop)
    kind = der.oid(algorithm, name)
    parameters = algorithm[name.stop : outer.stop]
    known = _SCHEMES.get(kind)
    if known is not None:
        words, hash_ = known
        if parameters not in (b"", b"\x05\x00"):
            return SignatureScheme(name=kind, kind="other")
        return SignatureScheme(
            name=f"{hash_.name}_{words}",
            kind=words,
            hash=hash_,
            null_parameters=words == "ecdsa" and parameters != b"",
        )
    if kind == _RSASSA_PSS:
        return _pss(parameters)
    return SignatureScheme(name=kind, kind="other")


_scheme_cached = lru_cache(maxsize=64)(_scheme)


def _pss(parameters: bytes) -> SignatureScheme:
    """Read RSASSA-PSS-params (RFC 4055, 3.1): [0] hash, [1] mask generation, [2] salt length, [3] trailer.

    What is absent is SHA-1, 20 and 1, as the standard has it.
    """
    outer = der.only(parameters, der.SEQUENCE, "RSASSA-PSS parameters")
    hash_: hashes.HashAlgorithm | None = _SHA1
    mgf: hashes.HashAlgorithm | None = hash_
    salt, trailer, last = 20, 1, 0x9F
    for found in der.elements(parameters, outer.start, outer.stop):
        if not last < found.tag <= 0xA3:
            raise MalformedEvidence("RSASSA-PSS parameters cannot be read")
        last = found.tag
        content = parameters[found.start : found.stop]
        if found.tag == 0xA0:
            hash_ = _hash_of(content)
        elif found.tag == 0xA1:
            generation = der.only(content, der.SEQUENCE, "mask generation")
            function = der.element(content, generation.start, generation.stop)
            is_mgf1 = der.oid(content, function) == _MGF1
            mgf = _hash_of(content[function.stop : generation.stop]) if is_mgf1 else None
        else:
            number = der.small_integer(content, der.only(content, der.INTEGER, "RSASSA-PSS parameters"))
            salt, trailer = (number, trailer) if found.tag == 0xA2 else (salt, number)
    if hash_ is None or mgf is None or trailer != 1 or salt > hash_.digest_size:
        return SignatureScheme(name=_RSASSA_PSS, kind="other")
    if isinstance(mgf, hashes.SHA1) and not isinstance(hash_, hashes.SHA1):
        return SignatureScheme(name=_RSASSA_PSS, kind="other")
    return SignatureScheme(
        name=f"{hash_.name}_rsa_pss", kind="pss", hash=hash_, mgf_hash=mgf, salt_bytes=salt
    )


def _hash_of(algorithm: bytes) -> hashes.HashAlgorithm | None:
    outer = der.only(algorithm, der.SEQUENCE, "hash algorithm")
    name = der.element(algorithm, outer.start, outer.stop)
    return _HASHES.get(der.oid(algorithm, name))
