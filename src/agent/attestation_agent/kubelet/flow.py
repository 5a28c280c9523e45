"""How a node gets its certificate from a cluster (HSM-AND-KUBERNETES §§17, 18, 25): the first one and each later one.

    1. a fresh challenge of the attestation service
    2. a key: one that waits from an earlier attempt, else a new one
    3. a PKCS#10 request with the subject of this node
    4. TPM2_Certify of the key over challenge and request; TPM2_Quote over the challenge; the boot event log
    5. all of it in one CertificateSigningRequest
    6. wait until somebody decided, and take the certificate if it is what was asked for

Renewal is the same again, with the bootstrap identity: so a node whose certificate ended while the network was gone
comes back by itself, and the shortcut of a cluster for a node's own renewals (`selfnodeclient`) is not used.

Whatever fails, a certificate that is still valid is kept and used.
"""

# Algorithms for: digest, certified-key
from __future__ import annotations

import base64
import contextlib
import hashlib
import secrets
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final, Literal, Protocol

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from attestation.api import CertificateChallenge
from attestation.clock import Clock
from attestation.errors import AttestationError
from attestation.evidence import node_csr
from attestation.evidence.key_certification import csr_binding
from attestation.tpm import PCRSelection
from attestation.wire import b64decode
from attestation_agent.edge import Log
from attestation_agent.exits import AnswerRefused, NoNodeCertificate
from attestation_agent.kubelet.api import Seen
from attestation_agent.kubelet.issued import Issued, check
from attestation_agent.kubelet.kept import Current, Kept, Pending
from attestation_agent.kubelet.keys import NodeKey, NodeKeyTPM

USAGES: Final = ("digital signature", "key encipherment", "client auth")
"""Key encipherment, though no elliptic curve can: signers before Kubernetes 1.27 want it, later ones allow it."""
RENEW_AT: Final = 2 / 3
"""Part of the lifetime after which a certificate is renewed."""
RENEW_SPREAD: Final = 0.1
"""Of that, earlier or later at random: nodes that were started together must not come together."""
LEEWAY: Final = timedelta(minutes=5)
"""A certificate that ends sooner is as good as none, as long as there is hope for another."""
LONGEST_REQUEST: Final = timedelta(hours=1)
"""A request that nobody decided for so long is given up, and its name with it."""
PATIENCE_WITH_CERTIFICATE_SECONDS: Final = 30.0
"""How long somebody who has a valid certificate is kept waiting for another; the request goes on meanwhile."""
NONCE_BYTES: Final = 32
MAX_EVENT_LOG_BYTES: Final = 512 << 10
_FIRST_PAUSE_SECONDS: Final = 0.5
_LONGEST_PAUSE_SECONDS: Final = 10.0


class ChallengeService(Protocol):
    """What is needed of `attestation.client.NodeClient`."""

    def certificate_challenge(
        self, machine_id: str, purpose: Literal["certify", "enroll", "node-csr"]
    ) -> CertificateChallenge:
        """Fetch a fresh challenge."""
        ...


