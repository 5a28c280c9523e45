"""Keys that sign notes: made once, kept to their owner, each of its own algorithm."""

from __future__ import annotations

import stat
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.mldsa import MLDSA44PublicKey

from attestation.errors import KeyUnusable
from attestation.keys import NoteKey, load_ed25519, load_mldsa44, load_signer

LOADERS = [
    pytest.param(load_ed25519, Ed25519PublicKey, 32, 64, id="ed25519"),
    pytest.param(load_mldsa44, MLDSA44PublicKey, 1312, 2420, id="mldsa44"),
]
Load = Callable[..., NoteKey]


@pytest.mark.parametrize(("load", "public", "key_bytes", "signature_bytes"), LOADERS)
def test_a_key_is_made_once_and_signs(
    load: Load, public: type[Ed25519PublicKey], key_bytes: int, signature_bytes: int, tmp_path: Path
) -> None:
    """Whoever comes second reads what the first made; what it signs verifies under the public half alone."""
    path = tmp_path / "ca" / "key.pem"
    with ThreadPoolExecutor(8) as starters:
        keys = list(starters.map(lambda _: load(f"file:{path}", create=True), range(8)))
    assert len({key.public_key for key in keys}) == 1
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len(keys[0].public_key) == key_bytes
    signature = load(f"file:{path}").sign(b"message")
    assert len(signature) == signature_bytes
    verifier = public.from_public_bytes(keys[0].public_key)
    verifier.verify(signature, b"message")
    with pytest.raises(InvalidSignature):
        verifier.verify(signature, b"Message")


@pytest.mark.parametrize("load", [load_ed25519, load_mldsa44])
def test_a_key_of_another_kind_is_refused(load: Load, tmp_path: Path) -> None:
    """A P-384 key, text, nothing, a file that others may read, a token: none signs notes."""
    path = tmp_path / "key.pem"
    with pytest.raises(KeyUnusable, match="cannot be read"):
        load(f"file:{path}")
    assert not path.exists()
    for uri in ("pkcs11:token=t;object=o", "tpm2:handle=0x81000001", str(path)):
        with pytest.raises(KeyUnusable):
            load(uri, create=True)
    load_signer(f"file:{path}", create=True)
    with pytest.raises(KeyUnusable, match="private key of"):
        load(f"file:{path}")
    path.write_bytes(b"no PEM")
    with pytest.raises(KeyUnusable, match="no PEM"):
        load(f"file:{path}")
    path.chmod(0o640)
    with pytest.raises(KeyUnusable, match="0600"):
        load(f"file:{path}")


def test_the_algorithms_are_not_exchangeable(tmp_path: Path) -> None:
    """The file of one is not read as the other."""
    for load, other in ((load_ed25519, load_mldsa44), (load_mldsa44, load_ed25519)):
        uri = f"file:{tmp_path / load.__name__}.pem"
        load(uri, create=True)
        with pytest.raises(KeyUnusable, match="private key of"):
            other(uri)
