"""`attestation kms …`: which machines need an operator before their disks open, and the keys that disks lie under."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from attestation.errors import RequestInvalid
from attestation_cli.plugin import (
    Column,
    Session,
    checked,
    clean,
    listing,
    moment_cell,
    new_proposal_option,
    printing,
    time_cell,
)

if TYPE_CHECKING:
    from attestation_cli.plugin import OperatorClient
    from attestation_extensions.disk_kms import wire


@click.group("kms")
def group() -> None:
    """Disk keys of Talos nodes: hold machines, release them, replace keys. No command shows a disk key.

    \b
    Examples:
      attestation kms hold cp-1
      attestation kms waiting
      attestation kms release cp-1 --uses 2
    """


_yes = click.option("-y", "--yes", is_flag=True, help="Do not ask.")
_cluster = click.option("--cluster", help="All machines of this cluster, in place of one machine.")


def _subject(
    session: Session, client: OperatorClient, machine: str | None, cluster: str | None
) -> tuple[str, str]:
    if (machine is None) == (cluster is None):
        raise RequestInvalid("name either a machine or --cluster")
    if machine is None:
        return "cluster", str(cluster)
    return "machine", session.find_id(client, machine)


@group.command("holds")
@listing
def holds(session: Session) -> None:
    """List which machines and clusters get no disk key without an operator."""
    from attestation_extensions.commands.kms_api import KMS

    now = datetime.now(UTC)
    with session.client() as client:
        found = client.ask(KMS.holds).holds
    columns: dict[Column, Callable[[Any], Any]] = {
        Column("SCOPE"): lambda h: h.scope,
        Column("SUBJECT"): lambda h: h.subject,
        Column("SINCE"): lambda h: moment_cell(h.placed_at, now),
        Column("BY", drop=1): lambda h: h.placed_by,
    }
    session.emit_list(iter(found), columns, "Nothing is held.")


@group.command("waiting")
@listing
def waiting(session: Session) -> None:
    """List the machines that are held and asked for their disk keys, and what was released of them."""
    from attestation_extensions.commands.kms_api import KMS

    now = datetime.now(UTC)
    with session.client() as client:
        found = client.ask(KMS.holds).waiting
    columns: dict[Column, Callable[[Any], Any]] = {
        Column("MACHINE"): lambda w: w.machine_id,
        Column("FROM"): lambda w: w.source_ip,
        Column("ASKED"): lambda w: time_cell(w.last_at, now),
        Column("KEYS LEFT"): lambda w: w.uses if w.released_until and w.released_until > now else 0,
        Column("UNTIL", drop=1): lambda w: moment_cell(w.released_until, now) if w.released_until else "-",
        Column("BY", drop=2): lambda w: w.released_by or "-",
        Column("FIRST", wide=True): lambda w: moment_cell(w.first_at, now),
    }
    session.emit_list(iter(found), columns, "No machine waits.")


@group.command("hold")
@click.argument("machine", required=False)
@_cluster
@printing
def hold(session: Session, machine: str | None, cluster: str | None) -> None:
    """Give MACHINE, or a cluster, no disk key without an operator from now on."""
    from attestation_extensions.commands.kms_api import KMS
    from attestation_extensions.disk_kms import wire

    with session.client() as client:
        scope, subject = _subject(session, client, machine, cluster)
        asked = {"scope": scope, "subject": subject}
        client.ask(KMS.hold, checked(lambda: wire.KMSHoldRequest.model_validate(asked)))
    session.emit_done(f"{clean(subject)}: held", asked)


@group.command("unhold")
@click.argument("machine", required=False)
@_cluster
@_yes
@new_proposal_option
@printing
def unhold(session: Session, machine: str | None, cluster: str | None, *, yes: bool) -> None:
    """End the hold of MACHINE, or of a cluster; several agree where a role of theirs asks for it."""
    from attestation.extension import PendingApproval
    from attestation_extensions.commands.kms_api import KMS

    with session.client() as client:
        scope, subject = _subject(session, client, machine, cluster)
        session.confirm(f"Let disks of {clean(subject)} open without an operator?", yes=yes)
        answer = client.ask(KMS.unhold, scope, subject)
    if isinstance(answer, PendingApproval):
        session.emit_pending(answer, clean(subject))
        return
    session.emit_done(f"{clean(subject)}: not held", {"scope": scope, "subject": subject})


@group.command("release")
@click.argument("machine")
@click.option("--uses", default=1, show_default=True, help="Disk keys: one for each encrypted volume.")
@_yes
@new_proposal_option
@printing
def release(session: Session, machine: str, uses: int, *, yes: bool) -> None:
    """Let MACHINE, which waits, have its disk keys soon; it must have just attested all the same."""
    from attestation.extension import PendingApproval
    from attestation_extensions.commands.kms_api import KMS
    from attestation_extensions.disk_kms import wire

    request = checked(lambda: wire.KMSReleaseRequest.model_validate({"uses": uses}))
    with session.client() as client:
        machine_id = session.find_id(client, machine)
        session.confirm(f"Let {clean(machine)} open {uses} of its disks?", yes=yes)
        answer = client.ask(KMS.release, machine_id, request)
    if isinstance(answer, PendingApproval):
        session.emit_pending(answer, clean(machine))
        return
    session.emit_done(
        f"{clean(machine)}: released",
        {"machine_id": answer.machine_id, "uses": answer.uses, "source_ip": answer.source_ip},
    )


@group.command("rewrap")
@printing
def rewrap(session: Session) -> None:
    """Bring the machines' keys under the newest key-encryption key."""
    from attestation_extensions.commands.kms_api import KMS

    with session.client() as client:
        answer = client.ask(KMS.rewrap)
    told = f"{answer.rewrapped} keys brought over, {answer.unreachable} not"
    session.emit_done(told, {"rewrapped": answer.rewrapped, "unreachable": answer.unreachable})


# Keys of one machine


def _keys(session: Session, found: wire.KMSKeys) -> None:
    now = datetime.now(UTC)
    columns: dict[Column, Callable[[Any], Any]] = {
        Column("KEY"): lambda k: k.key_id,
        Column("CREATED"): lambda k: moment_cell(k.created_at, now),
        Column("RETIRED"): lambda k: moment_cell(k.retired_at, now) if k.retired_at else "-",
    }
    keys: Iterator[Any] = iter(found.keys)
    session.emit_list(keys, columns, "It had no disk sealed.")


@group.command("keys")
@click.argument("machine")
@listing
def keys(session: Session, machine: str) -> None:
    """List the keys that disks of MACHINE lie under, the newest first; not what they are."""
    from attestation_extensions.commands.kms_api import KMS

    with session.client() as client:
        _keys(session, client.ask(KMS.keys, session.find_id(client, machine)))


@group.command("rotate")
@click.argument("machine")
@listing
def rotate(session: Session, machine: str) -> None:
    """Let a new key seal what MACHINE has sealed from now on; its disks open as before."""
    from attestation_extensions.commands.kms_api import KMS

    with session.client() as client:
        _keys(session, client.ask(KMS.rotate, session.find_id(client, machine)))


@group.command("retire")
@click.argument("machine")
@click.argument("key")
@_yes
@listing
def retire(session: Session, machine: str, key: str, *, yes: bool) -> None:
    """Let a KEY of MACHINE open nothing any more: disks under it need their second slot."""
    from attestation_extensions.commands.kms_api import KMS

    with session.client() as client:
        machine_id = session.find_id(client, machine)
        session.confirm(f"Let no disk of {clean(machine)} under {clean(key)} open again?", yes=yes)
        _keys(session, client.ask(KMS.retire, machine_id, key))
