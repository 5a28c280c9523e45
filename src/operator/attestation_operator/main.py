"""The program: `attestation-operator COMMAND`. Its settings are environment variables that begin with ITL_OPERATOR_."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from attestation import __version__, completion, manual, output

if TYPE_CHECKING:
    from cryptography import x509

    from attestation_operator.controller import Around, Controller
    from attestation_operator.settings import Settings

PROGRAM: Final = "attestation-operator"
PAGES: Final = Path(sys.prefix) / "share/doc/itl-attestation-operator"
"""Where the wheel puts the pages for who operates it."""

EXIT_UNUSABLE: Final = 1
EXIT_USAGE: Final = 2

CONTROLLERS: Final = {
    "approver": "approve or deny certificate requests of nodes, as the attestation service judges them",
    "signer": "put certificates of the service's CA into approved requests",
    "nodes": "label Nodes whose machine is trusted; taint or cordon the others, where that is chosen",
}


def parser() -> argparse.ArgumentParser:
    """Return the words of the command line."""
    whole = argparse.ArgumentParser(
        prog=PROGRAM,
        formatter_class=argparse.RawDescriptionHelpFormatter,  # a path that is broken into lines is none
        description="Controllers of a Kubernetes cluster, clients of the attestation service.\n"
        "Settings are environment variables that begin with ITL_OPERATOR_.",
        epilog=f"Every setting, with its default: {PAGES / 'kubernetes/controllers.md'}",
    )
    whole.add_argument("--man", action=manual.Print, help="print the manual page: ... | man -l -")
    whole.add_argument("--completion", action=completion.Print, help="print the completion for a shell")
    whole.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = whole.add_subparsers(dest="command", required=True, title="commands", metavar="COMMAND")
    for name, words in CONTROLLERS.items():
        commands.add_parser(name, help=words, description=f"{words[:1].upper()}{words[1:]}.")
    words = "print the CustomResourceDefinitions, YAML"
    commands.add_parser("crds", help=words, description=f"{words[:1].upper()}{words[1:]}.")
    return whole


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program and return its exit code."""
    words = parser()
    with output.to_the_end(PROGRAM, EXIT_UNUSABLE):
        command: str = words.parse_args(arguments).command
        if command == "crds":
            from attestation_operator.crds import manifest

            sys.stdout.write(manifest())
            return 0
    return _run(command)


def _run(command: str) -> int:
    """Run a controller until it is told to stop."""
    import asyncio
    import os

    from attestation.clock import SystemClock
    from attestation.errors import AttestationError
    from attestation_operator import logs
    from attestation_operator.program import run
    from attestation_operator.settings import Settings, SettingsInvalid

    try:
        settings = Settings.load(os.environ)
    except SettingsInvalid as e:
        sys.stderr.writelines(f"{PROGRAM}: {fault}\n" for fault in str(e).splitlines())
        return EXIT_USAGE
    log = logs.configure(settings.log_level, settings.log_format)
    try:
        asyncio.run(run(command, settings, _maker(command, settings), clock=SystemClock(), log=log))
    except (SettingsInvalid, AttestationError, OSError) as e:
        log.error("operator.unusable", reason=str(e))  # noqa: TRY400 -- the reason is for operators, a trace is not
        return EXIT_USAGE if isinstance(e, SettingsInvalid) else EXIT_UNUSABLE
    return 0


def _maker(command: str, settings: Settings) -> Callable[[Around], Controller]:
    """Return what builds the controller.

    Raises:
        SettingsInvalid: It needs a setting that is not there.
    """
    from attestation_operator.nodes.controllers import Approver, Nodes, Signer
    from attestation_operator.settings import PREFIX, SettingsInvalid

    if command == "approver":
        return Approver
    if command == "nodes":
        return Nodes
    if settings.node_ca_file is None:
        raise SettingsInvalid(f"{PREFIX}NODE_CA_FILE: is missing: the signer checks what it is given")
    return partial(Signer, anchors=partial(_anchors, settings.node_ca_file))


def _anchors(file: Path) -> Sequence[x509.Certificate]:
    """Return the CAs in *file*, as they are now.

    Raises:
        AnchorsUnreadable: It cannot be read, or holds no certificate.
    """
    from cryptography import x509

    from attestation_operator.errors import AnchorsUnreadable

    try:
        return x509.load_pem_x509_certificates(file.read_bytes())
    except (OSError, ValueError) as e:
        raise AnchorsUnreadable(f"{file}: {type(e).__name__}") from e
