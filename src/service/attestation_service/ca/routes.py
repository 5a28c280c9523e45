"""HTTP of the CAs, for operators."""

from __future__ import annotations

from attestation.api.operations import OperatorAPI
from attestation_service.ca import handlers, imported, parents
from attestation_service.routing.openapi import operator_router, route

router = operator_router("operator: ca")

route(router, OperatorAPI.ca, "read", handlers.show)
route(router, OperatorAPI.ca_check, "read", handlers.check)
route(router, OperatorAPI.rotate_ca, "act", handlers.rotate)
route(router, OperatorAPI.request_ca_certificate, "act", parents.ask)
route(router, OperatorAPI.import_ca_certificate, "act", parents.import_chain)
route(router, OperatorAPI.ca_import_key, "act", imported.import_kek_of)
route(router, OperatorAPI.import_ca_key, "act", imported.import_ca_key)
route(router, OperatorAPI.certificates, "read", handlers.certificates)
route(router, OperatorAPI.certificate, "read", handlers.certificate)
route(router, OperatorAPI.revoke_certificate, "act", handlers.revoke)
route(router, OperatorAPI.refused_keys, "read", handlers.refused_keys)
route(router, OperatorAPI.refuse_key, "act", handlers.refuse_key)
