"""Tables of extensions: called as they say, made by revisions of their own, kept when they go."""

from __future__ import annotations

from attestation.extension import AttestationExtension
from attestation.store import Branch, migrate_branch
from attestation_service.extensions.enabled import Enabled, ExtensionInvalid, strange
from attestation_service.settings import Settings


def demand_tables(name: str, made: AttestationExtension) -> None:
    """Refuse tables whose names could be those of another extension, and tables without migrations."""
    prefix = f"extension_{name}_"
    if foreign := next((each for each in made.tables if not each.startswith("extension_")), None):
        raise ExtensionInvalid(
            name, f"declares the table {foreign}; those of extensions are called extension_…"
        )
    for model in made.get_models():
        table = model.__tablename__
        if not table.startswith(prefix) and table not in made.tables:
            raise ExtensionInvalid(name, f"has a table {table}; its are called {prefix}…, or are declared")
        if made.migrations is None:
            raise ExtensionInvalid(name, "has tables and no migrations")


def branch_of(extension: AttestationExtension) -> Branch:
    """Return the revisions of the tables of *extension*, which has some."""
    assert extension.migrations is not None
    return Branch(
        name=extension.name,
        scripts=extension.migrations.scripts,
        head=extension.migrations.head,
        tables=frozenset(model.__tablename__ for model in extension.get_models()),
        besides=frozenset(extension.tables),
    )


def migrate(settings: Settings, enabled: Enabled) -> None:
    """Bring the tables of all that are enabled to their newest revision, in the database that was migrated.

    Raises:
        ExtensionInvalid: Revisions of one of ours fail; then nothing of them was done. Others are skipped.
    """
    for each in enabled.extensions:
        if each.migrations is None:
            continue
        try:
            with strange(each.name, "has tables that cannot be migrated"):
                migrate_branch(settings.db_url, branch_of(each))
        except ExtensionInvalid as e:
            enabled.skip(e)
