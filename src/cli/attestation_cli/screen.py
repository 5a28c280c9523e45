"""What one run prints, in the form that was asked for, and what it asks at the terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

import click

from attestation import output
from attestation.client.csv_line import csv_line
from attestation.client.text import ago
from attestation.client.yaml_text import yaml_text
from attestation.errors import AttestationError, RequestInvalid
from attestation_cli.listing import arranged
from attestation_cli.render import (
    Cell,
    Column,
    Told,
    cell,
    cells,
    column_name,
    exact,
    fields,
    json_text,
    plain,
    table,
    time_cell,
)

if TYPE_CHECKING:
    from pydantic import BaseModel

    from attestation.api import PendingApproval
    from attestation.client.trace import Exchange

    Document = BaseModel | Mapping[str, Any]

Row = TypeVar("Row")
Item = TypeVar("Item", bound="Document")

DIGEST_DIGITS = 16
"""So many digits of a digest are printed to be typed: nobody finds another proposal that begins so too."""


class Refused(RequestInvalid):
    """The command would destroy something and nobody confirmed it."""

    code = "not-confirmed"


@dataclass(slots=True)
class Screen:
    """How one run prints."""

    output: str = "table"
    output_given: bool = False
    columns: tuple[str, ...] = ()
    """The columns of a list that were asked for, by name; none are all."""
    order: tuple[str, ...] = ()
    """The columns to sort a list by; a minus in front turns one round."""
    again: str | None = None
    """The key of an earlier run, whose acts are asked for again."""
    acted: bool = False
    """An act was given its key: from now on it may have been done."""
    debug: bool = False
    """Tell of each request on stderr."""
    quiet: bool = False
    """Print no remarks: somebody is typing a line, or a program reads stderr."""

    @property
    def json(self) -> bool:
        """True where the output is one document for programs: JSON, or the same as YAML."""
        return self.output in ("json", "yaml")

    @property
    def colour(self) -> bool:
        """True where colours help: on a terminal, unless NO_COLOR (no-color.org) or a dumb one."""
        return _coloured(sys.stdout)

    @property
    def width(self) -> int | None:
        """Columns of the terminal; None where the output goes to a file or a pipe, which have no edge."""
        if not _is_terminal(sys.stdout):
            return None
        import shutil

        return shutil.get_terminal_size().columns

    def emit(self, text: str) -> None:
        """Print *text*, which is clean already, to stdout.

        Raises:
            OutcomeUnknown: It cannot be written, and an act may have been done of which it tells.
            RequestInvalid: It cannot be written.
        """
        self._write(f"{text}\n")

    def _write(self, text: str) -> None:
        try:
            click.echo(text, color=self.colour, nl=False)
        except BrokenPipeError:
            raise  # who reads has enough
        except OSError as e:
            output.give_up()
            raise self.unwritten("the output", e) from e

    def unwritten(self, what: str, error: OSError) -> AttestationError:
        """Return what is to be raised where *what*, the answer, cannot be written: of an act it is lost."""
        why = f"the answer came, but {what} cannot be written: {error.strerror}"
        if not self.acted:
            return RequestInvalid(why)
        from attestation.client.errors import OutcomeUnknown

        return OutcomeUnknown(why, key=self.again or "")

    def emit_lines(self, lines: Iterable[str]) -> None:
        """Print *lines*, which are clean already and have their ends."""
        for line in lines:
            self._write(line)

    def note(self, text: str) -> None:
        """Print a remark to stderr, where it disturbs no program that reads stdout."""
        if not self.quiet:
            click.echo(text, err=True, color=_coloured(sys.stderr))

    def tell_exchange(self, exchange: Exchange) -> None:
        """Print what is known of a request; never what it carried."""
        answer = exchange.failure or str(exchange.status)
        request = f", request {exchange.request_id}" if exchange.request_id else ""
        took = f"{exchange.milliseconds:.0f} ms"
        self.note(f"debug: {exchange.method} {exchange.url}: {answer} after {took}{request}")

    def emit_json(self, value: Document | Iterator[Document]) -> None:
        """Print *value* as JSON or YAML; an iterator as a list, written as its values arrive.

        Raises:
            RequestInvalid: Columns were asked for, or an order.
        """
        if self.columns or self.order:
            raise RequestInvalid(
                f"--columns and --sort arrange tables; -o {self.output} is what the service said, in its order. "
                "Choose -o table, wide or csv, or arrange the document afterwards (jq)"
            )
        if self.output == "yaml":
            self._emit_yaml(value)
            return
        if not isinstance(value, Iterator):
            self.emit(json_text(value))
            return
        first = True
        for item in value:
            self.emit(("[\n" if first else ",\n") + json_text(item))
            first = False
        self.emit("[]" if first else "]")

    def _emit_yaml(self, value: Document | Iterator[Document]) -> None:
        if not isinstance(value, Iterator):
            self.emit(yaml_text(plain(value)))
            return
        empty = True
        for item in value:
            self.emit(yaml_text([plain(item)]))
            empty = False
        if empty:
            self.emit("[]")

    def emit_list(self, items: Iterator[Item], columns: Told[Item], empty: str) -> None:
        """Print what the service listed: as JSON while it arrives, else as rows."""
        if self.json:
            self.emit_json(items)
        else:
            self.emit_rows(items, columns, empty)

    def emit_rows(self, items: Iterable[Row], columns: Told[Row], empty: str) -> None:
        """Print a row for each of *items*: under each column what it tells of one, a cell or what becomes one."""
        self.emit_table(list(columns), [cells(columns, item) for item in items], empty)

    def emit_table(self, columns: Sequence[Column], rows: Sequence[Sequence[Cell]], empty: str) -> None:
        """Print a table, or the sentence *empty* to stderr.

        As a table for people, wide columns are left out, and so is a column that may go and says nothing; `wide` and
        `csv` show every column, exactly and whole. Where columns were asked for, exactly these.

        Raises:
            RequestInvalid: A column that was asked for, to see or to sort by, does not exist.
        """
        columns, rows = arranged(columns, rows, wanted=self.columns, order=self.order)
        if self.output == "csv":
            self._emit_csv([column_name(c.title) for c in columns], rows)
            return
        if not rows:
            self.note(empty)
            return
        if self.output == "wide":
            whole = [Column(c.title) for c in columns]
            values = [[Cell(exact(c) or "-", c.colour) for c in row] for row in rows]
            for line in table(whole, values, width=None, colour=self.colour):
                self.emit(line)
            return
        told = [
            i
            for i, c in enumerate(columns)
            if self.columns or (not c.wide and (not c.drop or any(row[i].text != "-" for row in rows)))
        ]
        columns, rows = [columns[i] for i in told], [[row[i] for i in told] for row in rows]
        for line in table(columns, rows, width=self.width, colour=self.colour):
            self.emit(line)

    def emit_fields(self, pairs: Iterable[tuple[str, Cell]], *, indent: str = "") -> None:
        """Print names and values, one pair a line; as CSV, a heading and one record."""
        pairs = list(pairs)
        if self.output == "csv":
            self._emit_csv([column_name(name) for name, _ in pairs], [[value for _, value in pairs]])
            return
        if self.output == "wide":
            pairs = [(name, Cell(exact(value) or "-", value.colour)) for name, value in pairs]
        width = None if self.width is None else self.width - len(indent)
        for line in fields(pairs, colour=self.colour, width=width):
            self.emit(f"{indent}{line}")

    def emit_done(self, sentence: str, members: Mapping[str, str | int | bool | None]) -> None:
        """Say that an act was done: as a *sentence*, or with its *members* where a program asked."""
        if self.json:
            self.emit_json(members)
        elif self.output == "csv":
            self.emit_fields((name, cell(value)) for name, value in members.items())
        else:
            self.emit(sentence)

    def emit_pending(self, pending: PendingApproval, subject: str) -> None:
        """Say that a vote counts, how many are missing, and what the others must call.

        Args:
            pending: What the service answered, with 202.
            subject: What the act is about, clean.
        """
        # Nobody looks at what a program agrees to, so it needs the whole digest.
        digits = None if self.json else DIGEST_DIGITS
        call = f"attestation approval approve {pending.proposal_digest[:digits]}"
        if self.json:
            self.emit_json({**pending.model_dump(mode="json"), "next_command": call})
            return
        now = datetime.now(UTC)
        count = f"{pending.approvals_received} of {pending.approvals_required}"
        rows = [
            ("approvals", cell(count)),
            ("voted", cell(", ".join(pending.voters))),
            ("expires", time_cell(pending.expires_at, now)),
            ("your vote", cell(pending.approval_id)),
        ]
        if self.output == "csv":
            self.emit_fields(
                [
                    ("status", cell(pending.status)),
                    ("action", cell(pending.action)),
                    *rows,
                    ("next command", cell(call)),
                ]
            )
            return
        headline = (
            f"{subject}: {count} approvals, expires {ago(pending.expires_at, now)}; nothing is changed yet"
        )
        self.emit(click.style(headline, fg="yellow"))
        self.emit_fields(rows[1:], indent="  ")
        self.emit("  another operator must run")
        # Whole, on a line of its own: it is copied.
        self.emit(f"    {call}")
        self.emit("  and to take your vote back")
        self.emit(f"    attestation approval withdraw {pending.approval_id}")

    def _emit_csv(self, heading: list[str], rows: Iterable[Sequence[Cell]]) -> None:
        self._write(csv_line(heading))
        for row in rows:
            self._write(csv_line(exact(value) for value in row))

    def confirm(self, question: str, *, yes: bool, phrase: str | None = None) -> str | None:
        """Go on only if the operator agrees; *phrase* must then be typed out. Return what was typed, if anything.

        Raises:
            Refused: Nobody can be asked, because stdin is not a terminal.
            click.exceptions.Exit: The operator said no.
        """
        if yes:
            return None
        if not is_terminal():
            raise Refused("this needs a confirmation, and stdin is not a terminal")
        typed: str | None = None
        if phrase is None:
            agreed = click.confirm(question, err=True)
        else:
            prompt = f"{question}\nType {phrase} to go on"
            typed = click.prompt(prompt, default="", show_default=False, err=True)
            agreed = typed == phrase
        if not agreed:
            self.note("Nothing was changed.")
            raise click.exceptions.Exit(1)
        return typed


def _is_terminal(stream: TextIO | None) -> bool:
    # None where the shell closed it.
    return stream is not None and stream.isatty()


def _coloured(stream: TextIO | None) -> bool:
    return _is_terminal(stream) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def is_terminal() -> bool:
    """True where somebody can be asked."""
    return sys.stdin.isatty()
