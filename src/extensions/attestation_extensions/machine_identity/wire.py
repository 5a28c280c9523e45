"""Requests and answers of the routes of identity tokens (docs/operate/identity.md)."""

from __future__ import annotations

from datetime import datetime

from pydantic import Field

from attestation.extension import MachineRequest, Wire
from attestation_extensions.machine_identity.audiences import AUDIENCE
from attestation_extensions.machine_identity.keys import JWSAlgorithm


class TokenRequest(MachineRequest):
    """A proof, and who the token is for."""

    audience: str = Field(
        pattern=rf"^{AUDIENCE.pattern}$", description="Who is to believe the token; one of the list"
    )


class MachineToken(Wire):
    """A token for one audience."""

    SHOWN_ONCE = True

    token: str = Field(description="JWT, ES256 or RS256")
    expires_at: datetime


class TokenStatus(Wire):
    """What became of a token whose signature the asker verified."""

    active: bool
    expires_at: datetime | None = None


class RevokedToken(Wire):
    """A token that ended before its time."""

    jti: str
    expires_at: datetime


class RevokedTokens(Wire):
    """All that ended before their time and are not over by now."""

    revoked: list[RevokedToken]
    truncated: bool = Field(description="There are more than are listed: ask for each token instead")


class AudienceDetail(Wire):
    """An audience, and who may have tokens for it."""

    audience: str
    roles: list[str] | None = Field(description="null: any")
    clusters: list[str] | None = Field(description="null: any")


class AudienceList(Wire):
    """The list of the deployment."""

    issuer: str
    audiences: list[AudienceDetail]


class IdentityKey(Wire):
    """A key that is published."""

    number: int
    kid: str
    algorithm: JWSAlgorithm
    published_at: datetime
    signs_at: datetime
    signs: bool


class IdentityKeys(Wire):
    """The keys that are published, the oldest first."""

    keys: list[IdentityKey]


class RotateIdentityKey(Wire):
    """How the key is exchanged."""

    withdraw: bool = Field(
        default=False,
        description="Withdraw the former keys at once, with all that they signed: another person may have them",
    )
