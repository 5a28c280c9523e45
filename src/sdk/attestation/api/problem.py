"""RFC 9457 problems and the health answers."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from attestation.api.base import Wire

__all__ = ["FieldError", "Health", "Problem", "Readiness"]


class FieldError(Wire):
    """One member that the schema refused."""

    field: str
    message: str


class Problem(Wire):
    """An error, in the form of RFC 9457."""

    type: str = Field(
        examples=["urn:itl:problem:challenge-used"], description="urn:itl:problem:<code>; stable"
    )
    title: str
    status: int
    detail: str
    instance: str = Field(description="Request id")
    errors: list[FieldError] | None = None


class Health(Wire):
    """The process is alive."""

    status: Literal["ok"] = "ok"


class Readiness(Wire):
    """Whether the service can decide: each part `ok` or what is wrong with it."""

    status: Literal["ok", "degraded", "unavailable"]
    version: str = Field(description="Of the service, as in its OpenAPI document", examples=["0.1.0"])
    checks: dict[str, str]
