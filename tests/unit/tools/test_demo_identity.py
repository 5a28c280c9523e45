"""The demo's identity provider: it serves the shipped realm as Keycloak would, and is no easier to fool."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from joserfc import jwt
from joserfc.jwk import KeySet

from tests.fixtures.in_process import InProcess
from tools import demo_identity
from tools.demo_identity import DEVICE_CODE, Provider, create_app, load_key
from tools.demo_people import PEOPLE_FILE, Account, load_people
from tools.keycloak_realm import Realm

REALM = Realm.load()
ISSUER = f"http://127.0.0.1:8081/realms/{REALM.name}"
OPENID = f"/realms/{REALM.name}/protocol/openid-connect"
VERIFIER = "v" * 43
REDIRECT = "http://127.0.0.1:49152/callback"
QUESTION = {
    "response_type": "code",
    "client_id": "attestation-cli",
    "redirect_uri": REDIRECT,
    "scope": "openid profile",
    "state": "our-state",
    "nonce": "our-nonce",
    "code_challenge": base64.urlsafe_b64encode(hashlib.sha256(VERIFIER.encode()).digest())
    .rstrip(b"=")
    .decode(),
    "code_challenge_method": "S256",
}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("identity")
    load_key(made)
    return made


@pytest.fixture
def people(directory: Path) -> dict[str, Account]:
    return {account.person.username: account for account in load_people(directory)}


@pytest.fixture
def browser(
    directory: Path, people: dict[str, Account], monkeypatch: pytest.MonkeyPatch
) -> Iterator[httpx.Client]:
    monkeypatch.setattr(demo_identity, "WRONG_PASSWORD_SECONDS", 0.0)
    provider = Provider(ISSUER, REALM, list(people.values()), load_key(directory))
    with (
        asyncio.Runner() as runner,
        httpx.Client(
            base_url="http://127.0.0.1:8081",
            transport=InProcess(create_app(provider), runner.run, "127.0.0.1"),
        ) as client,
    ):
        yield client


def _log_in(browser: httpx.Client, account: Account, **changed: str) -> dict[str, list[str]]:
    sent = browser.post(
        f"{OPENID}/auth",
        params=QUESTION | changed,
        data={"username": account.person.username, "password": account.password},
    )
    assert sent.status_code == 303, sent.text
    assert sent.headers["location"].startswith(f"{REDIRECT}?")
    return parse_qs(urlsplit(sent.headers["location"]).query)


def _redeem(browser: httpx.Client, code: str, **changed: str) -> Any:
    form = {
        "grant_type": "authorization_code",
        "client_id": "attestation-cli",
        "redirect_uri": REDIRECT,
        "code": code,
        "code_verifier": VERIFIER,
    }
    return browser.post(f"{OPENID}/token", data=form | changed)


def _claims(browser: httpx.Client, token: str) -> dict[str, Any]:
    keys = KeySet.import_key_set(browser.get(f"{OPENID}/certs").json())
    return jwt.decode(token, keys, algorithms=["RS256"]).claims


def _offer(browser: httpx.Client) -> dict[str, Any]:
    asked = {
        name: QUESTION[name] for name in ("client_id", "scope", "code_challenge", "code_challenge_method")
    }
    answer = browser.post(f"{OPENID}/auth/device", data=asked)
    assert answer.status_code == 200, answer.text
    offer: dict[str, Any] = answer.json()
    return offer


def _poll(browser: httpx.Client, offer: dict[str, Any], **changed: str) -> Any:
    form = {
        "grant_type": DEVICE_CODE,
        "client_id": "attestation-cli",
        "device_code": offer["device_code"],
        "code_verifier": VERIFIER,
    }
    return browser.post(f"{OPENID}/token", data=form | changed)


def test_the_code_flow_gives_a_token_of_the_realm(browser: httpx.Client, people: dict[str, Account]) -> None:
    """Login, code, token: the claims are those that the realm's mappers write, and the ID token has our nonce."""
    page = browser.get(f"{OPENID}/auth", params=QUESTION)
    assert page.status_code == 200
    assert "Never use it for anything else" in page.text
    answer = _log_in(browser, people["alice"])
    assert answer["state"] == ["our-state"]
    assert answer["iss"] == [ISSUER]
    tokens = _redeem(browser, answer["code"][0]).json()
    claims = _claims(browser, tokens["access_token"])
    assert claims["iss"] == ISSUER
    assert claims["realm_access"] == {"roles": ["attestation-operator"]}
    expected = REALM.access_claims("attestation-cli", people["alice"].person)
    assert {name: claims[name] for name in expected} == expected
    assert claims["exp"] - claims["iat"] == REALM.document["accessTokenLifespan"]
    identity = _claims(browser, tokens["id_token"])
    assert (identity["nonce"], identity["typ"], identity["aud"]) == ("our-nonce", "ID", "attestation-cli")


