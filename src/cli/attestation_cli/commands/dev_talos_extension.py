"""`attestation dev talos-extension`: the agent as a system extension of Talos, as an OCI layout."""

from __future__ import annotations

import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import click

from attestation.errors import RequestInvalid
from attestation_cli.options import EXISTING_FILE, FOLDER_PATH, printing
from attestation_cli.render import cell
from attestation_cli.session import Session


@click.command("talos-extension")
@click.option(
    "--to",
    "directory",
    required=True,
    type=FOLDER_PATH,
    help="The folder to write, which must not exist or be empty.",
)
@click.option(
    "--wheels",
    required=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder with the wheels of the agent and the SDK and their SHA256SUMS, as `./dev build` writes it.",
)
@click.option(
    "--lock",
    "locks",
    required=True,
    multiple=True,
    type=EXISTING_FILE,
    help="What the agent depends on, with hashes: agent.lock and agent-talos.lock of the same version, each with "
    "a --lock of its own.",
)
@click.option(
    "--fetch",
    is_flag=True,
    help="Have pip of that Python bring what the lock names; else all is in --wheels.",
)
@click.option(
    "--python",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="PROGRAM",
    help="The Python that goes in, for glibc and this machine [the one that runs this program].",
)
@click.option(
    "--talos-version",
    default=">= v1.9.0",
    show_default=True,
    metavar="RANGE",
    help="The versions of Talos that take the extension.",
)
@click.option(
    "--server-url",
    metavar="URL",
    help="Address of the service; without it a configuration of the machine says it.",
)
@click.option(
    "--service-keys",
    type=EXISTING_FILE,
    help="Keys of the service, which the agent then believes and no others: answer of GET /api/v1/service-keys.",
)
@printing
def talos_extension(
    session: Session,
    directory: Path,
    wheels: Path,
    locks: tuple[Path, ...],
    python: Path | None,
    talos_version: str,
    server_url: str | None,
    service_keys: Path | None,
    *,
    fetch: bool,
) -> None:
    """Build the agent as a system extension of Talos: an OCI layout, without a daemon and without being root.

    Python, the agent and what it depends on, and the shared libraries of these, and nothing of this computer besides.
    The same inputs give the same bytes, and so the same digest. No secret goes in: what belongs to one machine comes
    with its configuration. Takes about ten seconds.

    \b
    Examples:
      attestation dev talos-extension --wheels dist --to agent \\
          --lock deploy/locks/agent.lock --lock deploy/locks/agent-talos.lock
      attestation dev talos-extension --wheels dist --to agent \\
          --lock agent.lock --lock agent-talos.lock --fetch \\
          --python /usr/bin/python3 --server-url https://attest.example
      skopeo copy oci:agent docker://registry.example/itl-tpm-register:0.1.0
    """
    # Imported here: it begins programs and reads archives, which no other command does.
    from attestation_cli.talos_extension import build, interpreter
    from attestation_cli.talos_extension import wheels as wheels_of

    if directory.exists() and any(directory.iterdir()):
        raise RequestInvalid(f"{directory} is not empty")
    program = python or Path(sys.executable)
    with ExitStack() as stack:
        folders = [wheels]
        try:
            if fetch:
                fetched = Path(stack.enter_context(tempfile.TemporaryDirectory()))
                wheels_of.fetch(locks, fetched, interpreter.look_at(program))
                folders.append(fetched)
            wanted = build.Wanted(
                wheels=tuple(folders),
                lock="".join(lock.read_text(encoding="utf-8") for lock in locks),
                python=program,
                talos=talos_version,
                server_url=server_url,
                service_keys=None if service_keys is None else service_keys.read_bytes(),
            )
            made = build.build(wanted, directory)
        except (OSError, UnicodeDecodeError) as e:
            raise RequestInvalid(f"the extension could not be built: {e}") from e
    if session.json:
        session.emit_json(
            {
                "digest": made.digest,
                "version": made.version,
                "architecture": made.architecture,
                "size_bytes": made.size_bytes,
                "layer_bytes": made.layer_bytes,
                "parts_bytes": made.parts,
                "limit_bytes": build.MAX_BYTES,
                "directory": str(directory),
            }
        )
        return
    parts = ", ".join(f"{name} {size / 1e6:.1f}" for name, size in made.parts.items())
    session.emit_fields(
        [
            ("digest", cell(made.digest)),
            ("version", cell(f"{made.version} for {made.architecture}")),
            ("size", cell(f"{made.size_bytes / 1e6:.1f} MB of {build.MAX_BYTES / 1e6:.0f} ({parts})")),
            ("compressed", cell(f"{made.layer_bytes / 1e6:.1f} MB")),
            ("layout", cell(f"oci:{directory}")),
        ]
    )
