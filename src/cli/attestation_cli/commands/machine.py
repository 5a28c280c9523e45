"""`attestation machine …`: list, judge and explain machines."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from attestation.client.text import ago, clean, short_ids
from attestation.errors import ApprovalUnknown, CertificateUnknown, RequestInvalid, ResultUnknown, Unavailable
from attestation.machines import DEFAULT_CLUSTER, Role, Status
from attestation_cli.complete import complete_machine
from attestation_cli.render import Cell, Column, cell, instant, moment, moment_cell, time_cell, wrap
from attestation_cli.session import Ambiguous, Session, checked, name_of, output_option, pass_session

if TYPE_CHECKING:
    from attestation.api import ApprovalDetail, CertificateDetail, CheckDetail, MachineDetail, PendingApproval
    from attestation.client import OperatorClient, Record

ID = click.argument("machine", metavar="ID", shell_complete=complete_machine)
YES = click.option("--yes", is_flag=True, help="Do not ask.")
REASON = click.option("-r", "--reason", help="Why; kept in the audit.")
REASON_NEEDED = click.option("-r", "--reason", required=True, help="Why; kept in the audit.")
LIMIT = click.option(
    "--limit", type=click.IntRange(min=0), default=0, help="Show at most so many; 0 shows all. [default: 0]"
)

LISTED = [
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
    Column("WISHED ROLE", wide=True),
    Column("REGISTERED", wide=True),
    Column("ATTESTED", wide=True),
    Column("TRUST ENDS", wide=True),
    Column("FAILED CHECKS", wide=True),
    Column("EK FINGERPRINT", wide=True),
]


@click.group("machine")
def group() -> None:
    """List, judge and explain machines.

    ID is a machine's id, the beginning of it (at least 4 characters) or its hostname. What may mean several
    machines does nothing and lists them.

    \b
    Examples:
      attestation machine list --status pending_approval
      attestation machine explain cp-1
      attestation machine approve 7f3a --role worker-app --hostname app-1
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
    """List machines, newest first.

    Trust is what the last result is worth now: verified, failed, stale (it did not attest again in time) or
    unknown. A role in brackets is only wished for. On a small terminal the least important columns go;
    `-o wide` shows all of them whole, `-o json` everything the service knows.

    \b
    Examples:
      attestation machine list
      attestation machine list --status pending_approval -o wide
      attestation machine list --role controlplane -q rack-4 -o csv > machines.csv
    """
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
    session.emit_table(LISTED, [listed_row(m, ids[m.text("machine_id")], now) for m in found], "No machines.")
    shared = [m for m in found if m.get("shares_names")]
    if shared:
        names = ", ".join(f"{ids[m.text('machine_id')]} ({clean(called(m))})" for m in shared)
        session.note(
            f"{len(shared)} of them have the host name or the address of another machine, from before these had to be "
            f"unique: {names}. Revoke or replace one of the two, or give one another name with `machine role`; until "
            "then neither gets a server certificate."
        )


def called(machine: Record) -> str:
    """Return what *machine* is called, for people."""
    return machine.optional_text("hostname") or machine.optional_text("assigned_ip") or "-"


def listed_row(machine: Record, short: str, now: datetime) -> list[Cell]:
    """Return the cells of *machine* under `LISTED`."""
    hardware = [t for t in (machine.text("hw_product"), machine.text("hw_serial")) if t and t != "unknown"]
    role, wish = machine.optional_text("role"), machine.optional_text("desired_role")
    last = machine.optional_record("last_result")
    cluster = machine.text("cluster_id")
    asked = (
        machine.optional_text("desired_cluster_id") if machine.text("status") == "pending_approval" else None
    )
    return [
        cell(short, machine.text("machine_id")),
        cell(machine.optional_text("hostname")),
        cell(machine.text("status")),
        cell(machine.text("trust")),
        cell(machine.text("assurance")),
        cell(role or (f"({wish}?)" if wish else None), role or ""),
        time_cell(last.instant("at") if last else None, now),
        cell(machine.optional_text("assigned_ip")),
        cell(
            f"({asked}?)"
            if asked not in (None, cluster)
            else cluster
            if cluster != DEFAULT_CLUSTER
            else None,
            cluster,
        ),
        cell(" ".join(hardware) or None),
        cell(wish),
        time_cell(machine.instant("registered_at"), now),
        time_cell(machine.optional_instant("attested_at"), now),
        time_cell(machine.optional_instant("trust_expires_at"), now),
        cell(last.optional_text("failed") if last else None),
        cell(machine.text("ek_fingerprint")),
    ]


