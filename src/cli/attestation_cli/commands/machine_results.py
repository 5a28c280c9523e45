"""`attestation machine results` and `event-log`: how a machine was judged, and by what it measured."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from itertools import islice
from typing import Literal

import click

from attestation.client.text import clean
from attestation.errors import RequestInvalid, ResultUnknown
from attestation_cli.machine_acts import ID
from attestation_cli.options import printing
from attestation_cli.render import Column, cell, moment_cell
from attestation_cli.session import Session, name_of


@click.command()
@ID
@click.argument("number", metavar="[N]", type=click.IntRange(min=1), required=False)
@click.option("--checks", is_flag=True, help="Show every check of the newest result.")
@click.option(
    "--ear",
    type=click.Choice(["draft-04", "veraison-2023"]),
    help="Print result N signed by the service, for others (EAR, a JWT); `attestation result verify` reads it.",
)
@click.option(
    "--limit", type=click.IntRange(min=0), default=20, help="Show at most so many; 0 shows all. [default: 20]"
)
@printing
def results(
    session: Session,
    machine: str,
    number: int | None,
    ear: Literal["draft-04", "veraison-2023"] | None,
    limit: int,
    *,
    checks: bool,
) -> None:
    """Show the attestation results of a machine, newest first, or result N in full.

    The service keeps the changes: a result that repeats the one before is not stored again. Result N is shown
    with everything it was judged from, and with what explains the PCRs that are not what they were.

    \b
    Examples:
      attestation machine results cp-1
      attestation machine results cp-1 --checks
      attestation machine results cp-1 17
      attestation machine results cp-1 17 --ear draft-04 \\
          | attestation result verify - --server
    """
    if ear is not None:
        if number is None:
            raise RequestInvalid("which result? --ear needs its number N")
        with session.client() as client:
            machine_id = session.find_id(client, machine)
            session.emit(clean(client.result_token(machine_id, number, profile=ear)))
        return
    if number is not None:
        _one_result(session, machine, number)
        return
    with session.client() as client:
        detail = session.find(client, machine)
        found = islice(client.results(detail.machine_id), 1 if checks else limit or None)
        if session.json:
            session.emit_json(found)
            return
        listed = list(found)
    if checks and session.output == "csv":
        session.emit_rows(
            (c for r in listed for c in r.checks),
            {
                Column("CHECK"): lambda c: c.check,
                Column("OUTCOME"): lambda c: c.outcome,
                Column("EXPECTED"): lambda c: c.expected,
                Column("FOUND"): lambda c: c.found,
                Column("NOTE"): lambda c: c.note,
            },
            "",
        )
        return
    from attestation.client.words import NEVER_JUDGED, appraised
    from attestation_cli.result_screen import print_checks

    if checks and listed:
        session.emit(f"{name_of(detail)}, assurance {detail.assurance}: {listed[0].verdict}")
        print_checks(session, tuple(listed[0].checks))
        return
    now = datetime.now(UTC)
    session.emit_rows(
        listed,
        {
            Column("N"): lambda r: r.result_id,
            Column("WHEN"): lambda r: moment_cell(r.at, now),
            Column("VERDICT"): lambda r: r.verdict,
            Column("POLICY", shrink_to=12, drop=1): lambda r: r.policy,
            Column("BOOT STATE", drop=2): lambda r: appraised(r),
            Column("FAILED", shrink_to=10): lambda r: (
                ", ".join(c.check for c in r.checks if c.outcome in ("failed", "undecided")) or None
            ),
        },
        f"No results: {NEVER_JUDGED}.",
    )


def _one_result(session: Session, machine: str, number: int) -> None:
    from attestation_cli.result_screen import print_changes, print_checks, print_values, summary

    with session.client() as client:
        detail = session.find(client, machine)
        report = client.result(detail.machine_id, number)
    if session.json:
        session.emit_json(report)
        return
    rows = summary(report, datetime.now(UTC))
    if session.output == "csv":
        failed = ", ".join(c.check for c in report.checks if c.outcome in ("failed", "undecided"))
        named = [(name, value) for name, value in rows if name]
        changed = cell(" ".join(c.text for c in report.changes))
        session.emit_fields([*named, ("failed checks", cell(failed)), ("what changed", changed)])
        return
    session.emit_fields([("machine", cell(name_of(detail), detail.machine_id)), *rows])
    if report.changes:
        than = f"since result {report.compared_with}" if report.compared_with else "other than accepted"
        session.emit(f"\nwhat changed, {than}:")
        print_changes(session, report.changes, entries=True)
    session.emit("\nchecks:")
    print_checks(session, tuple(report.checks))
    if report.pcr_values:
        print_values(session, report)


@click.command("event-log")
@ID
@click.argument("number", metavar="[N]", type=click.IntRange(min=1), required=False)
@click.option("--pcr", type=click.IntRange(0, 23), multiple=True, help="Only of this PCR; may be repeated.")
@click.option(
    "--raw",
    metavar="FILE",
    type=click.Path(dir_okay=False, allow_dash=True, writable=True),
    help="Write the log as the machine sent it, for other tools; - is stdout.",
)
@printing
def event_log(
    session: Session, machine: str, number: int | None, pcr: tuple[int, ...], raw: str | None
) -> None:
    """Show the boot event log behind the newest result, or behind result N.

    Shown are the events of the PCRs that were quoted, as far as the log leads to their values; everything else
    in a log is hearsay, and only in the file that --raw writes. `checked` says that the digest covers what the text
    tells, so that it may be believed.

    \b
    Examples:
      attestation machine event-log cp-1
      attestation machine event-log cp-1 17 --pcr 7 -o wide
      attestation machine event-log cp-1 --raw cp-1.bin && tpm2_eventlog cp-1.bin
    """
    from attestation.client.words import NEVER_JUDGED, no_event_log

    with session.client() as client:
        detail = session.find(client, machine)
        if number is None:
            newest = next(client.results(detail.machine_id, page_size=1), None)
            if newest is None:
                raise ResultUnknown(NEVER_JUDGED)
            number = newest.result_id
        report = client.result(detail.machine_id, number)
        if raw is not None:
            if not report.event_log_kept:
                raise ResultUnknown(no_event_log(report))
            _write_raw(session, raw, client.event_log(detail.machine_id, number))
            return
    events = [] if report.boot is None else [e for e in report.boot.events if not pcr or e.pcr in pcr]
    if session.json:
        session.emit_json(iter(events))
        return
    from attestation_cli.result_screen import emit_events

    nothing = (
        "None of these events."
        if report.boot is not None
        else no_event_log(report)
        if not report.event_log_kept
        else f"The log of result {number} leads to none of the quoted values; --raw writes it."
    )
    emit_events(session, events, nothing)
    if report.boot is not None and report.boot.events_left_out:
        session.note(f"{report.boot.events_left_out} more events: --raw writes all of them")


def _onto_terminal() -> bool:
    return sys.stdout.isatty()


def _write_raw(session: Session, target: str, log: bytes) -> None:
    """Write bytes that a stranger chose, never onto a terminal."""
    if target == "-":
        if _onto_terminal():
            raise RequestInvalid("a terminal is no place for an event log; name a file, or use a pipe")
        sys.stdout.buffer.write(log)
        return
    try:
        with click.open_file(target, "wb") as file:
            file.write(log)
    except OSError as e:
        raise RequestInvalid(f"{target}: {e.strerror}") from e
    session.emit_done(
        f"{len(log)} bytes written to {clean(target)}", {"file": target, "size_bytes": len(log)}
    )
