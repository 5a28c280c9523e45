"""What the agent touches the world by: a TPM, a log, time, commands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from attestation.clock import Clock
from attestation.device import TEE, CertifiedAK, FurtherEK, Identity, KeyCertification, Quote
from attestation.tpm import PCRSelection
from attestation_agent.acts import Acts
from attestation_agent.commands import Outcome
from attestation_agent.rhythm import Rhythm


class TPM(Protocol):
    """What the agent needs of `attestation.device.NodeTPM`."""

    def identify(self) -> Identity:
        """Say who this TPM is."""
        ...

    def ak_public(self) -> bytes:
        """Return the TPM2B_PUBLIC of the AK."""
        ...

    def further_eks(self) -> tuple[FurtherEK, ...]:
        """Return the certified EKs beside the one that is the identity."""
        ...

    def certified_aks(self) -> tuple[CertifiedAK, ...]:
        """Return attestation keys beside the AK that a maker or provider certified."""
        ...

    def vouch(self, certified: CertifiedAK, qualifying_data: bytes) -> KeyCertification:
        """Have a certified attestation key state that the AK is in this TPM."""
        ...

    def activate(
        self, credential_blob: bytes, encrypted_secret: bytes, *, ek_public: bytes | None = None
    ) -> bytes:
        """Open a credential sealed to an EK, the first or a further one, and the AK."""
        ...

    def quote(self, qualifying_data: bytes, selection: PCRSelection) -> Quote:
        """Quote the selected PCRs."""
        ...

    def certify_ak(
        self, object_public: bytes, duplicate: bytes, in_sym_seed: bytes, qualifying_data: bytes
    ) -> KeyCertification:
        """Certify the AK with a key that was sealed to the EK."""
        ...

    def shutdown(self) -> None:
        """Send TPM2_Shutdown."""
        ...

    def close(self) -> None:
        """Give the TPM back."""
        ...


class Log(Protocol):
    """Where events go: structlog, or a list in tests."""

    def info(self, event: str, **fields: object) -> object:
        """Log what went as it should."""
        ...

    def warning(self, event: str, **fields: object) -> object:
        """Log what somebody should look at."""
        ...

    def error(self, event: str, **fields: object) -> object:
        """Log what ended the work."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """Everything by which the agent touches the world; tests hold it still.

    Args:
        clock: Tells the time.
        wait: Pauses so many seconds; True where the agent shall stop.
        open_tpm: Opens the TPM.
        run: Runs a command.
        rhythm: When to come again.
        log: Where events go.
        tee: Opens the confidential hardware; nothing is asked of it yet.
        attested: Told after each round in which the service answered; returns at once, and raises nothing.
        machined: Talos, where this agent runs on it; None: what is ordered is done by files and commands.
    """

    clock: Clock
    wait: Callable[[float], bool]
    open_tpm: Callable[[], TPM]
    run: Callable[[tuple[str, ...]], Outcome]
    rhythm: Rhythm
    log: Log
    tee: Callable[[], TEE] = TEE
    attested: Callable[[], object] = lambda: None
    machined: Acts | None = None