@group.command()
@ID
@output_option
@pass_session
def get(session: Session, machine: str) -> None:
    """Show everything known about one machine; never a token, nonce or key.

    \b
    Examples:
      attestation machine get 7f3ad3ac
      attestation machine get cp-1 -o yaml
    """
    with session.client() as client:
        _show(session, session.find(client, machine))


@group.command("explain")
@ID
@output_option
@pass_session
@click.pass_context
def explain_(ctx: click.Context, session: Session, machine: str) -> None:
    """Tell in plain words whether a machine is trusted, why, and what to do next.

    Every check of its last result that did not pass is shown with what was expected and what was found, and
    every PCR that changed with what its event log says about that. Ends with 0 where it is attested and trusted
    now, else with 1.

    \b
    Examples:
      attestation machine explain cp-1
      attestation machine explain cp-1 > /dev/null && echo trusted
    """
    with session.client() as client:
        detail = session.find(client, machine)
        newest = next(client.results(detail.machine_id, page_size=1), None)
        # What changed is asked for where something is wrong, or was looked at for the first time since a reboot.
        odd = newest is not None and any(c.outcome not in ("passed", "flagged") for c in newest.checks)
        changes = client.result(detail.machine_id, newest.result_id).changes if newest and odd else []
        unseen: list[str] = []
        if newest is not None and newest.boot_state_appraised:
            # Assignments that contradict each other are no reason to say nothing else.
            with contextlib.suppress(Unavailable):
                unseen = client.effective_policy(detail.machine_id).looks_away
    from attestation.client.words import explain

    told = explain(detail, newest, datetime.now(UTC), changes, unseen)
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
                "changes": [c.model_dump(mode="json") for c in changes],
            }
        )
    elif session.output == "csv":
        session.emit_fields(
            [
                ("machine id", cell(detail.machine_id)),
                ("status", cell(detail.status)),
                ("trust", cell(detail.trust)),
                ("assurance", cell(detail.assurance)),
                ("trusted", cell("yes" if told.trusted else "no")),
                ("why", cell(" ".join(told.why))),
                ("failed checks", cell(", ".join(c.check for c in told.checks))),
                ("what changed", cell(" ".join(c.text for c in changes))),
                ("what to do", cell(" ".join(told.next))),
            ]
        )
    else:
        session.emit(click.style(told.headline, fg="green" if told.trusted else "yellow", bold=True))
        _sentences(session, "why", told.why)
        if told.checks:
            session.emit("")
            _checks(session, told.checks)
        if changes:
            from attestation_cli.result_screen import print_changes

            session.emit("\nwhat changed:")
            print_changes(session, changes, entries=False)
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
                session.emit(f"    {label:<8}  {clean(value)}")


@group.command()
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
@output_option
@pass_session
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
      attestation machine results cp-1 17 --ear draft-04 | attestation result verify - --server
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
        session.emit_table(
            [Column(t) for t in ("CHECK", "OUTCOME", "EXPECTED", "FOUND", "NOTE")],
            [
                [cell(c.check), cell(c.outcome), cell(c.expected), cell(c.found), cell(c.note)]
                for r in listed
                for c in r.checks
            ],
            "",
        )
        return
    if checks and listed:
        session.emit(f"{name_of(detail)}, assurance {detail.assurance}: {listed[0].verdict}")
        _checks(session, tuple(listed[0].checks))
        return
    from attestation_cli.result_screen import appraised

    now = datetime.now(UTC)
    session.emit_table(
        [
            Column("N"),
            Column("WHEN"),
            Column("VERDICT"),
            Column("POLICY", shrink_to=12, drop=1),
            Column("BOOT STATE", drop=2),
            Column("FAILED", shrink_to=10),
        ],
        [
            [
                cell(r.result_id),
                moment_cell(r.at, now),
                cell(r.verdict),
                cell(r.policy),
                cell(appraised(r)),
                cell(", ".join(c.check for c in r.checks if c.outcome in ("failed", "undecided")) or None),
            ]
            for r in listed
        ],
        "No results: it has never sent a quote that could be judged.",
    )


