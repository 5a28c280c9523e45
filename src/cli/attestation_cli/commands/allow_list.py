"""`attestation allow-list …`: EKs that are admitted in advance."""

from __future__ import annotations

import csv
import io
import json
import re
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from attestation.client.text import clean
from attestation.errors import AllowListEntryUnknown, RequestInvalid
from attestation_cli.options import listing, new_proposal_option, printing
from attestation_cli.progress import Progress
from attestation_cli.render import Column, time_cell
from attestation_cli.session import Ambiguous, Session

if TYPE_CHECKING:
    from attestation.api import AllowListEntry
    from attestation.client import OperatorClient

COLUMNS = ("ek_fingerprint", "role", "hostname", "assigned_ip", "cluster_id", "note")
ENTRIES_PER_REQUEST = 1000
"""A request may have 1 MiB; an entry has up to about 700 bytes."""
MAX_FILE_BYTES = 16 << 20


@click.group("allow-list")
def group() -> None:
    """EKs that are admitted in advance: assurance ek-allowlist, no approval needed.

    \b
    Examples:
      attestation allow-list import delivery.csv
      attestation allow-list list
    """


@group.command("import")
@click.argument("file", type=click.File("r", encoding="utf-8-sig"))
@new_proposal_option
@printing
def import_(session: Session, file: Any) -> None:
    """Import entries from FILE (- for stdin): CSV with a heading line, or JSON.

    Columns: ek_fingerprint and role, then as wanted hostname, assigned_ip, cluster_id, note.
    JSON: a list of such objects, or {"entries": [...]}. An entry that exists already is replaced.
    The whole file is checked before anything is sent; more than 1,000 entries go in parts, each all or nothing.
    Where dual control asks for several people, this is your vote for exactly these entries.

    \b
    Examples:
      attestation allow-list import delivery.csv
      generate-list | attestation allow-list import -
    """
    from attestation.api import AllowListImport, PendingApproval

    try:
        text = file.read(MAX_FILE_BYTES + 1)
    except (OSError, UnicodeDecodeError) as e:
        raise RequestInvalid(f"{file.name}: {getattr(e, 'strerror', None) or 'not UTF-8 text'}") from e
    if len(text) > MAX_FILE_BYTES:
        raise RequestInvalid(f"{file.name}: longer than {MAX_FILE_BYTES} characters")
    entries = parse_entries(text)
    added = replaced = 0
    pending: list[PendingApproval] = []
    with session.client() as client, Progress("importing", total=len(entries), silent=session.json) as bar:
        for start in range(0, len(entries), ENTRIES_PER_REQUEST):
            try:
                # The parts of one file are no rivals of each other.
                asked = client.beside_others() if start else client
                part_of_file = AllowListImport(entries=entries[start : start + ENTRIES_PER_REQUEST])
                done = asked.import_allow_list(part_of_file)
            finally:
                # Each request is all or nothing; after a failure it must be plain how far we came.
                if start:
                    session.note(f"{start} of {len(entries)} entries imported")
            bar.advance(min(ENTRIES_PER_REQUEST, len(entries) - start))
            if isinstance(done, PendingApproval):
                pending.append(done)
                continue
            added += done.added
            replaced += done.replaced
    for part in pending:
        session.emit_pending(part, f"allow-list, entries {len(entries) - added - replaced}")
        return
    session.emit_done(f"{added} added, {replaced} replaced", {"added": added, "replaced": replaced})


def parse_entries(text: str) -> list[AllowListEntry]:
    """Read allow-list entries from JSON or CSV.

    Raises:
        RequestInvalid: Unreadable, empty, an unknown column, a wrong value or the same EK twice; the
            message names the line or the entry.
    """
    from pydantic import ValidationError

    from attestation.api import AllowListEntry
    from attestation.api.said import said

    rows = _json_rows(text) if text.lstrip()[:1] in ("[", "{") else _csv_rows(text)
    entries: list[AllowListEntry] = []
    seen: dict[str, str] = {}
    for where, row in rows:
        try:
            entry = AllowListEntry.model_validate(row)
        except ValidationError as e:
            first = e.errors(include_url=False)[0]
            member = ".".join(str(part) for part in first["loc"])
            raise RequestInvalid(f"{where}: {member or 'the entry'} {said(first)}") from None
        if entry.ek_fingerprint in seen:
            raise RequestInvalid(f"{where}: the same EK as in {seen[entry.ek_fingerprint]}")
        seen[entry.ek_fingerprint] = where
        entries.append(entry)
    if not entries:
        raise RequestInvalid("there is no entry in it")
    return entries


