"""Machines that nothing names beyond their boot, and the rule that lets them in: ITL_TEE_EPHEMERAL_ROLES."""

from __future__ import annotations

from attestation.errors import EphemeralForbidden
from attestation.machines import Machine, Role
from attestation_service.settings import Settings


def demand_allowed(machine: Machine, role: Role | None, settings: Settings) -> None:
    """Check that *machine* may have *role*; one that waits for a role may wait where any is allowed.

    Raises:
        EphemeralForbidden: It ends with its boot, and the rule does not name the role.
    """
    allowed = settings.tee_ephemeral_roles
    if machine.ephemeral and (role not in allowed if role is not None else not allowed):
        raise EphemeralForbidden(
            f"this machine is ephemeral, and ITL_TEE_EPHEMERAL_ROLES names {', '.join(allowed) or 'no role'}"
        )
