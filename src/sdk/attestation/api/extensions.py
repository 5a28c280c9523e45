"""The extensions of a service (DELIVERY-AND-OPERATORS §14)."""

from __future__ import annotations

from attestation.api.base import Wire

__all__ = ["ExtensionDetail", "ExtensionList"]


class ExtensionDetail(Wire):
    """One extension that is enabled."""

    name: str
    version: str
    description: str


class ExtensionList(Wire):
    """`GET /api/v1/extensions`."""

    extensions: list[ExtensionDetail]
    total: int
