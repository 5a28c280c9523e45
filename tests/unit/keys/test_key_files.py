"""Keys in files: encrypted, made once, kept to their owner, opened only with their passphrase."""

from __future__ import annotations

import base64
import multiprocessing
import os
import stat
import subprocess
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

from attestation.errors import (
    AlgorithmForbidden,
    KeyMismatch,
    KeyNotFound,
    KeyUnsupported,
    KeyUnusable,
    PINRejected,
)
from attestation.keys import KeyOptions, create_key, load_ed25519, load_signer, open_key
from attestation.keys import open as keys_open
from attestation.keys.file import pem_of
from attestation.keys.open import Algorithm
from attestation.keys.uri import PKCS11Ref

SECRET = KeyOptions(passphrase=lambda: b"hunter2")
PLAIN = KeyOptions(allow_unencrypted=True)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a key may be made."""
    return tmp_path / "ca" / "key.pem"


def fingerprint(uri: str) -> bytes:
    key = create_key(uri, "ecdsa-p384", SECRET).public_key
    return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


@pytest.mark.threat("T84")
def test_eight_processes_make_one_key(path: Path) -> None:
    """However many start at the same time, all of them hold the same key, and nothing else is left."""
    with multiprocessing.get_context("spawn").Pool(8) as pool:
        found = pool.map(fingerprint, [f"file:{path}"] * 8, chunksize=1)
    assert len(set(found)) == 1
    assert sorted(p.name for p in path.parent.iterdir()) == [".key.pem.lock", "key.pem"]


@pytest.mark.parametrize("algorithm", ["ecdsa-p384", "ml-dsa-87"])
def test_a_made_key(algorithm: Algorithm, path: Path) -> None:
    """Encrypted with PBES2, mode 0600 in a directory of 0700; opened again it is the same."""
    made = create_key(f"file:{path}", algorithm, SECRET)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert path.read_bytes().startswith(b"-----BEGIN ENCRYPTED PRIVATE KEY-----\n")
    opened = open_key(f"file:{path}", SECRET)
    assert opened.public_key == made.public_key
    assert (opened.algorithm, opened.origin, opened.backend) == (algorithm, "file", "file")
    assert opened.uri == f"file:{path}"
    opened.self_test(made.public_key)
    opened.close()
    opened.close()


@pytest.mark.threat("T84")
def test_openssl_reads_what_we_encrypt(path: Path) -> None:
    """An independent reader finds PBES2, HMAC-SHA-384, 210,000 iterations and AES-256-CBC, and the key."""
    create_key(f"file:{path}", "ecdsa-p384", SECRET)
    shown = subprocess.run(
        ["openssl", "asn1parse", "-in", path], capture_output=True, text=True, check=True, timeout=240
    ).stdout
    for word in (":PBES2", ":PBKDF2", ":hmacWithSHA384", ":aes-256-cbc", f":{210_000:06X}"):
        assert word in shown
    subprocess.run(
        ["openssl", "pkey", "-in", path, "-passin", "pass:hunter2", "-check", "-noout"],
        check=True,
        timeout=240,
    )


def test_every_encryption_is_fresh() -> None:
    """Salt and IV are never used twice: the same key under the same passphrase is other bytes each time."""
    key = ec.derive_private_key(5, ec.SECP384R1())
    first, second = pem_of(key, b"hunter2"), pem_of(key, b"hunter2")
    assert first.splitlines()[3] != second.splitlines()[3]
    for pem in (first, second):
        loaded = load_pem_private_key(pem, b"hunter2")
        assert isinstance(loaded, ec.EllipticCurvePrivateKey)
        assert loaded.private_numbers() == key.private_numbers()


def test_the_source_in_the_uri_wins(path: Path) -> None:
    """A passphrase that the URI names is asked for instead of that of the deployment."""
    source = path.parent.parent / "passphrase"
    source.write_bytes(b"of the uri\n")
    uri = f"file:{path}?passphrase-source=file:{source}"
    create_key(uri, "ecdsa-p384", SECRET)
    load_pem_private_key(path.read_bytes(), b"of the uri")
    open_key(uri, SECRET)
    with pytest.raises(PINRejected):
        open_key(f"file:{path}", SECRET)
    source.write_bytes(b"another\n")
    with pytest.raises(PINRejected) as refusal:
        open_key(uri, SECRET)
    assert "another" not in str(refusal.value)


def test_a_wrong_passphrase_changes_nothing(path: Path) -> None:
    """The file is there, so no other is made in its place."""
    create_key(f"file:{path}", "ecdsa-p384", SECRET)
    before = path.read_bytes()
    wrong = KeyOptions(passphrase=lambda: b"hunter3")
    with pytest.raises(PINRejected):
        create_key(f"file:{path}", "ecdsa-p384", wrong)
    assert path.read_bytes() == before


@pytest.mark.threat("T84")
def test_nothing_is_made_in_plaintext(path: Path) -> None:
    """Without a passphrase, only where the deployment says so."""
    with pytest.raises(KeyUnusable, match="passphrase"):
        create_key(f"file:{path}", "ecdsa-p384", KeyOptions())
    assert not path.parent.exists()
    create_key(f"file:{path}", "ecdsa-p384", PLAIN)
    assert b"BEGIN PRIVATE KEY" in path.read_bytes()
    open_key(f"file:{path}", PLAIN)
    with pytest.raises(KeyUnusable, match="not encrypted"):
        open_key(f"file:{path}", SECRET)


def test_a_source_that_fails_leaves_nothing(path: Path) -> None:
    """The passphrase is read before a key is made."""
    uri = f"file:{path}?passphrase-source=file:{path.parent.parent}/none"
    with pytest.raises(KeyUnusable, match="cannot be read"):
        create_key(uri, "ecdsa-p384", KeyOptions())
    assert not path.parent.exists()


def test_an_encrypted_key_without_a_passphrase(path: Path) -> None:
    """Says what is missing."""
    create_key(f"file:{path}", "ecdsa-p384", SECRET)
    with pytest.raises(KeyUnusable, match="nothing says with which passphrase"):
        open_key(f"file:{path}", PLAIN)


def test_another_algorithm_is_no_new_key(path: Path) -> None:
    """What is there stays, and is not taken for what was asked."""
    create_key(f"file:{path}", "ecdsa-p384", SECRET)
    before = path.read_bytes()
    with pytest.raises(KeyMismatch, match="ecdsa-p384; ml-dsa-87 expected"):
        create_key(f"file:{path}", "ml-dsa-87", SECRET)
    assert path.read_bytes() == before


def test_nothing_there(path: Path) -> None:
    """Opening never makes."""
    with pytest.raises(KeyNotFound):
        open_key(f"file:{path}", SECRET)
    assert not path.parent.exists()


@pytest.mark.threat("T84")
@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o660, 0o601])
def test_others_may_not_touch_it(mode: int, path: Path) -> None:
    """Any bit for group or others, encrypted or not."""
    create_key(f"file:{path}", "ecdsa-p384", SECRET)
    path.chmod(mode)
    with pytest.raises(KeyUnusable, match="0600"):
        open_key(f"file:{path}", SECRET)


@pytest.mark.threat("T84")
def test_it_belongs_to_us(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of somebody else, who can change it at any time, is refused."""
    create_key(f"file:{path}", "ecdsa-p384", SECRET)
    owner = path.stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    if owner != 0:
        with pytest.raises(KeyUnusable, match="belongs to user"):
            open_key(f"file:{path}", SECRET)
        return
    open_key(f"file:{path}", SECRET)  # root's files are everybody's
    os.chown(path, 4711, -1)
    with pytest.raises(KeyUnusable, match="belongs to user"):
        open_key(f"file:{path}", SECRET)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no key",
        b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n",
        b"-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n",
    ],
)
def test_no_key_in_the_file(content: bytes, path: Path) -> None:
    """Whatever stands there, the answer is one of ours."""
    path.parent.mkdir()
    path.write_bytes(content)
    path.chmod(0o600)
    told = "does not decrypt" if b"ENCRYPTED" in content else "holds no PEM private key"
    with pytest.raises(KeyUnusable, match=told):
        open_key(f"file:{path}", KeyOptions(passphrase=lambda: b"hunter2", allow_unencrypted=True))


