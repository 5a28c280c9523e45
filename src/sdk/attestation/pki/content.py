"""What a certificate says, and its signing: twice, first with a key that is thrown away (HSM-AND-KUBERNETES §7.4).

`make_certificate` writes the same signed part for the same content, whatever key of one algorithm signs it. So a
certificate can be rehearsed with a throwaway key and linted, and what the CA then signs is, byte for byte, what was
judged: `check_signed` compares.
"""

# Algorithms for: ca-key, cluster-ca-key, key-identifier
from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from ipaddress import IPv4Address, IPv6Address
from typing import Final, Literal

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, mldsa, rsa
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ObjectIdentifier

from attestation.endorsements import der
from attestation.endorsements.certificate import KEY_USAGES
from attestation.errors import CertificateNotConformant, CSRInvalid, KeyUnsupported
from attestation.pki.name_limits import NameLimits
from attestation.pki.profiles import (
    ACCESS_CA_ISSUERS,
    ACCESS_OCSP,
    NO_REV_AVAIL,
    PROFILES,
    Profile,
    ProfileName,
)
from attestation.pki.signature import PublicKey, load_spki, verify_signature

Algorithm = Literal["ecdsa-p256", "ecdsa-p384", "rsa-4096", "ml-dsa-87"]
"""Kinds of CA keys. P-256, with SHA-256, is for TPMs of others; no CA of ours has it.

RSA signs PKCS#1 v1.5 over SHA-384, as ECDSA does; ML-DSA has no hash of its own choosing."""

SigningKey = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey | mldsa.MLDSA87PrivateKey
"""A CA key: in software, or a subclass that asks hardware."""

SERIAL_BYTES: Final = 20
IPAddress = IPv4Address | IPv6Address


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateContent:
    """What a certificate says besides what its profile fixes.

    Nothing is checked here; `lint` judges what was made of it.

    Args:
        profile: Its kind: one of ours, or one of a CA that is none of ours.
        serial: 20 bytes as a number (`serial_of`).
        subject: Whom it is about.
        issuer_subject: Subject of the CA key that signs.
        spki: The certified key, SubjectPublicKeyInfo, DER.
        not_before: UTC, whole seconds.
        not_after: UTC, whole seconds; still valid then.
        authority_key_id: SubjectKeyIdentifier of the issuer.
        uris: Alternative names.
        dns_names: Alternative names.
        ip_addresses: Alternative names.
        emails: Alternative names.
        limits: NameConstraints of a CA.
        policies: OIDs of CertificatePolicies.
        crl_url: Where the issuer's revocation list is.
        ocsp_url: Where its responder answers.
        ca_url: Where its certificate is, DER.
    """

    profile: ProfileName | Profile
    serial: int
    subject: x509.Name
    issuer_subject: x509.Name
    spki: bytes = field(repr=False)
    not_before: datetime
    not_after: datetime
    authority_key_id: bytes
    uris: tuple[str, ...] = ()
    dns_names: tuple[str, ...] = ()
    ip_addresses: tuple[IPAddress, ...] = ()
    emails: tuple[str, ...] = ()
    limits: NameLimits | None = None
    policies: tuple[str, ...] = ()
    crl_url: str | None = None
    ocsp_url: str | None = None
    ca_url: str | None = None

    @property
    def rules(self) -> Profile:
        """What certificates of its kind say."""
        return self.profile if isinstance(self.profile, Profile) else PROFILES[self.profile]

    @property
    def profile_name(self) -> str:
        """The name of its kind, as records have it."""
        return str(self.rules.name)


def serial_of(entropy: bytes) -> int:
    """Return a serial number: 20 bytes, the first from 01 to 7f, so that it is positive and always of one length.

    Args:
        entropy: 20 random bytes.
    """
    if len(entropy) != SERIAL_BYTES:
        raise ValueError(f"{len(entropy)} bytes, {SERIAL_BYTES} expected")
    return int.from_bytes(bytes([1 + entropy[0] % 127]) + entropy[1:])


def serial_text(serial: int) -> str:
    """Return a serial number as people see it: 40 lower-case hex."""
    return serial.to_bytes(SERIAL_BYTES).hex()


