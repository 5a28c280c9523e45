"""Keys of a machine whose TPM is Python: made, certified by its AK, put into requests for certificates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from attestation.envelope import WrappedKey
from attestation.evidence import key_certification
from attestation.tpm import (
    Alg,
    Attest,
    CertifyInfo,
    Curve,
    Hierarchy,
    Public,
    Scheme,
    qualified_name_of_child,
    qualified_name_of_primary,
)
from attestation.wire import b64decode, b64encode, sized, u16
from tests.unit.service.node import SoftwareNode, rsa_key, sealed_public

RESIDENT = 0x00040072
"""fixedTPM, fixedParent, sensitiveDataOrigin, userWithAuth, sign."""
RESIDENT_DECRYPT = 0x00020072
EXTERNAL = 0x00040040
STORAGE_NAME = b"\x00\x0b" + bytes(range(32))


@dataclass(frozen=True, slots=True)
class NodeKey:
    """A key and its public area.

    Args:
        private: The key.
        public: What a TPM says of it.
        qualified_name: Where it stands; its bare Name for a key that was only loaded.
    """

    private: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey
    public: Public
    qualified_name: bytes

    def csr(self, **attributes: Any) -> str:
        """Return a request signed by it, PEM; it claims to be an operator."""
        name = x509.Name(
            [
                x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, attributes.get("unit", "operator")),
                x509.NameAttribute(NameOID.COMMON_NAME, "root"),
            ]
        )
        builder = x509.CertificateSigningRequestBuilder().subject_name(name)
        request = builder.sign(self.private, hashes.SHA384())
        return request.public_bytes(Encoding.PEM).decode()


def ecc_key(
    attributes: int = RESIDENT, *, external: bool = False, curve: ec.EllipticCurve | None = None
) -> NodeKey:
    """Make a key, of P-384 unless told otherwise."""
    private = ec.generate_private_key(curve or ec.SECP384R1())
    numbers, size = private.public_key().public_numbers(), private.key_size // 8
    public = sealed_public(
        Public(
            type=Alg.ECC,
            name_alg=Alg.SHA256,
            attributes=attributes,
            auth_policy=b"",
            symmetric=None,
            scheme=None,
            curve=Curve.NIST_P384 if size == 48 else Curve.NIST_P256,
            x=numbers.x.to_bytes(size),
            y=numbers.y.to_bytes(size),
            tpmt=b"",
        )
    )
    return NodeKey(private, public, public.name if external else _inside(public))


@lru_cache(maxsize=4)
def decryption_key(attributes: int = RESIDENT_DECRYPT) -> NodeKey:
    """Make the RSA-2048 key that a key made elsewhere can be wrapped to."""
    private = rsa_key()
    public = sealed_public(
        Public(
            type=Alg.RSA,
            name_alg=Alg.SHA256,
            attributes=attributes,
            auth_policy=b"",
            symmetric=None,
            scheme=Scheme(alg=Alg.OAEP, hash_alg=Alg.SHA256),
            key_bits=2048,
            modulus=private.public_key().public_numbers().n.to_bytes(256),
            tpmt=b"",
        )
    )
    return NodeKey(private, public, _inside(public))


def _inside(public: Public) -> bytes:
    storage = qualified_name_of_primary(Hierarchy.OWNER, STORAGE_NAME)
    return qualified_name_of_child(storage, public.name)


def certify(node: SoftwareNode, key: NodeKey, binding: bytes, **changes: Any) -> dict[str, str]:
    """TPM2_Certify of *key* by the AK of *node*, as members of a request; `changes` replaces parts of the statement."""
    members: dict[str, Any] = {
        "magic": 0xFF544347,
        "type": 0x8017,
        "qualified_signer": qualified_name_of_primary(Hierarchy.ENDORSEMENT, node.ak.name),
        "extra_data": binding,
        "clock_ms": node.clock_ms,
        "reset_count": node.reset_count,
        "restart_count": 0,
        "safe": True,
        "firmware_version": node.firmware_version,
        "attested": CertifyInfo(key.public.name, key.qualified_name),
    }
    statement = Attest(**(members | changes)).serialise()
    r, s = decode_dss_signature(node._ak.sign(statement, ec.ECDSA(hashes.SHA256())))
    signature = u16(Alg.ECDSA) + u16(Alg.SHA256) + sized(r.to_bytes(32)) + sized(s.to_bytes(32))
    return {
        "key_public": b64encode(key.public.tpm2b()),
        "certify_info": b64encode(statement),
        "certify_signature": b64encode(signature),
    }


def csr_binding(challenge: Mapping[str, Any], csr: str) -> bytes:
    """Return what the AK signs for *csr* and *challenge*."""
    request = x509.load_pem_x509_csr(csr.encode())
    return key_certification.csr_binding(
        b64decode(challenge["nonce"], "nonce"), request.tbs_certrequest_bytes
    )


def cert_request(
    node: SoftwareNode, challenge: Mapping[str, Any], key: NodeKey, **members: Any
) -> dict[str, Any]:
    """Return the body of a request for a certificate of *key* that answers *challenge*."""
    csr = key.csr()
    return {
        "nonce_id": challenge["nonce_id"],
        "csr_pem": csr,
        **certify(node, key, csr_binding(challenge, csr)),
    } | members


def server_key_request(
    node: SoftwareNode, challenge: Mapping[str, Any], key: NodeKey, **members: Any
) -> dict[str, Any]:
    """Return the body of a request for a key that is made by the service and wrapped to *key*."""
    binding = key_certification.key_binding(b64decode(challenge["nonce"], "nonce"), key.public.spki_der())
    return {"nonce_id": challenge["nonce_id"], **certify(node, key, binding)} | members


def sign_nonce(key: NodeKey, nonce: str) -> str:
    """Sign the text of a nonce as enrolment wants it, base64."""
    if isinstance(key.private, rsa.RSAPrivateKey):
        return b64encode(key.private.sign(nonce.encode(), padding.PKCS1v15(), hashes.SHA256()))
    return b64encode(key.private.sign(nonce.encode(), ec.ECDSA(hashes.SHA384())))


def open_wrapped(key: NodeKey, wrapped: WrappedKey) -> bytes:
    """TPM2_RSA_Decrypt with OAEP and SHA-256, in Python."""
    assert isinstance(key.private, rsa.RSAPrivateKey)
    oaep = padding.OAEP(padding.MGF1(hashes.SHA256()), hashes.SHA256(), None)
    return key.private.decrypt(wrapped.wrapped_key, oaep)