def test_a_file_has_an_end(path: Path) -> None:
    """A key and as much behind it as nobody needs: not read to its end."""
    create_key(f"file:{path}", "ecdsa-p384", SECRET)
    with path.open("ab") as file:
        file.write(b"\n" * 65_536)
    with pytest.raises(KeyUnusable, match="longer than any key"):
        open_key(f"file:{path}", SECRET)


def test_a_directory_is_no_key(path: Path) -> None:
    """Neither read nor replaced."""
    path.mkdir(parents=True)
    path.chmod(0o700)
    with pytest.raises(KeyUnusable, match="cannot be read"):
        open_key(f"file:{path}", PLAIN)
    with pytest.raises(KeyUnusable, match="cannot be read"):
        create_key(f"file:{path}", "ecdsa-p384", PLAIN)


def test_a_place_where_nothing_can_be_written(tmp_path: Path) -> None:
    """Says where."""
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(KeyUnusable, match="no key can be written"):
        create_key(f"file:{tmp_path}/file/key.pem", "ecdsa-p384", PLAIN)


def test_a_kind_that_signs_no_certificates(path: Path) -> None:
    """An Ed25519 key is a key, but not of a CA."""
    load_ed25519(f"file:{path}", create=True)
    with pytest.raises(KeyUnsupported):
        open_key(f"file:{path}", PLAIN)


