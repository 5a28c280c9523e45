"""HTTP of images."""

from __future__ import annotations

from attestation.api.operations import OperatorAPI
from attestation_service.images import handlers
from attestation_service.routing.openapi import operator_router, route

router = operator_router("operator: images")

route(router, OperatorAPI.issue_image, "act", handlers.issue)
