"""What is counted, in the text format of Prometheus."""

from __future__ import annotations

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

CONTENT_TYPE: Final = CONTENT_TYPE_PLAIN_0_0_4
BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Metrics:
    """The metrics of one process. A controller adds its own to `registry`."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.leading = Gauge(
            "itl_operator_leading",
            "1 on the replica that acts",
            registry=self.registry,
        )
        self.queued = Gauge(
            "itl_operator_queued", "Objects that wait to be looked at", registry=self.registry
        )
        self.handled = Counter(
            "itl_operator_handled",
            "Objects looked at: done, changed, away, refused, not-leading, failed",
            ["outcome"],
            registry=self.registry,
        )
        self.handling = Histogram(
            "itl_operator_handling_seconds",
            "How long one look takes",
            buckets=BUCKETS,
            registry=self.registry,
        )
        self.asked = Counter(
            "itl_operator_service_requests",
            "Requests to the attestation service: answered, away, refused",
            ["operation", "outcome"],
            registry=self.registry,
        )
        self.watches = Counter(
            "itl_operator_watch_starts",
            "How often the watches were begun anew",
            registry=self.registry,
        )

    def text(self) -> bytes:
        """Return all of them."""
        return generate_latest(self.registry)
