"""The commands of the controllers of nodes: what each is built of, and what runs it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from cryptography import x509

from attestation.clock import Clock
from attestation_operator.errors import AnchorsUnreadable
from attestation_operator.nodes.controllers import Approver, Nodes, Signer
from attestation_operator.program import Make, run
from attestation_operator.settings import PREFIX, Settings, SettingsInvalid


async def approver(settings: Settings, *, clock: Clock, log: Any) -> None:
    """Approve or deny requests."""
    await run("approver", settings, maker("approver", settings), clock=clock, log=log)


async def signer(settings: Settings, *, clock: Clock, log: Any) -> None:
    """Put certificates into approved requests."""
    await run("signer", settings, maker("signer", settings), clock=clock, log=log)


async def nodes(settings: Settings, *, clock: Clock, log: Any) -> None:
    """Label Nodes."""
    await run("nodes", settings, maker("nodes", settings), clock=clock, log=log)


def maker(name: str, settings: Settings) -> Make:
    """Return what builds the controller of this name.

    Raises:
        SettingsInvalid: It needs a setting that is not there.
    """
    if name == "approver":
        return Approver
    if name == "nodes":
        return Nodes
    if settings.node_ca_file is None:
        raise SettingsInvalid(f"{PREFIX}NODE_CA_FILE: is missing: the signer checks what it is given")
    return partial(Signer, anchors=partial(_anchors, settings.node_ca_file))


def _anchors(file: Path) -> Sequence[x509.Certificate]:
    """Return the CAs in *file*, as they are now.

    Raises:
        AnchorsUnreadable: It cannot be read, or holds no certificate.
    """
    try:
        return x509.load_pem_x509_certificates(file.read_bytes())
    except (OSError, ValueError) as e:
        raise AnchorsUnreadable(f"{file}: {type(e).__name__}") from e
