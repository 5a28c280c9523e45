"""HTTP of certificates for machines."""

from __future__ import annotations

from attestation.api.operations import NodeAPI, OperatorAPI
from attestation_service.enrollment import handlers, presented
from attestation_service.routing.openapi import machine_router, operator_router, route

machines = machine_router("node: certificates")
router = operator_router("operator: certificates")

route(machines, NodeAPI.certificate_challenge, "machine", handlers.challenge, omit="none")
route(machines, NodeAPI.request_certificate, "machine", handlers.request_cert, omit="none")
route(machines, NodeAPI.enroll, "machine", presented.enroll, omit="none")
route(router, OperatorAPI.machine_certificates, "read", handlers.listed, reach="cluster")
