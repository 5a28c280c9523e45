"""ID tokens: only one that the provider signed, for us, for this login, now, proves who somebody is."""

from __future__ import annotations

import hmac
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from joserfc import jwt
from joserfc.jwk import ECKey, RSAKey

from attestation.client.openid.errors import ProviderUnreachable
from attestation_web.login import sparing
from attestation_web.login.errors import TokenInvalid
from attestation_web.login.sparing import AGAIN_AFTER
from attestation_web.login.tokens import (
    AGAIN_SECONDS,
    KEYS_SECONDS,
    Identity,
    Keys,
    read_keys,
    verify_identity,
)
from tests.fixtures.openid.provider import b64url

AT = datetime(2026, 11, 26, 12, tzinfo=UTC)
ISSUER, CLIENT, NONCE = "https://id.example/realms/itl", "attestation-web", "n" * 43
KEY = RSAKey.generate_key(2048, {"use": "sig", "alg": "RS256", "kid": "one"})
OTHER = RSAKey.generate_key(2048, {"use": "sig", "alg": "RS256", "kid": "one"})
NEXT = ECKey.generate_key("P-256", {"use": "sig", "alg": "ES256", "kid": "two"})


def _claims(**other: Any) -> dict[str, Any]:
    now = int(AT.timestamp())
    said = {
        "iss": ISSUER,
        "aud": CLIENT,
        "sub": "s-1",
        "iat": now,
        "exp": now + 300,
        "nonce": NONCE,
        "auth_time": now - 5,
        "sid": "sid-1",
        "preferred_username": "anna",
    }
    return {name: value for name, value in (said | other).items() if value is not None}


def _verify(claims: dict[str, Any], *, fresh: datetime | None = None, acr: tuple[str, ...] = ()) -> Identity:
    return verify_identity(
        claims, issuer=ISSUER, client_id=CLIENT, nonce=NONCE, at=AT, fresh_since=fresh, acr_values=acr
    )


def test_a_good_one_says_who_it_is() -> None:
    """And since when."""
    found = _verify(_claims())
    assert (found.subject, found.name, found.sid) == ("s-1", "anna", "sid-1")
    assert found.authenticated_at == AT - timedelta(seconds=5)
    assert _verify(_claims(aud=[CLIENT, "account"], azp=CLIENT, preferred_username=None)).name == "s-1"


@pytest.mark.threat("T272")
@pytest.mark.parametrize(
    "other",
    [
        {"iss": None},
        {"iss": "https://evil.example"},
        {"iss": f"{ISSUER}/"},
        {"aud": None},
        {"aud": "attestation-cli"},
        {"aud": []},
        {"aud": [CLIENT, "account"]},
        {"azp": "attestation-cli"},
        {"exp": None},
        {"exp": int(AT.timestamp()) - 61},
        {"exp": "soon"},
        {"exp": True},
        {"iat": None},
        {"iat": int(AT.timestamp()) + 3600},
        {"nonce": None},
        {"nonce": "n" * 42},
        {"nonce": 7},
        {"sub": None},
        {"sub": ""},
        {"sub": 7},
    ],
)
def test_one_for_somebody_else_or_another_time_is_refused(other: dict[str, Any]) -> None:
    """Each claim alone."""
    with pytest.raises(TokenInvalid):
        _verify(_claims(**other))


@pytest.mark.threat("T275")
@pytest.mark.parametrize("auth_time", [None, "now", int(AT.timestamp()) - 3600])
def test_who_was_to_log_in_again_did(auth_time: Any) -> None:
    """The provider must say that it asked; its cookie is not enough."""
    _verify(_claims(auth_time=int(AT.timestamp())), fresh=AT - timedelta(seconds=30))
    with pytest.raises(TokenInvalid, match="auth_time") as refused:
        _verify(_claims(auth_time=auth_time), fresh=AT - timedelta(seconds=30))
    assert ("its clock" in str(refused.value)) == isinstance(auth_time, int)


@pytest.mark.threat("T275")
@pytest.mark.parametrize(("acr", "good"), [("gold", True), ("silver", True), ("0", False), (None, False)])
def test_who_decides_logged_in_as_strongly_as_is_demanded(acr: str | None, good: bool) -> None:
    """One of the levels; a first login is not asked for it."""
    claims = _claims(acr=acr, auth_time=int(AT.timestamp()))
    _verify(claims, acr=("gold", "silver"))
    if good:
        _verify(claims, fresh=AT, acr=("gold", "silver"))
        return
    with pytest.raises(TokenInvalid, match="acr"):
        _verify(claims, fresh=AT, acr=("gold", "silver"))


class _Provider:
    """Publishes keys, and counts who asks."""

    def __init__(self, *keys: Any) -> None:
        self.keys: list[Any] = list(keys)
        self.asked = 0
        self.at = AT

    def fetch(self) -> dict[str, Any]:
        self.asked += 1
        return {"keys": [key.as_dict(private=False) for key in self.keys]}

    def now(self) -> datetime:
        return self.at


