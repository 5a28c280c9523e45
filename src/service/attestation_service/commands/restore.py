"""`restore`: carry a backup into an empty database of either kind, and put its keys back if wanted.

Every file is compared with the manifest before anything is made. What is there is never overwritten: neither a
database with tables nor a folder with keys.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path

from attestation.errors import AttestationError
from attestation.store import DatabaseIdentity, Tx, place
from attestation.store.copying import source
from attestation.text import clean
from attestation_service.commands.backup import KEYS, digest, folders_of_keys, write_new
from attestation_service.commands.carrying import carry
from attestation_service.commands.manifest import DATABASE, MANIFEST, Manifest, parse
from attestation_service.settings import Settings
from attestation_service.storage.database import DatabaseNotRecognised, judge
from attestation_service.transparency.memory import MemoryFile


def run(settings: Settings, options: argparse.Namespace) -> int:
    """Do it.

    Raises:
        AttestationError: The database cannot be made; it is as it was.
        OSError, ValueError: The backup is not whole, or keys are there already.
        SettingsInvalid: An extension cannot be used.
    """
    backup = Path(options.source)
    manifest = _verified(backup)
    keys = _places_of_keys(settings, backup, manifest) if options.keys else {}
    with source(f"sqlite:///{backup.absolute()}/{DATABASE}", alone=False, still=True) as found:
        carried = carry(settings, found, settings.db_url, partial(_told_by, manifest))
    for file, to in keys.items():
        write_new(to, file.read_bytes())
    sys.stdout.write(
        f"{place(settings.db_url)}: {carried.rows:,} rows, {carried.head.size:,} audit entries, as of "
        f"{manifest.made_at}; chain and tree verify. Keys put back: {len(keys)} files.\n"
    )
    with source(settings.db_url, alone=False) as restored:
        try:
            judge(restored.tx, settings, MemoryFile.of(settings))
        except AttestationError as e:
            sys.stdout.write(f"A start would refuse it as it is: {clean(str(e))}\n")
        else:
            sys.stdout.write("The keys know it: start the service.\n")
    return 0


def _verified(backup: Path) -> Manifest:
    """Return the manifest of *backup*, each of whose files is what was backed up.

    Raises:
        ValueError: It is not.
    """
    if not (backup / MANIFEST).is_file():
        raise ValueError(f"{backup} is no backup, or one that did not end: it has no {MANIFEST}")
    try:
        manifest = parse((backup / MANIFEST).read_bytes())
    except ValueError as e:
        raise ValueError(f"{backup}: {e}") from e
    for name, sha256 in manifest.files.items():
        if not (backup / name).is_file():
            raise ValueError(f"{backup}: {name} is missing")
        if digest(backup / name) != sha256:
            raise ValueError(f"{backup}: {name} is not what was backed up: its SHA-256 is another")
    return manifest


def _places_of_keys(settings: Settings, backup: Path, manifest: Manifest) -> dict[Path, Path]:
    """Return where each file of a key goes.

    Raises:
        ValueError: There are none in the backup, or some where they would go.
    """
    places: dict[Path, Path] = {}
    for name, folder in folders_of_keys(settings).items():
        if folder.is_dir() and any(folder.iterdir()):
            raise ValueError(f"{folder} is not empty: move it away, or restore without --keys")
        prefix = f"{KEYS}/{name}/"
        places |= {
            backup / f: folder / f.removeprefix(prefix) for f in manifest.files if f.startswith(prefix)
        }
    if not places:
        raise ValueError(
            f"{backup} was made without --keys: restore without it, and bring the keys from elsewhere"
        )
    return places


def _told_by(manifest: Manifest, tx: Tx) -> DatabaseIdentity:
    identity = tx.identity.get()
    if (
        identity is None
        or identity.database_id != manifest.database
        or tx.audit.tree.size() != manifest.entries
    ):
        raise DatabaseNotRecognised(f"the backup holds another database than its {MANIFEST} says")
    return identity
