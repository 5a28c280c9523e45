"""What is known of CA keys on tokens, one value for each row."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from attestation.hsm import CertificateState, DelegateState, IssuerKind, KeyOrigin, RequestKind
from attestation.store.issuances import RevocationReason


@dataclass(frozen=True, slots=True, kw_only=True)
class HSMIssuer:
    """A CA key on a token.

    Args:
        issuer_id: 8 random bytes, 16 lower-case hex; one for each key.
        cluster_id: In which cluster.
        uid: `metadata.uid` of its issuer; after a rotation several keys have it.
        kind: Of the issuer.
        namespace: Of an HsmIssuer.
        name: Of the issuer.
        certificate: Of the CA, DER.
        chain: What certifies it, DER, nearest first.
        key_origin: Where the key was made.
        module: In which module it is.
        token_label: On which token.
        subject: RFC 4514.
        spki_sha256: Of its SubjectPublicKeyInfo, 64 lower-case hex.
        not_before: Of the certificate.
        not_after: Of the certificate.
        registered_at: When it was first brought here.
        superseded_at: When another key of the issuer followed it.
        revision: Grows with each certificate that is revoked or given up.
        crl_number: Of the newest list that was begun; 0 before the first.
        begun_revision: What the list that is being made must know; None where none is.
        begun_entries: How many certificates it names.
        begun_digest: SHA-256 over what it says, hex.
        begun_at: When it was begun.
    """

    issuer_id: str
    cluster_id: str
    uid: str
    kind: IssuerKind
    namespace: str | None
    name: str
    certificate: bytes
    chain: tuple[bytes, ...]
    key_origin: KeyOrigin
    module: str
    token_label: str
    subject: str
    spki_sha256: str
    not_before: datetime
    not_after: datetime
    registered_at: datetime
    superseded_at: datetime | None = None
    revision: int = 0
    crl_number: int = 0
    begun_revision: int | None = None
    begun_entries: int | None = None
    begun_digest: str | None = None
    begun_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HSMCertificate:
    """A serial number, and what became of it.

    Args:
        serial: 40 lower-case hex.
        issuer_id: Of the key.
        request_uid: `metadata.uid` of the request; one live serial number for each.
        kind: Of the request.
        namespace: Of the request, or None.
        name: Of the request.
        spki_sha256: Of the key to be certified, hex.
        subject: RFC 4514.
        names: Subject alternative names, a JSON list of words.
        is_ca: It certifies others.
        requester: Whose request it is.
        not_before: Of the certificate.
        not_after: Of the certificate.
        reserved_at: When it was taken.
        state: What became of it.
        issued_at: When it was written down.
        ended_at: When it was revoked or given up.
        reason: Word of RFC 5280 §5.3.1.
        note: In words.
        certificate: DER, where it was issued.
        audit_entry_hash: Of the entry that tells of it, hex.
    """

    serial: str
    issuer_id: str
    request_uid: str
    kind: RequestKind
    namespace: str | None
    name: str
    spki_sha256: str
    subject: str
    names: str
    is_ca: bool
    requester: str
    not_before: datetime
    not_after: datetime
    reserved_at: datetime
    state: CertificateState = "reserved"
    issued_at: datetime | None = None
    ended_at: datetime | None = None
    reason: RevocationReason | None = None
    note: str | None = None
    certificate: bytes | None = None
    audit_entry_hash: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HSMBegunCRL:
    """A list that its controller is about to make.

    Args:
        issuer_id: Of the key.
        number: The next one.
        revision: Which revision of the key it knows.
        entries: How many certificates it names.
        digest: SHA-256 over what it says, hex.
    """

    issuer_id: str
    number: int
    revision: int
    entries: int
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HSMDelegate:
    """A key of the service that answers OCSP for a key on a token, or shall.

    Args:
        issuer_id: For which.
        state: `pending` until it is certified.
        serial: Of its certificate, 40 lower-case hex.
        request: PKCS#10, DER.
        sealed_key: The private key, sealed to `request`.
        certificate: DER, where it is certified.
        made_at: When the key was made.
        not_after: Until when it may answer.
    """

    issuer_id: str
    state: DelegateState
    serial: str
    request: bytes
    sealed_key: bytes = field(repr=False)
    certificate: bytes | None = None
    made_at: datetime
    not_after: datetime | None = None
