"""Revocation lists, and the key that answers OCSP: the service says what is due, the token signs it (§8)."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from attestation.api.hsm import HSMList, HSMListPut, HSMResponder, HSMResponderPut
from attestation.pki.crl import CRLEntry, Reason, build_crl
from attestation.pki.external import make_responder
from attestation.pki.request import read_request, verify_request
from attestation.wire import b64decode, b64encode
from attestation_operator.hsm.authority import Authority
from attestation_operator.hsm.issuance import OnThread
from attestation_operator.hsm.service import HSMService

RESPONDER: Final = "OCSP responder"


def signed_list(authority: Authority, due: HSMList) -> HSMListPut:
    """Return the list that the service began, signed. Blocks: the token signs."""
    assert due.number is not None
    assert due.this_update is not None
    assert due.next_update is not None
    crl = build_crl(
        authority.ca.certificate,
        authority.key,
        number=due.number,
        entries=[
            CRLEntry(serial=int(each.serial, 16), at=each.at, reason=reason_of(each.reason))
            for each in due.entries
        ],
        this_update=due.this_update,
        next_update=due.next_update,
    )
    return HSMListPut(number=due.number, crl=b64encode(crl))


def reason_of(word: str) -> Reason:
    """Return the reason that a word means: `keyCompromise`, `key-compromise` or `key_compromise`."""
    plain = "".join(each for each in word.lower() if each.isalpha())
    found = {each.name.replace("_", "").lower(): each for each in Reason}
    return found.get(plain, Reason.UNSPECIFIED)


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
        serial=int(due.serial, 16),
        at=at,
    )
    return HSMResponderPut(certificate=b64encode(made))


async def keep(authority: Authority, service: HSMService, on_thread: OnThread, *, at: datetime) -> int | None:
    """Sign the list and the responder of a CA where they are due; return the number of a new list."""
    number = None
    due = await service.begin_list(authority.issuer_id)
    if due.due:
        signed = await on_thread(lambda: signed_list(authority, due))
        await service.put_list(authority.issuer_id, signed)
        number = signed.number
    responder = await service.responder(authority.issuer_id)
    if responder.due:
        certified = await on_thread(lambda: certified_responder(authority, responder, at=at))
        await service.put_responder(authority.issuer_id, certified)
    return number
