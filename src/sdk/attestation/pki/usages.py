"""The words with which cert-manager and Kubernetes say what a key is for, and what a certificate says for each.

Both have one list (KeyUsage of cert-manager.io/v1 and of certificates.k8s.io/v1, 23 words). Some words say the same:
`signing` is `digital signature`, `s/mime` is `email protection`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from attestation.endorsements.certificate import KEY_USAGES

DEFAULT_USAGES: Final = ("digital signature", "key encipherment")
"""What is meant where no word is said (cert-manager, CertificateRequest.spec.usages)."""

_KEY_USAGE: Final[Mapping[str, str]] = {
    "signing": "digital_signature",
    "digital signature": "digital_signature",
    "content commitment": "non_repudiation",
    "key encipherment": "key_encipherment",
    "key agreement": "key_agreement",
    "data encipherment": "data_encipherment",
    "cert sign": "key_cert_sign",
    "crl sign": "crl_sign",
    "encipher only": "encipher_only",
    "decipher only": "decipher_only",
}
_PURPOSE: Final[Mapping[str, str]] = {
    "any": "2.5.29.37.0",
    "server auth": "1.3.6.1.5.5.7.3.1",
    "client auth": "1.3.6.1.5.5.7.3.2",
    "code signing": "1.3.6.1.5.5.7.3.3",
    "email protection": "1.3.6.1.5.5.7.3.4",
    "s/mime": "1.3.6.1.5.5.7.3.4",
    "ipsec end system": "1.3.6.1.5.5.7.3.5",
    "ipsec tunnel": "1.3.6.1.5.5.7.3.6",
    "ipsec user": "1.3.6.1.5.5.7.3.7",
    "timestamping": "1.3.6.1.5.5.7.3.8",
    "ocsp signing": "1.3.6.1.5.5.7.3.9",
    "microsoft sgc": "1.3.6.1.4.1.311.10.3.3",
    "netscape sgc": "2.16.840.1.113730.4.1",
}

USAGES: Final[Mapping[str, str]] = MappingProxyType({**_KEY_USAGE, **_PURPOSE})
"""Every word: the bit of KeyUsage, a word of `KEY_USAGES`, or the OID of ExtendedKeyUsage that it stands for."""

NEVER_OF_LEAVES: Final = frozenset({"any", "ocsp signing"})
"""Words that no issuer certifies for others, whatever its rules say.

With `ocsp signing` the holder would say of every certificate of the CA that it is good (RFC 6960, 4.2.2.2), and `any`
means it too.
"""

CA_USAGES: Final = frozenset({"cert sign", "crl sign"})
"""Words that say nothing of a key that is no CA's (RFC 5280, 4.2.1.3)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyPurposes:
    """What a certificate says of what its key is for.

    Args:
        key_usage: Bits of KeyUsage, in the order of their numbers; none means no such extension.
        purposes: OIDs of ExtendedKeyUsage, in the order of `USAGES`; none means no such extension.
    """

    key_usage: tuple[str, ...]
    purposes: tuple[str, ...]


def key_purposes(words: Iterable[str], *, is_ca: bool) -> KeyPurposes:
    """Return what a certificate for these *words* says.

    Args:
        words: Words of `USAGES`; none means `DEFAULT_USAGES`.
        is_ca: Then the key may sign certificates whether a word says so or not, as cert-manager has it.
    """
    said = {USAGES[word] for word in words} or {USAGES[word] for word in DEFAULT_USAGES}
    if is_ca:
        said.add("key_cert_sign")
    return KeyPurposes(
        key_usage=tuple(bit for bit in KEY_USAGES if bit in said),
        purposes=tuple(dict.fromkeys(oid for oid in _PURPOSE.values() if oid in said)),
    )
