"""Steps 2 to 4, 13 and 14: what the record says of who asks, of the machine and of its name."""

# Algorithms for: tpm-ak, tpm-hash
from __future__ import annotations

from datetime import datetime
from typing import Final

from cryptography.hazmat.primitives.asymmetric import rsa

from attestation.appraisal.node_csr.case import Answer, Case, SeenNode
from attestation.appraisal.node_csr.result import (
    CHALLENGE,
    IDENTITY,
    MACHINE,
    MEMBERSHIP,
    NODE,
    REQUESTER,
    Reason,
)
from attestation.appraisal.node_csr.steps import Steps
from attestation.evidence.node_csr import Layout, UnverifiedContainer, bucket_nonce
from attestation.machines import Machine, Status
from attestation.pki.signature import load_spki
from attestation.tpm import Alg, Attr, Public, Scheme, parse_public

_AK_ATTRIBUTES: Final = int(
    Attr.FIXED_TPM | Attr.FIXED_PARENT | Attr.SENSITIVE_DATA_ORIGIN | Attr.RESTRICTED | Attr.SIGN_ENCRYPT
)


def check_requester(allowed: bool, steps: Steps) -> None:
    """Step 2."""
    if not allowed:
        steps.deny(
            REQUESTER, Reason.IDENTITY_MISMATCH, "a bootstrap user, or the node itself", "somebody else"
        )
    steps.passed(REQUESTER)


def of_cluster(machine: Machine | None, cluster_id: str, steps: Steps) -> Machine:
    """Return the machine of the record, if it is one of this cluster."""
    if machine is None:
        steps.deny(MACHINE, Reason.MACHINE_NOT_ADMITTED, "a machine that we know", "none")
    if machine.cluster_id != cluster_id:
        steps.deny(MACHINE, Reason.MACHINE_NOT_ADMITTED, "a machine of this cluster", "one of another")
    return machine


def admitted(container: UnverifiedContainer, case: Case, steps: Steps) -> tuple[Machine, Public]:
    """Step 3: return the machine, and the attestation key that counts as its own."""
    machine = of_cluster(case.machine, case.cluster_id, steps)
    if container.machine_id is not None and container.machine_id != machine.machine_id:
        steps.deny(MACHINE, Reason.MACHINE_NOT_ADMITTED, "the machine of the container", "another")
    admitted = machine.status is Status.ATTESTED or (
        machine.status is Status.REGISTERED and case.first_certificate
    )
    if not admitted:
        steps.deny(MACHINE, Reason.MACHINE_NOT_ADMITTED, "an attested machine", machine.status)
    if machine.tee is not None:
        steps.deny(MACHINE, Reason.MACHINE_NOT_ADMITTED, "a machine with a TPM", machine.tee)
    if machine.tpm.ak_public is not None:
        ak = parse_public(machine.tpm.ak_public)
    elif container.layout is Layout.GKE_V1 and case.certified_ak is not None:
        ak = _public_of(case.certified_ak)
    else:
        steps.deny(MACHINE, Reason.MACHINE_NOT_ADMITTED, "an activated attestation key", "none")
    steps.passed(MACHINE)
    return machine, ak


def _public_of(spki: bytes) -> Public:
    """Return a public area around a key of which only a certificate is known: that vouches for what it is.

    Its Name is not that of the TPM's object, whose public area nobody showed: nothing here rests on it.
    """
    key, _ = load_spki(spki)
    modulus = b""
    if isinstance(key, rsa.RSAPublicKey):
        modulus = key.public_numbers().n.to_bytes(key.key_size // 8)
    return Public(
        type=Alg.RSA,
        name_alg=Alg.SHA256,
        attributes=_AK_ATTRIBUTES,
        auth_policy=b"",
        symmetric=None,
        scheme=Scheme(alg=Alg.RSASSA, hash_alg=Alg.SHA256),
        key_bits=8 * len(modulus),
        modulus=modulus,
        tpmt=b"",
    )


def nonces_of(container: UnverifiedContainer, case: Case, at: datetime, steps: Steps) -> tuple[bytes, ...]:
    """Return the nonces of which the statement must answer one; none for a layout that has none."""
    if container.layout is Layout.GKE_V1:
        steps.outcomes.append(CHALLENGE.flagged("the layout has no nonce"))
        return ()
    if container.nonce_id is None:
        if not case.rules.bucket_nonces:
            steps.deny(CHALLENGE, Reason.EVIDENCE_STALE, "a challenge", "a bucket of time, which is off")
        steps.outcomes.append(CHALLENGE.flagged("a bucket of time instead of a challenge"))
        return (bucket_nonce(case.cluster_id, at), bucket_nonce(case.cluster_id, at, back=1))
    if case.nonce is None:
        steps.deny(CHALLENGE, Reason.EVIDENCE_STALE, "an unspent challenge of this machine", "none")
    steps.passed(CHALLENGE)
    return (case.nonce,)


def check_identity(container: UnverifiedContainer, case: Case, steps: Steps) -> None:
    """Step 13, who the machine is."""
    if case.instance is not None and container.vm_identity != case.instance:
        # What it says of itself is compared, never believed.
        steps.deny(
            IDENTITY, Reason.IDENTITY_MISMATCH, "what the certificate of its key says of it", "something else"
        )
    if case.identity is Answer.NO:
        steps.deny(IDENTITY, Reason.IDENTITY_MISMATCH, "the identity of this machine", "another, or none")
    if case.identity is Answer.UNDECIDED:
        steps.undecided(IDENTITY, "its extractor could not say")
    else:
        steps.passed(IDENTITY)


def check_membership(answer: Answer, steps: Steps) -> None:
    """Step 13, where it belongs."""
    if answer is Answer.NO:
        steps.deny(MEMBERSHIP, Reason.NOT_MEMBER, "a member of this cluster", "none")
    if answer is Answer.UNDECIDED:
        steps.undecided(MEMBERSHIP, "its provider could not say")
    else:
        steps.passed(MEMBERSHIP)


def check_node(node: SeenNode | None, machine: Machine, hostname: str | None, steps: Steps) -> None:
    """Step 14."""
    if node is not None and node.name != hostname:
        steps.undecided(NODE, "another Node was looked at than the one asked for")
        return
    if node is not None and node.machine_id != machine.machine_id:
        # One that says nothing of its machine may be anybody's: without this, a machine that took a name would be
        # given the certificates, and with them the pods and secrets, of the node that has it.
        steps.deny(NODE, Reason.SUBJECT_INVALID, "no Node of that name, or one of this machine", "of another")
    steps.passed(NODE)
