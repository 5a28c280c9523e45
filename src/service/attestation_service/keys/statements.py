"""What the service says for a machine to act on, and to whom it does not (PROTOCOL §8)."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from attestation.errors import AgentTooOld
from attestation.keys import Binding, statements
from attestation.machines import Machine
from attestation_service.settings import Settings


def demand_nonce(node_nonce: str | None, settings: Settings) -> None:
    """Refuse to tell a machine what it would obey without asking whether it is meant.

    Raises:
        AgentTooOld: Its request carries no nonce of its own.
    """
    if node_nonce is None and not settings.compat_protocol_1:
        raise AgentTooOld(
            "there is something for this machine to do, but its agent is too old to tell whether it is meant: "
            "install an agent that sends node_nonce"
        )


def claims(machine: Machine, node_nonce: str | None, at: datetime, **more: Any) -> dict[str, Any]:
    """Return the claims of a statement for *machine* in answer to the request that carried *node_nonce*.

    Without one, those of protocol 1, which name no TPM; `demand_nonce` decides whether anybody gets these.
    """
    if node_nonce is None:
        return {"machine_id": machine.machine_id, **more, **statements.lifetime(at)}
    return statements.claims(binding(machine), node_nonce, at, **more)


def binding(machine: Machine) -> Binding:
    """Return the TPM of *machine*, whose AK is activated."""
    assert machine.key_name is not None
    return Binding(
        machine_id=machine.machine_id, ek_fingerprint=machine.fingerprint, ak_name=machine.key_name
    )