def _json_rows(text: str) -> list[tuple[str, Any]]:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as e:
        raise RequestInvalid(f"not JSON: {e}") from e
    if isinstance(document, dict) and set(document) == {"entries"}:
        document = document["entries"]
    if not isinstance(document, list):
        raise RequestInvalid('JSON must be a list of entries, or {"entries": [...]}')
    return [(f"entry {number}", row) for number, row in enumerate(document, start=1)]


def _csv_rows(text: str) -> list[tuple[str, Any]]:
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    rows: list[tuple[str, Any]] = []
    heading: list[str] | None = None
    try:
        for raw in reader:
            values = [value.strip() for value in raw]
            if not any(values) or values[0].startswith("#"):
                continue
            where = f"line {reader.line_num}"
            if heading is None:
                heading = [value.lower() for value in values]
                unknown = [name for name in heading if name not in COLUMNS]
                if unknown or len(set(heading)) < len(heading):
                    raise RequestInvalid(
                        f"{where}: a heading of {', '.join(COLUMNS)} is needed, found {clean(', '.join(values)[:80])}"
                    )
                continue
            if len(values) > len(heading):
                raise RequestInvalid(f"{where}: {len(values)} values under {len(heading)} headings")
            row = {name: value for name, value in zip(heading, values, strict=False) if value}
            if "ek_fingerprint" in row:
                row["ek_fingerprint"] = row["ek_fingerprint"].lower().replace(":", "")
            rows.append((where, row))
    except csv.Error as e:
        raise RequestInvalid(f"line {reader.line_num}: {e}") from e
    return rows


@group.command("list")
@click.option(
    "--limit", type=click.IntRange(min=0), default=0, help="Show at most so many; 0 shows all. [default: 0]"
)
@listing
def list_(session: Session, limit: int) -> None:
    """List entries in the order of their fingerprints.

    \b
    Examples:
      attestation allow-list list
      attestation allow-list list -o csv > allow-list.csv
    """
    now = datetime.now(UTC)
    with session.client() as client:
        session.emit_list(
            islice(client.allow_list(), limit or None),
            {
                Column("EK FINGERPRINT", shrink_to=17): lambda e: e.ek_fingerprint,
                Column("ROLE"): lambda e: e.role,
                Column("HOSTNAME", shrink_to=8): lambda e: e.hostname,
                Column("ADDRESS", shrink_to=10, drop=2): lambda e: e.assigned_ip,
                Column("CLUSTER", shrink_to=8, drop=1): lambda e: e.cluster_id,
                Column("NOTE", shrink_to=8, drop=4): lambda e: e.note,
                Column("CREATED", drop=3): lambda e: time_cell(e.created_at, now),
                Column("BY", shrink_to=6, drop=5): lambda e: e.created_by,
            },
            "The allow-list is empty.",
        )


@group.command()
@click.argument("fingerprint")
@click.option("--yes", is_flag=True, help="Do not ask.")
@printing
def remove(session: Session, fingerprint: str, *, yes: bool) -> None:
    """Remove an EK; FINGERPRINT may be its beginning (at least 8 hex). Machines already admitted stay.

    \b
    Examples:
      attestation allow-list remove 3010ed0c5ba1
    """
    with session.client() as client:
        full = _full_fingerprint(client, fingerprint.lower().replace(":", ""))
        session.confirm(f"Remove EK {full[:16]}… from the allow-list?", yes=yes)
        client.remove_from_allow_list(full)
    session.emit_done(f"{full[:16]}…: removed", {"ek_fingerprint": full, "removed": True})


def _full_fingerprint(client: OperatorClient, beginning: str) -> str:
    if not re.fullmatch(r"[0-9a-f]{8,96}", beginning):
        raise RequestInvalid("the fingerprint needs 8 to 96 hex digits")
    if len(beginning) == 96:
        return beginning
    found: list[str] = []
    for entry in client.allow_list():
        # They come in their order: beyond the prefix there is nothing more to find.
        if entry.ek_fingerprint[: len(beginning)] > beginning:
            break
        if entry.ek_fingerprint.startswith(beginning):
            found.append(entry.ek_fingerprint)
    if not found:
        raise AllowListEntryUnknown(f"no entry begins with {beginning}")
    if len(found) > 1:
        raise Ambiguous("\n".join([f"{beginning} may mean any of", *found[:20]]))
    return found[0]
