"""HTTP of the trust bundle."""

from __future__ import annotations

from attestation.errors import (
    AlreadyExists,
    BundleInvalid,
    MachineUnknown,
    MalformedEvidence,
    TransitionForbidden,
    TrustCertificateUnknown,
)
from attestation_service.routing.openapi import operator_router, route
from attestation_service.trust import handlers

router = operator_router("operator: trust")

# fmt: off
route(router, "show_trust_bundle", "GET /trust/bundle", "read", handlers.show_bundle)
route(router, "show_trust_certificate", "GET /trust/certificates/{sha256}", "read", handlers.show_certificate,
      TrustCertificateUnknown)
route(router, "trust_certificate", "POST /trust/certificates", "act", handlers.add,
      BundleInvalid, AlreadyExists, done=201)
route(router, "distrust_certificate", "POST /trust/certificates/{sha256}/distrust", "act", handlers.distrust,
      TrustCertificateUnknown, TransitionForbidden)
route(router, "restore_certificate", "POST /trust/certificates/{sha256}/restore", "act", handlers.restore,
      TrustCertificateUnknown, TransitionForbidden)
route(router, "verify_ek_certificate", "POST /trust/verify", "act", handlers.verify, MalformedEvidence)
route(router, "show_endorsement", "GET /machines/{machine_id}/endorsement", "read", handlers.endorsement,
      MachineUnknown, TrustCertificateUnknown)
