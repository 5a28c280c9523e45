"""Certificates out of a file: one in DER, or any number in PEM (RFC 7468)."""

from __future__ import annotations

from typing import Final

from attestation.errors import BundleInvalid, MalformedEvidence
from attestation.wire import pem_blocks

_LABELS: Final = frozenset({"CERTIFICATE", "TRUSTED CERTIFICATE", "X509 CERTIFICATE"})


def certificates(data: bytes, what: str) -> list[bytes]:
    """Return the DER of every certificate in *data*, in their order; what stands between PEM blocks is for people.

    Args:
        data: DER, or PEM with text around the blocks, as collections of CAs have it.
        what: Name of the file, for messages.

    Raises:
        BundleInvalid: Neither, or a block that cannot be read; a block of anything else than a certificate, too.
    """
    if data[:1] == b"\x30":
        return [data]
    try:
        found = pem_blocks(data, what)
    except MalformedEvidence as e:
        raise BundleInvalid(str(e)) from e
    if not found or not _LABELS.issuperset(label for label, _ in found):
        raise BundleInvalid(f"{what}: neither a DER certificate nor PEM with certificates only")
    return [der for _, der in found]
