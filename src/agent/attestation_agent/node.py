"""The agent's life: introduce, activate, attest, obey what is proven, come again (PROTOCOL §§1-6, 8).

Whom it believes: the service's keys, pinned at the first activation. What changes it: statements of theirs that name
this TPM and answer the request just sent. An answer's `status`, `action` and `message` are for people; a `404` or any
other refusal makes it try again. No network answer ends a resident agent.
"""

# Algorithms for: digest
from __future__ import annotations

import contextlib
import hashlib
import json
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final, Literal, Protocol, TypeVar

from attestation.api import (
    AckRequest,
    ActivateRequest,
    ActivateResponse,
    AttestRequest,
    AttestResponse,
    IntroduceRequest,
    IntroduceResponse,
    QuoteChallenge,
    RegisterRequest,
)
from attestation.client import NodeClient
from attestation.client.text import clean
from attestation.clock import Clock
from attestation.device import FurtherEK, Identity, KeyCertification, Quote
from attestation.errors import (
    AKNotActivated,
    AttestationError,
    BaseConfigInvalid,
    BaseConfigMissing,
    ChallengeExpired,
    ChallengeUnknown,
    ChallengeUsed,
    DeviceError,
    EKCertificateRejected,
    EKFingerprintMismatch,
    EKTemplateRejected,
    MachineUnknown,
    MalformedEvidence,
    RegistrationTokenInvalid,
    RequestInvalid,
    TPMResponseError,
)
from attestation.evidence import ak_activation, ek_key_attestation
from attestation.keys import (
    NODE_NONCE_BYTES,
    Binding,
    JWSRejected,
    acknowledgement,
    key_set_sha256,
    thumbprints,
)
from attestation.machines import Status
from attestation.tpm import PCRSelection, parse_public
from attestation.wire import b64decode, b64encode
from attestation_agent import directive as directives
from attestation_agent import sealed
from attestation_agent.commands import Outcome
from attestation_agent.directive import Action, Directive, Request
from attestation_agent.exits import (
    AgentError,
    AnswerRefused,
    ApplyFailed,
    ConfigNotDelivered,
    ConfigNotOpened,
    DirectiveRejected,
    Exit,
    ServiceKeysChanged,
    ServiceTooOld,
    StateNotKept,
    UsageError,
    WipeFailed,
    exit_of,
    is_passing,
)
from attestation_agent.hardware import read_hardware
from attestation_agent.measurements import IMA_KIND, Measurements
from attestation_agent.rhythm import Rhythm
from attestation_agent.settings import Settings
from attestation_agent.state import KnownAs, PendingConfig, State, WipeOrder

NONCE_BYTES: Final = 32
CHALLENGE_MARGIN = timedelta(seconds=5)
"""A challenge that ends sooner is not worth a quote; a fresh one costs one request."""
APPLY_AGAIN_FIRST = timedelta(seconds=60)
APPLY_AGAIN_MOST = timedelta(minutes=15)
MAX_DETAIL: Final = 1024
MAX_TOKEN_FILE_BYTES: Final = 1024
MAX_KEYS_FILE_BYTES: Final = 65_536
LOCK_FAILED: Final = "lock_failed"
UNLOCK_FAILED: Final = "unlock_failed"
NOT_CONFIGURED: Final = "not_configured"
ORDERED: Final = frozenset({Status.LOCKED, Status.REVOKED, LOCK_FAILED, UNLOCK_FAILED})
"""What an order made of this machine: only an order changes it, or a welcome under another name."""

T = TypeVar("T")

