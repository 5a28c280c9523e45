"""One store per backend: a backend that joins here inherits the whole suite."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from attestation.store import Store, StoreSettings, migrate, open_store
from tests.fixtures import postgres

BACKENDS = ("sqlite", "postgresql")


@pytest.fixture(scope="session")
def _migrated(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """An empty migrated database file; copying it is faster than migrating for each test."""
    path = tmp_path_factory.mktemp("store") / "empty.db"
    migrate(f"sqlite:///{path}")
    return path.read_bytes()


@pytest.fixture(scope="session")
def _server() -> Iterator[postgres.Server]:
    """A server with an empty migrated database."""
    with postgres.server() as running:
        migrate(running.create("empty"))
        yield running


@pytest.fixture(params=BACKENDS)
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of an empty migrated database."""
    if request.param == "sqlite":
        path = tmp_path / "store.db"
        path.write_bytes(request.getfixturevalue("_migrated"))
        yield f"sqlite:///{path}"
    else:
        server = request.getfixturevalue("_server")
        yield server.create("store", template="empty")
        server.drop("store")


@pytest.fixture
def store(store_url: str) -> Iterator[Store]:
    """An open store on an empty database."""
    opened = open_store(store_url, StoreSettings(results_kept=5))
    yield opened
    opened.close()
