"""Keys of the cluster: the CA of its certificates, and what signs tokens of ServiceAccounts."""

from __future__ import annotations

import base64
import hashlib
import ipaddress
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from attestation_testing.kubernetes.access import User

_DAY: Final = timedelta(days=1)
_COORDINATE_BYTES: Final = 32
_LARGEST_PATH: Final = 0


def private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Return PKCS#8 PEM."""
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its key, both PEM."""

    certificate: bytes
    key: bytes


class ClusterCA:
    """The CA that the server's certificate and those of clients are from.

    Args:
        now: Tells the time.
    """

    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now = now
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "kubernetes")])
        at = now()
        self._certificate = (
            x509.CertificateBuilder(
                self._name, self._name, self._key.public_key(), x509.random_serial_number()
            )
            .not_valid_before(at - _DAY)
            .not_valid_after(at + 3650 * _DAY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=_LARGEST_PATH), critical=True)
            .add_extension(_usage(signs_certificates=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        self.pem = self._certificate.public_bytes(Encoding.PEM)

    def issue(
        self,
        public_key: Any,
        subject: x509.Name,
        *,
        usages: list[x509.ObjectIdentifier],
        names: list[x509.GeneralName] | None = None,
        lifetime: timedelta = _DAY,
    ) -> bytes:
        """Return a certificate, PEM.

        Args:
            public_key: Of the subject.
            subject: Its name.
            usages: Extended key usages.
            names: SubjectAltName.
            lifetime: From five minutes ago.
        """
        at = self._now()
        builder = (
            x509.CertificateBuilder(self._name, subject, public_key, x509.random_serial_number())
            .not_valid_before(at - timedelta(minutes=5))
            .not_valid_after(at + lifetime)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False
            )
        )
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return builder.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM)

    def server(self) -> Pair:
        """Return what a server on loopback shows."""
        key = ec.generate_private_key(ec.SECP256R1())
        names: list[x509.GeneralName] = [
            x509.DNSName("localhost"),
            x509.DNSName("kubernetes.default.svc"),
            x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
        ]
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "kube-apiserver")])
        pem = self.issue(key.public_key(), subject, usages=[ExtendedKeyUsageOID.SERVER_AUTH], names=names)
        return Pair(pem, private_pem(key))

    def client(self, name: str, groups: tuple[str, ...] = ()) -> Pair:
        """Return what a client shows who is *name* in *groups*."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name(
            [x509.NameAttribute(NameOID.ORGANIZATION_NAME, each) for each in groups]
            + [x509.NameAttribute(NameOID.COMMON_NAME, name)]
        )
        pem = self.issue(key.public_key(), subject, usages=[ExtendedKeyUsageOID.CLIENT_AUTH])
        return Pair(pem, private_pem(key))


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def user_of(certificate: bytes) -> User | None:
    """Return who shows a certificate, DER: its common name in the groups that its organizations name."""
    subject = x509.load_der_x509_certificate(certificate).subject
    names = [str(each.value) for each in subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    if not names:
        return None
    groups = tuple(str(each.value) for each in subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME))
    return User(names[-1], groups).authenticated()


# Tokens of ServiceAccounts


def _base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _from_base64url(said: str) -> bytes:
    return base64.urlsafe_b64decode(said + "=" * (-len(said) % 4))


class TokenSigner:
    """Signs JSON Web Tokens with ES256 (RFC 7518, 3.4), and reads its own.

    Args:
        issuer: What `iss` says.
    """

    def __init__(self, issuer: str) -> None:
        self.issuer = issuer
        self._key = ec.generate_private_key(ec.SECP256R1())
        spki = self._key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        self.key_id = _base64url(hashlib.sha256(spki).digest())

    def jwks(self) -> dict[str, Any]:
        """Return the public key as RFC 7517 has it."""
        numbers = self._key.public_key().public_numbers()
        key = {
            "use": "sig",
            "kty": "EC",
            "kid": self.key_id,
            "crv": "P-256",
            "alg": "ES256",
            "x": _base64url(numbers.x.to_bytes(_COORDINATE_BYTES)),
            "y": _base64url(numbers.y.to_bytes(_COORDINATE_BYTES)),
        }
        return {"keys": [key]}

    def sign(self, claims: Mapping[str, Any]) -> str:
        """Return the token."""
        parts = ({"alg": "ES256", "kid": self.key_id}, claims)
        said = ".".join(_base64url(json.dumps(each, separators=(",", ":")).encode()) for each in parts)
        r, s = decode_dss_signature(self._key.sign(said.encode(), ec.ECDSA(hashes.SHA256())))
        return f"{said}.{_base64url(r.to_bytes(_COORDINATE_BYTES) + s.to_bytes(_COORDINATE_BYTES))}"

    def read(self, token: str) -> dict[str, Any] | None:
        """Return the claims of a token that this key signed, whatever they are; None for any other."""
        try:
            head, body, said = token.split(".")
            signature = _from_base64url(said)
            claims = json.loads(_from_base64url(body))
            if len(signature) != 2 * _COORDINATE_BYTES:
                return None
            r, s = (int.from_bytes(signature[at : at + _COORDINATE_BYTES]) for at in (0, _COORDINATE_BYTES))
            self._key.public_key().verify(
                encode_dss_signature(r, s), f"{head}.{body}".encode(), ec.ECDSA(hashes.SHA256())
            )
        except (ValueError, InvalidSignature):
            return None
        return claims if isinstance(claims, dict) else None


def instant(at: datetime) -> int:
    """Return seconds since 1970."""
    return int(at.astimezone(UTC).timestamp())
