"""`attestation operator-cert` against the real application: files, votes, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

from tests.fixtures.in_process import InProcessService, in_process_service
from tests.integration.cli.test_cli_live import Terminal

PASSPHRASE = b"correct horse"
REQUEST = ("operator-cert", "request", "--name", "carla")


@pytest.fixture
def local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[InProcessService]:
    """A service with a CA for operators; one operator is enough. Whoever sits there sits in an empty folder."""
    tmp_path.chmod(0o700)
    monkeypatch.setenv("HOME", str(tmp_path))
    desk = tmp_path / "desk"
    desk.mkdir()
    monkeypatch.chdir(desk)
    Path("passphrase").write_bytes(PASSPHRASE + b"\n")
    settings: dict[str, Any] = {"enrollment_ca_unencrypted": True, "operator_certificates": True}
    with in_process_service(tmp_path / "service", **settings) as found:
        yield found


@pytest.fixture
def terminal(local: InProcessService, monkeypatch: pytest.MonkeyPatch) -> Terminal:
    found = Terminal(local, monkeypatch)
    found.sit_down("anna")
    return found


def request(terminal: Terminal, *more: str) -> Any:
    """Request a certificate with a new key."""
    return terminal.run(*REQUEST, "--key", "carla.key", "--passphrase-file", "passphrase", *more)


def test_the_key_stays_here_encrypted(terminal: Terminal) -> None:
    """Key, request and certificate lie side by side; the key opens with its passphrase only, and only for its owner."""
    done = request(terminal, "--duty", "viewer", "--days", "3")
    assert done.exit_code == 0, done.output
    assert "carla.pem" in done.stdout
    assert Path("carla.key").stat().st_mode & 0o777 == 0o600
    assert b"ENCRYPTED" in Path("carla.key").read_bytes()
    key = load_pem_private_key(Path("carla.key").read_bytes(), PASSPHRASE)
    certificate = x509.load_pem_x509_certificate(Path("carla.pem").read_bytes())
    spki = [
        public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        for public in (key.public_key(), certificate.public_key())
    ]
    assert spki[0] == spki[1]
    assert certificate.subject.rfc4514_string() == "CN=carla,OU=viewer,O=ITL Usions,C=NL"
    assert x509.load_pem_x509_csr(Path("carla.csr").read_bytes()).is_signature_valid


def test_a_request_of_somebody_else(terminal: Terminal) -> None:
    """With --csr the certificate is printed, or written where --out says; as JSON it is whole."""
    assert request(terminal).exit_code == 0
    printed = terminal.ok(*REQUEST, "--csr", "carla.csr")
    assert "-----BEGIN CERTIFICATE-----" in printed
    terminal.ok(*REQUEST, "--csr", "carla.csr", "--out", "other.pem", "-r", "new laptop")
    assert x509.load_pem_x509_certificates(Path("other.pem").read_bytes())
    assert "BEGIN CERTIFICATE" in terminal.json(*REQUEST, "--csr", "carla.csr")["certificate_pem"]
    assert "carla" in terminal.ok("operator-cert", "list", "-o", "wide")
    assert len(terminal.json("operator-cert", "list", "--limit", "2")) == 2


def test_nothing_is_overwritten(terminal: Terminal) -> None:
    """A key that is there already, a request, or a certificate, stops the command before anything is asked."""
    for name in ("carla.key", "carla.csr", "carla.pem"):
        Path(name).write_text("mine")
        done = request(terminal)
        assert (done.exit_code, Path(name).read_text()) == (2, "mine")
        Path(name).unlink()
    assert terminal.json("operator-cert", "list") == []
    # Names that end alike do not fall together.
    done = terminal.run(*REQUEST, "--key", "carla.pem", "--passphrase-file", "passphrase")
    assert done.exit_code == 0, done.output
    assert b"ENCRYPTED" in Path("carla.pem").read_bytes()
    assert b"CERTIFICATE" in Path("carla.pem.pem").read_bytes()


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("--key", "k", "--csr", "c"),
        ("--csr", "absent.csr"),
        ("--csr", "passphrase"),
        ("--key", "k", "--passphrase-file", "absent"),
        ("--key", "k", "--passphrase-file", "empty"),
        ("--key", "k"),  # nobody can be asked: stdin is no terminal
        ("--key", "absent/k", "--passphrase-file", "passphrase"),
    ],
)
def test_what_cannot_be(terminal: Terminal, arguments: tuple[str, ...]) -> None:
    """Wrong calls end with 2, and leave no key behind."""
    Path("empty").write_text("\n")
    assert terminal.run(*REQUEST, *arguments).exit_code == 2
    assert not Path("k").exists()


def test_a_name_that_no_certificate_can_have(terminal: Terminal) -> None:
    """Nothing is written for a name that is too long or empty."""
    for name in ("", "x" * 65):
        done = terminal.run(
            "operator-cert", "request", "--name", name, "--key", "k", "--passphrase-file", "passphrase"
        )
        assert done.exit_code == 2
        assert not Path("k").exists()


def test_break_glass_requests_nothing_and_revokes(terminal: Terminal) -> None:
    """It is told so, and may still end what is there."""
    assert request(terminal).exit_code == 0
    serial = json.loads(terminal.ok("operator-cert", "list", "-o", "json"))[0]["serial"]
    terminal.sit_down(None)
    assert terminal.run(*REQUEST, "--csr", "carla.csr").exit_code == 4
    assert terminal.run("operator-cert", "revoke", serial[:9], answer="n\n").exit_code != 0
    assert "revoked" in terminal.ok("operator-cert", "revoke", serial[:9], "--yes")
    assert terminal.run("operator-cert", "revoke", serial, "--yes").exit_code == 5


def test_which_is_meant(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    """Too few digits, none that is there, or several: nothing is revoked."""
    assert request(terminal).exit_code == 0
    terminal.ok(*REQUEST, "--csr", "carla.csr")
    assert terminal.run("operator-cert", "revoke", "abc", "--yes").exit_code == 2
    assert terminal.run("operator-cert", "revoke", "zzzzzzzzz", "--yes").exit_code == 2
    assert terminal.run("operator-cert", "revoke", "f" * 40, "--yes").exit_code == 3
    monkeypatch.setattr("attestation_cli.commands.operator_cert.LEAST_DIGITS", 0)
    several = terminal.run("operator-cert", "revoke", "", "--yes")
    assert several.exit_code == 5
    assert several.stderr.count("carla") == 2
    assert {one["state"] for one in terminal.json("operator-cert", "list")} == {"issued"}
