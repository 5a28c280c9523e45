"""`attestation machine ak-activate` and `ak-reset`: where the keys of a machine stand, and what to do."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING

import click

from attestation.api.operations import OperatorAPI
from attestation.client.text import ago, clean
from attestation.errors import Forbidden
from attestation_cli.machine_acts import (
    ID,
    machine_act,
)
from attestation_cli.options import printing
from attestation_cli.render import Cell, cell, instant, moment, shorten, wrap
from attestation_cli.session import Session, name_of

if TYPE_CHECKING:
    from attestation.api import AKVouchingDetail, AuditEntryDetail, KeysDetail, MachineDetail
    from attestation.client import OperatorClient

LOOKED_AT = 200
"""So many of the newest refusals are searched for conflicts."""
MOST_SHOWN = 3


@click.command("ak-activate")
@ID
@printing
@click.pass_context
def ak_activate(ctx: click.Context, session: Session, machine: str) -> None:
    """Show where the keys of a machine stand: its TPM's, the one it attests with, what is awaited, what was refused.

    Nothing is changed: only the machine itself can prove a key, and its agent does so whenever it introduces itself.
    Ends with what to do, and with 0 where an attestation key is activated, else with 1.

    \b
    Examples:
      attestation machine ak-activate cp-1
      attestation machine ak-activate cp-1 -o json
    """
    with session.client() as client:
        detail = session.find(client, machine)
        keys = client.machine_keys(detail.machine_id)
        refused = _conflicts(client, detail)
    now = datetime.now(UTC)
    advice = what_to_do(detail, keys, refused, now)
    if session.json:
        session.emit_json(
            {
                **keys.model_dump(mode="json"),
                "conflicts": [
                    {"at": e.timestamp, "source_ip": e.source_ip, "detail": e.detail} for e in refused
                ],
                "alarm": detail.alarm,
                "what_to_do": advice,
            }
        )
    elif session.output == "csv":
        session.emit_fields([*_rows(detail, keys, refused, now), ("what to do", cell(" ".join(advice)))])
    else:
        session.emit_fields(_rows(detail, keys, refused, now))
        session.emit("\nwhat to do:")
        for sentence in advice:
            session.emit(wrap(clean(sentence), min(session.width or 100, 100)))
    ctx.exit(0 if keys.ak_name is not None else 1)


def _conflicts(client: OperatorClient, machine: MachineDetail) -> list[AuditEntryDetail]:
    """Return refusals because of another attestation key that were about this machine, or came from its address.

    At an introduction nothing is proven yet, so the log names the address and no machine.
    """
    try:
        newest = list(islice(client.audit(action="denied", page_size=LOOKED_AT), LOOKED_AT))
    except Forbidden:  # who may read machines need not be allowed to read the log
        return []
    found = [
        e
        for e in newest
        if "ak-conflict" in (e.detail or "")
        and (
            e.machine_id == machine.machine_id
            or (e.machine_id is None and e.source_ip is not None and e.source_ip == machine.registered_from)
        )
    ]
    return found[:MOST_SHOWN]


def what_to_do(
    machine: MachineDetail, keys: KeysDetail, refused: list[AuditEntryDetail], now: datetime
) -> list[str]:
    """Return sentences, commands in backquotes; what is most urgent first."""
    short = machine.machine_id[:8]
    alarm = f"See the alarm above, and `attestation audit list --machine-id {short} --action alarm`."
    since = keys.ak_activated_at
    # What was refused before the key that counts now was activated is settled.
    late = any(since is None or datetime.fromisoformat(e.timestamp) > since for e in refused)
    if keys.ak_name is not None and late:
        next_step = (
            "Somebody came with another attestation key from its address, or for its EK, and was refused. If the "
            "machine was reinstalled or its TPM was cleared, run "
            f"`attestation machine ak-reset {short} --reason WHY`; if not, find out who that was before you do."
        )
    elif keys.ak_name is not None:
        next_step = "" if machine.alarm else "Nothing: its attestation key is proven."
    elif keys.activations:
        next_step = (
            f"Wait: somebody asked {ago(keys.activations[0].issued_at, now)} to prove a key for this EK, and the "
            "agent answers within seconds. If it does not, read its log on the machine."
        )
    elif keys.earlier:
        next_step = "Its key was reset: its agent brings another one when it introduces itself next."
    else:
        next_step = "Start the agent on the machine: it has not proven a key yet."
    return [sentence for sentence in (alarm if machine.alarm else "", next_step) if sentence]


def _rows(
    machine: MachineDetail, keys: KeysDetail, refused: list[AuditEntryDetail], now: datetime
) -> list[tuple[str, Cell]]:
    def when(what: str, at: datetime) -> tuple[str, str]:
        return f"{shorten(what, 41)}, {moment(at, now)}", f"{what} {instant(at)}"

    def listed(pairs: list[tuple[str, str]]) -> Cell:
        if not pairs:
            return cell(None)
        return cell("; ".join(shown for shown, _ in pairs), "; ".join(whole for _, whole in pairs))

    active = [when(keys.ak_name, keys.ak_activated_at)] if keys.ak_name and keys.ak_activated_at else []
    return [
        ("machine", cell(f"{name_of(machine)} [{machine.status}]", machine.machine_id)),
        *([("ALARM", Cell(clean(machine.alarm), "red"))] if machine.alarm is not None else []),
        ("EK", cell(keys.ek_fingerprint)),
        ("EK template", cell(keys.ek_template)),
        ("further EKs", cell(", ".join(keys.ek_alternatives) or None)),
        ("attestation key", listed(active) if active else Cell("none is activated", "yellow", "")),
        *([("vouched for", _vouched(keys.ak_certificate))] if keys.ak_certificate is not None else []),
        ("awaited", listed([when("asked", a.issued_at) for a in keys.activations])),
        ("earlier keys", listed([when(b.ak_name, b.bound_at) for b in keys.earlier])),
        (
            "refused",
            listed([
                when(f"{e.source_ip}: {e.detail}", datetime.fromisoformat(e.timestamp)) for e in refused
            ]),
        ),
    ]  # fmt: skip


def _vouched(by: AKVouchingDetail) -> Cell:
    """Say who vouches for the attestation key, or why nobody does any more."""
    if by.ok:
        return cell(f"by {by.issuer}: {by.reason}")
    return Cell(clean(f"by nobody: {by.reason}"), "yellow")


@machine_act(OperatorAPI.ak_reset, "attestation key forgotten", question="Forget the attestation key of {}?")
def ak_reset() -> None:
    """Forget a machine's attestation key, so that it can activate another one.

    \b
    Examples:
      attestation machine ak-reset worker-2 -r "the firmware cleared its TPM"
    """


@machine_act(
    OperatorAPI.approve_hardware,
    "hardware approved",
    question="Believe {} on this processor from now on?",
    seen=lambda machine: {
        "chip": (machine.hardware.chip or "") if machine.hardware is not None else "",
        "expected_version": machine.version,
    },
)
def approve_hardware() -> None:
    """Approve the confidential hardware that an admitted machine was seen on last.

    For a processor that was replaced, and for a machine that was admitted before its hardware was seen. From then on
    the machine must prove it.

    \b
    Examples:
      attestation machine approve-hardware worker-2 -r "board replaced"
    """
