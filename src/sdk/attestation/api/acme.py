"""ACME, for operators: keys for external accounts, accounts, orders. The protocol itself is RFC 8555."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, ClassVar, Final, Literal

from pydantic import Field

from attestation.api.base import MachineId, Wire

__all__ = [
    "ACMEAccountDetail",
    "ACMEAccountPage",
    "ACMEKeyDetail",
    "ACMEKeyMade",
    "ACMEKeyPage",
    "ACMEKeyRequest",
    "ACMEOrderDetail",
    "ACMEOrderPage",
]

DAY: Final = 86_400


class ACMEKeyRequest(Wire):
    """A key with which somebody may make one ACME account."""

    machine_id: Annotated[
        MachineId | None, Field(description="The account asks for this machine alone; left out: for any")
    ] = None
    note: Annotated[str, Field(max_length=200, description="Whom it is for")] = ""
    expires_in_seconds: Annotated[
        int, Field(ge=60, le=30 * DAY, description="It makes an account until then")
    ] = DAY


class ACMEKeyDetail(Wire):
    """A key for an external account (RFC 8555 §7.3.4), without the key."""

    key_id: Annotated[str, Field(description="What an ACME client calls kid")]
    machine_id: MachineId | None = None
    note: str
    created_at: datetime
    created_by: str
    expires_at: datetime
    account_id: Annotated[str | None, Field(description="The account that was made with it")] = None
    revoked_at: datetime | None = None


class ACMEKeyMade(ACMEKeyDetail):
    """A new key for an external account."""

    SHOWN_ONCE: ClassVar[bool] = True

    hmac_key: Annotated[str, Field(description="The key, HS256, base64url: shown this once")]


class ACMEKeyPage(Wire):
    """Keys for external accounts, newest first."""

    items: list[ACMEKeyDetail]
    next_cursor: str | None = None


class ACMEAccountDetail(Wire):
    """An ACME account."""

    account_id: Annotated[str, Field(description="As in its URL")]
    status: Literal["valid", "deactivated", "revoked"]
    thumbprint: Annotated[str, Field(description="Of its key (RFC 7638)")]
    contact: list[str]
    key_id: Annotated[str | None, Field(description="The key that it was made with")] = None
    machine_id: Annotated[MachineId | None, Field(description="It asks for this machine alone")] = None
    created_at: datetime
    ended_at: datetime | None = None


class ACMEAccountPage(Wire):
    """ACME accounts, newest first."""

    items: list[ACMEAccountDetail]
    next_cursor: str | None = None


class ACMEOrderDetail(Wire):
    """An ACME order, with its one identifier."""

    order_id: str
    account_id: str
    identifier_type: Literal["permanent-identifier", "dns"]
    identifier: str
    machine_id: MachineId
    status: Literal["pending", "ready", "valid", "invalid"]
    error: Annotated[str | None, Field(description="Why it is invalid")] = None
    created_at: datetime
    expires_at: datetime
    validated_at: datetime | None = None
    serials: Annotated[list[str], Field(description="Serial numbers of what was issued")]


class ACMEOrderPage(Wire):
    """ACME orders, newest first."""

    items: list[ACMEOrderDetail]
    next_cursor: str | None = None
