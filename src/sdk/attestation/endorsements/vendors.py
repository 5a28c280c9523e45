"""The TCG Vendor ID Registry, as far as TPMs of these makers are met (TPM.md §2.3).

An id is four ASCII bytes as eight hex digits behind `id:`, filled with 00, for NSM and STM with a space.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

_FILLED_WITH_ZERO: Final = (
    "AMD ATML BRCM CSCO FLYS GOOG HISI HPE IBM IFX INTC LEN MSFT NSG NTC NTZ QCOM ROCC SMSC SMSN SNS TXN WEC"
)
_FILLED_WITH_SPACE: Final = "NSM STM"

_MAKERS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "ATML": "Atmel",
        "BRCM": "Broadcom",
        "CSCO": "Cisco",
        "FLYS": "FlySlice",
        "GOOG": "Google",
        "HISI": "Huawei",
        "IFX": "Infineon",
        "INTC": "Intel",
        "LEN": "Lenovo",
        "MSFT": "Microsoft",
        "NSG": "NSING",
        "NSM": "National Semiconductor",
        "NTC": "Nuvoton",
        "NTZ": "Nationz",
        "QCOM": "Qualcomm",
        "ROCC": "Rockchip",
        "SMSN": "Samsung",
        "SNS": "Sinosun",
        "STM": "STMicroelectronics",
        "TXN": "Texas Instruments",
        "WEC": "Winbond",
    }
)
"""Registered name to what people call the maker, where that is another word."""

SIMULATOR: Final = "simulator"
SIMULATOR_ID: Final = "id:00001014"
"""What swtpm writes into its certificates; no vendor has it."""

VENDOR_NAMES: Final[Mapping[str, str]] = MappingProxyType(
    {
        f"id:{n.encode().ljust(4, fill).hex().upper()}": n
        for names, fill in ((_FILLED_WITH_ZERO, b"\0"), (_FILLED_WITH_SPACE, b" "))
        for n in names.split()
    }
)
"""Manufacturer id as in a certificate, hex in upper case, to the registered name."""


def vendor_name(manufacturer: str) -> str | None:
    """Return the registered name of a manufacturer id like `id:49465800`, or None."""
    return VENDOR_NAMES.get("id:" + manufacturer[3:].upper()) if manufacturer.startswith("id:") else None


def maker(name: str) -> str:
    """Return what people call the maker with the registered *name*; the name itself where it is one already."""
    return _MAKERS.get(name, name)


def vendor_or_simulator(manufacturer: str) -> str | None:
    """Return as `vendor_name` does, and `simulator` for what swtpm writes."""
    return SIMULATOR if manufacturer.lower() == SIMULATOR_ID else vendor_name(manufacturer)
