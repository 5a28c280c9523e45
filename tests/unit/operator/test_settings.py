"""Settings: an unknown or wrong one stops the start, in words, without its value."""

from __future__ import annotations

import argparse

import pytest

from attestation_operator import settings as module
from attestation_operator.main import COMMANDS, _add_flags, _named, parser
from attestation_operator.runs.settings import RunSettings
from attestation_operator.settings import Address, BoundSettings, Settings, SettingsInvalid, parse_address

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


class Switched(BoundSettings):
    """Settings with a switch."""

    seed_event_mapping: bool = False
    """Publish 100 % of what the seed publishes."""


def test_a_flag_wins() -> None:
    """Over its variable; what is wrong names where it was said."""
    flags = vars(parser().parse_args(["approver", "--workers", "3", "--leader-election-namespace=team"]))
    assert flags.pop("command") == "approver"
    settings = Settings.load(URL | {"ITL_OPERATOR_WORKERS": "5", "ITL_OPERATOR_RELIST_SECONDS": "60"}, flags)
    assert (settings.workers, settings.namespace, settings.relist_seconds) == (3, "team", 60)
    with pytest.raises(SettingsInvalid, match=r"^--workers: must be"):
        Settings.load(URL | {"ITL_OPERATOR_WORKERS": "5"}, {"workers": "0"})
    with pytest.raises(SettingsInvalid, match="ITL_OPERATOR_WORKERS: must be"):
        Settings.load(URL | {"ITL_OPERATOR_WORKERS": "0"}, {"relist_seconds": "60"})


def test_a_switch_needs_no_value() -> None:
    """But takes one: `=false` takes back what the variable says."""
    words = argparse.ArgumentParser()
    _add_flags(words, Switched)
    assert "100 % of" in words.format_help()
    for given, found in (
        ([], True),
        (["--seed-event-mapping"], True),
        (["--seed-event-mapping=false"], False),
    ):
        flags = vars(words.parse_args(given))
        loaded = Switched.load(URL | {"ITL_OPERATOR_SEED_EVENT_MAPPING": "true"}, flags)
        assert loaded.seed_event_mapping is found
    assert Switched.load(URL).seed_event_mapping is False


def test_a_node_action_names_whose_runs_act() -> None:
    """A Node is everybody's: no namespace decides about it unasked."""
    there = URL | {"ITL_OPERATOR_CLUSTER_ID": "kube-1", "ITL_OPERATOR_TOKEN_FILE": "/token"}
    assert RunSettings.load(there).acts_for == frozenset()
    for namespaces in ({}, {"node_action_namespaces": "a b"}, {"node_action_namespaces": "a,"}):
        with pytest.raises(SettingsInvalid, match=r"(?i)node.action.namespaces"):
            RunSettings.load(there, {"node_action": "label", **namespaces})
    chosen = {"node_action": "label", "node_action_namespaces": "platform,attestation"}
    assert RunSettings.load(there, chosen).acts_for == {"platform", "attestation"}


def test_no_two_settings_of_a_command_have_one_flag() -> None:
    """And each says what it is for."""
    for command in COMMANDS.values():
        settings = _named(command.settings)
        flags = settings.flags()
        assert len(set(flags.values())) == len(flags)
        assert all(field.description for field in settings.model_fields.values())


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [(":8081", "", 8081), ("127.0.0.1:0", "127.0.0.1", 0), ("[::1]:9090", "::1", 9090), ("a.b:1", "a.b", 1)],
)
def test_an_address_is_read(text: str, host: str, port: int) -> None:
    """As controllers of Kubernetes are told it."""
    assert parse_address(text) == Address(host=host, port=port)
    settings = BoundSettings.load(URL, {"health_probe_bind_address": text})
    assert settings.probes_at == Address(host=host, port=port) != settings.metrics_at


@pytest.mark.parametrize("text", ["8081", "", "a b:1", "::1:8081", ":65536", ":-1", "https://a:1"])
def test_what_is_no_address_stops_the_start(text: str) -> None:
    """Not the first probe."""
    with pytest.raises(SettingsInvalid, match="must be an address like"):
        BoundSettings.load(URL, {"metrics_bind_address": text})
