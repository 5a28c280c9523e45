"""`health`, `version`, `stats`, `config`: where the service stands and where this program's settings come from."""

from __future__ import annotations

import json
import re
import stat
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner, Result

from attestation_cli.main import cli
from attestation_cli.session import Session
from tests.unit.cli.stub import NOW, Stub


def run(service: Stub, *args: str) -> Result:
    return CliRunner().invoke(cli, list(args), obj=Session(carrier=service.carrier), catch_exceptions=False)


@pytest.fixture(autouse=True)
def _no_credential(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ITL_ADMIN_TOKEN", raising=False)
    monkeypatch.delenv("ITL_API_URL", raising=False)


# health and version


def test_health_needs_no_login() -> None:
    """Each part is named; no credential is sent even where there is one."""
    service = Stub()
    done = run(service, "health")
    assert done.exit_code == 0
    for part in ("database", "clock", "signing keys", "1 (ES384)", "1.2.3"):
        assert part in done.stdout
    assert not [r for r in service.requests if "Authorization" in r.headers]


def test_health_of_a_service_that_is_not_ready() -> None:
    """The part that fails is named, exit 6."""
    done = run(Stub(checks={"database": "failed: OSError\x1b[2J", "clock": "ok"}), "health")
    assert done.exit_code == 6
    assert "failed: OSError" in done.stdout
    assert "NO" in done.stdout
    assert "\x1b" not in done.stdout
    answer = json.loads(run(Stub(checks={"database": "failed"}), "health", "-o", "json").stdout)
    assert (answer["alive"], answer["ready"], answer["checks"]) == (True, False, {"database": "failed"})


def test_health_of_nobody() -> None:
    """Something else answered, or nothing did: exit 6, and where the address came from."""
    elsewhere = Stub(before=lambda request: httpx.Response(200, html="<h1>router</h1>"))
    assert run(elsewhere, "health").exit_code == 6

    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    done = run(Stub(before=refuse), "health")
    assert done.exit_code == 6
    assert "--api-url" in done.stderr


def test_version_of_both() -> None:
    """This program, what it stands on, and the service; one that is away is no failure."""
    told = json.loads(run(Stub(), "version", "-o", "json").stdout)
    assert told["client"]
    assert told["sdk"]
    assert told["service"] == "1.2.3"
    away = run(Stub(before=lambda request: httpx.Response(500)), "version")
    assert away.exit_code == 0
    assert "answered 500" in away.stdout
    asked = Stub()
    assert json.loads(run(asked, "version", "--client", "-o", "json").stdout)["service"] is None
    assert asked.requests == []


def test_stats_in_words_and_bars(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every count, also where nobody is; few beside many still show."""
    monkeypatch.setenv("ITL_ADMIN_TOKEN", "t")
    shown = run(Stub(), "stats").stdout
    assert shown.startswith("1,205 machines\n")
    assert "  attested          1,200  ████" in shown
    assert "  locked                1  █\n" in shown
    assert "  revoked               0\n" in shown
    assert "  (none)                4  █\n" in shown


def test_findings_begin_with_the_worst(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is good only where it is asked for; what failed ends with 1; a text moves no cursor."""
    monkeypatch.setenv("ITL_ADMIN_TOKEN", "t")
    findings = [
        {"part": "clock", "level": "ok", "what": "right", "todo": None},
        {"part": "backups", "level": "warning", "what": "old", "todo": "make one"},
        {"part": "disk", "level": "failed", "what": "full\x1b[2J", "todo": "make room"},
    ]

    def found(count: int) -> Stub:
        told = {"at": NOW, "findings": findings[:count], "not_looked_at": ["keys"]}
        return Stub(before=lambda _: httpx.Response(200, json=told))

    done = run(found(3), "findings")
    assert done.exit_code == 1
    assert [line.split()[:2] for line in done.stdout.splitlines()[1:]] == [
        ["failed", "disk"],
        ["warning", "backups"],
    ]
    assert "\x1b" not in done.stdout
    assert "not looked at from inside: keys" in done.stderr
    assert run(found(2), "findings").exit_code == 0
    assert (
        "Nothing that needs somebody." in run(found(1), "findings").stdout + run(found(1), "findings").stderr
    )
    every = json.loads(run(found(3), "findings", "--all", "-o", "json").stdout)
    assert [each["level"] for each in every["findings"]] == ["failed", "warning", "ok"]


def test_settings_of_the_service_show_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that were changed; what may hold a secret is only said to be set."""
    monkeypatch.setenv("ITL_ADMIN_TOKEN", "t")
    settings = [
        {"name": "ITL_A", "value": "1", "is_set": True, "is_default": False},
        {"name": "ITL_SECRET", "value": None, "is_set": True, "is_default": False},
        {"name": "ITL_UNSET", "value": None, "is_set": False, "is_default": True},
    ]
    service = Stub(before=lambda _: httpx.Response(200, json={"settings": settings}))
    lines = run(service, "settings").stdout.splitlines()[1:]
    assert [line.split()[0] for line in lines] == ["ITL_A", "ITL_SECRET"]
    assert "(set, not shown)" in lines[1]
    assert len(run(service, "settings", "--all").stdout.splitlines()) == 4


def test_attention_counts_who_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """By how long, with what is not known said to be so."""
    monkeypatch.setenv("ITL_ADMIN_TOKEN", "t")
    told = {
        "at": NOW,
        "pending": {"hour": 1, "day": 2, "week": 0, "longer": 4},
        "pending_since": NOW,
        "alarms": 0,
        "failed_recently": 3,
        "undelivered": 0,
        "stale": 0,
        "oldest_result": None,
        "expiring": 0,
        "next_expiry": None,
        "ca_ends_at": None,
        "audit_entries": 12345,
        "checkpoint_entries": 12000,
        "checkpoint_at": NOW,
        "unsigned_since": NOW,
        "tpm_vendors": {},
        "tpm_vendors_more": 0,
        "tpm_without_certificate": 0,
    }
    service = Stub(before=lambda _: httpx.Response(200, json=told))
    shown = run(service, "attention").stdout
    assert "7 (1 up to an hour, 2 up to a day, 0 up to a week, 4 longer)" in shown
    assert re.search(r"failed in the last 24 h +3\n", shown)
    assert "12,345" in shown
    assert json.loads(run(service, "attention", "-o", "json").stdout)["failed_recently"] == 3


# config


def test_config_show_says_who_said_what(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Option, environment, profile, default; a token is named and never shown."""
    monkeypatch.setenv("ITL_CA_FILE", "/etc/ca.pem")
    monkeypatch.setenv("ITL_ADMIN_TOKEN", "t0p-s3cret")
    assert run(Stub(), "--profile", "x", "config", "show").exit_code == 2
    run(Stub(), "config", "set", "issuer", "https://id.example/realms/itl")
    done = run(Stub(), "--api-url", "https://flag.example", "config", "show", "-o", "json")
    told = json.loads(done.stdout)
    assert told["settings"]["api_url"] == {"value": "https://flag.example", "source": "--api-url"}
    assert told["settings"]["ca_file"] == {"value": "/etc/ca.pem", "source": "ITL_CA_FILE"}
    assert told["settings"]["issuer"]["source"] == "profile default"
    assert told["settings"]["client_id"]["source"] == "default"
    assert told["settings"]["output"] == {"value": "json", "source": "--output"}
    assert told["credential"] == {"value": "break-glass token", "source": "ITL_ADMIN_TOKEN"}
    assert told["file"] == str(home / ".itl" / "config.toml")
    assert "t0p-s3cret" not in done.output + run(Stub(), "config", "show").output
    monkeypatch.delenv("ITL_ADMIN_TOKEN")
    told = json.loads(run(Stub(), "--token-file", "/x/t", "config", "show", "-o", "json").stdout)
    assert told["credential"] == {"value": "break-glass token", "source": "/x/t"}
    monkeypatch.setenv("ITL_API_CLIENT_CERT", "/x/me.pem")
    told = json.loads(run(Stub(), "--token-file", "/x/t", "config", "show", "-o", "json").stdout)
    assert told["credential"] == {"value": "client certificate", "source": "/x/me.pem"}


def test_config_set_is_what_commands_then_use(home: Path) -> None:
    """Written for this user only; a profile of its own; the preferred one; and back to the default."""
    run(Stub(), "config", "set", "api_url", "https://attest.example/")
    file = home / ".itl" / "config.toml"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert run(Stub(), "config", "path").stdout.strip() == str(file)
    asked = Stub()
    run(asked, "health")
    assert asked.requests[0].url.host == "attest.example"
    file.write_text(file.read_text() + '\n[profiles.lab]\napi_url = "https://lab.example"\n')
    run(Stub(), "--profile", "lab", "config", "set", "output", "json")
    assert (
        json.loads(run(Stub(), "--profile", "lab", "version", "--client").stdout)["url"]
        == "https://lab.example"
    )
    run(Stub(), "config", "set", "profile", "lab")
    assert json.loads(run(Stub(), "version", "--client").stdout)["url"] == "https://lab.example"
    run(Stub(), "config", "set", "output", "--unset")
    run(Stub(), "config", "set", "keyring", "true")
    assert "keyring = true" in file.read_text()
    assert "url" not in run(Stub(), "version", "--client").stdout
    assert run(Stub(), "config", "set", "profile", "--unset").exit_code == 0
    assert "lab.example" not in run(Stub(), "config", "show").stdout


@pytest.mark.parametrize(
    "args",
    [
        ["api_url", "attest.example"],
        ["api_url", "https://u:p@attest.example"],
        ["api_url", ""],
        ["output", "xml"],
        ["keyring", "yes"],
        ["issuer", "a\x1bb"],
        ["profile", "nobody"],
        ["tokn", "x"],
        ["issuer"],
        ["issuer", "https://x", "--unset"],
    ],
)
def test_config_set_refuses_what_could_not_be_used(home: Path, args: list[str]) -> None:
    """Exit 2, and the file is as it was."""
    assert run(Stub(), "config", "set", *args).exit_code == 2
    assert not (home / ".itl" / "config.toml").exists()
