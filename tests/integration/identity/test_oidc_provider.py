"""Tokens of a real OpenID provider, got by real flows, judged by a real service process (FAULTS R17)."""

from __future__ import annotations

import base64
import contextlib
import json
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from joserfc import jwk

from tests.fixtures.in_process import in_process_service
from tests.fixtures.openid.provider import (
    AUDITOR,
    CLIENT,
    OPENID,
    OPERATOR,
    VIEWER,
    Provider,
    b64url,
    new_key,
    sign,
)
from tests.fixtures.service import ServiceProcess, StartService

RECOVERY_SECONDS = 60


@pytest.fixture(scope="module")
def service(start_service: StartService, provider_process: Provider) -> ServiceProcess:
    """A service that trusts the provider."""
    return start_service(ITL_OIDC_ISSUER=provider_process.issuer)


def get(service: ServiceProcess, token: str, path: str = "/machines") -> httpx.Response:
    """Ask as whoever has *token*."""
    return httpx.get(f"{service.url}/api/v1{path}", headers={"Authorization": f"Bearer {token}"}, timeout=60)


def status(service: ServiceProcess, token: str, path: str = "/machines") -> int:
    """Ask, and return the status."""
    return get(service, token, path).status_code


def detail(service: ServiceProcess, token: str, expected: int) -> str:
    """Ask; the answer must have this status. Return its sentence."""
    answer = get(service, token)
    assert answer.status_code == expected, answer.text
    if expected == 401:
        assert 'error="invalid_token"' in answer.headers["www-authenticate"]
    found: str = answer.json()["detail"]
    return found


def within(seconds: float, holds: Callable[[], bool]) -> None:
    """Wait until something holds."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "did not come to hold in time"
        time.sleep(0.1)


# ---------------------------------------------------------------- the flows


def test_code_and_device_tokens_are_accepted(service: ServiceProcess, provider: Provider) -> None:
    """Code with PKCE, device flow and refresh: each yields a token with which an operator acts."""
    provider.add_user("anna", [OPERATOR])
    by_code = provider.grant("anna")
    by_device = provider.device_grant("anna")
    refreshed = provider.post_token(
        grant_type="refresh_token", client_id=CLIENT, refresh_token=by_device["refresh_token"]
    )
    tokens = {answer["access_token"] for answer in (by_code, by_device, refreshed)}
    assert len(tokens) == 3
    assert {status(service, token) for token in tokens} == {200}


def test_rfc_9068_tokens_are_accepted(service: ServiceProcess, provider: Provider) -> None:
    """Header `at+jwt`, `client_id`, `aud` as a text: what other providers than Keycloak write."""
    provider.add_user("anna", [OPERATOR])
    provider.configure(shape="rfc9068", audience=("attestation-service",))
    assert status(service, provider.token("anna")) == 200


def test_roles_decide(service: ServiceProcess, provider: Provider) -> None:
    """Realm roles and those of the pinned client, per person."""
    provider.add_user("viewer", [VIEWER])
    provider.add_user("auditor", [AUDITOR])
    provider.add_user("operator", [], {"attestation-service": [OPERATOR]})
    provider.add_user("stranger", ["offline_access"], {"grafana": [OPERATOR]})
    found = {
        name: [status(service, provider.token(name), path) for path in ("/machines", "/audit")]
        for name in ("viewer", "auditor", "operator", "stranger")
    }
    assert found == {
        "viewer": [200, 403],
        "auditor": [403, 200],
        "operator": [200, 403],
        "stranger": [403, 403],
    }
    assert OPERATOR in detail(service, provider.token("stranger"), 403)


def test_a_role_that_was_taken_away_ends_with_the_next_token(
    service: ServiceProcess, provider: Provider
) -> None:
    """The provider decides at every refresh."""
    provider.add_user("anna", [OPERATOR])
    granted = provider.grant("anna")
    provider.add_user("anna", [])
    again = provider.post_token(
        grant_type="refresh_token", client_id=CLIENT, refresh_token=granted["refresh_token"]
    )
    assert status(service, granted["access_token"]) == 200
    assert status(service, again["access_token"]) == 403


def test_the_audit_names_the_person(service: ServiceProcess, provider: Provider) -> None:
    """Name, and issuer with the provider's stable subject."""
    anna = provider.add_user("anna", [OPERATOR])
    provider.add_user("rosa", [AUDITOR])
    made = httpx.post(
        f"{service.url}/api/v1/registration-tokens",
        json={"role": "worker-app", "expires_in_seconds": 600},
        headers={"Authorization": f"Bearer {provider.token('anna')}"},
        timeout=60,
    )
    assert made.is_success, made.text
    entries = get(service, provider.token("rosa"), "/audit").json()["items"]
    entry = next(e for e in entries if e["action"] == "token_issued")
    assert (entry["operator_cn"], entry["operator_sub"]) == ("anna", f"{provider.issuer}#{anna.sub}")


