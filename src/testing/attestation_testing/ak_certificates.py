"""Certificates of attestation keys as providers and makers write them, and with any one thing wrong (TPM.md §2.4).

Made of the same bytes each time, by a `CertificateAuthority` that nobody should trust anywhere.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from attestation.endorsements import der
from attestation.wire import tlv
from attestation_testing.certificates import CertificateAuthority

GCE_INSTANCE: Final = "1.3.6.1.4.1.11129.2.1.21"
HARDWARE_MODULE: Final = "1.3.6.1.5.5.7.8.4"
PERMANENT_IDENTIFIER: Final = "1.3.6.1.5.5.7.8.3"
TPM_HARDWARE: Final = "2.23.133.1.2"
EKU_AK: Final = "2.23.133.8.3"

_UTF8: Final = 0x0C


class AKDefect(StrEnum):
    """One rule of the profile broken; each must be refused."""

    VERSION_1 = "version-1"
    SERIAL_ZERO = "serial-zero"
    ISSUER_EMPTY = "issuer-empty"
    CA_TRUE = "ca-true"
    KEY_USAGE_MISSING = "key-usage-missing"
    KEY_USAGE_WRONG = "key-usage-wrong"
    EKU_MISSING = "eku-missing"
    EKU_OF_EK = "eku-of-ek"
    UNKNOWN_CRITICAL = "unknown-critical"
    DUPLICATE_EXTENSION = "duplicate-extension"
    SAN_NOT_CRITICAL = "san-not-critical"
    EXPIRED = "expired"
    NOT_YET_VALID = "not-yet-valid"
    SIGNATURE_BROKEN = "signature-broken"


@dataclass(frozen=True, slots=True, kw_only=True)
class AKCertificateOptions:
    """What a certificate of an attestation key says.

    Args:
        subject: Common name; empty for none, then the SAN is critical.
        directory_name: The SAN has the directory name of a TPM model.
        other_names: DER of whole otherNames, see `other_name`.
        extensions: Further ones, as OID and DER of their value.
        defect: The one rule to break.
        padding: Bytes behind it, as NV indices have them.
        valid_days: Length of validity.
    """

    subject: str = "attestation key"
    directory_name: bool = False
    other_names: Sequence[bytes] = ()
    extensions: Sequence[tuple[str, bytes]] = ()
    defect: AKDefect | None = None
    padding: bytes = b""
    valid_days: int = 3650


def make_ak_certificate(
    spki: bytes, authority: CertificateAuthority, *, at: datetime, options: AKCertificateOptions | None = None
) -> bytes:
    """Return the certificate of an attestation key, with what follows it.

    Args:
        spki: SubjectPublicKeyInfo DER of the key.
        authority: Who signs.
        at: It is valid at this instant, unless the defect is about dates.
        options: What it says.
    """
    options = options or AKCertificateOptions()
    defect = options.defect
    begin, end = at - timedelta(days=1), at + timedelta(days=options.valid_days)
    if defect is AKDefect.EXPIRED:
        begin, end = at - timedelta(days=800), at - timedelta(days=1)
    if defect is AKDefect.NOT_YET_VALID:
        begin, end = at + timedelta(days=1), at + timedelta(days=800)
    algorithm, hash_ = authority.algorithm()
    number = 0 if defect is AKDefect.SERIAL_ZERO else int.from_bytes(hashlib.sha256(spki).digest()[:12]) | 1
    parts = [
        der.write_unsigned(number),
        algorithm,
        tlv(der.SEQUENCE, b"") if defect is AKDefect.ISSUER_EMPTY else authority.subject,
        tlv(der.SEQUENCE, _time(begin) + _time(end)),
        _common_name(options.subject),
        spki,
    ]
    if defect is not AKDefect.VERSION_1:
        extensions = tlv(der.SEQUENCE, b"".join(_extensions(options, authority)))
        parts = [tlv(0xA0, der.write_unsigned(2)), *parts, tlv(0xA3, extensions)]
    made = authority.sign(tlv(der.SEQUENCE, b"".join(parts)), algorithm=algorithm, hash_=hash_)
    if defect is AKDefect.SIGNATURE_BROKEN:
        made = made[:-1] + bytes([made[-1] ^ 1])
    return made + options.padding


def other_name(oid: str, value: bytes) -> bytes:
    """Return otherName ::= [0] { type-id, value [0] EXPLICIT }; *value* is DER."""
    return tlv(0xA0, der.write_oid(oid) + tlv(0xA0, value))


def hardware_module_name(serial: bytes, *, hardware: str = TPM_HARDWARE) -> bytes:
    """Return the otherName of an IAK or IDevID (RFC 4108, 5)."""
    value = tlv(der.SEQUENCE, der.write_oid(hardware) + tlv(der.OCTET_STRING, serial))
    return other_name(HARDWARE_MODULE, value)


def permanent_identifier(text: str | None, assigner: str | None = None) -> bytes:
    """Return the otherName of RFC 4043."""
    value = b"" if text is None else utf8(text)
    return other_name(
        PERMANENT_IDENTIFIER, tlv(der.SEQUENCE, value + (der.write_oid(assigner) if assigner else b""))
    )


def gce_instance_2018(
    *,
    zone: str = "europe-west1-b",
    instance: int = 1234,
    name: str = "node-1",
    number: int = 4711,
    project: str = "our-project",
) -> bytes:
    """Return the extension's value as the published approver of 2018 reads it."""
    members = utf8(zone), der.write_unsigned(instance), utf8(name), der.write_unsigned(number), utf8(project)
    return tlv(der.SEQUENCE, b"".join(members))


