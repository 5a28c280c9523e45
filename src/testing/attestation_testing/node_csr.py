"""Certification requests of Kubernetes nodes, with their evidence, from machines whose TPM is Python."""

from __future__ import annotations

from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from attestation.device import TPMKey
from attestation.evidence import node_csr
from attestation.evidence.key_certification import csr_binding
from attestation.tpm import Alg, Attr, PCRSelection, Public, Scheme
from attestation.tpm.constants import Curve
from attestation_testing.software_keys import SoftwareNode, private_half, software_key

PCRS = PCRSelection.from_names({"sha256": [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 14]})
EXTERNAL = int(Attr.SIGN_ENCRYPT | Attr.USER_WITH_AUTH)


def node_request(
    key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey,
    hostname: str,
    *,
    organization: str = "system:nodes",
    names: list[x509.GeneralName] | None = None,
    more: list[x509.NameAttribute[Any]] | None = None,
) -> bytes:
    """Return a request, DER, as a kubelet makes it.

    Args:
        key: Signs it.
        hostname: Of the node.
        organization: Usually system:nodes.
        names: For the subjectAltName of a serving certificate.
        more: Attributes of the subject that do not belong there.
    """
    subject = [
        x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization),
        x509.NameAttribute(NameOID.COMMON_NAME, f"system:node:{hostname}"),
        *(more or []),
    ]
    builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name(subject))
    if names is not None:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return builder.sign(key, hashes.SHA256()).public_bytes(Encoding.DER)


def node_csr_container(
    node: SoftwareNode,
    *,
    hostname: str,
    machine_id: str,
    nonce: bytes,
    nonce_id: str | None,
    key: TPMKey | None = None,
    external: bool = False,
    selection: PCRSelection | None = PCRS,
    event_log: bytes | None = None,
) -> bytes:
    """Return what an honest machine puts into `spec.request`, layout itl-v1.

    Args:
        node: The machine.
        hostname: Its name.
        machine_id: As the service knows it.
        nonce: Of the challenge, 32 bytes.
        nonce_id: Of the challenge.
        key: Of `SoftwareNode.create_signing_key`; made if None.
        external: The key is a software key that was only loaded.
        selection: What the challenge asks to quote; None for no quote.
        event_log: The boot log.
    """
    if key is None:
        key = software_key(external_template()) if external else node.create_signing_key()
    request = node_request(private_half(key), hostname)
    info = x509.load_der_x509_csr(request).tbs_certrequest_bytes
    certified = node.certify_key(key, csr_binding(nonce, info), external=external)
    quote = None if selection is None else node.quote(nonce, selection)
    return node_csr.build(
        request,
        machine_id=machine_id,
        nonce_id=nonce_id,
        public=key.public,
        attest=certified.certify_info,
        signature=certified.signature,
        quote=None if quote is None else quote.attest,
        quote_signature=None if quote is None else quote.signature,
        pcr_values=None if quote is None else quote.pcr_values,
        event_log=event_log,
    )


def external_template() -> Public:
    """Return the public area, without its key, that a software key of P-256 is loaded with."""
    return Public(
        type=Alg.ECC,
        name_alg=Alg.SHA256,
        attributes=EXTERNAL,
        auth_policy=b"",
        symmetric=None,
        scheme=Scheme(alg=Alg.ECDSA, hash_alg=Alg.SHA256),
        curve=Curve.NIST_P256,
        tpmt=b"",
    )
