"""PCR values that hold no measurement: what a TPM resets a PCR to, and what separators alone make of that.

A machine that measures nothing (no measured boot, firmware that gave up, a TPM that was reset) quotes these, and so
does any other such machine. Whoever compares them compares nothing ([PFP] 2.3.1, 10.4.5; TPM.md §4.1).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import Final

from attestation.tpm.hashes import digest_size, hash_new

_LOCALITIES: Final = (0, 3, 4)
"""PCR 0 starts at 00…0n where the TPM was started at locality n, or by H-CRTM."""
_SEPARATORS: Final = (bytes(4), b"\xff" * 4, b"\x01\0\0\0", b"WBCL")
"""EV_SEPARATOR: firmware hands over; the older form of that; firmware failed; the Windows boot manager."""
_OS_SEPARATOR: Final = b"os-separator"
"""systemd 261 and later closes with it what firmware measured."""


@lru_cache(maxsize=8)
def unmeasured_values(bank: int) -> frozenset[bytes]:
    """Return the values of a PCR of *bank* that nothing but separators was extended into.

    Args:
        bank: TPM_ALG_ID of a hash that we compute.

    Raises:
        MalformedEvidence: It is none.
    """
    size = digest_size(bank)
    resets = [b"\xff" * size, *(bytes(size - 1) + bytes([n]) for n in _LOCALITIES)]
    separated = [_extend(bank, value, text) for value in resets for text in _SEPARATORS]
    closed = [_extend(bank, value, _OS_SEPARATOR) for value in (*resets, *separated)]
    return frozenset((*resets, *separated, *closed))


def measured(values: Mapping[int, bytes], bank: int) -> Collection[int]:
    """Return the PCRs of *values* that hold a measurement."""
    unmeasured = unmeasured_values(bank)
    return [pcr for pcr, value in values.items() if value not in unmeasured]


def _extend(bank: int, value: bytes, text: bytes) -> bytes:
    return hash_new(bank, value + hash_new(bank, text).digest()).digest()
