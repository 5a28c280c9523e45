"""`attestation auth …` as an operator types it, and which token a command sends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from attestation_cli.login.cache import Login, LoginCache
from attestation_cli.login.profiles import Config, Profile, config_path, load, save
from attestation_cli.main import cli
from attestation_cli.session import Session
from tests.fixtures.operator_pki import OperatorCA
from tests.unit.cli.idp import CANARY, CLIENT, ISSUER, SUB, Browser, Idp, a_login, jwt, refused
from tests.unit.cli.stub import Stub, problem

HOSTILE = "anna\x1b]0;owned\x07\u202e\r\nroot"


def now() -> datetime:
    return datetime.now(UTC).replace(microsecond=0)


def kept(**changes: Any) -> Login:
    """Keep a login that is good for an hour from now."""
    login = a_login(obtained_at=now(), expires_at=now() + timedelta(hours=1), **changes)
    LoginCache().save(login)
    return login


def ended(**changes: Any) -> Login:
    """Keep a login whose token ended an hour ago."""
    login = a_login(obtained_at=now() - timedelta(hours=2), expires_at=now() - timedelta(hours=1), **changes)
    LoginCache().save(login)
    return login


def run(*args: str, stub: Stub | None = None, idp: Idp | None = None, answer: str | None = None) -> Result:
    session = Session(
        carrier=(stub or Stub()).carrier, login_carrier=(idp or Idp(id_token={"exp": 2**33})).carrier
    )
    done = CliRunner().invoke(cli, list(args), obj=session, input=answer, catch_exceptions=False)
    assert CANARY not in done.output, "a secret was printed"
    return done


@pytest.fixture
def at_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody sits in front of it."""
    monkeypatch.setattr("attestation_cli.screen.is_terminal", lambda: True)
    monkeypatch.setattr("attestation_cli.commands.auth_login.is_terminal", lambda: True)


def sent(stub: Stub) -> list[str]:
    return [request.headers["Authorization"].removeprefix("Bearer ") for request in stub.requests]


# Which token a command sends


def test_a_login_is_used_where_nothing_else_is_given() -> None:
    """No variable, no file: the login of the service."""
    login, stub = kept(), Stub()
    assert run("machine", "list", stub=stub).exit_code == 0
    assert sent(stub) == [login.access_token]


