"""EK certificates: who made this TPM (TCG EK Credential Profile 2.6; TPM.md §2.2-2.3, checks 1-4, 9).

Certificates in the field are not strict DER: the reader is lenient field by field (asn1crypto), the checks are
not. `cryptography.x509` is never used to load one: it refuses certificates that vendors have shipped.
Chains to vendor anchors are judged elsewhere (`attestation.endorsements`); here a certificate is only read,
held against the profile and against the EK.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from asn1crypto import x509
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from attestation.endorsements.vendors import SIMULATOR, SIMULATOR_ID, vendor_name
from attestation.errors import EKCertificateRejected, MalformedEvidence
from attestation.tpm import Alg, Public
from attestation.tpm.public import PublicKey

MEDIA_TYPE = "application/vnd.itl.ek-certificate"

MAX_CERTIFICATE_BYTES = 8192
"""Longest certificate accepted, padding included (TPM.md §1.1)."""

_PEM: Final = re.compile(
    rb"\A\s*-----BEGIN (?:TRUSTED )?CERTIFICATE-----\s([A-Za-z0-9+/=\s]+)-----END (?:TRUSTED )?CERTIFICATE-----\s*\Z"
)
_UNREADABLE: Final = (
    ValueError,
    TypeError,
    KeyError,
    AttributeError,
    IndexError,
    OverflowError,
    RecursionError,
)
"""What asn1crypto and cryptography raise for bytes that they cannot read; anything else is a bug, to be seen."""
_EKU_EK: Final = "2.23.133.8.1"
_MANUFACTURER: Final = "2.23.133.2.1"
_MODEL: Final = "2.23.133.2.2"
_VERSION: Final = "2.23.133.2.3"
_MANUFACTURER_ID: Final = re.compile(r"id:[0-9A-Fa-f]{8}\Z")
_NEVER_CRITICAL: Final = (
    "authority_key_identifier",
    "key_identifier",
    "authority_information_access",
    "crl_distribution_points",
    "extended_key_usage",
)
_UNDERSTOOD_IF_CRITICAL: Final = frozenset({"basic_constraints", "key_usage", "subject_alt_name"})
_RSA_KEY: Final = "1.2.840.113549.1.1.1"
_OAEP_KEY: Final = "1.2.840.113549.1.1.7"
_CURVES: Final = {
    "1.2.840.10045.3.1.7": ec.SECP256R1(),
    "1.3.132.0.34": ec.SECP384R1(),
    "1.3.132.0.35": ec.SECP521R1(),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class UnverifiedEKCertificate:
    """A certificate cut out of whatever stood in NV. Nothing in it may be believed yet.

    Args:
        der: The certificate, without wrapper and padding.
        padding_bytes: How many bytes followed it.
    """

    der: bytes
    padding_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EKCertificateClaims:
    """What a certificate that meets the profile, and belongs to this EK, says of its TPM.

    It is said by whoever signed it; whether that is a vendor, `attestation.endorsements` decides.

    Args:
        subject: Subject in words; may be empty.
        issuer: Issuer in words.
        serial: Serial number.
        manufacturer: `id:` and eight hex digits.
        vendor: Registered name of the manufacturer, or `simulator`.
        model: TPM model.
        firmware: TPM version, as written by the maker.
        not_before: Start of validity, UTC.
        not_after: End of validity, UTC.
        sha256: SHA-256 of the DER, hex.
    """

    subject: str
    issuer: str
    serial: int
    manufacturer: str
    vendor: str
    model: str
    firmware: str
    not_before: datetime
    not_after: datetime
    sha256: str


def parse(data: bytes) -> UnverifiedEKCertificate:
    """Cut the certificate out of PEM, DER, or the content of an NV index with wrapper and padding.

    Raises:
        MalformedEvidence: Longer than 8 KiB, or no outer DER SEQUENCE of the length it states.
    """
    if len(data) > MAX_CERTIFICATE_BYTES:
        raise MalformedEvidence(
            f"EK certificate of {len(data)} bytes, at most {MAX_CERTIFICATE_BYTES} allowed"
        )
    # 1. ek-unwrap: PEM, or a TPM 1.2 style wrapper 10 01 00 ‖ u16 length, inside it optionally 10 02.
    pem = _PEM.match(data)
    if pem is not None:
        try:
            data = base64.b64decode(b"".join(pem.group(1).split()), validate=True)
        except binascii.Error as e:
            raise MalformedEvidence("EK certificate: PEM holds no base64") from e
    if data[:3] == b"\x10\x01\x00":
        data = data[5 : 5 + int.from_bytes(data[3:5])]
        if data[:2] == b"\x10\x02":
            data = data[2:]
    # 1. The outer DER length says where the certificate ends; what follows is padding of the NV index.
    size = _outer_length(data)
    certificate = UnverifiedEKCertificate(der=data[:size], padding_bytes=len(data) - size)
    _load(certificate.der)
    return certificate


def _outer_length(data: bytes) -> int:
    """Return the length of the outer SEQUENCE with its header (X.690, 8.1.3; definite lengths only)."""
    if len(data) < 4 or data[0] != 0x30:
        raise MalformedEvidence("EK certificate: no outer SEQUENCE")
    size, header = data[1], 2
    if size & 0x80:
        header += size & 0x7F
        if size not in (0x81, 0x82) or len(data) < header:
            raise MalformedEvidence("EK certificate: outer length is not definite, or too long")
        size = int.from_bytes(data[2:header])
    if header + size > len(data):
        raise MalformedEvidence(f"EK certificate: says {header + size} bytes, has {len(data)}")
    return header + size


def _load(der: bytes) -> x509.Certificate:
    """Parse leniently, touching every field that `verify` reads, so that only here a parser can fail."""
    try:
        certificate = x509.Certificate.load(der, strict=True)
        tbs = certificate["tbs_certificate"]
        _ = tbs["version"].native, tbs["serial_number"].native, tbs["signature"]["algorithm"].native
        _ = tbs["validity"]["not_before"].native, tbs["validity"]["not_after"].native
        _ = (
            certificate.subject.human_friendly,
            certificate.issuer.human_friendly,
            len(certificate.subject.chosen),
        )
        _ = tbs["subject_public_key_info"]["algorithm"]["algorithm"].dotted
        _ = bytes(tbs["subject_public_key_info"]["public_key"])
        for extension in tbs["extensions"]:
            _ = extension["extn_id"].native, extension["critical"].native
        for name in ("basic_constraints_value", "key_usage_value", "extended_key_usage_value"):
            value = getattr(certificate, name)
            _ = value is None or value.native
        if certificate.subject_alt_name_value is not None:
            _ = [
                _name_attributes(n) for n in certificate.subject_alt_name_value if n.name == "directory_name"
            ]
    except _UNREADABLE as e:
        raise MalformedEvidence("EK certificate: not an X.509 certificate") from e
    return certificate


def verify(
    certificate: UnverifiedEKCertificate, *, ek: Public, at: datetime, allow_simulator: bool
) -> EKCertificateClaims:
    """Hold *certificate* against the profile and against the EK it is said to certify.

    The signature is not checked here: that takes an issuer, which `attestation.endorsements` looks for.

    Args:
        certificate: Result of `parse`.
        ek: Public area of the EK, checked to be one.
        at: The instant to verify at, UTC.
        allow_simulator: Accept the manufacturer id of swtpm; a development setting, never a default.

    Raises:
        EKCertificateRejected: With the rule that is broken.
    """
    loaded = _load(certificate.der)
    tbs = loaded["tbs_certificate"]
    # 9. ek-template: it certifies this very key. Otherwise anybody could show a stranger's certificate.
    if _canonical_spki(tbs["subject_public_key_info"]) != ek.spki_der():
        raise EKCertificateRejected("the certificate is for another key than the EK")
    # 3. ek-profile: version, serial, issuer, dates, extensions, key usage.
    _check_fields(tbs, loaded, at)
    _check_extensions(loaded, is_rsa=ek.type == Alg.RSA)
    manufacturer, model, firmware = _tpm_attributes(loaded)
    # 4. ek-vendor: a registered maker. Otherwise a software TPM would pass for hardware.
    vendor = vendor_name(manufacturer)
    if vendor is None and allow_simulator and manufacturer == SIMULATOR_ID:
        vendor = SIMULATOR
    if vendor is None:
        raise EKCertificateRejected(f"manufacturer {manufacturer} is not in the TCG vendor registry")
    return EKCertificateClaims(
        subject=loaded.subject.human_friendly,
        issuer=loaded.issuer.human_friendly,
        serial=tbs["serial_number"].native,
        manufacturer=manufacturer,
        vendor=vendor,
        model=model,
        firmware=firmware,
        not_before=_utc(tbs["validity"]["not_before"].native),
        not_after=_utc(tbs["validity"]["not_after"].native),
        sha256=hashlib.sha256(certificate.der).hexdigest(),
    )


def _check_fields(tbs: Any, loaded: x509.Certificate, at: datetime) -> None:
    if tbs["version"].native != "v3":
        raise EKCertificateRejected(f"certificate version {tbs['version'].native}, v3 expected")
    if tbs["serial_number"].native <= 0:
        raise EKCertificateRejected("serial number is not positive")
    if not len(loaded.issuer.chosen):
        raise EKCertificateRejected("issuer is empty")
    not_before = _utc(tbs["validity"]["not_before"].native)
    not_after = _utc(tbs["validity"]["not_after"].native)
    if not not_before <= at <= not_after:
        raise EKCertificateRejected(f"valid from {not_before:%Y-%m-%d} to {not_after:%Y-%m-%d}, not now")


def _check_extensions(loaded: x509.Certificate, *, is_rsa: bool) -> None:
    oids = [extension["extn_id"].dotted for extension in loaded["tbs_certificate"]["extensions"]]
    if len(set(oids)) != len(oids):
        # RFC 5280, 4.2. Two readers could each take another one of them.
        raise EKCertificateRejected("an extension appears twice")
    critical = loaded.critical_extensions
    constraints = loaded.basic_constraints_value
    if constraints is None or constraints["ca"].native or "basic_constraints" not in critical:
        raise EKCertificateRejected("BasicConstraints must be critical with CA=false")
    usage = loaded.key_usage_value
    wanted = "key_encipherment" if is_rsa else "key_agreement"
    if usage is None or "key_usage" not in critical or wanted not in usage.native:
        raise EKCertificateRejected(f"KeyUsage must be critical with {wanted}")
    if loaded.authority_key_identifier_value is None:
        raise EKCertificateRejected("AuthorityKeyIdentifier is absent")
    extended = loaded.extended_key_usage_value
    if extended is not None and _EKU_EK not in [purpose.dotted for purpose in extended]:
        raise EKCertificateRejected(f"ExtendedKeyUsage does not contain {_EKU_EK}")
    for name in _NEVER_CRITICAL:
        if name in critical:
            raise EKCertificateRejected(f"extension {name} must not be critical")
    unknown = sorted(critical - _UNDERSTOOD_IF_CRITICAL)
    if unknown:
        raise EKCertificateRejected(f"unknown critical extension {unknown[0]}")


def _tpm_attributes(loaded: x509.Certificate) -> tuple[str, str, str]:
    """Return manufacturer, model and version from the subject alternative name (EK profile 3.2.9)."""
    names = loaded.subject_alt_name_value
    directories = [n for n in names or () if n.name == "directory_name"]
    if len(directories) != 1:
        raise EKCertificateRejected(f"{len(directories)} directory names in the SAN, exactly one expected")
    if not len(loaded.subject.chosen) and "subject_alt_name" not in loaded.critical_extensions:
        raise EKCertificateRejected("the SAN must be critical where the subject is empty")
    attributes = _name_attributes(directories[0])
    if sorted(oid for oid, _ in attributes) != [_MANUFACTURER, _MODEL, _VERSION]:
        raise EKCertificateRejected(
            "the SAN must name manufacturer, model and version, each once, nothing else"
        )
    values = dict(attributes)
    if not _MANUFACTURER_ID.match(values[_MANUFACTURER]):
        raise EKCertificateRejected("manufacturer is not id: and eight hex digits")
    return values[_MANUFACTURER], values[_MODEL], values[_VERSION]


def _name_attributes(directory_name: Any) -> list[tuple[str, str]]:
    """Return (OID, value) of every attribute of a directory name, in one RDN or several."""
    return [
        (attribute["type"].dotted, str(attribute["value"].native))
        for relative in directory_name.chosen.chosen
        for attribute in relative
    ]


def _canonical_spki(info: Any) -> bytes:
    """Return the SPKI DER as `Public.spki_der` writes it; RSAES-OAEP keys are read as rsaEncryption.

    Raises:
        EKCertificateRejected: Neither RSA nor ECC on a named curve that we use.
    """
    key: PublicKey
    algorithm = info["algorithm"]["algorithm"].dotted
    try:
        if algorithm in (_RSA_KEY, _OAEP_KEY):
            numbers = info["public_key"].parsed
            key = rsa.RSAPublicNumbers(
                numbers["public_exponent"].native, numbers["modulus"].native
            ).public_key()
        else:
            curve = _CURVES[info["algorithm"]["parameters"].chosen.dotted]
            key = ec.EllipticCurvePublicKey.from_encoded_point(curve, bytes(info["public_key"]))
    except _UNREADABLE as e:
        raise EKCertificateRejected(
            "the certified key is neither RSA nor ECC on P-256, P-384 or P-521"
        ) from e
    return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def _utc(at: datetime) -> datetime:
    return at.astimezone(UTC)
