"""What a monitor is told of tokens and issuers: whether they are ready, and when a CA ends."""

from __future__ import annotations

from datetime import datetime

from prometheus_client import CollectorRegistry, Gauge

from attestation_operator.objects import Key

_OF = ["kind", "namespace", "name"]


class Gauges:
    """The numbers of one process; the replica that leads has them.

    Args:
        registry: Where they are shown.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._ready = Gauge(
            "itl_operator_hsm_ready", "Whether a token or an issuer is ready", _OF, registry=registry
        )
        self._ends = Gauge(
            "itl_operator_hsm_ca_end_timestamp_seconds",
            "When the certificate of an issuer's CA ends, since 1970",
            _OF,
            registry=registry,
        )

    def ready(self, key: Key, value: bool, *, ends: datetime | None = None) -> None:
        """Say whether an object is ready, and of an issuer when its CA ends where that is known."""
        of = _of(key)
        self._ready.labels(*of).set(value)
        if ends is not None:
            self._ends.labels(*of).set(ends.timestamp())

    def gone(self, key: Key) -> None:
        """Say nothing more of an object."""
        self._ready.remove_by_labels(dict(zip(_OF, _of(key), strict=True)))
        self._ends.remove_by_labels(dict(zip(_OF, _of(key), strict=True)))


def _of(key: Key) -> tuple[str, str, str]:
    return key.kind.kind, key.namespace or "", key.name
