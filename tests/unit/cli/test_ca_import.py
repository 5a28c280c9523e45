"""`attestation ca wrap` and `ca import`: what is wrong is said before anything is wrapped, sent or asked."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from attestation.wire import pem_block
from attestation_cli.main import cli
from attestation_cli.session import Session

KEK = rsa.generate_private_key(65537, 3072)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a CA's key, in plaintext and encrypted, and a wrapping key."""
    key = ec.generate_private_key(ec.SECP384R1())
    public = (Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    (tmp_path / "plain.key").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    (tmp_path / "ca.key").write_bytes(
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret"))
    )
    (tmp_path / "kek.pem").write_bytes(KEK.public_key().public_bytes(*public))
    (tmp_path / "ec.pem").write_bytes(key.public_key().public_bytes(*public))
    return tmp_path


def run(*args: str, answer: str | None = None) -> Result:
    """Run a command without a service."""
    return CliRunner().invoke(cli, ["ca", *args], obj=Session(), input=answer, catch_exceptions=False)


def test_a_key_is_wrapped_offline(folder: Path) -> None:
    """Its passphrase is asked for; what comes out has the form of `attestation.keys.wrapping`."""
    out = folder / "ca.wrapped"
    for name, answer in (("ca.key", "secret\n"), ("plain.key", None)):
        done = run(
            "wrap", str(folder / name), "--under", str(folder / "kek.pem"), "-f", str(out), answer=answer
        )
        assert done.exit_code == 0, done.output
        assert len(pem_block(out.read_bytes(), "it", "ITL WRAPPED KEY")) == 584
        out.unlink()


@pytest.mark.parametrize(
    ("args", "answer", "words"),
    [
        (("ca.key", "--under", "kek.pem"), "wrong\n", "another passphrase"),
        (("kek.pem", "--under", "kek.pem"), None, "no private key"),
        (("plain.key", "--under", "plain.key"), None, "no public key"),
        (("plain.key", "--under", "ec.pem"), None, "no RSA key"),
        (("plain.key", "--under", "kek.pem", "--sha256", "00" * 32), None, "somebody exchanged it"),
    ],
)
def test_nothing_is_wrapped_that_should_not_be(
    folder: Path, args: tuple[str, ...], answer: str | None, words: str
) -> None:
    """The service's own key alone: who exchanges it reads what is wrapped."""
    places = [str(folder / each) if "." in each else each for each in args]
    done = run("wrap", *places, "-f", str(folder / "out"), answer=answer)
    assert done.exit_code != 0
    assert words in " ".join(done.stderr.split())
    assert not (folder / "out").exists()


def test_what_is_no_wrapped_key_is_not_sent(folder: Path) -> None:
    """Nor what are no certificates."""
    key, chain = str(folder / "plain.key"), str(folder / "kek.pem")
    done = run("import", key, "--chain", chain, "-r", "r", "--yes")
    assert (done.exit_code, "nothing that" in done.stderr) == (2, True)
    wrapped = str(folder / "ca.wrapped")
    run("wrap", key, "--under", str(folder / "kek.pem"), "-f", wrapped)
    done = run("import", wrapped, "--chain", chain, "-r", "r", "--yes")
    assert (done.exit_code, "something else than certificates" in done.stderr) == (2, True)
