"""From what is wanted to a certificate, in pieces: planned inside a unit, linted and signed once outside of it.

Between the two units stand durable rows: whatever happens, each serial number that may have been signed is known.
"""

# Algorithms for: digest
from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

import structlog
from cryptography import x509

from attestation.errors import CANotConfigured, CertificateNotConformant, KeyRefused, NameInUse
from attestation.machines.names import names_of
from attestation.pki.content import (
    SERIAL_BYTES,
    CertificateContent,
    IPAddress,
    SigningKey,
    check_signed,
    make_certificate,
    rehearse,
    serial_of,
    serial_text,
)
from attestation.pki.lint import lint
from attestation.pki.parent import outside
from attestation.pki.profiles import BACKDATE, PROFILES, Pointer, ProfileName, assurance_policies, short_lived
from attestation.results import Assurance
from attestation.store import Issuance, Issuer, IssuerAlgorithm, IssuerPurpose, Tx
from attestation_service.authority.keyring import CACertificate, Opened
from attestation_service.authority.places import algorithms
from attestation_service.settings import Settings

log = structlog.get_logger("attestation_service.authority")

RESPONDER_LIFETIME: Final = timedelta(days=7)
"""Of a key that answers OCSP (HSM-AND-KUBERNETES §8)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A certificate that somebody may have; who decides that is the caller.

    Args:
        profile: Its kind; it chooses the CA.
        subject: Whom it is about (`attestation.pki.names`).
        spki: The certified key, SubjectPublicKeyInfo, DER.
        requester: Machine id, operator's name or `SYSTEM`, for the log.
        machine_id: Whose, or None.
        key_tier: 1 to 4 (TPM.md §6), or None.
        assurance: Of the machine, or None.
        uris: Alternative names.
        dns_names: Alternative names.
        ip_addresses: Alternative names.
        lifetime: Asked for; never longer than the settings and the profile allow. None: what they allow.
        renews: Serial, 40 lower-case hex, that it follows, or None.
        issuer_id: Only by this key; None: by every key that signs for the profile (hybrid: two).
    """

    profile: ProfileName
    subject: x509.Name
    spki: bytes = field(repr=False)
    requester: str
    machine_id: str | None = None
    key_tier: int | None = None
    assurance: Assurance | None = None
    uris: tuple[str, ...] = ()
    dns_names: tuple[str, ...] = ()
    ip_addresses: tuple[IPAddress, ...] = ()
    lifetime: timedelta | None = None
    renews: str | None = None
    issuer_id: str | None = None

    @property
    def purpose(self) -> IssuerPurpose:
        """Which CA signs it: machines' issuance can never reach the one of operators (R16)."""
        return "operator" if self.profile is ProfileName.OPERATOR else "machine"


@dataclass(frozen=True, slots=True, kw_only=True)
class Issued:
    """A certificate that is written down and may be handed out.

    Args:
        serial: 40 lower-case hex.
        certificate: DER.
        chain: DER of what its holder sends after it: the CA key, certified by the keys that relying parties may
            know it through, and who certified those. Empty without a parent but around a rotation; the self-signed
            certificate at its end is never in it, because verifiers must find that one at home.
        ca: DER of that certificate: the CA key's own, or the root of its parents.
        issuer_id: Which CA key.
        algorithm: Of the CA key.
        not_before: Beginning of its validity.
        not_after: End of it.
    """

    serial: str
    certificate: bytes
    chain: tuple[bytes, ...]
    ca: bytes
    issuer_id: str
    algorithm: IssuerAlgorithm
    not_before: datetime
    not_after: datetime


@dataclass(frozen=True, slots=True)
class Planned:
    """A reserved serial number with everything that is signed under it."""

    serial: str
    content: CertificateContent
    issuer: Issuer
    ca: CACertificate


