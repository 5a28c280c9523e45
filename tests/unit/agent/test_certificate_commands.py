"""`attestation-agent cert` and `attestation-agent sign`, and the settings of certificates."""

from __future__ import annotations

import base64
import ipaddress
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from attestation.tpm import parse_public
from attestation.tpm.key_file import encode_key_file
from attestation_agent.exits import Exit, UsageError
from attestation_agent.main import main
from attestation_agent.offered import BUNDLE, CERTIFICATE, CHAIN, KEY, Offered
from attestation_agent.settings import load
from attestation_agent.signer import Signer, serving
from attestation_testing import SoftwareNode
from tests.fixtures.operator_pki import OperatorCA
from tests.unit.agent.world import Events

NOW = datetime.now(UTC).replace(microsecond=0)
NAMES = x509.SubjectAlternativeName(
    [
        x509.UniformResourceIdentifier("urn:itl:ek:" + "ab" * 48),
        x509.DNSName("w-7"),
        x509.IPAddress(ipaddress.ip_address("192.0.2.7")),
        x509.RFC822Name("odd@example.test"),
    ]
)
ABOUT = {"renew_at": "2026-11-21T20:00:00.000000Z", "key": "ecc-p384", "key_tier": 4}


def certificate(
    *, ends: datetime = NOW + timedelta(days=1), names: bool = True, cn: str = "machine-1"
) -> bytes:
    """Return a certificate, PEM."""
    ca = OperatorCA(NOW)
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, cn)]))
        .issuer_name(ca.certificate.subject)
        .public_key(ca.key.public_key())
        .serial_number(0x1F)
        .not_valid_before(NOW - timedelta(days=2))
        .not_valid_after(ends)
    )
    if names:
        builder = builder.add_extension(NAMES, critical=False)
    return builder.sign(ca.key, hashes.SHA256()).public_bytes(Encoding.PEM)


def offer(directory: Path, pem: bytes, kind: str = "client") -> Offered:
    """Offer it."""
    offered = Offered(directory)
    offered.replace(kind, {KEY: b"key\n", CERTIFICATE: pem, CHAIN: b"", BUNDLE: pem}, ABOUT)
    return offered


