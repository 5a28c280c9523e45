"""`attestation machine get` and `explain`: what is known of one machine, and what it means."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from attestation.client.text import clean
from attestation.errors import Unavailable
from attestation_cli.machine_acts import ID
from attestation_cli.machine_rows import assurance_cell, labels_of
from attestation_cli.options import printing
from attestation_cli.render import Cell, cell, instant, moment, moment_cell, trust_cell, wrap
from attestation_cli.session import Session
from attestation_cli.undelivered import not_delivered

if TYPE_CHECKING:
    from attestation.api import MachineDetail


@click.command()
@ID
@printing
def get(session: Session, machine: str) -> None:
    """Show everything known about one machine; never a token, nonce or key.

    \b
    Examples:
      attestation machine get 7f3ad3ac
      attestation machine get cp-1 -o yaml
    """
    with session.client() as client:
        _show(session, session.find(client, machine))


def _show(session: Session, m: MachineDetail) -> None:
    if session.json:
        session.emit_json(m)
        return
    from attestation.client.words import hardware_words

    now = datetime.now(UTC)
    last, tpm, owed = m.last_result, m.ek_certificate, m.configuration_not_delivered
    wish = m.desired_cluster_id
    rows: list[tuple[str, Cell]] = [
        *([("ALARM", Cell(clean(m.alarm), "red"))] if m.alarm is not None else []),
        *([("configuration", not_delivered(owed.why, owed.since, now))] if owed is not None else []),
        ("id", cell(m.machine_id)),
        ("hostname", cell(m.hostname)),
        ("status", cell(m.status)),
        ("role", cell(m.role)),
        ("wished role", cell(m.desired_role)),
        ("cluster", cell(m.cluster_id)),
        *([("wished cluster", cell(wish))] if wish not in (None, m.cluster_id) else []),
        ("address", cell(m.assigned_ip)),
        *([("labels", cell(labels_of(m.labels)))] if m.labels else []),
        *([("names", Cell("another machine has them too", "red"))] if m.shares_names else []),
        ("trust", trust_cell(m.trust, m.status)),
        ("trust ends", moment_cell(m.trust_expires_at, now)),
        ("assurance", assurance_cell(m)),
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
        *([("processor", cell(hardware_words(m.hardware)))] if m.hardware is not None else []),
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
    if m.console_codes:
        rows.append(("on a console", cell(", ".join(m.console_codes))))
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
    if m.approvals:
        votes = ", ".join(clean(f"{v.operator_cn}: {v.action}") for v in m.approvals)
        rows.append(("votes", Cell(votes, "yellow")))
    session.emit_fields(rows)


@click.command("explain")
@ID
@printing
@click.pass_context
def explain_(ctx: click.Context, session: Session, machine: str) -> None:
    """Tell in plain words whether a machine is trusted, why, and what to do next.

    Every check of its last result that did not pass is shown with what was expected and what was found, and
    every PCR that changed with what its event log says about that. Ends with 0 where it is attested and trusted
    now and has its configuration, else with 1.

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

    now = datetime.now(UTC)
    told = explain(detail, newest, now, changes, unseen)
    owed, good = detail.configuration_not_delivered, told.trusted and told.configured
    if session.json:
        session.emit_json(
            {
                "machine_id": detail.machine_id,
                "status": detail.status,
                "trust": detail.trust,
                "assurance": detail.assurance,
                "trusted": told.trusted,
                "configuration_not_delivered": owed.model_dump(mode="json") if owed else None,
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
                ("trust", trust_cell(detail.trust, detail.status)),
                ("assurance", cell(detail.assurance)),
                ("trusted", cell("yes" if told.trusted else "no")),
                ("configuration", not_delivered(owed.why, owed.since, now) if owed else cell(None)),
                ("why", cell(" ".join(told.why))),
                ("failed checks", cell(", ".join(c.check for c in told.checks))),
                ("what changed", cell(" ".join(c.text for c in changes))),
                ("what to do", cell(" ".join(told.next))),
            ]
        )
    else:
        session.emit(click.style(told.headline, fg="green" if good else "yellow", bold=True))
        _sentences(session, "why", told.why)
        from attestation_cli.result_screen import print_changes, print_checks

        if told.checks:
            session.emit("")
            print_checks(session, told.checks)
        if changes:
            session.emit("\nwhat changed:")
            print_changes(session, changes, entries=False)
        _sentences(session, "what to do", told.next)
    ctx.exit(0 if good else 1)


def _sentences(session: Session, title: str, sentences: tuple[str, ...]) -> None:
    if not sentences:
        return
    session.emit(f"\n{title}:")
    width = min(session.width or 100, 100)
    for sentence in sentences:
        session.emit(wrap(sentence, width))