def allowed_lifetime(settings: Settings, profile: ProfileName) -> timedelta:
    """Return how long a certificate of this profile may be valid at most."""
    if profile is ProfileName.OPERATOR:
        allowed = timedelta(days=settings.operator_cert_days)
    elif profile is ProfileName.OCSP_SIGNING:
        allowed = RESPONDER_LIFETIME
    elif settings.enrollment_cert_minutes is not None:
        allowed = timedelta(minutes=settings.enrollment_cert_minutes)
    elif settings.enrollment_cert_days is not None:
        allowed = timedelta(days=settings.enrollment_cert_days)
    else:
        allowed = timedelta(hours=settings.enrollment_cert_hours)
    return min(allowed, PROFILES[profile].max_validity)


def issuers_for(tx: Tx, wanted: Wanted, settings: Settings) -> tuple[Issuer, ...]:
    """Return the keys that are to sign, as the database has them in this unit.

    Raises:
        CANotConfigured: There is none.
    """
    if wanted.issuer_id is not None:
        chosen = [tx.issuers.get(wanted.issuer_id)]
    else:
        chosen = [tx.issuers.active(wanted.purpose, algorithm) for algorithm in algorithms(settings)]
    found = tuple(issuer for issuer in chosen if issuer is not None and may_sign(issuer, wanted))
    if not found or len(found) != len(chosen):
        raise CANotConfigured(f"no key of a CA signs {wanted.profile} certificates now")
    return found


def may_sign(issuer: Issuer, wanted: Wanted) -> bool:
    """Return True if *issuer* may sign *wanted*: the active key, and for its own responders a retiring one."""
    if wanted.profile is ProfileName.OCSP_SIGNING:
        return issuer.state in ("active", "retiring")
    return issuer.state == "active" and issuer.purpose == wanted.purpose


def reserve(
    tx: Tx,
    wanted: Wanted,
    settings: Settings,
    at: datetime,
    certificate_of: Callable[[Issuer], CACertificate],
) -> tuple[Planned, ...]:
    """Reserve a serial number under each key that is to sign *wanted*; a part of the caller's unit.

    Args:
        tx: The unit.
        wanted: What.
        settings: Lifetimes, addresses.
        at: Now.
        certificate_of: Returns the certificate of a CA key, read before.

    Raises:
        CANotConfigured: No key signs this.
        CertificateNotConformant: The certificate of the CA has ended.
        KeyRefused: The key never gets one.
        NameInUse: Another live machine has a name that would stand in it.
    """
    demand_good_key(tx, wanted)
    _demand_own_names(tx, wanted)
    return tuple(
        _reserve(tx, wanted, issuer, certificate_of(issuer), settings, at)
        for issuer in issuers_for(tx, wanted, settings)
    )


def demand_good_key(tx: Tx, wanted: Wanted) -> None:
    """Check that nobody said of this key that others have it: whatever the profile, whoever asks.

    Raises:
        KeyRefused: Somebody did.
    """
    if tx.refused_keys.get(hashlib.sha256(wanted.spki).hexdigest()) is not None:
        raise KeyRefused("this key never gets a certificate again; make another one")


def _demand_own_names(tx: Tx, wanted: Wanted) -> None:
    """Check that what a certificate calls a machine leads to no other one, in whatever cluster: there is one CA."""
    names = [(name, None) for name in wanted.dns_names] + [(None, str(ip)) for ip in wanted.ip_addresses]
    for name, address in names:
        if tx.machines.namesakes(names_of(name, address), besides=wanted.machine_id or ""):
            # Which one is for operators, who see it in the list of machines.
            raise NameInUse("another machine has the same host name or address; ask an operator")