def test_a_kind_that_nobody_knows(path: Path) -> None:
    """PKCS#8 with an algorithm that cryptography does not have: PrivateKeyInfo of OID 1.2.3."""
    path.parent.mkdir()
    der = bytes.fromhex("300f0201003006 06022a03 0500 0402 0400".replace(" ", ""))
    path.write_bytes(
        b"-----BEGIN PRIVATE KEY-----\n" + base64.b64encode(der) + b"\n-----END PRIVATE KEY-----\n"
    )
    path.chmod(0o600)
    with pytest.raises(KeyUnsupported, match="not supported"):
        open_key(f"file:{path}", PLAIN)


def test_keys_of_others(path: Path) -> None:
    """PKCS#8 as other programs encrypt it is read; so are keys that we would not make."""
    path.parent.mkdir()
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    path.write_bytes(
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"hunter2"))
    )
    path.chmod(0o600)
    assert open_key(f"file:{path}", SECRET).algorithm == "rsa-2048"
    curve = ec.generate_private_key(ec.SECP256R1())
    path.write_bytes(curve.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption()))
    assert open_key(f"file:{path}", PLAIN).algorithm == "ecdsa-p256"


def test_the_policy_is_asked_first(path: Path) -> None:
    """A forbidden algorithm is neither made nor opened."""

    def only_mldsa(algorithm: str) -> None:
        if algorithm != "ml-dsa-87":
            raise AlgorithmForbidden(algorithm)

    strict = KeyOptions(passphrase=lambda: b"hunter2", allowed=only_mldsa)
    with pytest.raises(AlgorithmForbidden):
        create_key(f"file:{path}", "ecdsa-p384", strict)
    assert not path.parent.exists()
    create_key(f"file:{path}", "ecdsa-p384", SECRET)
    with pytest.raises(AlgorithmForbidden):
        open_key(f"file:{path}", strict)


def test_service_and_audit_keys_may_be_encrypted(path: Path) -> None:
    """A URI with a source encrypts them, too; without one they lie in plaintext, as they always did."""
    source = path.parent.parent / "passphrase"
    source.write_bytes(b"hunter2")
    for name, load in (("service", load_signer), ("audit", load_ed25519)):
        uri = f"file:{path.parent}/{name}.pem?passphrase-source=file:{source}"
        load(uri, create=True)
        load(uri)
        load_pem_private_key((path.parent / f"{name}.pem").read_bytes(), b"hunter2")
        load(f"file:{path.parent}/{name}-plain.pem", create=True)


def test_a_backend_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Says which package is missing; keys in files need none of it."""
    monkeypatch.setattr(
        keys_open, "BACKENDS", {**keys_open.BACKENDS, PKCS11Ref: "attestation.keys.no_such_module"}
    )
    with pytest.raises(KeyUnsupported, match="pkcs11: keys need"):
        open_key("pkcs11:token=t;object=o", PLAIN)
