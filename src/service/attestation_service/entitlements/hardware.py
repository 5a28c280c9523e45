"""Statements of confidential hardware for machines without a TPM: whose they are, and what of them is authentic."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final, NamedTuple

from attestation.api import EvidenceItem
from attestation.appraisal import KINDS
from attestation.appraisal.confidential import Expected, Hardware
from attestation.errors import EndorsementMissing, MalformedEvidence, Unavailable
from attestation.machines import Identity, Machine, SeenHardware
from attestation.report_data import hardware_fingerprint, report_data
from attestation.store import Tx
from attestation_service.resources import Resources

PREFIX: Final = "application/vnd.itl."


class TEE(NamedTuple):
    """What a machine may be known by in place of a TPM: the kind of its evidence, and the media type of the item."""

    kind: str
    media_type: str


TEE_KINDS: Final = {
    "sev-snp": TEE("sev_snp", PREFIX + "sev-snp"),
    "tdx": TEE("tdx", PREFIX + "tdx-quote"),
}


def statement(
    tx: Tx,
    tee: str,
    items: Sequence[EvidenceItem],
    *,
    nonce: bytes,
    machine_id: str,
    spki: bytes,
    res: Resources,
    at: datetime,
) -> Hardware:
    """Return what hardware is shown by the one item that states *nonce*, *machine_id* and a subject key.

    Args:
        tx: Where it is read what vouches for the hardware.
        tee: `sev-snp` or `tdx`, as the machine said when it was introduced.
        items: What came.
        nonce: What the report data is over.
        machine_id: UUID text.
        spki: SubjectPublicKeyInfo, DER, of the subject key.
        res: Of the process.
        at: Now.

    Raises:
        MalformedEvidence: Not one item of this hardware, or not of the form.
        EvidenceRejected: It proves nothing.
        EndorsementMissing: What would vouch for it is not at hand.
        Unavailable: This version does not know such hardware.
    """
    kind, media_type = TEE_KINDS[tee]
    if [each.media_type for each in items] != [media_type]:
        raise MalformedEvidence(f"evidence: one item {media_type} is wanted")
    if kind not in KINDS:
        raise Unavailable(f"this version cannot judge evidence of {tee}")
    evidence = KINDS[kind].parse(items[0].value)
    expected = Expected(
        at=at,
        report_data=report_data(tee, nonce, machine_id, spki),
        endorsements=res.collateral.endorsements(tx, kind, evidence),
        approved=None,
        nonce=nonce,
    )
    try:
        found = KINDS[kind].hardware(KINDS[kind].verify(evidence, expected))
    except EndorsementMissing as missing:
        names = res.collateral.missing(tx, kind, evidence, at)
        raise EndorsementMissing(missing.undecided, names) from missing
    assert found is not None
    return found


def is_own(machine: Machine, identity: Identity | None, found: Hardware) -> bool:
    """Say whether *found* is the hardware of a machine without a TPM: approved, or before that what it is known by.

    Chip, guest and subject key are no secrets: whoever has such hardware makes authentic evidence that names them all.
    """
    if identity is not None and identity.approved_chip is not None:
        approved = (identity.approved_chip, identity.approved_csp_id, identity.guest)
        return (found.chip, found.csp_id, found.guest) == approved
    subject = machine.anchor.ak_public if machine.ephemeral else None
    return hardware_fingerprint(found.tee, found.chip, found.guest, subject).hex() == machine.fingerprint


def as_seen(kind: str, hardware: Hardware) -> SeenHardware:
    """Return what was seen as the machine's row has it."""
    return SeenHardware(kind=kind, chip=hardware.chip, guest=hardware.guest, csp_id=hardware.csp_id)
