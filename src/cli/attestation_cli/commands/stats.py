"""`attestation stats`: how the fleet stands, in numbers."""

from __future__ import annotations

import click

from attestation_cli.options import printing
from attestation_cli.render import Cell, Column, cell
from attestation_cli.session import Session


@click.command("stats")
@printing
def group(session: Session) -> None:
    """Count machines by status, role and trust.

    Counted by the service, all of one moment; every machine is once in each of the three tables.

    \b
    Examples:
      attestation stats
      attestation stats -o json
    """
    with session.client() as client:
        counts = client.stats_record()
    if session.json:
        session.emit_json(counts)
        return
    rows: list[list[Cell]] = []
    for what, name in (("status", "by_status"), ("role", "by_role"), ("trust", "by_trust")):
        found = counts.counts(name)
        if name == "by_role":
            found = {**found, "(none)": counts.number("without_role")}
        rows += [[cell(what), cell(word), cell(count)] for word, count in found.items()]
    rows.append([cell("all"), cell("machines"), cell(counts.number("machines"))])
    if session.output in ("csv", "wide"):
        session.emit_table([Column("BY"), Column("WORD"), Column("MACHINES")], rows, "")
        return
    _bars(session, rows[:-1], counts.number("machines"))


def _bars(session: Session, rows: list[list[Cell]], total: int) -> None:
    """Print each count with a bar: its part of all machines."""
    session.emit(f"{total:,} machine{'' if total == 1 else 's'}")
    width = max(len(row[1].text) for row in rows)
    digits = max(len(f"{int(row[2].text):,}") for row in rows)
    room = min(max((session.width or 80) - width - digits - 6, 0), 40)
    last = ""
    for what, word, count in rows:
        if what.text != last:
            last = what.text
            session.emit(f"\nby {last}")
        number = int(count.text)
        cells = 0 if not total else max(round(number * room / total), 1 if number else 0)
        line = f"  {word.text:<{width}}  {number:>{digits},}  "
        session.emit((line + click.style("█" * cells, fg=word.colour)).rstrip() if cells else line.rstrip())
