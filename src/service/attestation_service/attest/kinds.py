"""What an attestation brings of each kind of evidence, and what it is compared with: the service's side of `KINDS`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, NoReturn

from attestation import tee_bundle
from attestation.appraisal import KINDS
from attestation.appraisal.confidential import Expected
from attestation.appraisal.sev_snp import SEV_SNP
from attestation.appraisal.tpm import TPM
from attestation.endorsements import amd
from attestation.errors import AKNotActivated, MalformedEvidence, Unavailable
from attestation.evidence import sev_snp
from attestation.machines import Identity, Machine
from attestation.report_data import report_data
from attestation.tpm import parse_public
from attestation_service.attest import tpm
from attestation_service.attest.asked import Asked, Gathered


class Side(NamedTuple):
    """The service's side of a kind.

    Attributes:
        asks: What a challenge names beside the quote, so that the machine makes such evidence.
        gather: From an identity and a request to the evidence and what is expected of it.
    """

    asks: tuple[str, ...]
    gather: Callable[[Any, Asked], Gathered]


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
        expected = Expected(
            at=asked.at,
            report_data=says(nonce, machine.machine_id, subject_of(machine)),
            endorsements=_endorsements(asked, name, evidence),
            approved=None,
            nonce=nonce,
            ak_public=machine.tpm.ak_public,
            before=identity.state if identity is not None else None,
        )
        return evidence, expected, None

    return Side((media_type.removeprefix("application/vnd.itl."),), gather)


def signs(kind: str) -> Callable[[bytes, str, bytes], bytes]:
    """Return what report data of *kind* (`sev-snp`, `tdx`, `sgx`) is: mode itl-v1 (CONFIDENTIAL.md §7.2)."""
    return lambda nonce, machine_id, spki: report_data(kind, nonce, machine_id, spki)


def subject_of(machine: Machine) -> bytes:
    """Return the SubjectPublicKeyInfo of the key that hardware vouches for: beside a TPM, of its AK.

    Raises:
        AKNotActivated: There is none.
    """
    if machine.tpm.ak_public is None:
        raise AKNotActivated("this machine has no activated attestation key")
    return parse_public(machine.tpm.ak_public).spki_der()


def _endorsements(asked: Asked, name: str, evidence: Any) -> Any:  # noqa: ARG001 -- nothing but the anchors yet
    return amd.Endorsements(lines=tee_bundle.load().amd)


class Sides(dict[str, Side]):
    """By the name of the kind; asked for another, it raises Unavailable."""

    def __missing__(self, name: str) -> NoReturn:
        # A later version of the service expects such evidence: what this one cannot judge it does not pass over.
        raise Unavailable(f"evidence of the kind {name} is expected, which this version does not know")


SIDES: Final = Sides(
    {
        TPM.name: Side((), tpm.gather),
        SEV_SNP.name: hardware(SEV_SNP.name, sev_snp.MEDIA_TYPE, signs("sev-snp")),
    }
)
"""What a challenge asks of a TPM follows from the policy (`verifier.challenges`)."""


def asked_of(identities: Mapping[str, Any]) -> list[str]:
    """Return what a challenge to a machine with these *identities* names beside the quote."""
    return [word for name in identities for word in SIDES[name].asks]
