"""The command `attestation`: global options, groups, and the border where errors become texts.

Groups are imported when they are used, so `--help` and completion start fast.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from attestation.errors import AttestationError
from attestation_cli.login.profiles import config_path, load
from attestation_cli.session import DEFAULT_URL, Session, output_option

GROUPS: Mapping[str, tuple[str, str]] = {
    "auth": ("attestation_cli.commands.auth", "Log in and out; who you are."),
    "machine": ("attestation_cli.commands.machine", "List, judge and explain machines."),
    "token": ("attestation_cli.commands.token", "Registration tokens: admit whoever presents one."),
    "allow-list": ("attestation_cli.commands.allow_list", "EKs that are admitted in advance."),
    "audit": ("attestation_cli.commands.audit", "Read and verify the audit chain."),
    "policy": ("attestation_cli.commands.policy", "What machines are measured against."),
}


class Root(click.Group):
    """The top group: imports its groups late, and turns our errors into texts and exit codes."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 -- click's signature
        """Return the names of the groups, in the order in which they are best read."""
        return list(GROUPS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 -- as above
        """Import the group *cmd_name*."""
        if cmd_name not in GROUPS:
            return None
        group = importlib.import_module(GROUPS[cmd_name][0]).group
        assert isinstance(group, click.Group)
        return group

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 -- as above
        """List the groups without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in GROUPS.items()])

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; an error of ours ends it with a text and its exit code."""
        try:
            return super().invoke(ctx)
        except AttestationError as e:
            from attestation_cli.failures import report

            ctx.exit(report(e, ctx.find_object(Session) or Session()))


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
    *,
    allow_plain_http: bool,
) -> None:
    """Decide which machines may join, and see why."""
    session = ctx.ensure_object(Session)
    session.options = {
        name: given for name, given in (("api_url", api_url), ("ca_file", ca_file)) if given is not None
    }
    session.profile_name, session.profile = load(config_path()).chosen(profile)
    session.token_file = token_file
    session.apply_settings()
    session.allow_plain_http = allow_plain_http


def main() -> None:
    """Entry point of the console script."""
    cli(prog_name="attestation")
