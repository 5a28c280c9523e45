"""The lines of processors that AMD vouches for (CONFIDENTIAL.md §8.2)."""

from __future__ import annotations

from enum import StrEnum


class Product(StrEnum):
    """A line, as AMD's key distribution names it. Bergamo and Siena are of the line Genoa."""

    MILAN = "Milan"
    GENOA = "Genoa"
    TURIN = "Turin"

    @property
    def hwid_bytes(self) -> int:
        """How long the identifier of a chip is."""
        return 8 if self is Product.TURIN else 64


def product_of(family: int, model: int) -> Product | None:
    """Return the line of a processor by its combined CPUID family and model; None for a line that is not known here."""
    if family == 0x19 and model <= 0x0F:
        return Product.MILAN
    if family == 0x19 and (0x10 <= model <= 0x1F or 0xA0 <= model <= 0xAF):
        return Product.GENOA
    if family == 0x1A and model <= 0x11:
        return Product.TURIN
    return None
