"""One attestation result on a terminal: why it is as it is, what it was judged from, what was measured."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

import click

from attestation.client.text import clean
from attestation.client.words import appraised
from attestation_cli.render import Cell, Column, cell, moment_cell, shorten, wrap
from attestation_cli.session import Session

if TYPE_CHECKING:
    from attestation.api import BootDetail, CheckDetail, MeasuredEvent, PCRChange, ResultReport

MOST_ENTRIES = 8
MOST_TEXT = 100


def summary(report: ResultReport, now: datetime) -> list[tuple[str, Cell]]:
    """Return what a result was judged from, in names and values."""
    rows = [
        ("result", cell(report.result_id)),
        ("verdict", cell(report.verdict)),
        ("when", moment_cell(report.at, now)),
        ("policy", cell(report.policy)),
        ("policy sha256", cell(report.policy_sha256)),
        ("assurance", cell(report.assurance)),
        ("boot state", cell(appraised(report))),
        ("compared", cell(", ".join(report.boot_state_appraised) or None)),
        ("event log", _log(report.event_log_sha256, kept=report.event_log_kept)),
    ]
    if report.ima_log_sha256 is not None:
        rows.append(("IMA list", _log(report.ima_log_sha256, kept=report.ima_log_kept)))
    if report.ek_key_attested is not None:
        rows.append(("EK vouches", cell("for key and firmware" if report.ek_key_attested else "no")))
    if report.boot is not None:
        rows += _boot(report.boot)
    return rows


def _log(sha256: str | None, *, kept: bool) -> Cell:
    if sha256 is None:
        return cell(None)
    return cell(f"{sha256[:16]}…" + ("" if kept else ", not kept any more"), sha256)


def _boot(boot: BootDetail) -> list[tuple[str, Cell]]:
    rows = [("log leads to", cell("PCR " + ", ".join(map(str, boot.pcrs))))]
    state = boot.secure_boot
    if state is not None:
        words = {True: "on", False: "off", None: "not known"}[state.enabled]
        colour = {True: "green", False: "yellow", None: "yellow"}[state.enabled]
        rows.append(("secure boot", Cell(words, colour, words)))
        if state.problems:
            rows.append(("", Cell(clean("; ".join(state.problems)), "red")))
        rows.append(("db, dbx", cell(f"{state.db_entries} and {state.dbx_entries} entries")))
        signers = ", ".join(dict.fromkeys(a.subject or a.name for a in state.authorities))
        rows.append(("accepted by", cell(signers or None)))
    for kind, title in (("boot-loader", "boot loader"), ("kernel", "kernel"), ("initrd", "initrd")):
        found = [item for item in boot.items if item.kind == kind]
        for number, item in enumerate(found[:4]):
            rows.append(
                ("" if number else title, cell(f"{item.digest[:16]}… {item.text or ''}".strip(), item.digest))
            )
        if len(found) > 4:
            rows.append(("", cell(f"and {len(found) - 4} more")))
    lines = [item.text or "(the log does not show it)" for item in boot.items if item.kind == "command-line"]
    rows += [("command line" if not n else "", cell(text)) for n, text in enumerate(lines[:4])]
    rows += [("log notes" if not n else "", cell(text)) for n, text in enumerate(boot.findings[:6])]
    return rows


def print_changes(session: Session, changes: list[PCRChange], *, entries: bool) -> None:
    """Print each change as a sentence; with *entries*, the events that explain it below."""
    width = min(session.width or 100, 100)
    for change in changes:
        session.emit(wrap(clean(change.text), width))
        if not entries:
            continue
        for entry in change.entries[:MOST_ENTRIES]:
            session.emit(f"      {shorten(clean(entry), width - 6)}")
        if len(change.entries) > MOST_ENTRIES:
            session.emit(f"      and {len(change.entries) - MOST_ENTRIES} more")


def print_checks(session: Session, checks: tuple[CheckDetail, ...]) -> None:
    """Print each check with expected and found, one below the other: digests are too long for columns."""
    for check in checks:
        note = f": {clean(check.note)}" if check.note else ""
        outcome = cell(check.outcome)
        mark = (
            click.style(f"{outcome.text:<9}", fg=outcome.colour) if outcome.colour else f"{outcome.text:<9}"
        )
        session.emit(f"  {mark} {clean(check.check)}{note}")
        for label, value in (("expected", check.expected), ("found", check.found)):
            if value is not None:
                session.emit(f"    {label:<8}  {clean(value)}")


def print_values(session: Session, report: ResultReport) -> None:
    """Print the quoted PCR values, one a line, those that changed marked."""
    changed = {change.pcr for change in report.changes}
    session.emit(f"\nPCR values ({clean(report.pcr_bank or '?')}):")
    for index, value in sorted(report.pcr_values.items(), key=lambda pair: int(pair[0])):
        mark = "*" if int(index) in changed else " "
        session.emit(f"  {index:>2}{mark} {clean(value)}")


def emit_events(session: Session, events: list[MeasuredEvent], nothing: str) -> None:
    """Print what was measured, one event a row."""
    session.emit_rows(
        events,
        {
            Column("N"): lambda e: e.index,
            Column("PCR"): lambda e: e.pcr,
            Column("TYPE", shrink_to=14): lambda e: cell(
                e.type.removeprefix("EV_").removeprefix("EFI_"), e.type
            ),
            Column("CHECKED", drop=1): lambda e: "yes" if e.data_checked else "no",
            Column("TEXT", shrink_to=20): lambda e: Cell(
                shorten(clean(e.text), MOST_TEXT), None, clean(e.text)
            ),
            Column("DIGEST", wide=True): lambda e: e.digest,
        },
        nothing,
    )
