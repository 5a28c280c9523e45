"""`attestation machine …`: list, judge and explain machines."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING

import click

from attestation.errors import RequestInvalid
from attestation.machines import Role, Status
from attestation_cli.render import Cell, Column, ago, cell, clean, fields, moment, short_ids, wrap
from attestation_cli.session import Session, checked, name_of, output_option, pass_session

if TYPE_CHECKING:
    from attestation.api import CheckDetail, MachineDetail
    from attestation.client import Record

ID = click.argument("machine", metavar="ID")
YES = click.option("--yes", is_flag=True, help="Do not ask.")
REASON = click.option("-r", "--reason", help="Why; kept in the audit.")
REASON_NEEDED = click.option("-r", "--reason", required=True, help="Why; kept in the audit.")
LIMIT = click.option(
    "--limit", type=click.IntRange(min=0), default=0, help="Show at most so many; 0 shows all. [default: 0]"
)

_COLUMNS = [
    Column("ID"),
    Column("HOSTNAME", shrink_to=12),
    Column("STATUS"),
    Column("TRUST"),
    Column("ASSURANCE"),
    Column("ROLE", drop=1),
    Column("SEEN", drop=2),
    Column("ADDRESS", shrink_to=12, drop=5),
    Column("CLUSTER", shrink_to=8, drop=3),
    Column("HARDWARE", shrink_to=12, drop=4),
]


@click.group("machine")
def group() -> None:
    """List, judge and explain machines.

    ID is a machine's id, the beginning of it (at least 4 characters) or its hostname.
    """


@group.command("list")
@click.option("--status", type=click.Choice([s.value for s in Status]), help="Only in this status.")
@click.option("--role", type=click.Choice([r.value for r in Role]), help="Only in this role.")
@click.option("--cluster-id", help="Only of this cluster.")
@click.option("-q", "--search", help="Only where id, hostname or hardware contain this.")
@LIMIT
@output_option
@pass_session
def list_(
    session: Session,
    status: str | None,
    role: str | None,
    cluster_id: str | None,
    search: str | None,
    limit: int,
) -> None:
    """List machines, newest first."""
    with session.client() as client:
        machines = islice(
            client.machine_records(
                status=Status(status) if status else None,
                role=Role(role) if role else None,
                cluster_id=cluster_id,
                q=search,
            ),
            limit or None,
        )
        if session.json:
            session.emit_json(machines)
            return
        found = list(machines)
    now = datetime.now(UTC)
    ids = short_ids(m.text("machine_id") for m in found)
    session.emit_table(_COLUMNS, [_row(m, ids[m.text("machine_id")], now) for m in found], "No machines.")


def _row(machine: Record, short: str, now: datetime) -> list[Cell]:
    hardware = [t for t in (machine.text("hw_product"), machine.text("hw_serial")) if t and t != "unknown"]
    role, wish = machine.optional_text("role"), machine.optional_text("desired_role")
    last = machine.optional_record("last_result")
    cluster = machine.text("cluster_id")
    return [
        cell(short),
        cell(machine.optional_text("hostname")),
        cell(machine.text("status")),
        cell(machine.text("trust")),
        cell(machine.text("assurance")),
        cell(role or (f"({wish}?)" if wish else None)),
        cell(ago(last.instant("at"), now) if last else None),
        cell(machine.optional_text("assigned_ip")),
        cell(cluster if cluster != "default" else None),
        cell(" ".join(hardware) or None),
    ]


@group.command()
@ID
@output_option
@pass_session
def get(session: Session, machine: str) -> None:
    """Show everything known about one machine."""
    with session.client() as client:
        _show(session, session.find(client, machine))


@group.command("explain")
@ID
@output_option
@pass_session
@click.pass_context
def explain_(ctx: click.Context, session: Session, machine: str) -> None:
    """Tell in plain words whether a machine is trusted, why, and what to do next.

    Ends with 0 where it is attested and trusted now, else with 1.
    """
    with session.client() as client:
        detail = session.find(client, machine)
        newest = next(client.results(detail.machine_id, page_size=1), None)
    from attestation_cli.explain import explain

    told = explain(detail, newest, datetime.now(UTC))
    if session.json:
        session.emit_json(
            {
                "machine_id": detail.machine_id,
                "status": detail.status,
                "trust": detail.trust,
                "assurance": detail.assurance,
                "trusted": told.trusted,
                "headline": told.headline,
                "why": told.why,
                "next": told.next,
                "checks": [c.model_dump(mode="json") for c in told.checks],
            }
        )
    else:
        session.emit(click.style(told.headline, fg="green" if told.trusted else "yellow", bold=True))
        _sentences(session, "why", told.why)
        if told.checks:
            session.emit("")
            _checks(session, told.checks)
        _sentences(session, "what to do", told.next)
    ctx.exit(0 if told.trusted else 1)


def _sentences(session: Session, title: str, sentences: tuple[str, ...]) -> None:
    if not sentences:
        return
    session.emit(f"\n{title}:")
    width = min(session.width or 100, 100)
    for sentence in sentences:
        session.emit(wrap(sentence, width))


def _checks(session: Session, checks: tuple[CheckDetail, ...]) -> None:
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
                session.emit(f"            {label:<8}  {clean(value)}")


@group.command()
@ID
@click.option("--checks", is_flag=True, help="Show every check of the newest result.")
@click.option(
    "--limit", type=click.IntRange(min=0), default=20, help="Show at most so many; 0 shows all. [default: 20]"
)
@output_option
@pass_session
def results(session: Session, machine: str, limit: int, *, checks: bool) -> None:
    """Show the attestation results of a machine, newest first.

    The service keeps the changes: a result that repeats the one before is not stored again.
    """
    with session.client() as client:
        detail = session.find(client, machine)
        found = islice(client.results(detail.machine_id), 1 if checks else limit or None)
        if session.json:
            session.emit_json(found)
            return
        listed = list(found)
    if checks and listed:
        session.emit(f"{name_of(detail)}, assurance {detail.assurance}: {listed[0].verdict}")
        _checks(session, tuple(listed[0].checks))
        return
    now = datetime.now(UTC)
    session.emit_table(
        [
            Column("WHEN"),
            Column("VERDICT"),
            Column("POLICY", shrink_to=12, drop=1),
            Column("BOOT STATE", drop=2),
            Column("FAILED", shrink_to=10),
        ],
        [
            [
                cell(moment(r.at, now)),
                cell(r.verdict),
                cell(r.policy),
                cell("appraised" if r.boot_state_appraised else "not appraised"),
                cell(", ".join(c.check for c in r.checks if c.outcome in ("failed", "undecided")) or None),
            ]
            for r in listed
        ],
        "No results: it has never sent a quote that could be judged.",
    )


# Acts


@group.command()
@ID
@click.option("--role", type=click.Choice([r.value for r in Role]), required=True, help="What it becomes.")
@click.option("--hostname", help="The name it gets.")
@click.option("--ip", "assigned_ip", metavar="CIDR", help="The address it gets, e.g. 10.0.0.11/24.")
@click.option(
    "--fingerprint",
    metavar="HEX",
    help="Refuse unless its EK fingerprint begins with this (16 to 96 hex), as read from the machine itself.",
)
@output_option
@pass_session
def approve(
    session: Session,
    machine: str,
    role: str,
    hostname: str | None,
    assigned_ip: str | None,
    fingerprint: str | None,
) -> None:
    """Admit a machine that waits for approval."""
    from attestation.api import ApproveRequest

    with session.client() as client:
        detail = session.find(client, machine)
        if fingerprint is not None:
            _same_fingerprint(detail, fingerprint)
        request = checked(
            lambda: ApproveRequest(
                role=Role(role),
                hostname=hostname,
                assigned_ip=assigned_ip,
                # What we looked at is what we approve: a machine that changed meanwhile is refused.
                expected_version=detail.version,
            )
        )
        approved = client.approve(detail.machine_id, request)
    _done(session, f"approved as {role}", approved)


def _same_fingerprint(machine: MachineDetail, fingerprint: str) -> None:
    wanted = fingerprint.lower().replace(":", "")
    if not re.fullmatch(r"[0-9a-f]{16,96}", wanted):
        raise RequestInvalid("--fingerprint needs 16 to 96 hex digits")
    if not machine.ek_fingerprint.startswith(wanted):
        raise RequestInvalid(
            f"this is another TPM: its EK fingerprint begins with {machine.ek_fingerprint[: len(wanted)]}, "
            f"not with {wanted}"
        )


@group.command()
@ID
@REASON_NEEDED
@YES
@output_option
@pass_session
def reject(session: Session, machine: str, reason: str, *, yes: bool) -> None:
    """Refuse a machine that waits for approval."""
    with session.client() as client:
        detail = session.find(client, machine)
        session.confirm(f"Reject {_described(detail)}?", yes=yes)
        _done(session, "rejected", client.reject(detail.machine_id, _reason(reason)))


@group.command()
@ID
@REASON
@output_option
@pass_session
def lock(session: Session, machine: str, reason: str | None) -> None:
    """Suspend an attested machine: it gets nothing until it is unlocked."""
    with session.client() as client:
        detail = session.find(client, machine)
        _done(session, "locked", client.lock(detail.machine_id, _reason(reason) if reason else None))


@group.command()
@ID
@output_option
@pass_session
def unlock(session: Session, machine: str) -> None:
    """Let a locked machine attest again."""
    with session.client() as client:
        _done(session, "unlocked", client.unlock(session.find(client, machine).machine_id))


@group.command()
@ID
@click.option("--wipe", is_flag=True, help="Also order it to erase its disks.")
@REASON
@YES
@output_option
@pass_session
def revoke(session: Session, machine: str, reason: str | None, *, wipe: bool, yes: bool) -> None:
    """End a machine's admission for good."""
    with session.client() as client:
        detail = session.find(client, machine)
        if wipe:
            phrase = detail.hostname or short_ids([detail.machine_id])[detail.machine_id]
            session.confirm(
                f"Revoke {_described(detail)} for good and ERASE its disks?", yes=yes, phrase=clean(phrase)
            )
        else:
            session.confirm(f"Revoke {_described(detail)} for good?", yes=yes)
        revoked = client.revoke(detail.machine_id, wipe=wipe, reason=_reason(reason) if reason else None)
    _done(session, "revoked, wipe ordered" if wipe else "revoked", revoked)


