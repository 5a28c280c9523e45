"""HTTP of challenge, attestation and acknowledgement."""

from __future__ import annotations

from attestation.api.operations import NodeAPI
from attestation_service.attest import acknowledgement, handlers
from attestation_service.routing.lean import LeanRoute
from attestation_service.routing.openapi import machine_router, route

router = machine_router("node: attestation")
hot = machine_router("node: attestation", route_class=LeanRoute)

route(hot, NodeAPI.attest, "machine", handlers.attest, omit="none", logs=True)
route(router, NodeAPI.challenge, "machine", handlers.challenge, omit="none")
route(router, NodeAPI.ack, "machine", acknowledgement.acknowledge)
