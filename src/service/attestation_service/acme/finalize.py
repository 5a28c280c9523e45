"""An order that was answered becomes a certificate (RFC 8555, 7.4): by the CA's own path, as every other one.

From the request the key is taken and nothing else. That it names what was ordered is demanded because RFC 8555 does.
What was judged here is judged again in the unit that reserves the serial number, and in the one that writes the
certificate down (`attestation_service.authority`); there the order is spent, so of two that race one gets nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import structlog

from attestation.algorithms import CryptoPolicy, Use, demand
from attestation.clock import rfc3339
from attestation.errors import MachineChanged, MachineNotAdmitted, MalformedEvidence
from attestation.machines import Machine, NodeEvent
from attestation.machines.names import canonical_hostname
from attestation.pki.request import (
    MAX_CSR_BYTES,
    CertificateRequest,
    RequestParts,
    read_request,
    verify_request,
)
from attestation.pki.requested import COMMON_NAME, requested_extensions, requested_names
from attestation.store import ACMEOrder, RateLimit, Tx
from attestation.wire import b64url_decode, tlv
from attestation_service.acme.asked import Answer, Asked
from attestation_service.acme.orders import shown
from attestation_service.acme.problems import Refused
from attestation_service.authority.issuance import Issued, Wanted
from attestation_service.entitlements import certificates
from attestation_service.entitlements.certificates import NodeProfile, Subject
from attestation_service.entitlements.events import emit

log = structlog.get_logger("attestation_service.acme")

PROFILES: Final[dict[str, NodeProfile]] = {"permanent-identifier": "node-client", "dns": "node-server"}
CERTIFICATES: Final = RateLimit(requests=100, per_seconds=86_400)
"""Of one machine and profile, those that were revoked too: who may revoke makes room among those that are live."""
REQUESTER: Final = "acme:"
"""Before the account's name, as who asked for a certificate."""

