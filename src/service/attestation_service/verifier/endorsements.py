"""Who vouches for a machine's TPM: the trust bundle in force, and what follows from its word for a machine.

The bundle is the shipped one with the certificates of a folder and those of operators. What operators changed lies
in the database, so all workers see it: each use asks there, inside its own unit, whether the remembered bundle
is still the one in force.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Literal

import structlog

from attestation.audit import AuditEvent
from attestation.clock import Clock, rfc3339
from attestation.endorsements import PathValidation, judge_ek_trust
from attestation.endorsements.ak_certificate import AKAnchors
from attestation.endorsements.bundle import BundleEntry, RevocationMode, Role, TrustBundle
from attestation.endorsements.bundle import entry_of as bundle_entry
from attestation.endorsements.certificate import parse_certificate
from attestation.endorsements.path import CertificateIndex, Expiry
from attestation.endorsements.revocation import CRL, MAX_CRL_BYTES, CRLStore, parse_crl
from attestation.endorsements.vendors import SIMULATOR
from attestation.errors import BundleInvalid, MalformedEvidence
from attestation.machines import Machine
from attestation.results import Assurance
from attestation.store import Store, StoredEKCertificate, TrustCertificate, Tx
from attestation.tpm_bundle import load, load_shipped
from attestation_service.settings import Settings, SettingsInvalid
from attestation_service.verifier.node_identity import load_anchors

log = structlog.get_logger("attestation_service.endorsements")

REJUDGE_BATCH: Final = 100
CRL_SUFFIXES: Final = frozenset({".crl", ".der", ".pem"})

Where = Literal["shipped", "directory", "operator"]


class Anchors:
    """The trust bundle in force.

    Args:
        settings: Folder, revocation lists and modes.

    Attributes:
        hsm: Roots of makers of HSMs.

    Raises:
        BundleInvalid: A file of the bundle, or a revocation list, breaks a rule.
        SettingsInvalid: ITL_TPM_VERIFY_CA_STRICT, and there is no usable anchor.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._shipped: Final = frozenset(held.entry.sha256 for held in load_shipped().held)
        base = load(settings.tpm_ca_bundle_dir)
        if settings.tpm_verify_ca_strict and not base.anchors:
            raise SettingsInvalid(
                "ITL_TPM_VERIFY_CA_STRICT=true, but the trust bundle has no active anchor; see ITL_TPM_CA_BUNDLE_DIR"
            )
        self._folder: Final = frozenset(held.entry.sha256 for held in base.held) - self._shipped
        self._revocations: Final = (
            load_crls(settings.tpm_crl_dir) if settings.tpm_crl_dir is not None else None
        )
        self._ak: Final = (
            load_anchors(settings.ak_ca_dir) if settings.ak_ca_dir is not None else AKAnchors(())
        )
        self.hsm: Final = CertificateIndex(
            load_anchors(settings.hsm_vendor_dir) if settings.hsm_vendor_dir is not None else ()
        )
        self._base = base
        self._remembered: tuple[tuple[object, ...], TrustBundle] = ((), self._base)

    @property
    def verifying(self) -> bool:
        """False where nobody's word is asked for."""
        return self._settings.tpm_verify_ca

    def bundle(self, tx: Tx) -> TrustBundle:
        """Return the bundle in force in this unit."""
        state = tx.trust.state()
        remembered, bundle = self._remembered
        if state != remembered:
            bundle = self._overlaid(tx.trust.all())
            self._remembered = (state, bundle)
        return bundle

    @property
    def ak(self) -> AKAnchors:
        """The CAs that operators believe about attestation keys; none where no folder was named."""
        return self._ak

    def _overlaid(self, stored: tuple[TrustCertificate, ...]) -> TrustBundle:
        # What is shipped or in the folder keeps its entry; for the rest the operator's word is the entry.
        known = self._shipped | self._folder
        added = [(entry_of(each), each.certificate) for each in stored if each.sha256 not in known]
        return self._base.with_overlay(
            added, {each.sha256: each.reason or "" for each in stored if each.status == "distrusted"}
        )

    def where(self, sha256: str) -> Where:
        """Say where a certificate of the bundle comes from."""
        if sha256 in self._shipped:
            return "shipped"
        return "directory" if sha256 in self._folder else "operator"

    def judge(
        self,
        tx: Tx,
        certificate: bytes,
        chain: tuple[bytes, ...],
        *,
        vendor: str,
        at: datetime,
        enrolling: bool,
    ) -> PathValidation:
        """Validate the path of an EK certificate in the bundle in force.

        Args:
            tx: The unit in which it is asked.
            certificate: DER, held against the profile before.
            chain: DER of untrusted intermediates.
            vendor: The maker that the certificate names.
            at: Now.
            enrolling: The machine introduces itself: what has expired is refused, whatever the setting says.
        """
        bundle = self.bundle(tx)
        if not self.verifying:
            reason = "no chain is verified (ITL_TPM_VERIFY_CA=false)"
        elif vendor == SIMULATOR:
            # Whatever signed it: a software TPM keeps its keys where anybody with its host can read them.
            reason = "a software TPM: no vendor vouches for its keys"
        else:
            judging = bundle.judging(
                revocations=self._revocations,
                mode=RevocationMode(self._settings.tpm_revocation),
                expiry=Expiry.FAIL if enrolling else Expiry(self._settings.ek_expiry),
            )
            return judging.verify(certificate, chain, at=at)
        return PathValidation(ok=False, reason=reason, bundle_sha256=bundle.sha256)


