"""Collateral of confidential hardware, as operators see and carry it (docs/operate/collateral.md)."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from pydantic import Field

from attestation.api.base import Base64, Wire

__all__ = [
    "CollateralDetail",
    "CollateralImport",
    "CollateralImported",
    "CollateralPage",
    "CollateralPiece",
    "CollateralRefreshed",
    "CollateralRefused",
]

MAX_PIECES = 200
Name = Annotated[str, Field(max_length=200, description="As in an export: `tdx/qe-identity.json`")]


class CollateralDetail(Wire):
    """One piece that is kept, or that was asked for and did not come."""

    name: str
    says: str | None = Field(description="What it is, in words; null where nothing that verifies is kept")
    current: bool = Field(description="It holds now")
    source: str = Field(description="Host that it came from, or was asked; or `import`")
    stored_at: datetime | None
    expires_at: datetime | None
    ask_at: datetime = Field(description="From when on its vendor may be asked again")
    failure: str | None = Field(description="Why asking failed last")
    data: Base64 | None = Field(default=None, description="The piece itself, where it was asked for")


class CollateralPage(Wire):
    """`GET /api/v1/collateral`, by name."""

    items: list[CollateralDetail]
    next_cursor: str | None = None
    at: datetime
    fetching: bool = Field(description="The service asks vendors for what is missing")


class CollateralPiece(Wire):
    """One piece to be kept."""

    name: Name
    data: Base64


class CollateralImport(Wire):
    """`POST /api/v1/collateral/import`."""

    items: list[CollateralPiece] = Field(min_length=1, max_length=MAX_PIECES)


class CollateralRefused(Wire):
    """A piece that was not kept, and why."""

    name: str
    reason: str


class CollateralImported(Wire):
    """What was kept. What nobody vouches for is refused; what is older than what is kept is passed over."""

    stored: list[str]
    older: list[str]
    refused: list[CollateralRefused]


class CollateralRefreshed(Wire):
    """How many pieces vendors were asked for; `fetching` is false where the service asks nobody."""

    asked: int
    fetching: bool
