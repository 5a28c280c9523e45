"""Statements of confidential hardware for machines without a TPM: whose they are, and what of them is authentic."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from attestation import tee_bundle
from attestation.api import EvidenceItem
from attestation.appraisal import KINDS
from attestation.appraisal.confidential import Expected, Hardware
from attestation.endorsements import amd, intel
from attestation.endorsements.certificate import parse_certificate
from attestation.errors import EndorsementMissing, MalformedEvidence, Unavailable
from attestation.machines import SeenHardware
from attestation.report_data import report_data
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


def endorsements(res: Resources, tx: Tx, kind: str, evidence: Any, at: datetime) -> Any:  # noqa: ARG001 -- nothing but the anchors yet
    """Return what vouches for the hardware that made *evidence*, as its kind wants it."""
    anchors = tee_bundle.load()
    if kind in ("tdx", "sgx"):
        return intel.Endorsements(root=parse_certificate(anchors.intel), collateral=None)
    return amd.Endorsements(lines=anchors.amd)


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
        Unavailable: What would vouch for it is not at hand, or this version does not know such hardware.
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
        endorsements=endorsements(res, tx, kind, evidence, at),
        approved=None,
        nonce=nonce,
    )
    try:
        found = KINDS[kind].hardware(KINDS[kind].verify(evidence, expected))
    except EndorsementMissing as missing:
        reasons = "; ".join(each.reason for each in missing.undecided)
        raise Unavailable(f"the hardware cannot be judged yet: {reasons}") from missing
    assert found is not None
    return found


def as_seen(kind: str, hardware: Hardware) -> SeenHardware:
    """Return what was seen as the machine's row has it."""
    return SeenHardware(kind=kind, chip=hardware.chip, guest=hardware.guest, csp_id=hardware.csp_id)