def load_crls(folder: Path) -> CRLStore:
    """Read every revocation list of *folder*, DER or PEM, one a file.

    Raises:
        BundleInvalid: A file cannot be read, or is none.
    """
    try:
        files = sorted(file for file in folder.iterdir() if file.suffix.lower() in CRL_SUFFIXES)
        return CRLStore([_crl(file) for file in files])
    except OSError as e:
        raise BundleInvalid(f"{folder}: {e.strerror}") from e


def _crl(file: Path) -> CRL:
    with file.open("rb") as stream:
        data = stream.read(MAX_CRL_BYTES + 1)
    try:
        return parse_crl(data)
    except MalformedEvidence as e:
        raise BundleInvalid(f"{file}: {e}") from e


def entry_of(stored: TrustCertificate) -> BundleEntry:
    """Return the entry of the bundle for a certificate that an operator added."""
    return bundle_entry(
        stored.certificate,
        role=Role(stored.role),
        vendor=stored.vendor,
        retrieved=stored.added_at.date(),
        evidence=f"added by {stored.added_by}",
    )


def keep(
    tx: Tx,
    machine: Machine,
    certificate: bytes,
    chain: tuple[bytes, ...],
    validation: PathValidation,
    at: datetime,
) -> Machine:
    """Store a judgement and what follows from it for the machine; return the machine after it."""
    tx.ek_certificates.put(
        StoredEKCertificate(
            machine_id=machine.machine_id,
            certificate=certificate,
            chain=chain,
            validation=validation,
            judged_at=at,
        )
    )
    trust = judge_ek_trust(
        allow_listed=machine.anchor.ek_allow_listed,
        chain=validation,
        ak_certified=tx.ak_certificates.vouches(machine.machine_id, machine.key_name),
    )
    if (trust.assurance, trust.chain_ok) == (machine.assurance, machine.anchor.ek_chain_ok):
        return machine
    return _with_level(
        tx,
        machine,
        trust.assurance,
        f"{validation.reason}; bundle {validation.bundle_sha256}",
        at,
        anchor=replace(machine.anchor, ek_chain_ok=trust.chain_ok),
    )


def level_of_ak(tx: Tx, machine: Machine, at: datetime, reason: str) -> Machine:
    """Give a machine the level that follows from who vouches for its AK now; return it after that.

    Only between `tofu` and `ak-certified`: who is vouched for better, or not at all, stays so.
    """
    if machine.assurance not in (Assurance.TOFU, Assurance.AK_CERTIFIED):
        return machine
    certified = tx.ak_certificates.vouches(machine.machine_id, machine.key_name)
    level = Assurance.AK_CERTIFIED if certified else Assurance.TOFU
    if level is machine.assurance:
        return machine
    return _with_level(tx, machine, level, reason, at)


