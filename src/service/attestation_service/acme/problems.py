"""Errors of ACME (RFC 8555, 6.7; draft-ietf-acme-device-attest): problem documents under another prefix than ours."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from fastapi import Response

from attestation.errors import (
    AlgorithmForbidden,
    AttestationError,
    Conflict,
    CSRInvalid,
    KeyRefused,
    KeyUnusable,
    MalformedEvidence,
    NameInUse,
    NotAuthentic,
    RateLimited,
    RequestInvalid,
    Unavailable,
    Unknown,
)

PREFIX: Final = "urn:ietf:params:acme:error:"
MEDIA_TYPE: Final = "application/problem+json"
RETRY_SECONDS: Final = 5

STATUS: Final[Mapping[str, int]] = {
    "accountDoesNotExist": 400,
    "alreadyRevoked": 400,
    "badAttestationStatement": 403,
    "badCSR": 400,
    "badNonce": 400,
    "badPublicKey": 400,
    "badRevocationReason": 400,
    "badSignatureAlgorithm": 400,
    "conflict": 409,
    "externalAccountRequired": 403,
    "invalidContact": 400,
    "malformed": 400,
    "orderNotReady": 403,
    "rateLimited": 429,
    "rejectedIdentifier": 403,
    "serverInternal": 503,
    "unauthorized": 403,
    "unsupportedContact": 400,
    "unsupportedIdentifier": 400,
    "unsupportedMediaType": 415,
}
"""Status by type. `conflict` is written as `malformed` (RFC 8555, 7.3.5 names no type), and so is 415 (6.2)."""

_AS: Final = {"conflict": "malformed", "unsupportedMediaType": "malformed"}


@dataclass(eq=False)
class Refused(Exception):
    """A request of ACME that is refused.

    Args:
        kind: One of `STATUS`.
        detail: For people: what was expected and found.
        headers: That belong to the answer.
        members: That the document has beside type, detail and status.
    """

    kind: str
    detail: str
    headers: Mapping[str, str] = field(default_factory=dict)
    members: Mapping[str, Any] = field(default_factory=dict)

    @property
    def document(self) -> dict[str, Any]:
        """The problem document."""
        return {
            "type": PREFIX + _AS.get(self.kind, self.kind),
            "detail": self.detail,
            "status": STATUS[self.kind],
            **self.members,
        }

    def response(self) -> Response:
        """The answer."""
        return Response(
            json.dumps(self.document),
            status_code=STATUS[self.kind],
            headers=dict(self.headers),
            media_type=MEDIA_TYPE,
        )


_KINDS: Final[tuple[tuple[type[AttestationError], str], ...]] = (
    (RateLimited, "rateLimited"),
    (Unavailable, "serverInternal"),
    (KeyUnusable, "serverInternal"),
    (CSRInvalid, "badCSR"),
    (KeyRefused, "badPublicKey"),
    (AlgorithmForbidden, "badPublicKey"),
    (NameInUse, "rejectedIdentifier"),
    (MalformedEvidence, "malformed"),
    (NotAuthentic, "unauthorized"),
    (RequestInvalid, "malformed"),
    (Unknown, "malformed"),
    (Conflict, "orderNotReady"),
)
"""What errors of ours are to an ACME client, the first that fits."""


def refused(error: AttestationError) -> Refused:
    """Return what *error* is to an ACME client."""
    kind = next((kind for branch, kind in _KINDS if isinstance(error, branch)), "serverInternal")
    headers: dict[str, str] = {}
    if isinstance(error, RateLimited):
        headers["Retry-After"] = str(error.retry_after_seconds)
    elif kind == "serverInternal":
        headers["Retry-After"] = str(RETRY_SECONDS)
    return Refused(kind, str(error), headers)
