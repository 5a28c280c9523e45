"""The certification request of a Kubernetes node, in one call each: made with a TPM, and checked without a service.

`attest_key` is what a node does, `verify_csr` what judges it; both are what agent and service use, for programs that
are neither. What is judged, and in which order: docs/evidence/node_csr.md.
"""

# Algorithms for: certified-key, proof-of-possession
from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Protocol

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from attestation.appraisal.node_csr import (
    Case,
    NodeCSRResult,
    Requested,
    Rules,
    appraise,
    malformed,
    missing,
)
from attestation.device import ExternalKey, KeyCertification, Quote, TPMKey
from attestation.endorsements import der
from attestation.errors import MalformedEvidence
from attestation.evidence import node_csr
from attestation.evidence.key_certification import csr_binding
from attestation.machines import Anchor, Machine, Status
from attestation.pki.names import NODE_USER, NODES_GROUP
from attestation.pki.requested import COMMON_NAME, ORGANIZATION
from attestation.reference import Policy
from attestation.results import Assurance
from attestation.tpm import Alg, Curve, PCRSelection, parse_public
from attestation.wire import tlv

_UTF8_STRING: Final = 0x0C
_NO_ATTRIBUTES: Final = tlv(0xA0, b"")
_VERSION: Final = tlv(der.INTEGER, b"\0")
_ECDSA_SHA256: Final = "1.2.840.10045.4.3.2"
_ECDSA_SHA384: Final = "1.2.840.10045.4.3.3"
_RSA_SHA256: Final = "1.2.840.113549.1.1.11"


