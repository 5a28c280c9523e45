"""A CA of one key, its delegated responder and a leaf, of any algorithm; without a database."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, mldsa, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import AuthorityInformationAccessOID, ExtendedKeyUsageOID, NameOID

from attestation.pki.content import SigningKey, signing_hash

AT = datetime(2026, 11, 21, 12, tzinfo=UTC)
ALGORITHMS = ("ecdsa-p384", "rsa-4096", "ml-dsa-87")


@cache
def key_of(algorithm: str, name: str = "ca") -> SigningKey:
    """Return the private key called *name*: made once, RSA keys are slow."""
    if algorithm == "ecdsa-p256":
        return ec.generate_private_key(ec.SECP256R1())
    if algorithm == "ecdsa-p384":
        return ec.generate_private_key(ec.SECP384R1())
    if algorithm == "rsa-4096":
        return rsa.generate_private_key(public_exponent=65537, key_size=4096)
    return mldsa.MLDSA87PrivateKey.generate()


def name(cn: str) -> x509.Name:
    """Return the name of a CA or leaf."""
    return x509.Name(
        [
            x509.NameAttribute(NameOID.COUNTRY_NAME, "NL"),
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "ITL Usions"),
            x509.NameAttribute(NameOID.COMMON_NAME, cn),
        ]
    )


@dataclass(frozen=True)
class PKI:
    """Certificates as DER, keys as objects."""

    algorithm: str
    ca_key: SigningKey
    ca: bytes
    responder_key: SigningKey
    responder: bytes
    leaf: bytes

    @property
    def leaf_serial(self) -> int:
        """Serial number of the leaf."""
        return x509.load_der_x509_certificate(self.leaf).serial_number


def _certificate(
    subject: str,
    public: x509.CertificateBuilder,
    ca_key: SigningKey,
    *extensions: tuple[x509.ExtensionType, bool],
) -> bytes:
    builder = public.subject_name(name(subject)).issuer_name(name("Test CA"))
    own = x509.SubjectKeyIdentifier.from_public_key(builder._public_key)  # type: ignore[arg-type]
    builder = builder.add_extension(own, critical=False)
    for extension, critical in extensions:
        builder = builder.add_extension(extension, critical)
    return builder.sign(ca_key, signing_hash(ca_key)).public_bytes(Encoding.DER)


def _builder(key: SigningKey, at: datetime) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(at - timedelta(minutes=5))
        .not_valid_after(at + timedelta(days=7))
    )


@cache
def pki(algorithm: str, at: datetime = AT, url: str | None = None) -> PKI:
    """Return a CA of *algorithm*, made once per test run."""
    ca_key = key_of(algorithm)
    # Answers under RSA are signed by P-384, as the service does it: an RSA key of that size is slow to make.
    responder_algorithm = "ml-dsa-87" if algorithm == "ml-dsa-87" else "ecdsa-p384"
    responder_key = key_of(responder_algorithm, "responder")
    ski = x509.SubjectKeyIdentifier.from_public_key(ca_key.public_key())
    aki = (x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(ski), False)
    usage = dict.fromkeys(
        ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "encipher_only",
         "decipher_only", "digital_signature", "key_cert_sign", "crl_sign"),
        False,
    )  # fmt: skip
    ca = _certificate(
        "Test CA",
        _builder(ca_key, at),
        ca_key,
        (x509.BasicConstraints(ca=True, path_length=0), True),
        (x509.KeyUsage(**{**usage, "key_cert_sign": True, "crl_sign": True}), True),
    )
    responder = _certificate(
        "Test OCSP",
        _builder(responder_key, at),
        ca_key,
        (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.OCSP_SIGNING]), False),
        (x509.OCSPNoCheck(), False),
        aki,
    )
    leaf_key = key_of("ecdsa-p384", "leaf")
    pointers: list[tuple[x509.ExtensionType, bool]] = []
    if url is not None:
        location = x509.UniformResourceIdentifier(f"{url}/pki/ocsp")
        pointers = [
            (
                x509.AuthorityInformationAccess(
                    [x509.AccessDescription(AuthorityInformationAccessOID.OCSP, location)]
                ),
                False,
            )
        ]
    leaf = _certificate("leaf", _builder(leaf_key, at), ca_key, aki, *pointers)
    return PKI(algorithm, ca_key, ca, responder_key, responder, leaf)


def spki(key: SigningKey) -> bytes:
    """Return the public key, SubjectPublicKeyInfo DER."""
    return key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
