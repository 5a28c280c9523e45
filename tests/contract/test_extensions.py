"""Every extension that is installed keeps the contract: found, migrated, its routes closed."""

from __future__ import annotations

from importlib.metadata import entry_points
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from attestation.extension import GROUP, AttestationExtension
from attestation.store import migrate
from attestation.store.migrate import connection_to
from attestation_service import extensions
from attestation_service.app import create_app
from attestation_service.settings import Settings
from tests.unit.service.conftest import settings_for

INSTALLED = sorted(point.name for point in entry_points(group=GROUP))


@pytest.fixture(params=INSTALLED)
def extension(request: pytest.FixtureRequest, tmp_path: Path) -> AttestationExtension:
    """Each of them, loaded as the service does."""
    (made,) = extensions.load(settings_with(request.param, tmp_path)).extensions
    return made


def demanded(name: str, folder: Path) -> dict[str, str]:
    """Return the variables that *name* cannot do without."""
    fields = {
        "disk_kms": {"KEK": f"file:{folder}/disk.kek", "ADDRESS": "127.0.0.1:4050", "INSECURE": "true"},
        "hooks": {"MODULES": "tests.fixtures.hooks"},
        "webhooks": {"KEK": f"file:{folder}/webhooks.kek"},
        "secret_vault": {"KEK": f"file:{folder}/vault.kek"},
        "machine_identity": {"AUDIENCES": "openbao", "KEY": f"file:{folder}/identity.pem"},
    }.get(name, {})
    return {f"ITL_EXT_{name.upper()}_{field}": value for field, value in fields.items()}


def settings_with(name: str, folder: Path) -> Settings:
    """Return settings that enable *name*, with those that it demands."""
    return settings_for(folder, extensions=(name,), extension_values=demanded(name, folder))


def test_ours_are_found_like_anybody_s() -> None:
    """By the entry point of their distribution."""
    assert "metrics" in INSTALLED


def test_the_command_groups_that_it_names_are_there(extension: AttestationExtension) -> None:
    """A group that is claimed, and kept from others, has a command of the same distribution."""
    (found,) = entry_points(group=GROUP, name=extension.name)
    assert found.dist is not None
    there = found.dist.entry_points.select(group="attestation_cli_plugins").names
    assert set(extension.cli_groups) <= there


def test_its_revisions_make_its_tables(extension: AttestationExtension, tmp_path: Path) -> None:
    """Alembic finds no difference between them and its models; a second start finds nothing to do."""
    settings = settings_for(tmp_path)
    migrate(settings.db_url)
    for _ in range(2):
        extensions.migrate(settings, extensions.Enabled(extensions=(extension,)))
    prefix = f"extension_{extension.name}_"
    own = {model.__tablename__ for model in extension.get_models()}
    with connection_to(settings.db_url) as connection:
        for metadata in {model.metadata for model in extension.get_models()}:
            context = MigrationContext.configure(
                connection,
                opts={
                    "include_name": lambda name, kind, _: (
                        kind != "table"
                        or name in own
                        or (str(name).startswith(prefix) and name != f"{prefix}version")
                    )
                },
            )
            assert compare_metadata(context, metadata) == []


def test_its_routes_are_its_own(extension: AttestationExtension, tmp_path: Path) -> None:
    """Below its name, each with a right, each with a summary; nothing of ours changes."""
    plain = create_app(settings_for(tmp_path)).openapi()["paths"]
    found = create_app(settings_with(extension.name, tmp_path)).openapi()["paths"]
    assert {path: found[path] for path in plain} == plain
    for path in found.keys() - plain.keys():
        prefixes = extension.prefixes or (f"/api/v1/{extension.name}",)
        assert path.startswith(tuple(f"{prefix}/" for prefix in prefixes)) or path in prefixes
        for operation in found[path].values():
            assert operation["x-access"]
            assert operation["summary"]
