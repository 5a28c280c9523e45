"""`db copy`: carry the database into an empty one of either kind, and leave the old one marked as moved.

The service must be stopped: what it wrote meanwhile would be missing in the copy. The old database says from then on
where it went, and no service starts with it: two that have one identity would make two histories of one log.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial

from attestation.clock import SystemClock, to_micros
from attestation.store import place
from attestation.store.copying import source
from attestation_service.commands.carrying import carry, known
from attestation_service.settings import Settings


def run(settings: Settings, options: argparse.Namespace) -> int:
    """Do it.

    Raises:
        ValueError: No URL of a database that we support.
        AttestationError: It cannot be done; the target is as it was.
        SettingsInvalid: An extension cannot be used.
    """
    old, new = options.source or settings.db_url, options.target
    with source(old, alone=True) as found:
        carried = carry(settings, found, new, partial(known, settings))
        # After the copy is committed: a crash in between leaves two databases, of which the keys, which remember what
        # they signed, soon know one only. The other way around it could leave none.
        found.mark_moved(str(place(new)), to_micros(SystemClock().now()))
    sys.stdout.write(
        f"{carried.rows:,} rows of {len(carried.tables)} tables were copied to {place(new)}, and compared.\n"
        f"Its audit log has {carried.head.size:,} entries, root {carried.head.root.hex()}: chain and tree verify.\n"
        f"{place(old)} says that it moved: no service starts with it any more.\n"
        f"Now let ITL_DB_URL name the new database, look with `attestation-service doctor`, and start.\n"
    )
    return 0