_SUBJECT_ALT_NAME: Final = "2.5.29.17"
_PERMANENT_IDENTIFIER: Final = bytes.fromhex("06082b06010505070803")
"""id-on-permanentIdentifier, 1.3.6.1.5.5.7.8.3 (RFC 4043), DER."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Judged:
    subject: Subject
    plan: Wanted


async def finalize(asked: Asked) -> Answer:
    """Get the certificate of an order that was answered.

    RFC 8555 §7.4. For the key that was attested, and with what the record of the machine says.
    """
    body = asked.signed.members()
    text = body.get("csr")
    if not isinstance(text, str):
        raise Refused("malformed", "csr, a request in base64url, is needed")
    requested, parts = _request(text)
    judged = await asked.res.store.read(lambda tx: _judge(tx, asked, requested, parts))
    plan, profile = judged.plan, judged.plan.profile

    def admit(tx: Tx) -> None:
        found = _ready(tx, asked)
        machine = tx.machines.require(found.machine_id)
        if certificates.admitted(tx, machine, asked.res.settings, asked.at) != judged.subject:
            raise MachineChanged("the machine was changed while its certificate was made")
        certificates.live(tx, machine.machine_id, profile, asked.res.settings, asked.at)
        asked.count(tx, "certificates", f"{machine.machine_id}:{profile}", CERTIFICATES)

    def conclude(tx: Tx, issued: tuple[Issued, ...]) -> None:
        found = _ready(tx, asked)
        machine = tx.machines.require(found.machine_id)
        if certificates.admitted(tx, machine, asked.res.settings, asked.at) != judged.subject:
            raise MachineNotAdmitted("the machine was changed while its certificate was made")
        # Single use: the second of two racers fails here, and what it signed reaches nobody.
        if not tx.acme.issued(found.order_id, " ".join(each.serial for each in issued), asked.at):
            raise Refused("orderNotReady", "the order was finalized before")
        _record(tx, asked, found, machine, plan, issued)

    authority = certificates.authority_of(asked.res)
    issued = await authority.issue(plan, at=asked.at, admit=admit, conclude=conclude)
    log.info(
        "cert.issued",
        machine_id=plan.machine_id,
        profile=profile,
        serials=[each.serial for each in issued],
        renews=plan.renews,
        acme=asked.holder.account_id,
    )
    return shown(asked, await asked.res.store.read(asked.own_order))


def _request(text: str) -> tuple[CertificateRequest, RequestParts]:
    """Read a request, DER, that its key signed.

    Raises:
        Refused: It is none.
        CSRInvalid: Its key did not, or is none that is certified.
    """
    try:
        data = b64url_decode(text, "csr", max_bytes=MAX_CSR_BYTES)
        if data[:1] == b"-":
            raise Refused("badCSR", "csr is PEM; DER is needed (RFC 8555, 7.4)")
        parts = read_request(data)
        return verify_request(parts), parts
    except MalformedEvidence as e:
        raise Refused("badCSR", str(e)) from e


def _ready(tx: Tx, asked: Asked) -> ACMEOrder:
    """Return the order, which may be finalized.

    Raises:
        Refused: It may not.
    """
    found = asked.own_order(tx)
    if found.status != "ready" or found.expires_at <= asked.at:
        raise Refused("orderNotReady", f"the order is {found.status}, or over")
    account = tx.acme.account(found.account_id)
    if account is None or account.status != "valid":
        # It may have been ended since it asked: an order that is on its way ends with it.
        raise Refused("unauthorized", "the account has ended")
    if found.thumbprint != asked.key.thumbprint:
        # The key that answered the challenge is in what was signed for it.
        raise Refused("orderNotReady", "another key of the account answered the challenge; order again")
    return found


def _judge(tx: Tx, asked: Asked, requested: CertificateRequest, parts: RequestParts) -> _Judged:
    settings = asked.res.settings
    # 1. An order that is ready, of this account and this key.
    found = _ready(tx, asked)
    # 2. Not the account's key (RFC 8555, 11.1), and of a kind that is allowed.
    if requested.spki == asked.key.spki:
        raise Refused("badCSR", "the key of the account is not one for a certificate")
    demand(CryptoPolicy(settings.crypto_policy), Use.LEAF, requested.algorithm)
    # 3. The key that the TPM certified: any other would be a software key under a word of the TPM.
    if found.spki is not None and requested.spki != found.spki:
        raise Refused("badCSR", "the key of the request is not the one that was attested")
    # 4. For what was ordered.
    _demand_names(found, parts)
    # 5. The machine, now: attested, within its lease, with the AK that certified the key, with room for one more.
    machine = tx.machines.require(found.machine_id)
    subject = certificates.admitted(tx, machine, settings, asked.at)
    if found.ak_name is not None and found.ak_name != subject.ak_name:
        raise Refused("orderNotReady", "the machine has another attestation key than when it answered")
    profile = PROFILES[found.kind]
    certificates.demand_names(machine, profile, settings)
    if found.kind == "dns" and (
        machine.hostname is None or canonical_hostname(machine.hostname) != found.value
    ):
        raise Refused("orderNotReady", "the machine has another host name than when it answered")
    live = certificates.live(tx, machine.machine_id, profile, settings, asked.at)
    plan = certificates.wanted(
        machine,
        profile,
        requested.spki,
        settings,
        key_tier=_key_tier(found, subject),
        renews=certificates.renewed(live),
    )
    # Only what was ordered: of the machine's address nobody proved anything.
    plan = replace(plan, requester=f"{REQUESTER}{asked.holder.account_id}", ip_addresses=())
    return _Judged(subject=subject, plan=plan)


def _key_tier(found: ACMEOrder, subject: Subject) -> int | None:
    """Return what is known of the key (TPM.md §6); of one that no TPM certified, nothing."""
    if found.boot is None:
        return None
    now = None if subject.boot is None else f"{subject.boot[0]}.{subject.boot[1]}"
    return certificates.RESIDENT_AND_QUOTED if found.boot == now else certificates.RESIDENT


def _demand_names(found: ACMEOrder, parts: RequestParts) -> None:
    """Check that a request names what was ordered (RFC 8555, 7.4), or of a machine's id nothing (the draft, 3.2).

    Raises:
        Refused: It names something else.
    """
    try:
        names = requested_names(parts)
        common = names.values(COMMON_NAME)
        if found.kind == "dns":
            named = {each.lower() for each in names.dns_names + common}
            if named != {found.value} or names.ip_addresses or names.others:
                raise Refused("badCSR", f"the request is not for {found.value} alone")
            return
        written = requested_extensions(parts).get(_SUBJECT_ALT_NAME)
    except MalformedEvidence as e:
        raise Refused("badCSR", str(e)) from e
    if set(common) - {found.value} or written not in (None, permanent_identifier(found.value)):
        raise Refused("badCSR", "the request names something else than the permanent identifier")


def permanent_identifier(value: str) -> bytes:
    """Return GeneralNames with one PermanentIdentifier (RFC 4043) of *value* without an assigner, DER."""
    identifier = tlv(0x30, tlv(0x0C, value.encode("utf-8")))
    return tlv(0x30, tlv(0xA0, _PERMANENT_IDENTIFIER + tlv(0xA0, identifier)))


def _record(
    tx: Tx, asked: Asked, found: ACMEOrder, machine: Machine, plan: Wanted, issued: tuple[Issued, ...]
) -> None:
    told = certificates.told(issued, plan)
    tx.audit.append(
        asked.event(
            "cert_issued",
            f"{told}; ACME order {found.order_id}, account {found.account_id}",
            machine_id=machine.machine_id,
            prev=machine.status,
            new=machine.status,
        ),
        asked.at,
    )
    if plan.renews is not None:
        emit(
            tx,
            NodeEvent.CERT_RENEWED,
            machine,
            asked.at,
            node={"serial": issued[0].serial, "not_after": rfc3339(issued[0].not_after)},
            meta={"profile": plan.profile, "renews": plan.renews},
        )
