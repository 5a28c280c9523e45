"""HTTP of the operators' acts on machines."""

from __future__ import annotations

from attestation.api.operations import OperatorAPI
from attestation_service.machines import handlers, reading
from attestation_service.routing.openapi import operator_router, route

router = operator_router("operator: machines")

route(router, OperatorAPI.machines, "read", reading.list_machines)
route(router, OperatorAPI.machine, "read", reading.get_machine)
route(router, OperatorAPI.machine_keys, "read", reading.get_keys)
route(router, OperatorAPI.approve, "act", handlers.approve)
route(router, OperatorAPI.reject, "act", handlers.reject)
route(router, OperatorAPI.lock, "act", handlers.lock)
route(router, OperatorAPI.unlock, "act", handlers.unlock)
route(router, OperatorAPI.revoke, "act", handlers.revoke)
route(router, OperatorAPI.ak_reset, "act", handlers.ak_reset)
route(router, OperatorAPI.approve_hardware, "act", handlers.approve_hardware)
route(router, OperatorAPI.redeliver, "act", handlers.redeliver)
route(router, OperatorAPI.change_role, "act", handlers.change_role)
route(router, OperatorAPI.replace, "act", handlers.take_over)
route(router, OperatorAPI.label, "act", handlers.label)
route(router, OperatorAPI.delete_machine, "act", handlers.delete)
