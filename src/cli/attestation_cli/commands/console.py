"""`attestation console …`: codes that machines show on their consoles."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from attestation.client.text import clean
from attestation.errors import ConsoleCodeDecided, ConsoleCodeExpired
from attestation.machines.console_code import typed
from attestation_cli.options import listing, printing
from attestation_cli.render import Cell, Column, instant, moment_cell
from attestation_cli.session import Session

if TYPE_CHECKING:
    from attestation.api import ConsoleCodeShown

_COLOURS = {"pending": "yellow", "approved": "green", "denied": "red"}


@click.group("console")
def group() -> None:
    """Approve at the console of a machine that boots a stock image.

    A machine that boots an image without an agent shows a code on its console. Who stands there and reads it says
    so here. That proves presence, and no TPM: nothing is released on it.

    \b
    Examples:
      attestation console list
      attestation console approve WDJB-MJHT
    """


@group.command("list")
@listing
def list_(session: Session) -> None:
    """List codes, newest first. What machines say of themselves proves nothing.

    \b
    Examples:
      attestation console list
    """
    now = datetime.now(UTC)
    with session.client() as client:
        session.emit_list(
            client.console_codes(),
            {
                Column("CODE"): lambda c: c.code,
                Column("STATE"): lambda c: _state(c.state),
                Column("UUID", shrink_to=8): lambda c: c.hw_uuid,
                Column("MAC", drop=2): lambda c: c.hw_mac,
                Column("SERIAL", shrink_to=8, drop=1): lambda c: c.hw_serial,
                Column("FROM", drop=3): lambda c: c.source_ip,
                Column("ASKED", drop=4): lambda c: moment_cell(c.asked_at, now),
                Column("BY", shrink_to=6, drop=5): lambda c: c.decided_by,
                Column("HOSTNAME", wide=True): lambda c: c.hostname,
                Column("CLIENT", wide=True): lambda c: c.client_id,
                Column("TOKEN TO", wide=True): lambda c: c.token_source_ip,
            },
            "No machine shows a code.",
        )


@group.command()
@click.argument("code")
@click.option(
    "--yes", is_flag=True, help="Do not ask: you have compared what the machine says with the machine."
)
@printing
def approve(session: Session, code: str, *, yes: bool) -> None:
    """Say that you stand before the machine that shows this code.

    Never for a code that somebody sent you. It is shown what the machine says of itself, from where it asked, and
    which other machines say the same: compare that with the label of the one before you.

    \b
    Examples:
      attestation console approve WDJB-MJHT
    """
    with session.client() as client:
        shown = client.console_code(typed(code))
        _demand_open(shown)
        question = f"Do you stand before this machine, and does its console show {shown.code}?"
        session.confirm(f"{_said(shown)}\n{question}", yes=yes)
        done = client.approve_console_code(shown.code)
    session.emit_done(f"{done.code}: approved, tier console", done.model_dump(mode="json"))


@group.command()
@click.argument("code")
@click.option("--yes", is_flag=True, help="Do not ask.")
@printing
def deny(session: Session, code: str, *, yes: bool) -> None:
    """Refuse a code for good.

    \b
    Examples:
      attestation console deny WDJB-MJHT
    """
    with session.client() as client:
        shown = client.console_code(typed(code))
        _demand_open(shown)
        session.confirm(f"{_said(shown)}\nDeny {shown.code}?", yes=yes)
        done = client.deny_console_code(shown.code)
    session.emit_done(f"{done.code}: denied", done.model_dump(mode="json"))


def _demand_open(shown: ConsoleCodeShown) -> None:
    if shown.state == "expired":
        raise ConsoleCodeExpired("the code has expired; the machine shows another one")
    if shown.state != "pending":
        raise ConsoleCodeDecided(f"the code was {shown.state} by {clean(shown.decided_by or '-')}")


def _state(state: str) -> Cell:
    return Cell(state, _COLOURS.get(state), state)


def _said(shown: ConsoleCodeShown) -> str:
    """Return what the machine says of itself, and who says the same: what to compare before one answers."""
    told = {
        "uuid": shown.hw_uuid,
        "mac": shown.hw_mac,
        "serial": shown.hw_serial,
        "hostname": shown.hostname,
        "asked from": shown.source_ip,
        "at": instant(shown.asked_at),
    }
    lines = [f"{name:<11} {clean(value or '-')}" for name, value in told.items()]
    if shown.machines:
        lines.append(f"Machines known by the same: {', '.join(map(clean, shown.machines))}.")
    if shown.other_codes:
        lines.append(
            f"Other consoles say the same of themselves: {', '.join(map(clean, shown.other_codes))}."
        )
    return "\n".join(lines)
