"""JSON answers, written once: pydantic serialises the model, nothing validates it a second time."""

from __future__ import annotations

from fastapi import Response
from pydantic import BaseModel


def reply(
    body: BaseModel, *, exclude_none: bool = False, exclude_unset: bool = False, status_code: int = 200
) -> Response:
    """Return *body* as JSON.

    Args:
        body: The answer.
        exclude_none: Leave out members that are null.
        exclude_unset: Leave out members that the handler did not name.
        status_code: 200 unless told otherwise.
    """
    return Response(
        body.model_dump_json(exclude_none=exclude_none, exclude_unset=exclude_unset),
        status_code=status_code,
        media_type="application/json",
    )
