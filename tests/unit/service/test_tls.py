"""TLS of our own: what stops the start."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, PrivateFormat

from attestation_service.border.tls import ServerTLS, build
from attestation_service.main import main
from attestation_service.settings import Settings, SettingsInvalid
from tests.fixtures.operator_pki import OperatorCA

AT = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
CA = OperatorCA(AT)
SERVER = CA.server("attest.example.test")


@pytest.fixture
def tls(tmp_path: Path) -> ServerTLS:
    """Good files."""
    (tmp_path / "ca.pem").write_bytes(CA.pem)
    certificate, key = SERVER.files(tmp_path, "server")
    found = ServerTLS.of(
        Settings(tls_cert_file=certificate, tls_key_file=key, operator_ca=tmp_path / "ca.pem")
    )
    assert found is not None
    return found


def test_the_default_is_tls_13_and_asks_for_certificates(tls: ServerTLS) -> None:
    """Nothing older, no tickets, one suite, and certificates of the operators' CA only."""
    context = build(tls)
    assert context.minimum_version is ssl.TLSVersion.TLSv1_3
    assert context.num_tickets == 0
    assert context.suites == {"TLS_AES_256_GCM_SHA384": 0x1302}
    assert context.verify_mode is ssl.CERT_OPTIONAL
    assert len(context.get_ca_certs()) == 1
    for option in (ssl.OP_CIPHER_SERVER_PREFERENCE, ssl.OP_NO_COMPRESSION, ssl.OP_NO_RENEGOTIATION):
        assert context.options & option


def test_without_a_ca_no_certificate_is_asked_for(tls: ServerTLS) -> None:
    """Clients are not told of certificates that nobody would look at."""
    bare = ServerTLS.of(Settings(tls_cert_file=tls.certificate, tls_key_file=tls.key))
    assert bare is not None
    assert build(bare).verify_mode is ssl.CERT_NONE


def test_without_a_certificate_tls_ends_elsewhere() -> None:
    """Plain HTTP for a proxy is the default."""
    assert ServerTLS.of(Settings()) is None


def test_older_versions_need_older_suites(tls: ServerTLS) -> None:
    """TLS 1.2 where it is allowed by name, with the suites named and no others."""
    values: dict[str, Any] = {
        "tls_cert_file": tls.certificate, "tls_key_file": tls.key, "tls_min_version": "TLSv1.2",
    }  # fmt: skip
    older = ServerTLS.of(
        Settings(tls_ciphers=("TLS_AES_256_GCM_SHA384", "ECDHE-ECDSA-AES256-GCM-SHA384"), **values)
    )
    assert older is not None
    context = build(older)
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2
    assert context.suites["ECDHE-ECDSA-AES256-GCM-SHA384"] == 0xC02C
    assert [c["name"] for c in context.get_ciphers() if not c["name"].startswith("TLS_")] == [
        "ECDHE-ECDSA-AES256-GCM-SHA384"
    ]
    none = ServerTLS.of(Settings(**values))
    assert none is not None
    with pytest.raises(SettingsInvalid, match="ITL_TLS_CIPHERS"):
        build(none)


def encrypted(path: Path) -> None:
    """Put an encrypted key into the place of a plain one."""
    path.write_bytes(
        SERVER.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"x"))
    )


@pytest.mark.parametrize("spoil", [Path.unlink, lambda path: path.write_bytes(b"rubbish")])
@pytest.mark.parametrize("which", ["certificate", "key", "client_ca"])
def test_files_that_cannot_be_used_stop_the_start(
    tls: ServerTLS, which: str, spoil: Callable[[Path], object]
) -> None:
    """Absent or rubbish: the variable is named."""
    spoil(getattr(tls, which))
    names = {
        "certificate": "ITL_TLS_CERT_FILE",
        "key": "ITL_TLS_KEY_FILE",
        "client_ca": "ITL_OPERATOR_CA",
    }
    with pytest.raises(SettingsInvalid, match=f"^{names[which]}: .*cannot be used: "):
        build(tls)


def test_a_foreign_or_encrypted_key_stops_the_start(tls: ServerTLS) -> None:
    """Nobody is asked for a passphrase on a terminal."""
    tls.key.write_bytes(CA.issue().key_pem)
    with pytest.raises(SettingsInvalid, match="not the key of the certificate"):
        build(tls)
    encrypted(tls.key)
    with pytest.raises(SettingsInvalid, match="encrypted"):
        build(tls)


def test_a_suite_that_nobody_knows_stops_the_start(tls: ServerTLS) -> None:
    """A typo must not leave a server that answers nobody, or one with less than was meant."""
    values: dict[str, Any] = {"tls_cert_file": tls.certificate, "tls_key_file": tls.key}
    typo = ServerTLS.of(Settings(tls_ciphers=("TLS_AES_256_GCM_SHA385",), **values))
    assert typo is not None
    with pytest.raises(SettingsInvalid, match="TLS_AES_256_GCM_SHA385"):
        build(typo)


def test_main_says_so_before_any_worker_starts(
    tls: ServerTLS, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """`--prepare` too: good files are good, a wrong bundle or key is one error."""
    environ = {
        "ITL_SERVICE_URL": "http://127.0.0.1:8080",
        "ITL_DB_URL": f"sqlite:///{tmp_path}/m.db",
        "ITL_ENROLLMENT_CA_DIR": str(tmp_path / "ca"),
        "ITL_TLS_CERT_FILE": str(tls.certificate),
        "ITL_TLS_KEY_FILE": str(tls.key),
        "ITL_OPERATOR_CA": str(tls.client_ca),
    }
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert main(["--prepare"]) == 0
    assert tls.client_ca is not None
    tls.client_ca.write_bytes(SERVER.pem)
    assert main(["--prepare"]) == 1
    assert "is not a CA" in capsys.readouterr().err
    tls.client_ca.write_bytes(CA.pem)
    tls.key.write_bytes(b"rubbish")
    assert main(["--prepare"]) == 1
    assert "ITL_TLS_KEY_FILE" in capsys.readouterr().err
