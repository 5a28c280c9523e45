"""`attestation dev …`: what the test kit makes, for tests of others.

The command line finds this by its entry point for plug-ins, as it finds a stranger's: nothing that ships imports the
test kit (docs/adr/0023-certificates-are-read-byte-by-byte.md).
"""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from attestation.errors import RequestInvalid
from attestation_testing import new_extension
from attestation_testing.ek_zoo import TEMPLATES, Zoo, write

VENDORS = ("AMD", "IFX", "INTC", "MSFT", "NSG", "NTC", "STM")


@click.group("dev")
def group() -> None:
    """Material for testing verifiers, of which nothing may be trusted, and a beginning for extensions.

    \b
    Examples:
      attestation dev ek-zoo ./zoo
      attestation dev new-extension visits
    """  # noqa: D301 -- \b is click's mark for lines that stay as they are


@group.command("ek-zoo")
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path))
@click.option(
    "--seed", type=click.IntRange(0), default=0, metavar="N", help="The same seed writes the same bytes [0]."
)
@click.option("--vendor", "vendors", multiple=True, type=click.Choice(VENDORS), help="Only of this vendor.")
@click.option(
    "--template",
    "templates",
    multiple=True,
    type=click.Choice(list(TEMPLATES)),
    help="Only of this template.",
)
@click.option("--good-only", is_flag=True, help="Leave out what must be refused.")
def write_ek_zoo(
    directory: Path, seed: int, vendors: tuple[str, ...], templates: tuple[str, ...], *, good_only: bool
) -> None:
    """Write a zoo of EK certificates to DIRECTORY, with what must come of each.

    Made-up CAs of seven vendors, EK certificates of every template with every oddity that is met in the field, and
    certificates that must be refused. expected.json says what of each; README.md says how to use it. Takes about ten
    seconds and 30 MB for all. --vendor and --template may be given several times.

    \b
    Examples:
      attestation dev ek-zoo ./zoo
      attestation dev ek-zoo ./zoo --vendor STM --template L-2 --seed 7
    """  # noqa: D301 -- as above
    if directory.exists() and any(directory.iterdir()):
        raise RequestInvalid(f"{directory} is not empty")
    zoo = Zoo(seed)
    entries = list(zoo.entries(vendors=vendors or None, templates=templates or None, defects=not good_only))
    try:
        write(zoo, entries, directory)
    except OSError as e:
        raise RequestInvalid(f"{directory}: {e.strerror}") from e
    good = sum(entry.accepted for entry in entries)
    click.echo(f"{len(entries)} EK certificates, {good} to accept and {len(entries) - good} to refuse")
    click.echo(f"{len(zoo.held)} authorities; what is expected of each stands in {directory}/expected.json")


@group.command("new-extension")
@click.argument("name")
@click.option(
    "--to",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="The folder to write, which must not exist or be empty [./attestation-NAME].",
)
def write_new_extension(name: str, folder: Path | None) -> None:
    """Write an extension of the service called NAME: a package that works, with its tests.

    It has settings, a table, routes for operators and for machines, a handler of an event, a table for queries, and a
    group of commands; its tests are the suite that every extension passes. NAME has small letters, digits and _, and is
    no word of the service: no distribution, path, event or command of its own.

    \b
    Examples:
      attestation dev new-extension visits
      attestation dev new-extension visits --to ./src/visits
    """  # noqa: D301 -- as above
    dashed = name.replace("_", "-")
    root = click.get_current_context().find_root()
    if isinstance(root.command, click.Group) and dashed in root.command.list_commands(root):
        raise RequestInvalid(f"attestation {dashed} is a command already")
    folder = folder or Path(f"attestation-{dashed}")
    for path in new_extension.write(name, folder):
        click.echo(path)
    # With a slash: without one pip takes a word for the name of a project of the index, which may be anybody's.
    there = shlex.quote(str(folder) if folder.is_absolute() else f"./{folder}")
    click.echo(f"next: pip install {there}, then ITL_EXTENSIONS={name} attestation-service --check")
