"""HTTP of certificate requests of Kubernetes nodes."""

from __future__ import annotations

from attestation.api.operations import ClusterAPI, OperatorAPI
from attestation_service.kubernetes_clusters import ControllerDuty
from attestation_service.node_csr import decisions, handlers, signing, trust
from attestation_service.routing.openapi import Responses, controller_router, operator_router, route

controllers = controller_router("controllers of Kubernetes clusters")
router = operator_router("operator: machines")

UNCHANGED: Responses = {304: {"description": "You have this already (`If-None-Match`)"}}

route(controllers, ClusterAPI.appraise, ControllerDuty.APPROVER.value, handlers.appraise, logs=True)
route(controllers, ClusterAPI.sign, ControllerDuty.SIGNER.value, signing.sign, logs=True)
route(controllers, ClusterAPI.trust, ControllerDuty.CONTROLLER.value, trust.trust, also=UNCHANGED)
route(router, OperatorAPI.node_csr_decisions, "read", decisions.decisions)
