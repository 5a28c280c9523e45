"""Who asks an extension: a machine that proves itself, an operator who may need others."""

# Algorithms for: digest
from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from fastapi import Request

from attestation.api import AttestRequest, ConfigEnvelope, PendingApproval
from attestation.api.base import NODE_NONCE_PATTERN
from attestation.audit import AuditEvent
from attestation.errors import (
    AgentTooOld,
    AttestationError,
    CertificateUntrusted,
    ClientCertificateUntrusted,
    MachineNotAdmitted,
    MachineRejected,
    MachineUnknown,
    MalformedEvidence,
    RateLimited,
    Unauthenticated,
    Unavailable,
)
from attestation.extension import Sealed, Tx
from attestation.keys import NODE_NONCE_HEADER, SEALED_TYP
from attestation.machines import Machine, Role, Status, dual_control
from attestation.results import Verdict
from attestation.store import Issuance
from attestation.tpm import parse_public
from attestation_service.attest.proving import prove
from attestation_service.auth import Operator
from attestation_service.auth.mtls import presented
from attestation_service.border import limits
from attestation_service.context.request import Origin
from attestation_service.delivery.handlers import sealed_for, wire
from attestation_service.enrollment.presented import holder
from attestation_service.extensions.fleet import worst_of
from attestation_service.keys import statements
from attestation_service.operators.dual_control import always as always_rule
from attestation_service.operators.dual_control import gate
from attestation_service.resources import Resources
from attestation_service.verifier import policy

