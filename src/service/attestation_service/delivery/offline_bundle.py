"""Compatibility (ITL_COMPAT_OFFLINE_BUNDLE): what a machine needs for an installation without a network, in one file.

The seeds put configuration and private key into it as they were. Here both are sealed to the EK and the AK of the
machine, so that the file opens in that TPM only, and each is stated to be for it. It is made for a machine that
attested lately, and several people must agree to it whatever its role is (DELIVERY-AND-OPERATORS §8,
ITL-REFERENCE §14).
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Final

from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_der_private_key,
)

from attestation.api import ConfigEnvelope, OfflineBundle, PendingApproval
from attestation.envelope import Envelope, seal
from attestation.errors import (
    AKNotActivated,
    MachineNotAdmitted,
    MachineRejected,
    MalformedEvidence,
    RequestInvalid,
    TransitionForbidden,
    Unavailable,
)
from attestation.keys import OFFLINE_TYP, certificates_sha256
from attestation.machines import Machine
from attestation.machines.dual_control import of_offline_bundle
from attestation.store import Tx
from attestation.tpm import parse_public
from attestation_service.auth import Operator, VoterDep
from attestation_service.authority import Issued
from attestation_service.configs.sources import Sources
from attestation_service.delivery.handlers import wire
from attestation_service.entitlements import certificates, config_tokens, events
from attestation_service.keys import server_keys, statements
from attestation_service.keys.server_keys import MadeKey
from attestation_service.operators import dual_control
from attestation_service.resources import Res, Resources
from attestation_service.routing.parameters import Id
from attestation_service.verifier import policy

if TYPE_CHECKING:
    from attestation_service.configs.rendering import Texts

PROFILE: Final = "node-client"
TOKEN_ID_HEX: Final = 16


class _Enough(Exception):
    """Undoes the unit in which a vote would have been the last one: it is cast again where it has its effect."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Due:
    """What was decided about, to be compared when it is carried out."""

    machine: Machine
    subject: certificates.Subject
    renews: str | None
    sources: Sources


async def build(machine_id: Id, *, res: Res, operator: VoterDep) -> OfflineBundle | PendingApproval:
    """Make the offline bundle of a machine, sealed to its TPM.

    Compatibility, and off by default. It issues a certificate and a config token, so it is an act.

    Raises:
        RequestInvalid: Bundles are off.
        CANotConfigured: This service issues no certificates.
        MachineUnknown: No such machine.
        TransitionForbidden: Not attested, not within its lease, without an AK, or changed meanwhile.
        BreakGlassCannotVote: Several people must agree to it.
        BaseConfigMissing, BaseConfigInvalid, ConfigurationUnreadable: There is nothing to deliver for this role.
        RateLimited: It has too many live certificates.
        Unavailable: The CA cannot sign now, or nothing can be sealed to this EK.
        SignerUnavailable: The service's own key is away.
    """
    if not res.settings.compat_offline_bundle:
        raise RequestInvalid("offline bundles are switched off (ITL_COMPAT_OFFLINE_BUNDLE)")
    authority = certificates.authority_of(res)
    res.service_keys.demand()  # before votes are used up and a certificate is issued: without it there is no bundle
    at = res.clock.now()

    # 1. A vote, or the last one. The last is not counted here but in the unit that writes everything down.
    def vote(tx: Tx) -> PendingApproval:
        due = _due(tx, machine_id, res, at)
        answer = _gate(tx, due.machine, operator, res, at)
        if isinstance(answer, PendingApproval):
            return answer
        raise _Enough

    try:
        return await dual_control.write(vote, res=res, operator=operator, at=at, machine_id=machine_id)
    except _Enough:
        due = await res.store.read(lambda tx: _due(tx, machine_id, res, at))

    # 2. What the configuration is made of, and a key. What fails here is an error, never plaintext.
    token = config_tokens.make(due.machine, res.settings, at)
    texts = await res.configurations.beside.for_machines(partial(_opened, due, token.stored.token_id, res))
    made = await asyncio.to_thread(server_keys.make)
    plan = replace(
        certificates.wanted(due.machine, PROFILE, made.spki, res.settings, key_tier=None, renews=due.renews),
        requester=operator.cn,
    )

    envelopes: list[Envelope] = []

    def admit(tx: Tx) -> None:
        _still(tx, due, res, at)

    # 3. One unit: the certificate is good, the votes are used up, the token has its right, and the audit says so.
    def conclude(tx: Tx, issued: tuple[Issued, ...]) -> None:
        machine = _still(tx, due, res, at)
        # The certificate stands in the configuration. Sealed or never seen again; nothing here waits for anybody.
        config = _completed(texts, due.machine, certificates.pem(issued[0].certificate), res)
        sealed = _seal(config, due.machine, token.stored.token_id)
        agreed = _gate(tx, machine, operator, res, at)
        if isinstance(agreed, PendingApproval):
            raise TransitionForbidden("the votes for this bundle were used up or taken back meanwhile")
        envelopes.append(sealed)
        config_tokens.store(tx, token, at)
        events.image_given(tx, machine, res.settings.iso_url, at)
        given = certificates.told(issued, plan)
        told = (
            f"token {token.stored.token_id}, config sha256 {sealed.config_sha256}{due.sources.told}; {given}"
        )
        about = {"machine_id": machine_id, "prev_state": machine.status, "new_state": machine.status}
        tx.audit.append(operator.event("offline_bundle", detail=agreed.told(told), **about), at)
        tx.audit.append(operator.event("cert_issued", detail=f"{given}; compat: offline bundle", **about), at)

    issued = await authority.issue(plan, at=at, admit=admit, conclude=conclude)
    # 4. For the people who carry it.
    return await asyncio.to_thread(_bundle, due.machine, made, issued, envelopes[-1], token.issued, res, at)


