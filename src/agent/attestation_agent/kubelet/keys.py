"""The key of a node: one of its TPM, or one in software that the TPM certifies.

resident    made in the TPM, never leaves it; kept as TSS2 PRIVATE KEY, which nginx opens through OpenSSL
external    P-256 in software, for kubelet and exec plugins, which read key files; loaded into the TPM for the
            moment in which it is certified (mode `certified-external`)
"""

# Algorithms for: certified-key, proof-of-possession
from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from attestation.device import ExternalKey, KeyCertification, KeyType, Quote, TPMKey
from attestation.errors import MalformedEvidence, TPMResponseError
from attestation.pki.names import NODE_USER, NODES_GROUP
from attestation.tpm import PCRSelection, parse_public
from attestation.tpm.key_file import encode_key_file, parse_key_file
from attestation_agent.tpm_keys import proves_key, request_for

_PEM: Final = serialization.Encoding.PEM
_PKCS8: Final = serialization.PrivateFormat.PKCS8


class NodeKeyTPM(Protocol):
    """What a node's certificate needs of `attestation.device.NodeTPM`."""

    def create_signing_key(self, kind: KeyType | None = None) -> TPMKey:
        """Make a key that never leaves this TPM."""
        ...

    def certify_key(self, key: TPMKey, qualifying_data: bytes) -> KeyCertification:
        """Certify a key of this TPM with the AK."""
        ...

    def certify_external(self, key: ec.EllipticCurvePrivateKey, qualifying_data: bytes) -> ExternalKey:
        """Certify a software key with the AK."""
        ...

    def sign(self, key: TPMKey, digest: bytes, *, pss: bool = False) -> bytes:
        """Sign a digest with a key of this TPM."""
        ...

    def quote(self, qualifying_data: bytes, selection: PCRSelection) -> Quote:
        """Quote PCRs."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Certified:
    """What the AK says of a key.

    Args:
        public: TPM2B_PUBLIC.
        attest: TPMS_ATTEST of TPM2_Certify.
        signature: TPMT_SIGNATURE.
    """

    public: bytes
    attest: bytes
    signature: bytes


class NodeKey(Protocol):
    """A key for a node's certificate."""

    @property
    def spki(self) -> bytes:
        """SubjectPublicKeyInfo, DER."""
        ...

    def request(self, tpm: NodeKeyTPM, node_name: str) -> x509.CertificateSigningRequest:
        """Return a PKCS#10 request with the subject of this node, signed by the key."""
        ...

    def certify(self, tpm: NodeKeyTPM, qualifying_data: bytes) -> Certified:
        """Have the AK certify it."""
        ...

    def file(self) -> bytes:
        """Return the key as it is kept, PEM."""
        ...


@dataclass(frozen=True, slots=True)
class ResidentKey:
    """A key of the TPM."""

    key: TPMKey

    @classmethod
    def make(cls, tpm: NodeKeyTPM) -> ResidentKey:
        """Make one: P-256, which each TPM has and each client of Kubernetes knows."""
        return cls(tpm.create_signing_key(KeyType.ECC_P256))

    @classmethod
    def read(cls, data: bytes, tpm: NodeKeyTPM) -> ResidentKey | None:
        """Return the key in a file; None where it is none of this TPM.

        Raises:
            DeviceError: The TPM cannot say.
        """
        try:
            key = parse_key_file(data)
            return cls(key) if proves_key(tpm, key, parse_public(key.public).key()) else None
        except MalformedEvidence:
            return None
        except TPMResponseError as e:
            # Format one (bit 7): about the key itself (Part 2, 6.6.2), as after TPM2_Clear; else the TPM is busy.
            if e.response_code & 0x80:
                return None
            raise

    @property
    def spki(self) -> bytes:
        """SubjectPublicKeyInfo, DER."""
        return parse_public(self.key.public).spki_der()

    def request(self, tpm: NodeKeyTPM, node_name: str) -> x509.CertificateSigningRequest:
        """Return a request, signed in the TPM."""
        return request_for(tpm, self.key, subject_of(node_name))

    def certify(self, tpm: NodeKeyTPM, qualifying_data: bytes) -> Certified:
        """Have the AK certify it: TPM2_Load, TPM2_Certify."""
        made = tpm.certify_key(self.key, qualifying_data)
        return Certified(public=self.key.public, attest=made.certify_info, signature=made.signature)

    def file(self) -> bytes:
        """Return it as TSS2 PRIVATE KEY: of use to this TPM alone."""
        return encode_key_file(self.key)


@dataclass(frozen=True, slots=True)
class ExternalSoftwareKey:
    """A key in software."""

    key: ec.EllipticCurvePrivateKey

    @classmethod
    def make(cls) -> ExternalSoftwareKey:
        """Make one on P-256."""
        return cls(ec.generate_private_key(ec.SECP256R1()))

    @classmethod
    def read(cls, data: bytes) -> ExternalSoftwareKey | None:
        """Return the key in a file; None where it is none."""
        try:
            key = serialization.load_pem_private_key(data, password=None)
        except (ValueError, TypeError):
            return None
        return cls(key) if isinstance(key, ec.EllipticCurvePrivateKey) else None

    @property
    def spki(self) -> bytes:
        """SubjectPublicKeyInfo, DER."""
        return spki_of(self.key.public_key())

    def request(self, tpm: NodeKeyTPM, node_name: str) -> x509.CertificateSigningRequest:  # noqa: ARG002 -- only a resident key needs its TPM to sign
        """Return a request, signed here."""
        builder = x509.CertificateSigningRequestBuilder().subject_name(subject_of(node_name))
        return builder.sign(self.key, hashes.SHA256())

    def certify(self, tpm: NodeKeyTPM, qualifying_data: bytes) -> Certified:
        """Have the AK certify it: TPM2_LoadExternal, TPM2_Certify."""
        made = tpm.certify_external(self.key, qualifying_data)
        return Certified(public=made.public, attest=made.certify_info, signature=made.signature)

    def file(self) -> bytes:
        """Return it as PKCS#8, not encrypted: whoever reads it is this node until the certificate ends."""
        return self.key.private_bytes(_PEM, _PKCS8, serialization.NoEncryption())


def spki_of_key_file(data: bytes, *, resident: bool) -> bytes | None:
    """Return the public key of a key file, SubjectPublicKeyInfo in DER; None where it is none. Asks no TPM."""
    if not resident:
        found = ExternalSoftwareKey.read(data)
        return None if found is None else found.spki
    try:
        return ResidentKey(parse_key_file(data)).spki
    except MalformedEvidence:
        return None


def subject_of(node_name: str) -> x509.Name:
    """Return the one subject that a kubelet's certificate may have."""
    return x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, NODES_GROUP),
            x509.NameAttribute(NameOID.COMMON_NAME, NODE_USER + node_name),
        ]
    )


def spki_of(public: object) -> bytes:
    """Return a public key as SubjectPublicKeyInfo, DER."""
    assert isinstance(public, ec.EllipticCurvePublicKey)
    return public.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
