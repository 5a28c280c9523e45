"""The area of pages about machines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from attestation_web.page import Page

if TYPE_CHECKING:
    from attestation.api import MachineDetail

page: Final = Page("attestation_web.pages.machines", title="Machines", place=30)


def name_of(machine: MachineDetail) -> str:
    """Return what people call *machine*: its host name, else what it says of its serial number, else its id."""
    return machine.hostname or machine.hw_serial or machine.machine_id