def key_identifier(spki: bytes) -> bytes:
    """Return the SubjectKeyIdentifier of a key: the first 20 bytes of SHA-256 over its bits (RFC 7093, 2, method 1).

    Raises:
        MalformedEvidence: *spki* is no SubjectPublicKeyInfo.
    """
    outer = der.only(spki, der.SEQUENCE, "public key")
    algorithm = der.expect(spki, outer.start, outer.stop, der.SEQUENCE, "public key: algorithm")
    value = der.expect(spki, algorithm.stop, outer.stop, der.BIT_STRING, "public key: bits")
    return hashlib.sha256(der.whole_bytes(spki, value)).digest()[:20]


def signing_hash(key: SigningKey) -> hashes.SHA256 | hashes.SHA384 | None:
    """Return what certificates, lists and answers signed by *key* are hashed with; None for ML-DSA.

    Raises:
        KeyUnsupported: Not a kind of CA key.
    """
    if isinstance(key, rsa.RSAPrivateKey):
        return hashes.SHA384()
    if isinstance(key, ec.EllipticCurvePrivateKey) and isinstance(key.curve, ec.SECP384R1):
        return hashes.SHA384()
    if isinstance(key, ec.EllipticCurvePrivateKey) and isinstance(key.curve, ec.SECP256R1):
        return hashes.SHA256()
    if isinstance(key, mldsa.MLDSA87PrivateKey):
        return None
    raise KeyUnsupported(f"a CA key is P-256, P-384, RSA or ML-DSA-87, not {type(key).__name__}")


def make_certificate(content: CertificateContent, key: SigningKey) -> bytes:
    """Return a certificate that says *content*, signed by *key*, DER.

    The signed part depends on *content* and on the kind of *key* only.

    Raises:
        CertificateNotConformant: *content* is none that any certificate can say.
        KeyUnsupported: *key* is no CA key.
    """
    profile = content.rules
    hash_ = signing_hash(key)
    try:
        builder = (
            x509.CertificateBuilder()
            .serial_number(content.serial)
            .subject_name(content.subject)
            .issuer_name(content.issuer_subject)
            .not_valid_before(content.not_before)
            .not_valid_after(content.not_after)
            .public_key(load_spki(content.spki)[0])
        )
        for extension, critical in _extensions(content, profile):
            builder = builder.add_extension(extension, critical)
    except (ValueError, TypeError, CSRInvalid) as e:
        raise CertificateNotConformant(f"no certificate can say this: {e}") from e
    return builder.sign(key, hash_).public_bytes(Encoding.DER)


def _extensions(content: CertificateContent, profile: Profile) -> list[tuple[x509.ExtensionType, bool]]:
    """Return the extensions in their order, each with whether it is critical."""
    found: list[tuple[x509.ExtensionType, bool]] = [
        (x509.BasicConstraints(ca=profile.is_ca, path_length=profile.path_length), True),
    ]
    if profile.key_usage:
        found.append((_key_usage(profile), True))
    if profile.purposes:
        found.append((x509.ExtendedKeyUsage([ObjectIdentifier(p) for p in profile.purposes]), False))
    found += [
        (x509.SubjectKeyIdentifier(key_identifier(content.spki)), False),
        (x509.AuthorityKeyIdentifier(content.authority_key_id, None, None), False),
    ]
    names: list[x509.GeneralName] = [
        *map(x509.UniformResourceIdentifier, content.uris),
        *map(x509.DNSName, content.dns_names),
        *map(x509.IPAddress, content.ip_addresses),
        *map(x509.RFC822Name, content.emails),
    ]
    if names:
        # Without a subject they are the only name, and must be read (RFC 5280, 4.2.1.6).
        found.append((x509.SubjectAlternativeName(names), not content.subject.rdns))
    if content.limits is not None:
        found.append((_name_constraints(content.limits), True))
    if content.policies:
        policies = [x509.PolicyInformation(ObjectIdentifier(p), None) for p in content.policies]
        found.append((x509.CertificatePolicies(policies), False))
    if content.crl_url is not None:
        place = x509.DistributionPoint([x509.UniformResourceIdentifier(content.crl_url)], None, None, None)
        found.append((x509.CRLDistributionPoints([place]), False))
    access = [
        x509.AccessDescription(ObjectIdentifier(method), x509.UniformResourceIdentifier(url))
        for method, url in ((ACCESS_OCSP, content.ocsp_url), (ACCESS_CA_ISSUERS, content.ca_url))
        if url is not None
    ]
    if access:
        found.append((x509.AuthorityInformationAccess(access), False))
    if profile.no_check:
        found.append((x509.OCSPNoCheck(), False))
    if profile.no_rev_avail:
        # NULL (RFC 9608, 2); the library has no class for it.
        found.append(
            (x509.UnrecognizedExtension(ObjectIdentifier(NO_REV_AVAIL), der.write(der.NULL, b"")), False)
        )
    return found


