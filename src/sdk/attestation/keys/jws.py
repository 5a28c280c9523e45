"""Reading what a signer of ours signed: compact JWS with ES384, keys pinned by the reader."""

from __future__ import annotations

from typing import Any

from joserfc.errors import JoseError
from joserfc.jwk import KeySet

from attestation.errors import NotAuthentic
from attestation.keys.signer import ALGORITHM

MAX_JWS_BYTES = 65_536

TRUST_BUNDLE_TYP = "itl-trust-bundle+jwt"
"""Header `typ` of a trust bundle's signature: {bundle_sha256, purpose, iat, exp} (docs/adr/0039).

`bundle_sha256`: hex, over the PEM as it was sent; `purpose`: `machine` or `operator`.
"""

TRUST_BUNDLE_HEADER = "Itl-Bundle-Signature"
"""HTTP header of `GET /pki/bundle` that carries it."""


class JWSRejected(NotAuthentic):
    """The token was not signed by one of the pinned keys, or is not of the expected type."""

    code = "jws-rejected"


def verify_jwt(token: str, jwks: dict[str, Any], *, typ: str) -> dict[str, Any]:
    """Return the claims of *token*, signed with ES384 by a key in *jwks*.

    Neither algorithm nor key comes from the token alone: the algorithm is ES384, the `kid` must name a key of
    *jwks*. Expiry and meaning of the claims are the caller's to judge.

    Args:
        token: Compact JWS, at most 64 KiB.
        jwks: The pinned JWK set.
        typ: The header `typ` that this use demands.

    Raises:
        JWSRejected: With the reason, never with the token.
    """
    from joserfc import jwt  # here: it brings encryption with it, and who only signs needs neither

    if len(token) > MAX_JWS_BYTES:
        raise JWSRejected(f"token longer than {MAX_JWS_BYTES} bytes")
    try:
        keys = KeySet.import_key_set(jwks)  # type: ignore[arg-type]  # a TypedDict there, checked by the call
        decoded = jwt.decode(token, keys, algorithms=[ALGORITHM])
    except (JoseError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as e:
        raise JWSRejected(f"token does not verify under the pinned keys ({type(e).__name__})") from e
    if decoded.header.get("typ") != typ:
        raise JWSRejected(f"token is not of type {typ}")
    return dict(decoded.claims)
