"""Certificate revocation lists (RFC 5280 §5).

A list of ours speaks of everything that one CA key signed, for whatever reason, so it needs no
IssuingDistributionPoint; delta lists there are none. An entry that is released simply disappears: `removeFromCRL`
is for delta lists only (§5.3.1).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import IntEnum
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from attestation.endorsements import der
from attestation.errors import MalformedEvidence, RequestInvalid
from attestation.pki.content import SERIAL_BYTES, SigningKey, signing_hash

MEDIA_TYPE: Final = "application/pkix-crl"


class Reason(IntEnum):
    """Why a certificate is on a list; the number is that of CRLReason (RFC 5280 §5.3.1)."""

    UNSPECIFIED = 0
    KEY_COMPROMISE = 1
    CA_COMPROMISE = 2
    AFFILIATION_CHANGED = 3
    SUPERSEDED = 4
    CESSATION_OF_OPERATION = 5
    CERTIFICATE_HOLD = 6
    PRIVILEGE_WITHDRAWN = 9


_REASONS: Final[Mapping[Reason, x509.CRLReason]] = {
    reason: x509.CRLReason(x509.ReasonFlags[reason.name.lower()])
    for reason in Reason
    if reason is not Reason.UNSPECIFIED
}


REASONS: Final[Mapping[str, Reason]] = {
    "unspecified": Reason.UNSPECIFIED,
    "keyCompromise": Reason.KEY_COMPROMISE,
    "affiliationChanged": Reason.AFFILIATION_CHANGED,
    "superseded": Reason.SUPERSEDED,
    "cessationOfOperation": Reason.CESSATION_OF_OPERATION,
    "certificateHold": Reason.CERTIFICATE_HOLD,
    "privilegeWithdrawn": Reason.PRIVILEGE_WITHDRAWN,
}
"""By their words, as records of ours have them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CRLEntry:
    """One certificate that shall not be believed.

    Args:
        serial: Its serial number, positive, at most 20 bytes.
        at: Since when, UTC; whole seconds count.
        reason: Why. `UNSPECIFIED` is left out of the list, as §5.3.1 wants it.
    """

    serial: int
    at: datetime
    reason: Reason


def build_crl(
    issuer: bytes,
    key: SigningKey,
    *,
    number: int,
    entries: Iterable[CRLEntry],
    this_update: datetime,
    next_update: datetime,
) -> bytes:
    """Return a signed CertificateList of version 2, DER.

    It may ask a token or a TPM to sign: never on the event loop.

    Args:
        issuer: Certificate of the CA key, DER.
        key: The CA key.
        number: CRLNumber; greater than that of every list before. At most 20 bytes.
        entries: In any order; each serial number once.
        this_update: When it is made, UTC.
        next_update: When the next one is there at the latest, UTC.

    Raises:
        RequestInvalid: A serial or list number that no list can carry, or a list that ends before it begins.
        KeyUnsupported: The key is none that signs lists.
        MalformedEvidence: *issuer* is no certificate of a CA.
    """
    _check_number(number, "a CRLNumber")
    if next_update <= this_update:
        raise RequestInvalid("a list must end after it begins")
    try:
        ca = x509.load_der_x509_certificate(issuer)
        key_id = ca.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    except (ValueError, x509.ExtensionNotFound) as e:
        raise MalformedEvidence("the issuer of a list is no certificate of a CA") from e
    # All at once: the builder copies its list for each entry that is added to it.
    builder = x509.CertificateRevocationListBuilder(
        issuer_name=ca.subject,
        last_update=_naive(this_update),
        next_update=_naive(next_update),
        revoked_certificates=[_entry(entry) for entry in entries],
    )
    builder = builder.add_extension(
        x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(key_id), critical=False
    ).add_extension(x509.CRLNumber(number), critical=False)
    return builder.sign(key, signing_hash(key)).public_bytes(Encoding.DER)


def _entry(entry: CRLEntry) -> x509.RevokedCertificate:
    _check_number(entry.serial, "a serial number")
    builder = x509.RevokedCertificateBuilder(entry.serial, _naive(entry.at))
    reason = _REASONS.get(entry.reason)
    return (builder if reason is None else builder.add_extension(reason, critical=False)).build()


def _check_number(number: int, what: str) -> None:
    if not 0 < number < 1 << 8 * SERIAL_BYTES - 1:
        raise RequestInvalid(f"{what} is positive and at most {SERIAL_BYTES} bytes long")


def _naive(at: datetime) -> datetime:
    """Return whole seconds of UTC, as the library takes them."""
    return at.astimezone(UTC).replace(microsecond=0, tzinfo=None)


def generalized_time(at: datetime) -> bytes:
    """Return a GeneralizedTime in UTC with whole seconds (RFC 5280 §4.1.2.5.2)."""
    at = at.astimezone(UTC)
    return der.write(der.GENERALIZED_TIME, f"{at:%Y%m%d%H%M%S}Z".encode())
