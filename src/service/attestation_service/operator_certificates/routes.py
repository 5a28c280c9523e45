"""HTTP of operators' certificates."""

from __future__ import annotations

from attestation.errors import (
    AlgorithmForbidden,
    BreakGlassCannotVote,
    CANotConfigured,
    CertificateNotConformant,
    CertificateUnknown,
    CSRInvalid,
    KeyUnusable,
    MalformedEvidence,
    RequestInvalid,
    SignerUnavailable,
    TransitionForbidden,
)
from attestation_service.operator_certificates import handlers
from attestation_service.routing.openapi import operator_router, route

router = operator_router("operator: certificates of operators")

# fmt: off
route(router, "request_operator_certificate", "POST /operator-certificates", "act", handlers.request_certificate,
      CANotConfigured, MalformedEvidence, CSRInvalid, RequestInvalid, AlgorithmForbidden, CertificateNotConformant,
      KeyUnusable, SignerUnavailable, TransitionForbidden, BreakGlassCannotVote, done=201)
route(router, "list_operator_certificates", "GET /operator-certificates", "read", handlers.list_certificates,
      RequestInvalid)
route(router, "revoke_operator_certificate", "POST /operator-certificates/{serial}/revoke", "act", handlers.revoke,
      CertificateUnknown, TransitionForbidden)