# ---------------------------------------------------------------- tokens that are not for us


@pytest.mark.threat("T35")
def test_tokens_for_others_are_refused_and_explained(service: ServiceProcess, provider: Provider) -> None:
    """Wrong audience, wrong client, ID token, refresh token, token without roles."""
    provider.add_user("anna", [OPERATOR])
    granted = provider.grant("anna")
    detail(service, granted["id_token"], 401)
    detail(service, granted["refresh_token"], 401)
    assert "azp=stranger-cli" in detail(service, provider.token("anna", client="stranger-cli"), 401)
    provider.configure(audience=("account",))
    assert detail(service, provider.token("anna"), 401) == (
        "token has aud=[account], expected attestation-service; add an audience mapper"
    )
    provider.configure(audience=("attestation-service",), lightweight=True)
    assert "no roles at all" in detail(service, provider.token("anna"), 403)


def published(provider: Provider) -> dict[str, Any]:
    """Return the signing key as everybody can fetch it."""
    keys = httpx.get(f"{provider.issuer}{OPENID}/certs", timeout=60).json()["keys"]
    found: dict[str, Any] = next(key for key in keys if key["use"] == "sig")
    return found


@pytest.mark.threat("T34")
def test_tokens_that_no_provider_issues(service: ServiceProcess, provider: Provider) -> None:
    """Forged with what everybody knows of the real provider; and a control that is good."""
    provider.add_user("anna", [OPERATOR])
    good = provider.claims("anna")
    assert status(service, provider.sign(good)) == 200
    now = int(time.time())
    for claims in (
        good | {"iss": provider.issuer.replace("/itl", "/other")},
        good | {"exp": now - 60},
        good | {"iat": now + 120},
        good | {"nbf": now + 120},
        good | {"typ": "ID"},
        good | {"typ": "Refresh"},
    ):
        detail(service, provider.sign(claims), 401)
    public = published(provider)
    assert isinstance(provider.key, jwk.RSAKey)
    pem = provider.key.as_pem(private=False)
    secret = jwk.OctKey(pem, b"", {"use": "sig"})
    stranger = new_key(kid=public["kid"])
    header = {"alg": "none", "typ": "JWT", "kid": public["kid"]}
    for token in (
        sign(secret, good, algorithm="HS256", header={"kid": public["kid"]}),
        sign(stranger, good),
        sign(stranger, good, header={"jwk": stranger.as_dict(private=False)}),
        f"{b64url(json.dumps(header).encode())}.{b64url(json.dumps(good).encode())}.",
        f"{b64url(json.dumps(header).encode())}.{b64url(json.dumps(good).encode())}.e30",
    ):
        detail(service, token, 401)


@pytest.mark.parametrize("kibibytes", [16, 60, 100, 1000])
def test_long_tokens_are_refused_by_the_whole_server(
    service: ServiceProcess, provider: Provider, kibibytes: int
) -> None:
    """Properly signed and far too long: refused by us or by the server before us, never an error of ours."""
    provider.add_user("anna", [OPERATOR])
    token = provider.sign(provider.claims("anna", padding="x" * (kibibytes * 1024)))
    with contextlib.suppress(httpx.TransportError):  # the server may hang up in the middle of the header
        assert status(service, token) in {400, 401, 431}
    assert status(service, provider.sign(provider.claims("anna"))) == 200
    assert '"request.failed"' not in service.log()


def test_an_expired_token_is_refused(start_service: StartService, provider: Provider) -> None:
    """A real token, really waited out."""
    service = start_service(ITL_OIDC_ISSUER=provider.issuer, ITL_OIDC_LEEWAY_SECONDS="0")
    provider.add_user("anna", [OPERATOR])
    assert status(service, provider.token("anna")) == 200
    provider.configure(access_token_seconds=2)
    token = provider.token("anna")
    within(60, lambda: status(service, token) == 401)
    assert "expired" in detail(service, token, 401)


# ---------------------------------------------------------------- keys that change


def key_id(token: str) -> str:
    """Return the `kid` of a token."""
    header = token.split(".")[0]
    found: str = json.loads(base64.urlsafe_b64decode(header + "=" * (-len(header) % 4)))["kid"]
    return found


