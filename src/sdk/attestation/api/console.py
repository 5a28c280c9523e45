"""Codes on the consoles of machines, for operators. What machines ask is RFC 8628, not ours."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field

from attestation.api.base import MachineId, Wire
from attestation.machines.console_code import PATTERN

__all__ = ["ConsoleCodeDetail", "ConsoleCodePage", "ConsoleCodeShown"]


class ConsoleCodeDetail(Wire):
    """A code that a machine was given to show on its console.

    What the machine says of its hardware proves nothing; that somebody has read the code there, an operator says.
    """

    code: Annotated[str, Field(pattern=PATTERN)]
    tier: Annotated[
        Literal["console"],
        Field(description="What an approval is worth: presence, and no TPM; no policy counts it"),
    ] = "console"
    state: Literal["pending", "approved", "denied", "expired"]
    client_id: Annotated[str, Field(description="What the machine calls itself")]
    hw_uuid: Annotated[str | None, Field(description="What it says of its hardware")] = None
    hw_mac: str | None = None
    hw_serial: str | None = None
    hostname: str | None = None
    source_ip: Annotated[str, Field(description="Where it asked from")]
    asked_at: datetime
    expires_at: datetime
    decided_at: datetime | None = None
    decided_by: str | None = None
    token_source_ip: Annotated[
        str | None,
        Field(description="Where the token went, once there was one; what it lets have is no secret"),
    ] = None


class ConsoleCodeShown(ConsoleCodeDetail):
    """A code, with who else says the same of their hardware."""

    machines: Annotated[
        list[MachineId], Field(description="Machines known by the same UUID, MAC address or serial number")
    ]
    other_codes: Annotated[
        list[str], Field(description="Codes that wait, likewise: one of them is not this machine")
    ]


class ConsoleCodePage(Wire):
    """Codes, newest first."""

    items: list[ConsoleCodeDetail]
    next_cursor: str | None = None
