"""Break-glass: one shared bearer token for the day when nothing else works (DELIVERY-AND-OPERATORS §11).

It names nobody. So every use, reads too, is an audit entry and an event of its own, uses are limited over all
workers, and it never counts as a vote.
"""

from __future__ import annotations

import hmac
import ipaddress
from datetime import datetime

from pydantic import SecretStr

from attestation.clock import rfc3339
from attestation.machines import OperatorEvent
from attestation.store import RateLimit, Tx
from attestation_service.border import limits
from attestation_service.context.identity import BREAK_GLASS_NAME, Method, Operator
from attestation_service.context.request import Origin
from attestation_service.settings import SHORT_TOKEN_CHARACTERS, Settings

MAX_TOKEN_CHARACTERS = 4096


def matches(presented: str, token: SecretStr) -> bool:
    """Return True if *presented* is the token, compared in constant time."""
    if len(presented) > MAX_TOKEN_CHARACTERS:
        return False
    return hmac.compare_digest(
        presented.encode("utf-8", "surrogateescape"), token.get_secret_value().encode("utf-8")
    )


def is_short(settings: Settings) -> bool:
    """Return True where the token is so short that it could be guessed, which every start warns of."""
    token = settings.admin_token
    return token is not None and len(token.get_secret_value()) < SHORT_TOKEN_CHARACTERS


def holder(presented: str, settings: Settings, origin: Origin, at: datetime) -> Operator | None:
    """Return the identity of whoever presented the token; None where it is another, or may not be used.

    One that has expired, or may not be used from this address, is like a wrong one to the end: whoever found it need
    not learn that it is the right one.
    """
    if settings.admin_token is None or not matches(presented, settings.admin_token):
        return None
    expires_at = settings.break_glass_expires_at
    if expires_at is not None and at >= expires_at:
        return None
    if settings.break_glass_networks and not _within(origin.address, settings):
        return None
    return Operator(
        cn=BREAK_GLASS_NAME,
        sub=None,
        source=origin.address,
        method=Method.BREAK_GLASS,
        duties=frozenset(),
    )


def record(tx: Tx, operator: Operator, use: str, settings: Settings, at: datetime) -> None:
    """Record one use, e.g. `GET /api/v1/machines`; part of no other unit, so that no failure undoes it.

    Raises:
        RateLimited: It was used too often lately.
    """
    rate = RateLimit(requests=settings.break_glass_per_minute, per_seconds=60)
    uses = (limits.Counted("break-glass", rate, "uses of break-glass"),)
    limits.check(tx, uses, at)
    limits.take(tx, uses, at)
    tx.audit.append(operator.event("break_glass", detail=use), at)
    tx.outbox.add(
        OperatorEvent.BREAK_GLASS,
        None,
        {"timestamp": rfc3339(at), "source": operator.source, "use": use},
        at,
    )


def _within(address: str, settings: Settings) -> bool:
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return False
    return any(parsed in network for network in settings.break_glass_networks)