def _one_result(session: Session, machine: str, number: int) -> None:
    from attestation_cli.result_screen import print_changes, print_values, summary

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
    _checks(session, tuple(report.checks))
    if report.pcr_values:
        print_values(session, report)


@group.command("event-log")
@ID
@click.argument("number", metavar="[N]", type=click.IntRange(min=1), required=False)
@click.option("--pcr", type=click.IntRange(0, 23), multiple=True, help="Only of this PCR; may be repeated.")
@click.option(
    "--raw",
    metavar="FILE",
    type=click.Path(dir_okay=False, allow_dash=True, writable=True),
    help="Write the log as the machine sent it, for other tools; - is stdout.",
)
@output_option
@pass_session
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
    with session.client() as client:
        detail = session.find(client, machine)
        if number is None:
            newest = next(client.results(detail.machine_id, page_size=1), None)
            if newest is None:
                raise ResultUnknown("it has never sent a quote that could be judged")
            number = newest.result_id
        if raw is not None:
            _write_raw(session, raw, client.event_log(detail.machine_id, number))
            return
        report = client.result(detail.machine_id, number)
    events = [] if report.boot is None else [e for e in report.boot.events if not pcr or e.pcr in pcr]
    if session.json:
        session.emit_json(iter(events))
        return
    from attestation_cli.result_screen import EVENTS, event_row

    nothing = (
        "None of these events."
        if report.boot is not None
        else f"No event log of result {number} is kept."
        if not report.event_log_kept
        else f"The log of result {number} leads to none of the quoted values; --raw writes it."
    )
    session.emit_table(EVENTS, [event_row(e) for e in events], nothing)
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


# Acts


@group.command()
@ID
@click.option("--role", type=click.Choice([r.value for r in Role]), required=True, help="What it becomes.")
@click.option("--hostname", help="The name it gets.")
@click.option("--ip", "assigned_ip", metavar="CIDR", help="The address it gets, e.g. 10.0.0.11/24.")
@click.option(
    "--cluster-id",
    help="The cluster it gets, whatever it asks for.",
    default=DEFAULT_CLUSTER,
    show_default=True,
)
@click.option(
    "--fingerprint",
    metavar="HEX",
    help="Refuse unless its EK fingerprint begins with this (16 to 96 hex), as read from the machine itself.",
)
@click.option(
    "--accept-ek",
    is_flag=True,
    help="Admit this EK by name, whoever vouches for it; compare --fingerprint first.",
)
@REASON
@output_option
@pass_session
def approve(
    session: Session,
    machine: str,
    role: str,
    hostname: str | None,
    assigned_ip: str | None,
    cluster_id: str,
    fingerprint: str | None,
    reason: str | None,
    *,
    accept_ek: bool,
) -> None:
    """Admit a machine that waits for approval.

    A role demands how well a TPM is vouched for: a controlplane a vendor's chain. Where nobody does, --accept-ek
    says that you know this very EK; it goes on the allow-list. attestation trust show says what was found.

    A machine that changed since it was looked up is refused. Where dual control asks for several people, this
    is your vote: the answer says how many are missing, until when, and what the others must call.

    \b
    Examples:
      attestation machine approve 7f3a --role worker-app
      attestation machine approve 7f3a --role controlplane --hostname cp-1 --ip 10.0.0.11/24
      attestation machine approve 7f3a --role worker-app --fingerprint 3010ed0c5ba1d2f4
    """
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
                cluster_id=cluster_id,
                accept_ek=accept_ek,
                reason=_reason(reason) if reason else None,
                # What we looked at is what we approve: a machine that changed meanwhile is refused.
                expected_version=detail.version,
            )
        )
        answer = client.approve(detail.machine_id, request)
    granted = [*_granted(role, hostname, assigned_ip), *(["--accept-ek"] if accept_ek else [])]
    granted += ["--cluster-id", cluster_id] if cluster_id != DEFAULT_CLUSTER else []
    _concluded(
        session, f"approved as {role}", detail, answer, ["machine", "approve", detail.machine_id, *granted]
    )


