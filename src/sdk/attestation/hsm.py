"""Words of CA keys in hardware (HSM-AND-KUBERNETES §§10-14), each once: in rows, on wires, in Kubernetes objects.

What a type checker reads is a `Literal`; what a program reads of it is made of that.
"""

# Algorithms for: cluster-ca-key
from __future__ import annotations

from typing import Final, Literal, get_args

IssuerKind = Literal["HsmIssuer", "HsmClusterIssuer"]
"""Whose CA key it is: of a namespace, or of the cluster."""

RequestKind = Literal["CertificateRequest", "CertificateSigningRequest", "HsmCertificate", IssuerKind]
"""Who asks for a certificate; an issuer does when one of its keys certifies the next."""

KeyOrigin = Literal["generated", "provisioned", "tpm", "file"]
"""Where a key was made: inside its token; outside, and brought into it; in a TPM; in software."""

KeyType = Literal["ecdsa-p256", "ecdsa-p384", "rsa-4096", "ml-dsa-87"]
"""Algorithms of keys that are made. A CA has P-256 in a TPM alone: not every TPM has P-384."""

CertificateState = Literal["reserved", "issued", "revoked", "void"]
"""Of a serial number: taken, signed and written down, ended, or given to nobody."""

DelegateState = Literal["pending", "active"]
"""Of a key that answers OCSP: to be certified, or certified."""

Purpose = Literal["KeyProvisioning", "CsrAttestation"]
"""What evidence is for."""

_Proof = Literal["sgx", "tdx", "sev-snp", "tpm-certify", "tpm-quote", "hsm-x509"]
EvidenceType = Literal[_Proof, "null"]
"""How hardware proves itself to an issuer; `null` is no proof."""
JudgedType = Literal[_Proof, "tcs-kmra-v1"]
"""What is judged; `tcs-kmra-v1` is read where somebody else made it, and no issuer asks for it."""

QuoteVerdict = Literal["verified", "failed", "indeterminate"]

Step = Literal["accepted", "bundle-accepted", "bundle-rejected", "loaded", "failed", "expired"]
"""What became of the key that a QuoteAttestation asked for."""

OAEPHash = Literal["sha256", "sha1"]
"""SHA-1 only where it is named: some tokens know no other (SoftHSM 2.6.1). OAEP needs no collision resistance (§5)."""
OAEP_HASHES: Final[tuple[OAEPHash, ...]] = get_args(OAEPHash)
