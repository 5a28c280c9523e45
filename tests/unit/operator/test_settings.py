"""Settings: an unknown or wrong one stops the start, in words, without its value."""

from __future__ import annotations

import pytest

from attestation_operator import settings as module
from attestation_operator.settings import Settings, SettingsInvalid

URL = {"ITL_OPERATOR_SERVICE_URL": "https://attest.example"}


def test_the_address_is_enough() -> None:
    """All else has a default; what others read is passed over."""
    settings = Settings.load(URL | {"PATH": "/bin", "ITL_REG_URL": "x", "ITL_OPERATOR_WORKERS": ""})
    assert settings.service_url == "https://attest.example"
    assert settings.listen_host == "127.0.0.1"
    assert settings.relist_seconds == 600
    assert settings.identity


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "ITL_OPERATOR_SERVICE_URL: is missing"),
        (URL | {"ITL_OPERATOR_WORKER": "8"}, "did you mean ITL_OPERATOR_WORKERS?"),
        (URL | {"ITL_OPERATOR_PASSWORD": "hunter2"}, "unknown setting ITL_OPERATOR_PASSWORD"),
        (URL | {"ITL_OPERATOR_WORKERS": "0"}, "ITL_OPERATOR_WORKERS: must be greater than or equal to 1"),
        (URL | {"ITL_OPERATOR_WORKERS": "many"}, "ITL_OPERATOR_WORKERS: must be"),
        (URL | {"ITL_OPERATOR_RELIST_SECONDS": "1"}, "ITL_OPERATOR_RELIST_SECONDS"),
        (URL | {"ITL_OPERATOR_LOG_LEVEL": "loud"}, "ITL_OPERATOR_LOG_LEVEL"),
        (URL | {"ITL_OPERATOR_NAMESPACE": "Not A Namespace"}, "must be the name of a namespace"),
        ({"ITL_OPERATOR_SERVICE_URL": "http://attest.example"}, "the token could be read on the way"),
        ({"ITL_OPERATOR_SERVICE_URL": "https://a:b@attest.example"}, "must be an address like"),
        ({"ITL_OPERATOR_SERVICE_URL": "attest.example"}, "must be an address like"),
        ({"ITL_OPERATOR_SERVICE_URL": "https://attest.example/?a=b"}, "must be an address like"),
    ],
)
def test_what_is_wrong_is_named(given: dict[str, str], words: str) -> None:
    """The variable and what it wants; never what it held."""
    with pytest.raises(SettingsInvalid) as found:
        Settings.load(given)
    assert words in str(found.value)
    assert "hunter2" not in str(found.value)


def test_all_faults_are_told_at_once() -> None:
    """Who mends one should not meet the next at the next start."""
    with pytest.raises(SettingsInvalid) as found:
        Settings.load({"ITL_OPERATOR_WORKERS": "0", "ITL_OPERATOR_X": "1", "ITL_OPERATOR_Y": "2"})
    assert len(str(found.value).splitlines()) == 4


def test_a_pod_knows_its_namespace(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is set comes first; where neither is there, the start says so."""
    from pathlib import Path

    file = Path(str(tmp_path)) / "namespace"
    monkeypatch.setattr(module, "NAMESPACE_FILE", file)
    assert Settings.load(URL | {"ITL_OPERATOR_NAMESPACE": "itl"}).lease_namespace == "itl"
    with pytest.raises(SettingsInvalid, match="ITL_OPERATOR_NAMESPACE"):
        _ = Settings.load(URL).lease_namespace
    file.write_text("from-the-pod\n")
    assert Settings.load(URL).lease_namespace == "from-the-pod"
