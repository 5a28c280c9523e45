"""Challenges to quote, and those for certificates: made, shown, and read back (PROTOCOL §3)."""

from __future__ import annotations

import json
import os
import secrets
import threading
from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Literal

from attestation.api import CertificateChallenge, EKChallenge, QuoteChallenge
from attestation.errors import ChallengeExpired, ChallengeUnknown, ChallengeUsed
from attestation.evidence import ima_log, tpm_quote
from attestation.machines import Machine
from attestation.reference import Policy
from attestation.store import Challenge, NodeChallenge, Tx
from attestation.store.challenges import Purpose
from attestation.tpm import PCRSelection
from attestation.wire import b64encode
from attestation_service.kubernetes_clusters import ClusterRule
from attestation_service.settings import Settings

ID_BYTES = 16
NONCE_BYTES = 32
POOL_BYTES = 4096
_PREFIX = "application/vnd.itl."
QUOTE = tpm_quote.MEDIA_TYPE.removeprefix(_PREFIX)
IMA_LOG = ima_log.MEDIA_TYPE.removeprefix(_PREFIX)


class RandomPool:
    """Random bytes of the operating system, fetched a page at a time; each byte is handed out once.

    Every system call gives the interpreter lock away, and under load getting it back takes longer than the call.
    A process that was forked never uses what its parent fetched: two machines would get one nonce.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._bytes = b""
        self._process_id = os.getpid()

    def take(self, size_bytes: int) -> bytes:
        """Return *size_bytes* random bytes, at most `POOL_BYTES`."""
        with self._lock:
            if len(self._bytes) < size_bytes or self._process_id != os.getpid():
                self._bytes, self._process_id = secrets.token_bytes(POOL_BYTES), os.getpid()
            taken, self._bytes = self._bytes[:size_bytes], self._bytes[size_bytes:]
            return taken


_random = RandomPool()


def make(
    machine: Machine,
    policy: Policy,
    settings: Settings,
    at: datetime,
    *,
    event_log_known: bool,
    besides: Sequence[str] = (),
) -> Challenge:
    """Make a fresh challenge to *machine* for what *policy* asks for.

    Args:
        machine: Whom it is for.
        policy: What its answer is judged by.
        settings: How long it is good.
        at: When it is issued.
        event_log_known: The log that led to its PCRs last is kept, so that it need not send it again.
        besides: What it names for other kinds of evidence.
    """
    random = _random.take(ID_BYTES + NONCE_BYTES)
    evidence = _WITH_IMA_LOG if policy.tpm.ima is not None else _QUOTE_ONLY
    if machine.tee is not None:
        evidence = _NOTHING
    return Challenge(
        challenge_id=random[:ID_BYTES].hex(),
        purpose="attest",
        machine_id=machine.machine_id,
        ek_fingerprint=machine.fingerprint,
        nonce=random[ID_BYTES:],
        pcr_selection=_NO_PCRS if machine.tee is not None else _written(policy.tpm.selection),
        policy_ref=policy.ref,
        issued_at=at,
        expires_at=at + timedelta(seconds=settings.challenge_ttl_seconds),
        event_log="required"
        if policy.tpm.event_log_required and not event_log_known and machine.tee is None
        else "accepted",
        evidence=json.dumps([*_kinds(evidence), *besides]) if besides else evidence,
    )


def make_for_certificate(
    machine: Machine, purpose: Literal["certify", "enroll"], settings: Settings, at: datetime
) -> Challenge:
    """Make a fresh challenge to *machine*, to be given a certificate or to present one.

    Args:
        machine: Whom it is for.
        purpose: What it is good for, and nothing else.
        settings: How long it is good.
        at: When it is issued.
    """
    random = _random.take(ID_BYTES + NONCE_BYTES)
    return Challenge(
        challenge_id=random[:ID_BYTES].hex(),
        purpose=purpose,
        machine_id=machine.machine_id,
        ek_fingerprint=machine.fingerprint,
        nonce=random[ID_BYTES:],
        issued_at=at,
        expires_at=at + timedelta(seconds=settings.challenge_ttl_seconds),
    )


def make_for_node(
    machine: Machine,
    policy: Policy,
    rule: ClusterRule,
    settings: Settings,
    at: datetime,
    *,
    event_log_known: bool,
) -> NodeChallenge:
    """Make a fresh challenge to *machine* for a Kubernetes certificate.

    Args:
        machine: Whom it is for.
        policy: What a quote in the request is judged by.
        rule: Of its cluster: whether it wants one.
        settings: How long it is good.
        at: When it is issued.
        event_log_known: The log that led to its PCRs last is kept, so that it need not send it again.
    """
    random = _random.take(ID_BYTES + NONCE_BYTES)
    return NodeChallenge(
        challenge_id=random[:ID_BYTES].hex(),
        machine_id=machine.machine_id,
        ek_fingerprint=machine.fingerprint,
        nonce=random[ID_BYTES:],
        pcr_selection=_written(policy.tpm.selection),
        event_log="required" if policy.tpm.event_log_required and not event_log_known else "accepted",
        quote=rule.quote,
        policy_ref=policy.ref,
        issued_at=at,
        expires_at=at + timedelta(seconds=settings.challenge_ttl_seconds),
    )


def show_for_node(challenge: NodeChallenge, cluster_id: str) -> CertificateChallenge:
    """Return *challenge* as the node sees it."""
    return CertificateChallenge(
        nonce_id=challenge.challenge_id,
        nonce=b64encode(challenge.nonce),
        expires_at=challenge.expires_at,
        pcr_selection=_read(challenge.pcr_selection).to_names(),
        event_log=challenge.event_log,
        quote=challenge.quote,
        cluster_id=cluster_id,
    )


def selection_of_node(challenge: NodeChallenge) -> PCRSelection:
    """Return the PCRs that were requested with *challenge*."""
    return _read(challenge.pcr_selection)


def show_for_certificate(challenge: Challenge) -> CertificateChallenge:
    """Return *challenge* as the node sees it."""
    assert challenge.nonce is not None
    return CertificateChallenge(
        nonce_id=challenge.challenge_id, nonce=b64encode(challenge.nonce), expires_at=challenge.expires_at
    )


def show(challenge: Challenge, ek_challenge: EKChallenge | None = None) -> QuoteChallenge:
    """Return *challenge* as the node sees it, with the key sealed to its EK where one is offered."""
    assert challenge.nonce is not None
    return QuoteChallenge(
        nonce_id=challenge.challenge_id,
        nonce=b64encode(challenge.nonce),
        expires_at=challenge.expires_at,
        pcr_selection=json.loads(challenge.pcr_selection or _NO_PCRS),
        event_log="required" if requires_event_log(challenge) else "accepted",
        evidence=list(_kinds(challenge.evidence or _QUOTE_ONLY)),
        ek_challenge=ek_challenge,
    )


def open_challenge(
    tx: Tx, challenge_id: str, machine_id: str, at: datetime, purpose: Purpose = "attest"
) -> Challenge:
    """Return a challenge for *purpose* that may still be answered; `redeem` decides races later.

    Raises:
        ChallengeUnknown, ChallengeUsed, ChallengeExpired: As `redeem`.
    """
    return still_open(tx.challenges.get(challenge_id), machine_id, at, purpose)


def still_open(
    challenge: Challenge | None, machine_id: str, at: datetime, purpose: Purpose = "attest"
) -> Challenge:
    """As `open_challenge`, on a challenge that was loaded with something else."""
    if challenge is None or challenge.purpose != purpose or challenge.machine_id != machine_id:
        raise ChallengeUnknown("no such challenge for this machine")
    if challenge.used_at is not None:
        raise ChallengeUsed("the challenge was redeemed before")
    if at >= challenge.expires_at:
        raise ChallengeExpired("the challenge was not answered in time")
    return challenge


def selection(challenge: Challenge) -> PCRSelection:
    """Return the PCRs that were requested with *challenge*."""
    assert challenge.pcr_selection is not None
    return _read(challenge.pcr_selection)


def requires_event_log(challenge: Challenge) -> bool:
    """Say whether the event log was demanded with *challenge*."""
    return challenge.event_log == "required"


_NO_PCRS = json.dumps({})
_NOTHING = json.dumps([])
_QUOTE_ONLY = json.dumps([QUOTE])
_WITH_IMA_LOG = json.dumps([QUOTE, IMA_LOG])


@lru_cache(maxsize=16)
def _kinds(text: str) -> tuple[str, ...]:
    return tuple(json.loads(text))


@lru_cache(maxsize=256)
def _written(selected: PCRSelection) -> str:
    return json.dumps(selected.to_names())


@lru_cache(maxsize=256)
def _read(text: str) -> PCRSelection:
    return PCRSelection.from_names(json.loads(text))
