"""Lists, answers and certificates of the CA for whoever asks: signed, so whoever carries them need not be trusted."""

from __future__ import annotations

import base64
import binascii
import contextlib
from collections.abc import Sequence
from typing import Final

from starlette.responses import Response

from attestation.errors import (
    CANotConfigured,
    IssuerUnknown,
    KeyUnusable,
    MalformedEvidence,
    RateLimited,
    Unavailable,
)
from attestation.pki.crl import MEDIA_TYPE as CRL_MEDIA_TYPE
from attestation.pki.ocsp import (
    MAX_REQUEST_BYTES,
    RESPONSE_MEDIA_TYPE,
    OCSPRequest,
    ResponseStatus,
    build_error,
    parse_ocsp_request,
)
from attestation.store import Issuer, IssuerPurpose, Tx
from attestation_service.authority.places import algorithms
from attestation_service.border.problems import RETRY_UNAVAILABLE_SECONDS
from attestation_service.context.request import Origin
from attestation_service.entitlements.certificates import pem
from attestation_service.ocsp.answers import Answer, Answers, NotOurs
from attestation_service.pki.revocation import Revocation
from attestation_service.resources import Resources
from attestation_service.routing.cached import Cached

CERTIFICATE_MEDIA_TYPE: Final = "application/pkix-cert"
PEM_MEDIA_TYPE: Final = "application/x-pem-file"
A_DAY_SECONDS: Final = 86_400
MAX_BASE64_CHARACTERS: Final = 4 * (MAX_REQUEST_BYTES // 3 + 1)


def revocation_of(res: Resources) -> Revocation:
    """Return who makes lists and answers.

    Raises:
        CANotConfigured: This service has no CA.
    """
    if res.revocation is None:
        raise CANotConfigured("this service has no CA of its own")
    assert isinstance(res.revocation, Revocation)
    return res.revocation


async def crl(issuer_id: str, *, res: Resources) -> Cached:
    """Return the list of a CA key, with everything on it that was revoked before this call.

    Raises:
        IssuerUnknown: No such key, or one that makes no lists.
    """
    made = await revocation_of(res).lists.current(issuer_id)
    return Cached(
        body=made.crl,
        media_type=CRL_MEDIA_TYPE,
        made_at=made.this_update,
        useless_from=made.next_update,
        file_name=f"{issuer_id}.crl",
    )


async def active(purpose: IssuerPurpose, *, res: Resources) -> Issuer:
    """Return the key that signs for *purpose*; of a hybrid CA the classical one.

    Raises:
        CANotConfigured: There is none.
    """
    revocation_of(res)
    algorithm = algorithms(res.settings)[0]
    found = await res.store.read(lambda tx: tx.issuers.active(purpose, algorithm))
    if found is None:
        raise CANotConfigured(f"this service has no CA for {purpose}s")
    return found


async def active_certificates(purpose: IssuerPurpose, *, res: Resources) -> Cached:
    """Return the certificate of the key that signs, PEM; of a hybrid CA both.

    Raises:
        CANotConfigured: There is none.
    """
    first = await active(purpose, res=res)

    def work(tx: Tx) -> list[Issuer | None]:
        return [tx.issuers.active(purpose, algorithm) for algorithm in algorithms(res.settings)[1:]]

    found = [first, *(issuer for issuer in await res.store.read(work) if issuer is not None)]
    return Cached(
        body="".join(pem(issuer.path[0]) for issuer in found if issuer.path).encode("ascii"),
        media_type=PEM_MEDIA_TYPE,
        made_at=max(issuer.activated_at or issuer.reserved_at for issuer in found),
        file_name=f"itl-{purpose}-ca.pem",
    )


async def certificate(issuer_id: str, *, res: Resources) -> Cached:
    """Return the certificate of a CA key, DER; it changes where another parent vouches for the key.

    Raises:
        IssuerUnknown: No such key.
    """
    revocation_of(res)
    issuer = await res.store.read(lambda tx: tx.issuers.get(issuer_id))
    if issuer is None or not issuer.path:
        raise IssuerUnknown("there is no such CA key")
    return Cached(
        body=issuer.path[0],
        media_type=CERTIFICATE_MEDIA_TYPE,
        made_at=issuer.created_at or issuer.reserved_at,
        keep_seconds=A_DAY_SECONDS,
        file_name=f"{issuer_id}.cer",
    )


async def bundle(purpose: IssuerPurpose, *, res: Resources) -> Cached:
    """Return every CA certificate that relying parties shall trust now, PEM, the keys to come included.

    Raises:
        CANotConfigured: There is none.
    """
    revocation_of(res)
    assert res.authority is not None  # there are no lists without it
    found = await res.authority.bundle(purpose)
    if not found:
        raise CANotConfigured(f"this service has no CA for {purpose}s")
    return Cached(
        body="".join(map(pem, found)).encode("ascii"),
        media_type=PEM_MEDIA_TYPE,
        made_at=None,
        file_name=f"itl-{purpose}-bundle.pem",
    )


async def ocsp(data: bytes | None, if_none_match: str | None, *, res: Resources, origin: Origin) -> Response:
    """Answer an OCSP request in its own language, whatever becomes of it (RFC 6960 §2.3).

    Args:
        data: The request, DER; None where it was not even that.
        if_none_match: The header that came with a GET, or None.
        res: What the application owns.
        origin: Who asks.

    Raises:
        CANotConfigured: This service has no CA.
    """
    responders = _responders(res)
    try:
        if data is None:
            return _refusal(ResponseStatus.MALFORMED_REQUEST)
        answer = await _answer(responders, parse_ocsp_request(data), origin)
    except MalformedEvidence:
        return _refusal(ResponseStatus.MALFORMED_REQUEST)
    except NotOurs:
        return _refusal(ResponseStatus.UNAUTHORIZED)
    except RateLimited as e:
        return _refusal(ResponseStatus.TRY_LATER, 429, e.retry_after_seconds)
    except (Unavailable, KeyUnusable):
        return _refusal(ResponseStatus.TRY_LATER, 503, RETRY_UNAVAILABLE_SECONDS)
    if not answer.may_be_kept:
        return Response(answer.body, media_type=RESPONSE_MEDIA_TYPE)  # the border adds no-store
    kept = Cached(
        body=answer.body,
        media_type=RESPONSE_MEDIA_TYPE,
        made_at=answer.made_at,
        useless_from=answer.next_update,
    )
    return kept.response(res.clock.now(), if_none_match)


def _responders(res: Resources) -> list[Answers]:
    """Return who answers: for the CA of the service, and for CA keys in hardware of clusters.

    Raises:
        CANotConfigured: Nobody.
    """
    found = [res.hsm_answers] if isinstance(res.hsm_answers, Answers) else []
    return [revocation_of(res).responder, *found] if res.revocation is not None or not found else found


async def _answer(responders: Sequence[Answers], request: OCSPRequest, origin: Origin) -> Answer:
    """Return the answer of the first whose CA key the request names.

    Raises:
        NotOurs: It names none of them.
    """
    for responder in responders:
        with contextlib.suppress(NotOurs):
            return await responder.answer(request, origin)
    raise NotOurs


def _refusal(status: ResponseStatus, http_status: int = 200, retry_after: int | None = None) -> Response:
    headers = {} if retry_after is None else {"Retry-After": str(retry_after)}
    return Response(build_error(status), http_status, headers, RESPONSE_MEDIA_TYPE)


def decoded(text: str) -> bytes | None:
    """Return the request in the path of a GET: base64, the URL's escapes already undone (RFC 6960 A.1).

    Returns:
        None where it is none.
    """
    if len(text) > MAX_BASE64_CHARACTERS:
        return None
    try:
        return base64.b64decode(text.encode("ascii") + b"=" * (-len(text) % 4), validate=True)
    except (binascii.Error, UnicodeEncodeError):
        return None
