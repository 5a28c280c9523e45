"""The back-ends that hold private keys, one row each: a row that joins here inherits the whole suite.

A row names the algorithms that its back-end makes, and a context that makes a key of one of them and closes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.mldsa import MLDSA87PrivateKey
from cryptography.hazmat.primitives.asymmetric.utils import Prehashed, decode_dss_signature

from attestation.keys.delegated import (
    DIGEST_INFO,
    HashName,
    RawSigner,
)
from attestation.keys.delegated import (
    delegated as as_private_key,
)
from attestation.keys.file import _MAKE
from attestation.keys.open import ALGORITHMS, Algorithm, CAPrivateKey, KeyOptions, OpenKey, create_key
from attestation.keys.uri import FileRef
from attestation_testing import SoftwareTPM
from tests.fixtures import softhsm

MakeKey = Callable[[Algorithm, Path], AbstractContextManager[OpenKey]]


@dataclass(frozen=True)
class SignerBackend:
    """One row: *make(algorithm, directory)* opens a new key."""

    name: str
    make: MakeKey
    algorithms: tuple[Algorithm, ...] = ALGORITHMS
    marks: tuple[pytest.MarkDecorator, ...] = ()


class SoftwareRawSigner(RawSigner):
    """A key in memory behind the seam of devices: the reference for what devices must answer."""

    def __init__(self, key: CAPrivateKey) -> None:
        self.key: Any = key

    def sign_digest_ecdsa(self, digest: bytes) -> tuple[int, int]:
        """Sign what was hashed before."""
        # The hash is only there to say how long the digest is.
        hashed = {32: hashes.SHA256(), 48: hashes.SHA384(), 64: hashes.SHA512()}[len(digest)]
        return decode_dss_signature(self.key.sign(digest, ec.ECDSA(Prehashed(hashed))))

    def sign_rsa_pkcs1(self, digest_info: bytes) -> bytes:
        """The textbook operation over the padding of RFC 8017 §9.2, so that the prefix is what was handed over."""
        size = self.key.key_size // 8
        padded = b"\x00\x01" + b"\xff" * (size - 3 - len(digest_info)) + b"\x00" + digest_info
        assert any(digest_info.startswith(prefix) for prefix in DIGEST_INFO.values())
        numbers = self.key.private_numbers()
        signature: int = pow(int.from_bytes(padded), numbers.d, numbers.public_numbers.n)
        return signature.to_bytes(size)

    def sign_rsa_pss(self, digest: bytes, hash_name: HashName, salt_bytes: int) -> bytes:
        """Sign what was hashed before."""
        hashed = {"sha256": hashes.SHA256(), "sha384": hashes.SHA384(), "sha512": hashes.SHA512()}[hash_name]
        signature: bytes = self.key.sign(
            digest, padding.PSS(padding.MGF1(hashed), salt_bytes), Prehashed(hashed)
        )
        return signature


def delegated(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> CAPrivateKey:
    """Return *key* as one that a device holds."""
    return as_private_key(SoftwareRawSigner(key), key.public_key(), "test:key")


@contextmanager
def _file(algorithm: Algorithm, directory: Path) -> Iterator[OpenKey]:
    key = create_key(
        f"file:{directory}/{algorithm}.pem", algorithm, KeyOptions(passphrase=lambda: b"correct horse")
    )
    yield key
    key.close()


@contextmanager
def _delegated(algorithm: Algorithm, directory: Path) -> Iterator[OpenKey]:
    made = _MAKE[algorithm]()
    assert not isinstance(made, MLDSA87PrivateKey)
    key = delegated(made)
    yield OpenKey(key, ref=FileRef(path=directory), origin="generated", backend="test")


@contextmanager
def _softhsm(algorithm: Algorithm, directory: Path) -> Iterator[OpenKey]:
    folder = directory / "softhsm"
    with pytest.MonkeyPatch.context() as patch:
        hsm = softhsm.SoftHSM(folder) if folder.exists() else softhsm.make(folder, patch.setenv)
        try:
            yield hsm.create(algorithm, algorithm)
        finally:
            hsm.close()


@contextmanager
def _tpm2(algorithm: Algorithm, directory: Path) -> Iterator[OpenKey]:
    with SoftwareTPM(directory / "tpm") as tpm:
        uri = f"tpm2:path={directory}/{algorithm}.tss2?tcti={tpm.uri}"
        key = create_key(uri, algorithm, KeyOptions())
        yield key
        key.close()


BACKENDS: tuple[SignerBackend, ...] = (
    SignerBackend("file", _file),
    SignerBackend("delegated", _delegated, ("ecdsa-p384", "rsa-4096")),
    SignerBackend("softhsm", _softhsm, ("ecdsa-p384", "rsa-4096"), (pytest.mark.softhsm,)),
    SignerBackend("tpm2", _tpm2, ("ecdsa-p384",), (pytest.mark.swtpm,)),
)
