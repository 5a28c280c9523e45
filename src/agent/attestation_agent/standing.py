"""How one node stands to one service: the TPM it opened, the keys it believes, what it may say (PROTOCOL §§0, 6, 8).

Each class of `introduction`, `attesting`, `orders` and `node` adds one part of the protocol to the one before it.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any, Final, Literal, TypeVar

from attestation.api import (
    AckRequest,
    QuoteChallenge,
)
from attestation.client import NodeClient
from attestation.client.text import clean
from attestation.device import Identity
from attestation.errors import (
    AttestationError,
    DeviceError,
    RequestInvalid,
)
from attestation.keys import (
    NODE_NONCE_BYTES,
    Binding,
    acknowledgement,
    key_set_sha256,
    thumbprints,
)
from attestation.machines import Status
from attestation.tpm import PCRSelection, parse_public
from attestation.wire import b64decode, b64encode
from attestation_agent import directive as directives
from attestation_agent.directive import Request
from attestation_agent.edge import TPM, Edge
from attestation_agent.exits import (
    AgentError,
    AnswerRefused,
    DirectiveRejected,
    ServiceTooOld,
)
from attestation_agent.measurements import Measurements
from attestation_agent.settings import Settings
from attestation_agent.state import KnownAs, State

NONCE_BYTES: Final = 32
CHALLENGE_MARGIN = timedelta(seconds=5)
"""A challenge that ends sooner is not worth a quote; a fresh one costs one request."""
APPLY_AGAIN_FIRST = timedelta(seconds=60)
MAX_DETAIL: Final = 1024
LOCK_FAILED: Final = "lock_failed"
UNLOCK_FAILED: Final = "unlock_failed"
ORDERED: Final = frozenset({Status.LOCKED, Status.REVOKED, LOCK_FAILED, UNLOCK_FAILED})
"""What an order made of this machine: only an order changes it, or a welcome under another name."""
T = TypeVar("T")


class Standing:
    """One node, one service, one TPM.

    Args:
        settings: What the administrator chose.
        state: What we remember.
        client: The service.
        edge: The world.
    """

    def __init__(self, settings: Settings, *, state: State, client: NodeClient, edge: Edge) -> None:
        self._settings = settings
        self._state = state
        self._client = client
        self._edge = edge
        self._tpm: TPM | None = None
        self._identity: Identity | None = None
        self._ak_name: bytes | None = None
        self._next: QuoteChallenge | None = None
        self._logs = Measurements(settings.event_log, settings.ima_log, edge.log.warning)
        self._shows_further = True
        """Whether further EKs are shown."""
        self._certifies = True
        """Whether the second protocol is answered."""
        self._certified = False
        """Whether the last attestation answered it."""
        self._shows_hardware = True
        """Whether confidential hardware is shown unasked: once."""
        self._undelivered: AgentError | None = None
        """Why the configuration that is offered is not here yet."""
        self._apply_at: datetime | None = None
        self._apply_pause = APPLY_AGAIN_FIRST

    # The TPM

    def _begin(self) -> None:
        """Look whether what we are known by is there.

        Raises:
            DeviceError: It is not.
        """
        self._open_tpm()

    def _open_tpm(self) -> TPM:
        if self._tpm is None:
            self._tpm = self._edge.open_tpm()
        return self._tpm

    def _close_tpm(self, *, announce: bool) -> None:
        """Let go of the TPM; *announce* says TPM2_Shutdown first, so that it need not suspect an attack."""
        tpm, self._tpm = self._tpm, None
        self._identity = self._ak_name = None
        if tpm is None:
            return
        try:
            if announce:
                tpm.shutdown()
        except DeviceError as e:
            self._edge.log.warning("tpm.shutdown_failed", reason=str(e))
        finally:
            tpm.close()

    def _identify(self) -> Identity:
        if self._identity is None:
            self._identity = self._open_tpm().identify()
        return self._identity

    def _fingerprint(self) -> str:
        """Return SHA-384 of the EK's SPKI DER, 96 hex (PROTOCOL §0)."""
        return parse_public(self._identify().ek_public).fingerprint()

    # What is asked, and whom it believes

    def _request(self, machine_id: str) -> Request:
        """Return what the answer to a request under *machine_id* must be for."""
        return Request(to=self._binding(machine_id), node_nonce=secrets.token_bytes(NODE_NONCE_BYTES))

    def _binding(self, machine_id: str) -> Binding:
        if self._ak_name is None:
            self._ak_name = parse_public(self._open_tpm().ak_public()).name
        return Binding(machine_id=machine_id, ek_fingerprint=self._fingerprint(), ak_name=self._ak_name)

    def _answered(self, send: Callable[[], T]) -> T:
        """Send a request that carries a nonce of ours.

        Raises:
            ServiceTooOld: The service does not know what that is.
        """
        try:
            return send()
        except RequestInvalid as e:
            if any(each.field.endswith("node_nonce") for each in getattr(e, "errors", ())):
                raise ServiceTooOld(
                    "the service refuses node_nonce: it is too old for this agent, which would not know whether "
                    "it is meant; nothing was changed"
                ) from e
            raise

    def _pinned_keys(self) -> dict[str, Any]:
        keys = self._state.service_keys()
        if keys is None:
            # Cannot happen after an activation; without a pin there is nobody to believe.
            raise DirectiveRejected("no service keys are pinned")
        return keys

    def _pin(self, keys: Mapping[str, Any], pinned_by: str | None) -> None:
        if pinned_by is None:
            return
        self._state.pin(keys)
        tell = self._edge.log.warning if pinned_by == "first use" else self._edge.log.info
        tell("service_keys.pinned", by=pinned_by, sha256=key_set_sha256(thumbprints(keys)).hex())

    def _next_keys(self, token: str, keys: Mapping[str, Any], asked: Request) -> dict[str, Any] | None:
        try:
            return directives.verify_keys(token, keys=keys, asked=asked)
        except DirectiveRejected as e:
            self._edge.log.warning("service_keys.refused", reason=str(e))
            return None

    def _follow_keys(self, known: KnownAs, token: str, asked: Request) -> None:
        """Pin what a key that is pinned names next, and say so; anything else changes nothing."""
        keys = self._next_keys(token, self._pinned_keys(), asked)
        if keys is None:
            return
        self._state.pin(keys)
        digest = key_set_sha256(thumbprints(keys))
        self._edge.log.info("service_keys.changed", sha256=digest.hex())
        self._try_to_acknowledge(known, digest, None)

    # §§3, 6: challenge and acknowledge

    def _challenge(self, known: KnownAs) -> tuple[QuoteChallenge, bytes]:
        """Return a challenge to answer and its nonce: the one left from the last answer, or a fresh one."""
        challenge, self._next = self._next, None
        if challenge is None or challenge.expires_at - self._edge.clock.now() < CHALLENGE_MARGIN:
            challenge = self._client.challenge(known.machine_id)
        nonce = b64decode(challenge.nonce, "nonce", max_bytes=NONCE_BYTES)
        if len(nonce) != NONCE_BYTES:
            raise AnswerRefused(f"the nonce has {len(nonce)} bytes, {NONCE_BYTES} expected")
        return challenge, nonce

    def _try_to_acknowledge(self, known: KnownAs, digest: bytes, failure: str | None) -> None:
        """Acknowledge; a failure to do so is logged and nothing more."""
        try:
            self._acknowledge(known, digest, failure)
        except AttestationError as e:
            self._edge.log.warning("ack.failed", code=e.code, reason=str(e))

    def _acknowledge(self, known: KnownAs, digest: bytes, failure: str | None) -> None:
        """Quote the outcome of what *digest* names, an order or a set of keys: `done`, or `failed` and why."""
        outcome: Literal["done", "failed"] = "done" if failure is None else "failed"
        challenge, nonce = self._challenge(known)
        said = acknowledgement(nonce, digest, outcome)
        request = AckRequest.model_validate(
            {
                "nonce_id": challenge.nonce_id,
                "directive_sha256": digest.hex(),
                "outcome": outcome,
                "detail": clean(failure)[:MAX_DETAIL] if failure is not None else None,
                **self._proof_of_outcome(said, challenge, known),
            }
        )
        self._client.ack(known.machine_id, request)
        self._edge.log.info("acknowledged", outcome=outcome)

    def _proof_of_outcome(self, said: bytes, challenge: QuoteChallenge, known: KnownAs) -> dict[str, Any]:
        """Return the members of an acknowledgement by which we say it."""
        del known
        quote = self._open_tpm().quote(said, selection(challenge))
        return {"pcr_quote": b64encode(quote.attest), "pcr_signature": b64encode(quote.signature)}


def selection(challenge: QuoteChallenge) -> PCRSelection:
    """Return the PCRs that *challenge* asks for."""
    return PCRSelection.from_names(challenge.pcr_selection)
