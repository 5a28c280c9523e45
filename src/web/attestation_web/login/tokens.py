"""ID tokens and logout tokens, verified: by signature, then by what they say.

Access tokens are not read here: the service judges them.
"""

# Algorithms for: access-token
from __future__ import annotations

import hmac
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import KeySet

from attestation.client.openid.claims import LONGEST_TOKEN, number_claim, text_claim
from attestation_web.login.errors import TokenInvalid
from attestation_web.login.sparing import Sparing

ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "ES256", "ES384", "ES512", "EdDSA", "Ed25519")
"""Signatures with public keys, as the service accepts them; no `none`, and none with a shared secret."""
LEEWAY: Final = timedelta(seconds=60)
LOGOUT_EVENT: Final = "http://schemas.openid.net/event/backchannel-logout"
LONGEST_LOGOUT: Final = timedelta(minutes=10)
MOST_REMEMBERED: Final = 10_000
KEYS_SECONDS: Final = 300
AGAIN_SECONDS: Final = 30
MOST_KEYS: Final = 64

Claims = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What an ID token proved.

    Args:
        subject: `sub`.
        name: What the person is called.
        sid: The provider's session, or None.
        authenticated_at: `auth_time`, or None where the provider does not say it.
        acr: How they logged in, or None.
    """

    subject: str
    name: str
    sid: str | None
    authenticated_at: datetime | None
    acr: str | None


class Keys:
    """The provider's public keys: kept for five minutes, fetched again at once for a key that is not known yet.

    Args:
        fetch: Returns the JWK set.
        now: Tells the time.
    """

    def __init__(self, fetch: Callable[[], Claims], now: Callable[[], datetime]) -> None:
        self._fetch, self._now = Sparing(fetch, now), now
        self._keys: KeySet | None = None
        self._fetched_at = datetime.fromtimestamp(0, UTC)

    def verified(self, token: str, *, from_provider: bool = False) -> Claims:
        """Return what *token* says, if one of the keys signed it.

        Args:
            token: From anybody.
            from_provider: It came from the provider just now, so that a key that is not known is a new one.

        Raises:
            TokenInvalid: None did.
            ProviderUnreachable, ProviderInvalid: The keys are not to be had.
        """
        if len(token) > LONGEST_TOKEN:
            raise TokenInvalid("a token of the provider is too long")
        try:
            return self._decoded(token, self._current(KEYS_SECONDS, at_once=from_provider))
        except (JoseError, ValueError):
            # Perhaps the provider has a new key. A stranger's tokens make us ask no more often than this.
            fresh = self._current(0 if from_provider else AGAIN_SECONDS, at_once=from_provider)
        try:
            return self._decoded(token, fresh)
        except (JoseError, ValueError) as e:
            raise TokenInvalid(f"a token is not signed by the provider: {type(e).__name__}") from None

    @staticmethod
    def _decoded(token: str, keys: KeySet) -> Claims:
        return jwt.decode(token, keys, algorithms=list(ALGORITHMS)).claims

    def _current(self, most_seconds: int, *, at_once: bool) -> KeySet:
        at = self._now()
        if self._keys is None or at - self._fetched_at >= timedelta(seconds=most_seconds):
            self._keys = read_keys(self._fetch(at_once=at_once))
            self._fetched_at = at
        return self._keys


def read_keys(document: Claims) -> KeySet:
    """Return the keys of a JWK set (RFC 7517 §5) that sign with public keys; what is not one is left out.

    Raises:
        TokenInvalid: There is none.
    """
    listed = document.get("keys")
    found = []
    for key in listed[:MOST_KEYS] if isinstance(listed, list) else []:
        if not isinstance(key, dict) or key.get("kty") not in ("RSA", "EC", "OKP"):
            continue
        if key.get("use", "sig") != "sig" or key.get("alg", "RS256") not in ALGORITHMS:
            continue
        found.append(key)
    try:
        if found:
            return KeySet.import_key_set({"keys": found})
    except (JoseError, ValueError, TypeError) as e:
        raise TokenInvalid(f"the provider publishes a key that cannot be used: {type(e).__name__}") from None
    raise TokenInvalid("the provider publishes no key that signs")


def verify_identity(
    claims: Claims,
    *,
    issuer: str,
    client_id: str,
    nonce: str,
    at: datetime,
    fresh_since: datetime | None,
    acr_values: tuple[str, ...],
) -> Identity:
    """Verify an ID token whose signature is good (OpenID Connect Core 1.0 §3.1.3.7).

    Args:
        claims: What it says.
        issuer: Whom we asked.
        client_id: As whom.
        nonce: What only our request carried.
        at: Now, UTC.
        fresh_since: They must have logged in after this; None where any login will do.
        acr_values: With one of these, where there are any.

    Raises:
        TokenInvalid: It is not for this login.
    """
    # 1. It is of our provider, for us. Otherwise any client of the provider could log people in here.
    _for_us(claims, issuer=issuer, client_id=client_id)
    # 2. It is in time.
    expires, issued = number_claim(claims, "exp"), number_claim(claims, "iat")
    if expires is None or expires <= (at - LEEWAY).timestamp():
        raise TokenInvalid(
            "the ID token has expired; is the clock of this computer right, and the provider's?"
        )
    if issued is None or issued > (at + LEEWAY).timestamp():
        raise TokenInvalid(
            "the ID token is of the future; is the clock of this computer right, and the provider's?"
        )
    # 3. It answers this login. Otherwise a token that was overheard elsewhere would do.
    said = claims.get("nonce")
    if not isinstance(said, str) or not hmac.compare_digest(said.encode(), nonce.encode()):
        raise TokenInvalid("the ID token answers another login (nonce)")
    subject = text_claim(claims, "sub")
    if subject is None:
        raise TokenInvalid("the ID token does not say who it is about (sub)")
    # 4. They logged in as lately and as strongly as was asked for. Otherwise the provider's cookie would decide.
    seconds = number_claim(claims, "auth_time")
    authenticated_at = None if seconds is None else min(datetime.fromtimestamp(seconds, UTC), at)
    if fresh_since is not None and (authenticated_at is None or authenticated_at < fresh_since - LEEWAY):
        late = "" if authenticated_at is None else "; or its clock is behind that of this computer"
        raise TokenInvalid(f"the provider was asked for a new login and did not make one (auth_time){late}")
    acr = text_claim(claims, "acr")
    if fresh_since is not None and acr_values and acr not in acr_values:
        raise TokenInvalid("the provider did not log in as strongly as was asked for (acr)")
    return Identity(
        subject=subject,
        name=text_claim(claims, "preferred_username") or text_claim(claims, "email") or subject,
        sid=text_claim(claims, "sid"),
        authenticated_at=authenticated_at,
        acr=acr,
    )


class LogoutTokens:
    """Judges logout tokens, each of which counts once (OpenID Connect Back-Channel Logout 1.0 §2.6).

    Args:
        issuer: The provider.
        client_id: What it calls us.
    """

    def __init__(self, *, issuer: str, client_id: str) -> None:
        self._issuer, self._client_id = issuer, client_id
        self._lock = threading.Lock()
        self._seen: dict[str, datetime] = {}

    def verify(self, claims: Claims, at: datetime) -> tuple[str | None, str | None]:
        """Return whose logins end: `sub` and `sid`, one of which is there.

        Raises:
            TokenInvalid: It ends nothing.
        """
        _for_us(claims, issuer=self._issuer, client_id=self._client_id)
        # 1. It says that it is a logout token. An ID token, which browsers see, must not end anything.
        events = claims.get("events")
        if (
            not isinstance(events, dict)
            or not isinstance(events.get(LOGOUT_EVENT), dict)
            or "nonce" in claims
        ):
            raise TokenInvalid("this is no logout token")
        # 2. It is in time. Otherwise one that was overheard would end every later login.
        issued, expires = number_claim(claims, "iat"), number_claim(claims, "exp")
        if issued is None or not at - LONGEST_LOGOUT <= datetime.fromtimestamp(issued, UTC) <= at + LEEWAY:
            raise TokenInvalid("the logout token is not of now")
        if expires is not None and expires <= (at - LEEWAY).timestamp():
            raise TokenInvalid("the logout token has expired")
        subject, sid, number = (text_claim(claims, name) for name in ("sub", "sid", "jti"))
        if number is None or (subject is None and sid is None):
            raise TokenInvalid("the logout token says neither whose login ends nor which")
        # 3. It counts once.
        with self._lock:
            self._seen = {jti: until for jti, until in self._seen.items() if until > at}
            if number in self._seen:
                raise TokenInvalid("this logout token came before")
            if len(self._seen) >= MOST_REMEMBERED:
                raise TokenInvalid("too many logouts at once")
            self._seen[number] = at + LONGEST_LOGOUT + LEEWAY
        return subject, sid


def _for_us(claims: Claims, *, issuer: str, client_id: str) -> None:
    if claims.get("iss") != issuer:
        raise TokenInvalid("the token names another issuer")
    audience = claims.get("aud")
    named = audience if isinstance(audience, list) else [audience]
    if client_id not in named:
        raise TokenInvalid("the token is for another program")
    if claims.get("azp", client_id) != client_id or (len(named) > 1 and "azp" not in claims):
        raise TokenInvalid("the token was issued to another program (azp)")
