"""HTTP of the operators' acts on machines."""

from __future__ import annotations

from attestation.api.operations import OperatorAPI
from attestation_service.machines import handlers, importing, reading
from attestation_service.routing.openapi import operator_router, route

router = operator_router("operator: machines")

route(router, OperatorAPI.machines, "read", reading.list_machines, reach="cluster")
route(router, OperatorAPI.machine, "read", reading.get_machine, reach="cluster")
route(router, OperatorAPI.machine_keys, "read", reading.get_keys, reach="cluster")
route(router, OperatorAPI.import_receipt, "act", importing.import_receipt)
route(router, OperatorAPI.approve, "act", handlers.approve, reach="cluster")
route(router, OperatorAPI.reject, "act", handlers.reject, reach="cluster")
route(router, OperatorAPI.lock, "act", handlers.lock, reach="cluster")
route(router, OperatorAPI.unlock, "act", handlers.unlock, reach="cluster")
route(router, OperatorAPI.revoke, "act", handlers.revoke, reach="cluster")
route(router, OperatorAPI.ak_reset, "act", handlers.ak_reset, reach="cluster")
route(router, OperatorAPI.approve_hardware, "act", handlers.approve_hardware, reach="cluster")
route(router, OperatorAPI.redeliver, "act", handlers.redeliver, reach="cluster")
route(router, OperatorAPI.change_role, "act", handlers.change_role, reach="cluster")
route(router, OperatorAPI.replace, "act", handlers.take_over, reach="cluster")
route(router, OperatorAPI.label, "act", handlers.label, reach="cluster")
route(router, OperatorAPI.delete_machine, "act", handlers.delete, reach="cluster")