def test_keys_rotate_while_it_serves(start_service: StartService, provider: Provider) -> None:
    """Nobody who holds a good token notices: neither those with an old one nor the first with a new one."""
    service = start_service(workers=2, ITL_OIDC_ISSUER=provider.issuer)
    provider.add_user("anna", [OPERATOR])
    old, statuses, end = provider.token("anna"), [], threading.Event()

    def keep_asking() -> None:
        while not end.is_set():
            statuses.append(status(service, old))

    asking = threading.Thread(target=keep_asking)
    asking.start()
    try:
        within(RECOVERY_SECONDS, lambda: len(statuses) > 5)
        provider.rotate_keys("ES256")
        new = provider.token("anna")
        assert key_id(new) != key_id(old)
        assert {status(service, new) for _ in range(20)} == {200}
    finally:
        end.set()
        asking.join()
    assert set(statuses) == {200}


@pytest.mark.threat("T37")
def test_a_removed_key_is_worth_nothing(start_service: StartService, provider: Provider) -> None:
    """A key that leaked and was withdrawn: its tokens end with the next look at the keys."""
    service = start_service(ITL_OIDC_ISSUER=provider.issuer)
    provider.add_user("anna", [OPERATOR])
    leaked = provider.key
    old = provider.token("anna")
    assert status(service, old) == 200
    provider.rotate_keys(keep=False)
    assert status(service, provider.token("anna")) == 200
    assert "does not publish" in detail(service, old, 401)
    detail(service, provider.sign(provider.claims("anna"), key=leaked), 401)


def test_keys_are_looked_at_in_the_background(start_service: StartService, provider: Provider) -> None:
    """Without any request that needs it, a withdrawn key ends within the interval."""
    service = start_service(ITL_OIDC_ISSUER=provider.issuer, ITL_OIDC_JWKS_SECONDS="10")
    provider.add_user("anna", [OPERATOR])
    old = provider.token("anna")
    assert status(service, old) == 200
    seen = provider.seen()["certs"]
    provider.rotate_keys(keep=False)
    within(60, lambda: provider.seen()["certs"] > seen)
    within(60, lambda: status(service, old) == 401)


# ---------------------------------------------------------------- a provider that is down


def test_while_the_provider_is_down_the_last_good_keys_serve(
    service: ServiceProcess, provider: Provider
) -> None:
    """Who has a token goes on working."""
    provider.add_user("anna", [OPERATOR])
    token = provider.token("anna")
    assert status(service, token) == 200
    provider.stop()
    assert status(service, token) == 200
    answer = get(service, sign(new_key(), provider.claims("anna")))
    assert answer.status_code in {401, 503}


@pytest.mark.threat("T37")
def test_a_provider_that_is_down_at_the_start(start_service: StartService, provider: Provider) -> None:
    """The service starts and is ready, answers tokens with 503 and when to come back, and recovers by itself."""
    provider.add_user("anna", [OPERATOR])
    token = provider.token("anna")
    provider.stop()
    service = start_service(ITL_OIDC_ISSUER=provider.issuer)
    answer = get(service, token)
    assert answer.status_code == 503, answer.text
    assert answer.json()["type"] == "urn:itl:problem:identity-provider-unavailable"
    assert int(answer.headers["retry-after"]) >= 1
    assert service.is_ready()
    assert status(service, service.admin_token) == 200  # break-glass is for this day
    provider.start()
    within(RECOVERY_SECONDS, lambda: status(service, token) == 200)


@pytest.mark.threat("T37")
def test_after_a_day_without_the_provider_nobody_is_judged(tmp_path: Path, provider: Provider) -> None:
    """The last good keys end: 503, until the provider is back. The day passes on a clock that the test holds."""
    provider.add_user("anna", [OPERATOR])
    with in_process_service(tmp_path / "service", oidc_issuer=provider.issuer) as service:
        service.clock.pass_(seconds=(datetime.now(UTC) - service.clock.now()).total_seconds())

        def ask() -> httpx.Response:
            # What the provider signs, but for two days: its own tokens are long over then.
            claims = provider.claims("anna", exp=int(time.time()) + 200_000)
            headers = {"Authorization": f"Bearer {provider.sign(claims)}"}
            with service.client() as http:
                return http.get("/api/v1/machines", headers=headers)

        oidc = service.app.state.resources.oidc
        service.run(oidc.refresh())
        assert ask().status_code == 200
        provider.stop()
        service.clock.pass_(hours=23, minutes=59)
        assert ask().status_code == 200
        assert oidc.stale
        service.clock.pass_(minutes=2)
        answer = ask()
        assert answer.status_code == 503, answer.text
        assert answer.json()["type"] == "urn:itl:problem:identity-provider-unavailable"
        provider.start()
        service.clock.pass_(seconds=31)
        assert ask().status_code == 200
        assert not oidc.stale
