"""What the kiosk leaves behind: `EFI/itl/registration.json` and `EFI/itl/tpm-receipt.json`. Nothing in them is secret.

The machine that boots from the disk proves itself with the same TPM, so it needs no token: these files say where the
service is and whom to believe, and let operators import a machine that no service has seen.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal

from attestation.clock import rfc3339

REGISTRATION: Final = "EFI/itl/registration.json"
RECEIPT: Final = "EFI/itl/tpm-receipt.json"
BUNDLE: Final = "EFI/itl/reg-bundle.json"
MAX_BYTES: Final = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    """A machine that was installed.

    Args:
        mode: With the service, or without.
        machine_id: What the service calls it; None where it was not asked.
        role: What was wished for; an operator decides.
        cluster_id: Likewise.
        hardware: `hw_uuid`, `hw_mac`, `hw_serial`, `hw_product`.
        ek_fingerprint: SHA-384 of the EK's SPKI DER, 96 hex.
        ek_source: `cert` or `pub`.
        reg_url: Address of the service; None where nobody named one.
        service_keys: The JWK set that was pinned; None without the service.
        image: Name of the image, as the signed list has it.
        image_sha256: Hex.
        at: Now, UTC.
    """

    mode: Literal["online", "offline"]
    machine_id: str | None
    role: str | None
    cluster_id: str
    hardware: Mapping[str, str]
    ek_fingerprint: str
    ek_source: str
    reg_url: str | None
    service_keys: Mapping[str, Any] | None
    image: str
    image_sha256: str
    at: datetime


def registration(installed: Installed) -> bytes:
    """Return `registration.json`: where the service is, who we are to it, which keys are its."""
    return _json(
        {
            "machine_id": installed.machine_id,
            "reg_url": installed.reg_url,
            "role": installed.role,
            "cluster_id": installed.cluster_id,
            "ek_fingerprint": installed.ek_fingerprint,
            "service_keys": installed.service_keys,
            "image": installed.image,
            "image_sha256": installed.image_sha256,
        }
    )


def receipt(installed: Installed) -> bytes:
    """Return `tpm-receipt.json`: exactly these members, which `attestation machine import` reads."""
    return _json(
        {
            "install_mode": installed.mode,
            "machine_id": installed.machine_id,
            "role": installed.role,
            **installed.hardware,
            "ek_fingerprint": installed.ek_fingerprint,
            "ek_source": installed.ek_source,
            "installed_at": rfc3339(installed.at),
        }
    )


def is_of(data: bytes, ek_fingerprint: str) -> bool:
    """Return True where *data* is the receipt of the machine with this EK."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return False
    return isinstance(found, dict) and found.get("ek_fingerprint") == ek_fingerprint


def _json(members: Mapping[str, Any]) -> bytes:
    known = {name: value for name, value in members.items() if value is not None}
    return (json.dumps(known, indent=2, sort_keys=True) + "\n").encode("ascii")
