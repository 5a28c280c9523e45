"""What a running service says of its own health and settings, for operators."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import Field

from attestation.api.base import Wire

__all__ = ["HealthFinding", "HealthFindings", "SettingDetail", "SettingList"]


class HealthFinding(Wire):
    """One sentence about one part."""

    part: str
    level: Literal["ok", "warning", "failed"]
    what: str = Field(description="What was found, and why it matters")
    todo: str | None = Field(description="What to do; null where there is nothing, or `what` says it")


class HealthFindings(Wire):
    """`GET /api/v1/health/findings`: what can be looked at from inside a running service."""

    at: datetime = Field(description="When it was looked at; an answer may be half a minute old")
    findings: list[HealthFinding]
    not_looked_at: list[str] = Field(description="Parts that only `attestation-service doctor` looks at")


class SettingDetail(Wire):
    """One setting of the process that answers."""

    name: str = Field(description="Its environment variable")
    value: str | None = Field(description="As it is set; null where it may hold a secret, or nothing is set")
    is_set: bool
    is_default: bool


class SettingList(Wire):
    """`GET /api/v1/settings`."""

    settings: list[SettingDetail]
