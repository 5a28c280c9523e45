"""What an act on a machine means for its certificates: on hold, good again, or revoked, in the unit of the act (R6).

The revision of each CA key that is concerned grows in the same unit, so no list and no OCSP answer that any worker
gives afterwards is from before. What is being signed at this moment is void: its last unit will find that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from attestation.store import RevocationReason, Tx
from attestation_service.context.identity import Operator

MOST_SERIALS: Final = 20
"""Serials that one entry of the audit log names; the issuance log has them all."""


@dataclass(frozen=True, slots=True)
class Fate:
    """What becomes of the certificates of a machine.

    Args:
        action: What the audit calls it.
        reason: Why, where they are revoked; None where they are only held or released.
    """

    action: str
    reason: RevocationReason | None = None


HELD: Final = Fate(action="cert_held")
"""A lock may end, so it is a certificateHold."""

RELEASED: Final = Fate(action="cert_released")

WITHDRAWN: Final = Fate(action="cert_revoked", reason="privilegeWithdrawn")
"""An operator ended the admission."""

GONE: Final = Fate(action="cert_revoked", reason="cessationOfOperation")
"""The machine is deleted."""

OTHER_ROLE: Final = Fate(action="cert_revoked", reason="superseded")
"""Its role, host name or address stands in its certificates: they speak of what it was."""

OTHER_KEY: Final = Fate(action="cert_revoked", reason="keyCompromise")
"""That its keys live in its TPM was the word of an attestation key that nobody believes any more: the worst of
them is to be assumed."""


def decide(tx: Tx, machine_id: str, fate: Fate, why: str, operator: Operator, at: datetime) -> None:
    """Let *fate* happen to every certificate of a machine, and record it.

    Args:
        tx: The unit of the act.
        machine_id: Whose.
        fate: What.
        why: What the audit calls the act; stands in the issuance log.
        operator: Who acts.
        at: Now.
    """
    if fate is RELEASED:
        _record(tx, machine_id, fate, tx.issuances.release(machine_id, why), why, operator, at)
        return
    if fate.reason is None:
        ended = tx.issuances.hold(machine_id, why, at)
    else:
        ended = tx.issuances.revoke(machine_id, fate.reason, why, at)
    _record(tx, machine_id, fate, ended, why, operator, at)
    given_up = tx.issuances.void_machine(machine_id, why, at)
    _record(tx, machine_id, Fate(action="cert_voided"), given_up, why, operator, at)


def _record(
    tx: Tx, machine_id: str, fate: Fate, serials: Sequence[str], why: str, operator: Operator, at: datetime
) -> None:
    if not serials:
        return
    more = f" and {len(serials) - MOST_SERIALS} more" if len(serials) > MOST_SERIALS else ""
    because = f", {fate.reason}" if fate.reason is not None else ""
    detail = f"{why}{because}: {', '.join(serials[:MOST_SERIALS])}{more}"
    tx.audit.append(operator.event(fate.action, machine_id=machine_id, detail=detail), at)
