"""`ITL_CRYPTO_POLICY` where the service meets algorithms: its settings, its files, and keys that others bring.

What is allowed for which use stands in `attestation.algorithms`; here is only where that is asked.
"""

# Algorithms for: tls-group, tls-certificate
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Final

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm

from attestation.algorithms import CryptoPolicy, Use, demand, judge, name_of
from attestation.errors import Unauthenticated
from attestation.keys import KeyOptions
from attestation.tpm import Public, parse_public
from attestation.tpm.hashes import bank_name
from attestation_service.authority.places import key_options
from attestation_service.settings import Settings, SettingsInvalid

TLS_GROUP: Final = "secp384r1"
"""The one group that TLS of our own offers under a suite (RFC 9151 §5)."""

_JWS_HASHES: Final[Mapping[str, str]] = MappingProxyType(
    {
        **{f"{family}{bits}": f"sha{bits}" for family in ("RS", "PS", "ES") for bits in (256, 384, 512)},
        "EdDSA": "sha512",
        "Ed25519": "sha512",
    }
)


def of(settings: Settings) -> CryptoPolicy:
    """Return the policy in force."""
    return CryptoPolicy(settings.crypto_policy)


def allowed(settings: Settings, use: Use) -> Callable[[str], None]:
    """Return what raises AlgorithmForbidden for an algorithm that the policy forbids for *use*."""
    policy = of(settings)
    return lambda algorithm: demand(policy, use, algorithm)


def service_key_options(settings: Settings) -> KeyOptions:
    """Return the options for the key that signs directives and results.

    The passphrase of the CA is not for it; its URI may name one of its own.

    Raises:
        KeyURIInvalid: ITL_PKCS11_MODULES has an entry that is not `name=/path`.
    """
    return replace(
        key_options(settings),
        passphrase=None,
        allow_unencrypted=True,
        allowed=allowed(settings, Use.SERVICE_KEY),
    )


def check_files(settings: Settings) -> None:
    """Refuse certificates in files whose keys the policy forbids.

    Raises:
        SettingsInvalid: Which one, of which setting, and what would be allowed.
    """
    policy = of(settings)
    if policy is CryptoPolicy.DEFAULT:
        return
    for variable, path, use in (
        ("ITL_TLS_CERT_FILE", settings.tls_cert_file, Use.TLS_CERTIFICATE),
        ("ITL_OPERATOR_CA", settings.operator_ca, Use.OPERATOR_CERTIFICATE),
    ):
        if path is None:
            continue
        certificates = _certificates(variable, path)
        # Of a chain, the first is ours. Every certificate of a bundle of CAs signs.
        ours = certificates[:1] if use is Use.TLS_CERTIFICATE else certificates
        if reason := forbidden(policy, use, ours):
            raise SettingsInvalid(f"{variable}: {reason}")


def forbidden(policy: CryptoPolicy, use: Use, certificates: Sequence[x509.Certificate]) -> str | None:
    """Return which of *certificates* has a key that *policy* forbids for *use*, and why; None where none has."""
    for certificate in certificates:
        if policy is not CryptoPolicy.DEFAULT and (reason := judge(policy, use, _key_name(certificate))):
            return f"{certificate.subject.rfc4514_string()[:200]}: {reason}"
    return None


def demand_tpm_keys(policy: CryptoPolicy, ek: Public, ak: Public) -> None:
    """Refuse the keys of a TPM that *policy* forbids, with their hashes and the cipher of the EK.

    Raises:
        AlgorithmForbidden: Which one, and what is allowed.
        MalformedEvidence: A public area holds no key.
    """
    if policy is CryptoPolicy.DEFAULT:
        return
    demand(policy, Use.EK, name_of(ek.key(), agreement=True))
    demand(policy, Use.AK, name_of(ak.key()))
    demand(policy, Use.TPM_HASH, bank_name(ek.name_alg), bank_name(ak.name_alg))
    if ak.scheme is not None and ak.scheme.hash_alg is not None:
        demand(policy, Use.TPM_HASH, bank_name(ak.scheme.hash_alg))
    if ek.symmetric is not None:
        demand(policy, Use.TPM_STORAGE, f"aes-{ek.symmetric.key_bits}-cfb")


def demand_keys_of(policy: CryptoPolicy, ek_public: bytes, ak_public: bytes) -> None:
    """Do `demand_tpm_keys` for the public areas of a known machine, TPM2B_PUBLIC; costs nothing under `default`.

    Raises:
        AlgorithmForbidden: The policy was changed since the machine came.
    """
    if policy is not CryptoPolicy.DEFAULT:
        demand_tpm_keys(policy, parse_public(ek_public), parse_public(ak_public))


def check_operator_certificate(policy: CryptoPolicy, certificate: x509.Certificate) -> None:
    """Refuse an operator's certificate whose key, or the hash under whose signature, *policy* forbids.

    Raises:
        Unauthenticated: With what would be allowed.
    """
    if policy is CryptoPolicy.DEFAULT:
        return
    try:
        hashed = certificate.signature_hash_algorithm
    except UnsupportedAlgorithm:
        hashed = None
    used = (_key_name(certificate), *((hashed.name,) if hashed is not None else ()))
    for algorithm in used:
        if reason := judge(policy, Use.OPERATOR_CERTIFICATE, algorithm):
            raise Unauthenticated(f"the client certificate is not accepted: {reason}")


def token_algorithms(policy: CryptoPolicy, key: object, algorithms: frozenset[str]) -> frozenset[str]:
    """Return those of *algorithms* (JWS) with which *policy* believes a token of the provider's public *key*."""
    if policy is CryptoPolicy.DEFAULT:
        return algorithms
    if judge(policy, Use.ACCESS_TOKEN, name_of(key)):
        return frozenset()
    return frozenset(
        each for each in algorithms if judge(policy, Use.ACCESS_TOKEN, _JWS_HASHES[each]) is None
    )


def _certificates(variable: str, path: Path) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(path.read_bytes())
    except (OSError, ValueError) as e:
        why = (
            e.strerror
            if isinstance(e, OSError)
            else "no certificate (PEM, -----BEGIN CERTIFICATE-----) is in it"
        )
        raise SettingsInvalid(f"{variable}: {path} cannot be read: {why}") from None


def _key_name(certificate: x509.Certificate) -> str:
    try:
        return name_of(certificate.public_key())
    except (ValueError, UnsupportedAlgorithm):
        return "an unknown algorithm"
