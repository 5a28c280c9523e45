"""What firmware tables and interfaces say of the machine: hints for operators, never identity (PROTOCOL §1)."""

from __future__ import annotations

from pathlib import Path
from typing import Final

UNKNOWN: Final = "unknown"
_MAX_CHARACTERS = 128
_ETHERNET = "1"


def read_hardware(sysfs: Path = Path("/sys")) -> dict[str, str]:
    """Return `hw_uuid`, `hw_mac`, `hw_serial`, `hw_product`; what cannot be read is `unknown`."""
    dmi = sysfs / "class/dmi/id"
    serial = _read(dmi / "product_serial")
    return {
        "hw_uuid": _read(dmi / "product_uuid").lower(),
        "hw_mac": _first_mac(sysfs / "class/net"),
        "hw_serial": serial if serial != UNKNOWN else _read(dmi / "chassis_serial"),
        "hw_product": _read(dmi / "product_name"),
    }


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            raw = file.read(4 * _MAX_CHARACTERS)
    except OSError:
        return UNKNOWN
    text = "".join(c for c in raw.decode("utf-8", "replace") if c.isprintable()).strip()
    return text[:_MAX_CHARACTERS] or UNKNOWN


def _first_mac(interfaces: Path) -> str:
    """Return the address of the first physical Ethernet interface, by name, one with a link if there is any."""
    found: list[tuple[bool, str, str]] = []
    try:
        names = sorted(path.name for path in interfaces.iterdir())
    except OSError:
        return UNKNOWN
    for name in names:
        interface = interfaces / name
        # A virtual interface has no device; its address may change at every boot.
        if not (interface / "device").exists() or _read(interface / "type") != _ETHERNET:
            continue
        address = _read(interface / "address").lower()
        if address not in (UNKNOWN, "00:00:00:00:00:00"):
            found.append((_read(interface / "operstate") != "up", name, address))
    return min(found)[2] if found else UNKNOWN
