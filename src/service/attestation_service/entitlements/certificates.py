"""Certificates for machines: who may have one now, what it says, and what is written down with it.

Nothing here comes from a request but the key: role, host name and address are those of the record, at the moment
of issuance (HSM-AND-KUBERNETES §7.1). `revoked`, `locked`, `rejected` and every status but `attested` issue nothing
(FAULTS R6).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from ipaddress import ip_interface
from typing import TYPE_CHECKING, Final, Literal

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from attestation.api import IssuedCertificate
from attestation.clock import rfc3339
from attestation.errors import (
    AKNotActivated,
    CANotConfigured,
    MachineNotAdmitted,
    MachineRejected,
    RateLimited,
    RequestInvalid,
)
from attestation.machines import Machine, Status, Trust
from attestation.pki.names import machine_subject
from attestation.pki.profiles import ProfileName
from attestation.store import Issuance, Tx
from attestation_service.authority.issuance import Issued, Wanted
from attestation_service.authority.places import algorithms
from attestation_service.entitlements import names
from attestation_service.resources import Resources
from attestation_service.settings import Settings
from attestation_service.verifier import policy

if TYPE_CHECKING:
    from attestation_service.authority import Authority

DER: Final = Encoding.DER
NodeProfile = Literal["node-client", "node-server"]

EK_URI: Final = "urn:itl:ek:"
"""Before the EK fingerprint in the URI of the SubjectAltName."""

RESIDENT: Final = 3
RESIDENT_AND_QUOTED: Final = 4
"""Key tiers (TPM.md §6)."""

LIVE_CERTIFICATES: Final = 20
"""So many of one profile may a machine have at a time. It renews at two thirds of the lifetime, so two are usual;
more come of agents that lose their key. Without a bound, one machine could fill the log and the revocation lists."""

QUOTA_RETRY: Final = timedelta(hours=1)
"""At most so long is somebody told to wait where the quota is used up: an operator may make room before."""


def authority_of(res: Resources) -> Authority:
    """Return the CA.

    Raises:
        CANotConfigured: There is none.
    """
    if res.authority is None:
        raise CANotConfigured("this service has no CA")
    return res.authority


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What a certificate says of a machine, and whom it was decided about; compared when it is carried out."""

    machine_id: str
    ek_fingerprint: str
    ak_name: bytes
    role: str
    hostname: str | None
    assigned_ip: str | None
    assurance: str
    boot: tuple[int, int] | None


def admitted(tx: Tx, machine: Machine, settings: Settings, at: datetime) -> Subject:
    """Return what a certificate may say of *machine* at *at*.

    Raises:
        MachineRejected: An operator rejected it.
        AKNotActivated: It has no AK any more.
        MachineNotAdmitted: Not attested, or not within its lease under the policy in force.
    """
    # 1. Admitted by an operator and attested: no certificate leads out of another status.
    if machine.status is Status.REJECTED:
        raise MachineRejected("an operator rejected this machine")
    if machine.status is not Status.ATTESTED or machine.role is None:
        raise MachineNotAdmitted(f"the machine is {machine.status}, not attested")
    # 2. With an AK: whose certification would it be?
    if machine.tee is not None:
        raise MachineNotAdmitted("the machine has no TPM that could certify a key")
    if machine.key_name is None:
        raise AKNotActivated("this machine has no activated attestation key")
    # 3. Verified lately, and by what counts now: a verdict under another policy says nothing about it.
    trust = machine.trust(at)
    if trust is not Trust.VERIFIED:
        raise MachineNotAdmitted(f"trust in the machine is {trust}: attest, then ask again")
    if machine.last_policy != policy.in_force(tx, machine, settings).ref:
        raise MachineNotAdmitted("another policy applies since the last result: attest, then ask again")
    return Subject(
        machine_id=machine.machine_id,
        ek_fingerprint=machine.fingerprint,
        ak_name=machine.key_name,
        role=machine.role,
        hostname=machine.hostname,
        assigned_ip=machine.assigned_ip,
        assurance=machine.assurance,
        boot=None if machine.clock is None else (machine.clock.reset_count, machine.clock.restart_count),
    )


