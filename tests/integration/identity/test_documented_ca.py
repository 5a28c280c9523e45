"""The small CA of docs/operate/tls.md, made with OpenSSL as the page says, convinces the service."""

from __future__ import annotations

import re
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.verification import Store

from attestation.errors import Unauthenticated
from attestation_service.auth.client_certificate import Trust, load_authorities, load_lists, parse, verify
from attestation_service.context.identity import Duty
from attestation_service.settings import Settings
from tests.docs.pages import text

PAGE = text("docs/operate/tls.md")


def blocks(heading: str) -> list[str]:
    """Return the blocks of commands under *heading*, up to the next one; the page has no `###` inside a block."""
    section = PAGE.split(f"# {heading}\n", 1)[1].split("\n##", 1)[0]
    return re.findall(r"^```bash\n(.*?)^```", section, flags=re.MULTILINE | re.DOTALL)


def run(commands: str, directory: Path) -> None:
    """Run a block as somebody would who pasted it."""
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", commands],
        cwd=directory, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_the_documented_ca_makes_operators_and_takes_them_back(tmp_path: Path) -> None:
    """Every block runs; alice is an operator until she is revoked, by a list that decides."""
    authority, request, judge = blocks("A small CA with OpenSSL")
    run(authority, tmp_path)
    directory = tmp_path / "operators-ca"
    run(request, directory)
    issue, revoke, renew = judge.strip().splitlines()
    run(issue, directory)
    authorities = load_authorities((directory / "operator-ca.pem").read_bytes())
    certificate = parse(
        x509.load_pem_x509_certificate((directory / "alice.pem").read_bytes()).public_bytes(Encoding.DER)
    )
    at = datetime.now(UTC)

    def trust() -> Trust:
        lists = load_lists((directory / "operator-ca.crl").read_bytes(), authorities)
        return Trust(store=Store(authorities), lists=lists)

    claims = verify(certificate, trust(), at)
    assert (claims.cn, claims.duties) == ("alice", frozenset({Duty.OPERATOR}))
    run(f"{revoke}\n{renew}", directory)
    with pytest.raises(Unauthenticated, match="revoked"):
        verify(certificate, trust(), datetime.now(UTC))
    for key in directory.glob("*-key.pem"):
        assert key.stat().st_mode & 0o077 == 0


def test_the_documented_secret_is_one(tmp_path: Path) -> None:
    """Long enough, the same in both files, readable by nobody else, and quoted as nginx wants it."""
    (commands,) = blocks("In a proxy")
    run(commands, tmp_path)
    environ = {
        "ITL_SERVICE_URL": "https://a.example",
        "ITL_PROXY_SECRET_FILE": str(tmp_path / "proxy-secret"),
    }
    settings = Settings.load(environ, env_file=None)
    assert settings.proxy_secret is not None
    secret = settings.proxy_secret.get_secret_value()
    assert len(secret) >= 32
    assert (tmp_path / "proxy-secret.conf").read_text() == (
        f'proxy_set_header Itl-Proxy-Secret "{secret}";\n'
    )
    for name in ("proxy-secret", "proxy-secret.conf"):
        assert (tmp_path / name).stat().st_mode & 0o077 == 0
