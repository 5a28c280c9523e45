"""HTTP of attestation runs of Kubernetes nodes."""

from __future__ import annotations

from attestation.api.operations import ClusterAPI, OperatorAPI
from attestation.sealing import MEDIA_TYPE
from attestation_service.kubernetes_clusters import ControllerDuty
from attestation_service.routing.openapi import controller_router, operator_router, route
from attestation_service.runs import bundles, evidence, handlers, sealing

controllers = controller_router("attestation runs of Kubernetes nodes")
router = operator_router("operator: machines")

route(controllers, ClusterAPI.open_run, ControllerDuty.RUNS.value, handlers.open_run)
route(controllers, ClusterAPI.run, ControllerDuty.RUNS.value, handlers.show)
route(controllers, ClusterAPI.run_challenge, ControllerDuty.RUN_AGENT.value, evidence.challenge)
route(
    controllers,
    ClusterAPI.post_run_evidence,
    ControllerDuty.RUN_AGENT.value,
    evidence.take,
    done=202,
    logs=True,
)
# No `logs`: a Result is shorter than a boot log, and of many more values.
route(controllers, ClusterAPI.seal_run, ControllerDuty.RUNS.value, sealing.seal)
route(
    router,
    OperatorAPI.run_bundle,
    "read",
    bundles.bundle,
    also={
        200: {
            "description": "The file",
            "content": {MEDIA_TYPE: {"schema": {"type": "string", "format": "binary"}}},
        }
    },
)
