"""Certificates out of a file: one in DER, or any number in PEM (RFC 7468)."""

from __future__ import annotations

import base64
import binascii
import re
from typing import Final

from attestation.errors import BundleInvalid

_BLOCK: Final = re.compile(
    rb"-----BEGIN (?P<label>(?:TRUSTED |X509 )?CERTIFICATE)-----(?P<text>[A-Za-z0-9+/=\s]*)-----END (?P=label)-----"
)
_BEGIN: Final = b"-----BEGIN "


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
    found = []
    for block in _BLOCK.finditer(data):
        try:
            found.append(base64.b64decode(b"".join(block["text"].split()), validate=True))
        except binascii.Error as e:
            raise BundleInvalid(f"{what}: block {len(found) + 1} holds no base64") from e
    # A block that the pattern passed over would be a certificate that silently is not there.
    if not found or len(found) != data.count(_BEGIN):
        raise BundleInvalid(f"{what}: neither a DER certificate nor PEM with certificates only")
    return found
