"""Options that many commands have: how to print, what of a list, and whether to propose anew."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from attestation_cli.login.profiles import OUTPUTS
from attestation_cli.session import Session, pass_session

EXISTING_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
FILE_PATH = click.Path(dir_okay=False, path_type=Path)
FOLDER_PATH = click.Path(file_okay=False, path_type=Path)
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}

Command = TypeVar("Command", bound=Callable[..., Any])


def _set_output(ctx: click.Context, _param: click.Parameter, value: str | None) -> None:
    if value is not None:
        session = ctx.ensure_object(Session)
        session.output, session.output_given = value, True


def _set_debug(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    session = ctx.ensure_object(Session)
    if value and not session.debug:
        from attestation.client.trace import watching

        session.debug = True
        # Until the whole run ends: a group's own context is closed before its commands are done.
        ctx.find_root().with_resource(watching(session.tell_exchange))


def output_option(command: Command) -> Command:
    """Add `-o/--output` and `-v/--debug`; both may stand before or after the command."""
    command = click.option(
        "-v",
        "--debug",
        is_flag=True,
        callback=_set_debug,
        expose_value=False,
        is_eager=True,
        help="Tell of each request on stderr.",
    )(command)
    return click.option(
        "-o",
        "--output",
        type=click.Choice(OUTPUTS),
        callback=_set_output,
        expose_value=False,
        is_eager=True,
        help="How to print [default: table]",
    )(command)


def _set_arrangement(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    if value is None:
        return
    names = tuple(name.strip() for name in value.split(",") if name.strip())
    if not names:
        raise click.BadParameter("name at least one column, as the heading of -o csv does", ctx, param)
    session = ctx.ensure_object(Session)
    if param.name == "sort":
        session.order = names
    else:
        session.columns = names


def listing_options(command: Command) -> Command:
    """Add `--columns`, `--sort` and `-o/--output`: for a command that prints one list, with `emit_table`."""
    for name, text in (
        ("--sort", "Sort what is listed by these columns; a minus in front (-seen) turns one round."),
        ("--columns", "Show only these columns, in this order; the heading of `-o csv` names them."),
    ):
        command = click.option(
            name, metavar="NAME,…", callback=_set_arrangement, expose_value=False, help=text
        )(command)
    return output_option(command)


def printing(command: Callable[..., None]) -> Callable[..., None]:
    """Add `-o/--output` and `-v/--debug`, and hand the command the session that they were given to."""
    return output_option(pass_session(command))


def seconds(_ctx: click.Context, _param: click.Parameter, value: str) -> int:
    """Read how long something lasts, as a number and a unit."""
    match = re.fullmatch(r"([1-9][0-9]{0,8})([smhd])", value)
    if match is None:
        raise click.BadParameter("needs a number and a unit, e.g. 90s, 30m, 12h, 7d")
    return int(match[1]) * UNITS[match[2]]


def listing(command: Callable[..., None]) -> Callable[..., None]:
    """Hand the command its session, too, and add what `listing_options` adds."""
    return listing_options(pass_session(command))


def new_proposal_option(command: Command) -> Command:
    """Add `--new-proposal`, for an act that several may have to agree to."""
    return click.option(
        "--new-proposal",
        is_flag=True,
        callback=_set_beside_others,
        expose_value=False,
        help="Propose it although another proposal about the same thing waits for votes.",
    )(command)


def _set_beside_others(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    ctx.ensure_object(Session).beside_others = value