@group.command("ak-reset")
@ID
@REASON_NEEDED
@YES
@output_option
@pass_session
def ak_reset(session: Session, machine: str, reason: str, *, yes: bool) -> None:
    """Forget a machine's attestation key, so that it can activate another one."""
    with session.client() as client:
        detail = session.find(client, machine)
        session.confirm(f"Forget the attestation key of {_described(detail)}?", yes=yes)
        _done(session, "attestation key forgotten", client.ak_reset(detail.machine_id, _reason(reason)))


@group.command()
@ID
@output_option
@pass_session
def redeliver(session: Session, machine: str) -> None:
    """Offer a machine its configuration again, at its next good attestation."""
    with session.client() as client:
        _done(session, "delivery ordered", client.redeliver(session.find(client, machine).machine_id))


@group.command()
@ID
@YES
@output_option
@pass_session
def delete(session: Session, machine: str, *, yes: bool) -> None:
    """Delete the record of a rejected or wiped machine; the audit stays."""
    with session.client() as client:
        detail = session.find(client, machine)
        session.confirm(f"Delete the record of {_described(detail)}?", yes=yes)
        client.delete_machine(detail.machine_id)
    if session.json:
        session.emit_json({"machine_id": detail.machine_id, "deleted": True})
    else:
        session.emit(f"{name_of(detail)}: deleted")


