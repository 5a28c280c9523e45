"""What machines are called: by a name that an operator gave them, else by what they say of themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from attestation.client.text import SHORT_ID, clean
from attestation.machines.names import typed_name

if TYPE_CHECKING:
    from attestation.api import MachineDetail

NOT_SAID: Final = "unknown"
"""What a machine that knows no serial number of itself sends in its place."""


def called(machine: MachineDetail) -> str:
    """Return what people call *machine*: its host name, else its serial number, else `machine` and its short id."""
    return machine.hostname or called_by(machine.hw_serial, machine.machine_id)


def called_by(serial: str | None, machine_id: str) -> str:
    """Return what people call a machine that has no host name yet."""
    said = clean(serial or "").strip()
    return said if said not in ("", NOT_SAID) else f"machine {machine_id[:SHORT_ID]}"


def typed_for(machine: MachineDetail) -> str:
    """Return what is typed before something is done to *machine* that cannot be undone; the service compares it too."""
    return typed_name(machine.hostname, machine.machine_id)
