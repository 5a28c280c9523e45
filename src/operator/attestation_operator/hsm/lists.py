"""Revocation lists, and the key that answers OCSP: the service says what is due, the token signs it (§8)."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from attestation.api.hsm import HSMList, HSMListPut, HSMResponder, HSMResponderPut
from attestation.pki.crl import REASONS, CRLEntry, Reason, build_crl
from attestation.pki.external import make_responder
from attestation.pki.request import read_request, verify_request
from attestation.wire import b64decode, b64encode
from attestation_operator.errors import AnswerInvalid
from attestation_operator.hsm.answers import checked_list, serial_of_answer
from attestation_operator.hsm.authority import Authority
from attestation_operator.hsm.service import HSMService
from attestation_operator.hsm.tokens import OnThread

RESPONDER: Final = "OCSP responder"


def signed_list(authority: Authority, due: HSMList, *, newest: int, at: datetime) -> HSMListPut:
    """Return the list that the service began, signed. Blocks: the token signs.

    Raises:
        AnswerInvalid: No list that may follow *newest* at this instant.
    """
    number, begin, end = checked_list(due, newest=newest, at=at)
    crl = build_crl(
        authority.ca.certificate,
        authority.key,
        number=number,
        entries=[
            CRLEntry(serial=serial_of_answer(each.serial), at=each.at, reason=crl_reason(each.reason))
            for each in due.entries
        ],
        this_update=begin,
        next_update=end,
    )
    return HSMListPut(number=number, crl=b64encode(crl))


def crl_reason(word: str) -> Reason:
    """Return the reason that a word of the service's means.

    Raises:
        AnswerInvalid: None that a list of ours has: which one is meant, nobody guesses.
    """
    found = REASONS.get(word)
    if found is None:
        raise AnswerInvalid("a reason of a revocation that no list has")
    return found


def certified_responder(authority: Authority, due: HSMResponder, *, at: datetime) -> HSMResponderPut:
    """Return the certificate for the key that answers OCSP. Blocks: the token signs.

    Raises:
        AttestationError: The request is none, or not by its key.
    """
    assert due.request is not None
    assert due.serial is not None
    request = verify_request(read_request(b64decode(due.request, "the request of the responder")))
    made = make_responder(
        name=RESPONDER,
        spki=request.spki,
        ca=authority.ca,
        key=authority.key,
        serial=serial_of_answer(due.serial),
        at=at,
    )
    return HSMResponderPut(certificate=b64encode(made))


async def keep_list(
    authority: Authority, service: HSMService, on_thread: OnThread, *, newest: int, at: datetime
) -> int | None:
    """Sign the list of a CA where one is due, and return its number.

    Args:
        authority: The CA.
        service: Says what is due, and takes what was signed.
        on_thread: Has done what blocks.
        newest: Number of the list that was published last, as far as we know.
        at: Now.
    """
    due = await service.begin_list(authority.issuer_id)
    if not due.due:
        return None
    signed: HSMListPut = await on_thread(lambda: signed_list(authority, due, newest=newest, at=at))
    await service.put_list(authority.issuer_id, signed)
    return signed.number


async def keep_responder(
    authority: Authority, service: HSMService, on_thread: OnThread, *, at: datetime
) -> None:
    """Certify the key that answers OCSP for a CA where that is due."""
    due = await service.responder(authority.issuer_id)
    if due.due:
        certified = await on_thread(lambda: certified_responder(authority, due, at=at))
        await service.put_responder(authority.issuer_id, certified)
