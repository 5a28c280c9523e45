"""All rows of a database, read on one snapshot and written into another one: wholly or not at all, in constant memory.

Rows go from driver to driver in the order of their keys, as they are held: nothing is decoded, and both databases hold
the same integers, texts, bytes and NULLs. Flags are 0 and 1 on the way. So a digest over a table is the same on both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from attestation.store.copying.of_sqlite import from_file, into_file
from attestation.store.copying.rows import Copied, End, Source, Target, copy, digest_of, tables_of
from attestation.store.migrate import Branch, place

__all__ = ["Copied", "End", "Source", "Target", "copy", "digest_of", "source", "tables_of", "target"]


@contextmanager
def source(url: str, *, alone: bool, still: bool = False) -> Iterator[Source]:
    """Open the database at *url* at one snapshot.

    Args:
        url: Of the database.
        alone: Refuse one that a service uses, and let nobody write to it while this is open. Otherwise services go on.
        still: It is a file that nobody writes to, a backup: nothing is changed in it or beside it.

    Raises:
        ValueError: Not a URL of a database that we support.
        StoreBusy: A service, or another program, uses it.
        StoreUnavailable: It cannot be read.
    """
    where = place(url)
    if isinstance(where, Path):
        opened = from_file(where, alone=alone, still=still)
    else:
        from attestation.store.copying.of_postgres import (
            from_server,  # here: who has SQLite need not have its driver
        )

        opened = from_server(url, where, alone=alone)
    with opened as found:
        yield found


@contextmanager
def target(url: str, branches: Sequence[Branch]) -> Iterator[Target]:
    """Make our tables in the empty database at *url*; committed when the block ends well, else nothing is there.

    Raises:
        ValueError: Not a URL of a database that we support.
        StoreBusy: Another process makes it.
        StoreUnavailable: It is not empty, or cannot be written.
    """
    where = place(url)
    if isinstance(where, Path):
        opened = into_file(where, branches)
    else:
        from attestation.store.copying.of_postgres import into_server  # here, likewise

        opened = into_server(url, where, branches)
    with opened as made:
        yield made
