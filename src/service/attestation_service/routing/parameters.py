"""What more than one operation takes from path and query: each name means one thing, and is bounded in one place."""

from __future__ import annotations

from typing import Annotated

from fastapi import Header, Path, Query

from attestation.api.base import MachineId

Id = Annotated[MachineId, Path()]
IssuerId = Annotated[str, Path(pattern=r"^[0-9a-f]{16}$", description="CA key, as it stands in certificates")]
Serial = Annotated[str, Path(pattern=r"^[0-9a-f]{40}$", description="20 bytes, 40 lower-case hex")]
IfNoneMatch = Annotated[str | None, Header(max_length=1024)]
Cursor = Annotated[
    str | None,
    Query(max_length=512, pattern=r"^[A-Za-z0-9_-]+$", description="`next_cursor` of the last page"),
]
Limit = Annotated[int, Query(ge=1, le=200, description="Items per page")]
