"""Keys of CAs that exist already, brought into files: what opens, what never does, and that nothing is left."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.asymmetric.mldsa import MLDSA87PrivateKey
from cryptography.hazmat.primitives.asymmetric.padding import MGF1, OAEP
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.keywrap import aes_key_wrap_with_padding
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from attestation.errors import KeyAmbiguous, KeyUnsupported, KeyUnusable, SignerUnavailable, UnwrapFailed
from attestation.keys.importing import KEK_NAME, drop_key, import_kek, import_key
from attestation.keys.open import KeyOptions, OpenKey
from attestation.keys.uri import FileRef, KeyRef, parse_key_uri
from attestation.keys.wrapping import wrap_key

KEY = ec.generate_private_key(ec.SECP384R1())
OPTIONS = KeyOptions(passphrase=lambda: b"secret of the deployment")


class Place:
    """A folder where keys are."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.base: KeyRef = FileRef(path=folder)
        self.kek = import_kek(self.base, OPTIONS)
        self.uri = str(FileRef(path=folder / "ca.pem"))

    def bring(self, blob: bytes, key: Any = KEY, **how: Any) -> OpenKey:
        """Bring a key in."""
        said = {"oaep_hash": "sha256", "public_key": key.public_key(), "options": OPTIONS} | how
        return import_key(self.uri, blob, self.base, **said)

    def raw(self, content: bytes) -> bytes:
        """Return something that is wrapped as keys are."""
        aes = bytes(32)
        sealed = self.kek.encrypt(aes, OAEP(MGF1(SHA256()), SHA256(), None))
        return sealed + aes_key_wrap_with_padding(aes, content)


@pytest.fixture(scope="module")
def kek(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A wrapping key, made once: RSA of 3072 bits takes a moment."""
    folder = tmp_path_factory.mktemp("kek")
    import_kek(FileRef(path=folder), OPTIONS)
    return (folder / f"{KEK_NAME}.pem").read_bytes()


@pytest.fixture
def place(tmp_path: Path, kek: bytes) -> Place:
    """A folder with the wrapping key."""
    file = tmp_path / f"{KEK_NAME}.pem"
    file.touch(0o600)
    file.write_bytes(kek)
    return Place(tmp_path)


def test_it_is_kept_encrypted_and_found_again(place: Place) -> None:
    """As keys that are made here; the key under which it came lies there encrypted too, and is made once."""
    opened = place.bring(wrap_key(KEY, place.kek))
    assert (opened.origin, opened.algorithm) == ("file", "ecdsa-p384")
    opened.self_test(KEY.public_key())
    for file in (place.folder / "ca.pem", place.folder / f"{KEK_NAME}.pem"):
        assert b"ENCRYPTED" in file.read_bytes()
        assert file.stat().st_mode & 0o777 == 0o600
    assert import_kek(place.base, OPTIONS) == place.kek
    with pytest.raises(KeyAmbiguous):
        place.bring(wrap_key(KEY, place.kek))
    drop_key(opened, place.uri, OPTIONS)
    assert not (place.folder / "ca.pem").exists()


def test_whatever_is_wrong_has_one_word_and_leaves_nothing(place: Place) -> None:
    """Who may send many would learn from a difference how to open others."""
    good = wrap_key(KEY, place.kek)
    pkcs8 = (Encoding.DER, PrivateFormat.PKCS8, NoEncryption())
    stranger = rsa.generate_private_key(65537, 3072)
    told = set()
    for blob in (
        b"",
        good[:100],
        good[:-8],
        bytes([*good[:-1], good[-1] ^ 1]),
        bytes([good[0] ^ 1, *good[1:]]),
        wrap_key(KEY, stranger.public_key()),
        wrap_key(KEY, place.kek, oaep_hash="sha1"),
        wrap_key(ec.generate_private_key(ec.SECP384R1()), place.kek),
        place.raw(b"no key at all"),
        place.raw(ed25519.Ed25519PrivateKey.generate().private_bytes(*pkcs8)),
    ):
        with pytest.raises(UnwrapFailed) as caught:
            place.bring(blob)
        told.add(str(caught.value))
        assert caught.value.__cause__ is None
        assert [each.name for each in place.folder.glob("*.pem")] == [f"{KEK_NAME}.pem"]
    assert len(told) == 1


def test_a_key_that_does_not_sign_is_not_kept(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever hinders it."""

    def fails(*_: Any) -> None:
        raise SignerUnavailable("not now")

    monkeypatch.setattr(OpenKey, "self_test", fails)
    with pytest.raises(SignerUnavailable):
        place.bring(wrap_key(KEY, place.kek))
    assert not (place.folder / "ca.pem").exists()


def test_what_is_there_must_be_a_wrapping_key(place: Place) -> None:
    """Of enough bits: what it opens is a CA's."""
    short = rsa.generate_private_key(65537, 2048).private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
    )
    (place.folder / f"{KEK_NAME}.pem").write_bytes(short)
    with pytest.raises(KeyUnusable, match="3072"):
        import_kek(place.base, KeyOptions(allow_unencrypted=True))


def test_no_key_comes_into_a_tpm_or_to_another_place_than_its_wrapping_key(place: Place) -> None:
    """A TPM makes its own; and between a folder and a token nothing is carried."""
    tpm = parse_key_uri("tpm2:path=/var/lib/ca.tss2")
    with pytest.raises(KeyUnsupported, match="TPM"):
        import_kek(tpm, OPTIONS)
    token = parse_key_uri("pkcs11:token=t;object=any;type=private?module-name=softhsm")
    with pytest.raises(KeyUnsupported, match="not where"):
        import_key(place.uri, b"", token, oaep_hash="sha256", public_key=KEY.public_key(), options=OPTIONS)
    with pytest.raises(KeyUnsupported, match="EC and RSA"):
        import_key(
            str(token),
            b"",
            token,
            oaep_hash="sha256",
            public_key=MLDSA87PrivateKey.generate().public_key(),
            options=OPTIONS,
        )
