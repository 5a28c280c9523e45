"""HTTP of the operators' acts on machines."""

from __future__ import annotations

from attestation.errors import (
    AssuranceTooLow,
    MachineChanged,
    MachineUnknown,
    NameInUse,
    RequestInvalid,
    TransitionForbidden,
)
from attestation_service.machines import handlers, reading
from attestation_service.routing.openapi import operator_router, route

router = operator_router("operator: machines")

ACT = (MachineUnknown, TransitionForbidden, MachineChanged)
GRANT = (*ACT, AssuranceTooLow, NameInUse)

# fmt: off
route(router, "list_machines", "GET /machines", "read", reading.list_machines, RequestInvalid)
route(router, "get_machine", "GET /machines/{machine_id}", "read", reading.get_machine, MachineUnknown)
route(router, "get_machine_keys", "GET /machines/{machine_id}/keys", "read", reading.get_keys, MachineUnknown)
route(router, "approve_machine", "POST /machines/{machine_id}/approve", "act", handlers.approve, *GRANT)
route(router, "reject_machine", "POST /machines/{machine_id}/reject", "act", handlers.reject, *ACT)
route(router, "lock_machine", "POST /machines/{machine_id}/lock", "act", handlers.lock, *ACT)
route(router, "unlock_machine", "POST /machines/{machine_id}/unlock", "act", handlers.unlock, *ACT)
route(router, "revoke_machine", "POST /machines/{machine_id}/revoke", "act", handlers.revoke, *ACT)
route(router, "reset_ak", "POST /machines/{machine_id}/ak-reset", "act", handlers.ak_reset, *ACT)
route(router, "redeliver_config", "POST /machines/{machine_id}/redeliver", "act", handlers.redeliver, *ACT)
route(router, "change_role", "POST /machines/{machine_id}/role", "act", handlers.change_role, *GRANT)
route(router, "replace_machine", "POST /machines/{machine_id}/replace", "act", handlers.take_over,
      *GRANT, RequestInvalid)
route(router, "label_machine", "POST /machines/{machine_id}/labels", "act", handlers.label,
      MachineUnknown, RequestInvalid)
route(router, "delete_machine", "DELETE /machines/{machine_id}", "act", handlers.delete, *ACT)
