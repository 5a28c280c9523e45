"""`attestation collateral …`: what vouches for confidential hardware, kept, carried and asked for."""

# Algorithms for: digest
from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from attestation.client.collateral_files import MANIFEST, batches
from attestation.errors import CollateralInvalid, RequestInvalid, Unavailable
from attestation.wire import b64decode, b64encode
from attestation_cli.options import FOLDER_PATH, listing, printing
from attestation_cli.render import Column, time_cell
from attestation_cli.session import Session

if TYPE_CHECKING:
    from attestation.api import CollateralDetail

MAX_FILE_BYTES = 1 << 20


@click.group("collateral")
def group() -> None:
    """What vouches for confidential hardware: certificates, TCB levels, revocation lists.

    \b
    Examples:
      attestation collateral status
      attestation collateral export ./collateral
      attestation collateral import ./collateral
      attestation collateral refresh
    """


@group.command()
@listing
def status(session: Session) -> None:
    """List what is kept, and until when it holds.

    \b
    Examples:
      attestation collateral status
      attestation collateral status -o json
    """
    now = datetime.now(UTC)
    with session.client() as client:
        session.emit_list(
            client.collateral(),
            {
                Column("NAME"): lambda c: c.name,
                Column("HOLDS"): _holds,
                Column("EXPIRES"): lambda c: time_cell(c.expires_at, now),
                Column("FROM", drop=1): lambda c: c.source,
                Column("LAST FAILURE", drop=2): lambda c: c.failure or "",
            },
            "No collateral is kept.",
        )


def _holds(found: CollateralDetail) -> str:
    if found.current:
        return "yes"
    return "expired" if found.expires_at is not None else "missing"


@group.command("export")
@click.argument("folder", type=FOLDER_PATH)
@printing
def export(session: Session, folder: Path) -> None:
    """Write what is kept into FOLDER, with a manifest of SHA-256.

    It serves another service as ITL_COLLATERAL_DIR, or by `attestation collateral import`.

    \b
    Examples:
      attestation collateral export ./collateral
    """
    sums: dict[str, str] = {}
    with session.client() as client:
        for found in client.collateral(with_data=True):
            if found.data is None:
                continue
            data, path = b64decode(found.data, found.name), _inside(folder, found.name)
            _write(path, data)
            sums[found.name] = hashlib.sha256(data).hexdigest()
    _write(folder / MANIFEST, (json.dumps(sums, indent=1, sort_keys=True) + "\n").encode("utf-8"))
    session.emit_done(f"{len(sums)} pieces of collateral written to {folder}", {"written": len(sums)})


@group.command("import")
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@printing
def import_(session: Session, folder: Path) -> None:
    """Have the service keep what lies in FOLDER; each piece is verified there.

    \b
    Examples:
      attestation collateral import ./collateral
    """
    stored, older, refused = [], [], []
    with session.client() as client:
        for some in batches(_files(folder)):
            answer = client.import_collateral(
                [{"name": name, "data": b64encode(data)} for name, data in some]
            )
            stored += answer.stored
            older += answer.older
            refused += answer.refused
    if refused:
        named = "; ".join(f"{each.name}: {each.reason}" for each in refused[:5])
        raise CollateralInvalid(f"{len(stored)} kept, {len(refused)} refused: {named}")
    session.emit_done(
        f"{len(stored)} kept, {len(older)} not newer than what is there",
        {"stored": len(stored), "older": len(older)},
    )


@group.command()
@printing
def refresh(session: Session) -> None:
    """Have the service ask the vendors again for what it keeps.

    \b
    Examples:
      attestation collateral refresh
    """
    with session.client() as client:
        answer = client.refresh_collateral()
    if not answer.fetching:
        raise Unavailable("this service asks nobody for collateral: ITL_COLLATERAL_FETCH is off")
    session.emit_done(f"asked for {answer.asked} pieces of collateral", {"asked": answer.asked})


def _write(path: Path, data: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    except OSError as e:
        raise RequestInvalid(f"{path} cannot be written: {e.strerror}") from e


def _inside(folder: Path, name: str) -> Path:
    """Return where *name* belongs; a service that names a place outside is not believed."""
    path = (folder / name).resolve()
    if not path.is_relative_to(folder.resolve()):
        raise CollateralInvalid(f"{name[:80]!r} leads out of {folder}")
    return path


def _files(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of each file that the manifest names, as it names it."""
    try:
        sums = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as e:
        raise CollateralInvalid(f"{folder / MANIFEST} cannot be read: {e}") from e
    if not isinstance(sums, dict):
        raise CollateralInvalid(f"{folder / MANIFEST} is no object of names and SHA-256")
    for name, expected in sums.items():
        path = _inside(folder, name)
        try:
            if path.stat().st_size > MAX_FILE_BYTES:
                raise CollateralInvalid(f"{name[:80]}: longer than {MAX_FILE_BYTES} bytes")
            data = path.read_bytes()
        except OSError as e:
            raise CollateralInvalid(f"{name[:80]}: {e.strerror}") from e
        if hashlib.sha256(data).hexdigest() != expected:
            raise CollateralInvalid(f"{name[:80]} is not the file of the manifest")
        yield name, data
