"""HTTP of revocation: the addresses that stand in our certificates. Public, outside of /api/v1, and signed."""

from __future__ import annotations

from typing import Annotated, Any, Final

from fastapi import APIRouter, Header, Path, Query, Request, Response
from starlette.requests import ClientDisconnect

from attestation.errors import CANotConfigured, IssuerUnknown, RateLimited, SignerBusy, SignerUnavailable
from attestation.keys import TRUST_BUNDLE_HEADER
from attestation.pki.crl import MEDIA_TYPE as CRL_MEDIA_TYPE
from attestation.pki.ocsp import MAX_REQUEST_BYTES, REQUEST_MEDIA_TYPE, RESPONSE_MEDIA_TYPE
from attestation.store import IssuerPurpose
from attestation_service.border import limits
from attestation_service.border.bodies import media_type
from attestation_service.context.request import From, origin_of
from attestation_service.pki import handlers
from attestation_service.pki.bundle_signature import sign_bundle
from attestation_service.resources import Res, resources_of
from attestation_service.routing.lean import RawRoute
from attestation_service.routing.openapi import access, answers

PREFIX: Final = "/pki"
router = APIRouter(prefix=PREFIX, tags=["pki"])
hot = APIRouter(prefix=PREFIX, tags=["pki"], route_class=RawRoute)

IssuerId = Annotated[str, Path(pattern=r"^[0-9a-f]{16}$", description="CA key, as it stands in certificates")]
Purpose = Annotated[IssuerPurpose, Query(description="Whose CA: that of machines or that of operators")]
IfNoneMatch = Annotated[str | None, Header(max_length=1024)]


def _bytes(media: str, description: str) -> dict[str, Any]:
    return {
        "description": description,
        "content": {media: {"schema": {"type": "string", "format": "binary"}}},
    }


CRL = _bytes(CRL_MEDIA_TYPE, "CertificateList, DER (RFC 5280 §5)")
CERTIFICATE = _bytes(handlers.CERTIFICATE_MEDIA_TYPE, "Certificate, DER")
PEM = _bytes(handlers.PEM_MEDIA_TYPE, "Certificates, PEM")
OCSP = _bytes(RESPONSE_MEDIA_TYPE, "OCSPResponse, DER (RFC 6960): an answer, or why there is none")
UNCHANGED: dict[str, Any] = {"description": "You have this already (`If-None-Match`)"}
LATER = _bytes(RESPONSE_MEDIA_TYPE, "tryLater; see Retry-After")

LISTED = {
    **answers(CANotConfigured, IssuerUnknown, RateLimited, SignerBusy, SignerUnavailable, kind="public"),
    200: CRL,
    304: UNCHANGED,
}
TOLD = {**answers(CANotConfigured, IssuerUnknown, RateLimited, kind="public"), 304: UNCHANGED}
BUNDLED = {
    **answers(CANotConfigured, RateLimited, SignerBusy, SignerUnavailable, kind="public"),
    200: {
        **PEM,
        "headers": {
            TRUST_BUNDLE_HEADER: {
                "description": "Compact JWS of the service's key over the body",
                "schema": {"type": "string"},
            }
        },
    },
    304: UNCHANGED,
}
ASKED = {**answers(CANotConfigured, kind="public"), 200: OCSP, 304: UNCHANGED, 429: LATER}


@router.get(
    "/crl",
    operation_id="pki_active_crl",
    summary="The revocation list of the key that signs now",
    response_class=Response,
    responses=LISTED,
    openapi_extra=access("public"),
)
async def active_crl(
    res: Res, origin: From, purpose: Purpose = "machine", if_none_match: IfNoneMatch = None
) -> Response:
    """Certificates name the list of the very key that signed them; this one is for people."""
    await limits.count(res, origin)
    issuer = await handlers.active(purpose, res=res)
    made = await handlers.crl(issuer.issuer_id, res=res)
    return made.response(res.clock.now(), if_none_match)


