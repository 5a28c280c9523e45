"""`db upgrade`: bring the schema, and the tables of extensions, to their newest revisions, and do nothing else.

For who keeps apart the role that may change the schema from the role of the running service.
"""

from __future__ import annotations

import argparse
import sys

from attestation.store import grant, migrate
from attestation.store.migrate import HEAD
from attestation_service import extensions
from attestation_service.settings import Settings


def run(settings: Settings, options: argparse.Namespace) -> int:
    """Do it; where nothing is left to do, say so as well.

    Raises:
        ValueError: No URL of a database that we support.
        AttestationError: It cannot be migrated.
        SettingsInvalid: Revisions of an extension cannot be used.
    """
    enabled = extensions.load(settings)
    migrate(settings.db_url)
    extensions.migrate(settings, enabled)
    for name, why in enabled.skipped.items():
        sys.stderr.write(f"{name} is left out: it {why}\n")
    done = (each for each in enabled.extensions if each.name not in enabled.skipped)
    also = "".join(f", {each.name}" for each in done if each.migrations is not None)
    sys.stdout.write(f"the database is at revision {HEAD}{also}\n")
    if options.grant_to is not None:
        count = grant(settings.db_url, options.grant_to)
        sys.stdout.write(
            f"{options.grant_to} may do there what the running service does, on {count} tables\n"
        )
    return 1 if enabled.skipped else 0
