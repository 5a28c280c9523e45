"""HTTP of revocation: the addresses that stand in our certificates. Public, outside of /api/v1, and signed."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from starlette.requests import ClientDisconnect

from attestation.api.operations import PublicAPI
from attestation.keys import TRUST_BUNDLE_HEADER
from attestation.pki.ocsp import MAX_REQUEST_BYTES, REQUEST_MEDIA_TYPE
from attestation.store import IssuerPurpose
from attestation_service.border import limits
from attestation_service.border.bodies import media_type
from attestation_service.context.request import From, origin_of
from attestation_service.pki import handlers
from attestation_service.pki.bundle_signature import sign_bundle
from attestation_service.resources import Res, resources_of
from attestation_service.routing.lean import RawRoute
from attestation_service.routing.openapi import Responses, as_it_is, route
from attestation_service.routing.parameters import IfNoneMatch, IssuerId

router = APIRouter(tags=["pki"])
hot = APIRouter(tags=["pki"], route_class=RawRoute)

Purpose = Annotated[IssuerPurpose, Query(description="Whose CA: that of machines or that of operators")]

UNCHANGED: Responses = {304: {"description": "You have this already (`If-None-Match`)"}}
LIST = as_it_is(PublicAPI.crl, "CertificateList, DER (RFC 5280 §5)") | UNCHANGED
PEM = as_it_is(PublicAPI.ca_bundle, "Certificates, PEM")
CERTIFICATE = as_it_is(PublicAPI.ca, "Certificate, DER") | UNCHANGED
SIGNED: Responses = {
    200: {
        **PEM[200],
        "headers": {
            TRUST_BUNDLE_HEADER: {
                "description": "Compact JWS of the service's key over the body",
                "schema": {"type": "string"},
            }
        },
    },
    **UNCHANGED,
}
OCSP = as_it_is(PublicAPI.ocsp, "OCSPResponse, DER (RFC 6960): an answer, or why there is none") | UNCHANGED
LATER: Responses = {429: as_it_is(PublicAPI.ocsp, "tryLater; see Retry-After")[200]}
BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {REQUEST_MEDIA_TYPE: {"schema": {"type": "string", "format": "binary"}}},
    }
}
IN_PATH: dict[str, Any] = {
    "parameters": [
        {
            "name": "request",
            "in": "path",
            "required": True,
            "description": "OCSPRequest, DER, in base64, URL-escaped (RFC 6960 A.1)",
            "schema": {"type": "string"},
        }
    ]
}


async def active_crl(
    res: Res, origin: From, purpose: Purpose = "machine", if_none_match: IfNoneMatch = None
) -> Response:
    """The revocation list of the key that signs now.

    Certificates name the list of the very key that signed them; this one is for people.
    """
    await limits.count(res, origin)
    issuer = await handlers.active(purpose, res=res)
    made = await handlers.crl(issuer.issuer_id, res=res)
    return made.response(res.clock.now(), if_none_match)


async def crl(issuer_id: IssuerId, res: Res, origin: From, if_none_match: IfNoneMatch = None) -> Response:
    """The revocation list of one CA key.

    Names everything that was revoked or held before it was asked for.
    """
    await limits.count(res, origin)
    return (await handlers.crl(issuer_id, res=res)).response(res.clock.now(), if_none_match)


async def active_ca(
    res: Res, origin: From, purpose: Purpose = "machine", if_none_match: IfNoneMatch = None
) -> Response:
    """The certificate of the key that signs now.

    Of a hybrid CA both. For trust take the bundle: this one changes at once when keys do.
    """
    await limits.count(res, origin)
    return (await handlers.active_certificates(purpose, res=res)).response(res.clock.now(), if_none_match)


async def ca(issuer_id: IssuerId, res: Res, origin: From, if_none_match: IfNoneMatch = None) -> Response:
    """The certificate of one CA key.

    What the AIA of a certificate names; whoever fetches it must know its fingerprint from elsewhere.
    """
    await limits.count(res, origin)
    return (await handlers.certificate(issuer_id, res=res)).response(res.clock.now(), if_none_match)


async def bundle(
    res: Res, origin: From, purpose: Purpose = "machine", if_none_match: IfNoneMatch = None
) -> Response:
    """Every CA certificate to be trusted now.

    The keys to come, the active ones, those that retire, and what certifies one by another.

    The header `Itl-Bundle-Signature` is a compact JWS of the service's key over exactly these bytes.
    """
    await limits.count(res, origin)
    made = await handlers.bundle(purpose, res=res)
    answer = made.response(res.clock.now(), if_none_match)
    answer.headers[TRUST_BUNDLE_HEADER] = await sign_bundle(made.body, purpose, res=res)
    return answer


async def ocsp_post(request: Request) -> Response:
    """Ask what became of certificates.

    OCSPRequest, DER, at most 8 KiB, about one certificate.
    """
    scope = request.scope
    data = None
    if media_type(request.headers.get("content-type")) == REQUEST_MEDIA_TYPE:
        data = await _body(request)
    return await handlers.ocsp(data, None, res=resources_of(scope), origin=origin_of(scope))


async def ocsp_get(request: Request) -> Response:
    """Ask what became of certificates, in a way that caches understand.

    Without a nonce, so that others can be given the same answer.
    """
    scope = request.scope
    data = handlers.decoded(scope["path"].removeprefix("/pki/ocsp/"))
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


route(router, PublicAPI.active_crl, "public", active_crl, instead=LIST)
route(router, PublicAPI.crl, "public", crl, instead=LIST)
route(router, PublicAPI.active_ca, "public", active_ca, instead=PEM | UNCHANGED)
route(router, PublicAPI.ca, "public", ca, instead=CERTIFICATE)
route(router, PublicAPI.ca_bundle, "public", bundle, instead=SIGNED)
route(hot, PublicAPI.ocsp_post, "public", ocsp_post, instead=OCSP | LATER, extra=BODY)
route(hot, PublicAPI.ocsp, "public", ocsp_get, instead=OCSP | LATER, extra=IN_PATH)
