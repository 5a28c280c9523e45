"""An operator whose browser has a client certificate."""

from __future__ import annotations

from datetime import datetime

from attestation.store import Tx
from attestation_service.auth import Duty, Method, Operator
from attestation_service.context.request import Origin


class Browser:
    """Shows the same certificate whoever asks; stands where `MTLS` stands.

    Args:
        name: CN of the certificate; its bearer has every duty.
    """

    def __init__(self, name: str = "carl") -> None:
        self.name = name
        self.revoked = False

    def presented(self, scope: object) -> bytes | None:
        """Return what the browser shows."""
        return f"certificate of {self.name}".encode()

    async def operator(self, certificate: bytes, origin: Origin, at: datetime) -> Operator:
        """Return somebody who may do everything."""
        return Operator(
            cn=self.name,
            sub="spki-sha256:00",
            source=origin.address,
            method=Method.CERTIFICATE,
            duties=frozenset(Duty),
            certificate=certificate,
        )

    async def refresh(self) -> None:
        """Nothing changes."""

    def why_not(self, tx: Tx, der: bytes, at: datetime) -> str | None:
        """Say why the certificate is good no more."""
        return "the client certificate was revoked" if self.revoked else None
