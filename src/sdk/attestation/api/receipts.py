"""Receipts of machines that were installed away from the service (DELIVERY-AND-OPERATORS §8, ITL-REFERENCE §14)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, StrictBool

from attestation.api.base import HardwareText, Instant, MachineId, Wire
from attestation.machines import Role, Status

__all__ = ["ImportedMachine", "ReceiptImport"]


class ReceiptImport(Wire):
    """`POST /api/v1/machines/import`: a receipt, `EFI/itl/tpm-receipt.json`. It is what a machine says of itself."""

    ek_fingerprint: Annotated[
        str,
        Field(pattern=r"^[0-9a-fA-F]{96}$", description="SHA-384 of the EK's SPKI DER, 96 hex"),
        AfterValidator(str.lower),
    ]
    install_mode: Literal["online", "offline"] = "offline"
    machine_id: MachineId | None = Field(default=None, description="What it was told; never taken over")
    role: Role = Field(default=Role.WORKER_APP, description="A wish")
    hw_uuid: HardwareText = "unknown"
    hw_mac: HardwareText = "unknown"
    hw_serial: HardwareText = "unknown"
    hw_product: HardwareText = "unknown"
    ek_source: Literal["cert", "pub"] = "pub"
    installed_at: Instant | None = None
    dry_run: StrictBool = Field(default=False, description="Say what would be done, and do nothing")


class ImportedMachine(Wire):
    """What became of a receipt."""

    result: Literal["added", "known", "would-add"]
    machine_id: str | None = Field(description="Null where nothing was done")
    ek_fingerprint: str
    status: Status
    role: Role | None = Field(description="What operators gave it; null: none yet, whatever it wishes for")
    admitted_in_advance: bool = Field(
        description="Its EK is on the allow-list: it is admitted when it proves it, without an approval"
    )
    differs: list[str] = Field(description="Of a known machine: what the receipt says otherwise")
    message: str
