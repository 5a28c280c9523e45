"""What the commands about TPM bundles share: the options that name folders, files and keys, and how these are read."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from attestation.errors import RequestInvalid
from attestation_cli.options import EXISTING_FILE

if TYPE_CHECKING:
    from attestation.audit.note import VerifierKey

Command = TypeVar("Command", bound=Callable[..., Any])

DIRECTORY = "ITL_TPM_CA_BUNDLE_DIR"
MAX_CERTIFICATE_FILE_BYTES = 65_536

existing = click.Path(exists=True, path_type=Path)


def directory_option(*, exists: bool) -> Callable[[Command], Command]:
    """Add --dir; a folder that is read must be there, or a typing error would look like an empty one."""
    return click.option(
        "--dir",
        "directory",
        envvar=DIRECTORY,
        type=click.Path(exists=exists, file_okay=False, path_type=Path),
        help=f"The folder of your own [{DIRECTORY}]" + ("" if exists else "; made where there is none"),
    )


def keys_options(command: Command) -> Command:
    """Add the options that say whose signature is demanded."""
    for option in (
        click.option(
            "--vkeys-file",
            type=EXISTING_FILE,
            help="File with vkeys, one a line; one of them must have signed.",
        ),
        click.option(
            "--vkey", "vkeys", multiple=True, metavar="VKEY", help="A key that must have signed the manifest."
        ),
    ):
        command = option(command)
    return command


def keys_of(vkeys: Sequence[str], vkeys_file: Path | None) -> tuple[VerifierKey, ...]:
    """Return the keys of which one must have signed; none where none was given.

    Raises:
        RequestInvalid: The file has none, or cannot be read.
    """
    if not vkeys and vkeys_file is None:
        return ()
    # Imported here: cryptography takes longer to load than --help takes to print.
    from attestation.tpm_bundle.signature import parse_keys

    lines = list(vkeys)
    if vkeys_file is not None:
        lines += [
            line for line in small_file(vkeys_file).decode("utf-8", "replace").splitlines() if line.strip()
        ]
    keys = parse_keys(lines)
    if not keys:
        # An empty file must not mean that nobody need have signed.
        raise RequestInvalid(f"{vkeys_file}: has no key")
    return keys


def small_file(path: Path) -> bytes:
    """Return what is in a file of certificates or keys.

    Raises:
        RequestInvalid: It cannot be read, or is longer than 64 KiB.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_CERTIFICATE_FILE_BYTES + 1)
    except OSError as e:
        raise RequestInvalid(f"{path}: {os.strerror(e.errno) if e.errno else e}") from e
    if len(data) > MAX_CERTIFICATE_FILE_BYTES:
        raise RequestInvalid(f"{path}: longer than {MAX_CERTIFICATE_FILE_BYTES} bytes")
    return data


def counted(number: int, word: str) -> str:
    """Return *number* with its word, in the plural where it is one."""
    return f"{number} {word}" + ("" if number == 1 else "s")
