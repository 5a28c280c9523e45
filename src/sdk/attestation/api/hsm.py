"""CA keys that live in hardware of a Kubernetes cluster: what the controller that has them asks (HSM-AND-KUBERNETES B).

The controller holds the keys and signs. The service keeps what must not be lost with a pod: which serial numbers were
taken, what was issued and revoked, what evidence proved, which nonces are spent. Each request may be repeated: the
same one gets the same answer.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, Field

from attestation.api.base import Base64, ClusterId, Reason, Wire
from attestation.api.ca import CertificateRevokeRequest, IssuerId, Serial, Sha256
from attestation.api.node_csr import CSRName, ObjectName, ObjectUID
from attestation.api.operator import Cursor
from attestation.hsm import CertificateState, IssuerKind, JudgedType, KeyOrigin, Purpose, RequestKind, Step
from attestation.hsm import QuoteVerdict as Verdict

__all__ = [
    "HSMCertificateDetail",
    "HSMCertificatePage",
    "HSMIssued",
    "HSMIssuedCertificate",
    "HSMIssuer",
    "HSMIssuerDetail",
    "HSMIssuerPage",
    "HSMIssuerPut",
    "HSMList",
    "HSMListEntry",
    "HSMListPut",
    "HSMNonce",
    "HSMNonceRequest",
    "HSMRecorded",
    "HSMRecordedCertificate",
    "HSMRequest",
    "HSMReserve",
    "HSMReserved",
    "HSMReservedSerial",
    "HSMResponder",
    "HSMResponderPut",
    "HSMRevokeRequest",
    "QuoteAttestationDetail",
    "QuoteAttestationPage",
    "QuoteAttestationPut",
    "QuoteCheck",
    "QuoteJudge",
    "QuoteStep",
    "QuoteStepRecorded",
    "QuoteVerdict",
    "QuoteVerifier",
]

MAX_BATCH = 100
"""So many certificates are reserved or recorded at once: all that waited in the same moment."""
MAX_LIST_CHARACTERS = 4 << 20
"""Longest revocation list in base64: 55,000 entries with their reasons."""
MAX_VALID_SECONDS = 168 * 3600
"""So long an issuer may wait for its key (`validFor`)."""

Fingerprint384 = Annotated[str, Field(pattern=r"^[0-9a-f]{96}$", description="SHA-384, hex")]
Certificate = Annotated[str, Field(max_length=24_000, description="DER, standard base64 with padding")]
PolicyName = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[^\x00-\x1f\x7f]*$")]
AKName = (
    Annotated[str, Field(pattern=r"^[0-9a-f]{68}$")]
    | Annotated[str, Field(pattern=r"^[0-9a-f]{100}$")]
    | Annotated[str, Field(pattern=r"^[0-9a-f]{132}$")]
)
"""nameAlg, and a digest of SHA-256, SHA-384 or SHA-512."""
Label = Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[^\x00-\x1f\x7f]*$")]
Name = Annotated[str, Field(min_length=1, max_length=512, pattern=r"^[^\x00-\x1f\x7f]*$")]
Words = Annotated[str, Field(max_length=1024, pattern=r"^[^\x00-\x1f\x7f]*$")]


class HSMIssuerPut(Wire):
    """`PUT /api/v1/hsm/issuers/{uid}`: the CA certificate of an issuer whose key is on the controller's token.

    Another certificate under the same UID is a rotation: revocation lists and answers of the one before go on.
    """

    kind: IssuerKind
    namespace: ObjectName | None = Field(default=None, description="Of an HsmIssuer; null for the other kind")
    name: ObjectName
    certificate: Certificate = Field(description="Of the CA, DER in base64")
    chain: Annotated[tuple[Certificate, ...], Field(max_length=8)] = Field(
        default=(), description="What certifies it, nearest first; empty where it is self-signed"
    )
    key_origin: KeyOrigin
    module: Label = Field(description="Name of the PKCS#11 module in the deployment's list, or of the TPM")
    token_label: Label


class HSMIssuer(Wire):
    """An issuer as the service knows it: addresses that its certificates carry, and where its lists are."""

    issuer_id: IssuerId
    uid: ObjectUID
    crl_url: str | None = Field(description="null where the service has no public address")
    ocsp_url: str | None
    ca_url: str | None
    revision: int = Field(description="Grows with each certificate that is revoked or given up")
    crl_number: int = Field(description="Of the list that is served; 0 before the first")


class HSMRequest(Wire):
    """A certificate that is about to be signed."""

    request_uid: ObjectUID = Field(
        description="`metadata.uid` of the request; it has one serial number for good"
    )
    kind: RequestKind
    namespace: ObjectName | None = None
    name: CSRName
    spki_sha256: Sha256 = Field(description="SHA-256 of the SubjectPublicKeyInfo, DER")
    subject: Annotated[str, Field(max_length=2048)] = Field(description="RFC 4514")
    names: Annotated[tuple[Name, ...], Field(max_length=256)] = Field(
        default=(), description="Subject alternative names in words, `DNS:a.example`"
    )
    is_ca: bool = Field(default=False, strict=True)
    requester: Annotated[str, Field(min_length=1, max_length=1024)] = Field(
        description="The user who made the request, as the API server stamped it"
    )
    not_before: AwareDatetime
    not_after: AwareDatetime


class HSMReserve(Wire):
    """`POST …/certificates`: certificates that are about to be signed; each gets its serial number."""

    requests: Annotated[tuple[HSMRequest, ...], Field(min_length=1, max_length=MAX_BATCH)]


class HSMReservedSerial(Wire):
    """The serial number of one request."""

    request_uid: ObjectUID
    serial: Serial
    certificate: Certificate | None = Field(
        default=None, description="What was issued for this request before: nothing is to be signed again"
    )


class HSMReserved(Wire):
    """Serial numbers in the order of the requests."""

    reserved: list[HSMReservedSerial]


class HSMIssuedCertificate(Wire):
    """One certificate that was signed."""

    request_uid: ObjectUID
    certificate: Certificate


class HSMIssued(Wire):
    """`POST …/certificates/issued`: what was signed. Nobody is given a certificate before this is answered."""

    certificates: Annotated[tuple[HSMIssuedCertificate, ...], Field(min_length=1, max_length=MAX_BATCH)]


class HSMRecordedCertificate(Wire):
    """One certificate in the durable log."""

    request_uid: ObjectUID
    serial: Serial
    audit_entry_hash: Sha256


class HSMRecorded(Wire):
    """What was written down, in the order of the certificates."""

    recorded: list[HSMRecordedCertificate]


class HSMListEntry(Wire):
    """One certificate on a revocation list."""

    serial: Serial
    at: datetime
    reason: str = Field(description="Word of RFC 5280 §5.3.1")


class HSMList(Wire):
    """`GET …/crl`: the list to be made and signed now; `due` false where the one that is served is good."""

    due: bool
    number: int | None = Field(default=None, description="CRLNumber; null where nothing is due")
    revision: int = Field(description="What the list must know")
    entries: list[HSMListEntry] = Field(default_factory=list)
    this_update: datetime | None = None
    next_update: datetime | None = None
    again_at: datetime | None = Field(
        default=None, description="When to ask again at the latest; earlier where the revision grew"
    )
    last_end: datetime | None = Field(
        default=None,
        description="Of a key that another one of the same issuer followed: when its last certificate ends, so nobody "
        "asks about it a day later; null of a key that signs, and where a list is due first",
    )


class HSMListPut(Wire):
    """`PUT …/crl`: the list as it was begun, signed."""

    number: Annotated[int, Field(ge=1, le=(1 << 62))]
    crl: Annotated[str, Field(max_length=MAX_LIST_CHARACTERS, description="DER in base64")]


class HSMResponder(Wire):
    """`GET …/responder`: whether a key of the service is to be certified, so that it answers OCSP for the issuer."""

    due: bool
    request: Certificate | None = Field(
        default=None, description="PKCS#10, DER in base64; null where nothing is due"
    )
    serial: Serial | None = Field(
        default=None, description="The serial number that the certificate shall have"
    )
    again_at: datetime | None = None


class HSMResponderPut(Wire):
    """`PUT …/responder`: what the issuer's key certified."""

    certificate: Certificate


