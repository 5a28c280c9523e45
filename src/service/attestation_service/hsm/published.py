"""What relying parties ask of CA keys on tokens, without an account: lists and certificates."""

from __future__ import annotations

from fastapi import Response

from attestation.errors import IssuerUnknown, Unavailable
from attestation.pki.crl import MEDIA_TYPE
from attestation.store import StoredCRL, Tx
from attestation_service.border import limits
from attestation_service.context.request import From
from attestation_service.resources import Res
from attestation_service.routing.cached import Cached
from attestation_service.routing.parameters import IfNoneMatch, IssuerId

CERTIFICATE_MEDIA_TYPE = "application/pkix-cert"


async def crl(issuer_id: IssuerId, res: Res, origin: From, if_none_match: IfNoneMatch = None) -> Response:
    """The revocation list of a CA key in hardware.

    The newest that its controller signed. It is made within moments of a revocation; OCSP tells at once.
    """
    await limits.count(res, origin)
    at = res.clock.now()

    def load(tx: Tx) -> StoredCRL | None:
        found = tx.hsm.crl(issuer_id)
        if found is None and tx.hsm.issuer(issuer_id) is None:
            raise IssuerUnknown("there is no such CA key")
        return found

    made = await res.store.read(load)
    if made is None or at >= made.next_update:
        raise Unavailable("there is no list of this CA key that is good now: its controller has made none")
    return Cached(
        body=made.crl,
        media_type=MEDIA_TYPE,
        made_at=made.this_update,
        useless_from=made.next_update,
        file_name=f"{issuer_id}.crl",
    ).response(at, if_none_match)


async def ca(issuer_id: IssuerId, res: Res, origin: From, if_none_match: IfNoneMatch = None) -> Response:
    """The certificate of a CA key in hardware.

    What the AIA of a certificate names; whoever fetches it must know its fingerprint from elsewhere.
    """
    await limits.count(res, origin)
    issuer = await res.store.read(lambda tx: tx.hsm.issuer(issuer_id))
    if issuer is None:
        raise IssuerUnknown("there is no such CA key")
    return Cached(
        body=issuer.certificate,
        media_type=CERTIFICATE_MEDIA_TYPE,
        made_at=issuer.registered_at,
        file_name=f"{issuer_id}.crt",
    ).response(res.clock.now(), if_none_match)
