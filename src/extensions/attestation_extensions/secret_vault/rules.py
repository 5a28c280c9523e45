"""Who may have a value: what the vault itself asks, and release rules over machine, evidence and moment (CEL)."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Final

from attestation.errors import PolicyInvalid
from attestation.extension import AttestedMachine, MachineFacts, Rule, Tx
from attestation_extensions.secret_vault.keys import Keys
from attestation_extensions.secret_vault.records import SHARED, Secret, Secrets, terms_of_grant

NAMES: Final = ("machine", "vector", "quote")
"""What a rule may read, as docs/operate/secrets.md lists it."""


def rule_of(expression: str) -> Rule:
    """Return *expression* as a rule.

    Raises:
        PolicyInvalid: It is none.
    """
    return Rule(expression, NAMES)


def values_of(machine: AttestedMachine | MachineFacts, at: datetime) -> Mapping[str, object]:
    """Return what a rule reads, of a machine that asks as of one that a rule is tried on."""
    quoted_at = machine.quoted_at
    age = {} if quoted_at is None else {"age_seconds": int((at - quoted_at).total_seconds())}
    return {
        "machine": {
            "id": machine.machine_id,
            "hostname": machine.hostname or "",
            "role": "" if machine.role is None else machine.role.value,
            "cluster": machine.cluster_id,
            "assurance": machine.assurance,
        },
        # CEL takes a hyphen for a minus.
        "vector": {name.replace("-", "_"): value for name, value in machine.vector.items()},
        "quote": age,
    }


def refusal(
    tx: Tx,
    keys: Keys,
    secret: Secret,
    machine: AttestedMachine | MachineFacts,
    at: datetime,
    *,
    tried: Rule | None = None,
) -> str | None:
    """Return why *machine*, which proved itself, may not have *secret*; None where it may.

    Args:
        tx: The unit that gives, or that looks.
        keys: What vouches for terms and grants.
        secret: As it is in this unit.
        machine: Who asks, or would.
        at: Now.
        tried: A rule in place of that of the secret.
    """
    if not keys.vouches(secret.mark, secret.terms):
        return "its terms were not written by the vault"
    if secret.is_expired(at):
        return "it has expired"
    if secret.owner == SHARED:
        mark = tx.of(Secrets).mark_of_grant(secret.secret_id, machine.machine_id)
        if mark is None:
            return "not granted"
        if not keys.vouches(mark, terms_of_grant(secret.secret_id, machine.machine_id)):
            return "its grant was not written by the vault"
    if tried is None and secret.rule is None:
        return None
    try:
        broken = (tried or rule_of(secret.rule or "")).broken(values_of(machine, at))
    except PolicyInvalid as e:
        broken = str(e)
    return None if broken is None else f"its rule: {broken}"