_STATUS_EXITS: Final = {
    Status.PENDING_APPROVAL: Exit.PENDING_APPROVAL,
    Status.REGISTERED: Exit.NOT_AFFIRMED,
    Status.ATTESTED: Exit.OK,
    Status.LOCKED: Exit.LOCKED,
    Status.REVOKED: Exit.REVOKED,
    Status.REJECTED: Exit.REJECTED,
}


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
        attested: Told after each round in which the service answered; returns at once, and raises nothing.
    """

    clock: Clock
    wait: Callable[[float], bool]
    open_tpm: Callable[[], TPM]
    run: Callable[[tuple[str, ...]], Outcome]
    rhythm: Rhythm
    log: Log
    attested: Callable[[], object] = lambda: None


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """How one exchange with the service ended.

    Args:
        exit: What `--once` ends with.
        again_seconds: When the service wants to see us again.
        final: Nothing more will happen on this node: it wiped itself.
    """

    exit: Exit
    again_seconds: int
    final: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """An answer to an attestation, and what it must be judged with.

    Args:
        known: Who we are.
        nonce: The 32 bytes that we quoted.
        asked: What a statement in it must be for.
        answer: Not authentic by itself; only its statements can be.
    """

    known: KnownAs
    nonce: bytes
    asked: Request
    answer: AttestResponse


class Agent:
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
        self._undelivered: AgentError | None = None
        """Why the configuration that is offered is not here yet."""
        self._apply_at: datetime | None = None
        self._apply_pause = APPLY_AGAIN_FIRST

    def run(self) -> Exit:
        """Live until told to stop; with `once`, until the first conclusive answer.

        Raises:
            DeviceError: There is no TPM to begin with.
        """
        edge, once = self._edge, self._settings.once
        try:
            self._open_tpm()
            if not once and edge.wait(edge.rhythm.uniform(0.0, self._settings.splay_seconds)):
                return Exit.OK
            failures = 0
            while True:
                try:
                    done = self._round()
                except AttestationError as e:
                    failures += 1
                    self._failed(e, failures)
                    if once and (not is_passing(e) or failures >= self._settings.attempts):
                        return exit_of(e)
                    pause = edge.rhythm.after_failure(failures, getattr(e, "retry_after_seconds", None))
                else:
                    failures = 0
                    if not done.final:
                        edge.attested()
                    if once or done.final:
                        return done.exit
                    pause = edge.rhythm.after_answer(done.again_seconds)
                if edge.wait(pause):
                    edge.log.info("agent.stopping")
                    return Exit.OK
        finally:
            self._close_tpm(announce=True)

    def _failed(self, error: AttestationError, failures: int) -> None:
        self._edge.log.error(
            "attempt.failed",
            code=error.code,
            reason=str(error),
            failures=failures,
            request_id=getattr(error, "request_id", None),
        )
        # Whatever was prepared may be what was wrong.
        self._next = None
        if isinstance(error, DeviceError):
            self._close_tpm(announce=False)

    # One exchange

    def _round(self) -> Round:
        """Attest once and do what follows from it."""
        known = self._known()
        order = self._state.wipe_order()
        if order is not None and order.acknowledged:
            # The service knows already and would not ask again: carry it out, network or not.
            return self._wipe_now(known, order.directive, again_seconds=1)
        exchange = self._attest(known)
        answer = exchange.answer
        if answer.next_keys is not None:
            self._follow_keys(known, answer.next_keys, exchange.asked)
        order_given = self._verified(exchange)
        self._edge.log.info(
            "attested.answer",
            status=answer.status,
            role=answer.role,
            hostname=answer.hostname,
            action=order_given.action if order_given else "none",
            message=answer.message,
        )
        if order_given is None:
            return self._settle(exchange)
        match order_given.action:
            case Action.APPLY_CONFIG:
                return self._deliver(exchange, order_given)
            case Action.LOCK:
                return self._lock(exchange, order_given)
            case Action.UNLOCK:
                return self._unlock(exchange, order_given)
            case Action.WIPE:
                return self._wipe(exchange, order_given)

    def _verified(self, exchange: Exchange) -> Directive | None:
        """Return the order that the answer carries, verified; None where it orders nothing."""
        answer = exchange.answer
        if answer.directive is None:
            if answer.action != "none":
                raise DirectiveRejected(f"the answer wants {answer.action}, but no directive says so")
            return None
        order = directives.verify(
            answer.directive,
            keys=self._pinned_keys(),
            asked=exchange.asked,
            nonce=exchange.nonce,
        )
        if order.action != answer.action:
            raise DirectiveRejected(f"the answer wants {answer.action}, its directive {order.action}")
        return order

    def _pinned_keys(self) -> dict[str, Any]:
        keys = self._state.service_keys()
        if keys is None:
            # Cannot happen after an activation; without a pin there is nobody to believe.
            raise DirectiveRejected("no service keys are pinned")
        return keys

    def _settle(self, exchange: Exchange) -> Round:
        """End a round in which nothing was ordered: what was ordered before may still be to do.

        The status is not signed. It ends `--once` with a code, and it says when that what was ordered, verified and
        kept is tried again: a configuration with `attested`, a wipe with `revoked`. Whoever lies about it delays that,
        or has it done before our acknowledgement arrived. Nothing is dropped, and nothing is done that no directive
        for this TPM ordered.
        """
        answer = exchange.answer
        again_seconds = answer.reattest_after_seconds
        code = _STATUS_EXITS[answer.status]
        if answer.status is Status.ATTESTED:
            pending = self._state.pending_config()
            if pending is not None:
                if self._due():
                    self._tried(self._apply(exchange.known, pending))
                code = Exit.OK if self._undelivered is None else exit_of(self._undelivered)
        order = self._state.wipe_order()
        if order is not None and answer.status is Status.REVOKED:
            # Ordered, verified, and no longer asked for: our acknowledgement arrived, its answer did not.
            return self._wipe_now(exchange.known, order.directive, again_seconds=again_seconds)
        return Round(exit=code, again_seconds=again_seconds)

    # §§1-2: introduce and activate

    def _known(self) -> KnownAs:
        """Return who we are to the service; introduce ourselves where it does not know this TPM yet."""
        known = self._state.known_as()
        if known is not None and known.ek_fingerprint == self._fingerprint():
            return known
        return self._enrol(presents_token=known is None)

    def _enrol(self, *, presents_token: bool = False) -> KnownAs:
        """Introduce the TPM and prove that the AK lives in it; only a welcome for this TPM changes anything.

        Args:
            presents_token: A registration token is presented. The keys that were given beside it are asked for
                whenever none are pinned: also of a machine that was known before.
        """
        registration_token = given_sha256 = None
        if presents_token or self._state.service_keys() is None:
            registration_token, given_sha256 = self._registration_token()
        if not presents_token:
            registration_token = None
        identity, tpm = self._identify(), self._open_tpm()
        ak_public = tpm.ak_public()
        members: dict[str, Any] = {
            "ek_public": b64encode(identity.ek_public),
            "ek_source": identity.ek_source,
            "ek_cert_pem": b64encode(identity.ek_certificate) if identity.ek_certificate else None,
            "ek_chain": [b64encode(certificate) for certificate in identity.ek_chain[:16]],
            "ek_fingerprint": self._fingerprint(),
            "ak_public": b64encode(ak_public),
            "desired_role": self._settings.desired_role,
            "cluster_id": self._settings.cluster_id,
            **read_hardware(self._settings.sysfs),
        }
        introduced, further = self._introduce(members, registration_token, self._further_eks())
        offered = introduced.activation
        secret = tpm.activate(
            b64decode(offered.credential_blob, "credential_blob"),
            b64decode(offered.encrypted_secret, "encrypted_secret"),
        )
        proof = ak_activation.proof(
            secret,
            machine_id=introduced.machine_id,
            challenge_id=offered.challenge_id,
            ek_public=identity.ek_public,
            ak_name=parse_public(ak_public).name,
        )
        proofs = self._further_proofs(introduced, further)
        asked = self._request(introduced.machine_id)
        try:
            activated = self._answered(
                lambda: self._client.activate(
                    introduced.machine_id,
                    ActivateRequest(
                        challenge_id=offered.challenge_id,
                        proof=b64encode(proof),
                        alternative_proofs=proofs,
                        node_nonce=b64encode(asked.node_nonce),
                    ),
                )
            )
        except ChallengeExpired as e:
            self._hide_further(further, e)
            raise
        # Until here nothing was signed. Who answers, for this TPM, under this id, now: this says so.
        keys, pinned_by = self._keys_of(activated, given_sha256)
        if activated.next_keys is not None and (
            followed := self._next_keys(activated.next_keys, keys, asked)
        ):
            # Whoever was away while the keys changed knows only the one before, and it names the one that signs now.
            keys, pinned_by = followed, pinned_by or "succession"
        status = directives.verify_welcome(
            activated.welcome, keys=keys, asked=asked, challenge_id=offered.challenge_id
        )
        self._pin(keys, pinned_by)
        self._remember(KnownAs(machine_id=introduced.machine_id, ek_fingerprint=self._fingerprint()), status)
        known = self._state.known_as()
        assert known is not None
        return known

    def _introduce(
        self, members: dict[str, Any], registration_token: str | None, further: tuple[FurtherEK, ...]
    ) -> tuple[IntroduceResponse, tuple[FurtherEK, ...]]:
        """Introduce the TPM, with a token and further EKs if there are any; return the answer and the EKs shown.

        Better a machine that waits for an operator than one that nobody hears of: what is refused is left out.
        """
        if further:
            shown = [
                {"ek_public": b64encode(each.ek_public), "ek_cert_pem": b64encode(each.certificate)}
                for each in further
            ]
            try:
                return self._introduce_as({**members, "ek_alternatives": shown}, registration_token), further
            except (RequestInvalid, MalformedEvidence, EKCertificateRejected, EKTemplateRejected) as e:
                self._hide_further(further, e)
        return self._introduce_as(members, registration_token), ()

    def _introduce_as(self, members: dict[str, Any], registration_token: str | None) -> IntroduceResponse:
        """Introduce the TPM with the token; without it where it is refused."""
        if registration_token is not None:
            try:
                return self._client.introduce(
                    RegisterRequest.model_validate({**members, "registration_token": registration_token})
                )
            except RegistrationTokenInvalid:
                self._edge.log.warning("registration_token.refused")
        return self._client.introduce(IntroduceRequest.model_validate(members))

    def _further_eks(self) -> tuple[FurtherEK, ...]:
        """Return the other EKs of this TPM that its maker certified: shown together, they are one machine."""
        if not self._shows_further:
            return ()
        try:
            return self._open_tpm().further_eks()
        except TPMResponseError as e:
            self._edge.log.warning("further_eks.failed", code=e.code, reason=str(e))
            return ()

    def _further_proofs(self, introduced: IntroduceResponse, further: tuple[FurtherEK, ...]) -> list[str]:
        """Prove each further EK by the credential that was sealed to it; where one fails none counts, nor is sent."""
        offered, tpm, proofs = introduced.activation, self._open_tpm(), []
        if len(offered.alternatives) != len(further):
            return []
        try:
            for each, credential in zip(further, offered.alternatives, strict=True):
                secret = tpm.activate(
                    b64decode(credential.credential_blob, "credential_blob"),
                    b64decode(credential.encrypted_secret, "encrypted_secret"),
                    ek_public=each.ek_public,
                )
                made = ak_activation.proof(
                    secret,
                    machine_id=introduced.machine_id,
                    challenge_id=offered.challenge_id,
                    ek_public=each.ek_public,
                    ak_name=parse_public(tpm.ak_public()).name,
                    primary=self._fingerprint(),
                )
                proofs.append(b64encode(made))
        except (MalformedEvidence, TPMResponseError) as e:
            self._edge.log.warning("further_eks.failed", code=e.code, reason=str(e))
            return []
        return proofs

    def _hide_further(self, further: tuple[FurtherEK, ...], why: AttestationError) -> None:
        """Go on without further EKs: the service refuses one of them, or they take longer than a challenge lives."""
        if further:
            self._shows_further = False
            self._edge.log.warning("further_eks.hidden", code=why.code, reason=str(why))

    def _remember(self, known: KnownAs, status: Status) -> None:
        """Keep who we are to the service, which it just signed."""
        before = self._state.known_as()
        if before is not None and before != known:
            # What was kept is another machine's: its record was deleted, or the disk sits in another box.
            self._state.set_pending_config(None)
            self._state.set_wipe_order(None)
            self._state.set_status(None)
        self._state.remember(known, at=self._edge.clock.now())
        # That it is locked is no order to lock itself: this comes with its first attestation.
        if status not in ORDERED and self._state.status() not in ORDERED:
            self._state.set_status(status)
        self._next = None
        self._edge.log.info(
            "activated", machine_id=known.machine_id, ek_fingerprint=known.ek_fingerprint, status=status
        )

    # Whom it believes

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

    def _keys_of(
        self, activated: ActivateResponse, given_sha256: str | None
    ) -> tuple[Mapping[str, Any], str | None]:
        """Return the keys that the welcome must be signed by, and by whose word where they are not pinned yet.

        Raises:
            ServiceKeysChanged: The service shows none of those that are pinned or were given.
        """
        try:
            shown = thumbprints(activated.service_keys)
        except JWSRejected as e:
            raise ServiceKeysChanged(f"the service shows no keys: {e}") from e
        pinned = self._state.service_keys()
        if pinned is not None:
            if not thumbprints(pinned).keys() & shown.keys():
                raise ServiceKeysChanged(
                    "the service shows other keys than those pinned. If the service was rebuilt on purpose, remove "
                    f"{self._state.directory / 'service-keys.json'}; otherwise somebody is in between"
                )
            return pinned, None
        if self._settings.service_keys_file is not None:
            return _keys_in(self._settings.service_keys_file), "file"
        if given_sha256 is None:
            return activated.service_keys, "first use"
        for chosen in _subsets(shown):
            if key_set_sha256(frozenset(chosen)).hex() == given_sha256:
                return {"keys": [shown[name] for name in chosen]}, "digest"
        raise ServiceKeysChanged(
            "the service shows other keys than those that came with the registration token; "
            "somebody is in between, or the keys were changed since"
        )

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

    def _registration_token(self) -> tuple[str | None, str | None]:
        """Return the token that admits this machine, and the digest of the service's keys where it came along."""
        path = self._settings.registration_token_file
        if path is None:
            return None, None
        try:
            with path.open(encoding="ascii") as file:
                words = file.read(MAX_TOKEN_FILE_BYTES).split()
        except (OSError, UnicodeDecodeError) as e:
            reason = e.strerror if isinstance(e, OSError) else "not text"
            raise UsageError(f"registration token file {path}: {reason}") from e
        if not 1 <= len(words) <= 2 or not 1 <= len(words[0]) <= 256:
            raise UsageError(f"registration token file {path} holds no token")
        if len(words) == 1:
            return words[0], None
        if len(words[1]) != 64 or not set(words[1]) <= set("0123456789abcdef"):
            raise UsageError(
                f"registration token file {path}: its second word is no SHA-256 of the service's keys"
            )
        return words[0], words[1]

    # §§3-4: challenge and attest

    def _attest(self, known: KnownAs) -> Exchange:
        """Attest; where the service forgot our key or our challenge, repair that once and attest again."""
        try:
            return self._attest_once(known)
        except (AKNotActivated, MachineUnknown, EKFingerprintMismatch) as e:
            self._edge.log.warning("enrol.again", code=e.code)
            return self._attest_once(self._enrol())
        except (ChallengeExpired, ChallengeUsed, ChallengeUnknown) as e:
            # The clocks disagree, or an answer was lost on its way to us.
            self._next = None
            if self._certified and isinstance(e, ChallengeExpired):
                # Or this TPM takes longer over its EK than a challenge lives: better without than never.
                self._edge.log.warning("key_certification.too_slow")
                self._certifies = False
            return self._attest_once(known)
        except MalformedEvidence:
            # A log that nobody needs and the service cannot read must not keep this machine away.
            if not self._logs.volunteered:
                raise
            self._logs.withhold()
            self._next = None
            return self._attest_once(known)

    def _attest_once(self, known: KnownAs) -> Exchange:
        challenge, nonce = self._challenge(known)
        asked = self._request(known.machine_id)
        quote = self._open_tpm().quote(nonce, _selection(challenge))
        evidence = AttestRequest.model_validate(
            {
                "machine_id": known.machine_id,
                "ek_fingerprint": known.ek_fingerprint,
                "nonce_id": challenge.nonce_id,
                "pcr_quote": b64encode(quote.attest),
                "pcr_signature": b64encode(quote.signature),
                "pcr_values": pcr_values_on_wire(quote),
                "event_log": self._logs.boot(required=challenge.event_log == "required"),
                "evidence": [
                    *self._key_certification(challenge, nonce),
                    *(self._logs.ima() if IMA_KIND in challenge.evidence else []),
                ],
                "node_nonce": b64encode(asked.node_nonce),
                **read_hardware(self._settings.sysfs),
            }
        )
        answer = self._answered(lambda: self._client.attest(evidence))
        if answer.machine_id != known.machine_id:
            raise AnswerRefused("the service answered about another machine")
        self._next = answer.next_challenge
        self._logs.answered(answer.status)
        return Exchange(known=known, nonce=nonce, asked=asked, answer=answer)

    def _key_certification(self, challenge: QuoteChallenge, nonce: bytes) -> list[dict[str, object]]:
        """Answer the second protocol, where the challenge offers a key: the EK vouches for AK and firmware.

        A TPM that cannot is no reason to stay away: whether it must is for the service's policy to say.
        """
        offered = challenge.ek_challenge
        self._certified = False
        if offered is None or not self._certifies or ek_key_attestation.KIND not in challenge.evidence:
            return []
        self._certified = True
        try:
            made = self._open_tpm().certify_ak(
                b64decode(offered.object_public, "object_public"),
                b64decode(offered.duplicate, "duplicate"),
                b64decode(offered.in_sym_seed, "in_sym_seed"),
                nonce,
            )
        except (MalformedEvidence, TPMResponseError) as e:
            self._edge.log.warning("key_certification.failed", code=e.code, reason=str(e))
            return []
        value = {"certify_info": b64encode(made.certify_info), "signature": b64encode(made.signature)}
        return [{"media_type": ek_key_attestation.MEDIA_TYPE, "value": value}]

    def _challenge(self, known: KnownAs) -> tuple[QuoteChallenge, bytes]:
        """Return a challenge to answer and its nonce: the one left from the last answer, or a fresh one."""
        challenge, self._next = self._next, None
        if challenge is None or challenge.expires_at - self._edge.clock.now() < CHALLENGE_MARGIN:
            challenge = self._client.challenge(known.machine_id)
        nonce = b64decode(challenge.nonce, "nonce", max_bytes=NONCE_BYTES)
        if len(nonce) != NONCE_BYTES:
            raise AnswerRefused(f"the nonce has {len(nonce)} bytes, {NONCE_BYTES} expected")
        return challenge, nonce

    # §5: fetch, open, apply

    def _deliver(self, exchange: Exchange, order: Directive) -> Round:
        """Fetch the sealed configuration, keep it sealed until it is applied, apply and acknowledge it.

        It is offered until we acknowledge that it is applied. What failed is fetched anew, with a pause that grows: it
        may have been the configuration that was wrong.
        """
        answer = exchange.answer
        if self._due():
            try:
                self._tried(self._deliver_now(exchange, order))
            except AttestationError:
                self._not_configured()
                raise
        failed = self._undelivered
        return Round(
            exit=Exit.OK if failed is None else exit_of(failed), again_seconds=answer.reattest_after_seconds
        )

    def _due(self) -> bool:
        if self._apply_at is None:
            return True
        wait = self._apply_at - self._edge.clock.now()
        # Longer than we ever wait: the clock was set back.
        return not timedelta(0) < wait <= APPLY_AGAIN_MOST

    def _tried(self, failed: AgentError | None) -> None:
        """Note how it went: after a failure of ours the next attempt waits, twice as long as the one before."""
        self._undelivered = failed
        if failed is None:
            self._apply_at, self._apply_pause = None, APPLY_AGAIN_FIRST
            return
        self._edge.log.warning("config.not_delivered", code=failed.code, reason=str(failed))
        if not isinstance(failed, ConfigNotDelivered):
            self._apply_at = self._edge.clock.now() + self._apply_pause
            self._apply_pause = min(2 * self._apply_pause, APPLY_AGAIN_MOST)
        self._not_configured()

    def _not_configured(self) -> None:
        """Tell other programs on this machine; best effort, for what could not be kept may be the reason."""
        if self._state.status() not in ORDERED:
            with contextlib.suppress(StateNotKept):
                self._state.set_status(NOT_CONFIGURED)

    def _deliver_now(self, exchange: Exchange, order: Directive) -> AgentError | None:
        """Fetch, keep, apply and acknowledge a configuration; return what went wrong on our side, if anything."""
        answer = exchange.answer
        if answer.config_token is None:
            raise AnswerRefused("the service orders apply-config without a token to fetch it by")
        if order.token_id in self._state.applied():
            raise AnswerRefused("the service orders a configuration that was applied already")
        asked = self._request(exchange.known.machine_id)
        try:
            delivery = self._client.fetch_config(answer.config_token, asked.node_nonce)
        except (BaseConfigMissing, BaseConfigInvalid) as e:
            return ConfigNotDelivered(f"the service has no configuration to send: {e}")
        if delivery is None:
            raise AnswerRefused("the service orders apply-config, but gives no sealed configuration")
        envelope = delivery.envelope
        sent_at = directives.verify_delivery(
            delivery.signature,
            envelope,
            order=order,
            keys=self._pinned_keys(),
            asked=asked,
        )
        pending = PendingConfig(envelope=envelope, directive=order.token, acknowledged=False)
        try:
            # From now on no older file is taken, whether this one can be applied at once or not.
            self._state.add_newest_config(sent_at)
            # Sealed, the configuration may lie on disk: only this TPM opens it.
            self._state.set_pending_config(pending)
            return self._apply(exchange.known, pending)
        except StateNotKept as e:
            self._try_to_acknowledge(exchange.known, _digest(order.token), str(e))
            return e

    def _apply(self, known: KnownAs, pending: PendingConfig) -> AgentError | None:
        """Open and apply a configuration and acknowledge how that went; return what went wrong, if anything."""
        envelope, failed = pending.envelope, None
        try:
            config = sealed.opened(self._open_tpm(), envelope, machine_id=known.machine_id)
            chosen = self._settings
            sealed.applied(config, chosen.config_path, chosen.apply_command, self._edge.run)
        except (ConfigNotOpened, ApplyFailed) as e:
            failed = e
            self._state.set_pending_config(replace(pending, acknowledged=True))
        else:
            self._edge.log.info(
                "config.applied", config_sha256=envelope.config_sha256, path=str(self._settings.config_path)
            )
            # Noted first: power that fails between these two lines must not apply it again.
            try:
                self._state.add_applied(envelope.token_id)
            finally:
                self._state.set_pending_config(None)
            if self._state.status() not in ORDERED:
                self._state.set_status(Status.ATTESTED)
        if not pending.acknowledged:
            self._try_to_acknowledge(known, _digest(pending.directive), str(failed) if failed else None)
        return failed

    # Lock and wipe

    def _lock(self, exchange: Exchange, order: Directive) -> Round:
        """Write `locked`, run the lock command once, and acknowledge the first time."""
        answer = exchange.answer
        self._state.set_pending_config(None)
        if self._state.status() != Status.LOCKED:
            outcome = self._edge.run(self._settings.lock_command) if self._settings.lock_command else None
            failed = outcome is not None and not outcome.ok
            # A failed command is tried again at the next directive.
            self._state.set_status(LOCK_FAILED if failed else Status.LOCKED)
            self._edge.log.warning("locked", command=outcome.text if outcome else "none configured")
            failure = "lock command failed" if failed else None
            self._try_to_acknowledge(exchange.known, _digest(order.token), failure)
        return Round(exit=Exit.LOCKED, again_seconds=answer.reattest_after_seconds)

    def _unlock(self, exchange: Exchange, order: Directive) -> Round:
        """Run the unlock command where this machine is locked, and acknowledge: the order comes until we do."""
        failed = False
        if self._state.status() in (Status.LOCKED, LOCK_FAILED, UNLOCK_FAILED):
            outcome = self._edge.run(self._settings.unlock_command) if self._settings.unlock_command else None
            failed = outcome is not None and not outcome.ok
            self._state.set_status(UNLOCK_FAILED if failed else Status.ATTESTED)
            self._edge.log.warning("unlocked", command=outcome.text if outcome else "none configured")
        failure = "unlock command failed" if failed else None
        self._try_to_acknowledge(exchange.known, _digest(order.token), failure)
        return Round(
            exit=Exit.LOCKED if failed else Exit.OK, again_seconds=exchange.answer.reattest_after_seconds
        )

    def _wipe(self, exchange: Exchange, order: Directive) -> Round:
        """Acknowledge, then wipe: afterwards there is nobody left to say so (PROTOCOL §6)."""
        answer = exchange.answer
        self._state.set_pending_config(None)
        self._state.set_status(Status.REVOKED)
        if not self._settings.wipe_command:
            # "done" would be a lie: the machine keeps its disks.
            self._edge.log.error("wipe.impossible", reason="no wipe command is configured")
            self._acknowledge(exchange.known, _digest(order.token), "no wipe command is configured")
            return Round(exit=Exit.REVOKED, again_seconds=answer.reattest_after_seconds)
        # Kept before the acknowledgement: after it, the service does not ask again, and power may fail here.
        self._state.set_wipe_order(WipeOrder(directive=order.token, acknowledged=False))
        self._acknowledge(exchange.known, _digest(order.token), None)
        self._state.set_wipe_order(WipeOrder(directive=order.token, acknowledged=True))
        return self._wipe_now(exchange.known, order.token, again_seconds=answer.reattest_after_seconds)

    def _wipe_now(self, known: KnownAs, token: str, *, again_seconds: int) -> Round:
        """Run the wipe command for an order that was verified and acknowledged."""
        keys = self._state.service_keys()
        if keys is None:
            raise DirectiveRejected("the order to wipe that was kept cannot be verified any more")
        order = directives.verify_again(token, keys=keys, to=self._binding(known.machine_id))
        # An order to lock, put where an order to wipe was kept, must not become one.
        if order.action is not Action.WIPE:
            raise DirectiveRejected("the order that was kept is not one to wipe")
        self._edge.log.warning("wipe.begins")
        outcome = self._edge.run(self._settings.wipe_command) if self._settings.wipe_command else None
        if outcome is None or not outcome.ok:
            raise WipeFailed(f"wipe command: {outcome.text if outcome else 'none configured'}")
        self._state.set_wipe_order(None)
        self._edge.log.warning("wipe.done")
        return Round(exit=Exit.REVOKED, again_seconds=again_seconds, final=True)

    # §6: acknowledge

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
        quote = self._open_tpm().quote(said, _selection(challenge))
        self._client.ack(
            known.machine_id,
            AckRequest(
                nonce_id=challenge.nonce_id,
                directive_sha256=digest.hex(),
                outcome=outcome,
                detail=clean(failure)[:MAX_DETAIL] if failure is not None else None,
                pcr_quote=b64encode(quote.attest),
                pcr_signature=b64encode(quote.signature),
            ),
        )
        self._edge.log.info("acknowledged", outcome=outcome)

    # The TPM

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