def _granted(role: str, hostname: str | None, assigned_ip: str | None) -> list[str]:
    named = ["--hostname", hostname] if hostname else []
    return ["--role", role, *named, *(["--ip", assigned_ip] if assigned_ip else [])]


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
    """Refuse a machine that waits for approval.

    It is told so, and can only begin anew after its record was deleted.

    \b
    Examples:
      attestation machine reject 7f3a -r "nobody ordered it"
    """
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
    """Suspend an attested machine: it gets nothing until it is unlocked.

    \b
    Examples:
      attestation machine lock worker-2 -r "lid was open"
    """
    with session.client() as client:
        detail = session.find(client, machine)
        _done(session, "locked", client.lock(detail.machine_id, _reason(reason) if reason else None))


@group.command()
@ID
@REASON
@output_option
@pass_session
def unlock(session: Session, machine: str, reason: str | None) -> None:
    """Let a locked machine attest again; its next attestation decides what it is worth.

    \b
    Examples:
      attestation machine unlock worker-2 -r "lid closed, seal checked"
    """
    with session.client() as client:
        detail = session.find(client, machine)
        answer = client.unlock(detail.machine_id, _reason(reason) if reason else None)
    _concluded(session, "unlocked", detail, answer, ["machine", "unlock", detail.machine_id])


@group.command()
@ID
@click.option("--role", type=click.Choice([r.value for r in Role]), required=True, help="What it becomes.")
@click.option("--hostname", help="The name it gets; without this it keeps its own.")
@click.option(
    "--ip", "assigned_ip", metavar="CIDR", help="The address it gets; without this it keeps its own."
)
@click.option("--cluster-id", help="The cluster it gets; without this it stays where it is.")
@REASON_NEEDED
@YES
@output_option
@pass_session
def role(
    session: Session,
    machine: str,
    role: str,
    hostname: str | None,
    assigned_ip: str | None,
    cluster_id: str | None,
    reason: str,
    *,
    yes: bool,
) -> None:
    """Give an admitted machine another role, or move it to another cluster.

    Its config tokens lose their right; it gets the configuration of the new role at its next attestation.

    \b
    Examples:
      attestation machine role worker-2 --role worker-infra -r "moves to storage"
    """
    from attestation.api import RoleChangeRequest

    with session.client() as client:
        detail = session.find(client, machine)
        request = checked(
            lambda: RoleChangeRequest(
                role=Role(role),
                hostname=hostname,
                assigned_ip=assigned_ip,
                cluster_id=cluster_id,
                reason=reason,
                expected_version=detail.version,
            )
        )
        session.confirm(f"Make {_described(detail)} {role}?", yes=yes)
        answer = client.change_role(detail.machine_id, request)
    granted = _granted(role, hostname, assigned_ip)
    granted += ["--cluster-id", cluster_id] if cluster_id is not None else []
    again = ["machine", "role", detail.machine_id, *granted, "--reason", reason]
    _concluded(session, f"now {role}", detail, answer, again)


@group.command()
@ID
@click.option("--wipe", is_flag=True, help="Also order it to erase its disks.")
@REASON
@YES
@output_option
@pass_session
def revoke(session: Session, machine: str, reason: str | None, *, wipe: bool, yes: bool) -> None:
    """End a machine's admission for good.

    With --wipe it is also ordered to erase itself, and you must type its name.

    \b
    Examples:
      attestation machine revoke worker-2 -r "sold"
      attestation machine revoke worker-2 --wipe -r "stolen"
    """
    _revoke(session, machine, reason, wipe=wipe, yes=yes)


@group.command()
@ID
@REASON
@YES
@output_option
@pass_session
def wipe(session: Session, machine: str, reason: str | None, *, yes: bool) -> None:
    """Revoke a machine and order it to erase its disks: the same as `revoke --wipe`.

    \b
    Examples:
      attestation machine wipe worker-2 -r "stolen"
    """
    _revoke(session, machine, reason, wipe=True, yes=yes)


def _revoke(session: Session, machine: str, reason: str | None, *, wipe: bool, yes: bool) -> None:
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


