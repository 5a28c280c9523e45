"""CAs that are none of ours, and what users of a cluster ask of them."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from functools import cache
from typing import Any, Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from attestation.pki.content import Algorithm, SigningKey, serial_of
from attestation.pki.external import IssuingCA, make_ca, read_ca
from attestation.pki.leaf import LeafAsked, LeafContent, LeafPolicy, judge_leaf
from attestation.pki.leaf_names import NameRules
from attestation.pki.usages import USAGES
from tests.unit.pki.certificate_kit import AT, leaf_key, spki_of
from tests.unit.pki.revocation_kit import key_of

ANY: Final = NameRules()
POLICY: Final = LeafPolicy(
    max_duration=timedelta(days=90),
    usages=frozenset({"digital signature", "key encipherment", "server auth", "client auth"}),
    allow_ca=False,
    max_path_length=0,
    names=ANY,
)
EVERYTHING: Final = replace(POLICY, usages=frozenset(USAGES), allow_ca=True, max_path_length=3)
EXAMPLE: Final = NameRules(
    dns_names=("example.com",), ip_networks=("10.0.0.0/8",), uris=(), emails=("example.com",)
)
SERIAL: Final = serial_of(bytes(range(1, 21)))
SERVER: Final = ("digital signature", "server auth")


def named(*pairs: tuple[x509.ObjectIdentifier, str]) -> x509.Name:
    """Return a name."""
    return x509.Name([x509.NameAttribute(oid, text) for oid, text in pairs])


SUBJECT: Final = named((NameOID.ORGANIZATION_NAME, "Team Blue"), (NameOID.COMMON_NAME, "shop.example.com"))
CA_NAME: Final = named((NameOID.COMMON_NAME, "Cluster CA"))


@cache
def hsm_ca(algorithm: Algorithm = "ecdsa-p384", **how: Any) -> tuple[IssuingCA, SigningKey]:
    """Return a CA of a cluster and its key."""
    key = key_of(algorithm, "hsm")
    given: dict[str, Any] = {
        "duration": timedelta(days=365),
        "path_length": 1,
        "at": AT,
        "subject": CA_NAME,
    } | how
    return read_ca(make_ca(spki=spki_of(key), key=key, serial=SERIAL, **given), at=AT), key


def csr(
    *extensions: x509.ExtensionType | tuple[x509.ExtensionType, bool],
    subject: x509.Name = SUBJECT,
    key: Any = None,
) -> bytes:
    """Return a request, DER."""
    key = key or leaf_key()
    builder = x509.CertificateSigningRequestBuilder().subject_name(subject)
    for one in extensions:
        extension, critical = one if isinstance(one, tuple) else (one, False)
        builder = builder.add_extension(extension, critical)
    hash_ = hashes.SHA256() if isinstance(key, ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) else None
    return builder.sign(key, hash_).public_bytes(Encoding.DER)


def asked(request: bytes | None = None, **changes: Any) -> LeafAsked:
    """Return what a user asks for."""
    given: dict[str, Any] = {"request": request or csr(), "usages": SERVER, "is_ca": False, "duration": None}
    return LeafAsked(**(given | changes))


def judged(request: bytes | None = None, policy: LeafPolicy = EVERYTHING, **changes: Any) -> LeafContent:
    """Return what the certificate will say."""
    return judge_leaf(asked(request, **changes), policy, ca=hsm_ca()[0], at=AT)
