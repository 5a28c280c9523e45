"""The command `attestation`: global options, groups, and the border where errors become texts.

Groups are imported when they are used, so `--help` and completion start fast.
"""

from __future__ import annotations

import importlib
import re
from typing import TYPE_CHECKING, Any

import click

from attestation import output
from attestation.errors import AttestationError
from attestation_cli.groups import EXIT_CODES, GROUPS
from attestation_cli.options import FILE_PATH, output_option
from attestation_cli.session import DEFAULT_URL, Session

if TYPE_CHECKING:
    from attestation_cli.plugins import Plugins


def _clause(text: str) -> str:
    """Return what *text* says first, up to where it explains; whole, where click would break off with an ellipsis."""
    first = re.split(r"[:;.](?:\s|$)", " ".join(text.split("\n\n")[0].split()), maxsplit=1)[0]
    return f"{first}."


class Root(click.Group):
    """The top group: imports its commands late, finds plug-ins, and turns errors into texts and exit codes."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._plugins: Plugins | None = None

    @property
    def plugins(self) -> Plugins:
        """The commands of other distributions; looked for when the first one may be meant."""
        if self._plugins is None:
            from attestation_cli.plugins import Plugins

            self._plugins = Plugins(GROUPS, lambda text: click.echo(text, err=True))
        return self._plugins

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 -- click's signature
        """Return the names of the commands, in the order in which they are best read; plug-ins last."""
        return [*GROUPS, *sorted(self.plugins.names())]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command *cmd_name*; a built-in one is never looked for elsewhere."""
        group: click.Command | None
        if cmd_name in GROUPS:
            group = importlib.import_module(GROUPS[cmd_name][0]).group
            assert isinstance(group, click.Command)
        else:
            group = self.plugins.load(cmd_name)
        if isinstance(group, click.Group):
            for below in group.list_commands(ctx):
                command = group.get_command(ctx, below)
                if command is not None and command.help:
                    command.short_help = command.short_help or _clause(command.help)
        return group

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Keep what was typed: who must run it again is told the whole of it."""
        ctx.ensure_object(Session).arguments = tuple(args)
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; where there is none of this name, those so called in groups are named, or the nearest."""
        try:
            return super().resolve_command(ctx, args)
        except click.exceptions.NoSuchCommand as e:
            if inside := self._inside_groups(ctx, e.command_name):
                told = f"No such command {e.command_name!r}. Did you mean {' or '.join(inside)}?"
                raise click.exceptions.NoSuchCommand(e.command_name, told, ctx=ctx) from None
            # click compares with commands that are loaded; ours are loaded when they are used.
            near = self.list_commands(ctx)
            raise click.exceptions.NoSuchCommand(e.command_name, possibilities=near, ctx=ctx) from None

    def _inside_groups(self, ctx: click.Context, name: str) -> list[str]:
        """Return where a command *name* stands, in quotes: 'auth login' of `login`."""
        groups = ((group, self.get_command(ctx, group)) for group in GROUPS)
        return [
            f"'{at} {name}'"
            for at, group in groups
            if isinstance(group, click.Group) and name in group.commands
        ]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 -- as above
        """List the commands without importing them, then the exit codes."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in GROUPS.items()])
        if added := self.plugins.names():
            with formatter.section("Commands of plug-ins"):
                formatter.write_dl([(name, f"From {origin}.") for name, origin in sorted(added.items())])
        with formatter.section("Exit codes"):
            formatter.write_dl(EXIT_CODES)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; an error of ours, or of a plug-in, ends it with a text and its exit code."""
        try:
            return super().invoke(ctx)
        except AttestationError as e:
            return self._report(ctx, e)
        except KeyboardInterrupt:
            session = ctx.find_object(Session)
            if session is None or not session.acted:
                raise
            from attestation.client import OutcomeUnknown

            # Whoever ends the wait for an answer has not ended the act.
            return self._report(ctx, OutcomeUnknown("you ended it", key=session.again or ""))
        except (click.ClickException, click.exceptions.Exit, click.Abort, SystemExit):
            raise
        except BrokenPipeError:
            raise  # who reads has enough, of a plug-in's lines as of ours: click ends in silence
        except BaseException as e:
            # Ours would be a bug, and must look like one; a plug-in's must not look like ours, also where it is no
            # `Exception`: the panic of what was compiled for it.
            name = ctx.invoked_subcommand
            if name is None or name in GROUPS:
                raise
            return self._report(ctx, self.plugins.failed(name, e))

    @staticmethod
    def _report(ctx: click.Context, error: AttestationError) -> Any:
        from attestation_cli.failures import report

        ctx.exit(report(error, ctx.find_object(Session) or Session()))


def _checked_key(_ctx: click.Context, _param: click.Parameter, value: str | None) -> str | None:
    if value is not None and not re.fullmatch(r"[A-Za-z0-9-]{1,64}", value):
        raise click.BadParameter("the key is printed with the command whose answer was lost; copy it whole")
    return value


@click.group(
    cls=Root,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Log in with `attestation auth login`. Break-glass: the operator token is read from ITL_ADMIN_TOKEN or "
    "--token-file, never from the command line, and goes before a login.",
)
@click.version_option(package_name="itl-attestation-cli", prog_name="attestation")
@click.option(
    "--profile",
    envvar="ITL_PROFILE",
    metavar="NAME",
    help="Settings under this name in ~/.itl/config.toml [ITL_PROFILE]",
)
@click.option(
    "--api-url",
    metavar="URL",
    help=f"Address of the service [ITL_API_URL; default {DEFAULT_URL}]",
)
@click.option(
    "--token-file",
    envvar="ITL_ADMIN_TOKEN_FILE",
    type=FILE_PATH,
    help="File with the operator token [ITL_ADMIN_TOKEN_FILE]",
)
@click.option(
    "--ca-file",
    type=click.Path(dir_okay=False),
    help="PEM file with the only CAs to trust [ITL_CA_FILE]",
)
@click.option(
    "--client-cert",
    type=click.Path(dir_okay=False),
    help="PEM file of a certificate to come with, instead of a login or token [ITL_API_CLIENT_CERT]",
)
@click.option(
    "--client-key",
    type=click.Path(dir_okay=False),
    help="PEM file of its key; default: in the same file [ITL_API_CLIENT_KEY]",
)
@click.option(
    "--allow-plain-http", is_flag=True, help="Send the token to another computer without TLS (unsafe)"
)
@click.option(
    "--again",
    metavar="KEY",
    callback=_checked_key,
    help="Ask again for what a command may have done whose answer was lost; nothing is done twice",
)
@output_option
@click.pass_context
def cli(ctx: click.Context, /, **given: Any) -> None:
    """Decide which machines may join, and see why."""
    session = ctx.ensure_object(Session)
    session.take_options(given)
    session.again = given["again"]


def main() -> None:
    """Entry point of the console script."""
    with output.to_the_end("attestation", 2):
        cli(prog_name="attestation")
