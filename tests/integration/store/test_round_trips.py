"""How often one attestation waits for PostgreSQL: counted on the wire, so it is no matter of time."""

from __future__ import annotations

from tests.bench.postgres import round_trips
from tests.fixtures.postgres import Server


def test_an_attestation_waits_three_times(postgres_server: Server) -> None:
    """For its case; for the lock and all that is written; for COMMIT. What the service does besides only adds."""
    assert min(round_trips(postgres_server, 15)) == 3