@group.command("replace")
@ID
@click.argument("new", shell_complete=complete_machine)
@click.option("--accept-ek", is_flag=True, help="Admit the EK of NEW by name, whoever vouches for it.")
@REASON_NEEDED
@YES
@output_option
@pass_session
def replace(session: Session, machine: str, new: str, reason: str, *, accept_ek: bool, yes: bool) -> None:
    """Let NEW, a machine that waits for approval, take the place of another one.

    ID is revoked for good; NEW gets its role, its cluster, its host name and its address, in one act. Where the role is
    under dual control this is your vote.

    \b
    Examples:
      attestation machine replace cp-1 7f3a -r "mainboard died"
    """
    from attestation.api import ReplaceRequest

    with session.client() as client:
        old, detail = session.find(client, machine), session.find(client, new)
        request = checked(
            lambda: ReplaceRequest(
                new=detail.machine_id,
                accept_ek=accept_ek,
                reason=reason,
                # What we looked at is what takes the place: a machine that changed meanwhile is refused.
                expected_version=detail.version,
            )
        )
        session.confirm(
            f"Revoke {_described(old)} for good, and put {_described(detail)} in its place?", yes=yes
        )
        answer = client.replace(old.machine_id, request)
    again = ["machine", "replace", old.machine_id, detail.machine_id, "--reason", reason]
    again += ["--accept-ek"] if accept_ek else []
    _concluded(session, f"in place of {name_of(old)}", detail, answer, again)


@group.command("ak-reset")
@ID
@REASON_NEEDED
@YES
@output_option
@pass_session
def ak_reset(session: Session, machine: str, reason: str, *, yes: bool) -> None:
    """Forget a machine's attestation key, so that it can activate another one.

    \b
    Examples:
      attestation machine ak-reset worker-2 -r "TPM was cleared by the firmware update"
    """
    with session.client() as client:
        detail = session.find(client, machine)
        session.confirm(f"Forget the attestation key of {_described(detail)}?", yes=yes)
        answer = client.ak_reset(detail.machine_id, _reason(reason))
    again = ["machine", "ak-reset", detail.machine_id, "--reason", reason]
    _concluded(session, "attestation key forgotten", detail, answer, again)


@group.command()
@ID
@output_option
@pass_session
def redeliver(session: Session, machine: str) -> None:
    """Offer a machine its configuration again, at its next good attestation.

    \b
    Examples:
      attestation machine redeliver worker-2
    """
    with session.client() as client:
        detail = session.find(client, machine)
        answer = client.redeliver(detail.machine_id)
    _concluded(session, "delivery ordered", detail, answer, ["machine", "redeliver", detail.machine_id])


@group.command()
@ID
@YES
@output_option
@pass_session
def delete(session: Session, machine: str, *, yes: bool) -> None:
    """Delete the record of a rejected or wiped machine; the audit stays.

    \b
    Examples:
      attestation machine delete 7f3a
    """
    with session.client() as client:
        detail = session.find(client, machine)
        session.confirm(f"Delete the record of {_described(detail)}?", yes=yes)
        client.delete_machine(detail.machine_id)
    session.emit_done(f"{name_of(detail)}: deleted", {"machine_id": detail.machine_id, "deleted": True})


# Votes


@group.command()
@ID
@output_option
@pass_session
def approvals(session: Session, machine: str) -> None:
    """Show the votes about a machine, newest first: live, expired, withdrawn and used ones.

    \b
    Examples:
      attestation machine approvals cp-1
    """
    with session.client() as client:
        votes = client.machine_approvals(session.find_id(client, machine))
        if session.json:
            session.emit_json(votes)
            return
        found = list(votes)
    now = datetime.now(UTC)
    session.emit_table(
        [
            Column("VOTE"),
            Column("OPERATOR", shrink_to=8),
            Column("ACTION"),
            Column("ROLE"),
            Column("STATE"),
            Column("CAST", drop=1),
            Column("HOSTNAME", shrink_to=8, drop=2),
            Column("ADDRESS", shrink_to=10, drop=3),
            Column("EXPIRES", wide=True),
            Column("PROPOSAL", wide=True),
        ],
        [
            [
                cell(v.id),
                cell(v.operator_cn),
                cell(v.action),
                cell(v.role),
                _vote_state(v, now),
                time_cell(v.created_at, now),
                cell(v.hostname),
                cell(v.assigned_ip),
                time_cell(v.expires_at, now),
                cell(v.proposal_digest),
            ]
            for v in found
        ],
        "No votes.",
    )


