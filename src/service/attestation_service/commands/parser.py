"""The words of the command line. Without a command the service runs, with the same options as `run`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any, Final

from attestation import completion, manual
from attestation_service import __version__

PAGES: Final = Path(sys.prefix) / "share/doc/itl-attestation-service"
"""Where the wheel puts the pages for who operates it."""


def parser() -> argparse.ArgumentParser:
    """Return the parser; `options.command` names the module of a command, None where the service is to run."""
    whole = argparse.ArgumentParser(
        prog="attestation-service",
        formatter_class=argparse.RawDescriptionHelpFormatter,  # a path that is broken into lines is none
        description="The attestation control plane. Its settings are environment variables that begin with ITL_.",
        epilog=f"Every setting, with its default: {PAGES / 'operate/settings.md'}",
    )
    _of_run(whole)
    whole.add_argument("--man", action=manual.Print, help="print the manual page: ... | man -l -")
    whole.add_argument("--completion", action=completion.Print, help="print the completion for a shell")
    whole.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    whole.set_defaults(command=None)
    commands = whole.add_subparsers(title="commands", metavar="COMMAND")
    served = _command(commands, "run", "serve; what is done where no command is named, with the same options")
    _of_run(served)
    for action in served._actions:  # noqa: SLF001 -- argparse shows its options nowhere else
        action.default = argparse.SUPPRESS  # what was said before the word stays
    doctor = _command(commands, "doctor", "look at the whole installation and say what to do", "doctor")
    _output(doctor, "what it tells")
    _of_database(_command(commands, "db", "look after the database"))
    backup = _command(
        commands, "backup", "copy the database, and the keys if wanted, to a new folder", "backup"
    )
    backup.add_argument("--to", metavar="FOLDER", required=True, help="to make; it must not exist yet")
    backup.add_argument(
        "--keys",
        action="store_true",
        help="copy the folder of the keys too; then the backup is as secret as they are",
    )
    restore = _command(commands, "restore", "carry a backup into an empty database of either kind", "restore")
    restore.add_argument("--from", dest="source", metavar="FOLDER", required=True, help="that `backup` made")
    restore.add_argument("--url", help="the empty database to use, in place of ITL_DB_URL")
    restore.add_argument(
        "--keys", action="store_true", help="put the keys back too; their folder must be empty"
    )
    return whole


def _command(group: Any, name: str, words: str, module: str | None = None) -> argparse.ArgumentParser:
    made: argparse.ArgumentParser = group.add_parser(
        name, help=words, description=f"{words[:1].upper()}{words[1:]}."
    )
    if module is not None:
        made.set_defaults(command=module)
    return made


def _of_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--host", default="0.0.0.0", help="address to listen on (default 0.0.0.0)")  # noqa: S104 -- a server
    parser.add_argument("--port", type=int, default=8080, help="TCP port to listen on (default 8080)")
    parser.add_argument("--uds", metavar="PATH", help="listen on this Unix socket instead")
    parser.add_argument("--workers", type=_count, default=1, help="processes that serve (default 1)")
    parser.add_argument(
        "--check",
        action="store_true",
        help="look at everything that a start needs, touch nothing, and exit: 0 if a start would serve",
    )
    _output(parser, "what --check tells")
    parser.add_argument(
        "--prepare",
        action="store_true",
        help="do what a start does before it serves (migrate the database, make keys that are missing), then exit",
    )
    parser.add_argument(
        "--accept-restored-database",
        action="store_true",
        help="take the database as it is, though the audit log's keys remember another or a newer one; then exit",
    )


def _of_database(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    upgrade = _command(commands, "upgrade", "bring the schema to the revision of this program", "db_upgrade")
    status = _command(
        commands, "status", "say where it is, at which revision, and what is in it", "db_status"
    )
    check = _command(
        commands, "check", "look whether it is whole: file, schema, audit log, identity", "db_check"
    )
    for each in (status, check):
        _output(each, "what it tells")
    for each in (status, upgrade, check):
        each.add_argument("--url", help="the database to use, in place of ITL_DB_URL")
    upgrade.add_argument(
        "--grant-to",
        metavar="ROLE",
        help="let this role of PostgreSQL do what the running service does, and no more",
    )
    copy = _command(commands, "copy", "carry all rows into an empty database of either kind", "db_copy")
    copy.add_argument(
        "--from", dest="source", metavar="URL", help="the database to copy (default: ITL_DB_URL)"
    )
    copy.add_argument(
        "--to", dest="target", metavar="URL", required=True, help="the empty database to copy into"
    )


def _output(parser: argparse.ArgumentParser, of: str) -> None:
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text", help=f"form of {of}")


def _count(text: str) -> int:
    count = int(text)
    if count < 1:
        raise argparse.ArgumentTypeError("at least one")
    return count
