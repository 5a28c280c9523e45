"""The command `attestation`: global options, groups, and the border where errors become texts.

Groups are imported when they are used, so `--help` and completion start fast.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from attestation.errors import AttestationError
from attestation_cli.login.profiles import config_path, load
from attestation_cli.session import DEFAULT_URL, Session, output_option

if TYPE_CHECKING:
    from attestation_cli.plugins import Plugins

GROUPS: Mapping[str, tuple[str, str]] = {
    "auth": ("attestation_cli.commands.auth", "Log in and out; who you are."),
    "machine": ("attestation_cli.commands.machine", "List, judge and explain machines."),
    "result": ("attestation_cli.commands.result", "Verify what the service says of a machine, by yourself."),
    "approval": ("attestation_cli.commands.approval", "What waits for the vote of another operator."),
    "token": ("attestation_cli.commands.token", "Registration tokens: admit whoever presents one."),
    "allow-list": ("attestation_cli.commands.allow_list", "EKs that are admitted in advance."),
    "audit": ("attestation_cli.commands.audit", "Read and verify the audit chain."),
    "witness": ("attestation_cli.commands.witness", "Cosign the checkpoints of somebody's audit log."),
    "policy": ("attestation_cli.commands.policy", "What machines are measured against."),
    "ca": ("attestation_cli.commands.ca", "The CA: its keys, what they have signed, how they are rotated."),
    "operator-cert": (
        "attestation_cli.commands.operator_cert",
        "Client certificates of operators, viewers and auditors.",
    ),
    "trust": ("attestation_cli.commands.trust", "Whose word about TPMs the service takes."),
    "tpm-bundle": (
        "attestation_cli.commands.tpm_bundle",
        "Which manufacturers' certificates vouch for TPMs.",
    ),
    "crypto": (
        "attestation_cli.commands.crypto",
        "Which algorithms are in use, and what the suites of the NSA say.",
    ),
    "stats": ("attestation_cli.commands.stats", "Count machines by status, role and trust."),
    "health": ("attestation_cli.commands.health", "Ask whether the service can decide."),
    "version": ("attestation_cli.commands.version", "Tell the versions of this program and of the service."),
    "config": ("attestation_cli.commands.config", "See and set the settings of this program."),
    "completion": ("attestation_cli.commands.completion", "Complete commands and machines in the shell."),
}


EXIT_CODES = (
    ("0", "done; under dual control also: your vote counts, others must follow"),
    ("1", "the answer is no: not trusted, not valid, not confirmed"),
    ("2", "the command or its values are wrong; nothing was changed"),
    ("3", "what you named does not exist (any more)"),
    ("4", "you are not logged in, or you may not"),
    ("5", "it exists, but not in a state that allows this; or several are meant"),
    ("6", "no answer, or none now: unreachable, unavailable, too often"),
)


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

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 -- as above
        """Import the command *cmd_name*; a built-in one is never looked for elsewhere."""
        if cmd_name not in GROUPS:
            return self.plugins.load(cmd_name)
        group = importlib.import_module(GROUPS[cmd_name][0]).group
        assert isinstance(group, click.Command)
        if isinstance(group, click.Group):
            for command in group.commands.values():
                command.short_help = command.short_help or _clause(command.help or "")
        return group

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
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except Exception as e:
            # Ours would be a bug, and must look like one; a plug-in's must not look like ours.
            name = ctx.invoked_subcommand
            if name is None or name in GROUPS:
                raise
            return self._report(ctx, self.plugins.failed(name, e))

    @staticmethod
    def _report(ctx: click.Context, error: AttestationError) -> Any:
        from attestation_cli.failures import report

        ctx.exit(report(error, ctx.find_object(Session) or Session()))


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
    type=click.Path(dir_okay=False, path_type=Path),
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
@output_option
@click.pass_context
def cli(
    ctx: click.Context,
    profile: str | None,
    api_url: str | None,
    token_file: Path | None,
    ca_file: str | None,
    client_cert: str | None,
    client_key: str | None,
    *,
    allow_plain_http: bool,
) -> None:
    """Decide which machines may join, and see why."""
    prepare(
        ctx.ensure_object(Session),
        profile=profile,
        api_url=api_url,
        token_file=token_file,
        ca_file=ca_file,
        client_cert=client_cert,
        client_key=client_key,
        allow_plain_http=allow_plain_http,
    )


def prepare(
    session: Session,
    *,
    profile: str | None,
    api_url: str | None,
    token_file: Path | None,
    ca_file: str | None,
    client_cert: str | None = None,
    client_key: str | None = None,
    allow_plain_http: bool,
) -> None:
    """Put the options before the command into *session*, and what environment and profile say besides."""
    options = {
        "api_url": api_url, "ca_file": ca_file, "client_cert": client_cert, "client_key": client_key,
    }  # fmt: skip
    session.options = {name: given for name, given in options.items() if given is not None}
    session.profile_name, session.profile = load(config_path()).chosen(profile)
    session.token_file = token_file
    session.apply_settings()
    session.allow_plain_http = allow_plain_http


def main() -> None:
    """Entry point of the console script."""
    cli(prog_name="attestation")
