"""The configuration of one machine: base of its role, its patch, what is its own, and what its Talos says to it.

In this order: what an operator approved of a machine, its host name and address, no patch takes away.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from ruamel.yaml.comments import CommentedMap

from attestation.machines import Role
from attestation.talos.completion import Own, complete_documents
from attestation.talos.documents import copied, read_stream, write_stream
from attestation.talos.lint import Finding, Level, lint_documents
from attestation.talos.merging import merge
from attestation.talos.versions import Generation

TALOS_ROLES: Final = frozenset({Role.CONTROLPLANE, Role.WORKER_INFRA, Role.WORKER_APP})
"""Roles whose machines run Talos; what the others are given, its schemas say nothing of."""

KEPT_READ: Final = 8
"""So many bases are kept as they were read, in memory: reading is half of the work, and few are in use at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendered:
    """A configuration, and what does not fit in it.

    Args:
        text: The configuration, with its secrets.
        findings: As `attestation.talos.lint` tells of them; none of a role that does not run Talos.
    """

    text: bytes = field(repr=False)
    findings: tuple[Finding, ...]

    @property
    def errors(self) -> tuple[Finding, ...]:
        """What Talos would refuse."""
        return tuple(each for each in self.findings if each.level is Level.ERROR)


def render(base: bytes, patch: bytes | None, own: Own | None, role: Role, generation: Generation) -> Rendered:
    """Return *base* with *patch* and what is the machine's own, in the documents of *generation*, and judge it.

    Args:
        base: The configuration of the role.
        patch: Of the machine; None where it has none.
        own: What is the machine's; None judges what is the same for all machines of the role.
        role: Of the machine.
        generation: Of its version of Talos.

    Raises:
        BaseConfigInvalid: One of them is not YAML that everybody reads alike, or cannot be completed.
    """
    documents = [copied(each) for each in _read(base)]
    if patch is not None:
        merge(documents, read_stream(patch))
    if own is not None:
        complete_documents(documents, own, generation)
    findings = lint_documents(documents, generation, role) if role in TALOS_ROLES else ()
    return Rendered(text=write_stream(documents), findings=findings)


@lru_cache(maxsize=KEPT_READ)
def _read(text: bytes) -> tuple[CommentedMap, ...]:
    """Return the documents of *text*; whoever changes them changes a copy."""
    return tuple(read_stream(text))
