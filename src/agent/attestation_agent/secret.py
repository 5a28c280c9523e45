"""`attestation-agent secret get NAME`: a secret of this machine, released for a quote, opened in its TPM.

The value goes to standard output, to a file that only its owner reads, or to the standard input of a program; never
onto a command line or into an environment, where others could read it.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from attestation.api import AttestRequest, Sealed
from attestation.api.operation import operation
from attestation.client import NodeClient
from attestation_agent.exits import ApplyFailed, Exit
from attestation_agent.files import write_atomically
from attestation_agent.proving import Proving


class Vault:
    """The routes of the extension `secret_vault` for machines (docs/operate/secrets.md)."""

    @operation("secret_vault_read", "POST /secrets/machines/{machine_id}/secrets/{name}/read")
    def own(self, machine_id: str, name: str, request: AttestRequest) -> Sealed:
        """Return a secret of this machine alone."""
        raise NotImplementedError

    @operation("secret_vault_read_shared", "POST /shared-secrets/by-name/{name}/read")
    def shared(self, name: str, request: AttestRequest) -> Sealed:
        """Return a secret that several machines may have."""
        raise NotImplementedError


def get(node: Proving, client: NodeClient, name: str, *, shared: bool) -> bytes:
    """Return the value of a secret.

    Raises:
        AttestationError: It is not released to this machine now, or what came is not believed.
    """
    with node.begun() as known:
        if shared:
            return node.given(
                known, f"secret_vault.shared/{name}", lambda proof: client.ask(Vault.shared, name, proof)
            )
        return node.given(
            known,
            f"secret_vault.machine/{name}",
            lambda proof: client.ask(Vault.own, known.machine_id, name, proof),
        )


def give(value: bytes, to: Path | None, command: Sequence[str]) -> int:
    """Write *value* where it is wanted; return the exit code, that of *command* where there is one.

    Raises:
        ApplyFailed: It cannot be written, or there is no such program.
    """
    if command:
        try:
            return subprocess.run(command, input=value, check=False).returncode & 0xFF  # noqa: S603 -- what the caller wants
        except OSError as e:
            raise ApplyFailed(f"{command[0]}: {e.strerror}") from e
    if to is not None:
        try:
            write_atomically(to, value)
        except OSError as e:
            raise ApplyFailed(f"{to}: {e.strerror}") from e
        return Exit.OK
    sys.stdout.buffer.write(value)
    sys.stdout.buffer.flush()
    return Exit.OK