def _with_level(
    tx: Tx, machine: Machine, level: Assurance, reason: str, at: datetime, **changes: Any
) -> Machine:
    """Give *machine* this level, and the audit its entry; return the machine after it."""
    after = tx.machines.update(
        machine,
        assurance=level,
        # What was believed of it was believed of a better vouched machine.
        **({"trust_expires_at": None} if level.level < machine.assurance.level else {}),
        **changes,
    )
    tx.audit.append(
        AuditEvent(
            operator_cn="service",
            action="assurance_changed",
            machine_id=machine.machine_id,
            prev_state=machine.status,
            new_state=after.status,
            detail=f"{machine.assurance} to {level}: {reason}",
        ),
        at,
    )
    return after


async def rejudge_aks(store: Store, anchors: Anchors, settings: Settings, clock: Clock) -> None:
    """Judge again which AKs are vouched for, where other anchors judged it, in small batches."""
    while True:
        at = clock.now()

        def work(tx: Tx, at: datetime = at) -> int:
            due = tx.ak_certificates.judged_by_others(anchors.ak.sha256, REJUDGE_BATCH)
            for each in due:
                validation = anchors.ak.validate(
                    parse_certificate(each.certificate),
                    each.chain,
                    at=at,
                    # As for EK certificates: expiry is only recorded of whom somebody vouched for.
                    expiry=Expiry(settings.ek_expiry) if each.validation.ok else Expiry.FAIL,
                )
                tx.ak_certificates.put(replace(each, validation=validation, judged_at=at))
                machine = tx.machines.by_id(each.machine_id)
                assert machine is not None  # its certificate goes with it
                level_of_ak(tx, machine, at, f"{validation.reason}; anchors {validation.bundle_sha256}")
            return len(due)

        if not await store.read(lambda tx: tx.ak_certificates.judged_by_others(anchors.ak.sha256, 1)):
            return
        count = await store.write(work)
        log.info("trust.rejudged_aks", machines=count, at=rfc3339(at))


async def rejudge(store: Store, anchors: Anchors, clock: Clock) -> None:
    """Judge again what another bundle judged, in small batches; any number of workers may do it."""
    if not anchors.verifying:
        return
    while True:
        at = clock.now()

        def judged(tx: Tx, at: datetime = at) -> list[tuple[StoredEKCertificate, PathValidation]]:
            bundle = anchors.bundle(tx)
            due = tx.ek_certificates.judged_by_others(bundle.sha256, REJUDGE_BATCH)
            found = []
            for each in due:
                machine = tx.machines.by_id(each.machine_id)
                assert machine is not None  # its certificate goes with it
                vendor = machine.anchor.ek_certificate.manufacturer if machine.anchor.ek_certificate else ""
                validation = anchors.judge(
                    tx,
                    each.certificate,
                    each.chain,
                    vendor=vendor,
                    at=at,
                    # Expiry is only recorded for whom a vendor vouched; it does not lift who was refused for it.
                    enrolling=not each.validation.ok,
                )
                found.append((each, replace(validation, bundle_sha256=bundle.sha256)))
            return found

        due = await store.read(judged)
        if not due:
            return

        def write(
            tx: Tx, due: list[tuple[StoredEKCertificate, PathValidation]] = due, at: datetime = at
        ) -> None:
            bundle = anchors.bundle(tx)
            for each, validation in due:
                machine = tx.machines.by_id(each.machine_id)
                # Somebody judged it meanwhile, or the bundle is another one already: the next batch has it.
                if (
                    machine is None
                    or bundle.sha256 != validation.bundle_sha256
                    or tx.ek_certificates.get(each.machine_id) != each
                ):
                    continue
                keep(tx, machine, each.certificate, each.chain, validation, at)

        await store.write(write)
        log.info("trust.rejudged", machines=len(due), at=rfc3339(at))
