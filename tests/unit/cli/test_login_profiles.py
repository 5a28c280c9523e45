"""`~/.itl/config.toml`: read strictly, written whole, and asked after options and environment."""

from __future__ import annotations

import os
import stat
import string
from collections.abc import Mapping
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from attestation_cli.login import profiles
from attestation_cli.login.errors import ConfigInvalid
from attestation_cli.login.profiles import (
    Config,
    Profile,
    Resolved,
    config_path,
    load,
    parse,
    save,
    serialise,
)
from attestation_cli.main import cli
from attestation_cli.session import Session
from tests.unit.cli.stub import Stub

TEXT = st.text(
    st.characters(exclude_categories=("C", "Z")) | st.sampled_from("\"\\ #=[]'%"), min_size=1, max_size=40
).filter(str.isprintable)
NAMES = st.text(string.ascii_letters + string.digits + "_-", min_size=1, max_size=64)
PROFILES = st.builds(
    Profile,
    api_url=st.none() | TEXT,
    issuer=st.none() | TEXT,
    client_id=st.none() | TEXT,
    ca_file=st.none() | TEXT,
    issuer_ca_file=st.none() | TEXT,
    client_cert=st.none() | TEXT,
    client_key=st.none() | TEXT,
    output=st.none() | st.sampled_from(profiles.OUTPUTS),
    user=st.none() | TEXT,
    keyring=st.none() | st.booleans(),
)


@given(st.dictionaries(NAMES, PROFILES, max_size=4))
def test_what_is_written_is_read_again(found: Mapping[str, Profile]) -> None:
    """Whatever the values are, quotes and backslashes too."""
    config = Config(profile=next(iter(found), None), profiles=found)
    assert parse(serialise(config), "x") == config


def test_without_a_file_everything_is_at_its_default(home: Path) -> None:
    """And nothing is made."""
    assert load(config_path()) == Config()
    assert not (home / ".itl").exists()


def test_the_file_is_the_owners_alone(home: Path) -> None:
    """0600 in a directory 0700, in the place of whatever it was; a link stays a link."""
    save(config_path(), Config().with_profile("prod", Profile(api_url="https://a.example")))
    assert stat.S_IMODE(config_path().stat().st_mode) == 0o600
    assert stat.S_IMODE(config_path().parent.stat().st_mode) == 0o700
    elsewhere = home / "dotfiles.toml"
    config_path().rename(elsewhere)
    config_path().symlink_to(elsewhere)
    config = load(config_path()).with_profile("lab", Profile())
    save(config_path(), config)
    assert config_path().is_symlink()
    assert load(elsewhere) == config
    assert len(list((home / ".itl").iterdir())) == 1


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("[profiles.a]\napi_ulr = 'x'", "did you mean api_url"),
        ("profil = 'a'", "did you mean profile"),
        ("zzz = 1", "known are"),
        ("profile = 'b'\n[profiles.a]", "must name one"),
        ("profile = 7\n[profiles.a]", "must name one"),
        ("profiles = 1", "must be tables"),
        ("profiles.a = 1", "must be a table"),
        ("[profiles.'a b']", "name of a profile"),
        ("[profiles.a]\nissuer = 7", "issuer must be"),
        ("[profiles.a]\nissuer = ''", "issuer must be"),
        ('[profiles.a]\nissuer = "a\\u001bb"', "issuer must be"),
        (f"[profiles.a]\nissuer = '{'x' * 3000}'", "issuer must be"),
        ("[profiles.a]\nkeyring = 'yes'", "keyring must be"),
        ("[profiles.a]\noutput = 'xml'", "output must be"),
        ("[profiles.a", "x:"),
        ("a = " + "[" * 5000, "x:"),
    ],
)
def test_what_is_not_understood_is_an_error(text: str, word: str) -> None:
    """A misspelt `ca_file` would trust everybody."""
    with pytest.raises(ConfigInvalid, match=word):
        parse(text.encode(), "x")


@given(st.binary(max_size=200))
def test_any_bytes_are_a_configuration_or_an_error(data: bytes) -> None:
    """Reading fails in one way only."""
    try:
        parse(data, "x")
    except ConfigInvalid:
        return


@pytest.mark.parametrize("mode", [0o666, 0o620])
def test_a_file_that_others_may_change_is_refused(home: Path, mode: int) -> None:
    """It decides whom we trust; reading it harms nobody."""
    save(config_path(), Config())
    config_path().chmod(mode)
    with pytest.raises(ConfigInvalid, match="other users"):
        load(config_path())
    config_path().chmod(0o644)
    load(config_path())


def test_a_file_that_cannot_be_read_is_an_error(home: Path) -> None:
    """Not the same as none."""
    config_path().mkdir(parents=True)
    with pytest.raises(ConfigInvalid, match="cannot be read"):
        load(config_path())
    with pytest.raises(ConfigInvalid):
        save(config_path(), Config())


def test_a_profile_that_is_named_must_be_there() -> None:
    """Nobody acts on another service than they meant."""
    config = Config(profile="prod", profiles={"prod": Profile(), "lab": Profile(user="x")})
    assert config.chosen(None) == ("prod", Profile())
    assert config.chosen("lab") == ("lab", Profile(user="x"))
    with pytest.raises(ConfigInvalid, match="lab, prod"):
        config.chosen("por")
    assert Config().chosen(None) == ("default", Profile())


