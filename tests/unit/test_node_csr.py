"""What the SDK offers for requests of nodes in one call each."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from attestation.appraisal.node_csr import Case, Decision, KeyTier, Reason, Requested, Rules
from attestation.device import KeyType
from attestation.evidence.key_certification import KeyMode
from attestation.node_csr import Challenge, attest_key, offline_case, verify_csr
from attestation.reference import parse_policy
from attestation.results import Assurance
from attestation.tpm import PCRSelection
from attestation_testing import SoftwareNode

AT = datetime(2026, 11, 21, 12, tzinfo=UTC)
SELECTION = PCRSelection.from_names({"sha256": [0, 7]})
CHALLENGE = Challenge(nonce=bytes(range(32)), nonce_id="0f" * 16, selection=SELECTION)
MACHINE_ID = "7f3ad3ac-0f0e-4c55-9d4a-3f6f0e1b2c3d"
NODE = SoftwareNode(7)


def case(*, modes: frozenset[KeyMode] = frozenset({KeyMode.RESIDENT}), quote: bool = True) -> Case:
    """Return what a verifier without a service knows of the machine."""
    return offline_case(
        result_id="ab" * 16,
        machine_id=MACHINE_ID,
        hostname="worker-1",
        cluster_id="edge",
        ek_public=NODE.ek.public.tpm2b(),
        ak_public=NODE.ak.public.tpm2b(),
        nonce=CHALLENGE.nonce,
        selection=SELECTION,
        policy=parse_policy(
            {
                "format": "itl-tpm-policy/1",
                "name": "nodes",
                "version": 1,
                "bank": "sha256",
                "pcrs": {"0": {"any_of": ["00" * 32]}, "7": {"any_of": ["00" * 32]}},
            }
        ),
        requested=Requested(
            username="system:bootstrap:abcdef",
            groups=frozenset({"system:bootstrappers"}),
            usages=("digital signature", "client auth"),
        ),
        rules=Rules(modes=modes, quote_required=quote),
        assurance=Assurance.TOFU,
        at=AT,
    )


@pytest.mark.parametrize("kind", [KeyType.ECC_P256, KeyType.ECC_P384, KeyType.RSA_2048])
def test_a_key_of_the_tpm(kind: KeyType) -> None:
    """What `attest_key` makes of a key of each kind, `verify_csr` approves; the request is one that anybody reads."""
    data = attest_key(
        NODE,
        NODE.create_signing_key(kind),
        hostname="worker-1",
        machine_id=MACHINE_ID,
        challenge=CHALLENGE,
    )
    result = verify_csr(data, case(), AT)
    assert (result.decision, result.tier) == (Decision.APPROVE, KeyTier.RESIDENT_AND_QUOTED), result.outcomes
    request = x509.load_pem_x509_csr(data)
    assert request.is_signature_valid
    assert request.subject.rfc4514_string() == "CN=system:node:worker-1,O=system:nodes"


def test_a_software_key() -> None:
    """A key that the machine only vouches for is approved where that is allowed, and told as such."""
    data = attest_key(
        NODE,
        ec.generate_private_key(ec.SECP256R1()),
        hostname="worker-1",
        machine_id=MACHINE_ID,
        challenge=CHALLENGE,
    )
    result = verify_csr(data, case(), AT)
    assert (result.decision, result.reason) == (Decision.DENY, Reason.KEY_NOT_RESIDENT)
    result = verify_csr(data, case(modes=frozenset({KeyMode.EXTERNAL})), AT)
    assert (result.decision, result.tier) == (Decision.APPROVE, KeyTier.EXTERNAL), result.outcomes


def test_without_a_quote() -> None:
    """A challenge that asks for no quote is answered without one; then nothing says what booted."""
    challenge = Challenge(nonce=CHALLENGE.nonce, nonce_id=CHALLENGE.nonce_id, selection=None)
    data = attest_key(
        NODE,
        NODE.create_signing_key(),
        hostname="worker-1",
        machine_id=MACHINE_ID,
        challenge=challenge,
    )
    assert verify_csr(data, case(quote=False), AT).reason is Reason.POLICY_FAILED


def test_what_cannot_be_read_is_denied() -> None:
    """A plain request has no evidence; a container that cannot be read is malformed."""
    data = attest_key(
        NODE, NODE.create_signing_key(), hostname="worker-1", machine_id=MACHINE_ID, challenge=CHALLENGE
    )
    plain = data[: data.index(b"-----BEGIN ITL")]
    assert verify_csr(plain, case(), AT).reason is Reason.EVIDENCE_MISSING
    assert verify_csr(data + b"x", case(), AT).reason is Reason.EVIDENCE_MALFORMED
