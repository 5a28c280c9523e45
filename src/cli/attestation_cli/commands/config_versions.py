"""`attestation config import|list|activate|…`: configurations of machines that the service keeps, version by version.

What is done with a base configuration is done with a machine's patch (`config patch …`) in the same words.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from attestation.client.text import clean
from attestation.errors import RequestInvalid
from attestation_cli.commands.config_file import emit_changes, emit_findings, read
from attestation_cli.complete import complete_machine
from attestation_cli.config_place import Base, Patch, base_of, named_version, patch_of, version_of
from attestation_cli.machine_acts import REASON, YES
from attestation_cli.options import EXISTING_FILE, listing, new_proposal_option, printing
from attestation_cli.render import Column, cell, time_cell
from attestation_cli.session import Session, checked

if TYPE_CHECKING:
    from attestation.api import ConfigurationDetail, ConfigurationInfo, PendingApproval
    from attestation.client import OperatorClient

PLACE = click.argument("place", metavar="CLUSTER/ROLE")
VERSION = click.argument("place", metavar="CLUSTER/ROLE@VERSION")
MACHINE = click.argument("machine", metavar="MACHINE", shell_complete=complete_machine)
OF_MACHINE = click.argument("machine", metavar="MACHINE@VERSION", shell_complete=complete_machine)
TALOS = click.option(
    "--talos", metavar="VERSION", help="Judge by this version of Talos. [default: that of the machines]"
)
NOTE = click.option("--note", help="What is new in it; kept beside it and in the audit.")
FILE = click.argument("file", type=EXISTING_FILE)


# ---------------------------------------------------------------- base configurations


@click.command("import")
@PLACE
@FILE
@TALOS
@NOTE
@printing
def import_(session: Session, place: str, file: Path, talos: str | None, note: str | None) -> None:
    """Have the service keep FILE as a new version of a role's base configuration.

    It is judged first: what the machines' Talos would refuse is refused. It is delivered to nobody until it is
    activated.

    \b
    Examples:
      attestation config import default/worker-app worker.yaml --note 'new mirror'
      attestation config activate default/worker-app@3
    """
    base = base_of(place)
    with session.client() as client:
        _import(session, client, base, file, talos, note)


@click.command("list")
@click.option("--cluster", metavar="ID", help="Only those of this cluster.")
@listing
def list_(session: Session, cluster: str | None) -> None:
    """List the base configurations that the service keeps, and which are delivered.

    \b
    Examples:
      attestation config list --cluster prod
    """
    with session.client() as client:
        found = client.configurations().configurations
    _list(session, [each for each in found if cluster in (None, each.cluster_id)])


def show_version(session: Session, place: str) -> None:
    """Show one version of a base configuration."""
    base = base_of(place)
    with session.client() as client:
        _show(session, base.get(client, version_of(base, client)), base)


@click.command()
@VERSION
@REASON
@new_proposal_option
@printing
def activate(session: Session, place: str, reason: str | None) -> None:
    """Let a version be delivered to the machines of a role from now on.

    Where dual control asks for several people, this is your vote for exactly this text, by its SHA-256, instead of
    what is delivered now. Machines get it with their next delivery.

    \b
    Examples:
      attestation config diff default/worker-app@2 default/worker-app@3
      attestation config activate default/worker-app@3
    """
    base = base_of(place)
    version = named_version(base)
    with session.client() as client:
        _done(session, base, base.activate(client, version, reason))


@click.command()
@PLACE
@REASON
@YES
@new_proposal_option
@printing
def rollback(session: Session, place: str, reason: str | None, *, yes: bool) -> None:
    """Let the version that was delivered before be delivered again.

    It is an activation like any other: under dual control your vote counts together with that of whoever activates
    the same version by its number.

    \b
    Examples:
      attestation config rollback default/worker-app -r 'nodes lost their mirror'
    """
    base = base_of(place)
    with session.client() as client:
        _roll_back(session, client, base, reason, yes=yes)


@click.command()
@printing
def rewrap(session: Session) -> None:
    """Bring every version under the newest key-encryption key; no text is opened for it.

    After a new key was put before the old one in ITL_CONFIG_KEK. Exit code 1 where some could not be brought there.

    \b
    Examples:
      attestation config rewrap
    """
    with session.client() as client:
        found = client.rewrap_configurations()
    words = f"{found.rewrapped} versions brought under the newest key, {found.unreachable} out of reach"
    session.emit_done(words, found.model_dump())
    if found.unreachable:
        click.get_current_context().exit(1)


@click.command("upgrade-preview")
@click.argument("cluster")
@click.option("--talos", metavar="VERSION", required=True, help="The version to upgrade to, e.g. v1.13.9.")
@printing
def upgrade_preview(session: Session, cluster: str, talos: str) -> None:
    """Tell what an upgrade of Talos changes in what the machines of CLUSTER get, and what the new version says of it.

    For each role, as it is made for a machine with a name and an address. Nothing changes. Exit code 1 where the new
    version would refuse something.

    \b
    Examples:
      attestation config upgrade-preview prod --talos v1.13.9
    """
    with session.client() as client:
        found = client.preview_upgrade(cluster, talos)
    if session.json:
        session.emit_json(found)
    else:
        session.emit(f"Talos {clean(found.before)} to {clean(found.after)}")
        if not found.roles:
            session.emit("No role of this cluster has a base configuration.")
        for each in found.roles:
            version = "a file" if each.base is None else f"version {each.base}"
            session.emit("")
            session.emit(f"{each.role.value}, {version}:")
            if each.error is not None:
                session.emit(f"  {clean(each.error)}")
                continue
            emit_changes(session, each.changes)
            if each.findings:
                emit_findings(session, each.findings, "")
    bad = any(f.level == "error" for each in found.roles for f in each.findings)
    if bad or any(each.error is not None for each in found.roles):
        click.get_current_context().exit(1)


@click.command("machine")
@MACHINE
@printing
def machine_(session: Session, machine: str) -> None:
    """Show what a machine would be given now, without its secrets.

    Base configuration, patch and what is its own, and what its version of Talos says of it. Nothing is delivered.

    \b
    Examples:
      attestation config machine cp-1
    """
    with session.client() as client:
        found = client.preview_configuration(session.find_id(client, machine))
    if session.json:
        session.emit_json(found)
        return
    base = "a file" if found.base is None else f"{found.cluster_id}/{found.role.value}@{found.base}"
    session.emit_fields(
        [
            ("base", cell(base)),
            ("patch", cell("none" if found.patch is None else f"version {found.patch}")),
            ("talos", cell(found.talos_version)),
        ]
    )
    _text(session, found.preview)
    if found.findings and session.output != "csv":
        emit_findings(session, found.findings, "")


# ---------------------------------------------------------------- patches of machines


@click.group("patch")
def patch() -> None:
    """What one machine gets besides the base configuration of its role.

    Merged as Talos merges patches, before the machine's own name and address are written. An empty one, `{}`, ends what
    the one before did.

    \b
    Examples:
      attestation config patch import cp-1 mirror.yaml
      attestation config patch activate cp-1@1
    """


@patch.command("import")
@MACHINE
@FILE
@TALOS
@NOTE
@printing
def import_patch(session: Session, machine: str, file: Path, talos: str | None, note: str | None) -> None:
    """Have the service keep FILE as a new version.

    It is judged together with the base configuration that the machine gets now.

    \b
    Examples:
      attestation config patch import cp-1 mirror.yaml
    """
    with session.client() as client:
        _import(session, client, patch_of(session, client, machine), file, talos, note)


@patch.command("list")
@MACHINE
@listing
def list_patches(session: Session, machine: str) -> None:
    """List the versions, and which is delivered.

    \b
    Examples:
      attestation config patch list cp-1
    """
    with session.client() as client:
        found = client.patches(session.find_id(client, machine)).configurations
    _list(session, found)


@patch.command("show")
@click.argument("machine", metavar="MACHINE[@VERSION]", shell_complete=complete_machine)
@printing
def show_patch(session: Session, machine: str) -> None:
    """Show one version without its secrets.

    The one that is delivered where none is named.

    \b
    Examples:
      attestation config patch show cp-1@2
    """
    with session.client() as client:
        found = patch_of(session, client, machine)
        _show(session, found.get(client, version_of(found, client)), found)


@patch.command("diff")
@MACHINE
@click.argument("before", type=click.IntRange(min=1))
@click.argument("after", type=click.IntRange(min=1))
@printing
def diff_patches(session: Session, machine: str, before: int, after: int) -> None:
    """Tell what changes between two versions; never a secret.

    \b
    Examples:
      attestation config patch diff cp-1 1 2
    """
    with session.client() as client:
        found = client.diff_patches(session.find_id(client, machine), before, after)
    emit_changes(session, found.changes)


@patch.command("activate")
@OF_MACHINE
@REASON
@new_proposal_option
@printing
def activate_patch(session: Session, machine: str, reason: str | None) -> None:
    """Let a version be delivered from now on, or vote for it.

    \b
    Examples:
      attestation config patch activate cp-1@2
    """
    with session.client() as client:
        found = patch_of(session, client, machine)
        _done(session, found, found.activate(client, named_version(found), reason))


@patch.command("rollback")
@MACHINE
@REASON
@YES
@new_proposal_option
@printing
def rollback_patch(session: Session, machine: str, reason: str | None, *, yes: bool) -> None:
    """Let the version before be delivered again, or vote for it.

    \b
    Examples:
      attestation config patch rollback cp-1
    """
    with session.client() as client:
        _roll_back(session, client, patch_of(session, client, machine), reason, yes=yes)


# ---------------------------------------------------------------- of any place


def _import(
    session: Session,
    client: OperatorClient,
    place: Base | Patch,
    file: Path,
    talos: str | None,
    note: str | None,
) -> None:
    from attestation.api import ConfigurationImport

    if place.version is not None:
        raise RequestInvalid(f"the service numbers versions itself: write {clean(place.name)}")
    try:
        text = read(file).decode()
    except UnicodeDecodeError:
        raise RequestInvalid(f"{clean(str(file))}: not UTF-8") from None
    request = checked(lambda: ConfigurationImport(document=text, talos_version=talos, note=note))
    found = place.store(client, request)
    if session.json:
        session.emit_json(found)
        return
    reference = f"{clean(place.name)}@{found.version}"
    if session.output != "csv":
        session.emit(f"{reference}: kept")
    session.emit_fields([("sha256", cell(found.sha256)), ("talos", cell(found.talos_version))], indent="  ")
    if found.findings and session.output != "csv":
        emit_findings(session, found.findings, "")
    word = "config patch activate" if isinstance(place, Patch) else "config activate"
    session.note(f"It is delivered to nobody yet: attestation {word} {reference}")


def _list(session: Session, found: Sequence[ConfigurationInfo]) -> None:
    if session.json:
        session.emit_json(iter(found))
        return
    now = datetime.now(UTC)
    session.emit_rows(
        found,
        {
            Column("CONFIGURATION"): lambda c: f"{_place(c)}@{c.version}",
            Column("ACTIVE"): lambda c: cell("yes" if c.active else "no"),
            Column("TALOS", drop=3): lambda c: c.talos_version,
            Column("IMPORTED", drop=1): lambda c: time_cell(c.created_at, now),
            Column("BY", shrink_to=8, drop=2): lambda c: c.created_by,
            Column("NOTE", shrink_to=12): lambda c: c.note,
            Column("SHA-256", shrink_to=13, drop=4): lambda c: c.sha256,
        },
        "None is kept.",
    )


def _place(found: ConfigurationInfo) -> str:
    return found.machine_id or f"{found.cluster_id}/{found.role.value if found.role is not None else None}"


def _show(session: Session, found: ConfigurationDetail, place: Base | Patch) -> None:
    if session.json:
        session.emit_json(found)
        return
    now = datetime.now(UTC)
    since = cell("no") if found.activated_at is None else time_cell(found.activated_at, now)
    session.emit_fields(
        [
            ("configuration", cell(f"{place.name}@{found.version}")),
            ("activated", since),
            ("activated by", cell(found.activated_by)),
            ("before it", cell(None if found.previous is None else f"version {found.previous}")),
            ("imported", time_cell(found.created_at, now)),
            ("by", cell(found.created_by)),
            ("note", cell(found.note)),
            ("talos", cell(found.talos_version)),
            ("sha256", cell(found.sha256)),
        ]
    )
    _text(session, found.preview)
    if found.findings and session.output != "csv":
        emit_findings(session, found.findings, "")


def _text(session: Session, preview: str) -> None:
    if session.output != "csv":
        session.emit("")
        for line in preview.splitlines():
            session.emit(clean(line))


def _roll_back(
    session: Session, client: OperatorClient, place: Base | Patch, reason: str | None, *, yes: bool
) -> None:
    active = next((each for each in place.versions(client) if each.active), None)
    if active is not None and active.previous is not None:
        session.confirm(
            f"{clean(place.name)}: version {active.previous} again, instead of {active.version}?", yes=yes
        )
    _done(session, place, place.roll_back(client, reason))


def _done(session: Session, place: Base | Patch, answer: ConfigurationDetail | PendingApproval) -> None:
    from attestation.api import PendingApproval

    if isinstance(answer, PendingApproval):
        session.emit_pending(answer, clean(place.name))
        return
    told: dict[str, Any] = answer.model_dump(mode="json", exclude={"preview", "findings"})
    session.emit_done(f"{clean(place.name)}: version {answer.version} is delivered from now on", told)
