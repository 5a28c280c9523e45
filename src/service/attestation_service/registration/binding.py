"""Whose an AK and a chip are: who gives way where two claim one, and when operators hear of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from attestation.endorsements import PathValidation
from attestation.machines import (
    Machine,
    Status,
)
from attestation.machines.chips import ENDED, Kinship, Mark, MarkKind
from attestation.machines.chips import judge as kinship_of
from attestation.store import AKBinding, Tx
from attestation_service.entitlements import alarms, pending
from attestation_service.registration.introduction import Alternative, Introduction

ELSEWHERE = "this attestation key belongs to another EK"


def bound_elsewhere(tx: Tx, introduction: Introduction) -> AKBinding | None:
    """Return whose the AK is, where it belongs to another EK."""
    bound = tx.ak_bindings.get(introduction.ak_name)
    return bound if bound is not None and bound.ek_fingerprint != introduction.ek_fingerprint else None


def gives_way(
    tx: Tx,
    bound: AKBinding,
    introduction: Introduction,
    validation: PathValidation | None,
    proven: Sequence[Alternative] = (),
) -> bool:
    """Return True if a binding yields to the EK of *introduction*, once that EK answered its credential.

    To activate an AK takes no more than an EK: whoever saw its public part binds it to an EK of software before its own
    machine does. So the word of a vendor's chain or of the allow-list is worth more than having been first, as long as
    nobody decided anything about the other EK, and nobody turned away the chip that claims it: what vouches for an EK
    outlives that. Between two that nobody vouches for, the first keeps it.
    """
    return (
        _is_answered_for(tx, introduction, validation)
        and not _was_turned_away(tx, introduction, proven)
        and _is_undecided(tx, bound)
    )


def _was_turned_away(tx: Tx, introduction: Introduction, proven: Sequence[Alternative]) -> bool:
    """Return True where a machine of this chip is rejected, locked or revoked, or was when it was deleted."""
    machine = tx.machines.by_ek(introduction.ek_fingerprint)
    if machine is not None and machine.status in ENDED:
        return True
    marks = set(introduction.marks(proven))
    if machine is not None:
        marks.update(tx.chip_marks.of(machine.machine_id))
    known = tx.chip_marks.relatives("", marks)
    return any(each.is_same_chip and each.status in ENDED for each in known)


def _is_undecided(tx: Tx, bound: AKBinding) -> bool:
    """Return True where nobody vouches for the EK that has an AK, and nobody ever decided about its machine."""
    # 1. Its machine waits, or went while it waited. Whoever was admitted, rejected, locked or revoked keeps the key.
    holder = tx.machines.by_ek(bound.ek_fingerprint)
    if holder is None and tx.chip_marks.of(bound.machine_id):
        return False
    if holder is not None and holder.status is not Status.PENDING_APPROVAL:
        return False
    # 2. Nobody vouches for it.
    if holder is not None and (holder.anchor.ek_chain_ok or holder.anchor.ek_allow_listed):
        return False
    if tx.allow_list.get(bound.ek_fingerprint) is not None:
        return False
    # 3. Nor was it decided about before: a machine that is deleted, or that showed this EK beside its own.
    known = tx.chip_marks.relatives("", [Mark(MarkKind.EK, bound.ek_fingerprint)])
    return all(each.status is Status.PENDING_APPROVAL for each in known)


def displace(tx: Tx, bound: AKBinding, introduction: Introduction, at: datetime) -> str:
    """Take an AK from an EK that nobody vouches for, and its machine away; return what operators hear of it."""
    tx.ak_bindings.release(introduction.ak_name)
    holder = tx.machines.by_ek(bound.ek_fingerprint)
    if holder is not None:
        why = f"its attestation key is that of EK {introduction.ek_fingerprint}, which is vouched for"
        pending.drop(tx, holder, at, action="pending_displaced", why=why)
    return (
        f"machine {_holder_id(bound, holder)} had claimed the attestation key of this machine under EK "
        f"{bound.ek_fingerprint}, for which no vendor vouches, and is gone: "
        "somebody is between machines and this service"
    )


def _holder_id(bound: AKBinding, holder: Machine | None) -> str:
    """Return who has an AK: a machine that was purged and came back has another id than when it was bound."""
    return bound.machine_id if holder is None else holder.machine_id


CHECK = "compare the EK fingerprint that `attestation-agent identify` prints on the machine's own console with both"


def sound_stolen(
    tx: Tx,
    introduction: Introduction,
    bound: AKBinding,
    at: datetime,
    proven: Sequence[Alternative] | None = None,
) -> None:
    """Tell that an AK came with another EK; *proven* is None where that EK answered nothing yet.

    To list an EK is advised only of one that answered its credential, and never without the check: whoever is listed
    so takes the key, and may be the stranger.
    """
    holder = tx.machines.by_ek(bound.ek_fingerprint)
    words = (
        f"the attestation key of machine {_holder_id(bound, holder)} was introduced with another EK, "
        f"{introduction.ek_fingerprint}; "
    )
    if proven is None:
        words += f"nothing was proven, anybody who saw the key can do that: {CHECK}, before you decide about either"
    else:
        words += f"{CHECK}, before you decide about either"
        if _is_undecided(tx, bound) and not _was_turned_away(tx, introduction, proven):
            # A rejection would leave the key with whoever is rejected.
            words += (
                "; no operator decided about that machine yet: where the fingerprint is the other one, put its EK on "
                "the allow-list before anything else: then it takes the key over"
            )
    alarms.sound(tx, words, at, subject=bound.ek_fingerprint, machine=holder, source=introduction.source)


def kinship_shown(
    tx: Tx, machine_id: str, introduction: Introduction, proven: Sequence[Alternative]
) -> Kinship:
    """Say whether an EK that nobody knows is one of a chip that was known, or was itself known before."""
    relatives = tx.chip_marks.relatives(machine_id, introduction.marks(proven))
    found = kinship_of(relatives)
    # Known, never decided about and purged: nothing to tell, but an operator decides this time too.
    return replace(found, waits=found.waits or bool(tx.ak_bindings.machines_of(introduction.ek_fingerprint)))


def is_vouched(tx: Tx, introduction: Introduction, validation: PathValidation | None) -> bool:
    """Return True where strangers cannot take this machine's place: it is known, on the list, or a vendor's."""
    machine = tx.machines.by_ek(introduction.ek_fingerprint)
    if machine is not None and machine.status is not Status.PENDING_APPROVAL:
        return True
    return _is_answered_for(tx, introduction, validation)


def _is_answered_for(tx: Tx, introduction: Introduction, validation: PathValidation | None) -> bool:
    """Return True where a vendor's chain or the allow-list vouches for the EK."""
    listed = tx.allow_list.get(introduction.ek_fingerprint) is not None
    return listed or (validation is not None and validation.ok)
