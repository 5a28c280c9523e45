"""Our own extensions pass the suite that a stranger's does: each that is installed."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from attestation.keys import KeyOptions, create_kek
from attestation_testing.extension_suite import ExtensionSuite
from tests.contract.test_extensions import INSTALLED, demanded
from tests.fixtures.postgres import Server

PAGES = sorted((Path(__file__).parents[2] / "docs/operate").glob("*.md"))


class Ours(ExtensionSuite):
    """The suite, with a database on our server, and our pages."""

    def environment(self, folder: Path) -> Mapping[str, str]:
        """Return what it cannot do without; a key-encryption key is made."""
        found = demanded(self.name, folder)
        for value in found.values():
            if value.endswith(".kek"):
                create_kek(value, KeyOptions(allow_unencrypted=True))
        return found

    @pytest.fixture
    def postgresql_url(self, postgres_server: Server) -> Iterator[str]:
        """The URL of an empty database."""
        name = f"suite_{secrets.token_hex(6)}"
        yield postgres_server.create(name).replace("postgresql:", "postgresql+psycopg:", 1)
        postgres_server.drop(name)


for _name in INSTALLED:
    _words = f"ITL_EXT_{_name.upper()}_"
    _pages = tuple(page for page in PAGES if _words in page.read_text(encoding="utf-8"))
    _title = f"Test{_name.title().replace('_', '')}"
    globals()[_title] = type(_title, (Ours,), {"name": _name, "pages": _pages, "__doc__": f"{_name}."})