def _name_constraints(limits: NameLimits) -> x509.NameConstraints:
    permitted: list[x509.GeneralName] = [
        *map(x509.DNSName, limits.dns_names),
        *map(x509.IPAddress, limits.ip_networks),
        *map(x509.UniformResourceIdentifier, limits.uris),
        *map(x509.RFC822Name, limits.emails),
    ]
    excluded = [x509.IPAddress(network) for network in limits.excluded_networks]
    return x509.NameConstraints(permitted or None, excluded or None)


def _key_usage(profile: Profile) -> x509.KeyUsage:
    (
        digital_signature,
        content_commitment,
        key_encipherment,
        data_encipherment,
        key_agreement,
        key_cert_sign,
        crl_sign,
        encipher_only,
        decipher_only,
    ) = (word in profile.key_usage for word in KEY_USAGES)
    return x509.KeyUsage(
        digital_signature=digital_signature,
        content_commitment=content_commitment,
        key_encipherment=key_encipherment,
        data_encipherment=data_encipherment,
        key_agreement=key_agreement,
        key_cert_sign=key_cert_sign,
        crl_sign=crl_sign,
        encipher_only=encipher_only,
        decipher_only=decipher_only,
    )


@cache
def throwaway_key(algorithm: Algorithm) -> SigningKey:
    """Return a key that nobody trusts, of the kind asked for; made once in a process (RSA-4096: seconds)."""
    if algorithm == "ecdsa-p256":
        return ec.generate_private_key(ec.SECP256R1())
    if algorithm == "ecdsa-p384":
        return ec.generate_private_key(ec.SECP384R1())
    if algorithm == "rsa-4096":
        return rsa.generate_private_key(65537, 4096)
    return mldsa.MLDSA87PrivateKey.generate()


def rehearse(content: CertificateContent, algorithm: Algorithm) -> bytes:
    """Return the certificate that *content* gives, signed by a key that nobody trusts: what is linted.

    Raises:
        CertificateNotConformant: *content* is none that any certificate can say.
    """
    return make_certificate(content, throwaway_key(algorithm))


def check_signed(signed: bytes, *, rehearsed: bytes, issuer: PublicKey) -> None:
    """Prove that what was *signed* is what was rehearsed, and that *issuer* signed it.

    Args:
        signed: The certificate of the CA, DER.
        rehearsed: What `rehearse` returned and `lint` found conformant, DER.
        issuer: Public key of the CA.

    Raises:
        CertificateNotConformant: Another signed part, or another algorithm behind it.
        SignatureInvalid: Not signed by it: hardware that errs would give its key away with such a signature.
    """
    tbs, algorithm, signature = _parts(signed)
    if (tbs, algorithm) != _parts(rehearsed)[:2]:
        raise CertificateNotConformant("what was signed is not what was linted")
    verify_signature(issuer, algorithm=algorithm, signature=signature, signed=tbs)


def _parts(certificate: bytes) -> tuple[bytes, bytes, bytes]:
    """Return signed part, AlgorithmIdentifier and signature of Certificate (RFC 5280, 4.1)."""
    outer = der.only(certificate, der.SEQUENCE, "certificate")
    tbs = der.expect(certificate, outer.start, outer.stop, der.SEQUENCE, "certificate: signed part")
    algorithm = der.expect(certificate, tbs.stop, outer.stop, der.SEQUENCE, "certificate: algorithm")
    value = der.expect(certificate, algorithm.stop, outer.stop, der.BIT_STRING, "certificate: signature")
    return (
        certificate[tbs.at : tbs.stop],
        certificate[algorithm.at : algorithm.stop],
        der.whole_bytes(certificate, value),
    )