def _due(tx: Tx, machine_id: str, res: Resources, at: datetime) -> _Due:
    machine = tx.machines.require(machine_id)
    try:
        subject = certificates.admitted(tx, machine, res.settings, at)
    except (MachineNotAdmitted, MachineRejected, AKNotActivated) as e:
        raise TransitionForbidden(f"no bundle: {e}") from e
    found = certificates.live(tx, machine_id, PROFILE, res.settings, at)
    sources = Sources.of_machine(tx, machine, res.settings)
    return _Due(machine=machine, subject=subject, renews=certificates.renewed(found), sources=sources)


def _still(tx: Tx, due: _Due, res: Resources, at: datetime) -> Machine:
    """Return the machine, about which still holds what was decided about.

    Raises:
        TransitionForbidden: It does not.
    """
    now = _due(tx, due.machine.machine_id, res, at)
    if (now.subject, now.sources) != (due.subject, due.sources):
        raise TransitionForbidden("the machine or its configuration was changed while its bundle was made")
    return now.machine


def _gate(
    tx: Tx, machine: Machine, operator: Operator, res: Resources, at: datetime
) -> dual_control.Agreed | PendingApproval:
    rule = dual_control.always(res.settings)
    proposal = of_offline_bundle(machine, policy.measured(tx, machine, res.settings))
    return dual_control.gate(tx, proposal, operator, res, at, rule=rule)


def _opened(due: _Due, token_id: str, res: Resources) -> Texts:
    """Open what the configuration is made of; make and seal it once, so that nothing is issued where that fails."""
    from attestation_service.configs import rendering  # here: it needs YAML, and this is on a thread

    machine = due.machine
    texts = rendering.texts_for(machine, due.sources, res.configurations, res.settings)
    _seal(_completed(texts, machine, "", res), machine, token_id)
    return texts


def _completed(texts: Texts, machine: Machine, certificate: str, res: Resources) -> bytes:
    from attestation_service.configs import rendering  # here, likewise

    assert machine.role is not None
    files = rendering.enrollment_files(certificate, machine.role, texts.talos_version)
    own = rendering.own_of(machine, res.settings, files)
    return rendering.completed(texts, own, machine.role, machine.cluster_id, res.settings)


def _seal(plaintext: bytes, machine: Machine, token_id: str) -> Envelope:
    assert machine.key_name is not None
    try:
        return seal(
            plaintext,
            ek=parse_public(machine.tpm.ek_public),
            ak_name=machine.key_name,
            machine_id=machine.machine_id,
            token_id=token_id,
        )
    except MalformedEvidence as e:
        raise Unavailable("nothing can be sealed to this EK") from e


def _bundle(
    machine: Machine,
    made: MadeKey,
    issued: tuple[Issued, ...],
    sealed: Envelope,
    token: config_tokens.IssuedToken,
    res: Resources,
    at: datetime,
) -> OfflineBundle:
    first = issued[0]
    key = load_der_private_key(made.pkcs8, None).private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
    )
    sealed_key = _seal(key, machine, first.serial[:TOKEN_ID_HEX])
    certificate, ca = certificates.pem(first.certificate), certificates.pem(first.ca)
    assert machine.role is not None
    return OfflineBundle(
        machine_id=machine.machine_id,
        role=machine.role,
        status=machine.status,
        ek_fingerprint=machine.fingerprint,
        hostname=machine.hostname,
        assigned_ip=machine.assigned_ip,
        iso_url=res.settings.iso_url or None,
        config_url=token.url,
        config_token=token.token,
        machineconfig=ConfigEnvelope.model_validate_json(wire(sealed)),
        machineconfig_signature=_signature(sealed, "machineconfig", machine, first, res, at),
        enrollment_cert_pem=certificate,
        enrollment_ca_pem=ca,
        enrollment_key_pem=ConfigEnvelope.model_validate_json(wire(sealed_key)),
        enrollment_key_signature=_signature(
            sealed_key,
            "enrollment-key",
            machine,
            first,
            res,
            at,
            bundle=sealed.token_id,
            certificates_sha256=certificates_sha256(certificate, ca),
        ),
        serial=first.serial,
        not_after=first.not_after,
        built_at=at,
    )


def _signature(
    sealed: Envelope, what: str, machine: Machine, issued: Issued, res: Resources, at: datetime, **more: str
) -> str:
    """State for this TPM what an envelope is (docs/adr/0066): good as long as the certificate beside it.

    What else the statement names is in *more*; a key names the bundle that it is part of, by the configuration's token.
    """
    claims = {
        "binding": statements.binding(machine).claim(),
        "what": what,
        "token_id": sealed.token_id,
        "config_sha256": sealed.config_sha256,
        **more,
        "iat": int(at.timestamp()),
        "exp": int(issued.not_after.timestamp()),
    }
    return res.signer.sign_jwt(claims, typ=OFFLINE_TYP)
