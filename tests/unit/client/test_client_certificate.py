"""A client certificate instead of a token: what is refused before anything is sent."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from attestation.client import OperatorClient
from attestation.client.connection import HTTPSender, tls_context
from attestation.client.errors import TLSFailed
from attestation.client.plain import unreachable
from attestation.errors import RequestInvalid
from tests.fixtures.operator_pki import OperatorCA

CA = OperatorCA(datetime(2026, 11, 21, 12, 0, tzinfo=UTC))
ALICE = CA.issue()
URL = "https://attest.example.test"


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """Alice's certificate and key."""
    return ALICE.files(tmp_path, "alice")


def test_a_certificate_stands_for_a_token(files: tuple[Path, Path]) -> None:
    """With it no token is needed and none is sent; without both nobody is an operator."""
    OperatorClient(URL, None, client_certificate=files).close()
    with HTTPSender(URL, client_certificate=files) as connection:
        assert "Authorization" not in connection._headers
    with pytest.raises(RequestInvalid, match="token or a client certificate"):
        OperatorClient(URL, None)


def test_over_plain_http_it_would_prove_nothing(files: tuple[Path, Path]) -> None:
    """Also on this computer: the operator would be nobody, and wonder."""
    for url in ("http://attest.example.test", "http://localhost:8080"):
        with pytest.raises(RequestInvalid, match="not encrypted"):
            OperatorClient(url, None, client_certificate=files, allow_plain_http=True)


def test_certificate_and_key_may_be_one_file(files: tuple[Path, Path], tmp_path: Path) -> None:
    """As many tools write them."""
    both = tmp_path / "both.pem"
    both.write_bytes(ALICE.key_pem + ALICE.pem)
    tls_context(None, (both, None))


@pytest.mark.parametrize(
    "spoil",
    [
        lambda certificate, key: certificate.unlink(),
        lambda certificate, key: key.unlink(),
        lambda certificate, key: certificate.write_bytes(b"rubbish"),
        lambda certificate, key: key.write_bytes(CA.issue().key_pem),
    ],
    ids=["no-certificate", "no-key", "rubbish", "another-key"],
)
def test_files_that_do_not_fit_are_named(
    files: tuple[Path, Path], spoil: Callable[[Path, Path], object]
) -> None:
    """Absent, rubbish, or the key of another certificate: one sentence, before anything is sent."""
    spoil(*files)
    with pytest.raises(RequestInvalid, match=r"client certificate .*alice\.pem cannot be used"):
        OperatorClient(URL, None, client_certificate=files)


def test_an_alert_is_the_peer_s_word_about_us() -> None:
    """`unknown ca` in an alert speaks of our certificate, not of the service's."""
    error = ssl.SSLError(1, "[SSL: TLSV1_ALERT_UNKNOWN_CA] tlsv1 alert unknown ca")
    error.reason = "TLSV1_ALERT_UNKNOWN_CA"
    told = unreachable(URL, error, sent=True)
    assert isinstance(told, TLSFailed)
    assert str(told) == f"{URL} refused our side of TLS: unknown ca"
