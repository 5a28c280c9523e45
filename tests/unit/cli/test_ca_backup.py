"""A backup of the CA is proven by a signature, and by nothing less."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ed25519
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)

from attestation.errors import KeyUnusable, KeyURIInvalid, RequestInvalid
from attestation.keys.open import KeyOptions, open_key
from attestation.pki.profiles import ProfileName
from attestation_cli import ca_backup
from attestation_cli.ca_backup import Wanted, advice, modules, prove, read_certificates
from attestation_cli.main import cli
from attestation_cli.session import Session
from tests.unit.pki.certificate_kit import ALGORITHMS, CA, ca_of

PASSPHRASE = b"correct horse"


def wanted(ca: CA, scheme: str = "file") -> Wanted:
    """Return the key of *ca* as the service names it."""
    return Wanted(name="3f6f0e1b2c3d4e5f", state="active", certificate=ca.certificate, scheme=scheme)


def store(ca: CA, path: Path, passphrase: bytes | None = PASSPHRASE) -> Path:
    """Write the key of *ca* as the service keeps it."""
    how = BestAvailableEncryption(passphrase) if passphrase else NoEncryption()
    path.write_bytes(ca.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, how))
    path.chmod(0o600)
    return path


def answer(*said: ca_backup.Proof) -> list[bool]:
    """Return which keys are proven."""
    return [proof.why is None for proof in said]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_folder_a_file_and_a_uri_hold_the_key(algorithm: Any, tmp_path: Path) -> None:
    """Encrypted or not; the passphrase is asked for only where a file needs it."""
    ca = ca_of(algorithm)
    file = store(ca, tmp_path / "ca.pem")
    for source in (str(tmp_path), str(file), f"file:{file}", f"file:{tmp_path}"):
        (proof,) = prove([wanted(ca)], source, passphrase=lambda: PASSPHRASE, modules={})
        assert (proof.why, proof.where) == (None, str(file))

    def nobody() -> bytes:
        raise AssertionError("asked")

    store(ca, file, None)
    assert answer(*prove([wanted(ca)], str(file), passphrase=nobody, modules={})) == [True]


def test_a_copy_is_tried_whoever_owns_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What root unpacks of a tar belongs to the service's user, a stick has no owners; the service itself is strict."""
    ca = ca_of("ecdsa-p384")
    file = store(ca, tmp_path / "ca.pem")
    if os.geteuid() == 0:
        os.chown(file, 4711, 4711)
    monkeypatch.setattr("attestation.keys.file.os.geteuid", lambda: 815)
    (proof,) = prove([wanted(ca)], str(tmp_path), passphrase=lambda: PASSPHRASE, modules={})
    assert (proof.verdict, proof.warning) == ("proven", None)
    with pytest.raises(KeyUnusable, match=r"belongs to user .* chown 815"):
        open_key(f"file:{file}", KeyOptions(passphrase=lambda: PASSPHRASE))
    file.chmod(0o755)
    (proof,) = prove([wanted(ca)], str(tmp_path), passphrase=lambda: PASSPHRASE, modules={})
    assert proof.verdict == "proven"
    assert proof.warning == f"others may read {file}; where you put it back: chmod 0600"
    with pytest.raises(KeyUnusable, match="must be 0600"):
        open_key(f"file:{file}", KeyOptions(passphrase=lambda: PASSPHRASE))


def test_another_key_of_the_same_name_is_not_the_key(tmp_path: Path) -> None:
    """What counts is the signature under the certificate, not the name of a file."""
    ca, other = ca_of("ecdsa-p384"), ca_of("ecdsa-p384", "other")
    store(other, tmp_path / "ca.pem")
    (proof,) = prove([wanted(ca)], str(tmp_path), passphrase=lambda: PASSPHRASE, modules={})
    assert (proof.verdict, proof.where) == ("missing", None)
    assert proof.why == "none of the 1 keys of CAs there is this one"
    proofs = prove([wanted(ca), wanted(other)], str(tmp_path), passphrase=lambda: PASSPHRASE, modules={})
    assert answer(*proofs) == [False, True]


def test_a_wrong_passphrase_proves_nothing(tmp_path: Path) -> None:
    """And the reason is told, also where a key of another kind lies beside."""
    ca = ca_of("ecdsa-p384")
    store(ca, tmp_path / "ca.pem")
    audit = ed25519.Ed25519PrivateKey.generate()
    (tmp_path / "audit.pem").write_bytes(
        audit.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    )
    (tmp_path / "audit.pem").chmod(0o600)
    (proof,) = prove([wanted(ca)], str(tmp_path), passphrase=lambda: b"wrong", modules={})
    assert proof.why is not None
    assert "passphrase does not decrypt" in proof.why
    assert proof.verdict == "not opened"  # it may well be there
    named = f"file:{tmp_path / 'audit.pem'}"
    (proof,) = prove([wanted(ca)], named, passphrase=lambda: PASSPHRASE, modules={})
    assert proof.why is not None
    assert "signs no certificates" in proof.why


