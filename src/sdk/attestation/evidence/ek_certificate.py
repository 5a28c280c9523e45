"""EK certificates: who made this TPM (TCG EK Credential Profile 2.6; TPM.md §2.2-2.3, checks 1-4, 9).

Certificates in the field are not strict DER: the reader (`attestation.endorsements.certificate`) is lenient, the
checks are not. Chains to vendor anchors are judged elsewhere (`attestation.endorsements`); here a certificate
is only read, held against the profile and against the EK.
"""

# Algorithms for: tpm-ek
from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from attestation.endorsements import der
from attestation.endorsements.certificate import (
    AUTHORITY_INFORMATION_ACCESS,
    AUTHORITY_KEY_IDENTIFIER,
    BASIC_CONSTRAINTS,
    CRL_DISTRIBUTION_POINTS,
    EXTENDED_KEY_USAGE,
    KEY_USAGE,
    SUBJECT_ALT_NAME,
    SUBJECT_DIRECTORY_ATTRIBUTES,
    SUBJECT_KEY_IDENTIFIER,
    Certificate,
    outer_length,
    parse_certificate,
)
from attestation.endorsements.certificate import MAX_CERTIFICATE_BYTES as MAX_CERTIFICATE_BYTES
from attestation.endorsements.names import Name, parse_name, string
from attestation.endorsements.vendors import SIMULATOR, SIMULATOR_ID, vendor_name
from attestation.errors import EKCertificateRejected, MalformedEvidence
from attestation.tpm import Alg, Public
from attestation.wire import der_of

MEDIA_TYPE = "application/vnd.itl.ek-certificate"