class HSMNonceRequest(Wire):
    """`POST /api/v1/hsm/nonces`: what evidence is asked for. What comes with the nonce is judged for this alone."""

    purpose: Purpose
    signer_uid: ObjectUID = Field(description="Of the issuer that it is for, and of no other")
    evidence_type: JudgedType
    policy: PolicyName | None = Field(
        description="What it is judged by: `name@version`, or the newest of a name; null: then nothing is decided"
    )
    valid_for_seconds: Annotated[int, Field(ge=60, le=MAX_VALID_SECONDS)] = Field(
        description="How long the QuoteAttestation waits for its bundle"
    )
    ak_name: AKName | None = Field(
        default=None, description="Of the machine whose TPM certifies: the Name of its attestation key, hex"
    )


class HSMNonce(Wire):
    """A fresh nonce: good for one bundle, one issuer and one purpose."""

    nonce: Base64 = Field(description="32 bytes")
    expires_at: datetime = Field(
        description="In whole seconds; the QuoteAttestation's `expiresAt` is no later"
    )


class QuoteAttestationPut(Wire):
    """`PUT /api/v1/hsm/quote-attestations/{uid}`: a QuoteAttestation to be judged."""

    namespace: ObjectName
    name: ObjectName
    spec: dict[str, Any] = Field(description="The envelope, with the members of the kind's `spec`")