def test_the_first_profile_is_preferred() -> None:
    """Until somebody says otherwise."""
    config = Config().with_profile("prod", Profile()).with_profile("lab", Profile())
    assert config.profile == "prod"
    with pytest.raises(ConfigInvalid):
        config.with_profile("a b", Profile())


# Precedence


def resolved(
    setting: str, environ: Mapping[str, str], option: str | None = None, profile: Profile | None = None
) -> Resolved:
    return profiles.resolve(
        setting, option=option, environ=environ, name="prod", profile=profile or Profile()
    )


def test_option_environment_profile_default() -> None:
    """In this order, and it is told who decided."""
    profile = Profile(api_url="https://profile", client_id="p", keyring=True)
    environ = {"ITL_API_URL": "https://new", "ATTESTATION_API_URL": "https://old"}
    assert resolved("api_url", environ, "https://option", profile) == Resolved("https://option", "--api-url")
    assert resolved("api_url", environ, None, profile) == Resolved("https://new", "ITL_API_URL")
    del environ["ITL_API_URL"]
    assert resolved("api_url", environ, None, profile) == Resolved("https://old", "ATTESTATION_API_URL")
    empty = {"ITL_API_URL": " "}
    assert resolved("api_url", empty, None, profile) == Resolved("https://profile", "profile prod")
    assert resolved("api_url", {}) == Resolved("http://localhost:8080", "default")
    assert resolved("issuer", {}) == Resolved(None, "unset")
    assert resolved("keyring", {}, None, profile) == Resolved("true", "profile prod")


def test_the_older_names_are_still_read() -> None:
    """KEYCLOAK_URL and KEYCLOAK_REALM are an issuer, after ITL_OIDC_ISSUER."""
    old = {"KEYCLOAK_URL": "https://id.example/", "KEYCLOAK_REALM": "itl", "KEYCLOAK_CLIENT_ID": "c"}
    assert resolved("issuer", old) == Resolved("https://id.example/realms/itl", "KEYCLOAK_URL")
    without_realm = resolved("issuer", {"KEYCLOAK_URL": "https://id.example"})
    assert without_realm.value == "https://id.example/realms/itlusions"
    assert resolved("issuer", old | {"ITL_OIDC_ISSUER": "https://new"}).source == "ITL_OIDC_ISSUER"
    assert resolved("client_id", old).value == "c"
    assert resolved("client_id", old | {"ITL_OIDC_CLIENT_ID": "n"}).value == "n"
    assert resolved("issuer", {"KEYCLOAK_REALM": "itl"}).value is None


# The command line


def run(stub: Stub, *args: str) -> Result:
    return CliRunner().invoke(cli, list(args), obj=Session(carrier=stub.carrier), catch_exceptions=False)


@pytest.fixture
def two(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two profiles."""
    monkeypatch.setenv("ITL_ADMIN_TOKEN", "t0p-s3cret")
    prod = Profile(api_url="https://prod.example", output="json")
    save(
        config_path(),
        Config().with_profile("prod", prod).with_profile("lab", Profile(api_url="https://lab.example")),
    )


@pytest.mark.usefixtures("two")
def test_a_command_takes_its_service_from_the_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    """The preferred one, the one of the environment, the one of the option; a given address wins over all."""
    stub = Stub()
    assert run(stub, "machine", "list").stdout.strip() == "[]"
    monkeypatch.setenv("ITL_PROFILE", "lab")
    assert run(stub, "machine", "list").stdout == ""
    run(stub, "--profile", "prod", "machine", "list")
    monkeypatch.setenv("ITL_API_URL", "https://env.example")
    run(stub, "--profile", "prod", "machine", "list")
    run(stub, "--api-url", "https://flag.example", "machine", "list")
    assert [r.url.host for r in stub.requests] == [
        "prod.example",
        "lab.example",
        "prod.example",
        "env.example",
        "flag.example",
    ]


@pytest.mark.usefixtures("two")
def test_output_of_the_call_wins_over_that_of_the_profile() -> None:
    """Before or after the command."""
    for args in (["-o", "table", "machine", "list"], ["machine", "list", "-o", "table"]):
        assert run(Stub(), *args).stdout == ""


@pytest.mark.usefixtures("two")
def test_an_unknown_profile_stops_the_command() -> None:
    """Exit 2, nothing sent, and the names that there are."""
    stub = Stub()
    done = run(stub, "--profile", "pord", "machine", "list")
    assert done.exit_code == 2
    assert "lab, prod" in done.stderr
    assert stub.requests == []


def test_a_broken_file_is_told_with_its_place(home: Path) -> None:
    """Exit 2, and where to look."""
    (home / ".itl").mkdir()
    config_path().write_text("[profiles.a]\nca_flie = 'x'\n")
    config_path().chmod(0o600)
    done = run(Stub(), "machine", "list")
    assert done.exit_code == 2
    assert "config.toml: profiles.a" in done.stderr
    assert "ca_file" in done.stderr
    assert os.environ["HOME"] in done.stderr