def test_carol_audits_and_does_not_operate(browser: httpx.Client, people: dict[str, Account]) -> None:
    """The duties of the demo are separate: two operators, one auditor."""
    assert {name: account.person.roles for name, account in people.items()} == {
        "alice": ("attestation-operator",),
        "bob": ("attestation-operator",),
        "carol": ("attestation-auditor",),
    }
    code = _log_in(browser, people["carol"])["code"][0]
    claims = _claims(browser, _redeem(browser, code).json()["access_token"])
    assert claims["realm_access"] == {"roles": ["attestation-auditor"]}


def test_a_code_is_good_once(browser: httpx.Client, people: dict[str, Account]) -> None:
    """The second of two who have it gets nothing."""
    code = _log_in(browser, people["alice"])["code"][0]
    assert _redeem(browser, code).status_code == 200
    assert _redeem(browser, code).json()["error"] == "invalid_grant"


@pytest.mark.parametrize(
    "changed",
    [{"code_verifier": "w" * 43}, {"code_verifier": ""}, {"redirect_uri": "http://127.0.0.1:1/callback"}],
    ids=["another-verifier", "no-verifier", "another-redirect"],
)
def test_a_stolen_code_is_worth_nothing(
    browser: httpx.Client, people: dict[str, Account], changed: dict[str, str]
) -> None:
    """Whoever did not begin the login cannot finish it."""
    code = _log_in(browser, people["alice"])["code"][0]
    refused = _redeem(browser, code, **changed)
    assert refused.status_code == 400
    assert refused.json()["error"] == "invalid_grant"


