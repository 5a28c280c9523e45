"""`attestation config lint|preview|diff`: configurations of Talos machines, in files, offline, or as they are kept."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from attestation.client.text import clean
from attestation.errors import RequestInvalid
from attestation.machines import Role
from attestation_cli.commands.config_file import emit_changes, emit_findings, of_a_file, read
from attestation_cli.config_place import base_of, is_base, named_version, version_of
from attestation_cli.failures import ExitCode
from attestation_cli.options import EXISTING_FILE, printing
from attestation_cli.session import Session

if TYPE_CHECKING:
    from attestation.talos.versions import Generation

FILE = click.argument("file", type=EXISTING_FILE)


def _generation(_ctx: click.Context, _param: click.Parameter, value: str | None) -> Generation | None:
    from attestation.talos.versions import generation_of

    if value is None:
        return None
    try:
        return generation_of(value)
    except RequestInvalid as e:
        raise click.BadParameter(str(e)) from None


TALOS = click.option(
    "--talos",
    "generation",
    required=True,
    metavar="VERSION",
    callback=_generation,
    help="Version of Talos that the machine runs, e.g. v1.13.9.",
)

TALOS_OF_FILES = click.option(
    "--talos",
    "generation",
    metavar="VERSION",
    callback=_generation,
    help="Version of Talos that the machine runs, e.g. v1.13.9; for files.",
)


@click.command("lint")
@FILE
@TALOS
@click.option("--role", type=click.Choice([each.value for each in Role]), help="Role of the machine.")
@printing
def lint_(session: Session, file: Path, generation: Generation, role: str | None) -> None:
    """Tell what a version of Talos would refuse in FILE, or warn of.

    Each document is judged by the schema of that version, offline. What only older versions know is deprecated:
    Talos takes it, with a warning. Exit code 1 where something is an error. Values are never printed.

    \b
    Examples:
      attestation config lint worker-app-final.yaml --talos v1.13.9
      attestation config lint controlplane-final.yaml --talos v1.9.5 \\
          --role controlplane -o json
    """
    from attestation.talos.lint import Level, lint

    with of_a_file():
        found = lint(read(file), generation, Role(role) if role else None)
    emit_findings(session, found, f"Nothing to say: Talos {generation.schema_version} takes it.")
    if any(each.level is Level.ERROR for each in found):
        click.get_current_context().exit(ExitCode.NEGATIVE)


@click.command("preview")
@click.argument("what", metavar="FILE|CLUSTER/ROLE[@VERSION]")
@TALOS_OF_FILES
@printing
def preview_(session: Session, what: str, generation: Generation | None) -> None:
    """Show a configuration without its secrets, so that it can be shown to others: a file, or what the service keeps.

    Shown is what the schema of that version knows as no secret; all else, comments and documents of unknown kinds
    among it, is hidden. A file needs --talos.

    \b
    Examples:
      attestation config preview controlplane-final.yaml --talos v1.9.5
      attestation config preview default/controlplane@2
    """
    if _is_kept(what):
        base = base_of(what)
        with session.client() as client:
            text = base.get(client, version_of(base, client)).preview
    else:
        from attestation.talos.redaction import preview

        with of_a_file():
            text = preview(read(_file(what)), _demanded(generation))
    session.emit_done(text.rstrip("\n"), {"configuration": text})


@click.command("diff")
@click.argument("before", metavar="FILE|CLUSTER/ROLE@VERSION")
@click.argument("after", metavar="FILE|CLUSTER/ROLE@VERSION")
@TALOS_OF_FILES
@printing
def diff_(session: Session, before: str, after: str, generation: Generation | None) -> None:
    """Tell what changes from one configuration to another; that a secret changes is told, never the secret.

    Two files, which need --talos, or two versions that the service keeps of one role's base configuration: it never
    hands out a text that a file could be compared with.

    \b
    Examples:
      attestation config diff old.yaml new.yaml --talos v1.13.9
      attestation config diff default/worker-app@2 default/worker-app@3
    """
    if _is_kept(before) != _is_kept(after):
        raise click.UsageError("two files, or two versions that the service keeps")
    if _is_kept(before):
        one, other = base_of(before), base_of(after)
        if one.name != other.name:
            raise click.UsageError("two versions of one base configuration")
        with session.client() as client:
            emit_changes(session, one.diff(client, named_version(one), named_version(other)).changes)
        return
    from attestation.talos.redaction import differences

    with of_a_file():
        found = differences(read(_file(before)), read(_file(after)), _demanded(generation))
    emit_changes(session, found)


def _is_kept(what: str) -> bool:
    return is_base(what) and not Path(what).is_file()


def _file(what: str) -> Path:
    path = Path(what)
    if not path.is_file():
        raise click.UsageError(f"{clean(what)}: no such file, and no CLUSTER/ROLE@VERSION")
    return path


def _demanded(generation: Generation | None) -> Generation:
    if generation is None:
        raise click.UsageError("a file needs --talos: which version of Talos the machines run")
    return generation
