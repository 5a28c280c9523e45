"""What models of kinds share: their base, how lists are merged, rules in CEL, conditions, references."""

from __future__ import annotations

import base64
import binascii
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field, PlainSerializer

from attestation.reference.attestation_policy import camel
from attestation_operator.durations import MAX_LENGTH, PATTERN, parse_duration

T = TypeVar("T")


class Part(BaseModel):
    """An object inside of a kind."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        alias_generator=camel,
        populate_by_name=True,
        hide_input_in_errors=True,
    )

    def written(self) -> dict[str, Any]:
        """Return it as JSON has it, without what is unset."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


def unique(name: str, values: tuple[T, ...]) -> None:
    """Raise ValueError where a value stands there twice."""
    if len(values) != len(set(values)):
        raise ValueError(f"{name}: a value stands there twice")


def listed(*keys: str) -> dict[str, Any]:
    """Return how server-side apply merges a list: by these members of its items; without any as a set.

    A list that says neither has one owner and is replaced as a whole.
    """
    if not keys:
        return {"x-kubernetes-list-type": "set"}
    return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(keys)}


def ruled(*rules: tuple[str, str]) -> dict[str, Any]:
    """Return rules in CEL, each with its message; a server before 1.25 leaves them out, so the model says them too."""
    return {"x-kubernetes-validations": [{"rule": rule, "message": message} for rule, message in rules]}


IMMUTABLE = ruled(("self == oldSelf", "spec cannot be changed"))
"""What was asked, and what was found, stays as it was."""


def between(shortest: str, longest: str) -> dict[str, Any]:
    """Return the rule of a duration."""
    return ruled(
        (
            f"duration(self) >= duration('{shortest}') && duration(self) <= duration('{longest}')",
            f"from {shortest} to {longest}",
        )
    )


def _is_duration(text: str) -> str:
    parse_duration(text)
    return text


def within(shortest: str, longest: str) -> AfterValidator:
    """Return what refuses a duration outside of both."""

    def judge(text: str) -> str:
        if not parse_duration(shortest) <= parse_duration(text) <= parse_duration(longest):
            raise ValueError(f"{text} is not from {shortest} to {longest}")
        return text

    return AfterValidator(judge)


Duration = Annotated[str, Field(max_length=MAX_LENGTH, pattern=PATTERN), AfterValidator(_is_duration)]
"""As Go writes it."""


def _is_base64(text: str) -> str:
    try:
        base64.b64decode(text, validate=True)
    except binascii.Error as e:
        raise ValueError("not base64") from e
    return text


Bytes = Annotated[str, Field(json_schema_extra={"format": "byte"}), AfterValidator(_is_base64)]
"""Bytes, base64 with padding."""


def _utc(at: datetime) -> str:
    return at.astimezone(UTC).isoformat().replace("+00:00", "Z")


Instant = Annotated[AwareDatetime, PlainSerializer(_utc, return_type=str, when_used="json")]
"""RFC 3339, written with `Z`."""
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$", max_length=64)]
"""SHA-256, lower-case hex."""
Name = Annotated[str, Field(min_length=1, max_length=253)]
"""Of an object."""
UID = Annotated[str, Field(min_length=1, max_length=64)]
Text = Annotated[str, Field(max_length=1024)]
URL = Annotated[str, Field(max_length=2048)]
MediaType = Annotated[str, Field(min_length=1, max_length=128)]
Size = Annotated[int, Field(ge=0, json_schema_extra={"format": "int64"})]
"""In bytes."""
PolicyID = Annotated[str, Field(max_length=128)]


class Condition(Part):
    """A condition (metav1.Condition)."""

    type: Annotated[str, Field(min_length=1, max_length=316)]
    status: Literal["True", "False", "Unknown"]
    observed_generation: Annotated[int, Field(ge=0)] | None = None
    last_transition_time: Instant
    reason: Annotated[str, Field(min_length=1, max_length=1024)]
    message: Annotated[str, Field(max_length=32_768)]


class NamedRef(Part):
    """An object of the same namespace, or of none, by its name."""

    name: Name = Field(description="Its name")


class ObjectReference(Part):
    """An object (core/v1 ObjectReference)."""

    api_version: Annotated[str, Field(max_length=316)] | None = Field(default=None, description="Of its kind")
    kind: Annotated[str, Field(min_length=1, max_length=63)] = Field(description="Of the object")
    namespace: Annotated[str, Field(max_length=63)] | None = Field(default=None, description="Of the object")
    name: Name = Field(description="Of the object")
    uid: UID | None = Field(default=None, description="Of the object")
    resource_version: Annotated[str, Field(max_length=64)] | None = Field(
        default=None, description="Of the object as it was seen"
    )