def _vote_state(vote: ApprovalDetail, now: datetime) -> Cell:
    if vote.live:
        return Cell(f"live, ends {ago(vote.expires_at, now)}", "green", "live")
    if vote.void is not None:
        return Cell(f"void: {clean(vote.void)}", "red", "void")
    return cell("used" if vote.consumed else "withdrawn" if vote.withdrawn else "expired")


@group.command()
@ID
@click.option("--vote", type=int, metavar="NUMBER", help="Which one, where several are live.")
@YES
@output_option
@pass_session
def withdraw(session: Session, machine: str, vote: int | None, *, yes: bool) -> None:
    """Take back your live vote about a machine.

    \b
    Examples:
      attestation machine withdraw cp-1
      attestation machine withdraw cp-1 --vote 17
    """
    with session.client() as client:
        machine_id = session.find_id(client, machine)
        number = _live_vote(client, machine_id, vote)
        session.confirm(f"Withdraw vote {number}?", yes=yes)
        client.withdraw_approval(number)
    session.emit_done(f"vote {number}: withdrawn", {"approval_id": number, "withdrawn": True})


def _live_vote(client: OperatorClient, machine_id: str, wanted: int | None) -> int:
    live = [v for v in client.machine_approvals(machine_id) if v.live]
    if wanted is not None:
        if wanted not in (v.id for v in live):
            raise ApprovalUnknown(f"there is no live vote {wanted} about this machine")
        return wanted
    if not live:
        raise ApprovalUnknown("there is no live vote about this machine")
    if len(live) > 1:
        lines = [f"--vote {v.id}  {clean(v.operator_cn)}: {clean(v.action)}" for v in live]
        raise Ambiguous("\n".join(["several votes are live; yours may be any of", *lines]))
    return live[0].id


@group.command()
@click.option(
    "-i",
    "--interval",
    "seconds",
    type=click.FloatRange(0.2, 3600),
    default=5.0,
    help="Seconds between looks [default: 5]",
)
@click.option("--status", type=click.Choice([s.value for s in Status]), help="Only in this status.")
@output_option
@pass_session
def watch(session: Session, seconds: float, status: str | None) -> None:
    """Follow the machines: a live table on a terminal, else a line for each change.

    Ctrl-C ends it. With `-o json` each change is one line of JSON. A service that does not answer for a
    while is waited for.

    \b
    Examples:
      attestation machine watch
      attestation machine watch --interval 2 --status pending_approval
      attestation machine watch -o json | jq -c .
    """
    if session.output in ("csv", "yaml"):
        raise click.UsageError(f"-o {session.output} cannot follow; -o json can")
    from attestation_cli.watch import Watch

    chosen = Status(status) if status else None
    with session.client() as client:
        Watch(session, lambda: list(client.machine_records(status=chosen)), seconds).run()


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
    rows = [
        ("status", cell(machine.status)),
        ("role", cell(machine.role)),
        ("assurance", _assurance(machine)),
    ]
    if session.json:
        session.emit_json(machine)
    elif session.output == "csv":
        session.emit_fields([("machine id", cell(machine.machine_id)), ("done", cell(what)), *rows])
    else:
        session.emit(f"{name_of(machine)}: {what}")
        session.emit_fields(rows, indent="  ")


def _concluded(
    session: Session,
    what: str,
    machine: MachineDetail,
    answer: MachineDetail | PendingApproval,
    again: Sequence[str],
) -> None:
    """Print how a gated act ended: done, or waiting for others, who must call `attestation` with *again*."""
    from attestation.api import PendingApproval

    if isinstance(answer, PendingApproval):
        session.emit_pending(answer, name_of(machine), again)
    else:
        _done(session, what, answer)


def _assurance(machine: MachineDetail) -> Cell:
    from attestation.client.words import ASSURANCE

    text = f"{machine.assurance}: {ASSURANCE[machine.assurance]}"
    return Cell(text, cell(machine.assurance).colour, str(machine.assurance))