_SEALED_BYTES: Final = 1 << 20
CERTIFIED: Final[tuple[type[AttestationError], ...]] = (
    Unauthenticated,
    ClientCertificateUntrusted,
    AgentTooOld,
    CertificateUntrusted,
    MachineNotAdmitted,
    MachineRejected,
    MachineUnknown,
    MalformedEvidence,
    RateLimited,
    Unavailable,
)
"""What a machine that comes with a certificate can be told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """An `AttestedMachine`."""

    machine: Machine
    extension: str
    vector: Mapping[str, int]
    quoted_at: datetime
    address: str
    certificate: str | None
    node_nonce: str | None
    res: Resources

    @property
    def machine_id(self) -> str:
        """See the contract, as for all that follows."""
        return self.machine.machine_id

    @property
    def hostname(self) -> str | None:
        """What operators called it."""
        return self.machine.hostname

    @property
    def role(self) -> Role:
        """What operators made of it."""
        assert self.machine.role is not None
        return self.machine.role

    @property
    def cluster_id(self) -> str:
        """The cluster that operators put it into."""
        return self.machine.cluster_id

    @property
    def ek_fingerprint(self) -> str:
        """Name of its TPM or its hardware."""
        return self.machine.fingerprint

    @property
    def assurance(self) -> str:
        """How well its identity is vouched for."""
        return self.machine.assurance.value

    @property
    def key_public(self) -> bytes:
        """Its AK or its subject key."""
        assert self.machine.anchor.ak_public is not None
        return self.machine.anchor.ak_public

    @property
    def key_spki(self) -> bytes:
        """The same, as certificates have it."""
        return self.key_public if self.machine.tee is not None else parse_public(self.key_public).spki_der()

    def still(self, tx: Tx) -> None:
        """Compare with what is true in this unit."""
        now = tx.machines.by_id(self.machine_id)
        at = self.res.clock.now()
        if (
            now is None
            or now.status is not Status.ATTESTED
            or now.last_verdict is not Verdict.VERIFIED
            or now.key_name != self.machine.key_name
            or now.role is not self.machine.role
            or now.cluster_id != self.machine.cluster_id
            or now.trust_expires_at is None
            or now.trust_expires_at <= at
        ):
            raise MachineNotAdmitted("the machine is not what it was when it asked")

    def event(self, action: str, **members: str | None) -> AuditEvent:
        """Return the audit event of what it was given."""
        return AuditEvent(
            operator_cn="machine",
            action=action,
            machine_id=self.machine_id,
            source_ip=self.address,
            **members,
        )

    async def seal(self, plaintext: bytes, *, token_id: str, what: str) -> Sealed:
        """Seal to what it proved last that it has; sign off the loop."""
        if len(plaintext) > _SEALED_BYTES:
            raise Unavailable(f"at most {_SEALED_BYTES} bytes can be sealed, not {len(plaintext)}")
        at = self.res.clock.now()

        def sealed() -> Sealed:
            try:
                body = wire(sealed_for(self.machine, plaintext, token_id))
            except MalformedEvidence as e:
                raise Unavailable("nothing can be sealed to this machine's key") from e
            claims = statements.claims(
                self.machine,
                self.node_nonce,
                at,
                what=f"{self.extension}.{what}",
                token_id=token_id,
                config_sha256=hashlib.sha256(plaintext).hexdigest(),
            )
            return Sealed(
                envelope=ConfigEnvelope.model_validate_json(body),
                signature=self.res.signer.sign_jwt(claims, typ=SEALED_TYP),
            )

        return await asyncio.to_thread(sealed)


async def by_quote(
    request: AttestRequest, extension: str, what: str, res: Resources, origin: Origin
) -> Asking:
    """Return the machine that proves itself in *request*.

    Raises:
        AttestationError: It does not; see `prove`.
    """
    proved = await prove(request, what, res=res, origin=origin)
    return Asking(
        machine=proved.machine,
        extension=extension,
        vector=worst_of(proved.appraisal.result, proved.appraisal.assurance),
        quoted_at=proved.at,
        address=origin.address,
        certificate=None,
        node_nonce=request.node_nonce,
        res=res,
    )


async def by_certificate(
    request: Request, extension: str, what: str, res: Resources, origin: Origin
) -> Asking:
    """Return the machine whose TPM certified the key of the client certificate that *request* came with.

    Raises:
        Unauthenticated: It came with none.
        CertificateUntrusted, MachineNotAdmitted: It is not good now, or its machine is not.
    """
    der = presented(request.scope)
    if der is None:
        raise Unauthenticated("a client certificate of this machine is needed")
    node_nonce = request.headers.get(NODE_NONCE_HEADER)
    if node_nonce is not None and not re.fullmatch(NODE_NONCE_PATTERN, node_nonce):
        raise MalformedEvidence(f"{NODE_NONCE_HEADER} is not 32 bytes in base64")
    statements.demand_nonce(node_nonce, res.settings)
    at = res.clock.now()
    counted = limits.of_client(res.settings, origin.address)

    def load(tx: Tx) -> tuple[Machine, Issuance]:
        limits.check(tx, counted, at)
        return holder(tx, der, at)

    async with limits.CountRefusals(res.store, counted, at, lambda error: limits.denial(what, error, origin)):
        machine, row = await res.store.read(load)
    await res.store.write(lambda tx: limits.take(tx, counted, at))
    assert machine.last_result_at is not None
    asking = Asking(
        machine=machine,
        extension=extension,
        vector={},
        quoted_at=machine.last_result_at,
        address=origin.address,
        certificate=row.serial,
        node_nonce=node_nonce,
        res=res,
    )
    await res.store.read(asking.still)
    return asking


@dataclass(frozen=True, slots=True)
class Voting:
    """A `Voter`."""

    operator: Operator
    extension: str
    res: Resources

    @property
    def cn(self) -> str:
        """Their name, as the audit log shows it."""
        return self.operator.cn

    @property
    def sub(self) -> str | None:
        """What stays the same when names change."""
        return self.operator.sub

    def event(self, action: str, **members: str | None) -> AuditEvent:
        """Return the audit event of an act of theirs."""
        return self.operator.event(action, **members)

    def agree(
        self,
        tx: Tx,
        action: str,
        at: datetime,
        *,
        terms: Mapping[str, str | int | None],
        machine_id: str | None = None,
        always: bool = False,
    ) -> PendingApproval | None:
        """Count the vote, in the unit of the act."""
        machine = tx.machines.require(machine_id) if machine_id is not None else None
        measured = policy.measured(tx, machine, self.res.settings) if machine is not None else None
        proposal = dual_control.of_extension(
            f"{self.extension}.{action}", machine, measured, terms=terms, always=always
        )
        found = gate(
            tx, proposal, self.operator, self.res, at, rule=always_rule(self.res.settings) if always else None
        )
        return found if isinstance(found, PendingApproval) else None
