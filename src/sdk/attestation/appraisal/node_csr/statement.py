"""Steps 5 to 10: the attestation key of the machine certified the key of this request, for this challenge."""

# Algorithms for: tpm-ak, tpm-hash
from __future__ import annotations

import hmac
from typing import Final

from cryptography.hazmat.primitives.asymmetric import ec

from attestation.appraisal.node_csr.case import Case
from attestation.appraisal.node_csr.result import (
    BINDING,
    HEADER,
    KEY,
    MODE,
    SAME_KEY,
    SIGNATURE,
    SIGNER,
    Reason,
)
from attestation.appraisal.node_csr.steps import Found, Steps
from attestation.errors import (
    AKAttributesRejected,
    AttestationError,
    AttestHeaderInvalid,
    ChallengeMismatch,
    EvidenceRejected,
    KeyCertificationRejected,
    KeyNotResident,
    SignatureInvalid,
)
from attestation.evidence import key_certification
from attestation.evidence.ak_activation import check_ak
from attestation.evidence.key_certification import KeyMode, compute_mode, csr_binding
from attestation.evidence.node_csr import Layout, UnverifiedContainer, parse_certify, rebuilt_publics
from attestation.machines import Machine
from attestation.pki.request import CertificateRequest
from attestation.results import Check
from attestation.tpm import Alg, Attest, Public, Signature, VerificationKey, parse_attest, parse_public

_STATEMENT: Final = (SIGNATURE, HEADER, BINDING, SIGNER, KEY, MODE)
"""Steps 5 to 9, each a check of its own."""
_OF_ERROR: Final[tuple[tuple[type[AttestationError], Check, Reason], ...]] = (
    (SignatureInvalid, SIGNATURE, Reason.SIGNATURE_INVALID),
    (AKAttributesRejected, SIGNATURE, Reason.SIGNATURE_INVALID),
    # Magic and type were read with the container; what is left of a header is its signer.
    (AttestHeaderInvalid, SIGNER, Reason.SIGNATURE_INVALID),
    (ChallengeMismatch, BINDING, Reason.EVIDENCE_STALE),
    (KeyNotResident, MODE, Reason.KEY_NOT_RESIDENT),
    (KeyCertificationRejected, KEY, Reason.KEY_MISMATCH),
)


def verify_statement(
    container: UnverifiedContainer,
    csr: CertificateRequest,
    machine: Machine,
    ak: Public,
    case: Case,
    nonces: tuple[bytes, ...],
    steps: Steps,
    found: Found,
) -> tuple[Attest, bytes]:
    """Verify the statement about the key; return it, and the nonce that it answers."""
    attest = parse_attest(container.attest)
    modes = case.rules.modes - {KeyMode.RESIDENT_DECRYPT}
    nonce, spki = b"", csr.spki
    try:
        if container.layout is Layout.GKE_V1:
            found.mode = _verify_gke(container, attest, csr, ak, modes)
        else:
            assert container.public is not None
            statement = key_certification.parse(container.public, container.attest, container.signature)
            nonce, spki = _answered(attest, csr, nonces), statement.spki
            found.mode = key_certification.verify(
                statement,
                ak=ak,
                ek=parse_public(machine.tpm.ek_public),
                binding=csr_binding(nonce, csr.request_info),
                # That the request has this very key is step 10, below: how the key stands to its TPM comes before.
                spki=spki,
                modes=modes,
            ).mode
    except (EvidenceRejected, AKAttributesRejected) as error:
        check, reason = next((check, reason) for kind, check, reason in _OF_ERROR if isinstance(error, kind))
        for step in _STATEMENT[: _STATEMENT.index(check)]:
            steps.passed(step)
        steps.deny(check, reason, _EXPECTED[check.name], f"{error.code}: {error}")
    for step in _STATEMENT:
        steps.passed(step, found.mode if step is MODE else "")
    # 10. Otherwise a good key of the machine would vouch for one of a stranger.
    if not hmac.compare_digest(spki, csr.spki):
        steps.deny(SAME_KEY, Reason.KEY_MISMATCH, _EXPECTED[SAME_KEY.name], "another")
    steps.passed(SAME_KEY)
    return attest, nonce


def _answered(attest: Attest, csr: CertificateRequest, nonces: tuple[bytes, ...]) -> bytes:
    """Return the nonce that the statement answers; the last one where it answers none."""
    for nonce in nonces:
        if hmac.compare_digest(attest.extra_data, csr_binding(nonce, csr.request_info)):
            break
    return nonce


def _verify_gke(
    container: UnverifiedContainer,
    attest: Attest,
    csr: CertificateRequest,
    ak: Public,
    modes: frozenset[KeyMode],
) -> KeyMode:
    """Verify a statement of layout gke-v1: as `key_certification.verify`, without nonce and public area.

    Raises:
        AKAttributesRejected, SignatureInvalid: Not signed by this AK, or it is none that counts.
        AttestHeaderInvalid: By a signer outside of a TPM.
        ChallengeMismatch: It answers a challenge, so it was made for something else.
        KeyCertificationRejected: About another key, or one that was not loaded as this layout loads it.
        KeyNotResident: The key stands in another mode than those allowed.
    """
    info = parse_certify(container.attest)
    # 5. The AK is restricted, so the TPM made the statement itself; it signed exactly these bytes.
    check_ak(ak)
    VerificationKey(ak).verify(Signature(Alg.RSASSA, Alg.SHA256, container.signature), container.attest)
    # 7. A statement for a challenge of ours must not pass here, where nobody looks which.
    if attest.extra_data:
        raise ChallengeMismatch("a statement of this layout answers no challenge")
    # 8. The parent of such an AK is not known: its bare Name, or none, would be a key outside of a TPM.
    if attest.qualified_signer in (b"", ak.name):
        raise AttestHeaderInvalid("qualifiedSigner is not a qualified name: the signer is outside a TPM")
    # 9. The public area follows from the key of the request, so this is step 10 too.
    key = csr.public_key
    rebuilt = rebuilt_publics(key) if isinstance(key, ec.EllipticCurvePublicKey) else ()
    public = next((each for each in rebuilt if hmac.compare_digest(each.name, info.name)), None)
    if public is None:
        raise KeyCertificationRejected("another key was certified than that of the request")
    mode = compute_mode(public, info.qualified_name)
    if mode not in modes:
        raise KeyNotResident(f"the key is {mode}", computed=mode)
    return mode


_EXPECTED: Final = {
    SIGNATURE.name: "a signature of the activated attestation key",
    SIGNER.name: "a signer in the TPM",
    BINDING.name: "a statement for this challenge and this request",
    KEY.name: "a certified key that is good enough, and is the one sent",
    MODE.name: "a key that stands to its TPM as is allowed here",
    SAME_KEY.name: "the key of the request",
}
