"""Bodies that a route reads itself, with the same answers as those that the framework reads."""

from __future__ import annotations

from typing import TypeVar

from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ValidationError

Model = TypeVar("Model", bound=BaseModel)


def parse_json(model: type[Model], body: bytes) -> Model:
    """Return *body* as *model*.

    Raises:
        RequestValidationError: Not JSON, or not of this form.
    """
    try:
        return model.model_validate_json(body)
    except ValidationError as e:
        errors = e.errors(include_url=False, include_context=False, include_input=False)
        raise RequestValidationError(
            [{**error, "loc": ("body", *error["loc"])} for error in errors]
        ) from None


def media_type(header: str | None) -> str:
    """Return the media type of a Content-Type header, without parameters, in lower case."""
    return (header or "").partition(";")[0].strip().lower()
