"""Where everything is (RFC 8555, 7.1.1), and fresh nonces (7.2). Both are asked for without a signature."""

from __future__ import annotations

import json

from fastapi import Request, Response

from attestation_service.acme import nonces
from attestation_service.acme.asked import demand_on, url
from attestation_service.resources import Resources, resources_of


async def directory(request: Request) -> Response:
    """Say where the resources of ACME are.

    What an ACME client is given to begin with. There is none where ITL_ACME is off.
    """
    res = resources_of(request.scope)
    demand_on(res)
    body = {
        "newNonce": url(res, "new-nonce"),
        "newAccount": url(res, "new-account"),
        "newOrder": url(res, "new-order"),
        "revokeCert": url(res, "revoke-cert"),
        "keyChange": url(res, "key-change"),
        "meta": {"externalAccountRequired": res.settings.acme == "bound"},
    }
    return Response(json.dumps(body), media_type="application/json")


async def new_nonce(request: Request) -> Response:
    """Get a fresh nonce, in the header Replay-Nonce.

    RFC 8555 §7.2. Each is good for one request, within the hour.
    """
    return _nonce(resources_of(request.scope), 200)


async def get_nonce(request: Request) -> Response:
    """Get a fresh nonce as `HEAD` does, in the header Replay-Nonce of an empty answer.

    RFC 8555 §7.2.
    """
    return _nonce(resources_of(request.scope), 204)


def _nonce(res: Resources, status: int) -> Response:
    demand_on(res)
    fresh = nonces.make(res, res.clock.now())
    index = f'<{url(res, "directory")}>;rel="index"'
    return Response(status_code=status, headers={"Replay-Nonce": fresh, "Link": index})
