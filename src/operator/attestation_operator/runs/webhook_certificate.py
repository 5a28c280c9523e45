"""The certificate of the webhook, made by itself: who follows whom, and how it becomes known to the API server.

Three stand in a Secret: the one that serves, the one after it, and the one before it. The API server trusts all three
(`caBundle`), so a replica that has not looked yet, and one that has, are both believed; the next one was trusted for
weeks before it serves. Each signs itself and nothing else: there is no key of a CA that could be stolen.
"""

# Algorithms for: tls-certificate
from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from attestation_operator.objects import Raw

LIFETIME: Final = timedelta(days=60)
SERVES: Final = timedelta(days=20)
"""How long one serves; it is valid for thrice that: trusted before, serving, trusted after."""
_EARLIER: Final = timedelta(hours=1)
"""How much earlier than now it begins, for an API server whose clock is behind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A certificate and its key, PEM."""

    certificate: bytes
    key: bytes

    @property
    def begins(self) -> datetime:
        """From when on it is valid."""
        return x509.load_pem_x509_certificate(self.certificate).not_valid_before_utc

    @property
    def ends(self) -> datetime:
        """Until when it is valid."""
        return x509.load_pem_x509_certificate(self.certificate).not_valid_after_utc


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificates:
    """What the Secret holds. `since` is when `serving` began to serve."""

    serving: Pair
    following: Pair
    since: datetime
    before: bytes = b""

    @property
    def trusted(self) -> bytes:
        """What the API server is to trust."""
        return self.serving.certificate + self.following.certificate + self.before

    @classmethod
    def read(cls, data: Mapping[str, Any], name: str) -> Self | None:
        """Read the `data` of a Secret; None where it holds nothing that can be used for *name*."""
        try:
            part = {key: base64.b64decode(value, validate=True) for key, value in data.items()}
            found = cls(
                serving=Pair(certificate=part["tls.crt"], key=part["tls.key"]),
                following=Pair(certificate=part["next.crt"], key=part["next.key"]),
                since=datetime.fromisoformat(part["since"].decode("ascii")),
                before=part.get("previous.crt", b""),
            )
            if found.since.tzinfo is None:
                return None
            for pair in (found.serving, found.following):
                certificate = x509.load_pem_x509_certificate(pair.certificate)
                key = serialization.load_pem_private_key(pair.key, password=None)
                names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
                if certificate.public_key() != key.public_key() or names.get_values_for_type(
                    x509.DNSName
                ) != [name]:
                    return None
        except (KeyError, TypeError, ValueError, binascii.Error, x509.ExtensionNotFound):
            return None
        return found

    def data(self) -> dict[str, str]:
        """Return the `data` of the Secret."""
        parts = {
            "tls.crt": self.serving.certificate,
            "tls.key": self.serving.key,
            "next.crt": self.following.certificate,
            "next.key": self.following.key,
            "previous.crt": self.before,
            "since": self.since.isoformat().encode("ascii"),
        }
        return {name: base64.b64encode(part).decode("ascii") for name, part in parts.items()}


def make(name: str, at: datetime) -> Pair:
    """Make a certificate for a server of the DNS name *name*, which signs itself."""
    key = ec.generate_private_key(ec.SECP384R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(at - _EARLIER)
        .not_valid_after(at + LIFETIME)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(key, hashes.SHA384())
    )
    return Pair(
        certificate=certificate.public_bytes(serialization.Encoding.PEM),
        key=key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ),
    )


def due(found: Certificates | None, name: str, at: datetime) -> Certificates | None:
    """Return what the Secret is to hold instead of *found*, None where that may stay.

    Args:
        found: What it holds; None for nothing of use.
        name: DNS name of the webhook.
        at: Now.
    """
    if found is None or at >= found.following.ends - SERVES:
        # Nothing there, or nobody looked for so long that the next one would not last: all anew.
        return Certificates(serving=make(name, at), following=make(name, at), since=at)
    if at < found.since + SERVES and found.serving.begins <= at < found.serving.ends - _EARLIER:
        return None
    return Certificates(
        serving=found.following,
        following=make(name, at),
        since=at,
        before=found.serving.certificate,
    )


def believed(configuration: Raw, trusted: bytes) -> list[dict[str, Any]] | None:
    """Return the `webhooks` of a ValidatingWebhookConfiguration with *trusted* in each; None where it is so already."""
    bundle = base64.b64encode(trusted).decode("ascii")
    hooks = [dict(each) for each in configuration.get("webhooks") or ()]
    if all(each.get("clientConfig", {}).get("caBundle") == bundle for each in hooks):
        return None
    return [{**each, "clientConfig": {**each.get("clientConfig", {}), "caBundle": bundle}} for each in hooks]
