"""HTTP of base configurations and of machines' patches."""

from __future__ import annotations

from attestation.api.operations import OperatorAPI
from attestation_service.configurations import handlers, previews
from attestation_service.routing.openapi import operator_router, route

router = operator_router("operator: configurations")

route(router, OperatorAPI.configurations, "read", handlers.list_bases)
route(router, OperatorAPI.rewrap_configurations, "act", handlers.rewrap)
route(router, OperatorAPI.preview_upgrade, "read", previews.preview_upgrade)
route(router, OperatorAPI.import_configuration, "act", handlers.import_base, done=201)
route(router, OperatorAPI.configuration, "read", handlers.get_base)
route(router, OperatorAPI.diff_configurations, "read", handlers.diff_bases)
route(router, OperatorAPI.activate_configuration, "act", handlers.activate_base)
route(router, OperatorAPI.roll_back_configuration, "act", handlers.roll_back_base)
route(router, OperatorAPI.patches, "read", handlers.list_patches)
route(router, OperatorAPI.import_patch, "act", handlers.import_patch, done=201)
route(router, OperatorAPI.diff_patches, "read", handlers.diff_patches)
route(router, OperatorAPI.patch, "read", handlers.get_patch)
route(router, OperatorAPI.activate_patch, "act", handlers.activate_patch)
route(router, OperatorAPI.roll_back_patch, "act", handlers.roll_back_patch)
route(router, OperatorAPI.preview_configuration, "read", previews.preview_machine)