def _reserve(
    tx: Tx, wanted: Wanted, issuer: Issuer, ca: CACertificate, settings: Settings, at: datetime
) -> Planned:
    at = at.replace(microsecond=0)
    allowed = allowed_lifetime(settings, wanted.profile)
    lifetime = allowed if wanted.lifetime is None else min(wanted.lifetime, allowed)
    not_before = max(at - BACKDATE, ca.not_before)
    not_after = min(at + lifetime, ca.not_after)
    if not_before >= not_after:
        raise CertificateNotConformant(f"CA {issuer.issuer_id} is valid until {ca.not_after:%Y-%m-%d %H:%M}")
    serial = serial_of(secrets.token_bytes(SERIAL_BYTES))
    rules = PROFILES[wanted.profile]
    if wanted.profile in settings.no_rev_avail:
        rules = short_lived(rules)
    pointers = rules.pointers
    base = f"{settings.revocation_url}/pki"
    content = CertificateContent(
        profile=rules,
        serial=serial,
        subject=wanted.subject,
        issuer_subject=ca.subject,
        spki=wanted.spki,
        not_before=not_before,
        not_after=not_after,
        authority_key_id=ca.key_id,
        uris=wanted.uris,
        dns_names=wanted.dns_names,
        ip_addresses=wanted.ip_addresses,
        policies=_policies(wanted, settings),
        crl_url=f"{base}/crl/{issuer.issuer_id}" if Pointer.CRL in pointers else None,
        ocsp_url=f"{base}/ocsp" if Pointer.OCSP in pointers else None,
        ca_url=f"{base}/ca/{issuer.issuer_id}" if Pointer.CA in pointers else None,
    )
    row = Issuance(
        serial=serial_text(serial),
        issuer_id=issuer.issuer_id,
        profile=wanted.profile.value,
        state="reserved",
        machine_id=wanted.machine_id,
        subject=wanted.subject.rfc4514_string(),
        spki_sha256=hashlib.sha256(wanted.spki).hexdigest(),
        requester=wanted.requester,
        key_tier=wanted.key_tier,
        assurance=wanted.assurance.value if wanted.assurance is not None else None,
        renews=wanted.renews,
        not_before=not_before,
        not_after=not_after,
        reserved_at=at,
    )
    tx.issuances.reserve(row)
    return Planned(row.serial, content, issuer, ca)


def _policies(wanted: Wanted, settings: Settings) -> tuple[str, ...]:
    if wanted.assurance is None:
        return ()
    return assurance_policies(
        settings.assurance_oid_arc, assurance=wanted.assurance.level, key_tier=wanted.key_tier
    )


def sign(planned: Planned, opened: Opened) -> bytes:
    """Lint what is planned, then sign it once; return it in DER. It may wait for hardware.

    Raises:
        CertificateNotConformant: It breaks a rule of its profile, and was not signed.
        SignerUnavailable: The key cannot sign now.
        SignatureInvalid: What the key returned is no signature of it.
    """
    return sign_content(planned.content, planned.issuer.algorithm, opened.key.private_key, opened.ca)


def sign_content(
    content: CertificateContent, algorithm: IssuerAlgorithm, key: SigningKey, ca: CACertificate | None
) -> bytes:
    """As `sign`, for any content; *ca* is None where the certificate is the CA's own."""
    rehearsed = rehearse(content, algorithm)
    findings = lint(
        rehearsed,
        content,
        ca.der if ca is not None else None,
        issuer_purpose=ca.purpose if ca is not None else None,
    )
    if findings:
        log.error("ca.not_conformant", profile=content.profile_name, findings=list(findings))
        raise CertificateNotConformant("what was about to be signed breaks a rule of its profile")
    if ca is not None and (refused := outside(content, ca.parents)) is not None:
        raise CertificateNotConformant(refused)
    signed = make_certificate(content, key)
    check_signed(signed, rehearsed=rehearsed, issuer=key.public_key())
    return signed


def as_issued(planned: Planned, certificate: bytes, issuer: Issuer) -> Issued:
    """Return what is handed out; *issuer* as the last unit found it."""
    return Issued(
        serial=planned.serial,
        certificate=certificate,
        chain=issuer.sent,
        ca=issuer.path[-1],
        issuer_id=issuer.issuer_id,
        algorithm=issuer.algorithm,
        not_before=planned.content.not_before,
        not_after=planned.content.not_after,
    )
