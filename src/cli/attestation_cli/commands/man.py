"""`attestation man`: manual pages, made of what `--help` is made of."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click

from attestation import __version__
from attestation.errors import RequestInvalid
from attestation.manual import Block, Page, Terms, Verbatim, roff
from attestation_cli.groups import EXIT_CODES, GROUPS
from attestation_cli.options import FOLDER_PATH, printing
from attestation_cli.session import Session


@click.command("man")
@click.argument("command", nargs=-1)
@click.option(
    "--to",
    "directory",
    type=FOLDER_PATH,
    help="Write the pages of all commands into this folder instead, e.g. /usr/local/share/man/man1.",
)
@printing
@click.pass_context
def group(ctx: click.Context, session: Session, command: tuple[str, ...], directory: Path | None) -> None:
    """Print the manual page of a command, or write those of all commands.

    They say what `--help` says, for `man` and `apropos`.

    \b
    Examples:
      attestation man machine list | man -l -
      attestation man --to /usr/local/share/man/man1
      attestation man --to ~/.local/share/man/man1
    """
    root = ctx.find_root().command
    assert isinstance(root, click.Group)
    if directory is None:
        session.emit(roff(_found(root, command), _version()).rstrip("\n"))
        return
    if command:
        raise RequestInvalid("--to writes the pages of all commands: name none")
    count = 0
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for page in pages(root):
            (directory / page.file).write_text(roff(page, _version()), encoding="utf-8")
            count += 1
    except OSError as e:
        raise RequestInvalid(f"{directory} cannot be written: {e.strerror}") from e
    session.emit_done(f"{count} pages written to {directory}", {"pages": count, "directory": str(directory)})


def _top(root: click.Group) -> click.Context:
    return click.Context(root, info_name="attestation", **root.context_settings)


def _version() -> str:
    return f"attestation {__version__}"  # all that is ours is of one version


def _found(root: click.Group, words: tuple[str, ...]) -> Page:
    """Return the page of the command that *words* name.

    Raises:
        RequestInvalid: There is none.
    """
    context = _top(root)
    for word in words:
        below = (
            context.command.get_command(context, word) if isinstance(context.command, click.Group) else None
        )
        if below is None:
            raise RequestInvalid(f"there is no command {' '.join(('attestation', *words))!r}")
        context = click.Context(below, info_name=word, parent=context)
    return page_of(context)


def pages(root: click.Group) -> Iterator[Page]:
    """Yield the page of each command of our own; plug-ins bring theirs."""

    def below(context: click.Context) -> Iterator[Page]:
        yield page_of(context)
        if isinstance(context.command, click.Group):
            # Ours alone: what plug-ins add differs from one installation to the next.
            names = GROUPS if context.parent is None else sorted(context.command.commands)
            for name in names:
                command = context.command.get_command(context, name)
                assert command is not None
                if not command.hidden:
                    yield from below(click.Context(command, info_name=name, parent=context))

    yield from below(_top(root))


def page_of(context: click.Context) -> Page:
    """Return the manual page of a command."""
    command = context.command
    paragraphs = re.split(r"\n[ \t]*\n", (command.help or "").strip())
    text: list[Block] = []
    examples: list[Block] = []
    for paragraph in paragraphs:
        lines = paragraph.splitlines()
        if lines[0].strip() != "\b":
            text.append(" ".join(lines))
        elif lines[1].strip() == "Examples:":
            examples.append(Verbatim([line.strip() for line in lines[2:]]))
        else:
            text.append(Verbatim(lines[1:]))
    options = [
        record for p in command.get_params(context) if (record := p.get_help_record(context)) is not None
    ]
    commands: list[tuple[str, str]] = []
    if context.parent is None:
        commands = [(name, words) for name, (_, words) in GROUPS.items()]
    elif isinstance(command, click.Group):
        commands = [
            (name, found.get_short_help_str(limit=200))
            for name in sorted(command.commands)
            if (found := command.get_command(context, name)) is not None and not found.hidden
        ]
    return Page(
        name=context.command_path,
        summary=re.split(r"[:;.](?:\s|$)", " ".join(paragraphs[0].split()), maxsplit=1)[0],
        synopsis=[" ".join(command.collect_usage_pieces(context))],
        sections=[
            ("Description", text),
            ("Options", [Terms(options)]),
            ("Commands", [Terms(commands)]),
            ("Exit status", [Terms(EXIT_CODES)]),
            ("Examples", examples),
            ("See also", _see_also(context, [name for name, _ in commands])),
        ],
    )


def _see_also(context: click.Context, commands: list[str]) -> list[Block]:
    above = [] if context.parent is None else [context.parent.command_path]
    names = [*above, *(f"{context.command_path} {name}" for name in commands)]
    return [", ".join(f"{name.replace(' ', '-')}(1)" for name in names)]