def live(tx: Tx, machine_id: str, profile: str, settings: Settings, at: datetime) -> tuple[Issuance, ...]:
    """Return the live certificates of a machine, newest first; there is room for one more.

    Raises:
        RateLimited: There is none.
    """
    most = LIVE_CERTIFICATES * len(algorithms(settings))
    found = tx.issuances.live(machine_id, profile, at, most)
    if len(found) >= most:
        wait = min(min(each.not_after for each in found) - at, QUOTA_RETRY)
        raise RateLimited(
            f"the machine has {LIVE_CERTIFICATES} live certificates of profile {profile}",
            retry_after_seconds=max(1, int(wait.total_seconds())),
        )
    return found


def renewed(found: Sequence[Issuance]) -> str | None:
    """Return the serial number that a new certificate follows: the newest good one of *found*."""
    return next((each.serial for each in found if each.state == "issued"), None)


def demand_names(machine: Machine, profile: NodeProfile, settings: Settings) -> None:
    """Check that there is something to call a server, and that it is not this service.

    Raises:
        RequestInvalid: Neither host name nor address stands in the record.
        NameInUse: The record is from before such names were refused, or this service has got another one since.
    """
    if profile == "node-server":
        names.demand_not_ours(settings, machine.hostname, machine.assigned_ip)
    if profile == "node-server" and machine.hostname is None and machine.assigned_ip is None:
        raise RequestInvalid("a server certificate needs a host name or an address, and the machine has none")


def wanted(
    machine: Machine,
    profile: NodeProfile,
    spki: bytes,
    settings: Settings,
    *,
    key_tier: int | None,
    renews: str | None,
) -> Wanted:
    """Return the certificate for *spki* that *machine* may have.

    Args:
        machine: Admitted (`admitted`).
        profile: What it is for; a server is named by the host name and address of the record.
        spki: The certified key, SubjectPublicKeyInfo, DER.
        settings: Who we are.
        key_tier: What is known of the key (TPM.md §6); None where nothing is.
        renews: Serial that it follows.
    """
    assert machine.role is not None
    server = profile == "node-server"
    return Wanted(
        profile=ProfileName(profile),
        subject=machine_subject(
            country=settings.ca_country,
            organization=settings.ca_organization,
            role=machine.role,
            machine_id=machine.machine_id,
        ),
        spki=spki,
        requester=machine.machine_id,
        machine_id=machine.machine_id,
        key_tier=key_tier,
        assurance=machine.assurance,
        uris=(EK_URI + machine.fingerprint,),
        dns_names=(machine.hostname,) if server and machine.hostname is not None else (),
        ip_addresses=(ip_interface(machine.assigned_ip).ip,) if server and machine.assigned_ip else (),
        renews=renews,
    )


def told(issued: Sequence[Issued], plan: Wanted) -> str:
    """Return what was issued, for the audit: what it is, what is known of its key, and until when."""
    names = ", ".join(f"{each.serial} ({each.algorithm})" for each in issued)
    tier = "none" if plan.key_tier is None else str(plan.key_tier)
    text = f"{plan.profile} {names}, key tier {tier}, assurance {plan.assurance}, until {rfc3339(issued[0].not_after)}"
    return f"{text}; renews {plan.renews}" if plan.renews is not None else text


def shown(each: Issued) -> IssuedCertificate:
    """Return a certificate as its holder gets it."""
    return IssuedCertificate(
        serial=each.serial,
        issuer_id=each.issuer_id,
        algorithm=each.algorithm,
        cert_pem=pem(each.certificate),
        chain_pem="".join(map(pem, each.chain)),
        ca_pem=pem(each.ca),
        not_before=each.not_before,
        not_after=each.not_after,
    )


def pem(certificate: bytes) -> str:
    """Return a certificate (DER) in PEM."""
    return x509.load_der_x509_certificate(certificate).public_bytes(Encoding.PEM).decode("ascii")
