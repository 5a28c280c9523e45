"""Whose a manufacturer id is, and what people call who it is."""

from __future__ import annotations

import pytest

from attestation.endorsements.vendors import VENDOR_NAMES, maker, vendor_name, vendor_or_simulator


@pytest.mark.parametrize(
    ("manufacturer", "name"),
    [
        ("id:49465800", "IFX"),
        ("id:4e534d20", "NSM"),
        ("id:00001014", None),
        ("49465800", None),
        ("id:", None),
        ("", None),
    ],
)
def test_an_id_has_one_registered_name(manufacturer: str, name: str | None) -> None:
    """In either case of its digits; what swtpm writes is nobody's."""
    assert vendor_name(manufacturer) == name
    assert vendor_or_simulator(manufacturer) == ("simulator" if manufacturer == "id:00001014" else name)


def test_makers_are_called_what_people_call_them() -> None:
    """Each registered name stands for a maker, which is its own name where people say that."""
    assert (maker("IFX"), maker("STM"), maker("IBM")) == ("Infineon", "STMicroelectronics", "IBM")
    assert len({maker(name) for name in VENDOR_NAMES.values()}) == len(set(VENDOR_NAMES.values()))
