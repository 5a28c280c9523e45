"""Which policy is in force for a machine: all that are assigned to it in one, else the shipped `identity-only`."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import structlog

from attestation.errors import PolicyInvalid, Unavailable
from attestation.machines import Machine, Role
from attestation.machines.dual_control import AppliedPolicy, Measured
from attestation.reference import IDENTITY_ONLY, Policy, compose, compose_guarded, parse_policy
from attestation.store import Tx
from attestation.store.policies import AGREED
from attestation_service.settings import Settings

log = structlog.get_logger("attestation_service.policy")

MOST_REMEMBERED: Final = 256

_effective: Final[dict[tuple[Role | None, tuple[str, ...]], Policy]] = {}


def in_force(tx: Tx, machine: Machine, settings: Settings) -> Policy:
    """Return the policy that applies to *machine* now."""
    assigned = tx.policies.applicable(machine.machine_id, machine.role, machine.cluster_id)
    return effective(tx, assigned, machine.role, settings)


def of_role(tx: Tx, role: Role, cluster_id: str, settings: Settings) -> Policy:
    """Return the policy that applies to a new machine in *role* of a cluster."""
    return effective(tx, tx.policies.applicable("", role, cluster_id), role, settings)


def measured(tx: Tx, machine: Machine, settings: Settings) -> Measured | None:
    """Return what *machine*, as it would be, is measured against, as votes bind it; None without a role."""
    if machine.role is None:
        return None
    assigned = tx.policies.applicable(machine.machine_id, machine.role, machine.cluster_id)
    found = effective(tx, assigned, machine.role, settings)
    return Measured(
        policy=AppliedPolicy(ref=found.ref, sha256=found.sha256),
        minimum=found.assurance_minimum(machine.role),
        parts=tuple(
            AppliedPolicy(ref=ref, sha256=sha256, agreed=bool(agreed))
            for ref, sha256, *agreed in map(str.split, assigned)
        ),
    )


def effective(tx: Tx, assigned: tuple[str, ...], role: Role | None, settings: Settings) -> Policy:
    """Return all of *assigned* in one policy, the shipped one where nothing is assigned.

    What it is made of is named with its digest, so what is remembered cannot become wrong. For a role under dual
    control, what one operator assigned takes nothing back of what several agreed on, nor of the role's own minimum.

    Args:
        tx: Where documents are read that are not remembered.
        assigned: Each as the store's `applicable` writes it, the widest first.
        role: Of the machine.
        settings: Which roles are under dual control.

    Raises:
        Unavailable: They contradict each other, so nothing can be judged until an operator changes that.
    """
    if not assigned:
        return IDENTITY_ONLY
    guarded = role if role in settings.dual_control_roles else None
    found = _effective.get((guarded, assigned))
    if found is None:
        refs = [pin.partition(" ")[0] for pin in assigned]
        policies = [stored(tx, ref) for ref in refs]
        try:
            found = (
                compose(policies)
                if guarded is None
                else compose_guarded(policies, [pin.endswith(AGREED) for pin in assigned], guarded)
            )
        except PolicyInvalid as e:
            log.error("policies.contradict", policies=refs, reason=str(e))  # noqa: TRY400 -- no fault of ours
            raise Unavailable("the policies of this machine contradict each other") from e
        if len(_effective) >= MOST_REMEMBERED:
            _effective.clear()
        _effective[guarded, assigned] = found
    return found


def stored(tx: Tx, ref: str) -> Policy:
    """Return the policy `name@version`.

    Raises:
        PolicyUnknown: No such policy.
    """
    if ref == IDENTITY_ONLY.ref:
        return IDENTITY_ONLY
    return _parsed(tx.policies.get(ref).document)


@lru_cache(maxsize=256)
def _parsed(document: str) -> Policy:
    """Parse a policy; a pure function of its text, therefore remembered."""
    return parse_policy(document.encode("utf-8"))
