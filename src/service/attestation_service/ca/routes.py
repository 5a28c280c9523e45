"""HTTP of the CAs, for operators."""

from __future__ import annotations

from attestation.errors import (
    AlgorithmForbidden,
    AlreadyExists,
    CANotConfigured,
    CertificateUnknown,
    KeyUnusable,
    RequestInvalid,
    RotationForbidden,
    SignerUnavailable,
    TransitionForbidden,
)
from attestation_service.ca import handlers
from attestation_service.routing.openapi import operator_router, route

router = operator_router("operator: ca")

# fmt: off
route(router, "show_ca", "GET /ca", "read", handlers.show, CANotConfigured)
route(router, "check_ca", "GET /ca/check", "read", handlers.check, CANotConfigured, SignerUnavailable)
route(router, "rotate_ca", "POST /ca/rotation", "act", handlers.rotate,
      CANotConfigured, RotationForbidden, AlgorithmForbidden, RequestInvalid, KeyUnusable, SignerUnavailable)
route(router, "list_certificates", "GET /ca/certificates", "read", handlers.certificates,
      CANotConfigured, RequestInvalid)
route(router, "show_certificate", "GET /ca/certificates/{serial}", "read", handlers.certificate,
      CANotConfigured, CertificateUnknown)
route(router, "revoke_certificate", "POST /ca/certificates/{serial}/revoke", "act", handlers.revoke,
      CANotConfigured, CertificateUnknown, TransitionForbidden)
route(router, "list_refused_keys", "GET /ca/refused-keys", "read", handlers.refused_keys,
      CANotConfigured, RequestInvalid)
route(router, "refuse_key", "POST /ca/refused-keys", "act", handlers.refuse_key,
      CANotConfigured, AlreadyExists, TransitionForbidden)
