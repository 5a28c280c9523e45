"""CAs of every algorithm, content of every profile, and certificates taken apart and put together wrongly."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cache
from ipaddress import ip_address
from typing import Any, Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, mldsa, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import NameOID

from attestation.endorsements import der
from attestation.pki.content import (
    Algorithm,
    CertificateContent,
    SigningKey,
    key_identifier,
    make_certificate,
    serial_of,
)
from attestation.pki.names import (
    Purpose,
    ca_subject,
    machine_subject,
    node_subject,
    operator_subject,
    responder_subject,
)
from attestation.pki.profiles import (
    ANY_POLICY,
    BACKDATE,
    EK_URI,
    PROFILES,
    Pointer,
    ProfileName,
    assurance_policies,
)
from tests.unit.pki.revocation_kit import key_of

AT: Final = datetime(2026, 11, 21, 12, tzinfo=UTC)
ALGORITHMS: Final[tuple[Algorithm, ...]] = ("ecdsa-p384", "rsa-4096", "ml-dsa-87")
LEAVES: Final = (
    ProfileName.KUBERNETES_NODE,
    ProfileName.NODE_CLIENT,
    ProfileName.NODE_SERVER,
    ProfileName.OPERATOR,
    ProfileName.OCSP_SIGNING,
)
ARC: Final = "1.3.6.1.4.1.99999.7"
EK: Final = "5f" * 48
ADDRESS: Final = "http://pki.example.com/pki"
MACHINE: Final = "0b5e8c1e-6f0c-4a2f-9d57-0d2b2f8d3c11"


def spki_of(key: Any) -> bytes:
    """Return the SubjectPublicKeyInfo of a private key, DER."""
    found: bytes = key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return found


@cache
def leaf_key(kind: str = "ecdsa-p256") -> Any:
    """Return a private key that a certificate is for."""
    if kind.startswith("rsa-"):
        return rsa.generate_private_key(65537, int(kind[4:]))
    if kind == "ed25519":
        return ed25519.Ed25519PrivateKey.generate()
    if kind == "ml-dsa-65":
        return mldsa.MLDSA65PrivateKey.generate()
    curves: dict[str, ec.EllipticCurve] = {
        "ecdsa-p256": ec.SECP256R1(),
        "ecdsa-p384": ec.SECP384R1(),
        "ecdsa-p521": ec.SECP521R1(),
    }
    return ec.generate_private_key(curves[kind])


@dataclass(frozen=True)
class CA:
    """A CA key with its certificate.

    Args:
        key: Private key.
        content: What its certificate says.
        certificate: By itself, DER.
    """

    key: SigningKey
    content: CertificateContent
    certificate: bytes

    @property
    def key_id(self) -> bytes:
        """Its SubjectKeyIdentifier."""
        return key_identifier(self.content.spki)

    def issue(self, content: CertificateContent) -> bytes:
        """Sign *content*."""
        return make_certificate(content, self.key)

    def content_of(self, profile: ProfileName, **changes: Any) -> CertificateContent:
        """Return what a good certificate of *profile* under this CA says, with *changes*."""
        pointers = PROFILES[profile].pointers
        common = {"country": "NL", "organization": "ITL Usions"}
        good: dict[str, Any] = {
            "profile": profile,
            "serial": serial_of(bytes(range(1, 21))),
            "issuer_subject": self.content.subject,
            "spki": spki_of(leaf_key()),
            "not_before": AT - BACKDATE,
            "not_after": AT + timedelta(days=1),
            "authority_key_id": self.key_id,
            "crl_url": f"{ADDRESS}/crl/1" if Pointer.CRL in pointers else None,
            "ocsp_url": f"{ADDRESS}/ocsp" if Pointer.OCSP in pointers else None,
            "ca_url": f"{ADDRESS}/ca/1" if Pointer.CA in pointers else None,
        }
        match profile:
            case ProfileName.NODE_CLIENT | ProfileName.NODE_SERVER:
                good["subject"] = machine_subject(role="controlplane", machine_id=MACHINE, **common)
                good["uris"] = (EK_URI + EK,)
                good["policies"] = assurance_policies(ARC, assurance=3, key_tier=4)
                if profile is ProfileName.NODE_SERVER:
                    good["dns_names"] = ("cp1.example.com",)
                    good["ip_addresses"] = (ip_address("192.0.2.7"), ip_address("2001:db8::7"))
            case ProfileName.KUBERNETES_NODE:
                good["subject"] = node_subject("w-1.example.com")
                good["policies"] = assurance_policies(ARC, assurance=3, key_tier=4)
            case ProfileName.OPERATOR:
                good["subject"] = operator_subject(name="Ada Lovelace", duty="operator", **common)
            case ProfileName.OCSP_SIGNING:
                good["subject"] = responder_subject(self.content.subject, "1")
            case ProfileName.CA_CROSS:
                other = ca_of("ecdsa-p384", "other")
                good["subject"], good["spki"] = other.content.subject, other.content.spki
                good["policies"] = (ANY_POLICY,)
        return CertificateContent(**(good | changes))


@cache
def ca_of(algorithm: Algorithm, name: str = "first") -> CA:
    """Return the CA called *name*; made once."""
    key = key_of(algorithm, "ca" if name == "first" else name)
    return ca_with(key, name)


@cache
def ca_for(profile: ProfileName, algorithm: Algorithm = "ecdsa-p384") -> CA:
    """Return the CA that signs *profile*: that of operators, or that of machines."""
    if profile is not ProfileName.OPERATOR:
        return ca_of(algorithm)
    return ca_with(key_of(algorithm, "operators"), "first", purpose="operator")


def ca_with(key: SigningKey, name: str, *, purpose: Purpose = "machine", **changes: Any) -> CA:
    """Return a CA with *key*."""
    subject = ca_subject(
        purpose, country="NL", organization="ITL Usions", issuer_id=None if name == "first" else name
    )
    spki = spki_of(key)
    content = CertificateContent(
        profile=ProfileName.CA,
        serial=serial_of(bytes(range(101, 121))),
        subject=subject,
        issuer_subject=subject,
        spki=spki,
        not_before=AT - BACKDATE,
        not_after=AT + timedelta(days=3650),
        authority_key_id=key_identifier(spki),
    )
    content = replace(content, **changes)
    return CA(key, content, make_certificate(content, key))


# ---------------------------------------------------------------- requests


def request_of(key: Any, hash_: Any = "usual", subject: str = "whoever", **how: Any) -> bytes:
    """Return a request, DER, with attributes that nobody should obey."""
    if hash_ == "usual":
        hash_ = hashes.SHA256() if isinstance(key, (ec.EllipticCurvePrivateKey, rsa.RSAPrivateKey)) else None
    builder = (
        x509.CertificateSigningRequestBuilder()
        .subject_name(
            x509.Name(
                [
                    x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, "operator"),
                    x509.NameAttribute(NameOID.COMMON_NAME, subject),
                ]
            )
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    )
    return builder.sign(key, hash_, **how).public_bytes(Encoding.DER)


def pem_of(request: bytes) -> bytes:
    """Return a request in PEM."""
    return x509.load_der_x509_csr(request).public_bytes(Encoding.PEM)


# ---------------------------------------------------------------- taken apart

Parts = dict[int, bytes]
Extensions = list[tuple[str, bytes, bytes]]
"""OID, the DER of `critical` or nothing, content of the OCTET STRING."""


def rebuild(
    certificate: bytes,
    parts: Parts | None = None,
    extensions: Callable[[Extensions], Extensions | None] | None = None,
    *,
    algorithm: bytes | None = None,
    behind: bytes = b"",
) -> bytes:
    """Return *certificate* with some of the eight parts of its signed part replaced; the signature stays.

    Args:
        certificate: DER.
        parts: By their index, headers included.
        extensions: Changes the extensions, in place or by what it returns.
        algorithm: AlgorithmIdentifier behind the signed part.
        behind: Bytes behind the certificate.
    """
    outer = der.element(certificate, 0, len(certificate))
    tbs, behind_tbs, value = der.elements(certificate, outer.start, outer.stop)
    cut = [certificate[e.at : e.stop] for e in der.elements(certificate, tbs.start, tbs.stop)]
    for i, part in (parts or {}).items():
        cut[i] = part
    if extensions is not None:
        listed = extensions_of(cut[7])
        listed = extensions(listed) or listed
        cut[7] = der.write(0xA3, der.write(der.SEQUENCE, b"".join(_extension(*e) for e in listed)))
    inner = algorithm if algorithm is not None else certificate[behind_tbs.at : behind_tbs.stop]
    whole = der.write(der.SEQUENCE, b"".join(cut)) + inner + certificate[value.at : value.stop]
    return der.write(der.SEQUENCE, whole) + behind


def _extension(oid: str, critical: bytes, value: bytes) -> bytes:
    return der.write(der.SEQUENCE, der.write_oid(oid) + critical + der.write(der.OCTET_STRING, value))


def extensions_of(part: bytes) -> Extensions:
    """Return the extensions in the last part of a signed part."""
    explicit = der.element(part, 0, len(part))
    listed = der.element(part, explicit.start, explicit.stop)
    found = []
    for one in der.elements(part, listed.start, listed.stop):
        name, *critical, value = der.elements(part, one.start, one.stop)
        word = part[critical[0].at : critical[0].stop] if critical else b""
        found.append((der.oid(part, name), word, part[value.start : value.stop]))
    return found


def with_extension(oid: str, value: bytes, critical: bytes = b"") -> Callable[[Extensions], Extensions]:
    """Return a change that puts an extension in the place of that of its kind, or at the end."""

    def change(listed: Extensions) -> Extensions:
        kinds = [e[0] for e in listed]
        if oid in kinds:
            listed[kinds.index(oid)] = (oid, critical, value)
        else:
            listed.append((oid, critical, value))
        return listed

    return change


def without_extension(oid: str) -> Callable[[Extensions], Extensions]:
    """Return a change that leaves an extension out."""
    return lambda listed: [e for e in listed if e[0] != oid]