def _reason(text: str) -> str:
    """Return *text* as the API accepts it.

    Raises:
        RequestInvalid: Empty, longer than 1024 characters, or with control characters.
    """
    from attestation.api import ReasonRequest

    return checked(lambda: ReasonRequest(reason=text)).reason


def _described(machine: MachineDetail) -> str:
    role = f", {machine.role}" if machine.role else ""
    return f"{name_of(machine)} [{machine.status}, {machine.trust}, {machine.assurance}{role}]"


def _done(session: Session, what: str, machine: MachineDetail) -> None:
    if session.json:
        session.emit_json(machine)
        return
    session.emit(f"{name_of(machine)}: {what}")
    rows = [
        ("status", cell(machine.status)),
        ("role", cell(machine.role)),
        ("assurance", _assurance(machine)),
    ]
    for line in fields(rows, colour=session.colour):
        session.emit(f"  {line}")


def _assurance(machine: MachineDetail) -> Cell:
    from attestation_cli.explain import ASSURANCE

    return Cell(f"{machine.assurance}: {ASSURANCE[machine.assurance]}", cell(machine.assurance).colour)


def _show(session: Session, m: MachineDetail) -> None:
    if session.json:
        session.emit_json(m)
        return
    now = datetime.now(UTC)
    last, tpm = m.last_result, m.ek_certificate
    rows: list[tuple[str, Cell]] = [
        ("id", cell(m.machine_id)),
        ("hostname", cell(m.hostname)),
        ("status", cell(m.status)),
        ("role", cell(m.role)),
        ("wished role", cell(m.desired_role)),
        ("cluster", cell(m.cluster_id)),
        ("address", cell(m.assigned_ip)),
        ("trust", cell(m.trust)),
        ("trust ends", cell(moment(m.trust_expires_at, now))),
        ("assurance", _assurance(m)),
        ("last result", cell(f"{last.verdict}, {moment(last.at, now)}" if last else None)),
        ("policy", cell(last.policy if last else None)),
        ("failed checks", cell(last.failed if last else None)),
        ("EK fingerprint", cell(m.ek_fingerprint)),
        ("EK template", cell(m.ek_template)),
        (
            "EK certificate",
            cell(tpm.subject or "(empty subject)" if tpm else "none presented"),
        ),
        (
            "TPM",
            cell(f"{tpm.manufacturer} {tpm.model} {tpm.firmware}" if tpm else None),
        ),
        (
            "attestation key",
            cell(f"activated {moment(m.ak_activated_at, now)}" if m.ak_activated_at else "none"),
        ),
        ("hardware", cell(f"{m.hw_product}, serial {m.hw_serial}")),
        ("UUID, MAC", cell(f"{m.hw_uuid}, {m.hw_mac}")),
        ("registered", cell(f"{moment(m.registered_at, now)} from {m.registered_from or 'unknown'}")),
        ("attested", cell(moment(m.attested_at, now))),
    ]
    optional = [
        ("locked", m.locked_at),
        ("revoked", m.revoked_at),
        ("rejected", m.rejected_at),
        ("wiped", m.wiped_at),
    ]
    rows += [(name, cell(moment(at, now))) for name, at in optional if at is not None]
    if m.wipe_pending:
        rows.append(("wipe", Cell("ordered, not acknowledged", "red")))
    if m.redeliver_pending:
        rows.append(("delivery", Cell("ordered again")))
    for line in fields(rows, colour=session.colour):
        session.emit(line)