def gce_instance(
    *,
    zone: str = "europe-west1-b",
    instance: int = 1234,
    name: str = "node-1",
    number: int = 4711,
    project: str = "our-project",
    properties: bytes | None = None,
) -> bytes:
    """Return the extension's value as certificates have it now.

    Args:
        zone: Of the instance.
        instance: Its number.
        name: Its name.
        number: Of the project.
        project: Its name.
        properties: What stands in the security properties; None for version 0, in production; empty for none at all.
    """
    if properties is None:
        properties = tlv(0xA0, der.write_unsigned(0)) + tlv(0xA1, tlv(der.BOOLEAN, b"\xff"))
    members = utf8(zone), der.write_unsigned(number), utf8(project), der.write_unsigned(instance), utf8(name)
    secured = tlv(0xA0, tlv(der.SEQUENCE, properties)) if properties else b""
    return tlv(der.SEQUENCE, b"".join(members) + secured)


def utf8(text: str) -> bytes:
    """Return a UTF8String."""
    return tlv(_UTF8, text.encode())


def _extensions(options: AKCertificateOptions, authority: CertificateAuthority) -> list[bytes]:
    defect = options.defect
    usage = b"\x05\x20" if defect is AKDefect.KEY_USAGE_WRONG else b"\x07\x80"
    purpose = "2.23.133.8.1" if defect is AKDefect.EKU_OF_EK else EKU_AK
    names = b"".join(options.other_names)
    if options.directory_name:
        model = [("2.23.133.2.1", "id:00001014"), ("2.23.133.2.2", "swtpm"), ("2.23.133.2.3", "id:00010001")]
        name = b"".join(
            tlv(der.SET, tlv(der.SEQUENCE, der.write_oid(oid) + utf8(text))) for oid, text in model
        )
        names += tlv(0xA4, tlv(der.SEQUENCE, name))
    constraints = tlv(der.BOOLEAN, b"\xff") if defect is AKDefect.CA_TRUE else b""
    found = [
        _extension("2.5.29.19", tlv(der.SEQUENCE, constraints), critical=True),
        _extension("2.5.29.35", tlv(der.SEQUENCE, tlv(0x80, authority.key_identifier))),
    ]
    if defect is not AKDefect.KEY_USAGE_MISSING:
        found.append(_extension("2.5.29.15", tlv(der.BIT_STRING, usage), critical=True))
    if defect is not AKDefect.EKU_MISSING:
        found.append(_extension("2.5.29.37", tlv(der.SEQUENCE, der.write_oid(purpose))))
    if names:
        critical = not options.subject and defect is not AKDefect.SAN_NOT_CRITICAL
        found.append(_extension("2.5.29.17", tlv(der.SEQUENCE, names), critical=critical))
    found += [_extension(oid, value) for oid, value in options.extensions]
    if defect is AKDefect.UNKNOWN_CRITICAL:
        found.append(_extension("1.3.6.1.4.1.99999.1", b"\x05\0", critical=True))
    if defect is AKDefect.DUPLICATE_EXTENSION:
        found.append(found[0])
    return found


def _extension(oid: str, value: bytes, *, critical: bool = False) -> bytes:
    flag = tlv(der.BOOLEAN, b"\xff") if critical else b""
    return tlv(der.SEQUENCE, der.write_oid(oid) + flag + tlv(der.OCTET_STRING, value))


def _common_name(text: str) -> bytes:
    if not text:
        return tlv(der.SEQUENCE, b"")
    attribute = tlv(der.SEQUENCE, der.write_oid("2.5.4.3") + utf8(text))
    return tlv(der.SEQUENCE, tlv(der.SET, attribute))


def _time(at: datetime) -> bytes:
    return tlv(der.GENERALIZED_TIME, at.strftime("%Y%m%d%H%M%SZ").encode())
