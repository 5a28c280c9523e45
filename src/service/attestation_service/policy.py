"""Which policy is in force for a machine: all that are assigned to it in one, else the shipped `identity-only`."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import structlog

from attestation.errors import PolicyInvalid, Unavailable
from attestation.machines import Machine, Role
from attestation.machines.dual_control import AppliedPolicy, Measured
from attestation.reference import IDENTITY_ONLY, Policy, compose, parse_policy
from attestation.store import Tx

log = structlog.get_logger("attestation_service.policy")

MOST_REMEMBERED: Final = 256

_effective: Final[dict[tuple[str, ...], Policy]] = {}


def in_force(tx: Tx, machine: Machine) -> Policy:
    """Return the policy that applies to *machine* now."""
    return effective(tx, tx.policies.applicable(machine.machine_id, machine.role, machine.cluster_id))


def of_role(tx: Tx, role: Role, cluster_id: str) -> Policy:
    """Return the policy that applies to a new machine in *role* of a cluster."""
    return effective(tx, tx.policies.applicable("", role, cluster_id))


def measured(tx: Tx, machine: Machine) -> Measured | None:
    """Return what *machine*, as it would be, is measured against, as votes bind it; None without a role."""
    if machine.role is None:
        return None
    assigned = tx.policies.applicable(machine.machine_id, machine.role, machine.cluster_id)
    found = effective(tx, assigned)
    return Measured(
        policy=AppliedPolicy(ref=found.ref, sha256=found.sha256),
        minimum=found.assurance_minimum(machine.role),
        parts=tuple(AppliedPolicy(ref=ref, sha256=sha256) for ref, sha256 in map(str.split, assigned)),
    )


def effective(tx: Tx, assigned: tuple[str, ...]) -> Policy:
    """Return all of *assigned* in one policy, the shipped one where nothing is assigned.

    What it is made of is named with its digest, so what is remembered cannot become wrong.

    Args:
        tx: Where documents are read that are not remembered.
        assigned: `name@version sha256` of each, the widest first.

    Raises:
        Unavailable: They contradict each other, so nothing can be judged until an operator changes that.
    """
    if not assigned:
        return IDENTITY_ONLY
    found = _effective.get(assigned)
    if found is None:
        refs = [pin.partition(" ")[0] for pin in assigned]
        try:
            found = compose([stored(tx, ref) for ref in refs])
        except PolicyInvalid as e:
            log.error("policies.contradict", policies=refs, reason=str(e))  # noqa: TRY400 -- no fault of ours
            raise Unavailable("the policies of this machine contradict each other") from e
        if len(_effective) >= MOST_REMEMBERED:
            _effective.clear()
        _effective[assigned] = found
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
