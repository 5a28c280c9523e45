"""What an attestation brings of each kind of evidence, and what it is compared with: the service's side of `KINDS`."""

from __future__ import annotations

import hmac
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, NoReturn

from attestation.appraisal import KINDS
from attestation.appraisal.azure_hcl import AZURE_HCL
from attestation.appraisal.confidential import Approved, Expected
from attestation.appraisal.gpu import GPU
from attestation.appraisal.sev_snp import SEV_SNP
from attestation.appraisal.sgx import SGX
from attestation.appraisal.svsm import MEDIA_TYPE as SVSM_MEDIA_TYPE
from attestation.appraisal.svsm import SVSM
from attestation.appraisal.tdx import TDX
from attestation.appraisal.tpm import TPM
from attestation.errors import AKNotActivated, EKFingerprintMismatch, MalformedEvidence, Unavailable
from attestation.evidence import azure_hcl, dcap, nvidia_gpu, sev_snp
from attestation.machines import Identity, Machine
from attestation.reference import Policy
from attestation.report_data import gpu_nonce, report_data
from attestation.tpm import parse_public
from attestation_service.attest import tpm
from attestation_service.attest.asked import Asked, Gathered


class Side(NamedTuple):
    """The service's side of a kind.

    Attributes:
        asks: What a challenge names beside the quote, so that the machine makes such evidence.
        gather: From an identity and a request to the evidence and what is expected of it.
        hardware: Media type of confidential hardware's items; None for another kind.
        one: No other such item may come beside it: a machine has one processor to speak of.
    """

    asks: tuple[str, ...]
    gather: Callable[[Any, Asked], Gathered]
    hardware: str | None = None
    one: bool = False


def item(name: str, media_type: str, expect: Callable[[Identity, bytes], Any]) -> Side:
    """Return the side of a kind whose evidence is one item of a request.

    Args:
        name: Of the kind.
        media_type: Of the item.
        expect: From an identity and the 32 bytes of the challenge to what its kind compares with.
    """

    def gather(identity: Identity, asked: Asked) -> Gathered:
        sent = [each.value for each in asked.request.evidence if each.media_type == media_type]
        if len(sent) > 1:
            raise MalformedEvidence(f"evidence: {media_type} is there more than once")
        assert asked.challenge.nonce is not None
        evidence = KINDS[name].parse(sent[0]) if sent else None
        return evidence, expect(identity, asked.challenge.nonce), None

    return Side((media_type.removeprefix("application/vnd.itl."),), gather)


def hardware(
    name: str,
    media_type: str,
    says: Callable[[bytes, str, bytes], bytes],
    *,
    several: bool = False,
) -> Side:
    """Return the side of a kind of confidential hardware.

    Args:
        name: Of the kind.
        media_type: Of its items.
        says: From nonce, machine_id and SubjectPublicKeyInfo of the machine's key to what hardware must have signed.
        several: A machine may send several items: they are parsed as a list.
    """

    def gather(identity: Identity | None, asked: Asked) -> Gathered:
        sent = [each.value for each in asked.request.evidence if each.media_type == media_type]
        if len(sent) > 1 and not several:
            raise MalformedEvidence(f"evidence: {media_type} is there more than once")
        evidence = KINDS[name].parse(sent if several else sent[0]) if sent else None
        machine, nonce = asked.machine, asked.challenge.nonce
        assert nonce is not None
        if machine.tee is not None:
            _same_hardware(asked)
        expected = Expected(
            at=asked.at,
            report_data=says(nonce, machine.machine_id, subject_of(machine)),
            endorsements=asked.res.collateral.endorsements(asked.tx, name, evidence),
            approved=approved_of(identity),
            nonce=nonce,
            ak_public=None if machine.tee is not None else machine.tpm.ak_public,
            ek_public=None if machine.tee is not None else machine.tpm.ek_public,
            before=identity.state if identity is not None else None,
            guest=identity.guest if identity is not None else None,
        )
        return evidence, expected, None

    return Side((media_type.removeprefix("application/vnd.itl."),), gather, media_type, not several)


def signs(kind: str) -> Callable[[bytes, str, bytes], bytes]:
    """Return what report data of *kind* (`sev-snp`, `tdx`, `sgx`) is: mode itl-v1 (CONFIDENTIAL.md §7.2)."""
    return lambda nonce, machine_id, spki: report_data(kind, nonce, machine_id, spki)


