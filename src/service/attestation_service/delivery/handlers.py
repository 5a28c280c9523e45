"""Fetching a configuration: sealed to the TPM that proved itself, or an answer without secrets (PROTOCOL §5).

A token gives the right to one delivery; whether it is made is decided again inside the unit that spends it:
attested, last result Verified, within its lease, the AK unchanged. Everything else gets the pending answer.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final, Literal

from attestation.api import ConfigEnvelope
from attestation.audit import AuditEvent
from attestation.envelope import FORMAT, TEE_FORMAT, Envelope, SubjectEnvelope, seal, seal_to_subject
from attestation.errors import (
    AgentTooOld,
    ConfigTokenConsumed,
    ConfigTokenUnknown,
    MalformedEvidence,
    NotAcceptable,
    Unavailable,
)
from attestation.keys import CONFIG_TYP
from attestation.machines import Machine, NodeEvent, Status, Trust
from attestation.store import ConfigToken, Tx
from attestation.tpm import parse_public
from attestation.wire import b64encode
from attestation_service.border import limits
from attestation_service.configs.kept import KeptConfigurations
from attestation_service.configs.sources import Sources
from attestation_service.context.request import Origin
from attestation_service.entitlements import config_tokens
from attestation_service.entitlements.events import emit
from attestation_service.keys import statements
from attestation_service.resources import Resources
from attestation_service.settings import Settings
from attestation_service.verifier import policy

SEALED: Final = "application/vnd.itl.config.encrypted+json"
PLAIN: Final = "application/yaml"

UNHEARD: Final = "it was fetched, and the machine has not said since that it is applied"
"""Why a machine has no configuration from a fetch to its acknowledgement."""

Wanted = Literal["sealed", "plain"]


@dataclass(frozen=True, slots=True)
class Delivered:
    """A configuration on its way: the envelope as JSON, or YAML where plaintext is allowed.

    Args:
        body: The answer.
        media_type: Of the answer.
        signature: Statement about a sealed configuration (docs/adr/0013, docs/adr/0045).
    """

    body: bytes
    media_type: str
    signature: str | None = None


@dataclass(frozen=True, slots=True)
class Pending:
    """Nothing is released; `words` are at most 32 bytes for a console.

    Args:
        words: Why.
        at_console: An operator stood at the console: a machine that was told to wait for that may go on.
    """

    words: str
    at_console: bool = False


@dataclass(frozen=True, slots=True)
class _Due:
    """A token whose delivery is due, with the machine it is for; `repeat` is set inside the repeat window."""

    token: ConfigToken
    machine: Machine
    repeat: bytes | None
    sources: Sources


async def fetch(
    config_token: str, wanted: Wanted, node_nonce: str | None, *, res: Resources, origin: Origin
) -> Delivered | Pending:
    """Deliver the configuration that *config_token* gives a right to.

    Args:
        config_token: The token.
        wanted: Form of the answer.
        node_nonce: What the machine chose for this request, base64; None of an old agent, and of plain clients.
        res: What the application owns.
        origin: Where the request came from.

    Raises:
        AgentTooOld: A sealed configuration for a machine that could not tell whether it is meant.
        ConfigTokenUnknown: No such token.
        ConfigTokenConsumed: Used, withdrawn or expired.
        NotAcceptable: Plaintext was asked for, and only envelopes are served.
        BaseConfigMissing, BaseConfigInvalid: There is nothing to deliver for this role in this cluster.
        ConfigurationUnreadable, SignerUnavailable: What is kept cannot be opened now, or was not activated here.
        RateLimited: Too often from this address.
    """
    at = res.clock.now()
    digest = config_tokens.sha256(config_token)
    counted = limits.of_client(res.settings, origin.address)

    def load(tx: Tx) -> _Due | Pending:
        limits.check(tx, counted, at)
        return _load(tx, digest, res.settings, at)

    async with limits.CountRefusals(res.store, counted, at, lambda e: limits.denial("config", e, origin)):
        due = await res.store.read(load)
    await res.store.write(lambda tx: limits.take(tx, counted, at))
    if isinstance(due, Pending):
        return due
    if due.repeat is not None and wanted == "plain":
        # Plaintext is never repeated, and a sealed answer is no YAML.
        raise ConfigTokenConsumed("the config token was used")
    try:
        _demand_form(wanted, node_nonce, res.settings)
        if due.repeat is not None:
            return await _signed(Delivered(due.repeat, SEALED), due.machine, node_nonce, res, at)
        # Files and YAML, never on the loop and never inside a unit. A failure here is an error, never plaintext.
        answer, config_sha256 = await res.configurations.beside.for_machines(
            partial(_prepare, due, wanted, res)
        )
    except (NotAcceptable, AgentTooOld, Unavailable) as e:
        # The machine is attested, and has nothing: whoever looks at it sees that, and why.
        why = str(e)
        await res.store.write(lambda tx: config_tokens.failed(tx, due.machine.machine_id, why))
        raise

    def conclude(tx: Tx) -> Delivered | Pending:
        # Decided again on what is true now: a lock, a failed attestation or an AK reset may have come between.
        now = _load(tx, digest, res.settings, at)
        if isinstance(now, Pending):
            return now
        # What was prepared is of the machine as it was: another role or name since then is another configuration.
        # Likewise where another version was made active.
        if now.repeat is None and (now.machine.version, now.sources) != (due.machine.version, due.sources):
            return Pending("attest again " + now.machine.machine_id[:4])
        assert due.machine.key_name is not None
        # What is stored for repeats is sealed; plaintext never rests in the database.
        sealed = wanted == "sealed"
        stored, first = tx.config_tokens.consume(
            digest,
            ak_name=due.machine.key_name,
            answer=answer if sealed else b"",
            answer_until=at + timedelta(seconds=res.settings.config_repeat_seconds if sealed else 0),
            at=at,
        )
        if first:
            _record(tx, now, wanted, config_sha256, origin, at)
        elif not sealed:
            raise ConfigTokenConsumed("the config token was used")
        return Delivered(stored if sealed else answer, SEALED if sealed else PLAIN)

    delivered = await res.store.write(conclude)
    if isinstance(delivered, Pending):
        return delivered
    return await _signed(delivered, due.machine, node_nonce, res, at)


def _demand_form(wanted: Wanted, node_nonce: str | None, settings: Settings) -> None:
    """Check that what is asked for is served: envelopes to who can tell whom they are for, plaintext where allowed."""
    if wanted == "sealed":
        statements.demand_nonce(node_nonce, settings)
    elif settings.require_encrypted_delivery:
        raise NotAcceptable(f"encrypted delivery required: send Accept: {SEALED}")


async def _signed(
    delivered: Delivered, machine: Machine, node_nonce: str | None, res: Resources, at: datetime
) -> Delivered:
    """Sign what is sealed: anybody can seal to public keys, so the seal alone does not say that it was us.

    Anew for every fetch, also of the same bytes: each has its own nonce.
    """
    if delivered.media_type != SEALED:
        return delivered
    envelope = ConfigEnvelope.model_validate_json(delivered.body)
    claims = statements.claims(
        machine, node_nonce, at, token_id=envelope.token_id, config_sha256=envelope.config_sha256
    )
    signature = await asyncio.to_thread(res.signer.sign_jwt, claims, typ=CONFIG_TYP)
    return replace(delivered, signature=signature)


async def pending(console_token: str | None = None, *, res: Resources, origin: Origin) -> Pending:
    """Return the pending answer for whoever has only hardware hints; nothing is released on them (R3).

    Nor on the token of an approval at the console: it proves presence, and no TPM.

    Raises:
        RateLimited: Too often from this address.
    """
    at = res.clock.now()
    counted = limits.of_client(res.settings, origin.address)

    def work(tx: Tx) -> bool:
        limits.check(tx, counted, at)
        return console_token is not None and (
            tx.console_codes.of_token(config_tokens.sha256(console_token), at) is not None
        )

    at_console = await res.store.read(work)
    await res.store.write(lambda tx: limits.take(tx, counted, at))
    return Pending("attest to get a configuration", at_console=at_console)


def _load(tx: Tx, digest: bytes, settings: Settings, at: datetime) -> _Due | Pending:
    """Decide what a token is worth at *at*.

    Raises:
        ConfigTokenUnknown: No such token.
        ConfigTokenConsumed: Used and past its window, withdrawn or expired.
    """
    # 1. A token we issued, with something left of it.
    token = tx.config_tokens.get_by_hash(digest)
    if token is None:
        raise ConfigTokenUnknown("no such config token")
    repeat = token.repeat(at)
    if repeat is None and not token.is_unused(at):
        raise ConfigTokenConsumed("the config token was used, withdrawn or has expired")
    machine = tx.machines.by_id(token.machine_id)
    if machine is None:
        raise ConfigTokenUnknown("no such config token")
    # 2. A machine that an operator admitted and that proved itself lately, with the AK the token was given to.
    if machine.status is not Status.ATTESTED:
        return Pending(_WORDS[machine.status] + " " + machine.machine_id[:4])
    #    Under the policy that is in force now: a verdict under another one says nothing about it.
    fresh = (
        machine.trust(at) is Trust.VERIFIED
        and machine.last_policy == policy.in_force(tx, machine, settings).ref
    )
    if not fresh or machine.key_name != token.ak_name:
        return Pending("attest again " + machine.machine_id[:4])
    sources = Sources.of_machine(tx, machine, settings)
    return _Due(token, machine, repeat, sources)


_WORDS = {
    Status.PENDING_APPROVAL: "pending approval",
    Status.REGISTERED: "attestation required",
    Status.REJECTED: "rejected",
    Status.LOCKED: "locked",
    Status.REVOKED: "revoked",
}


def configuration(machine: Machine, sources: Sources, kept: KeptConfigurations, settings: Settings) -> bytes:
    """Build the configuration of *machine*: secrets in plaintext, to be sealed at once. Files: not on the loop.

    Raises:
        BaseConfigMissing: There is none for its role in its cluster.
        BaseConfigInvalid: It cannot be used, or the machine's version of Talos would refuse it.
        ConfigurationUnreadable: What is kept cannot be opened, or was not activated here.
        SignerUnavailable: The device of the key does not answer.
    """
    # Here: a service that delivers nothing needs no YAML, and this is on a thread.
    from attestation_service.configs import rendering

    texts = rendering.texts_for(machine, sources, kept, settings)
    assert machine.role is not None  # of one without there are no texts
    own = rendering.own_of(machine, settings)
    return rendering.completed(texts, own, machine.role, machine.cluster_id, settings)


def _prepare(due: _Due, wanted: Wanted, res: Resources) -> tuple[bytes, str]:
    """Build the configuration and seal it; return the answer and the SHA-256 of the plaintext, hex."""
    machine = due.machine
    config = configuration(machine, due.sources, res.configurations, res.settings)
    try:
        envelope = sealed_for(machine, config, due.token.token_id)
    except MalformedEvidence as e:
        # It was checked when it was introduced: the fault is ours, and nothing leaves.
        raise Unavailable("the configuration cannot be sealed to this machine") from e
    return (wire(envelope) if wanted == "sealed" else config), envelope.config_sha256


def sealed_for(machine: Machine, config: bytes, token_id: str) -> Envelope | SubjectEnvelope:
    """Seal a configuration to what *machine* proved last that it has: EK and AK, or its subject key.

    Raises:
        MalformedEvidence: It has no key that can be sealed to.
    """
    key, key_name = machine.anchor.ak_public, machine.key_name
    assert key is not None
    assert key_name is not None
    if machine.tee is not None:
        return seal_to_subject(config, spki=key, machine_id=machine.machine_id, token_id=token_id)
    ek = parse_public(machine.tpm.ek_public)
    return seal(config, ek=ek, ak_name=key_name, machine_id=machine.machine_id, token_id=token_id)


def wire(envelope: Envelope | SubjectEnvelope) -> bytes:
    """Return *envelope* as it travels: JSON of a `ConfigEnvelope`."""
    keys: dict[str, Any] = (
        {"format": TEE_FORMAT, "epk": b64encode(envelope.epk)}
        if isinstance(envelope, SubjectEnvelope)
        else {
            "format": FORMAT,
            "credential_blob": b64encode(envelope.credential_blob),
            "encrypted_secret": b64encode(envelope.encrypted_secret),
        }
    )
    return (
        ConfigEnvelope(
            **keys,
            machine_id=envelope.machine_id,
            token_id=envelope.token_id,
            iv=b64encode(envelope.iv),
            ciphertext=b64encode(envelope.ciphertext),
            config_sha256=envelope.config_sha256,
        )
        .model_dump_json(exclude_unset=True)
        .encode("ascii")
    )


def _record(tx: Tx, due: _Due, wanted: Wanted, config_sha256: str, origin: Origin, at: datetime) -> None:
    machine, token = due.machine, due.token
    if machine.config_owed_since is not None:
        # Whoever reads plaintext acknowledges nothing. What is sealed is owed until the machine says that it is there.
        done: dict[str, Any] = {"config_owed_since": None, "config_failure": None}
        machine = tx.machines.update(machine, **(done if wanted == "plain" else {"config_failure": UNHEARD}))
    tx.audit.append(
        AuditEvent(
            operator_cn="machine",
            action="config_delivered",
            machine_id=machine.machine_id,
            prev_state=machine.status,
            new_state=machine.status,
            detail=f"{wanted}, token {token.token_id}, config sha256 {config_sha256}{due.sources.told}",
            source_ip=origin.address,
        ),
        at,
    )
    emit(tx, NodeEvent.CONFIGURED, machine, at, meta={"token_id": token.token_id})