def test_a_code_of_yesterday_is_refused(
    browser: httpx.Client, people: dict[str, Account], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A code lives 60 seconds."""
    code = _log_in(browser, people["alice"])["code"][0]
    later = time.time() + 61
    monkeypatch.setattr("tools.demo_identity.time.time", lambda: later)
    assert _redeem(browser, code).json()["error"] == "invalid_grant"


@pytest.mark.parametrize(
    "changed",
    [
        {"redirect_uri": "https://evil.example/callback"},
        {"redirect_uri": "http://localhost:49152/callback"},
        {"redirect_uri": REDIRECT + "#x"},
        {"client_id": "attestation-web", "redirect_uri": "http://127.0.0.1:7788/auth/callback"},
        {"client_id": "attestation-service"},
        {"client_id": "nobody"},
        {"response_type": "token"},
        {"code_challenge_method": "plain"},
        {"code_challenge": ""},
        {"scope": "profile"},
    ],
    ids=lambda changed: "-".join(changed.values())[:40],
)
def test_a_wrong_request_leads_nowhere(
    browser: httpx.Client, people: dict[str, Account], changed: dict[str, str]
) -> None:
    """Neither the form nor a redirect: the browser stays, with a page that says why."""
    for answer in (
        browser.get(f"{OPENID}/auth", params=QUESTION | changed),
        browser.post(
            f"{OPENID}/auth",
            params=QUESTION | changed,
            data={"username": "alice", "password": people["alice"].password},
        ),
    ):
        assert answer.status_code == 400
        assert "location" not in answer.headers


def test_the_dashboard_logs_in_with_its_secret(
    directory: Path, people: dict[str, Account], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the address that was given; who has not the secret gets nothing for a code, and a logout leads back there."""
    dash = "http://127.0.0.1:7799"
    provider = Provider(
        ISSUER, REALM.with_dashboard(dash), list(people.values()), load_key(directory), "the secret"
    )
    client = {"client_id": "attestation-web", "redirect_uri": f"{dash}/auth/callback"}
    with (
        asyncio.Runner() as runner,
        httpx.Client(
            base_url="http://127.0.0.1:8081",
            transport=InProcess(create_app(provider), runner.run, "127.0.0.1"),
        ) as browser,
    ):
        before = browser.get(
            f"{OPENID}/auth", params=QUESTION | client | {"redirect_uri": "http://127.0.0.1:1/"}
        )
        assert before.status_code == 400
        form = client | {"grant_type": "authorization_code", "code_verifier": VERIFIER}
        for basic in (httpx.Auth(), ("attestation-web", "wrong"), ("attestation-cli", "the secret")):
            sent = browser.post(
                f"{OPENID}/auth",
                params=QUESTION | client,
                data={"username": "alice", "password": people["alice"].password},
            )
            form["code"] = parse_qs(urlsplit(sent.headers["location"]).query)["code"][0]
            refused = browser.post(f"{OPENID}/token", data=form, auth=basic)
            assert refused.json()["error"] == "invalid_client"
        tokens = browser.post(f"{OPENID}/token", data=form, auth=("attestation-web", "the secret")).json()
        assert time.time() - _claims(browser, tokens["id_token"])["auth_time"] < 60
        asked = {"client_id": "attestation-web", "post_logout_redirect_uri": f"{dash}/auth/logged-out"}
        assert browser.get(f"{OPENID}/logout", params=asked).headers["location"] == f"{dash}/auth/logged-out"
        asked["post_logout_redirect_uri"] = "https://evil.example/"
        assert browser.get(f"{OPENID}/logout", params=asked).status_code == 200


@pytest.mark.parametrize(
    ("username", "password"), [("alice", "wrong"), ("alice", ""), ("mallory", "x"), ("", "")]
)
def test_a_wrong_password_lets_nobody_in(browser: httpx.Client, username: str, password: str) -> None:
    """By the form as by the password grant."""
    form = browser.post(f"{OPENID}/auth", params=QUESTION, data={"username": username, "password": password})
    assert form.status_code == 401
    assert "location" not in form.headers
    asked = {
        "grant_type": "password",
        "client_id": "attestation-cli",
        "username": username,
        "password": password,
    }
    assert browser.post(f"{OPENID}/token", data=asked).json()["error"] == "invalid_grant"


def test_what_was_typed_comes_back_as_text(browser: httpx.Client) -> None:
    """A name or a hint with markup in it stays a name."""
    evil = '"><script>alert(1)</script>'
    page = browser.post(f"{OPENID}/auth", params=QUESTION, data={"username": evil, "password": "x"})
    hinted = browser.get(f"{OPENID}/auth", params=QUESTION | {"login_hint": evil})
    device = browser.get(f"/realms/{REALM.name}/device", params={"user_code": evil})
    for found in (page, hinted, device):
        assert "<script" not in found.text
        assert "default-src 'none'" in found.headers["content-security-policy"]


def test_the_device_flow(browser: httpx.Client, people: dict[str, Account]) -> None:
    """The device waits until somebody enters its code and logs in; then it gets a token, once."""
    offer = _offer(browser)
    assert _poll(browser, offer).json()["error"] == "authorization_pending"
    page = browser.get(offer["verification_uri_complete"])
    assert offer["user_code"] in page.text
    bob = people["bob"]
    confirmed = browser.post(
        f"/realms/{REALM.name}/device",
        data={
            "user_code": offer["user_code"].lower(),
            "username": "bob",
            "password": bob.password,
        },
    )
    assert confirmed.status_code == 200, confirmed.text
    claims = _claims(browser, _poll(browser, offer).json()["access_token"])
    assert claims["sub"] == bob.person.sub
    assert _poll(browser, offer).json()["error"] == "invalid_grant"


def test_the_device_flow_needs_pkce_as_in_keycloak(browser: httpx.Client, people: dict[str, Account]) -> None:
    """Keycloak demands PKCE of this client here too; a command line that forgot it must fail in the demo."""
    refused = browser.post(f"{OPENID}/auth/device", data={"client_id": "attestation-cli", "scope": "openid"})
    assert refused.json()["error"] == "invalid_request"
    offer = _offer(browser)
    alice = people["alice"]
    form = {"user_code": offer["user_code"], "username": "alice", "password": alice.password}
    assert browser.post(f"/realms/{REALM.name}/device", data=form).status_code == 200
    assert _poll(browser, offer, code_verifier="w" * 43).json()["error"] == "invalid_grant"


@pytest.mark.parametrize("form", [{"user_code": "BBBB-BBBB"}, {"user_code": ""}, {}])
def test_a_code_that_no_device_shows_is_refused(
    browser: httpx.Client, people: dict[str, Account], form: dict[str, str]
) -> None:
    """Guessing lets no device in."""
    _offer(browser)
    login = {"username": "alice", "password": people["alice"].password}
    refused = browser.post(f"/realms/{REALM.name}/device", data=form | login)
    assert refused.status_code == 400


def test_a_refresh_token_is_good_once(browser: httpx.Client, people: dict[str, Account]) -> None:
    """It is replaced by each use, as the realm says; another client cannot use it."""
    first = _redeem(browser, _log_in(browser, people["alice"])["code"][0]).json()["refresh_token"]
    form = {"grant_type": "refresh_token", "client_id": "attestation-cli"}
    renewed = browser.post(f"{OPENID}/token", data=form | {"refresh_token": first}).json()
    assert _claims(browser, renewed["access_token"])["sub"] == people["alice"].person.sub
    again = browser.post(f"{OPENID}/token", data=form | {"refresh_token": first})
    assert again.json()["error"] == "invalid_grant"
    browser.post(f"{OPENID}/logout", data={"refresh_token": renewed["refresh_token"]})
    after = browser.post(f"{OPENID}/token", data=form | {"refresh_token": renewed["refresh_token"]})
    assert after.json()["error"] == "invalid_grant"


def test_discovery_names_what_is_served(browser: httpx.Client) -> None:
    """Every address in the document is of this issuer and answers something other than 404."""
    document = browser.get(f"/realms/{REALM.name}/.well-known/openid-configuration").json()
    assert document["issuer"] == ISSUER
    for name, value in document.items():
        if name.endswith(("_endpoint", "_uri")):
            assert value.startswith(f"{ISSUER}/")
            path = urlsplit(value).path
            assert browser.post(path, data={}).status_code != 404 or browser.get(path).status_code != 404


def test_no_private_part_of_the_key_is_published(browser: httpx.Client) -> None:
    """The key set holds the public key, for signing only."""
    (key,) = browser.get(f"{OPENID}/certs").json()["keys"]
    assert {"d", "p", "q", "dp", "dq", "qi"}.isdisjoint(key)
    assert (key["use"], key["alg"]) == ("sig", "RS256")


def test_userinfo_is_for_the_bearer(browser: httpx.Client, people: dict[str, Account]) -> None:
    """An access token is answered with who it is; an ID token, rubbish and nothing with 401."""
    tokens = _redeem(browser, _log_in(browser, people["alice"])["code"][0]).json()
    good = browser.get(f"{OPENID}/userinfo", headers={"Authorization": f"Bearer {tokens['access_token']}"})
    assert good.json()["preferred_username"] == "alice"
    for wrong in (f"Bearer {tokens['id_token']}", "Bearer x.y.z", "Basic YTpi", ""):
        assert browser.get(f"{OPENID}/userinfo", headers={"Authorization": wrong}).status_code == 401


def test_another_host_name_is_not_answered(browser: httpx.Client) -> None:
    """A page elsewhere that lets its name point to 127.0.0.1 learns nothing."""
    answer = browser.get(f"{OPENID}/certs", headers={"Host": "evil.example"})
    assert answer.status_code == 400


def test_people_and_key_survive_a_restart(tmp_path: Path) -> None:
    """The same `sub` after a restart, or votes of one person would count as those of two; files are ours alone."""
    assert load_people(tmp_path) == load_people(tmp_path)
    assert load_key(tmp_path).kid == load_key(tmp_path).kid
    for path in tmp_path.iterdir():
        assert path.stat().st_mode & 0o777 == 0o600
    passwords = {account.password for account in load_people(tmp_path)}
    assert len(passwords) == 3
    assert all(re.fullmatch("[0-9a-f]{8}", password) for password in passwords)
    assert (tmp_path / PEOPLE_FILE).exists()


def test_a_form_that_does_not_end_is_cut_off(browser: httpx.Client) -> None:
    """More than any login needs is refused."""
    answer = browser.post(f"{OPENID}/token", data={"x": "y" * 20_000})
    assert answer.json()["error"] == "invalid_request"
