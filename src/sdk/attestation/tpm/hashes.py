"""The hashes a TPM may name: ids, sizes, names of PCR banks."""

# Algorithms for: tpm-hash, pcr-bank, event-log
from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from cryptography.hazmat.primitives import hashes

from attestation.errors import MalformedEvidence
from attestation.tpm.constants import Alg

if TYPE_CHECKING:
    from hashlib import _Hash

_SIZES: Final[Mapping[int, int]] = MappingProxyType(
    {Alg.SHA1: 20, Alg.SHA256: 32, Alg.SHA384: 48, Alg.SHA512: 64, Alg.SM3_256: 32}
)
_NEW: Final[Mapping[int, Callable[..., _Hash]]] = MappingProxyType(
    {
        Alg.SHA1: hashlib.sha1,
        Alg.SHA256: hashlib.sha256,
        Alg.SHA384: hashlib.sha384,
        Alg.SHA512: hashlib.sha512,
    }
)
_CRYPTOGRAPHY: Final[Mapping[int, hashes.HashAlgorithm]] = MappingProxyType(
    {
        Alg.SHA1: hashes.SHA1(),  # noqa: S303 -- of TPM structures that name it; never accepted as evidence
        Alg.SHA256: hashes.SHA256(),
        Alg.SHA384: hashes.SHA384(),
        Alg.SHA512: hashes.SHA512(),
    }
)
_BANKS: Final[Mapping[str, Alg]] = MappingProxyType(
    {
        "sha1": Alg.SHA1,
        "sha256": Alg.SHA256,
        "sha384": Alg.SHA384,
        "sha512": Alg.SHA512,
        "sm3_256": Alg.SM3_256,
    }
)
_BANK_NAMES: Final[Mapping[int, str]] = MappingProxyType({int(alg): name for name, alg in _BANKS.items()})


def digest_size(alg: int) -> int:
    """Return the size in bytes of a digest of *alg*.

    Raises:
        MalformedEvidence: *alg* is no hash that we know.
    """
    size = _SIZES.get(alg)
    if size is None:
        raise MalformedEvidence(f"unknown hash algorithm 0x{alg:04x}")
    return size


def hash_new(alg: int, data: bytes = b"") -> _Hash:
    """Return a hash object of *alg*, fed with *data*.

    Raises:
        MalformedEvidence: *alg* is no hash that we compute (SM3 is known, but not computed).
    """
    new = _NEW.get(alg)
    if new is None:
        raise MalformedEvidence(f"hash algorithm 0x{alg:04x} is not computed here")
    return new(data)


def hash_function(alg: int) -> Callable[..., _Hash]:
    """Return the constructor of hash objects of *alg*, for those who hash much.

    Raises:
        MalformedEvidence: *alg* is no hash that we compute.
    """
    new = _NEW.get(alg)
    if new is None:
        raise MalformedEvidence(f"hash algorithm 0x{alg:04x} is not computed here")
    return new


def crypto_hash(alg: int) -> hashes.HashAlgorithm:
    """Return the `cryptography` object for *alg*.

    Raises:
        MalformedEvidence: *alg* is no hash that we compute.
    """
    found = _CRYPTOGRAPHY.get(alg)
    if found is None:
        raise MalformedEvidence(f"hash algorithm 0x{alg:04x} is not computed here")
    return found


def bank_name(alg: int) -> str:
    """Return the name of the PCR bank *alg*, e.g. `sha256`.

    Raises:
        MalformedEvidence: There is no such bank.
    """
    name = _BANK_NAMES.get(alg)
    if name is None:
        raise MalformedEvidence(f"unknown PCR bank 0x{alg:04x}")
    return name


def bank_alg(name: str) -> Alg:
    """Return the hash algorithm of the PCR bank *name*.

    Raises:
        MalformedEvidence: There is no such bank.
    """
    alg = _BANKS.get(name)
    if alg is None:
        raise MalformedEvidence(f"unknown PCR bank {name[:20]!r}")
    return alg


def hmac_digest(alg: int, key: bytes, data: bytes) -> bytes:
    """Return HMAC of *data* under *key* with the hash *alg*.

    Raises:
        MalformedEvidence: *alg* is no hash that we compute.
    """
    new = _NEW.get(alg)
    if new is None:
        raise MalformedEvidence(f"hash algorithm 0x{alg:04x} is not computed here")
    return hmac.digest(key, data, new)