def shown(
    capsys: pytest.CaptureFixture[str], state: Path, *flags: str, exit_code: int = Exit.OK
) -> dict[str, Any]:
    """Run `cert --json`."""
    assert main(["cert", "--json", "--state-dir", str(state), *flags]) == exit_code
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_cert_tells_what_there_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Serial, subject, names, issuer, validity, next renewal, key and where, files, and the last error."""
    offered = offer(tmp_path / "tls", certificate())
    (found,) = shown(capsys, tmp_path)["certificates"]
    assert found == {
        "kind": "client",
        "valid": True,
        "certificate": {
            "serial": "0" * 38 + "1f",
            "subject": "CN=machine-1",
            "san": ["URI:urn:itl:ek:" + "ab" * 48, "DNS:w-7", "IP:192.0.2.7", "other:odd@example.test"],
            "issuer": "CN=Operators",
            "not_before": found["certificate"]["not_before"],
            "not_after": found["certificate"]["not_after"],
        },
        "next_renewal": ABOUT["renew_at"],
        "renewal_asked": False,
        "key": "ecc-p384",
        "key_tier": 4,
        "directory": str(tmp_path / "tls" / "client"),
        "files": ["all.pem", "bundle.pem", "cert.pem", "chain.pem", "fullchain.pem", "key.pem"],
        "last_error": None,
        "next_try": None,
        "command_error": None,
    }
    offered.set_notes(
        "client",
        {
            "error": {
                "at": "2026-11-21T19:00:00.000000Z",
                "code": "machine-not-admitted",
                "reason": "no\x1b[31m",
            },
            "next_try_at": "2026-11-21T19:10:00.000000Z",
            "tell_error": "exit status 1",
        },
    )
    assert main(["cert", "--state-dir", str(tmp_path)]) == Exit.OK
    text = capsys.readouterr().out
    for expected in (
        "certificate  client, valid\n",
        "serial       " + "0" * 38 + "1f\n",
        "names        URI:urn:itl:ek:",
        "renewed at   2026-11-21T20:00:00Z\n",
        "key          ecc-p384 in the TPM\n",
        f"files        {tmp_path}/tls/client: all.pem",
        "last error   2026-11-21T19:00:00Z machine-not-admitted: no\ufffd[31m\n",
        "tried again  2026-11-21T19:10:00Z\n",
        "command      failed: exit status 1\n",
    ):
        assert expected in text


def test_cert_says_by_its_exit_code_whether_all_is_well(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """27: none, none yet, or one that has expired."""
    assert shown(capsys, tmp_path, exit_code=Exit.NO_CERTIFICATE)["certificates"] == []
    assert main(["cert", "--state-dir", str(tmp_path)]) == 27
    assert "no certificates" in capsys.readouterr().out
    assert not (tmp_path / "tls").exists(), "looking changes nothing"
    elsewhere = tmp_path / "elsewhere"
    Offered(elsewhere).set_notes("server", {"error": {"at": "x", "code": "y", "reason": "z"}})
    flags = ("--certificate-dir", str(elsewhere))
    (found,) = shown(capsys, tmp_path, *flags, exit_code=Exit.NO_CERTIFICATE)["certificates"]
    assert (found["kind"], found["valid"], found["certificate"]) == ("server", False, None)
    main(["cert", "--state-dir", str(tmp_path), *flags])
    assert "certificate  server, none yet\n" in capsys.readouterr().out
    offer(elsewhere, certificate(ends=NOW - timedelta(hours=1), names=False), "server")
    (found,) = shown(capsys, tmp_path, *flags, exit_code=Exit.NO_CERTIFICATE)["certificates"]
    assert (found["valid"], found["certificate"]["san"]) == (False, [])
    offer(elsewhere, certificate(), "server")
    assert shown(capsys, tmp_path, *flags)["certificates"][0]["valid"]


def test_cert_renew_asks_the_agent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """For whatever is there; nothing where nothing is."""
    main(["cert", "--renew", "--state-dir", str(tmp_path)])
    assert not (tmp_path / "tls").exists()
    offered = offer(tmp_path / "tls", certificate())
    capsys.readouterr()
    (found,) = shown(capsys, tmp_path, "--renew")["certificates"]
    assert found["renewal_asked"]
    assert offered.asked("client")
    assert not offered.asked("server")
    main(["cert", "--state-dir", str(tmp_path)])
    assert "renewed at   now, as asked\n" in capsys.readouterr().out


def test_who_may_not_ask_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a usage error."""

    def refused(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    offer(tmp_path / "tls", certificate())
    monkeypatch.setattr(Offered, "ask", refused)
    assert main(["cert", "--renew", "--state-dir", str(tmp_path)]) == Exit.USAGE
    assert "Permission denied" in capsys.readouterr().err


def test_sign(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file, or a digest, by the running agent; base64 comes out."""
    tpm, offered, socket = SoftwareNode(1), Offered(tmp_path / "tls"), tmp_path / "s" / "sock"
    key = tpm.create_signing_key()
    pem = certificate()
    offered.replace("client", {KEY: encode_key_file(key), CERTIFICATE: pem, CHAIN: b"", BUNDLE: pem}, ABOUT)
    (tmp_path / "data").write_bytes(b"abc")
    public = parse_public(key.public).key()
    assert isinstance(public, ec.EllipticCurvePublicKey)
    digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    with serving(Signer(socket, offered=offered, tpm=tpm, log=Events())):
        for how in (
            [str(tmp_path / "data")],
            ["--digest", digest],
            ["--algorithm", "ecdsa-sha256", "--digest", digest],
        ):
            assert main(["sign", "--signer-socket", str(socket), *how]) == Exit.OK
            public.verify(base64.b64decode(capsys.readouterr().out), b"abc", ec.ECDSA(hashes.SHA256()))
        refused = ["sign", "--signer-socket", str(socket), "--kind", "server", "--digest", digest]
        assert main(refused) == Exit.REFUSED
        assert "no-certificate" in capsys.readouterr().err
        assert main(["sign", "--signer-socket", str(socket), str(tmp_path / "absent")]) == Exit.USAGE
        other = ["sign", "--signer-socket", str(socket), "--algorithm", "rsa-pss-sha256", "--digest", digest]
        assert main(other) == Exit.REFUSED


def test_sign_needs_a_signer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its address, and somebody there."""
    assert main(["sign", "--digest", "00"]) == Exit.USAGE
    assert "ITL_AGENT_SIGNER_SOCKET" in capsys.readouterr().err
    assert main(["sign", "--signer-socket", str(tmp_path / "none"), "--digest", "00"]) == Exit.REFUSED


def test_settings() -> None:
    """Off unless asked for; words that mean something."""
    flags = {"server_url": "https://x"}
    settings = load(flags, environ={})
    assert (settings.certificates, settings.signer_socket, settings.certificate_dir) == ((), None, None)
    assert (settings.certificate_key, settings.certificate_new_key) == ("auto", False)
    environ = {
        "ITL_AGENT_CERTIFICATES": "server, client,server",
        "ITL_AGENT_CERTIFICATE_DIR": "/etc/itl/tls",
        "ITL_AGENT_CERTIFICATE_KEY": "ecc-p384",
        "ITL_AGENT_CERTIFICATE_NEW_KEY": "yes",
        "ITL_AGENT_CERTIFICATE_COMMAND": "systemctl reload nginx",
        "ITL_AGENT_CERTIFICATE_GROUP": "www-data",
        "ITL_AGENT_SIGNER_SOCKET": "/run/itl-tpm/signer/sock",
    }
    settings = load(flags, environ=environ)
    assert settings.certificates == ("server", "client")
    assert settings.certificate_new_key
    assert settings.certificate_command == ("systemctl", "reload", "nginx")
    for name, text in (
        ("certificates", "operator"),
        ("certificates", "client,"),
        ("certificate_key", "ecc-p521"),
        ("certificate_new_key", "true"),
        ("certificate_command", " "),
    ):
        with pytest.raises(UsageError):
            load({**flags, name: text}, environ={})
