"""Challenges are answered and judged in one request (RFC 8555, 7.5.1; draft-ietf-acme-device-attest).

`device-attest-01`: the AK that this service itself activated for the machine certifies the key for this token and this
account's key. What makes that AK somebody's, no certificate says; so `x5c` may be left out, and is believed nothing.
The key must be one that was made in the TPM and cannot leave it. Its certificate will be for that key alone.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

import structlog

from attestation.audit import AuditEvent
from attestation.errors import (
    AKNotActivated,
    AttestationError,
    EvidenceRejected,
    KeyNotResident,
    MachineChanged,
    MachineUnknown,
    MalformedEvidence,
    TPMRequired,
)
from attestation.evidence import key_certification, webauthn_tpm
from attestation.evidence.key_certification import KeyMode
from attestation.store import ACMEOrder, Tx
from attestation.tpm import parse_public
from attestation.wire import b64url_decode
from attestation_service.acme import http01
from attestation_service.acme.asked import WHO, Answer, Asked
from attestation_service.acme.jose import key_authorization
from attestation_service.acme.orders import challenge_of
from attestation_service.acme.problems import Refused
from attestation_service.border import limits
from attestation_service.entitlements import certificates
from attestation_service.entitlements.certificates import Subject

log = structlog.get_logger("attestation_service.acme")

REFUSALS: Final = (MalformedEvidence, EvidenceRejected, AKNotActivated, MachineUnknown, TPMRequired)
"""What ends an order: the answer proves nothing."""


async def challenge(asked: Asked) -> Answer:
    """Answer a challenge, or look at it.

    RFC 8555 §7.5.1, draft-ietf-acme-device-attest. It is judged before it is answered.
    """
    found = await asked.res.store.read(asked.own_order)
    if asked.is_look or found.status != "pending":
        return _shown(asked, found)
    if found.expires_at <= asked.at:
        raise Refused("malformed", "the order is over; make another one")
    body = asked.signed.members()
    if found.kind == "dns":
        return await _http(asked, found)
    return await _attest(asked, found, body)


async def _attest(asked: Asked, found: ACMEOrder, body: dict[str, Any]) -> Answer:
    text = body.get("attObj")
    if not isinstance(text, str):
        raise Refused("malformed", "attObj, an attestation object in base64url, is needed")
    try:
        judged = await asked.res.store.read(lambda tx: _judge(tx, asked, found, text))
    except REFUSALS as e:
        error = e
        raise await asked.res.store.write(lambda tx: _refuse(tx, asked, found, error)) from e

    def conclude(tx: Tx) -> ACMEOrder:
        # An AK that was replaced, or a machine that was locked meanwhile, makes nothing ready.
        machine = tx.machines.require(found.machine_id)
        if certificates.admitted(tx, machine, asked.res.settings, asked.at) != judged.subject:
            raise MachineChanged("the machine was changed while the answer was judged")
        done = tx.acme.validated(
            found.order_id,
            asked.at,
            thumbprint=asked.key.thumbprint,
            spki=judged.spki,
            ak_name=judged.subject.ak_name,
            boot=judged.boot,
        )
        if not done:
            raise Refused("malformed", "the challenge was answered before")
        tx.audit.append(_event(asked, found, "device-attest-01", action="acme_validated"), asked.at)
        return asked.own_order(tx)

    return _shown(asked, await asked.res.store.write(conclude))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Judged:
    """What an attestation object proved.

    Args:
        subject: The machine as it was read.
        spki: The key in its TPM.
        boot: Reset and restart counts when it was certified.
    """

    subject: Subject
    spki: bytes
    boot: str


def _judge(tx: Tx, asked: Asked, found: ACMEOrder, text: str) -> _Judged:
    # 1. The machine, with an AK of its own: nobody else can say whose key it is.
    machine = tx.machines.require(found.machine_id)
    if machine.tee is not None:
        raise TPMRequired("the machine has no TPM that could certify a key")
    if machine.tpm.ak_public is None:
        raise AKNotActivated("the machine has no activated attestation key")
    ak = parse_public(machine.tpm.ak_public)
    # 2. The form; then a key of this TPM, resident, for this token and the key of this account.
    sent = webauthn_tpm.parse(b64url_decode(text, "attObj", max_bytes=webauthn_tpm.MAX_OBJECT_BYTES))
    webauthn_tpm.demand_ak(sent, ak.spki_der())
    parsed = key_certification.parse(sent.public, sent.certify_info, sent.signature)
    certified = key_certification.verify(
        parsed,
        ak=ak,
        ek=parse_public(machine.tpm.ek_public),
        binding=webauthn_tpm.binding(sent, key_authorization(found.token, asked.key.thumbprint)),
        # Which key it shall be, the request for the certificate repeats; there it is compared.
        spki=parsed.spki,
        modes=frozenset({KeyMode.RESIDENT}),
    )
    # 3. Only now whoever asks hears how the machine stands. The order stays: it may attest, and answer again.
    return _Judged(
        subject=certificates.admitted(tx, machine, asked.res.settings, asked.at),
        spki=certified.spki,
        boot=f"{parsed.attest.reset_count}.{parsed.attest.restart_count}",
    )


def _refuse(tx: Tx, asked: Asked, found: ACMEOrder, error: AttestationError) -> Refused:
    """End an order whose challenge was answered wrongly, and return what to say."""
    # Which check failed is for the log and the audit, as everywhere (PROTOCOL §4).
    words = str(error) if isinstance(error, MalformedEvidence) else "the attestation statement was refused"
    refusal = Refused("badAttestationStatement", words)
    if not tx.acme.failed(found.order_id, json.dumps(refusal.document)):
        return Refused("malformed", "the challenge was answered before")
    label = f"{error.code} ({error.computed})" if isinstance(error, KeyNotResident) else error.code
    event = _event(asked, found, f"acme: {label}", action="cert_refused", who="unknown")
    limits.audit_denied(tx, event, asked.at)
    log.warning("acme.attestation_refused", machine_id=found.machine_id, code=error.code, reason=str(error))
    return refusal


async def _http(asked: Asked, found: ACMEOrder) -> Answer:
    expected = key_authorization(found.token, asked.key.thumbprint)
    problem = await http01.look(found.value, found.token, expected, asked.res.settings)

    def work(tx: Tx) -> ACMEOrder:
        if problem is not None:
            tx.acme.failed(found.order_id, json.dumps(problem))
        elif tx.acme.validated(found.order_id, asked.res.clock.now(), thumbprint=asked.key.thumbprint):
            tx.audit.append(
                _event(asked, found, f"http-01 of {found.value}", action="acme_validated"), asked.at
            )
        return asked.own_order(tx)

    return _shown(asked, await asked.res.store.write(work))


def _shown(asked: Asked, found: ACMEOrder) -> Answer:
    up = f'<{asked.url(f"authorizations/{found.order_id}")}>;rel="up"'
    return Answer(body=challenge_of(asked, found), links=(up,))


def _event(asked: Asked, found: ACMEOrder, detail: str, *, action: str, who: str = WHO) -> AuditEvent:
    told = f"{detail}, order {found.order_id}, account {found.account_id}"
    return asked.event(action, told, machine_id=found.machine_id, who=who)
