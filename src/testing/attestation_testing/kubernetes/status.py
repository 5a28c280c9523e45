"""Refusals as the API server words them: objects of the kind Status (k8s.io/apimachinery, pkg/api/errors)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Object = dict[str, Any]
"""An object of Kubernetes as JSON has it."""


@dataclass(frozen=True, slots=True)
class FieldError:
    """One thing that is wrong with an object.

    Args:
        reason: `FieldValueInvalid`, `FieldValueRequired`, …
        field: Where, as `spec.usages[0]`.
        message: What, without the field.
    """

    reason: str
    field: str
    message: str


def invalid(field: str, value: str, message: str) -> FieldError:
    """Return that *value*, as Go's `%v` writes it, may not stand there."""
    return FieldError("FieldValueInvalid", field, f"Invalid value: {value}: {message}")


def required(field: str, message: str = "") -> FieldError:
    """Return that something is missing."""
    return FieldError("FieldValueRequired", field, "Required value" + (f": {message}" if message else ""))


def forbidden_field(field: str, message: str) -> FieldError:
    """Return that this may not be said here."""
    return FieldError("FieldValueForbidden", field, f"Forbidden: {message}")


def unsupported(field: str, value: str, supported: Sequence[str]) -> FieldError:
    """Return that *value* is none of the words that are known."""
    known = ", ".join(f'"{each}"' for each in sorted(supported))
    return FieldError(
        "FieldValueNotSupported", field, f'Unsupported value: "{value}": supported values: {known}'
    )


def duplicate(field: str, value: str) -> FieldError:
    """Return that *value*, as Go's `%v` writes it, stands there twice."""
    return FieldError("FieldValueDuplicate", field, f"Duplicate value: {value}")


def too_long(field: str, most: int) -> FieldError:
    """Return that a text has more than *most* bytes."""
    return FieldError("FieldValueTooLong", field, f"Too long: must have at most {most} bytes")


class StatusError(Exception):
    """A refusal, or a fault.

    Args:
        code: HTTP status.
        reason: Word of the API, as `NotFound`.
        message: For people.
        details: As the API has them; None for none.
        retry_after: Seconds to wait, told in the header too.
    """

    def __init__(
        self,
        code: int,
        reason: str,
        message: str,
        details: Object | None = None,
        *,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.details = details
        self.retry_after = retry_after

    def as_object(self) -> Object:
        """Return the Status that is sent."""
        status: Object = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": str(self),
        }
        if self.reason:
            status["reason"] = self.reason
        details = dict(self.details or {})
        if self.retry_after is not None:
            details["retryAfterSeconds"] = self.retry_after
        if details:
            status["details"] = details
        return status | {"code": self.code}


def _details(group: str, kind: str, name: str) -> Object:
    details = {"name": name, "group": group, "kind": kind}
    return {key: value for key, value in details.items() if value}


def qualified(plural: str, group: str) -> str:
    """Return `plural.group`, or `plural` of the core group."""
    return f"{plural}.{group}" if group else plural


def not_found(group: str, plural: str, name: str) -> StatusError:
    """Return that there is no such object."""
    return StatusError(
        404, "NotFound", f'{qualified(plural, group)} "{name}" not found', _details(group, plural, name)
    )


def already_exists(group: str, plural: str, name: str) -> StatusError:
    """Return that there is one of this name."""
    text = f'{qualified(plural, group)} "{name}" already exists'
    return StatusError(409, "AlreadyExists", text, _details(group, plural, name))


def conflict(group: str, plural: str, name: str, why: str = "") -> StatusError:
    """Return that the object is another by now."""
    why = why or (
        "the object has been modified; please apply your changes to the latest version and try again"
    )
    text = f'Operation cannot be fulfilled on {qualified(plural, group)} "{name}": {why}'
    return StatusError(409, "Conflict", text, _details(group, plural, name))


def forbidden(group: str, plural: str, name: str, why: str) -> StatusError:
    """Return that the caller may not."""
    text = f'{qualified(plural, group)} "{name}" is forbidden: {why}'
    if not name:
        text = f"{qualified(plural, group)} is forbidden: {why}"
    return StatusError(403, "Forbidden", text, _details(group, plural, name))


def unprocessable(group: str, kind: str, name: str, errors: Sequence[FieldError]) -> StatusError:
    """Return that the object breaks rules."""
    texts = [f"{each.field}: {each.message}" for each in errors]
    said = texts[0] if len(texts) == 1 else "[" + ", ".join(texts) + "]"
    details = _details(group, kind, name)
    details["causes"] = [
        {"reason": each.reason, "message": each.message, "field": each.field} for each in errors
    ]
    return StatusError(422, "Invalid", f'{qualified(kind, group)} "{name}" is invalid: {said}', details)


def bad_request(message: str) -> StatusError:
    """Return that the request cannot be read."""
    return StatusError(400, "BadRequest", message)


def unauthorized() -> StatusError:
    """Return that nobody knows the caller."""
    return StatusError(401, "Unauthorized", "Unauthorized")


def expired(message: str) -> StatusError:
    """Return that what was asked for is no longer remembered."""
    return StatusError(410, "Expired", message)


def not_allowed() -> StatusError:
    """Return that the resource does not do this."""
    return StatusError(
        405, "MethodNotAllowed", "the server does not allow this method on the requested resource"
    )


def unknown_path() -> StatusError:
    """Return that nothing is served there."""
    return StatusError(404, "NotFound", "the server could not find the requested resource")