_SERIAL_NUMBER: Final = "2.5.4.5"
_EKU_EK: Final = "2.23.133.8.1"
_MANUFACTURER: Final = "2.23.133.2.1"
_MODEL: Final = "2.23.133.2.2"
_VERSION: Final = "2.23.133.2.3"
_SPECIFICATION: Final = "2.23.133.2.16"
_ASSERTIONS: Final = "2.23.133.2.18"
_MANUFACTURER_ID: Final = re.compile(r"id:[0-9A-Fa-f]{8}\Z")
_NEVER_CRITICAL: Final = {
    AUTHORITY_KEY_IDENTIFIER: "authority_key_identifier",
    SUBJECT_KEY_IDENTIFIER: "key_identifier",
    AUTHORITY_INFORMATION_ACCESS: "authority_information_access",
    CRL_DISTRIBUTION_POINTS: "crl_distribution_points",
    EXTENDED_KEY_USAGE: "extended_key_usage",
}
_UNDERSTOOD_IF_CRITICAL: Final = frozenset({BASIC_CONSTRAINTS, KEY_USAGE, SUBJECT_ALT_NAME})
_DIRECTORY_NAME: Final = 0xA4
_GENERATED: Final = {0: "internal", 1: "injected", 2: "internal-revocable", 3: "injected-revocable"}
_PLACES: Final = {0: "tpm-manufacturer", 1: "platform-manufacturer", 2: "ek-certificate-signer"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TPMSpecification:
    """Which TPM specification the maker followed (EK profile 3.1.3).

    Args:
        family: Like `2.0`.
        level: Level of the specification.
        revision: Revision, like 138 or 159.
    """

    family: str
    level: int
    revision: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SecurityAssertions:
    """What the maker asserts of the TPM's security (EK profile 3.1.1); None where it says nothing.

    Args:
        field_upgradable: The firmware can be replaced.
        ek_generation: `internal`, `injected`, `internal-revocable` or `injected-revocable`.
        ek_generation_place: `tpm-manufacturer`, `platform-manufacturer` or `ek-certificate-signer`.
        common_criteria: Evaluation assurance level, like `EAL4+`.
        fips: Version and level, like `140-2 level 1`.
    """

    field_upgradable: bool
    ek_generation: str | None
    ek_generation_place: str | None
    common_criteria: str | None
    fips: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class UnverifiedEKCertificate:
    """A certificate cut out of whatever stood in NV. Nothing in it may be believed yet.

    Args:
        der: The certificate, without wrapper and padding.
        padding_bytes: How many bytes followed it.
        certificate: Its fields.
        directory_names: The directory names of its subject alternative name.
    """

    der: bytes = field(repr=False)
    padding_bytes: int
    certificate: Certificate
    directory_names: tuple[Name, ...]


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
        specification: TPM specification that the maker names; None where not recorded.
        security_assertions: None where not recorded: absent, or not to be read.
        anomalies: What is not as the standard demands and was accepted, in words.
        chip_serial: Serial number of the chip in the subject (X.520 serialNumber); None where there is none.
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
    specification: TPMSpecification | None = None
    security_assertions: SecurityAssertions | None = None
    anomalies: tuple[str, ...] = ()
    chip_serial: str | None = None


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
    if data[:1] != b"\x10":
        data = der_of(data, "EK certificate", "CERTIFICATE", "TRUSTED CERTIFICATE")
    if data[:3] == b"\x10\x01\x00":
        data = data[5 : 5 + int.from_bytes(data[3:5])]
        if data[:2] == b"\x10\x02":
            data = data[2:]
    # 1. The outer DER length says where the certificate ends; what follows is padding of the NV index.
    size = outer_length(data, "EK certificate")
    # 2. ek-raw-tbs: read leniently, every field that `verify` looks at, so that only here a parser can fail.
    certificate = parse_certificate(data[:size])
    return UnverifiedEKCertificate(
        der=certificate.der,
        padding_bytes=len(data) - size,
        certificate=certificate,
        directory_names=_directory_names(certificate),
    )


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
    read = certificate.certificate
    # 9. ek-template: it certifies this very key. Otherwise anybody could show a stranger's certificate.
    if read.spki != ek.spki_der():
        raise EKCertificateRejected("the certificate is for another key than the EK")
    # 3. ek-profile: version, serial, issuer, dates, extensions, key usage.
    _check_fields(read, at)
    _check_extensions(read, is_rsa=ek.type == Alg.RSA)
    manufacturer, model, firmware = _tpm_attributes(certificate)
    # 4. ek-vendor: a registered maker. Otherwise a software TPM would pass for hardware.
    vendor = vendor_name(manufacturer)
    if vendor is None and allow_simulator and manufacturer == SIMULATOR_ID:
        vendor = SIMULATOR
    if vendor is None:
        raise EKCertificateRejected(f"manufacturer {manufacturer} is not in the TCG vendor registry")
    padding = (f"{certificate.padding_bytes} bytes of padding",) if certificate.padding_bytes else ()
    specification, assertions = _recorded(read)
    return EKCertificateClaims(
        subject=read.subject,
        issuer=read.issuer,
        serial=read.serial,
        manufacturer=manufacturer,
        vendor=vendor,
        model=model,
        firmware=firmware,
        not_before=read.not_before,
        not_after=read.not_after,
        sha256=read.sha256,
        specification=specification,
        security_assertions=assertions,
        anomalies=read.anomalies + padding,
        chip_serial=chip_serial(read),
    )


def chip_serial(read: Certificate) -> str | None:
    """Return the serialNumber (X.520, 2.5.4.5) of the subject: some makers number their chips there."""
    return next((each.text for each in read.subject_name.attributes if each.oid == _SERIAL_NUMBER), None)


def _check_fields(read: Certificate, at: datetime) -> None:
    if read.version != 3:
        raise EKCertificateRejected(f"certificate version v{read.version}, v3 expected")
    if read.serial <= 0:
        raise EKCertificateRejected("serial number is not positive")
    if not read.issuer_name.relative:
        raise EKCertificateRejected("issuer is empty")
    if not read.not_before <= at <= read.not_after:
        raise EKCertificateRejected(
            f"valid from {read.not_before:%Y-%m-%d} to {read.not_after:%Y-%m-%d}, not now"
        )


def _check_extensions(read: Certificate, *, is_rsa: bool) -> None:
    if read.repeated_extension is not None:
        # RFC 5280, 4.2. Two readers could each take another one of them.
        raise EKCertificateRejected("an extension appears twice")
    critical = {oid for oid, extension in read.extensions.items() if extension.critical}
    if BASIC_CONSTRAINTS not in critical or read.is_ca:
        raise EKCertificateRejected("BasicConstraints must be critical with CA=false")
    wanted = "key_encipherment" if is_rsa else "key_agreement"
    if KEY_USAGE not in critical or read.key_usage is None or wanted not in read.key_usage:
        raise EKCertificateRejected(f"KeyUsage must be critical with {wanted}")
    if AUTHORITY_KEY_IDENTIFIER not in read.extensions:
        raise EKCertificateRejected("AuthorityKeyIdentifier is absent")
    if EXTENDED_KEY_USAGE in read.extensions and _EKU_EK not in read.extended_key_usage:
        raise EKCertificateRejected(f"ExtendedKeyUsage does not contain {_EKU_EK}")
    for oid, name in _NEVER_CRITICAL.items():
        if oid in critical:
            raise EKCertificateRejected(f"extension {name} must not be critical")
    unknown = sorted(critical - _UNDERSTOOD_IF_CRITICAL)
    if unknown:
        raise EKCertificateRejected(f"unknown critical extension {unknown[0]}")


def _tpm_attributes(certificate: UnverifiedEKCertificate) -> tuple[str, str, str]:
    """Return manufacturer, model and version from the subject alternative name (EK profile 3.2.9)."""
    read = certificate.certificate
    directories = certificate.directory_names
    if len(directories) != 1:
        raise EKCertificateRejected(f"{len(directories)} directory names in the SAN, exactly one expected")
    if not read.subject_name.relative and not read.extensions[SUBJECT_ALT_NAME].critical:
        raise EKCertificateRejected("the SAN must be critical where the subject is empty")
    attributes = directories[0].attributes
    if sorted(a.oid for a in attributes) != [_MANUFACTURER, _MODEL, _VERSION]:
        raise EKCertificateRejected(
            "the SAN must name manufacturer, model and version, each once, nothing else"
        )
    values = {a.oid: a.text for a in attributes}
    if not _MANUFACTURER_ID.match(values[_MANUFACTURER]):
        raise EKCertificateRejected("manufacturer is not id: and eight hex digits")
    return values[_MANUFACTURER], values[_MODEL], values[_VERSION]


def _directory_names(read: Certificate) -> tuple[Name, ...]:
    """Return every directoryName of GeneralNames (RFC 5280, 4.2.1.6); other kinds of name are passed over."""
    extension = read.extensions.get(SUBJECT_ALT_NAME)
    if extension is None:
        return ()
    value = extension.value
    outer = der.only(value, der.SEQUENCE, "subject alternative name")
    return tuple(
        parse_name(value[found.start : found.stop])
        for found in der.elements(value, outer.start, outer.stop)
        if found.tag == _DIRECTORY_NAME
    )


def _recorded(read: Certificate) -> tuple[TPMSpecification | None, SecurityAssertions | None]:
    """Return what the SubjectDirectoryAttributes say; each None where absent or not to be read.

    Nothing is decided by them, and makers encode them oddly: a failure means only that they are not recorded.
    """
    found: dict[str, bytes] = {}
    with contextlib.suppress(MalformedEvidence, KeyError):
        found = _attribute_values(read.extensions[SUBJECT_DIRECTORY_ATTRIBUTES].value)
    specification, assertions = None, None
    with contextlib.suppress(MalformedEvidence, KeyError):
        specification = _specification(found[_SPECIFICATION])
    with contextlib.suppress(MalformedEvidence, KeyError):
        assertions = _assertions(found[_ASSERTIONS])
    return specification, assertions


def _attribute_values(value: bytes) -> dict[str, bytes]:
    """Return the first value of each Attribute ::= SEQUENCE { type, values SET }; DER, header included."""
    found = {}
    outer = der.only(value, der.SEQUENCE, "subject directory attributes")
    for attribute in der.elements(value, outer.start, outer.stop):
        kind = der.element(value, attribute.start, attribute.stop)
        values = der.expect(value, kind.stop, attribute.stop, der.SET, "attribute values")
        first = der.element(value, values.start, values.stop)
        found[der.oid(value, kind)] = value[first.at : first.stop]
    return found


def _specification(value: bytes) -> TPMSpecification:
    """Read TPMSpecification ::= SEQUENCE { family UTF8String, level INTEGER, revision INTEGER }."""
    outer = der.only(value, der.SEQUENCE, "tpmSpecification")
    family = der.element(value, outer.start, outer.stop)
    level = der.element(value, family.stop, outer.stop)
    revision = der.element(value, level.stop, outer.stop)
    return TPMSpecification(
        family=string(value, family) or "",
        level=der.small_integer(value, level),
        revision=der.small_integer(value, revision),
    )


def _assertions(value: bytes) -> SecurityAssertions:
    """Read TPMSecurityAssertions (EK profile 3.1.1), every member optional.

    SEQUENCE { version INTEGER, fieldUpgradable BOOLEAN, [0] ekGenerationType, [1] ekGenerationLocation,
    [2] ekCertificateGenerationLocation, [3] ccInfo, [4] fipsLevel, [5] iso9000Certified, iso9000Uri }
    """
    outer = der.only(value, der.SEQUENCE, "security assertions")
    members = {found.tag: found for found in der.elements(value, outer.start, outer.stop)}
    upgradable = members.get(der.BOOLEAN)
    generated, place = members.get(0x80), members.get(0x81)
    criteria, fips = members.get(0xA3), members.get(0xA4)
    return SecurityAssertions(
        field_upgradable=upgradable is not None and any(value[upgradable.start : upgradable.stop]),
        ek_generation=_GENERATED.get(der.small_integer(value, generated)) if generated is not None else None,
        ek_generation_place=_PLACES.get(der.small_integer(value, place)) if place is not None else None,
        common_criteria=_level(value, criteria, "EAL{level}{plus}") if criteria is not None else None,
        fips=_level(value, fips, "{version} level {level}{plus}") if fips is not None else None,
    )


def _level(value: bytes, found: der.Element, words: str) -> str:
    """Read { version IA5String, level ENUMERATED, …, plus BOOLEAN DEFAULT FALSE } into *words*."""
    members: dict[int, der.Element] = {}
    for member in der.elements(value, found.start, found.stop):
        members.setdefault(member.tag, member)
    version, level, plus = members.get(0x16), members.get(der.ENUMERATED), members.get(der.BOOLEAN)
    if version is None or level is None:
        raise MalformedEvidence("an evaluation without version or level")
    return words.format(
        version=string(value, version),
        level=der.small_integer(value, level),
        plus="+" if plus is not None and any(value[plus.start : plus.stop]) else "",
    )
