"""The CA keys that this process has open: each opened once, held against its certificate, tried again and again.

A key is used only after it signed a test value that the stored certificate verifies (HSM-AND-KUBERNETES §6), and
only if that certificate is one of a CA that is valid. Everything here may wait for a token or a TPM: never call it
on the event loop.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

import structlog
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from attestation.errors import CertificateNotConformant, KeyMismatch
from attestation.keys.open import CAPublicKey, KeyOptions, OpenKey, open_key
from attestation.pki.parent import ends
from attestation.store import Issuer, IssuerPurpose

log = structlog.get_logger("attestation_service.authority")

WARN_BEFORE_END: Final = timedelta(days=30)
"""So long before its end a CA certificate is warned of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CACertificate:
    """What issuance takes from the certificate of a CA key, read once.

    Args:
        issuer_id: Which key.
        der: The certificate.
        subject: Its name.
        public_key: Its key, native.
        key_id: Its SubjectKeyIdentifier.
        not_before: Beginning of its validity.
        not_after: End of it, or of the first of its parents to end.
        parents: DER of every certificate that limits what it may sign, itself the first; empty where it is its own.
        purpose: Whom it certifies, as its record says; None of one that has none yet.
    """

    issuer_id: str
    der: bytes
    subject: x509.Name
    public_key: CAPublicKey
    key_id: bytes
    not_before: datetime
    not_after: datetime
    parents: tuple[bytes, ...] = ()
    purpose: IssuerPurpose | None = None

    def is_of(self, issuer: Issuer) -> bool:
        """Return True if it was read of what vouches for *issuer* now."""
        return self.der == issuer.path[0] and self.parents == (issuer.chain or ())

    def is_valid(self, at: datetime) -> bool:
        """Return True if it is valid at *at*."""
        return self.not_before <= at <= self.not_after


def read_ca(issuer: Issuer) -> CACertificate:
    """Read the stored certificate of *issuer*: its parent's, where it has one.

    Raises:
        CertificateNotConformant: It is not one of a CA that signs certificates and revocation lists.
    """
    der = issuer.path[0]  # only a reserved key has none, and nobody asks for its certificate
    certificate = x509.load_der_x509_certificate(der)
    try:
        constraints = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value
        usage = certificate.extensions.get_extension_for_class(x509.KeyUsage).value
        key_id = certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value.digest
    except x509.ExtensionNotFound as e:
        raise CertificateNotConformant(f"CA {issuer.issuer_id}: its certificate is incomplete: {e}") from e
    if not (constraints.ca and usage.key_cert_sign and usage.crl_sign):
        raise CertificateNotConformant(
            f"CA {issuer.issuer_id}: its certificate must have CA:TRUE, keyCertSign and cRLSign"
        )
    return CACertificate(
        issuer_id=issuer.issuer_id,
        der=der,
        subject=certificate.subject,
        public_key=_ca_key(certificate),
        key_id=key_id,
        not_before=certificate.not_valid_before_utc,
        not_after=ends(issuer.path),
        parents=issuer.chain or (),
        purpose=issuer.purpose,
    )


def _ca_key(certificate: x509.Certificate) -> CAPublicKey:
    key = certificate.public_key()
    if not isinstance(key, CAPublicKey):
        raise CertificateNotConformant(f"a CA key is P-384, RSA or ML-DSA-87, not {type(key).__name__}")
    return key


def validity_problem(ca: CACertificate, at: datetime) -> str | None:
    """Say what is wrong, or soon will be, with the validity of a CA at *at*; None if nothing."""
    if not ca.is_valid(at):
        return f"its certificate is valid from {ca.not_before:%Y-%m-%d} to {ca.not_after:%Y-%m-%d}, not now"
    if ca.not_after - at < WARN_BEFORE_END:
        return f"its certificate ends on {ca.not_after:%Y-%m-%d}; rotate before"
    return None


@dataclass(frozen=True, slots=True)
class Opened:
    """A key that proved to be the one of its certificate."""

    key: OpenKey
    ca: CACertificate


class Keyring:
    """The keys that this process has open.

    Args:
        options: For the back-ends.
        current: Returns the URI of a key as it is to be opened now; see `places.current_uri`.
    """

    def __init__(self, options: KeyOptions, current: Callable[[str], str]) -> None:
        self._options = options
        self._current = current
        self._opened: dict[str, Opened] = {}
        self._certificates: dict[str, CACertificate] = {}
        self._opening = threading.Lock()

    def certificate(self, issuer: Issuer) -> CACertificate:
        """Return the certificate of *issuer*, read once, and again when another parent vouches for it.

        Does not ask for the key.

        Raises:
            CertificateNotConformant: It is none of a CA.
        """
        found = self._certificates.get(issuer.issuer_id)
        if found is None or not found.is_of(issuer):
            found = self._certificates[issuer.issuer_id] = read_ca(issuer)
        return found

    def get(self, issuer: Issuer) -> Opened:
        """Return the key of *issuer*, opened and tried if this process had not used it yet.

        Raises:
            KeyUnusable: It cannot be opened; `KeyMismatch` where it is not the key of the stored certificate.
            SignerUnavailable: Its token or TPM does not answer now.
            CertificateNotConformant: Its certificate is none of a CA.
        """
        found = self._opened.get(issuer.issuer_id)
        if found is not None and found.ca.is_of(issuer):
            return found
        with self._opening:
            found = self._opened.get(issuer.issuer_id)
            if found is None:
                found = self._open(issuer)
            elif not found.ca.is_of(issuer):
                # Another parent vouches for it now: the same key, whatever the database says.
                ca = self.certificate(issuer)
                check(found.key, ca)
                found = Opened(found.key, ca)
            self._opened[issuer.issuer_id] = found
        return found

    def _open(self, issuer: Issuer) -> Opened:
        ca = self.certificate(issuer)
        key = open_key(self._current(issuer.key_uri), self._options)
        try:
            check(key, ca)
        except BaseException:
            key.close()
            raise
        log.info("ca.opened", issuer_id=issuer.issuer_id, state=issuer.state, origin=key.origin)
        return Opened(key, ca)

    def keep(self, issuer_ids: frozenset[str]) -> None:
        """Close every key that is none of *issuer_ids*."""
        with self._opening:
            gone = [issuer_id for issuer_id in self._opened if issuer_id not in issuer_ids]
            closing = [self._opened.pop(issuer_id) for issuer_id in gone]
        for each in closing:
            each.key.close()

    def close(self) -> None:
        """Close all."""
        self.keep(frozenset())


def check(key: OpenKey, ca: CACertificate) -> None:
    """Let *key* sign a test value and verify it with the certificate.

    Raises:
        KeyMismatch: It is another key.
        SignerUnavailable: It cannot sign now.
    """
    if spki(key.public_key) != spki(ca.public_key):
        raise KeyMismatch(f"{key.uri} is not the key of the certificate of CA {ca.issuer_id}")
    key.self_test(ca.public_key)


def spki(public_key: CAPublicKey) -> bytes:
    """Return the SubjectPublicKeyInfo, DER."""
    return public_key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
