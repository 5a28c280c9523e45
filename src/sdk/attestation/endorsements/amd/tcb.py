"""TCB versions of AMD's processors: components, compared one by one and never as one integer (CONFIDENTIAL.md §8.2)."""

from __future__ import annotations

from typing import NamedTuple

from attestation.endorsements.amd.products import Product

TCB_BYTES = 8


class TCB(NamedTuple):
    """The security version of each component, 0-255. `fmc` exists from Turin on; before it is None."""

    fmc: int | None
    bootloader: int
    tee: int
    snp: int
    microcode: int

    def lower_than(self, other: TCB) -> tuple[str, ...]:
        """Return the names of the components that are lower than those of *other*."""
        pairs = zip(self._fields, self, other, strict=True)
        return tuple(name for name, ours, theirs in pairs if (ours or 0) < (theirs or 0))

    def __str__(self) -> str:
        """Return each component by its name."""
        pairs = zip(self._fields, self, strict=True)
        return " ".join(f"{name} {value}" for name, value in pairs if value is not None)

    def components(self) -> dict[str, int]:
        """Return each component that exists, by its name."""
        return {name: value for name, value in self._asdict().items() if value is not None}


def parse_tcb(data: bytes, product: Product) -> TCB:
    """Return what 8 bytes of a report say for processors of *product*; bytes that are no component are not read."""
    if product is Product.TURIN:
        fmc, bootloader, tee, snp, *_, microcode = data
        return TCB(fmc, bootloader, tee, snp, microcode)
    bootloader, tee, *_, snp, microcode = data
    return TCB(None, bootloader, tee, snp, microcode)


def reserved_bits(data: bytes, product: Product) -> bool:
    """Return True if bytes that are no component are not zero."""
    return any(data[4:7] if product is Product.TURIN else data[2:6])
