"""What the attestation service answers, looked at before anything rests on it. Pure.

The service keeps the log; it holds no key of these CAs. One that errs, or was taken over, must not lead a token to sign
two certificates of one number, a list that forgets what the one before knew, or give a certificate to who did not ask
for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Final

from attestation.api.hsm import HSMIssuer, HSMList, HSMReservedSerial
from attestation.endorsements.certificate import (
    BASIC_CONSTRAINTS,
    EXTENDED_KEY_USAGE,
    KEY_USAGE,
    SUBJECT_ALT_NAME,
    Certificate,
    parse_certificate,
)
from attestation.errors import CertificateNotConformant, MalformedEvidence, SignatureInvalid
from attestation.pki.content import SERIAL_BYTES, rehearse
from attestation.pki.external import IssuingCA
from attestation.pki.leaf import LeafContent, certificate_content
from attestation.pki.lint import MAX_CERTIFICATE_BYTES
from attestation.pki.signature import verify_signature
from attestation_operator.errors import AnswerInvalid

SKEW: Final = timedelta(minutes=5)
"""So far may the clocks of service and controller be apart."""
OLDEST_LIST: Final = timedelta(hours=1)
"""A list is begun minutes before it is signed, and its time is set back a little."""
LONGEST_LIST: Final = timedelta(days=8)
"""The service makes none that is good for more than a week."""
FURTHEST_NUMBER: Final = 1_000_000
"""So many lists may have come and gone between two: a number beyond would make all honest ones after it old."""

_SAID: Final = (BASIC_CONSTRAINTS, KEY_USAGE, EXTENDED_KEY_USAGE, SUBJECT_ALT_NAME)
"""Of a certificate that is given again, what was asked for; its addresses may have changed since."""


def serial_of_answer(text: str) -> int:
    """Return a serial number: 20 bytes, the first of them from 01 to 7f.

    Raises:
        AnswerInvalid: Another form.
    """
    try:
        raw = bytes.fromhex(text)
    except ValueError:
        raw = b""
    if len(raw) != SERIAL_BYTES or not 1 <= raw[0] <= 0x7F:
        raise AnswerInvalid("a serial number that is not 20 bytes, the first from 01 to 7f")
    return int.from_bytes(raw)


def checked_issuer(known: HSMIssuer, *, uid: str) -> HSMIssuer:
    """Return what the service knows of an issuer.

    Raises:
        AnswerInvalid: It is about another one.
    """
    if known.uid != uid:
        raise AnswerInvalid("the service answered about another issuer")
    return known


def checked_reserved(
    reserved: Iterable[HSMReservedSerial], uids: Sequence[str]
) -> dict[str, HSMReservedSerial]:
    """Return the answer for each of the requests *uids* by its UID; what was not answered is absent.

    Raises:
        AnswerInvalid: One was not asked for or stands there twice, or two have one serial number: of two certificates
            with one number, both end when one is revoked.
    """
    found: dict[str, HSMReservedSerial] = {}
    serials: set[int] = set()
    for each in reserved:
        serial = serial_of_answer(each.serial)
        if each.request_uid not in uids or each.request_uid in found:
            raise AnswerInvalid("a serial number for a request that was not asked about, or a second one")
        if serial in serials:
            raise AnswerInvalid("one serial number for two requests")
        found[each.request_uid] = each
        serials.add(serial)
    return found


def checked_again(certificate: bytes, content: LeafContent, *, serial: int, ca: IssuingCA) -> bytes:
    """Return a certificate that was issued for the same request before, DER.

    Args:
        certificate: As the service has it.
        content: What is asked for now.
        serial: What was reserved for it.
        ca: Whose it must be.

    Raises:
        AnswerInvalid: It is not by this CA, of another key or number, or says something else than what is asked for.
    """
    content_ = certificate_content(content, serial=serial, ca=ca)
    try:
        found = parse_certificate(certificate, max_bytes=MAX_CERTIFICATE_BYTES)
        wanted = parse_certificate(rehearse(content_, ca.algorithm), max_bytes=MAX_CERTIFICATE_BYTES)
        # 1. The CA signed it: or anybody's certificate would be given.
        verify_signature(
            ca.public_key, algorithm=found.algorithm, signature=found.signature, signed=found.tbs
        )
    except (MalformedEvidence, CertificateNotConformant, SignatureInvalid) as e:
        raise AnswerInvalid(f"the certificate that was issued before: {e}") from e
    # 2. It is the one for this request: another one of the CA may be of other names, or of a CA.
    differs = [
        what
        for what, same in (
            ("bytes behind it", not found.padding_bytes),
            ("two algorithms", found.algorithm == found.inner_algorithm),
            ("serial number", found.serial == serial),
            ("key", found.spki == wanted.spki),
            ("issuer", found.issuer_name == wanted.issuer_name),
            ("subject", found.subject_name == wanted.subject_name),
            ("an extension twice", found.repeated_extension is None),
            ("names or usages", _said(found) == _said(wanted)),
        )
        if not same
    ]
    if differs:
        raise AnswerInvalid(f"the certificate that was issued before is another one: {', '.join(differs)}")
    return certificate


def _said(certificate: Certificate) -> dict[str, bytes]:
    return {oid: extension.value for oid, extension in certificate.extensions.items() if oid in _SAID}


def checked_list(due: HSMList, *, newest: int, at: datetime) -> tuple[int, datetime, datetime]:
    """Return number, begin and end of a list that is to be signed.

    Args:
        due: The list, as the service began it.
        newest: Number of the list that was published last; 0 before the first.
        at: Now, UTC.

    Raises:
        AnswerInvalid: Its number does not rise, or rises too far; its times are not of now; an entry is none.
    """
    number, begin, end = due.number, due.this_update, due.next_update
    if number is None or begin is None or end is None:
        raise AnswerInvalid("a list without number or times")
    # An older list would make good again what was revoked since.
    if number <= newest:
        raise AnswerInvalid(f"a list of number {number}; {newest} is published")
    if number > newest + FURTHEST_NUMBER:
        raise AnswerInvalid(f"a list of number {number}, far beyond {newest}, which is published")
    # One that begins later is believed by nobody now; one that does not end would be believed for ever.
    if not at - OLDEST_LIST <= begin <= at + SKEW or not at < end <= begin + LONGEST_LIST:
        raise AnswerInvalid("a list that is not of now, or good for too long")
    serials = {serial_of_answer(each.serial) for each in due.entries}
    if len(serials) != len(due.entries):
        raise AnswerInvalid("a list that names one serial number twice")
    if any(each.at > at + SKEW for each in due.entries):
        raise AnswerInvalid("a list with a revocation that is still to come")
    return number, begin, end
