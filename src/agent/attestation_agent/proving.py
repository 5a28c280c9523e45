"""A machine that is known proves itself for something else than its own attestation: a secret, a token.

It sends what an attestation sends, a quote over a fresh challenge (PROTOCOL §4), and the service judges it as one. What
comes back sealed is believed like a configuration: signed for this TPM, in answer to this request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from attestation.api import AttestRequest, Sealed
from attestation_agent import directive as directives
from attestation_agent.attesting import Attesting
from attestation_agent.directive import Request
from attestation_agent.exits import UsageError
from attestation_agent.sealed import opened
from attestation_agent.state import KnownAs


class Proving(Attesting):
    """A node that proves itself on request; it reads what `run` remembers, and changes nothing of it."""

    @contextmanager
    def begun(self) -> Iterator[KnownAs]:
        """Hold the TPM, and tell who we are to the service.

        Raises:
            UsageError: This machine is not known to a service yet.
            DeviceError: The TPM failed.
        """
        known = self._state.known_as()
        if known is None or self._state.service_keys() is None:
            raise UsageError(
                "this machine is not known to a service yet: `attestation-agent run` comes first"
            )
        try:
            yield known
        finally:
            self._close_tpm(announce=False)

    def proof(self, known: KnownAs) -> tuple[AttestRequest, Request]:
        """Return what proves this machine now, and what the answer must be for."""
        challenge, nonce = self._challenge(known)
        asked = self._request(known.machine_id)
        return self._evidence(challenge, nonce, known, asked), asked

    def given(self, known: KnownAs, what: str, ask: Callable[[AttestRequest], Sealed]) -> bytes:
        """Prove ourselves with *ask*, and return what came, opened in this TPM.

        Raises:
            DirectiveRejected: The service did not seal it for us now, or it is something else.
            ConfigNotOpened: It does not open here.
            AttestationError: The service refused, or cannot be reached.
        """
        evidence, asked = self.proof(known)
        sealed = self._answered(lambda: ask(evidence))
        directives.verify_sealed(sealed, what=what, keys=self._pinned_keys(), asked=asked)
        return opened(self._open_tpm(), sealed.envelope, machine_id=known.machine_id)
