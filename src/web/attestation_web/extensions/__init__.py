"""Routes of extensions that have pages here, as the dashboard asks for them.

An extension is installed beside the service, not beside the dashboard, so nothing of it is imported: what stands here
is its part of the wire, and tests/unit/web/test_extension_routes.py holds it against the extension's own words.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from attestation.client import OperatorClient

__all__ = ["usable"]


def usable(client: OperatorClient, name: str) -> bool:
    """Return True where the extension *name* is enabled and was not skipped: its routes are there."""
    return any(each.name == name and each.skipped is None for each in client.extensions().extensions)
