"""The ROCA test (CVE-2017-15361): RSA keys of a broken generator are recognised by their modulus alone.

A modulus is suspect if for every prime p from 3 to 167 it lies in the subgroup that 65537 generates modulo p;
a random modulus does so with a chance of 2^-27.8 (TPM.md §7).
"""

from __future__ import annotations

from typing import Final

_PRIMES: Final = tuple(p for p in range(3, 168) if all(p % q for q in range(2, p)))


def _subgroup(p: int) -> frozenset[int]:
    elements, element = set(), 1
    while element not in elements:
        elements.add(element)
        element = element * 65537 % p
    return frozenset(elements)


_SUBGROUPS: Final = tuple((p, _subgroup(p)) for p in _PRIMES)


def is_roca_weak(modulus: int) -> bool:
    """Return True if *modulus* looks like the product of primes from the broken generator."""
    return all(modulus % p in subgroup for p, subgroup in _SUBGROUPS)