class API(Protocol):
    """What is needed of `api.KubernetesAPI`."""

    def create(self, name: str, spec: dict[str, Any]) -> Seen:
        """Make a request."""
        ...

    def look(self, name: str) -> Seen | None:
        """Return it as it is now."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What certificate is wanted.

    Args:
        node_name: Of the Node.
        signer_name: Who shall sign.
        lifetime_seconds: How long it shall last; the signer decides.
        trusted: CAs of clients.
        attested: With evidence of the TPM; without, whoever approves has to trust the bootstrap identity.
    """

    node_name: str
    signer_name: str
    lifetime_seconds: int
    trusted: list[x509.Certificate]
    attested: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What the flow touches the world by; tests hold it still.

    Args:
        kept: Where everything is kept.
        service: Whose challenges are answered.
        machine_id: Who we are to the service; None where we do not know.
        api: The API server, as the bootstrap identity; opened for one attempt.
        tpm: Opens the TPM; held while a request is made, not while it waits.
        make_key: Makes a key.
        read_key: Reads one back; None where it is of no use.
        spki_of: Returns the public key of a key file, SPKI in DER, without a TPM; None where it is none.
        event_log: Reads the boot event log; None where there is none.
        clock: Tells the time.
        wait: Pauses so many seconds; True where we shall stop.
        uniform: Draws a number between two bounds.
        log: Where events go.
    """

    kept: Kept
    service: Callable[[], AbstractContextManager[ChallengeService]]
    machine_id: Callable[[], str | None]
    api: Callable[[], AbstractContextManager[API]]
    tpm: Callable[[], AbstractContextManager[NodeKeyTPM]]
    make_key: Callable[[NodeKeyTPM], NodeKey]
    read_key: Callable[[bytes, NodeKeyTPM], NodeKey | None]
    spki_of: Callable[[bytes], bytes | None]
    event_log: Callable[[], bytes | None]
    clock: Clock
    wait: Callable[[float], bool]
    uniform: Callable[[float, float], float]
    log: Log


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """The certificate that may be used now.

    Args:
        current: Key and certificate.
        failure: Why it is not a newer one, though that is due; None where nothing is due.
    """

    current: Current
    failure: AttestationError | OSError | None = None


def ensure(around: Surroundings, wanted: Wanted, *, patience_seconds: float) -> Held:
    """Return a certificate that is valid now; get one where none is there, or a newer one is due.

    Args:
        around: The world.
        wanted: What certificate.
        patience_seconds: How long a request may wait for its decision; the next call goes on with it.

    Raises:
        AttestationError: There is none, and none was got.
    """
    present = around.kept.current()
    now = around.clock.now()
    if present is not None and not _is_ours(around, present, wanted, now):
        present = None
    if present is not None and now < due_at(present):
        return Held(current=present)
    patience = min(patience_seconds, PATIENCE_WITH_CERTIFICATE_SECONDS) if present else patience_seconds
    try:
        with around.kept.alone(patience, around.wait):
            # Whoever held it before us may have got one.
            found = around.kept.current()
            if found is not None and _is_ours(around, found, wanted, now) and now < due_at(found):
                return Held(current=found)
            return Held(current=_obtain(around, wanted, patience))
    except (AttestationError, OSError) as e:
        if present is None:
            raise
        around.log.warning("kubelet.renewal_failed", code=getattr(e, "code", "os-error"), reason=str(e))
        return Held(current=present, failure=e)


def due_at(current: Current) -> datetime:
    """Return when another certificate is due; in time before the end, whatever was noted."""
    leaf = current.issued.leaf
    lifetime = leaf.not_valid_after_utc - leaf.not_valid_before_utc
    drawn = current.renew_at or leaf.not_valid_before_utc + lifetime * RENEW_AT
    return min(drawn, leaf.not_valid_after_utc - LEEWAY)


def _is_ours(around: Surroundings, current: Current, wanted: Wanted, now: datetime) -> bool:
    """True where what is kept is still what is wanted, by the checks that it passed when it came, and valid now."""
    spki = around.spki_of(current.key_pem)
    if spki is None:
        return False
    try:
        check(current.issued.pem, spki=spki, node_name=wanted.node_name, trusted=wanted.trusted, at=now)
    except NoNodeCertificate:
        return False
    return True


def _obtain(around: Surroundings, wanted: Wanted, patience_seconds: float) -> Current:
    """Get a certificate: by the request that waits, else by a new one."""
    with around.api() as api:
        found = _resumed(around, api)
        if found is None:
            found = _requested(around, wanted, api)
        pending, spki, seen = found
        issued = _decided(around, wanted, api, pending, spki, seen, patience_seconds)
    renew_at = _drawn(issued.leaf, around.uniform)
    current = around.kept.replace(pending.key_pem, issued, renew_at)
    around.log.info(
        "kubelet.certificate_issued",
        serial=issued.serial,
        not_after=str(issued.not_after),
        renew_at=str(renew_at),
        request=pending.name,
    )
    return current


def _resumed(around: Surroundings, api: API) -> tuple[Pending, bytes, Seen] | None:
    """Return the request that an earlier attempt made, where it may still come to something."""
    pending = around.kept.pending()
    if pending is None or pending.name is None or pending.made_at is None:
        return None
    if not timedelta(0) <= around.clock.now() - pending.made_at < LONGEST_REQUEST:
        return None
    seen = api.look(pending.name)
    if seen is None or seen.verdict in ("Denied", "Failed"):
        return None
    with around.tpm() as tpm:
        key = around.read_key(pending.key_pem, tpm)
    return None if key is None else (pending, key.spki, seen)


def _requested(around: Surroundings, wanted: Wanted, api: API) -> tuple[Pending, bytes, Seen]:
    """Make a request, with everything that proves it."""
    with contextlib.ExitStack() as stack:
        tpm = stack.enter_context(around.tpm())
        waiting = around.kept.pending()
        key = around.read_key(waiting.key_pem, tpm) if waiting is not None else None
        if key is None:
            key = around.make_key(tpm)
        # Before it is used: a key that was certified and lost is a certificate for nobody.
        around.kept.set_pending(Pending(key_pem=key.file()))
        if wanted.attested:
            nonce_id, content = _proved(around, stack, tpm, key, wanted)
        else:
            nonce_id = secrets.token_hex(16)
            content = key.request(tpm, wanted.node_name).public_bytes(Encoding.PEM)
    name = f"node-csr-{hashlib.sha256(key.spki + nonce_id.encode('ascii')).hexdigest()[:40]}"
    pending = Pending(key_pem=key.file(), name=name, made_at=around.clock.now())
    # Before it is made: after a crash in between, the next attempt finds nothing of that name and makes another.
    around.kept.set_pending(pending)
    seen = api.create(
        name,
        {
            "request": base64.b64encode(content).decode("ascii"),
            "signerName": wanted.signer_name,
            "usages": list(USAGES),
            "expirationSeconds": wanted.lifetime_seconds,
        },
    )
    around.log.info("kubelet.requested", request=name, signer=wanted.signer_name, size_bytes=len(content))
    return pending, key.spki, seen


def _proved(
    around: Surroundings, stack: contextlib.ExitStack, tpm: NodeKeyTPM, key: NodeKey, wanted: Wanted
) -> tuple[str, bytes]:
    """Return the id of a fresh challenge, and the container that answers it."""
    machine_id = around.machine_id()
    if machine_id is None:
        raise NoNodeCertificate(
            "the service does not know this machine yet: attestation-agent run introduces it"
        )
    service = stack.enter_context(around.service())
    challenge = service.certificate_challenge(machine_id, "node-csr")
    nonce = b64decode(challenge.nonce, "nonce", max_bytes=NONCE_BYTES)
    request = key.request(tpm, wanted.node_name)
    certified = key.certify(tpm, csr_binding(nonce, request.tbs_certrequest_bytes))
    proof: dict[str, Any] = {}
    if challenge.pcr_selection is not None:
        quote = tpm.quote(nonce, PCRSelection.from_names(challenge.pcr_selection))
        proof = {
            "quote": quote.attest,
            "quote_signature": quote.signature,
            "pcr_values": quote.pcr_values,
            "event_log": _event_log(around) if challenge.event_log == "required" else None,
        }
    container = node_csr.build(
        request.public_bytes(Encoding.DER),
        machine_id=machine_id,
        nonce_id=challenge.nonce_id,
        public=certified.public,
        attest=certified.attest,
        signature=certified.signature,
        **proof,
    )
    return challenge.nonce_id, container


def _event_log(around: Surroundings) -> bytes | None:
    log = around.event_log()
    if log is not None and len(log) > MAX_EVENT_LOG_BYTES:
        raise AnswerRefused(
            f"the event log has {len(log)} bytes, and a request holds {MAX_EVENT_LOG_BYTES} at most"
        )
    return log


def _decided(
    around: Surroundings, wanted: Wanted, api: API, pending: Pending, spki: bytes, seen: Seen, patience: float
) -> Issued:
    """Wait for the decision, and return the certificate.

    Raises:
        NoNodeCertificate: Denied, failed, gone, undecided for too long, or not what was asked for.
    """
    assert pending.name is not None
    pause, left = _FIRST_PAUSE_SECONDS, patience
    while True:
        if seen.verdict in ("Denied", "Failed"):
            around.kept.set_pending(replace(pending, name=None, made_at=None))
            words = f"{seen.reason}: {seen.message}" if seen.message else seen.reason
            raise NoNodeCertificate(f"{pending.name} was {seen.verdict.lower()}: {words}")
        # A certificate on a request that nobody approved was put there by somebody else.
        if seen.verdict == "Approved" and seen.certificate is not None:
            try:
                return check(
                    seen.certificate,
                    spki=spki,
                    node_name=wanted.node_name,
                    trusted=wanted.trusted,
                    at=around.clock.now(),
                )
            except NoNodeCertificate:
                around.kept.set_pending(replace(pending, name=None, made_at=None))
                raise
        if left <= 0 or around.wait(min(pause, left)):
            raise NoNodeCertificate(f"{pending.name} is not decided yet; the next attempt goes on with it")
        left -= pause
        pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
        found = api.look(pending.name)
        if found is None:
            around.kept.set_pending(replace(pending, name=None, made_at=None))
            raise NoNodeCertificate(f"{pending.name} is gone")
        seen = found


def _drawn(leaf: x509.Certificate, uniform: Callable[[float, float], float]) -> datetime:
    lifetime = leaf.not_valid_after_utc - leaf.not_valid_before_utc
    return leaf.not_valid_before_utc + lifetime * RENEW_AT * uniform(1 - RENEW_SPREAD, 1 + RENEW_SPREAD)
