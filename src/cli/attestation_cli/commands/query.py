"""`attestation query`: ask the fleet anything, in the query language; keep what is asked often."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from attestation.client.csv_line import csv_line
from attestation.client.text import clean
from attestation.errors import Conflict, QueryInvalid, QueryUnknown, RequestInvalid
from attestation_cli.complete import complete_query, complete_saved_query
from attestation_cli.options import EXISTING_FILE, printing
from attestation_cli.render import Cell, Column, cell
from attestation_cli.session import Session, checked

if TYPE_CHECKING:
    from attestation.api import QueryError, QueryResult, SavedQueryDetail
    from attestation.client import OperatorClient

SHRINK_TO = 10


class QueryWrong(RequestInvalid):
    """What was typed is no query; the text shows where."""

    code = QueryInvalid.code


class QueryAmbiguous(Conflict):
    """Several people share a query under this name."""

    code = "query-ambiguous"


@click.command("query")
@click.argument("query", required=False, shell_complete=complete_query)
@click.option("-f", "--file", type=EXISTING_FILE, help="Read the query from this file.")
@click.option(
    "--saved",
    metavar="[OWNER/]NAME",
    shell_complete=complete_saved_query,
    help="Run a query that you keep, or that somebody shares.",
)
@click.option(
    "-n",
    "--rows",
    type=click.IntRange(1, 10_000),
    default=1000,
    show_default=True,
    help="Most rows to print.",
)
@click.option("--explain", is_flag=True, help="For auditors: show how the database would run it.")
@click.option("--save", metavar="NAME", help="Keep the query under this name, and do not run it.")
@click.option("--share", is_flag=True, help="With --save: let everybody who may ask see it.")
@click.option("--describe", metavar="TEXT", help="With --save: what it is for.")
@click.option(
    "--delete",
    metavar="[OWNER/]NAME",
    shell_complete=complete_saved_query,
    help="Forget a query that you keep; with OWNER/ one that somebody shares.",
)
@click.option(
    "--take-over",
    metavar="OWNER/NAME",
    shell_complete=complete_saved_query,
    help="Keep what somebody shares as yours: who left, for example.",
)
@click.option("--list", "list_", is_flag=True, help="List the queries that you keep and that others share.")
@click.option("--tables", is_flag=True, help="List the tables and columns that you may ask.")
@printing
def group(
    session: Session,
    query: str | None,
    file: Path | None,
    saved: str | None,
    rows: int,
    explain: bool,
    save: str | None,
    share: bool,
    describe: str | None,
    delete: str | None,
    take_over: str | None,
    list_: bool,
    tables: bool,
) -> None:
    """Ask the fleet anything: a query over machines, attestations, certificates, votes, the audit log.

    A query is a table and stages behind bars, as in Kusto (KQL). Quote it, or the shell takes the bars. What you may
    not see does not exist for you. Five seconds, 10,000 rows; each query is an entry of the audit log.

    \b
    Examples:
      attestation query 'Machines | where since_attested > 1d | take 20'
      attestation query 'Machines | summarize count() by role, trust'
      attestation query 'AuditLog | where ts > ago(7d)' -o csv > week.csv
      attestation query --tables
      attestation query 'Machines | where trust == "stale"' --save stale
      attestation query --saved stale
    """
    if (share or describe is not None) and save is None:
        raise click.UsageError("--share and --describe belong to --save")
    with session.client() as client:
        if delete is not None:
            _delete(client, delete)
            session.emit_done(f"{clean(delete)}: forgotten", {"name": delete, "deleted": True})
        elif take_over is not None:
            taken = client.take_over_query(_find(client, take_over).id)
            session.emit_done(f"{clean(taken.name)}: yours", {"name": taken.name, "owner": taken.owner})
        elif list_:
            _list(session, client)
        elif tables:
            _tables(session, client)
        else:
            text = _text(client, query, file, saved)
            try:
                if save is not None:
                    _save(session, client, save, text, describe, share)
                else:
                    _print(session, client.query(text, rows=rows, explain=explain))
            except QueryInvalid as e:
                wrong = client.validate_query(text).error
                if wrong is None:
                    raise
                raise QueryWrong(_shown(text, wrong)) from e


def _text(client: OperatorClient, query: str | None, file: Path | None, saved: str | None) -> str:
    if sum(each is not None for each in (query, file, saved)) != 1:
        raise click.UsageError(
            "give one query: as an argument (- reads it from stdin), with --file, or with --saved"
        )
    if saved is not None:
        return _find(client, saved).query
    if file is not None:
        try:
            return file.read_text(encoding="utf-8")
        except UnicodeDecodeError as e:
            raise RequestInvalid(f"{file} is not text") from e
    assert query is not None
    return sys.stdin.read() if query == "-" else query


def _find(client: OperatorClient, name: str) -> SavedQueryDetail:
    """Return the query that *name* means: the caller's own before those that others share.

    Raises:
        QueryUnknown: None.
        QueryAmbiguous: Several people share one.
    """
    owner, _, wanted = name.rpartition("/")
    found = [
        each
        for each in client.saved_queries().queries
        if each.name == wanted and (each.owner == owner if owner else True)
    ]
    mine = [each for each in found if each.mine]
    if not found:
        raise QueryUnknown(
            f"you keep no query {clean(name)}, and nobody shares one: `--list` shows those there are"
        )
    if len(found) > 1 and (owner or not mine):
        owners = ", ".join(f"{clean(each.owner)}/{clean(each.name)}" for each in found)
        raise QueryAmbiguous(f"several people share a query of this name: {owners}")
    return (mine or found)[0]


def _save(
    session: Session, client: OperatorClient, name: str, text: str, description: str | None, share: bool
) -> None:
    kept = checked(lambda: client.save_query(name, text, description=description, shared=share))
    if session.json:
        session.emit_json(kept)
        return
    whom = "everybody who may ask sees it" if kept.shared else "only you see it"
    session.emit_done(f"{clean(kept.name)}: kept; {whom}", {"name": kept.name, "shared": kept.shared})


def _delete(client: OperatorClient, name: str) -> None:
    owner, _, own = name.rpartition("/")
    if owner:
        client.delete_shared_query(_find(client, name).id)
    else:
        client.delete_query(own)


def _list(session: Session, client: OperatorClient) -> None:
    listed = client.saved_queries()
    if session.json:
        session.emit_json(listed)
        return
    session.emit_rows(
        listed.queries,
        {
            Column("NAME"): lambda q: q.name,
            Column("OWNER", shrink_to=8): lambda q: "you" if q.mine else q.owner,
            Column("SHARED"): lambda q: "yes" if q.shared else "no",
            Column("DESCRIPTION", shrink_to=12, drop=1): lambda q: cell(q.description),
            Column("QUERY", shrink_to=20): lambda q: cell(" ".join(q.query.split()), q.query),
        },
        "No saved queries.",
    )


def _tables(session: Session, client: OperatorClient) -> None:
    known = client.query_schema()
    if session.json:
        session.emit_json(known)
        return
    rows = [
        [cell(table.name), cell(column.name), cell(column.kind), cell(column.description)]
        for table in known.tables
        for column in table.columns
    ]
    columns = [Column("TABLE"), Column("COLUMN"), Column("KIND"), Column("DESCRIPTION", shrink_to=20)]
    session.emit_table(columns, rows, "There is nothing that you may ask.")


def _print(session: Session, found: QueryResult) -> None:
    if found.explanation is not None:
        _explain(session, found)
        return
    names = [each.name for each in found.columns]
    kinds = [each.kind for each in found.columns]
    if session.json:
        session.emit_json(_objects(names, found.rows))
    elif session.output == "csv":
        session.emit_lines(csv_line(_exact(value) for value in row) for row in (names, *found.rows))
    else:
        columns = [Column(clean(name), shrink_to=min(SHRINK_TO, len(name))) for name in names]
        rows = [[_cell(value, kind) for value, kind in zip(row, kinds, strict=True)] for row in found.rows]
        session.emit_table(columns, rows, "No rows.")
    if found.truncated:
        session.note(
            f"note: there is more than these {len(found.rows):,} rows: ask for more with --rows (at most 10,000), or "
            "for less with `where`, `project` and `summarize`"
        )


def _objects(names: list[str], rows: list[list[Any]]) -> Iterator[dict[str, Any]]:
    for row in rows:
        yield dict(zip(names, row, strict=True))


def _explain(session: Session, found: QueryResult) -> None:
    assert found.explanation is not None
    if session.json:
        session.emit_json(found.explanation)
        return
    for line in (*found.explanation.sql.splitlines(), "", *found.explanation.steps):
        session.emit(clean(line))


def _exact(value: Any) -> str:
    """Return a value whole, as a program reads it; nothing where it is null."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _cell(value: Any, kind: str) -> Cell:
    whole = _exact(value)
    if kind == "datetime" and value is not None:
        return cell(whole[:19] + "Z", whole)  # to the second; people do not read the rest
    return cell(None if value is None else whole)


def _shown(text: str, wrong: QueryError) -> str:
    """Return what is wrong with *text*, with a mark under the place."""
    line = (text.splitlines() or [""])[min(wrong.line, len(text.splitlines()) or 1) - 1]
    # A tab is as wide as one character once it is clean.
    shown = clean(line.replace("\t", " "))
    mark = " " * (wrong.column - 1) + "^" * max(1, min(wrong.length, len(shown) - wrong.column + 1))
    said = f"line {wrong.line}, column {wrong.column}: {wrong.message}"
    if wrong.suggestion is not None:
        said += f"; did you mean {wrong.suggestion}?"
    return f"{said}\n{shown}\n{mark}"