def _show(session: Session, m: MachineDetail) -> None:
    if session.json:
        session.emit_json(m)
        return
    now = datetime.now(UTC)
    last, tpm = m.last_result, m.ek_certificate
    wish = m.desired_cluster_id
    rows: list[tuple[str, Cell]] = [
        *([("ALARM", Cell(clean(m.alarm), "red"))] if m.alarm is not None else []),
        ("id", cell(m.machine_id)),
        ("hostname", cell(m.hostname)),
        ("status", cell(m.status)),
        ("role", cell(m.role)),
        ("wished role", cell(m.desired_role)),
        ("cluster", cell(m.cluster_id)),
        *([("wished cluster", cell(wish))] if wish not in (None, m.cluster_id) else []),
        ("address", cell(m.assigned_ip)),
        *([("names", Cell("another machine has them too", "red"))] if m.shares_names else []),
        ("trust", cell(m.trust)),
        ("trust ends", moment_cell(m.trust_expires_at, now)),
        ("assurance", _assurance(m)),
        (
            "last result",
            cell(f"{last.verdict}, {moment(last.at, now)}", f"{last.verdict} {instant(last.at)}")
            if last
            else cell(None),
        ),
        ("policy", cell(last.policy if last else None)),
        ("failed checks", cell(last.failed if last else None)),
        (
            "event log",
            cell(f"known, {m.event_log_sha256[:16]}…", m.event_log_sha256)
            if m.event_log_sha256
            else cell(None),
        ),
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
            cell(f"activated {moment(m.ak_activated_at, now)}", instant(m.ak_activated_at))
            if m.ak_activated_at
            else cell("none"),
        ),
        ("hardware", cell(f"{m.hw_product}, serial {m.hw_serial}")),
        ("UUID, MAC", cell(f"{m.hw_uuid}, {m.hw_mac}")),
        (
            "registered",
            cell(
                f"{moment(m.registered_at, now)} from {m.registered_from or 'unknown'}",
                f"{instant(m.registered_at)} {m.registered_from or 'unknown'}",
            ),
        ),
        ("attested", moment_cell(m.attested_at, now)),
    ]
    if m.firmware_version is not None:
        vouched = ", vouched for by its EK" if m.firmware_attested == m.firmware_version else ""
        rows.append(("TPM firmware", cell(m.firmware_version + vouched, m.firmware_version)))
    if m.firmware_blocked is not None:
        rows.append(("advisory", Cell(clean(m.firmware_blocked), "red")))
    for each in m.relatives:
        what = "same TPM as" if each.same_chip else "hint at"
        was = each.status or "waited, never decided about"
        gone = f", deleted {moment(each.deleted_at, now)}" if each.deleted_at is not None else ""
        rows.append((what, cell(f"{each.machine_id} ({was}{gone}): {each.mark}", each.machine_id)))
    optional = [
        ("not seen since its lease", m.heartbeat_missed_at),
        ("locked", m.locked_at),
        ("revoked", m.revoked_at),
        ("rejected", m.rejected_at),
        ("wiped", m.wiped_at),
    ]
    rows += [(name, moment_cell(at, now)) for name, at in optional if at is not None]
    if m.wipe_pending:
        rows.append(("wipe", Cell("ordered, not acknowledged", "red")))
    if m.redeliver_pending:
        rows.append(("delivery", Cell("ordered again")))
    if m.approvals:
        votes = ", ".join(clean(f"{v.operator_cn}: {v.action}") for v in m.approvals)
        rows.append(("votes", Cell(votes, "yellow")))
    session.emit_fields(rows)


@group.command("certificates")
@ID
@LIMIT
@output_option
@pass_session
def certificates_(session: Session, machine: str, limit: int) -> None:
    """List the certificates of a machine, newest first; they outlive its record.

    \b
    Examples:
      attestation machine certificates cp-1
      attestation machine certificates cp-1 -o wide
    """
    from attestation_cli.commands.ca import emit_certificates

    with session.client() as client:
        found = client.machine_certificates(session.find_id(client, machine))
        emit_certificates(session, islice(found, limit or None))


