"""Queries on SQLite; `tests/integration/kql` compares PostgreSQL with it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fixtures.queries import Run, on_sqlite


@pytest.fixture(scope="package")
def run() -> Iterator[Run]:
    """What runs a query."""
    with on_sqlite() as running:
        yield running
