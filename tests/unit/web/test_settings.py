"""Settings of the dashboard: an unknown or wrong one stops the start, in words, without its value."""

from __future__ import annotations

from pathlib import Path

import pytest

from attestation_web import main
from attestation_web.settings import Settings, SettingsInvalid

GOOD = {
    "ITL_WEB_URL": "https://dash.example",
    "ITL_WEB_SERVICE_URL": "https://attest.example",
    "ITL_WEB_OIDC_ISSUER": "https://id.example/realms/itl",
}


def test_three_addresses_are_enough() -> None:
    """All else has a default; what others read is passed over."""
    settings = Settings.load(GOOD | {"PATH": "/bin", "ITL_SERVICE_URL": "x", "ITL_WEB_THREADS": ""})
    assert settings.is_encrypted
    assert (settings.listen_host, settings.listen_port) == ("127.0.0.1", 7788)
    assert settings.oidc_client_id == "attestation-web"


@pytest.mark.parametrize(
    ("url", "origin"),
    [
        ("https://Dash.Example/", "https://dash.example"),
        ("https://dash.example:443", "https://dash.example"),
        ("HTTPS://dash.example:8443", "https://dash.example:8443"),
        ("http://localhost:80", "http://localhost"),
    ],
)
def test_the_address_is_spelled_as_browsers_do(url: str, origin: str) -> None:
    """They say it with each form; another spelling of the same would refuse them all."""
    assert Settings.load(GOOD | {"ITL_WEB_URL": url}).url == origin


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"ITL_WEB_SERVICE_URL": ""}, "ITL_WEB_SERVICE_URL: is missing"),
        ({"ITL_WEB_THREAD": "8"}, "did you mean ITL_WEB_THREADS?"),
        ({"ITL_WEB_PASSWORD": "hunter2"}, "unknown setting ITL_WEB_PASSWORD"),
        ({"ITL_WEB_URL": "https://dash.example/sub"}, "ITL_WEB_URL: must have no path"),
        ({"ITL_WEB_URL": "https://[2001:db8::1]"}, "ITL_WEB_URL: must name a host"),
        ({"ITL_WEB_URL": "http://dash.example"}, "ITL_WEB_URL: is not encrypted"),
        ({"ITL_WEB_SERVICE_URL": "https://a.example/api/v1/"}, "is given without /api/v1"),
        ({"ITL_WEB_SERVICE_URL": "http://attest.example"}, "ITL_WEB_SERVICE_URL: is not encrypted"),
        ({"ITL_WEB_OIDC_ISSUER": "http://id.example"}, "is not encrypted"),
        ({"ITL_WEB_OIDC_SCOPE": "profile"}, "must contain openid"),
        ({"ITL_WEB_REAUTHENTICATION_SECONDS": "0"}, "ITL_WEB_REAUTHENTICATION_SECONDS"),
        ({"ITL_WEB_TLS_CERT_FILE": "/cert.pem"}, "both or none"),
        (
            {"ITL_WEB_OIDC_CLIENT_SECRET": "hunter2", "ITL_WEB_OIDC_CLIENT_SECRET_FILE": "/s"},
            "one of the two",
        ),
    ],
)
def test_what_is_wrong_is_named(given: dict[str, str], words: str) -> None:
    """A typo must not switch a control off."""
    with pytest.raises(SettingsInvalid) as refused:
        Settings.load(GOOD | given)
    assert words in str(refused.value)
    assert "hunter2" not in str(refused.value)


def test_the_secret_comes_from_its_file(tmp_path: Path) -> None:
    """Without the line break at its end; a file that holds none stops the start."""
    file = tmp_path / "secret"
    file.write_text("a secret that is long enough\n")
    settings = Settings.load(GOOD | {"ITL_WEB_OIDC_CLIENT_SECRET_FILE": str(file)})
    secret = settings.client_secret()
    assert secret is not None
    assert secret.get_secret_value() == "a secret that is long enough"
    assert settings.warnings() == []
    file.write_text("\n")
    with pytest.raises(SettingsInvalid, match="holds no secret"):
        settings.client_secret()


def test_what_weakens_it_is_told() -> None:
    """No secret, a short one, no TLS."""
    local = GOOD | {"ITL_WEB_URL": "http://127.0.0.1:7788"}
    assert [w.partition(":")[0] for w in Settings.load(local).warnings()] == [
        "no client secret",
        "browsers reach it without TLS",
    ]
    short = Settings.load(GOOD | {"ITL_WEB_OIDC_CLIENT_SECRET": "short"}).warnings()
    assert short == ["the client secret is shorter than 16 characters"]


def test_the_program_says_what_is_set(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """`check` starts nothing; a fault is told by name, also of a file, with the exit code of usage."""
    for name, value in GOOD.items():
        monkeypatch.setenv(name, value)
    assert main.main(["check"]) == 0
    assert "https://dash.example for https://attest.example" in capsys.readouterr().out
    no_certificate = tmp_path / "no.pem"
    no_certificate.write_text("no certificate")
    for file in (tmp_path / "none.pem", no_certificate):
        for names in (["SERVICE_CA_FILE"], ["OIDC_CA_FILE"], ["TLS_CERT_FILE", "TLS_KEY_FILE"]):
            with monkeypatch.context() as patch:
                for name in names:
                    patch.setenv(f"ITL_WEB_{name}", str(file))
                assert main.main(["check"]) == main.EXIT_USAGE
            said = capsys.readouterr().err
            assert str(file) in said
            assert "cannot be used" in said
    monkeypatch.setenv("ITL_WEB_THREDS", "8")
    assert main.main(["check"]) == main.EXIT_USAGE
    assert "did you mean ITL_WEB_THREADS?" in capsys.readouterr().err
