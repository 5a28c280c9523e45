"""The public area that layout gke-v1 leaves out (TPM.md §3.4, end).

Its key is a software key of P-256 that the node brought into the TPM by TPM2_LoadExternal with one template, so the
public area follows from the key: 88 bytes where both coordinates are padded, less where one is written minimal. A TPM
names the bytes that it was given, so both are tried, the padded form first.
"""

# Algorithms for: certified-key, tpm-hash
from __future__ import annotations

from typing import Final

from cryptography.hazmat.primitives.asymmetric import ec

from attestation.tpm import Public, external_p256, parse_tpmt_public

_P256_BYTES: Final = 32


def rebuilt_publics(key: ec.EllipticCurvePublicKey) -> tuple[Public, ...]:
    """Return the public areas that the certified key may have had; none for a key on another curve than P-256."""
    if not isinstance(key.curve, ec.SECP256R1):
        return ()
    numbers = key.public_numbers()
    padded = tuple(value.to_bytes(_P256_BYTES) for value in (numbers.x, numbers.y))
    minimal = tuple(value.lstrip(b"\0") for value in padded)
    return tuple(parse_tpmt_public(external_p256(*point)) for point in dict.fromkeys((padded, minimal)))