def test_a_key_that_does_not_sign_is_no_backup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A token may show a public half whose private half is gone: only the self-test tells."""
    from attestation.keys.open import OpenKey

    ca = ca_of("ecdsa-p384")
    store(ca, tmp_path / "ca.pem")

    def broken(self: OpenKey, public_key: object) -> None:
        raise KeyUnusable("does not sign")

    monkeypatch.setattr(OpenKey, "self_test", broken)
    (proof,) = prove([wanted(ca)], str(tmp_path), passphrase=lambda: PASSPHRASE, modules={})
    assert (proof.verdict, proof.where, proof.why) == ("does not sign", None, "does not sign")


def test_a_key_in_hardware_has_no_file(tmp_path: Path) -> None:
    """It is said what its backup is instead."""
    store(ca_of("ecdsa-p384", "other"), tmp_path / "ca.pem")
    for scheme in ("pkcs11", "tpm2"):
        ask = [wanted(ca_of("ecdsa-p384"), scheme)]
        (proof,) = prove(ask, str(tmp_path), passphrase=lambda: PASSPHRASE, modules={})
        assert proof.why is not None
        assert "in hardware" in proof.why


@pytest.mark.parametrize("source", ["nowhere", "file:relative", "pkcs11:token=T", "file:/a?pin-value=1"])
def test_what_is_no_backup_is_refused(source: str, tmp_path: Path) -> None:
    """A folder that is not there, URIs that break a rule."""
    if source == "nowhere":
        source = str(tmp_path / source)
    with pytest.raises((RequestInvalid, KeyURIInvalid)):
        prove([], source, passphrase=lambda: PASSPHRASE, modules={})


def test_a_folder_without_keys_is_refused(tmp_path: Path) -> None:
    """Certificates alone are no backup; neither is what cannot be read."""
    (tmp_path / "ca.crt").write_bytes(ca_of("ecdsa-p384").certificate)
    (tmp_path / "big.pem").write_bytes(b"PRIVATE KEY-----" * 5000)
    with pytest.raises(RequestInvalid, match="no file there holds"):
        prove([], str(tmp_path), passphrase=lambda: PASSPHRASE, modules={})


def test_certificates_are_read_from_a_bundle(tmp_path: Path) -> None:
    """Only those by themselves: a cross certificate is of the same key under another issuer."""
    old, new = ca_of("ecdsa-p384"), ca_of("ecdsa-p384", "other")
    cross = old.issue(
        old.content_of(ProfileName.CA_CROSS, subject=new.content.subject, spki=new.content.spki)
    )
    ders = [old.certificate, new.certificate, cross]
    pem = b"".join(x509.load_der_x509_certificate(d).public_bytes(Encoding.PEM) for d in ders)
    file = tmp_path / "bundle.pem"
    file.write_bytes(pem)
    assert [w.certificate for w in read_certificates(file)] == [old.certificate, new.certificate]
    assert read_certificates(file)[1].name == "ITL Machine Enrollment CA other"
    file.write_bytes(old.certificate)
    assert [w.certificate for w in read_certificates(file)] == [old.certificate]
    file.write_bytes(cross)
    with pytest.raises(RequestInvalid, match="by itself"):
        read_certificates(file)
    for data in (b"", b"\x30\x00", b"text"):
        file.write_bytes(data)
        with pytest.raises(RequestInvalid, match="no certificate"):
            read_certificates(file)
    with pytest.raises(RequestInvalid, match="No such file"):
        read_certificates(tmp_path / "nowhere")


def test_what_a_backup_needs_is_said_for_every_kind() -> None:
    """A file with its passphrase, a token's own means, nothing for a TPM."""
    assert "ca-1.pem" in advice("file:/var/lib/ca-1.pem")
    assert "token" in advice("pkcs11:token=T;object=ca")
    assert "never leaves" in advice("tpm2:handle=0x81010001")


def test_modules_are_named() -> None:
    """As in ITL_PKCS11_MODULES; a path alone is none."""
    assert modules(["soft=/usr/lib/softhsm.so"]) == {"soft": Path("/usr/lib/softhsm.so")}
    for text in ("/usr/lib/softhsm.so", "soft=", "soft=relative.so"):
        with pytest.raises(KeyUnusable, match="NAME="):
            modules([text])


def _run(*args: str, answer: str | None = None) -> Result:
    return CliRunner().invoke(
        cli, ["ca", "backup-check", *args], obj=Session(), input=answer, catch_exceptions=False
    )


def test_the_command_works_without_a_service(tmp_path: Path) -> None:
    """Exit 0 where every key is proven, 1 where one is missing; the passphrase from a file or a prompt, never shown."""
    ca, other = ca_of("ecdsa-p384"), ca_of("ecdsa-p384", "other")
    store(ca, tmp_path / "ca.pem")
    bundle, secret = tmp_path / "bundle", tmp_path / "secret"
    bundle.write_bytes(ca.certificate)
    secret.write_bytes(PASSPHRASE + b"\n")
    asked = _run(str(tmp_path), "--certificates", str(bundle), answer=PASSPHRASE.decode() + "\n")
    assert asked.exit_code == 0, asked.output
    assert "proven" in asked.stdout
    assert PASSPHRASE.decode() not in asked.output
    told = _run(str(tmp_path), "--certificates", str(bundle), "--passphrase-file", str(secret), "-o", "json")
    assert told.exit_code == 0
    (key,) = json.loads(told.stdout)["keys"]
    assert key["sha256"] == ca_backup.fingerprint(ca.certificate)
    bundle.write_bytes(other.certificate)
    missing = _run(str(tmp_path), "--certificates", str(bundle), "--passphrase-file", str(secret))
    assert missing.exit_code == 1
    assert "MISSING" in missing.stdout
    assert "none of the 1 keys" in missing.stderr
