"""One EK in two machines: who proved an EK says another UUID or serial number than the machine that has it.

A TPM that was moved to another board says so, and so do two virtual machines of one image with the state of its TPM.
Which it is, only people can see: nothing is overwritten, nobody is refused for it, and operators hear of it (W8).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from attestation.machines import Machine
from attestation.machines.chips import WORDS, Mark, MarkKind, telling
from attestation.store import Tx
from attestation_service.entitlements import alarms
from attestation_service.registration.introduction import Introduction

MOST_MARKS: Final = 16
"""So many marks of a chip are kept of one machine."""
HINTS: Final = ((MarkKind.HW_UUID, "hw_uuid"), (MarkKind.HW_SERIAL, "hw_serial"))


def others_shown(
    machine: Machine, introduction: Introduction, marks: Sequence[Mark] = ()
) -> list[tuple[Mark, str]]:
    """Return what the introduction says otherwise than the machine said first, with that; what says nothing is none.

    *marks* are what it said later, where it said nothing at first: whoever hides it once is compared all the same.
    """
    found = []
    for kind, name in HINTS:
        later = (mark.value for mark in marks if mark.kind is kind)
        known, now = telling(getattr(machine, name)) or next(later, None), telling(introduction.hw[name])
        if known is not None and now is not None and known != now:
            found.append((Mark(kind, now), known))
    return found


def compare(tx: Tx, machine: Machine, introduction: Introduction, at: datetime) -> Machine:
    """Return *machine*, with an alarm where its EK was proven by what says to be another machine.

    What it says is kept beside what was known, so each of the two is told once; the alarm stays until an operator
    acts on the machine.
    """
    known = tx.chip_marks.of(machine.machine_id)
    others = others_shown(machine, introduction, known)
    new = [mark for mark, _ in others if mark not in known]
    kinds = {mark.kind for mark in known}
    first = [
        Mark(kind, now)
        for kind, name in HINTS
        if kind not in kinds
        and telling(getattr(machine, name)) is None
        and (now := telling(introduction.hw[name])) is not None
    ]
    if first:
        tx.chip_marks.put(machine.machine_id, first[: max(0, MOST_MARKS - len(known))])
    if not new:
        return machine
    tx.chip_marks.put(machine.machine_id, new[: max(0, MOST_MARKS - len(known))])
    words = told(others)
    machine = tx.machines.update(machine, alarm=words)
    alarms.sound(tx, words, at, subject=machine.fingerprint, machine=machine, source=introduction.source)
    return machine


def sound_unproven(tx: Tx, machine: Machine, introduction: Introduction, at: datetime) -> None:
    """Tell of an introduction with the EK of *machine*, another attestation key and another hardware.

    It proved nothing, so the machine itself is not marked.
    """
    words = (
        f"{told(others_shown(machine, introduction))}; it has another attestation key, and nothing was proven"
    )
    # Counted apart: who knows an EK, which is no secret, could else use up what is told of it once it is proven.
    subject = f"unproven {machine.fingerprint}"
    alarms.sound(tx, words, at, subject=subject, machine=machine, source=introduction.source)


def told(others: list[tuple[Mark, str]]) -> str:
    """Return in words what is different."""
    what = ", ".join(f"{WORDS[mark.kind]} {mark.value} instead of {known}" for mark, known in others)
    return f"one EK seen on two machines: {what}"