def pcr_values_on_wire(quote: Quote) -> dict[str, dict[str, str]]:
    """Return the PCR values of *quote* as §4 wants them: bank -> index in decimal -> hex."""
    return {
        bank: {str(index): digest.hex() for index, digest in values.items()}
        for bank, values in quote.pcr_values.items()
    }


def _selection(challenge: QuoteChallenge) -> PCRSelection:
    return PCRSelection.from_names(challenge.pcr_selection)


def _digest(token: str) -> bytes:
    """Return what an acknowledgement names a directive by: SHA-256 of the compact JWS."""
    return hashlib.sha256(token.encode("ascii")).digest()


def _keys_in(path: Path) -> dict[str, Any]:
    """Return the JWK set that an administrator put at *path*.

    Raises:
        UsageError: There is none.
    """
    try:
        with path.open("rb") as file:
            keys = json.loads(file.read(MAX_KEYS_FILE_BYTES))
        thumbprints(keys)
    except OSError as e:
        raise UsageError(f"service keys file {path}: {e.strerror}") from e
    except (ValueError, AttributeError, RecursionError, JWSRejected) as e:
        raise UsageError(f"service keys file {path} holds no JWK set") from e
    found: dict[str, Any] = keys
    return found


def _subsets(names: Mapping[str, Any]) -> list[list[str]]:
    """Return every choice of *names* but none at all: at most fifteen."""
    found: list[list[str]] = [[]]
    for name in names:
        found += [[*chosen, name] for chosen in found]
    return found[1:]
