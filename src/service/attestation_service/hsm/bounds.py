"""How much one cluster may take here: its controller may be in other hands, and there are other clusters.

Everything that is counted here goes by itself with time, so whoever comes too often is told to come later.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

from attestation.errors import RateLimited
from attestation.store import RateLimit, Tx
from attestation_service.border import limits
from attestation_service.settings import Settings

KEYS: Final = 256
"""CA keys of one cluster, those that were followed by others too. They go when their last certificate has."""
OPEN: Final = 2_000
"""Serial numbers of one cluster that are being signed at one time. They are given up after ten minutes."""
GIVEN_UP: Final = 10_000
"""Serial numbers of one CA key that were never finished and are on its lists: each list is read by everybody."""
NONCES: Final = 1_000
"""Nonces of one cluster that are good at one time."""
NONCES_ISSUED: Final = RateLimit(requests=1_000, per_seconds=3_600)
KEYS_REGISTERED: Final = RateLimit(requests=1_000, per_seconds=3_600)
"""So many registrations of one cluster change something in an hour."""
NONCES_OF_ISSUER: Final = RateLimit(requests=30, per_seconds=3_600)
"""Of one issuer: who may write it in one namespace makes it ask anew by each change."""
QUOTES_OF_NAMESPACE: Final = RateLimit(requests=20, per_seconds=3_600)
"""So many of one namespace are taken in an hour: who may write issuers there uses up a third of its cluster's."""
QUOTES_TAKEN: Final = RateLimit(requests=60, per_seconds=3_600)
"""So many QuoteAttestations of one cluster are taken in an hour: each is kept with its evidence."""
QUOTES_KIB: Final = RateLimit(requests=256 << 10, per_seconds=30 * 86_400)
"""So many KiB of evidence of one cluster are taken in a month, which is about how long they are kept."""
QUOTES_JUDGED: Final = RateLimit(requests=600, per_seconds=3_600)
"""So often evidence of one cluster is judged in an hour, what is open again and again."""
DAY_SECONDS: Final = 86_400
LATER_SECONDS: Final = 60
MUCH_LATER_SECONDS: Final = 3_600


def take_certificates(
    tx: Tx, cluster_id: str, issuer_id: str, new: int, settings: Settings, at: datetime
) -> None:
    """Count serial numbers that were just reserved, in the unit that reserved them.

    Raises:
        RateLimited: They are more than the cluster, or the key, may have.
    """
    if not new:
        return
    if tx.hsm.open(cluster_id, OPEN + 1) > OPEN:
        raise RateLimited(
            f"more than {OPEN} certificates of this cluster are being signed",
            retry_after_seconds=LATER_SECONDS,
        )
    if tx.hsm.given_up(issuer_id, at, GIVEN_UP) >= GIVEN_UP:
        raise RateLimited(
            f"{GIVEN_UP} serial numbers of this CA key were taken and never finished",
            retry_after_seconds=MUCH_LATER_SECONDS,
        )
    rate = RateLimit(requests=settings.hsm_certificates_per_day, per_seconds=DAY_SECONDS)
    take(tx, f"hsm-certificates:{cluster_id}", rate, "certificates", settings, at, units=new)


def demand_room_for_key(tx: Tx, cluster_id: str) -> None:
    """Check that a cluster may have one more CA key.

    Raises:
        RateLimited: It has too many.
    """
    if tx.hsm.keys_of(cluster_id, KEYS) >= KEYS:
        raise RateLimited(f"this cluster has {KEYS} CA keys", retry_after_seconds=MUCH_LATER_SECONDS)


def demand_room_for_nonce(tx: Tx, cluster_id: str, at: datetime) -> None:
    """Check that a cluster may have one more nonce.

    Raises:
        RateLimited: It has too many that are good.
    """
    if tx.hsm_quotes.alive(cluster_id, at, NONCES) >= NONCES:
        raise RateLimited(
            f"{NONCES} nonces of this cluster are good now", retry_after_seconds=MUCH_LATER_SECONDS
        )


def demand(tx: Tx, key: str, limit: RateLimit, what: str, settings: Settings, at: datetime) -> None:
    """Check that something may happen now, without counting it.

    Raises:
        RateLimited: It happened too often.
    """
    if not settings.rate_limits:
        return
    limits.check(tx, (limits.Counted(key, limit, f"{what} of this cluster"),), at)


def take(
    tx: Tx, key: str, limit: RateLimit, what: str, settings: Settings, at: datetime, *, units: int = 1
) -> None:
    """Count something that happens now, as so many where it costs more than one.

    Raises:
        RateLimited: It happened too often.
    """
    demand(tx, key, limit, what, settings, at)
    if settings.rate_limits:
        tx.rate_limits.take(key, at, limit, units=units)
