"""Which policy is in force for a machine: the narrowest assignment, else the shipped `identity-only`."""

from __future__ import annotations

from functools import lru_cache

from attestation.machines import Machine
from attestation.reference import IDENTITY_ONLY, Policy, parse_policy
from attestation.store import Tx


def in_force(tx: Tx, machine: Machine) -> Policy:
    """Return the policy that applies to *machine* now."""
    return assigned(tx, tx.policies.lookup(machine.machine_id, machine.role, machine.cluster_id))


def assigned(tx: Tx, ref: str | None) -> Policy:
    """Return the policy of the narrowest assignment, the shipped one where nothing is assigned."""
    return IDENTITY_ONLY if ref is None else stored(tx, ref)


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