@group.command("request-cert")
@ID
@click.option(
    "--profile",
    type=click.Choice(["node-client", "node-server"]),
    default="node-client",
    show_default=True,
    help="Towards servers, or towards clients.",
)
@click.option(
    "--algorithm",
    type=click.Choice(["ecdsa-p384", "rsa-4096", "ml-dsa-87"]),
    help="Of the CA key that signed; a hybrid CA signs twice. Default: not ml-dsa-87, if there is another.",
)
@click.option("-f", "--file", type=click.Path(dir_okay=False, path_type=Path), help="Write it there instead.")
@output_option
@pass_session
def request_cert(
    session: Session, machine: str, profile: str, algorithm: str | None, file: Path | None
) -> None:
    """Print the certificate of a machine, PEM: the newest that is good.

    Nobody but the machine can ask for one, because its key never leaves its TPM; it does so by itself, and renews it
    (`attestation-agent cert` there). This is what it got.

    \b
    Examples:
      attestation machine request-cert cp-1 | openssl x509 -noout -text
      attestation machine request-cert cp-1 --profile node-server -f cp-1.pem
    """
    from attestation_cli.commands.ca import emit_pem

    with session.client() as client:
        machine_id = session.find_id(client, machine)
        newest = _newest_certificate(client, machine_id, profile, algorithm)
        if newest is None:
            raise CertificateUnknown(f"machine {machine_id} has no {profile} certificate that is good now")
        whole = client.certificate(newest.serial)
    if whole.not_after < datetime.now(UTC):
        session.note(f"warning: it ended {ago(whole.not_after, datetime.now(UTC))}")
    if session.json:
        session.emit_json(whole)
        return
    emit_pem(session, whole, file)


@group.command("offline-bundle")
@ID
@click.option(
    "-f",
    "--output-file",
    "file",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="Where it is written, for you alone.",
)
@output_option
@pass_session
def offline_bundle(session: Session, machine: str, file: Path) -> None:
    """Have what a machine needs for an installation without a network put into one file (compatibility).

    Configuration and key in it are sealed to the TPM of the machine, which must be attested and trusted now. It is off
    unless the service was told otherwise (ITL_COMPAT_OFFLINE_BUNDLE), and several people must ask for it; the last one
    gets the file. It issues a certificate and a config token, so those from before it lose their right.

    \b
    Examples:
      attestation machine offline-bundle cp-1 -f cp-1.json
    """
    from attestation.api import PendingApproval
    from attestation_cli.render import json_text

    with session.client() as client:
        detail = session.find(client, machine)
        # Opened first: what cannot be written would have used up the votes.
        try:
            opened = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        except OSError as e:
            raise RequestInvalid(f"{file}: {e.strerror}") from e
        written = False
        try:
            answer = client.offline_bundle(detail.machine_id)
            if not isinstance(answer, PendingApproval):
                os.write(opened, f"{json_text(answer)}\n".encode())
                os.fsync(opened)
                written = True
        finally:
            os.close(opened)
            if not written:
                file.unlink(missing_ok=True)
    if isinstance(answer, PendingApproval):
        again = ["machine", "offline-bundle", detail.machine_id, "--output-file", file.name]
        session.emit_pending(answer, name_of(detail), again)
        return
    session.emit_done(
        f"{name_of(detail)}: offline bundle written to {file}, certificate {answer.serial}",
        {"machine_id": answer.machine_id, "serial": answer.serial, "file": str(file)},
    )


def _newest_certificate(
    client: OperatorClient, machine_id: str, profile: str, algorithm: str | None
) -> CertificateDetail | None:
    """Return the newest good certificate, of those for one key the one that was asked for."""
    good = [
        c for c in client.machine_certificates(machine_id) if c.state == "issued" and c.profile == profile
    ]
    algorithms = {issuer.issuer_id: issuer.algorithm for issuer in client.ca().issuers}
    if algorithm is not None:
        return next((c for c in good if algorithms.get(c.issuer_id) == algorithm), None)
    twins = [c for c in good if c.spki_sha256 == good[0].spki_sha256]
    # Whoever asks without a word has a program that knows no ML-DSA.
    return next((c for c in twins if algorithms.get(c.issuer_id) != "ml-dsa-87"), next(iter(twins), None))
