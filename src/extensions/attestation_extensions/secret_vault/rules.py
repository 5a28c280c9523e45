"""Release rules: what must be true of a machine, its evidence and the moment, before it gets a value (CEL)."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Final

from attestation.extension import AttestedMachine, MachineFacts, Rule

NAMES: Final = ("machine", "vector", "quote")
"""What a rule may read, as docs/operate/secrets.md lists it."""
MAX_RULE: Final = 512


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