def test_break_glass_goes_before_a_login(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file first, then the variable: who gives them means them."""
    kept()
    stub = Stub()
    monkeypatch.setenv("ITL_ADMIN_TOKEN", "t0p-s3cret")
    run("machine", "list", stub=stub)
    file = tmp_path / "token"
    file.write_text("from-file")
    file.chmod(0o600)
    run("--token-file", str(file), "machine", "list", stub=stub)
    assert sent(stub) == ["t0p-s3cret", "from-file"]


@pytest.mark.threat("T57")
def test_a_person_is_told_once_that_break_glass_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """A forgotten variable is noticed at a terminal; programs are left alone."""
    monkeypatch.setenv("ITL_ADMIN_TOKEN", "t0p-s3cret")
    assert "break-glass" not in run("machine", "list").stderr
    notes: list[str] = []
    monkeypatch.setattr(Session, "note", lambda self, text: notes.append(text))
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    session = Session()
    session._token()
    session._token()
    assert len(notes) == 1
    assert "using break-glass" in notes[0]
    assert "t0p-s3cret" not in notes[0]


def test_without_a_login_the_way_in_is_told() -> None:
    """Exit 4, and nothing is sent."""
    stub = Stub()
    done = run("machine", "list", stub=stub)
    assert done.exit_code == 4
    assert "attestation auth login" in done.stderr
    assert stub.requests == []


def test_a_login_does_not_travel_in_the_clear() -> None:
    """As little as the break-glass token."""
    save(config_path(), Config().with_profile("p", Profile(issuer=ISSUER)))
    kept()
    stub = Stub()
    assert run("--api-url", "http://attest.example", "machine", "list", stub=stub).exit_code == 2
    assert stub.requests == []


def test_the_path_of_a_valid_login_is_short() -> None:
    """Neither httpx for the provider nor JOSE nor the keyring is loaded to find a token that is good."""
    kept()
    code = (
        "import sys\n"
        "from attestation_cli.session import Session\n"
        "assert Session()._token()\n"
        "heavy = ('httpx', 'joserfc', 'keyring', 'pydantic', 'cryptography', 'tomllib', 'http.server', 'segno')\n"
        "print([m for m in heavy if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        timeout=240,
        env=dict(os.environ),
    )
    assert done.stdout.strip() == "[]"


def test_an_ended_login_is_told_as_such() -> None:
    """Exit 4 with the command to type; the provider's words are cleaned."""
    ended()
    done = run("machine", "list", idp=Idp(token=refused("invalid_grant", HOSTILE)))
    assert done.exit_code == 4
    assert "you are not logged in" in done.stderr
    assert "attestation auth login" in done.stderr
    assert not any(c in done.stderr for c in "\x1b\x07\u202e\r")


def test_a_cache_that_others_may_read_stops_the_command() -> None:
    """Exit 2, nothing sent."""
    login, stub = kept(), Stub()
    (LoginCache().directory / f"{login.name}.json").chmod(0o644)
    done = run("machine", "list", stub=stub)
    assert done.exit_code == 2
    assert "not safe" in done.stderr
    assert stub.requests == []


# login


@pytest.fixture
def browser(monkeypatch: pytest.MonkeyPatch) -> Browser:
    """A browser with windows, which opens what it is given."""
    found = Browser(Idp(id_token={"exp": 2**33}))

    def opens(url: str) -> bool:
        found(url)
        return True

    monkeypatch.setattr("attestation_cli.login.interactive.open_browser", opens)
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.delenv("SSH_CONNECTION", raising=False)
    return found


def test_logging_in_is_remembered_under_a_profile(browser: Browser) -> None:
    """Service and provider; the next command needs neither."""
    args = ["auth", "login", "--issuer", ISSUER, "--profile", "prod", "--client-id", CLIENT]
    done = run("--api-url", "https://attest.example", *args, idp=browser.idp)
    assert done.exit_code == 0, done.output
    assert "Logged in as anna" in done.stdout
    assert browser.asked["scope"] == "openid profile email"
    config = load(config_path())
    assert config.profile == "prod"
    assert config.profiles["prod"] == Profile(
        api_url="https://attest.example", issuer=ISSUER, client_id=CLIENT
    )
    stub = Stub()
    assert run("machine", "list", stub=stub).exit_code == 0
    assert stub.requests[0].url.host == "attest.example"


def test_what_is_remembered_means_the_same_everywhere(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files are remembered with their whole path; and the user, and the keyring, only where they were given."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ca.pem").write_bytes(OperatorCA(now(), "Private").pem)
    args = ["auth", "login", "--issuer", ISSUER, "--profile", "p", "--issuer-ca-file", "ca.pem", "-u", "anna"]
    assert run(*args, idp=browser.idp).exit_code == 0
    profile = load(config_path()).profiles["p"]
    assert profile.issuer_ca_file == str(tmp_path / "ca.pem")
    assert (profile.user, profile.keyring) == ("anna", None)
    done = run(
        "--profile", "p", "auth", "login", "--profile", "p", "--issuer-ca-file", "system", idp=browser.idp
    )
    assert done.exit_code == 0
    assert load(config_path()).profiles["p"].issuer_ca_file == "system"


def test_somebody_else_than_the_browser_remembers_can_log_in(browser: Browser) -> None:
    """`--fresh` has the provider ask, `-u` suggests a name; otherwise neither is sent."""
    run("auth", "login", "--issuer", ISSUER, "--fresh", "-u", "anna", idp=browser.idp)
    assert (browser.asked["prompt"], browser.asked["login_hint"]) == ("login", "anna")
    run("auth", "login", "--issuer", ISSUER, idp=browser.idp)
    assert not {"prompt", "login_hint"} & set(browser.asked)


def test_a_profile_is_not_written_unless_asked_for(browser: Browser) -> None:
    """A login alone changes no configuration, and is found by the service it was made for."""
    assert run("auth", "login", "--issuer", ISSUER, idp=browser.idp).exit_code == 0
    assert not config_path().exists()
    stub = Stub()
    assert run("machine", "list", stub=stub).exit_code == 0
    other = run("--api-url", "https://other.example", "machine", "list", stub=stub)
    assert other.exit_code == 4
    assert len(stub.requests) == 1


def test_a_login_that_commands_will_not_use_is_told(
    browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another provider is configured; or break-glass is set."""
    save(config_path(), Config().with_profile("p", Profile(issuer="https://other.example")))
    monkeypatch.setenv("ITL_ADMIN_TOKEN", "t0p-s3cret")
    done = run("auth", "login", "--issuer", ISSUER, idp=browser.idp)
    assert "use another login or none" in done.stderr
    assert "goes before this login" in done.stderr


def test_logging_in_as_json_prints_no_token(browser: Browser) -> None:
    """Who, where, until when."""
    done = run("auth", "login", "--issuer", ISSUER, "-o", "json", idp=browser.idp)
    told = json.loads(done.stdout)
    assert (told["username"], told["issuer"], told["renewable"]) == ("anna", ISSUER, True)


def test_without_a_browser_the_address_is_printed(browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--no-browser`: the person opens it."""
    shown: list[str] = []
    true = Session.note

    def note(self: Session, text: str) -> None:
        true(self, text)
        if "http" in text:
            shown.append(text.strip())
            browser(text.strip())

    monkeypatch.setattr(Session, "note", note)
    monkeypatch.setenv("SSH_CONNECTION", "x")
    done = run("auth", "login", "--issuer", ISSUER, "--no-browser", idp=browser.idp)
    assert done.exit_code == 0, done.output
    assert shown[0].startswith(f"{ISSUER}/protocol/auth?")
    assert "--method device" in done.stderr


def test_a_provider_must_be_known() -> None:
    """Exit 2, and where to name it."""
    done = run("auth", "login")
    assert done.exit_code == 2
    assert "--issuer" in done.stderr
    assert run("auth", "login", "--realm", "itl").exit_code == 2
    assert run("auth", "login", "--issuer", "http://id.example").exit_code == 2


def test_the_cache_is_looked_at_before_anybody_is_asked(home: Path) -> None:
    """Nobody logs in in vain."""
    (home / ".itl").mkdir(mode=0o700)
    (home / ".itl" / "attestation-cache").mkdir(mode=0o755)
    (home / ".itl" / "attestation-cache").chmod(0o755)
    idp = Idp()
    assert run("auth", "login", "--issuer", ISSUER, idp=idp).exit_code == 2
    assert idp.requests == []


def test_a_keyring_that_is_missing_is_told_before_anybody_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not silently a file."""
    monkeypatch.setitem(sys.modules, "keyring", None)
    idp = Idp()
    done = run("auth", "login", "--issuer", ISSUER, "--keyring", idp=idp)
    assert done.exit_code == 2
    assert "without --keyring" in done.stderr
    assert idp.requests == []


@pytest.mark.usefixtures("at_terminal")
def test_a_password_is_asked_for() -> None:
    """And the name where none is given; neither is printed, and it is discouraged."""
    idp = Idp(id_token=None)
    done = run(
        "auth", "login", "--issuer", ISSUER, "--method", "password", idp=idp, answer="anna\npw-canary\n"
    )
    assert done.exit_code == 0, done.output
    assert idp.forms[-1][1]["password"] == "pw-canary"
    assert "passes your password through this program" in done.stderr


def test_a_password_is_not_read_from_a_pipe() -> None:
    """Whoever has it in a pipe has it in a script."""
    idp = Idp()
    done = run(
        "auth", "login", "--issuer", ISSUER, "--method", "password", "-u", "anna", idp=idp, answer="pw\n"
    )
    assert done.exit_code == 2
    assert idp.forms == []


def test_a_device_code_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Address, code and complete address, on stderr."""
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    idp = Idp(id_token={"exp": 2**33}, device={"interval": 1})
    done = run("auth", "login", "--issuer", ISSUER, "--method", "device", idp=idp)
    assert done.exit_code == 0, done.output
    assert "WDJB-MJHT" in done.stderr
    assert f"{ISSUER}/device?user_code=WDJB-MJHT" in done.stderr


@pytest.mark.parametrize("error", ["access_denied", HOSTILE])
def test_a_refusal_is_told_without_steering_the_terminal(error: str, browser: Browser) -> None:
    """The provider's words are cleaned."""
    browser.changes = {"error": error, "error_description": HOSTILE}
    done = run("auth", "login", "--issuer", ISSUER, idp=browser.idp)
    assert done.exit_code == 4
    assert not any(c in done.output for c in "\x1b\x07\u202e\r")


# whoami


def test_whoami_ends_with_one_where_nobody_is_logged_in() -> None:
    """So a script can ask."""
    assert run("auth", "whoami").exit_code == 1
    done = run("auth", "whoami", "-o", "json")
    assert (done.exit_code, json.loads(done.stdout)) == (1, {"logged_in": False})


def test_whoami_shows_what_the_token_says_and_that_nobody_verified_it() -> None:
    """Name, address, realm, roles, end."""
    kept()
    done = run("auth", "whoami")
    assert done.exit_code == 0
    for word in (
        "anna",
        "anna@itl.example",
        "itl",
        ISSUER,
        "attestation-operator",
        "in 60 min",
        "verified  no",
    ):
        assert word in done.stdout, word
    told = json.loads(run("auth", "whoami", "-o", "json").stdout)
    assert told["verified"] is False
    assert told["roles"] == ["attestation-operator"]


def test_whoami_of_an_ended_login_ends_with_one() -> None:
    """Without a refresh token there is nothing left of it."""
    ended(refresh_token=None)
    done = run("auth", "whoami")
    assert done.exit_code == 1
    assert "then log in again" in done.stdout


def test_whoami_says_when_commands_use_break_glass(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise it would show somebody who does not act."""
    kept()
    monkeypatch.setenv("ITL_ADMIN_TOKEN", "t0p-s3cret")
    assert "other commands use break-glass" in run("auth", "whoami").stderr


def test_what_a_token_says_cannot_steer_the_terminal() -> None:
    """Names and roles are the provider's, or whoever named themselves there."""
    kept(
        username=HOSTILE,
        email=HOSTILE,
        access_token=jwt(
            sub=SUB, realm_access={"roles": [HOSTILE]}, resource_access={HOSTILE: {"roles": ["x"]}}
        ),
    )
    for args in (["whoami"], ["cache-list"], ["refresh"], ["logout"]):
        done = run("auth", *args)
        assert not any(c in done.output for c in "\x1b\x07\u202e\r"), args


def test_checking_asks_the_service_with_the_login(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even where break-glass is set; 403 is a role that is missing, 401 a login that is not accepted."""
    monkeypatch.setenv("ITL_ADMIN_TOKEN", "t0p-s3cret")
    login, stub = kept(), Stub()
    done = run("auth", "whoami", "--check", stub=stub)
    assert (done.exit_code, set(sent(stub))) == (0, {login.access_token})
    assert "you may: read machines, decide about machines and what they are measured against" in done.stdout
    # Nothing is tried that could be refused, and stand in the audit.
    assert [r.url.path for r in stub.requests] == ["/api/v1/whoami"]
    auditor = Stub(whoami=stub.whoami | {"roles": ["auditor"], "rights": ["audit", "a right of tomorrow"]})
    done = run("auth", "whoami", "--check", "-o", "json", stub=auditor)
    assert json.loads(done.stdout)["may"] == ["read the audit log", "a right of tomorrow"]
    done = run("auth", "whoami", "--check", stub=Stub(before=lambda r: problem(403, "forbidden", "no")))
    assert done.exit_code == 1
    done = run("auth", "whoami", "--check", stub=Stub(before=lambda r: problem(401, "unauthenticated", "no")))
    assert done.exit_code == 4


# refresh, logout, the cache


def test_refreshing_renews_a_good_login_too() -> None:
    """E.g. for a role that was just granted."""
    login = kept()
    idp = Idp(id_token={"exp": 2**33})
    assert run("auth", "refresh", idp=idp).exit_code == 0
    fresh = LoginCache().load(login.name)
    assert fresh is not None
    assert fresh.access_token != login.access_token
    LoginCache().clear()
    assert run("auth", "refresh").exit_code == 4


def test_logging_out_revokes_the_refresh_token() -> None:
    """Here and at the provider."""
    login, idp = kept(), Idp()
    done = run("auth", "logout", idp=idp)
    assert "the provider has ended it" in done.stdout
    assert idp.forms == [
        (
            "protocol/revoke",
            {"token": login.refresh_token, "token_type_hint": "refresh_token", "client_id": CLIENT},
        )
    ]
    assert LoginCache().logins() == []
    assert "no such login" in run("auth", "logout").stdout
    assert json.loads(run("auth", "logout", "-o", "json").stdout) == {"removed": False, "revoked": False}


@pytest.mark.parametrize(
    "idp", [Idp(metadata={"revocation_endpoint": None}), Idp(metadata={"issuer": "https://evil.example"})]
)
def test_a_login_is_forgotten_even_where_the_provider_cannot_end_it(idp: Idp) -> None:
    """And that it was not ended is told."""
    kept()
    done = run("auth", "logout", idp=idp)
    assert done.exit_code == 0
    assert "has not ended it" in done.stdout
    assert LoginCache().logins() == []


def test_one_of_several_people_is_logged_out() -> None:
    """The others stay."""
    kept()
    kept(subject="ben-sub", username="ben")
    done = run("auth", "logout", "-u", "anna")
    assert [login.username for login in LoginCache().logins()] == ["ben"]
    assert "In use now: the older login of ben at" in done.stderr
    assert "No login is in use now" in run("auth", "logout").stderr


def test_the_list_shows_logins_and_what_is_wrong_with_the_others() -> None:
    """Without tokens; a file that others may read is warned of, and stops nothing here."""
    kept()
    kept(subject="ben-sub", username="ben", issuer="https://other.example")
    old = ended(subject="old-sub", username="olga", refresh_token=None)
    done = run("auth", "cache-list")
    assert done.exit_code == 0
    listed = {tuple(line.split()[:2]) for line in done.stdout.splitlines()[1:]}
    assert listed == {("ben", "valid"), ("anna", "valid"), ("olga", "expired")}
    (LoginCache().directory / f"{old.name}.json").chmod(0o640)
    done = run("auth", "cache-list", "-o", "json")
    assert {entry["username"] for entry in json.loads(done.stdout)} == {"anna", "ben"}
    assert "0640" in done.stderr


def test_an_empty_list_says_so() -> None:
    """On stderr; as JSON an empty list."""
    assert "No logins" in run("auth", "cache-list").stderr
    assert json.loads(run("auth", "cache-list", "-o", "json").stdout) == []


def test_clearing_asks_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a terminal it needs --yes; no is no."""
    kept()
    assert run("auth", "clear-cache").exit_code == 2
    with monkeypatch.context() as patch:
        patch.setattr("attestation_cli.screen.is_terminal", lambda: True)
        assert run("auth", "clear-cache", answer="n\n").exit_code == 1
    assert len(LoginCache().logins()) == 1
    assert "1 login forgotten" in run("auth", "clear-cache", "--yes").stdout
    assert LoginCache().logins() == []
    assert json.loads(run("auth", "clear-cache", "--yes", "-o", "json").stdout) == {"deleted": 0}


@pytest.mark.parametrize("output", ["wide", "csv", "yaml"])
def test_every_form_of_output_is_understood(output: str) -> None:
    """Instants are exact in those that programs read, and no form shows a token."""
    login = kept()
    instant = f"{login.expires_at:%Y-%m-%dT%H:%M:%S}Z"
    for args in (["whoami"], ["cache-list"]):
        assert instant in run("auth", *args, "-o", output).stdout, args
    for args in (["refresh"], ["logout"], ["clear-cache", "--yes"]):
        assert run("auth", *args, "-o", output).exit_code == 0


# Nothing secret


@pytest.mark.threat("T56")
@pytest.mark.parametrize("option", ["--password", "-p", "--token", "--refresh-token", "--client-secret"])
def test_no_secret_is_taken_from_the_command_line(option: str) -> None:
    """Such options do not exist, not even as earlier versions had them."""
    done = run("auth", "login", option, "x")
    assert done.exit_code == 2
    assert f"No such option '{option}'" in done.stderr