def subject_of(machine: Machine) -> bytes:
    """Return the SubjectPublicKeyInfo of the key that hardware vouches for: beside a TPM, of its AK.

    Raises:
        AKNotActivated: There is none.
    """
    held = machine.anchor.ak_public
    if held is None:
        raise AKNotActivated("this machine has no activated attestation key")
    return held if machine.tee is not None else parse_public(held).spki_der()


def approved_of(identity: Identity | None) -> Approved | None:
    """Return what operators approved of a machine's hardware; None where they approved nothing."""
    if identity is None or identity.approved_chip is None:
        return None
    return Approved(chip=identity.approved_chip, csp_id=identity.approved_csp_id)


def _same_hardware(asked: Asked) -> None:
    """Check whom a request of a machine without a TPM names, and that it brings nothing of a TPM."""
    request = asked.request
    named = request.ek_fingerprint.lower().encode("ascii")
    if not hmac.compare_digest(named, asked.machine.fingerprint.encode("ascii")):
        raise EKFingerprintMismatch("ek_fingerprint is not that of this machine")
    if (request.pcr_quote, request.pcr_signature, request.pcr_values, request.event_log) != (None,) * 4:
        raise MalformedEvidence("this machine has no TPM: a quote belongs to another one")


class Sides(dict[str, Side]):
    """By the name of the kind; asked for another, it raises Unavailable."""

    def __missing__(self, name: str) -> NoReturn:
        # A later version of the service expects such evidence: what this one cannot judge it does not pass over.
        raise Unavailable(f"evidence of the kind {name} is expected, which this version does not know")


SIDES: Final = Sides(
    {
        TPM.name: Side((), tpm.gather),
        SEV_SNP.name: hardware(SEV_SNP.name, sev_snp.MEDIA_TYPE, signs("sev-snp")),
        TDX.name: hardware(TDX.name, dcap.TDX_MEDIA_TYPE, signs("tdx")),
        SGX.name: hardware(SGX.name, dcap.SGX_MEDIA_TYPE, signs("sgx")),
        AZURE_HCL.name: hardware(AZURE_HCL.name, azure_hcl.MEDIA_TYPE, lambda *_: bytes(64)),
        GPU.name: hardware(GPU.name, nvidia_gpu.MEDIA_TYPE, lambda nonce, *_: gpu_nonce(nonce), several=True),
        SVSM.name: hardware(SVSM.name, SVSM_MEDIA_TYPE, signs("sev-snp")),
    }
)
"""What a challenge asks of a TPM follows from the policy (`verifier.challenges`)."""


def asked_of(machine: Machine, identities: Mapping[str, Any], policy: Policy) -> list[str]:
    """Return what a challenge names beside the quote: what this machine has, and what *policy* has rules for."""
    names = [
        *identities,
        *(name for name in _ruled(policy) if machine.tee is None and name not in identities),
    ]
    return [word for name in names for word in SIDES[name].asks]


def expected_of(asked: Asked, identities: Mapping[str, Any]) -> dict[str, Any]:
    """Return the kinds of evidence that must come, each with who the machine is to it, or None.

    What was seen of hardware beside a TPM and approved by nobody is expected where the policy has rules for it: whoever
    shows more than was asked for is not worse off. What the policy has rules for and came is judged by them.

    Raises:
        MalformedEvidence: There are items of two processors.
    """
    sent = sent_of(asked)
    ruled = _ruled(asked.policy)
    found = {
        name: identity
        for name, identity in identities.items()
        if asked.machine.tee is not None
        or SIDES[name].hardware is None
        or name in ruled
        or identity.approved_chip is not None
    }
    if asked.machine.tee is None:
        found |= {name: None for name in sent if name in ruled and name not in found}
    return found


def sent_of(asked: Asked) -> list[str]:
    """Return the kinds of confidential hardware of which a request brings items.

    Raises:
        MalformedEvidence: There are items of two processors.
    """
    types = {each.media_type for each in asked.request.evidence}
    names = [name for name, side in SIDES.items() if side.hardware in types]
    if sum(SIDES[name].one for name in names) > 1:
        raise MalformedEvidence("evidence: there is more than one item of a processor")
    return names


def _ruled(policy: Policy) -> frozenset[str]:
    """Return the kinds of confidential hardware that *policy* has rules for."""
    wanted = policy.kinds.keys()
    return frozenset(
        name
        for name, side in SIDES.items()
        if side.hardware is not None and not KINDS[name].answers(None).isdisjoint(wanted)
    )
