"""HTTP of CA keys in hardware: for the controller that has them, for operators, and for relying parties."""

from __future__ import annotations

from typing import Final

from fastapi import APIRouter

from attestation.api.operations import ClusterAPI, OperatorAPI, PublicAPI
from attestation_service.hsm import delegates, issuance, issuers, lists, nonces, operators, published, quotes
from attestation_service.kubernetes_clusters import ControllerDuty
from attestation_service.routing.openapi import Responses, as_it_is, controller_router, operator_router, route

controllers = controller_router("controllers of CA keys in hardware")
router = operator_router("operator: CA keys in hardware")
public = APIRouter(tags=["pki"])

UNCHANGED: Responses = {304: {"description": "You have this already (`If-None-Match`)"}}
LIST = as_it_is(PublicAPI.hsm_crl, "CertificateList, DER (RFC 5280 §5)") | UNCHANGED
CERTIFICATE = as_it_is(PublicAPI.hsm_ca, "Certificate, DER") | UNCHANGED
HSM: Final = ControllerDuty.HSM.value

route(controllers, ClusterAPI.put_hsm_issuer, HSM, issuers.put, logs=True)
route(controllers, ClusterAPI.reserve_hsm_certificates, HSM, issuance.reserve)
route(controllers, ClusterAPI.record_hsm_certificates, HSM, issuance.record, logs=True)
route(controllers, ClusterAPI.begin_hsm_crl, HSM, lists.begin)
route(controllers, ClusterAPI.put_hsm_crl, HSM, lists.put, logs=True)
route(controllers, ClusterAPI.hsm_responder, HSM, delegates.ask)
route(controllers, ClusterAPI.put_hsm_responder, HSM, delegates.put)
route(controllers, ClusterAPI.hsm_nonce, HSM, nonces.issue)
route(controllers, ClusterAPI.put_quote_attestation, HSM, quotes.put, logs=True)
route(controllers, ClusterAPI.add_quote_step, HSM, quotes.step)

route(router, OperatorAPI.hsm_issuers, "read", operators.issuers)
route(router, OperatorAPI.hsm_certificates, "read", operators.certificates)
route(router, OperatorAPI.revoke_hsm_certificate, "act", operators.revoke)
route(router, OperatorAPI.quote_attestations, "read", operators.quote_attestations)
route(router, OperatorAPI.judge_quote_attestation, "query", quotes.judge, logs=True)

route(public, PublicAPI.hsm_crl, "public", published.crl, instead=LIST)
route(public, PublicAPI.hsm_ca, "public", published.ca, instead=CERTIFICATE)