def _signed(key: Any, alg: str = "RS256", kid: str | None = "one") -> str:
    header = {"alg": alg} | ({} if kid is None else {"kid": kid})
    return jwt.encode(header, _claims(), key, algorithms=["RS256", "ES256"])


def _mac(secret: bytes) -> str:
    """Return a token that is signed with the public key as if it were a shared secret."""
    head, body, _ = _signed(KEY).split(".")
    head = b64url(b'{"alg":"HS256","kid":"one"}')
    return f"{head}.{body}.{b64url(hmac.digest(secret, f'{head}.{body}'.encode(), 'sha256'))}"


@pytest.mark.threat("T272")
def test_only_the_provider_s_signature_counts() -> None:
    """Not another key of that name, no shared secret made of the public key, not `none`, no garbage."""
    provider = _Provider(KEY)
    keys = Keys(provider.fetch, provider.now)
    assert keys.verified(_signed(KEY))["sub"] == "s-1"
    head, body, _ = _signed(KEY).split(".")
    unsigned = _signed(KEY).split(".")
    unsigned[0] = "eyJhbGciOiJub25lIn0"
    for token in (
        _signed(OTHER),
        _mac(KEY.as_pem(private=False)),
        ".".join([unsigned[0], unsigned[1], ""]),
        f"{head}.{body}.",
        f"{head}.{body}",
        "a.b.c",
        "",
        "x" * 100_000,
    ):
        with pytest.raises(TokenInvalid):
            keys.verified(token)


@pytest.mark.threat("T277")
def test_a_new_key_is_found_and_invented_ones_ask_rarely() -> None:
    """A rotation is not noticed; a stranger's tokens make us ask the provider once in half a minute."""
    provider = _Provider(KEY)
    keys = Keys(provider.fetch, provider.now)
    keys.verified(_signed(KEY))
    provider.keys.insert(0, NEXT)
    provider.at += timedelta(seconds=AGAIN_SECONDS)
    assert keys.verified(_signed(NEXT, "ES256", "two"))["sub"] == "s-1"
    asked = provider.asked
    for _ in range(20):
        with pytest.raises(TokenInvalid):
            keys.verified(_signed(OTHER, kid="unknown"))
    assert provider.asked == asked
    # Who logs in brings what the provider just gave us: no stranger's questions make them wait.
    third = ECKey.generate_key("P-256", {"use": "sig", "alg": "ES256", "kid": "three"})
    provider.keys.insert(0, third)
    assert keys.verified(_signed(third, "ES256", "three"), from_provider=True)["sub"] == "s-1"
    # A key that the provider withdrew is worth nothing after the next fetch.
    provider.keys = [NEXT]
    provider.at += timedelta(seconds=KEYS_SECONDS)
    with pytest.raises(TokenInvalid):
        keys.verified(_signed(KEY))


@pytest.mark.threat("T277")
def test_a_provider_that_does_not_answer_is_asked_rarely() -> None:
    """Strangers' tokens do not wait for it one after the other; it comes back by itself, for a login at once."""
    provider = _Provider(KEY)
    away = True

    def fetch() -> Any:
        provider.asked += 1
        if away:
            raise ProviderUnreachable("it did not answer in time")
        return provider.fetch()

    keys = Keys(fetch, provider.now)
    for _ in range(20):
        with pytest.raises(ProviderUnreachable, match="in time"):
            keys.verified(_signed(OTHER))
    assert provider.asked == 1
    away = False
    assert keys.verified(_signed(KEY), from_provider=True)["sub"] == "s-1"
    keys, away = Keys(fetch, provider.now), True
    with pytest.raises(ProviderUnreachable):
        keys.verified(_signed(KEY))
    away = False
    provider.at += AGAIN_AFTER
    assert keys.verified(_signed(KEY))["sub"] == "s-1"


@pytest.mark.threat("T277")
def test_who_asks_while_another_is_not_answered_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """One thread is held, not every one."""
    monkeypatch.setattr(sparing, "WAIT_SECONDS", 0.01)
    began, go = threading.Event(), threading.Event()

    def hangs() -> bool:
        began.set()
        return go.wait(20)

    asking = sparing.Sparing(hangs, lambda: datetime.now(UTC))
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(asking)
        assert began.wait(60)
        with pytest.raises(ProviderUnreachable, match="asked already"):
            asking()
        go.set()
        assert first.result(60)


@pytest.mark.threat("T272")
@pytest.mark.parametrize(
    "document",
    [
        {},
        {"keys": None},
        {"keys": ["x"]},
        {"keys": [{"kty": "oct", "k": "c2VjcmV0", "use": "sig"}]},
        {"keys": [{"kty": "RSA", "n": "!", "e": "AQAB"}]},
        {"keys": [KEY.as_dict(private=False) | {"use": "enc"}]},
        {"keys": [KEY.as_dict(private=False) | {"alg": "RSA-OAEP"}]},
    ],
)
def test_keys_that_sign_nothing_are_none(document: dict[str, Any]) -> None:
    """A shared secret among them would let anybody sign."""
    with pytest.raises(TokenInvalid):
        read_keys(document)
