"""Certificates of NVIDIA GPUs: from the key that signs to the pinned Device Identity CA (CONFIDENTIAL.md §14)."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Final

from attestation.endorsements.certificate import Certificate, parse_certificate
from attestation.endorsements.chain import link_refusal
from attestation.errors import MalformedEvidence
from attestation.wire import pem_blocks

MAX_CERTIFICATES: Final = 10
MAX_CHAIN_BYTES: Final = 32_768
DICE_TCB_INFO: Final = "2.23.133.5.4.1.1"
"""Extension of a leaf: the firmware for which its key was made (TCG DICE Attestation Architecture, 6.1.1)."""
_P384_SHA384: Final = ("ec-secp384r1", "sha384_ecdsa")


@dataclass(frozen=True, slots=True, kw_only=True)
class Endorsements:
    """What vouches for GPUs.

    Args:
        root: The pinned NVIDIA Device Identity CA.
    """

    root: Certificate


@lru_cache(maxsize=8)
def endorsements(root: bytes) -> Endorsements:
    """Return what vouches for GPUs under *root*, DER."""
    return Endorsements(root=parse_certificate(root))


@lru_cache(maxsize=1024)
def parse_chain(data: bytes) -> tuple[Certificate, ...]:
    """Read a chain of PEM, the leaf first.

    Raises:
        MalformedEvidence: The only way to fail; longer than 32 KiB, or not one to ten certificates.
    """
    if len(data) > MAX_CHAIN_BYTES:
        raise MalformedEvidence(f"certificate: {len(data)} bytes, at most {MAX_CHAIN_BYTES} allowed")
    blocks = pem_blocks(data, "certificate")
    if not 1 <= len(blocks) <= MAX_CERTIFICATES or any(label != "CERTIFICATE" for label, _ in blocks):
        raise MalformedEvidence(f"certificate: not one to {MAX_CERTIFICATES} certificates in PEM")
    return tuple(parse_certificate(content) for _, content in blocks)


def chain_refusal(chain: tuple[Certificate, ...], root: Certificate, at: datetime) -> str | None:
    """Return why *chain*, the leaf first, does not lead to *root* at *at*, or None.

    Signatures, names, CA flags, P-384 with SHA-384 throughout, times. Whoever shows a root cannot choose it.
    """
    path = [*(each for each in chain if not each.self_issued), root]
    if len(path) == 1 or path[0].is_ca:
        return "no certificate of a key that signs measurements"
    for each in path:
        if not each.not_before <= at <= each.not_after:
            return f"{each.subject} is valid from {each.not_before:%Y-%m-%d} to {each.not_after:%Y-%m-%d}"
    return _signed(tuple(path))


@lru_cache(maxsize=1024)
def _signed(path: tuple[Certificate, ...]) -> str | None:
    for depth, (below, above) in enumerate(itertools.pairwise(path)):
        if (below.key, below.scheme.name) != _P384_SHA384:
            return f"{below.subject}: {below.key} with {below.scheme.name}, not P-384 with SHA-384"
        refusal = link_refusal(below, above, depth)
        if refusal is not None:
            return f"{below.subject}: {refusal}"
    return None