class QuoteJudge(Wire):
    """`POST /api/v1/quote-attestations/judge`: an envelope of anybody, judged and forgotten."""

    spec: dict[str, Any] = Field(description="The envelope, with the members of the kind's `spec`")


class QuoteCheck(Wire):
    """One check."""

    name: str
    outcome: Literal["pass", "fail", "indeterminate", "note"]
    detail: str = ""


class QuoteVerifier(Wire):
    """Who judged, and when."""

    name: str
    version: str
    at: datetime


class QuoteVerdict(Wire):
    """What the evidence proves."""

    verdict: Verdict = Field(
        description="`indeterminate` delivers nothing: it is judged again until it expires"
    )
    reason: Annotated[str, Field(max_length=64)] = Field(description="Reason of the condition `Verified`")
    message: Annotated[str, Field(max_length=1024)]
    checks: list[QuoteCheck]
    claims: dict[str, Any]
    tier: str = Field(description="`hardware`, `compat`, or what the evidence is worth otherwise")
    verifier: QuoteVerifier
    evidence_digest: str | None = Field(description="Of the evidence, hex; null where there was none to read")
    bound_key_fingerprint: Fingerprint384 | None = Field(description="SHA-384 of the bound key's SPKI, hex")
    policy: str | None = Field(
        default=None, description="What it was judged by, `name@version`; null: nothing"
    )
    policy_sha256: Sha256 | None = Field(default=None, description="Of that policy's document")
    audit_entry_hash: Sha256 | None = Field(default=None, description="null where nothing was written down")


class QuoteStep(Wire):
    """`POST …/steps`: what became of the key that a QuoteAttestation asked for."""

    step: Step
    detail: Words = ""
    bundle_sha256: Sha256 | None = Field(
        default=None, description="Of `bundle.json`; of each step with a bundle"
    )
    signers: Annotated[tuple[Sha256, ...], Field(max_length=8)] = Field(
        default=(), description="SHA-256 of the SPKI of each who signed the bundle"
    )


class QuoteStepRecorded(Wire):
    """A step in the audit log. The same step again has the same entry."""

    audit_entry_hash: Sha256


class HSMIssuerDetail(HSMIssuer):
    """A CA key in hardware, as operators see it."""

    cluster_id: ClusterId
    kind: IssuerKind
    namespace: str | None
    name: str
    subject: str
    spki_sha256: Sha256
    certificate: Base64
    key_origin: KeyOrigin
    module: str
    token_label: str
    not_before: datetime
    not_after: datetime
    registered_at: datetime
    superseded_at: datetime | None = Field(description="When another key of the same issuer followed")
    crl_next_update: datetime | None = Field(description="Until when the list that is served is good")
    ocsp_until: datetime | None = Field(description="Until when OCSP is answered for it")


class HSMIssuerPage(Wire):
    """CA keys in hardware, newest first."""

    items: list[HSMIssuerDetail]
    next_cursor: Cursor


class HSMCertificateDetail(Wire):
    """One serial number of an issuer in hardware.

    `reserved` is being signed, `issued` is good, `revoked` ended for good, `void` was given to nobody.
    """

    serial: Serial
    issuer_id: IssuerId
    state: CertificateState
    request_uid: str
    kind: RequestKind
    namespace: str | None
    name: str
    subject: str
    names: list[str]
    is_ca: bool
    requester: str
    spki_sha256: Sha256
    not_before: datetime
    not_after: datetime
    reserved_at: datetime
    issued_at: datetime | None
    ended_at: datetime | None
    reason: str | None = Field(description="Word of RFC 5280 §5.3.1")
    note: str | None


class HSMCertificatePage(Wire):
    """Certificates of issuers in hardware, newest first."""

    items: list[HSMCertificateDetail]
    next_cursor: Cursor


class HSMRevokeRequest(CertificateRevokeRequest):
    """Why a certificate of an issuer in hardware ends."""

    issuer_id: IssuerId
    note: Reason | None = Field(default=None, description="In words for people")


class QuoteAttestationDetail(QuoteVerdict):
    """A QuoteAttestation, as operators see it."""

    cluster_id: ClusterId
    uid: ObjectUID
    namespace: str
    name: str
    purpose: Purpose
    signer_uid: str
    evidence_type: str
    received_at: datetime
    expires_at: datetime
    last_step: Step | None


class QuoteAttestationPage(Wire):
    """QuoteAttestations, newest first."""

    items: list[QuoteAttestationDetail]
    next_cursor: Cursor
