"""The same pages, with the large service's database on a server of PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from attestation.store.copying import copy, source, tables_of, target
from tests.bench.dashboard import each_page, running
from tests.bench.postgres import documented
from tests.bench.report import Measurement
from tests.fixtures import postgres


def measure() -> Iterator[Measurement]:
    """Measure each page."""
    with postgres.server(autovacuum="on") as server:
        url = documented(server.create("crowd"))

        def moved(directory: Path) -> str:
            with source(f"sqlite:///{directory}/machines.db", alone=True) as found, target(url, []) as made:
                copy(found, made, tables_of(found, []), lambda _table, _rows: None)
            return url

        with running(moved) as here:
            yield from each_page(here, "postgresql")