class NodeTPM(Protocol):
    """What is needed of a TPM; `attestation.device.NodeTPM` has it."""

    def certify_key(self, key: TPMKey, qualifying_data: bytes) -> KeyCertification:
        """Certify a key of this TPM with the AK."""
        ...

    def certify_external(self, key: ec.EllipticCurvePrivateKey, qualifying_data: bytes) -> ExternalKey:
        """Certify a software key with the AK."""
        ...

    def sign(self, key: TPMKey, digest: bytes) -> bytes:
        """Sign with a key of this TPM."""
        ...

    def quote(self, qualifying_data: bytes, selection: PCRSelection) -> Quote:
        """Quote with the AK."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Challenge:
    """What a service gave to be answered.

    Args:
        nonce: 32 bytes.
        nonce_id: By which the service knows it; None for a bucket of time.
        selection: Which PCRs to quote; None for no quote.
    """

    nonce: bytes = field(repr=False)
    nonce_id: str | None
    selection: PCRSelection | None


def attest_key(
    tpm: NodeTPM,
    key: TPMKey | ec.EllipticCurvePrivateKey,
    *,
    hostname: str,
    machine_id: str,
    challenge: Challenge,
    event_log: bytes | None = None,
) -> bytes:
    """Return what goes into `spec.request`: a request for *key*, certified by the AK, with a quote.

    Args:
        tpm: Of this machine.
        key: Of this TPM (`NodeTPM.create_signing_key`); or a software key, for which the machine only vouches.
        hostname: Of the node, as operators gave it to the machine.
        machine_id: As the service knows this machine.
        challenge: Fresh; it is spent by one request.
        event_log: What firmware measured, at most 512 KiB; only with a quote.

    Raises:
        DeviceError: The TPM refused or failed.
        MalformedEvidence: The log is too long, or an id is none.
    """
    spki = parse_public(key.public).spki_der() if isinstance(key, TPMKey) else _spki(key)
    info = _request_info(hostname, spki)
    binding = csr_binding(challenge.nonce, info)
    certified: KeyCertification | ExternalKey
    if isinstance(key, TPMKey):
        public, certified = key.public, tpm.certify_key(key, binding)
    else:
        certified = tpm.certify_external(key, binding)
        public = certified.public
    quote = None if challenge.selection is None else tpm.quote(challenge.nonce, challenge.selection)
    return node_csr.build(
        _signed(tpm, key, info, public),
        machine_id=machine_id,
        nonce_id=challenge.nonce_id,
        public=public,
        attest=certified.certify_info,
        signature=certified.signature,
        quote=None if quote is None else quote.attest,
        quote_signature=None if quote is None else quote.signature,
        pcr_values=None if quote is None else quote.pcr_values,
        event_log=event_log,
    )


def verify_csr(data: bytes, case: Case, at: datetime) -> NodeCSRResult:
    """Judge what stands in `spec.request` of a request for a client certificate.

    Args:
        data: As it is there: the request in PEM, and behind it its evidence.
        case: What is known and expected; `offline_case` makes one without a service.
        at: The instant of the judgement, UTC.

    Raises:
        Nothing that it can express: what cannot be read is denied too.
    """
    if not node_csr.is_container(data):
        return missing(case.result_id, at)
    try:
        container = node_csr.parse(data)
    except MalformedEvidence as error:
        return malformed(case.result_id, error, at)
    return appraise(container, case, at)


def offline_case(
    *,
    result_id: str,
    machine_id: str,
    hostname: str,
    cluster_id: str,
    ek_public: bytes,
    ak_public: bytes,
    nonce: bytes,
    selection: PCRSelection,
    policy: Policy,
    requested: Requested,
    rules: Rules,
    assurance: Assurance,
    at: datetime,
) -> Case:
    """Return a case for a machine that no service keeps a record of: the caller vouches for all of it.

    Args:
        result_id: Names the judgement.
        machine_id: Of the machine that this host name belongs to.
        hostname: Of the node.
        cluster_id: Of the cluster.
        ek_public: TPM2B_PUBLIC of its EK.
        ak_public: TPM2B_PUBLIC of its AK, which the caller knows to be in the TPM of that EK.
        nonce: That the caller gave for this request; it must not count twice.
        selection: The PCRs that were asked for.
        policy: What the machine is to have booted.
        requested: What the API server says of the request.
        rules: What the cluster allows.
        assurance: How the caller knows the EK.
        at: Since when the machine counts as attested, UTC.
    """
    ek, ak = parse_public(ek_public), parse_public(ak_public)
    machine = Machine(
        machine_id=machine_id,
        version=1,
        status=Status.ATTESTED,
        role=None,
        cluster_id=cluster_id,
        anchor=Anchor(
            ek_fingerprint=ek.fingerprint(),
            ek_public=ek_public,
            ek_source="pub",
            ek_template="",
            ek_certificate=None,
            ek_chain_ok=False,
            ek_allow_listed=False,
            ak_public=ak_public,
            ak_name=ak.name,
            ak_activated_at=at,
        ),
        assurance=assurance,
        hw_uuid="",
        hw_mac="",
        hw_serial="",
        hw_product="",
        desired_role=None,
        hostname=hostname,
        assigned_ip=None,
        registered_from=None,
        registered_at=at,
        attested_at=at,
        locked_at=None,
        revoked_at=None,
        rejected_at=None,
        wipe_pending=False,
        wiped_at=None,
        config_owed_since=None,
        clock=None,
        last_verdict=None,
        last_result_at=None,
        last_policy=None,
        last_failed=None,
        last_result_key=None,
        trust_expires_at=None,
        directive_sha256=None,
    )
    return Case(
        result_id=result_id,
        cluster_id=cluster_id,
        rules=rules,
        requested=requested,
        machine=machine,
        first_certificate=True,
        nonce=nonce,
        selection=selection,
        requested_policy=policy.ref,
        policy=policy,
        node=None,
    )


def _request_info(hostname: str, spki: bytes) -> bytes:
    """Return the DER of the CertificationRequestInfo of a node (RFC 2986): what is signed, and what is certified."""
    subject = b"".join(
        tlv(der.SET, tlv(der.SEQUENCE, der.write_oid(kind) + tlv(_UTF8_STRING, text.encode("utf-8"))))
        for kind, text in ((ORGANIZATION, NODES_GROUP), (COMMON_NAME, NODE_USER + hostname))
    )
    return tlv(der.SEQUENCE, _VERSION + tlv(der.SEQUENCE, subject) + spki + _NO_ATTRIBUTES)


def _spki(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def _signed(tpm: NodeTPM, key: TPMKey | ec.EllipticCurvePrivateKey, info: bytes, public: bytes) -> bytes:
    """Return the request, DER, signed by *key*."""
    area = parse_public(public)
    algorithm: hashes.HashAlgorithm = hashes.SHA256()
    written = tlv(der.SEQUENCE, der.write_oid(_RSA_SHA256) + tlv(der.NULL, b""))
    if area.type == Alg.ECC:
        strong = area.curve != Curve.NIST_P256
        algorithm = hashes.SHA384() if strong else algorithm
        written = tlv(der.SEQUENCE, der.write_oid(_ECDSA_SHA384 if strong else _ECDSA_SHA256))
    if isinstance(key, TPMKey):
        digest = hashes.Hash(algorithm)
        digest.update(info)
        signature = tpm.sign(key, digest.finalize())
    else:
        signature = key.sign(info, ec.ECDSA(algorithm))
    return tlv(der.SEQUENCE, info + written + tlv(der.BIT_STRING, b"\0" + signature))