@router.get(
    "/crl/{issuer_id}",
    operation_id="pki_crl",
    summary="The revocation list of one CA key",
    response_class=Response,
    responses=LISTED,
    openapi_extra=access("public"),
)
async def crl(issuer_id: IssuerId, res: Res, origin: From, if_none_match: IfNoneMatch = None) -> Response:
    """Names everything that was revoked or held before it was asked for."""
    await limits.count(res, origin)
    return (await handlers.crl(issuer_id, res=res)).response(res.clock.now(), if_none_match)


@router.get(
    "/ca",
    operation_id="pki_active_ca",
    summary="The certificate of the key that signs now",
    response_class=Response,
    responses={**TOLD, 200: PEM},
    openapi_extra=access("public"),
)
async def active_ca(
    res: Res, origin: From, purpose: Purpose = "machine", if_none_match: IfNoneMatch = None
) -> Response:
    """Of a hybrid CA both. For trust take the bundle: this one changes at once when keys do."""
    await limits.count(res, origin)
    return (await handlers.active_certificates(purpose, res=res)).response(res.clock.now(), if_none_match)


@router.get(
    "/ca/{issuer_id}",
    operation_id="pki_ca",
    summary="The certificate of one CA key",
    response_class=Response,
    responses={**TOLD, 200: CERTIFICATE},
    openapi_extra=access("public"),
)
async def ca(issuer_id: IssuerId, res: Res, origin: From, if_none_match: IfNoneMatch = None) -> Response:
    """What the AIA of a certificate names; whoever fetches it must know its fingerprint from elsewhere."""
    await limits.count(res, origin)
    return (await handlers.certificate(issuer_id, res=res)).response(res.clock.now(), if_none_match)


@router.get(
    "/bundle",
    operation_id="pki_bundle",
    summary="Every CA certificate to be trusted now",
    response_class=Response,
    responses=BUNDLED,
    openapi_extra=access("public"),
)
async def bundle(
    res: Res, origin: From, purpose: Purpose = "machine", if_none_match: IfNoneMatch = None
) -> Response:
    """The keys to come, the active ones, those that retire, and what certifies one by another.

    The header `Itl-Bundle-Signature` is a compact JWS of the service's key over exactly these bytes.
    """
    await limits.count(res, origin)
    made = await handlers.bundle(purpose, res=res)
    answer = made.response(res.clock.now(), if_none_match)
    answer.headers[TRUST_BUNDLE_HEADER] = await sign_bundle(made.body, purpose, res=res)
    return answer


@hot.post(
    "/ocsp",
    operation_id="pki_ocsp",
    summary="Ask what became of certificates",
    response_class=Response,
    responses=ASKED,
    openapi_extra={
        **access("public"),
        "requestBody": {
            "required": True,
            "content": {REQUEST_MEDIA_TYPE: {"schema": {"type": "string", "format": "binary"}}},
        },
    },
)
async def ocsp_post(request: Request) -> Response:
    """OCSPRequest, DER, at most 8 KiB, about one certificate."""
    scope = request.scope
    data = None
    if media_type(request.headers.get("content-type")) == REQUEST_MEDIA_TYPE:
        data = await _body(request)
    return await handlers.ocsp(data, None, res=resources_of(scope), origin=origin_of(scope))


@hot.get(
    "/ocsp/{request:path}",
    operation_id="pki_ocsp_get",
    summary="Ask what became of certificates, in a way that caches understand",
    response_class=Response,
    responses=ASKED,
    openapi_extra={
        **access("public"),
        "parameters": [
            {
                "name": "request",
                "in": "path",
                "required": True,
                "description": "OCSPRequest, DER, in base64, URL-escaped (RFC 6960 A.1)",
                "schema": {"type": "string"},
            }
        ],
    },
)
async def ocsp_get(request: Request) -> Response:
    """Without a nonce, so that others can be given the same answer."""
    scope = request.scope
    data = handlers.decoded(scope["path"].removeprefix(f"{PREFIX}/ocsp/"))
    tags = request.headers.get("if-none-match")
    return await handlers.ocsp(data, tags, res=resources_of(scope), origin=origin_of(scope))


async def _body(request: Request) -> bytes | None:
    """Return the body; None where it is longer than any request of OCSP."""
    found = b""
    try:
        async for chunk in request.stream():
            found += chunk
            if len(found) > MAX_REQUEST_BYTES:
                return None
    except ClientDisconnect:
        return None
    return found
