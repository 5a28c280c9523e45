"""`attestation config lint|preview|diff`: configurations of Talos machines, in files, offline."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from attestation.client.text import clean
from attestation.errors import BaseConfigInvalid, RequestInvalid
from attestation.machines import Role
from attestation_cli.failures import ExitCode
from attestation_cli.options import EXISTING_FILE, printing
from attestation_cli.render import Column
from attestation_cli.session import Session

if TYPE_CHECKING:
    from attestation.talos.versions import Generation

FILE = click.argument("file", type=EXISTING_FILE)


def _generation(_ctx: click.Context, _param: click.Parameter, value: str) -> Generation:
    from attestation.talos.versions import generation_of

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

    with _of_a_file():
        found = lint(_read(file), generation, Role(role) if role else None)
    if session.json:
        session.emit_json({"findings": [_as_json(each) for each in found]})
    else:
        session.emit_rows(
            found,
            {
                Column("LEVEL"): lambda f: f.level.value,
                Column("DOC"): lambda f: str(f.document),
                Column("KIND", shrink_to=12): lambda f: f.kind or "v1alpha1",
                Column("PATH", shrink_to=16): lambda f: f.path,
                Column("WHAT", shrink_to=16): lambda f: f.words,
            },
            f"Nothing to say: Talos {generation.schema_version} takes it.",
        )
    if any(each.level is Level.ERROR for each in found):
        click.get_current_context().exit(ExitCode.NEGATIVE)


def _as_json(finding: Any) -> dict[str, Any]:
    return {
        "document": finding.document,
        "kind": finding.kind or "v1alpha1",
        "path": finding.path,
        "level": finding.level.value,
        "words": finding.words,
    }


@click.command("preview")
@FILE
@TALOS
@printing
def preview_(session: Session, file: Path, generation: Generation) -> None:
    """Show FILE without its secrets, so that it can be shown to others.

    Shown is what the schema of that version knows as no secret; all else, comments and documents of unknown kinds
    among it, is hidden.

    \b
    Examples:
      attestation config preview controlplane-final.yaml --talos v1.9.5
    """
    from attestation.talos.redaction import preview

    with _of_a_file():
        text = preview(_read(file), generation)
    session.emit_done(text.rstrip("\n"), {"configuration": text})


@click.command("diff")
@click.argument("before", type=EXISTING_FILE)
@click.argument("after", type=EXISTING_FILE)
@TALOS
@printing
def diff_(session: Session, before: Path, after: Path, generation: Generation) -> None:
    """Tell what changes from one configuration to another; that a secret changes is told, never the secret.

    \b
    Examples:
      attestation config diff old.yaml new.yaml --talos v1.13.9
    """
    from attestation.talos.redaction import differences

    with _of_a_file():
        found = differences(_read(before), _read(after), generation)
    if session.json:
        session.emit_json(
            {
                "changes": [
                    {"document": e.document, "path": e.path, "before": e.before, "after": e.after}
                    for e in found
                ]
            }
        )
        return
    session.emit_rows(
        found,
        {
            Column("DOCUMENT", shrink_to=12): lambda c: c.document,
            Column("PATH", shrink_to=16): lambda c: c.path,
            Column("BEFORE", shrink_to=12): lambda c: c.before,
            Column("AFTER", shrink_to=12): lambda c: c.after,
        },
        "No differences.",
    )


@contextlib.contextmanager
def _of_a_file() -> Iterator[None]:
    """Tell of a file what a service would tell of its own: here it is what was given that is at fault."""
    try:
        yield
    except BaseConfigInvalid as e:
        raise RequestInvalid(str(e)) from None


def _read(path: Path) -> bytes:
    """Return the text of a file.

    Raises:
        RequestInvalid: It cannot be read, or is larger than any configuration.
    """
    from attestation.talos.documents import MAX_BYTES

    try:
        with path.open("rb") as file:
            text = file.read(MAX_BYTES + 1)
    except OSError as e:
        raise RequestInvalid(f"{clean(str(path))}: {e.strerror}") from e
    if len(text) > MAX_BYTES:
        raise RequestInvalid(f"{clean(str(path))}: more than {MAX_BYTES} bytes")
    return text
