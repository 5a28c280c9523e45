"""QuoteAttestations as an issuer would have them, on hardware of the test kit."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from types import MappingProxyType
from typing import Any, Final

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from attestation.appraisal.kind import Kind
from attestation.appraisal.sev_snp import SEV_SNP
from attestation.appraisal.sgx import SGX
from attestation.appraisal.tdx import TDX
from attestation.clock import rfc3339
from attestation.endorsements.amd import Product
from attestation.endorsements.certificate import parse_certificate
from attestation.endorsements.intel import Endorsements
from attestation.quote import Envelope, Purpose, QuoteCase, QuoteResult, appraise_quote, parse_envelope
from attestation.reference import IDENTITY_ONLY, Policy
from attestation.reference.confidential import SevSnpRules, SgxRules, TdxRules
from attestation.reference.rules import Demand
from attestation.report_data import quote_binding
from attestation.wire import b64encode
from attestation_testing.tee.amd import MEASUREMENT, Processor
from attestation_testing.tee.amd import Pki as AMDPki
from attestation_testing.tee.intel import MRTD, td_report
from tests.unit.evidence.dcap_zoo import AT, PLATFORM, enclave, sgx, tdx

SPKI: Final = (
    ec.derive_private_key(11, ec.SECP384R1())
    .public_key()
    .public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
)
NONCE: Final = bytes(range(32))
UID: Final = "0b5e8c1e-6f0c-4a2f-9d57-0d2b2f8d3c11"
GENOA: Final = Processor(pki=AMDPki(Product.GENOA))
ROOT: Final = parse_certificate(PLATFORM.pki.root)
MEMBER: Final = {"sgx": "quote", "tdx": "quote", "sev-snp": "report"}
KINDS: Final[dict[str, Kind[Any, Any, Any]]] = {"sgx": SGX, "tdx": TDX, "sev-snp": SEV_SNP}


def policy(**blocks: Any) -> Policy:
    """Return a policy with these blocks."""
    return replace(IDENTITY_ONLY, blocks=MappingProxyType(blocks))


def _one(value: bytes) -> Demand[frozenset[bytes]]:
    return Demand(frozenset({value}), report=False)


POLICY: Final = policy(
    sgx=SgxRules(mrenclave=_one(b"\xe1" * 32)),
    tdx=TdxRules(mrtd=_one(MRTD)),
    sev_snp=SevSnpRules(measurement=_one(MEASUREMENT)),
)


def binding(kind: str, **changes: Any) -> bytes:
    """Return the binding of the good question, with *changes*."""
    said: dict[str, Any] = {
        "kind": kind,
        "purpose": "KeyProvisioning",
        "signer_uid": UID,
        "nonce": NONCE,
        "subject_spki": SPKI,
    }
    return quote_binding(**(said | changes))


def evidence(kind: str, data: bytes | None = None, **changed: Any) -> bytes:
    """Return evidence of hardware of the test kit over *data*."""
    told = binding(kind) if data is None else data
    if kind == "sgx":
        return PLATFORM.quote(enclave(at_320=told, **changed), version=3, tee="SGX")
    if kind == "tdx":
        return PLATFORM.quote(td_report(told, **changed), version=4)
    return GENOA.report(told, **changed)


def spec(kind: str = "sgx", data: bytes | None = None, **changes: Any) -> dict[str, Any]:
    """Return the spec of a QuoteAttestation, as JSON has it."""
    good = {
        "purpose": "KeyProvisioning",
        "evidence": {
            "type": kind,
            "format": {"sgx": "sgx-dcap-v3"}.get(kind, kind),
            "data": b64encode(evidence(kind) if data is None else data),
            "certChain": [b64encode(GENOA.vek)] if kind == "sev-snp" else [],
        },
        "binding": {"scheme": "itl-qa-v1", "hash": "sha512", "nonce": b64encode(NONCE)},
        "publicKey": b64encode(SPKI),
        "signerRef": {
            "group": "attestation.itl.io",
            "kind": "HsmIssuer",
            "namespace": "apps",
            "name": "ca",
            "uid": UID,
        },
        "wrap": {"kekAlg": "rsa-3072", "oaepHash": "sha256", "keyWrap": "aes-kwp"},
        "secretRef": {"name": "bundle"},
        "expiresAt": rfc3339(AT + timedelta(hours=24)),
    }
    return good | changes


def envelope(kind: str = "sgx", data: bytes | None = None, **changes: Any) -> Envelope:
    """Return a parsed envelope, with *changes* of its fields."""
    return replace(parse_envelope(spec(kind, data)), **changes)


def case(kind: str = "sgx", **changes: Any) -> QuoteCase:
    """Return the question of an issuer, with what vouches for the hardware."""
    known: Any = GENOA.endorsements()
    if kind != "sev-snp":
        collateral = (sgx() if kind == "sgx" else tdx()).collateral
        known = Endorsements(root=ROOT, collateral=collateral)
    good: dict[str, Any] = {
        "evidence_type": kind,
        "purpose": Purpose.KEY_PROVISIONING,
        "signer_uid": UID,
        "nonce": NONCE,
        "policy": POLICY,
        "endorsements": known,
    }
    return QuoteCase(**(good | changes))


def judged(kind: str = "sgx", data: bytes | None = None, **changes: Any) -> QuoteResult:
    """Judge evidence of hardware of the test kit."""
    return appraise_quote(envelope(kind, data), case(kind, **changes), AT)
