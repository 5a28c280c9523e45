"""What runs beside attesting: certificates, and the signer for other programs. None of it where nobody asked for it."""

from __future__ import annotations

import contextlib
import grp
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from attestation.clock import Clock
from attestation_agent.certificates import LOOK_SECONDS, CertificateKeeper, CertificateService
from attestation_agent.commands import Outcome
from attestation_agent.edge import Log
from attestation_agent.exits import UsageError
from attestation_agent.offered import Offered, directory_of
from attestation_agent.settings import Settings
from attestation_agent.shared_tpm import SharedTPM
from attestation_agent.signer import Signer, serving
from attestation_agent.state import State

END_SECONDS = 5.0
"""How long the end of the agent waits for what is under way; the TPM was given back before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What the parts share.

    Args:
        settings: What the administrator chose.
        state: Who we are.
        service: A client of their own: nothing here waits behind an attestation, or lets one wait.
        tpm: Shared with attesting.
        clock: Tells the time.
        run: Runs a command.
        log: Where events go.
        stopping: True once the agent ends.
    """

    settings: Settings
    state: State
    service: CertificateService
    tpm: SharedTPM
    clock: Clock
    run: Callable[[tuple[str, ...]], Outcome]
    log: Log
    stopping: Callable[[], bool]


@contextlib.contextmanager
def beside(around: Surroundings) -> Iterator[Callable[[], object]]:
    """Run what was asked for; yield what attesting calls after each round.

    Raises:
        UsageError: The settings cannot work.
    """
    settings = around.settings
    offered = Offered(
        directory_of(settings.state_dir, settings.certificate_dir), group=_group(settings.certificate_group)
    )
    certificates = CertificateKeeper(
        settings,
        state=around.state,
        offered=offered,
        service=around.service,
        tpm=around.tpm.keys,
        clock=around.clock,
        run=around.run,
        log=around.log,
        stopping=around.stopping,
    )
    if settings.once:
        # There is no later: after the attestation, before the end, and one attempt.
        yield certificates.visit
        return
    with contextlib.ExitStack() as stack:
        if settings.signer_socket is not None:
            signer = Signer(settings.signer_socket, offered=offered, tpm=around.tpm.keys, log=around.log)
            stack.enter_context(serving(signer))
        yield stack.enter_context(_visiting(certificates, around.stopping))


@contextlib.contextmanager
def _visiting(
    certificates: CertificateKeeper, stopping: Callable[[], bool]
) -> Iterator[Callable[[], object]]:
    """Look after certificates in a thread of its own; yield what wakes it."""
    wake, ended = threading.Event(), threading.Event()

    def visit() -> None:
        while not ended.is_set() and not stopping():
            certificates.visit()
            wake.wait(LOOK_SECONDS)
            wake.clear()

    # A daemon: an answer that does not come, or a key that takes minutes, must not hold up the end of the agent.
    thread = threading.Thread(target=visit, name="certificates", daemon=True)
    thread.start()
    try:
        yield wake.set
    finally:
        ended.set()
        wake.set()
        thread.join(END_SECONDS)


def _group(name: str | None) -> int | None:
    if name is None:
        return None
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        raise UsageError(f"there is no group {name}") from None
