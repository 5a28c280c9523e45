"""What somebody read at a machine, held against what is known of it."""

from __future__ import annotations

import re

from attestation.errors import RequestInvalid

_READ = re.compile(r"[0-9a-f]{16,96}")


def is_this_tpm(ek_fingerprint: str, read: str) -> bool:
    """True where *read* is the beginning of the EK fingerprint (96 lower-case hex) that is meant.

    Args:
        ek_fingerprint: Of the machine, as the service knows it.
        read: What a person read at the machine: 16 to 96 hex digits, colons and case do not matter.

    Raises:
        RequestInvalid: It is too short to tell machines apart, or no fingerprint.
    """
    digits = re.sub(r"[\s:]", "", read).lower()
    if not _READ.fullmatch(digits):
        raise RequestInvalid("an EK fingerprint is given by its first 16 to 96 hex digits")
    return ek_fingerprint.startswith(digits)
