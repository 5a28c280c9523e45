"""The program: `attestation-operator COMMAND`. A setting is a variable that begins with ITL_OPERATOR_, and a flag."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from attestation import __version__, completion, manual, output

if TYPE_CHECKING:
    from attestation_operator.settings import CommandSettings

PROGRAM: Final = "attestation-operator"
PAGES: Final = Path(sys.prefix) / "share/doc/itl-attestation-operator"
"""Where the wheel puts the pages for who operates it."""

EXIT_UNUSABLE: Final = 1
EXIT_USAGE: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command that runs until it is told to stop.

    Args:
        words: What it is for.
        settings: `module:name` of its settings, a class below `CommandSettings`; each is a flag too.
        run: `module:name` of what runs it: `async def run(settings, *, clock, log) -> None`.
    """

    words: str
    settings: str
    run: str


def _of_nodes(name: str, words: str) -> Command:
    return Command(
        words=words,
        settings="attestation_operator.settings:Settings",
        run=f"attestation_operator.nodes.commands:{name}",
    )


CONTROLLERS: Final = {
    "approver": _of_nodes(
        "approver", "approve or deny certificate requests of nodes, as the attestation service judges them"
    ),
    "signer": _of_nodes("signer", "put certificates of the service's CA into approved requests"),
    "nodes": _of_nodes(
        "nodes", "label Nodes whose machine is trusted; taint or cordon the others, where that is chosen"
    ),
}
"""Those of nodes."""

COMMANDS: Final[Mapping[str, Command]] = CONTROLLERS | {
    "runs": Command(
        words="take attestation runs of nodes to their end: verdict, result, events, seal",
        settings="attestation_operator.runs.settings:RunSettings",
        run="attestation_operator.runs.commands:runs",
    ),
    "hsm": Command(
        words="sign for cert-manager and Kubernetes with CA keys that stay in attested hardware",
        settings="attestation_operator.hsm.settings:HsmSettings",
        run="attestation_operator.hsm.commands:hsm",
    ),
    "webhook": Command(
        words="refuse attestation runs that cannot be, for an API server without ValidatingAdmissionPolicies",
        settings="attestation_operator.runs.webhook_settings:WebhookSettings",
        run="attestation_operator.runs.webhook:run",
    ),
    "agent": Command(
        words="collect, on one node, what its hardware says for attestation runs",
        settings="attestation_operator.runs.agent_settings:AgentSettings",
        run="attestation_operator.runs.agent_program:run",
    ),
}


def parser() -> argparse.ArgumentParser:
    """Return the words of the command line."""
    whole = argparse.ArgumentParser(
        prog=PROGRAM,
        formatter_class=argparse.RawDescriptionHelpFormatter,  # a path that is broken into lines is none
        description="Controllers of a Kubernetes cluster, clients of the attestation service.\n"
        "Each setting is an environment variable that begins with ITL_OPERATOR_, and a flag, which wins.",
        epilog=f"Every setting, with its default: {PAGES / 'kubernetes/controllers.md'}",
    )
    whole.add_argument("--man", action=manual.Print, help="print the manual page: ... | man -l -")
    whole.add_argument("--completion", action=completion.Print, help="print the completion for a shell")
    whole.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = whole.add_subparsers(dest="command", required=True, title="commands", metavar="COMMAND")
    for name, command in COMMANDS.items():
        words = command.words
        below = commands.add_parser(name, help=words, description=f"{words[:1].upper()}{words[1:]}.")
        _add_flags(below, _named(command.settings))
    words = "print the CustomResourceDefinitions, YAML"
    commands.add_parser("crds", help=words, description=f"{words[:1].upper()}{words[1:]}.")
    return whole


def _named(place: str) -> Any:
    """Return what is at `module:name`."""
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)


def _add_flags(parser: argparse.ArgumentParser, settings: type[CommandSettings]) -> None:
    """Add a flag for each setting; one for yes or no may stand without a value."""
    for name, flag in settings.flags().items():
        field = settings.model_fields[name]
        yes: dict[str, Any] = {"nargs": "?", "const": "true"} if field.annotation is bool else {}
        words = (field.description or "").replace("%", "%%")
        value = name.rpartition("_")[2].upper()
        parser.add_argument(flag, dest=name, metavar=value, default=argparse.SUPPRESS, help=words, **yes)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program and return its exit code."""
    words = parser()
    with output.to_the_end(PROGRAM, EXIT_UNUSABLE):
        told = vars(words.parse_args(arguments))
        command: str = told.pop("command")
        if command == "crds":
            from attestation_operator.crds import manifest

            sys.stdout.write(manifest())
            return 0
    return _run(COMMANDS[command], told)


def _run(command: Command, flags: Mapping[str, str]) -> int:
    """Run a command until it is told to stop."""
    import asyncio
    import os

    from attestation.clock import SystemClock
    from attestation.errors import AttestationError
    from attestation_operator import logs
    from attestation_operator.settings import SettingsInvalid

    try:
        settings: CommandSettings = _named(command.settings).load(os.environ, flags)
    except SettingsInvalid as e:
        sys.stderr.writelines(f"{PROGRAM}: {fault}\n" for fault in str(e).splitlines())
        return EXIT_USAGE
    log = logs.configure(settings.log_level, settings.log_format)
    try:
        asyncio.run(_named(command.run)(settings, clock=SystemClock(), log=log))
    except (SettingsInvalid, AttestationError, OSError) as e:
        log.error("operator.unusable", reason=str(e))  # noqa: TRY400 -- the reason is for operators, a trace is not
        return EXIT_USAGE if isinstance(e, SettingsInvalid) else EXIT_UNUSABLE
    return 0
