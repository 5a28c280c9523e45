"""`attestation allow-list …`: EKs that are admitted in advance."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from attestation.client.text import clean
from attestation.errors import AllowListEntryUnknown, RequestInvalid
from attestation.machines import Role
from attestation_cli import allow_list_file
from attestation_cli.failures import ExitCode
from attestation_cli.options import listing, new_proposal_option, printing
from attestation_cli.progress import Progress
from attestation_cli.render import Cell, Column, time_cell
from attestation_cli.session import Ambiguous, Session

if TYPE_CHECKING:
    from attestation.api import AllowListItem
    from attestation.client import OperatorClient

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
@click.option(
    "--map",
    "maps",
    multiple=True,
    metavar="MEMBER=HEADING",
    help="FILE is another table: which of its columns is which member; may be said again.",
)
@click.option(
    "--map-file",
    type=click.File("r", encoding="utf-8"),
    help="File with such a line for each member: one for each vendor is kept.",
)
@click.option("--role", type=click.Choice([r.value for r in Role]), help="Of entries that say none.")
@click.option("--cluster-id", help="Likewise.")
@click.option("--dry-run", is_flag=True, help="Tell what would be done with each entry, and do nothing.")
@new_proposal_option
@printing
@click.pass_context
def import_(
    ctx: click.Context,
    session: Session,
    file: Any,
    maps: tuple[str, ...],
    map_file: Any,
    role: str | None,
    cluster_id: str | None,
    *,
    dry_run: bool,
) -> None:
    """Import entries from FILE (- for stdin): CSV with a heading line, or JSON.

    Columns: ek_fingerprint and role, then as wanted hostname, assigned_ip, cluster_id, note.
    JSON: a list of such objects, or {"entries": [...]}. An entry that exists already is replaced.
    The whole file is checked before anything is sent; more than 1,000 entries go in parts, each all or nothing.
    Where dual control asks for several people, this is your vote for exactly these entries.

    With --map it is a table of somebody else, separated by , ; | or tabs. Its EK may be a certificate or a public key,
    in PEM or base64, or the SHA-384; members beside the columns: ek_sha256, which is compared, serial and product,
    which go into the note. Columns that are not mapped are told, and left out.

    \b
    Examples:
      attestation allow-list import delivery.csv
      generate-list | attestation allow-list import -
      attestation allow-list import vendor.csv --role worker-app \\
          --map "ek_fingerprint=EK Certificate" --map serial=Serial --dry-run
    """
    from attestation.api import AllowListImport, PendingApproval

    table = allow_list_file.read_table(_text_of(file), _reading(maps, map_file, role, cluster_id))
    if table.unknown:
        names = clean(", ".join(table.unknown))
        session.note(f"Left out, because nothing maps to it: {names}")
    if dry_run:
        ctx.exit(0 if _rehearse(session, table) else ExitCode.NEGATIVE)
    entries = allow_list_file.demand_good(table)
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


def _reading(
    maps: tuple[str, ...], map_file: Any, role: str | None, cluster_id: str | None
) -> allow_list_file.Reading:
    """Return how the file is read; what is said on the command line goes before what a file says."""
    said = list(maps)
    columns = allow_list_file.parse_mapping(said)
    if map_file is not None:
        columns = allow_list_file.parse_mapping(_text_of(map_file).splitlines()) | columns
    return allow_list_file.Reading(columns=columns, role=role, cluster_id=cluster_id)


def _text_of(file: Any) -> str:
    """Return the text of a file.

    Raises:
        RequestInvalid: It cannot be read, is no UTF-8, or too long.
    """
    try:
        text: str = file.read(MAX_FILE_BYTES + 1)
    except (OSError, UnicodeDecodeError) as e:
        raise RequestInvalid(f"{file.name}: {getattr(e, 'strerror', None) or 'not UTF-8 text'}") from e
    if len(text) > MAX_FILE_BYTES:
        raise RequestInvalid(f"{file.name}: longer than {MAX_FILE_BYTES} characters")
    return text


def _rehearse(session: Session, table: allow_list_file.Table) -> bool:
    """Tell what an import would do with each entry; return True if it would import the file."""
    named = {line.entry.ek_fingerprint for line in table.lines if line.entry is not None}
    listed = {}
    with session.client() as client:
        for item in client.allow_list() if named else ():
            if item.ek_fingerprint in named:
                listed[item.ek_fingerprint] = item
    rows = [{"where": line.where, **_told(line, listed)} for line in table.lines]
    if session.json:
        session.emit_json({"entries": rows, "left_out": list(table.unknown)})
    else:
        session.emit_rows(
            rows,
            {
                Column("WHERE"): lambda r: r["where"],
                Column("EK FINGERPRINT", shrink_to=12): lambda r: r["ek_fingerprint"],
                Column("ROLE", drop=1): lambda r: r["role"],
                Column("HOSTNAME", shrink_to=8, drop=2): lambda r: r["hostname"],
                Column("NOTE", shrink_to=8, drop=3): lambda r: r["note"],
                Column("WHAT", shrink_to=20): lambda r: Cell(clean(r["what"]), COLOURS.get(r["result"])),
            },
            "",
        )
        session.note("Nothing was imported: this is what an import would do.")
    return all(row["result"] not in ("fault", "duplicate") for row in rows)


COLOURS = {"fault": "red", "duplicate": "red", "replaced": "yellow", "new": "green"}


def _told(line: allow_list_file.Line, listed: Mapping[str, AllowListItem]) -> dict[str, Any]:
    """Return what an import would do with one entry of a file."""
    entry = line.entry
    members = {name: getattr(entry, name, None) for name in ("ek_fingerprint", "role", "hostname", "note")}
    if entry is None:
        result, what = "fault", str(line.fault)
    elif line.same_as is not None:
        result, what = "duplicate", f"the same EK as in {line.same_as}"
    elif (item := listed.get(entry.ek_fingerprint)) is None:
        result, what = "new", "new"
    else:
        changed = [
            f"{name} {getattr(item, name) or '-'} becomes {getattr(entry, name) or '-'}"
            for name in allow_list_file.COLUMNS
            if getattr(item, name) != getattr(entry, name)
        ]
        result, what = ("replaced", "; ".join(changed)) if changed else ("same", "listed so already")
    return {**members, "result": result, "what": what}


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
