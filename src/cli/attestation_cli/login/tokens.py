"""What a provider gives: tokens. Read strictly, kept in a `Login`, renewed, revoked.

ID tokens are not verified by signature: they come from the token endpoint over TLS, by a connection of ours (OpenID
Connect Core 1.0 §3.1.3.7, item 6), and decide nothing here but whose name is shown. The service verifies what it gets.
"""

from __future__ import annotations

import hmac
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from attestation.client.openid.answer import refusal
from attestation.client.openid.claims import (
    LONGEST_TOKEN,
    Claims,
    number_claim,
    text_claim,
    unverified_claims,
)
from attestation.client.openid.errors import LoginNeeded, LoginRefused, ProviderInvalid
from attestation.client.text import apart
from attestation_cli.login.cache import Login

if TYPE_CHECKING:
    from attestation.client.openid.discovery import Answer, Provider

SCOPE = "openid profile email"
LEEWAY = timedelta(minutes=5)
"""How far the clocks of this computer and the provider may differ."""
LONGEST_LIFE = timedelta(days=1)
UNKNOWN_LIFE = timedelta(minutes=10)
"""Assumed where the provider does not say how long a token lives; then it is renewed often."""


def read_tokens(
    answer: Answer,
    *,
    issuer: str,
    client_id: str,
    at: datetime,
    nonce: str | None = None,
    api_url: str | None = None,
    keyring: bool = False,
) -> Login:
    """Read a successful token answer (RFC 6749 §5.1).

    Args:
        answer: What the token endpoint answered.
        issuer: Whom we asked.
        client_id: As whom we asked.
        at: The instant of the answer by the clock of this computer, UTC.
        nonce: What the ID token must repeat, where the login sent one.
        api_url: The service in use.
        keyring: Where the tokens shall be kept.

    Raises:
        LoginRefused: An error answer; or the ID token is another's.
        ProviderInvalid: Not a token answer.
    """
    if answer.error is not None:
        raise refusal(answer.error, answer.description)
    if answer.status != 200:
        raise ProviderInvalid(f"the token endpoint answered {answer.status}")
    access = _token(answer, "access_token")
    if access is None:
        raise ProviderInvalid("the token endpoint answered without an access_token")
    kind = answer.members.get("token_type")
    if not isinstance(kind, str) or kind.lower() != "bearer":
        raise ProviderInvalid("the token endpoint answered with a token_type other than Bearer")
    refresh, identity = _token(answer, "refresh_token"), _token(answer, "id_token")
    told = unverified_claims(access)
    # By the clock of whom it came from: ours may be wrong, and a login that is renewed would be lost with the
    # refresh token that this answer brings in place of the one that was spent.
    known = None if identity is None else _identity(identity, issuer, client_id, answer.at or at, nonce)
    subject = text_claim(known, "sub") or text_claim(told, "sub")
    if subject is None:
        raise ProviderInvalid("neither the access token nor an ID token says whose login this is (sub)")
    if told is not None and told.get("sub", subject) != subject:
        raise LoginRefused("access token and ID token belong to different people")
    return Login(
        issuer=issuer,
        client_id=client_id,
        subject=subject,
        username=text_claim(told, "preferred_username") or text_claim(known, "preferred_username"),
        email=text_claim(told, "email") or text_claim(known, "email"),
        access_token=access,
        refresh_token=refresh,
        expires_at=_expiry(answer, told, at),
        obtained_at=at,
        api_url=api_url,
        keyring=keyring,
    )


def _token(answer: Answer, name: str) -> str | None:
    value = answer.members.get(name)
    if value is None:
        return None
    # It is sent in a header: a line break would begin another one.
    if (
        not isinstance(value, str)
        or not 0 < len(value) <= LONGEST_TOKEN
        or not all("!" <= c <= "~" for c in value)
    ):
        raise ProviderInvalid(f"the token endpoint answered with an unusable {name}")
    return value


def _identity(token: str, issuer: str, client_id: str, at: datetime, nonce: str | None) -> Claims:
    """Check that an ID token is for this login (OpenID Connect Core 1.0 §3.1.3.7)."""
    claims = unverified_claims(token)
    if claims is None:
        raise ProviderInvalid("the ID token is not a JWT")
    if claims.get("iss") != issuer:
        raise LoginRefused("the ID token names another issuer")
    audience = claims.get("aud")
    if client_id not in (audience if isinstance(audience, list) else [audience]):
        raise LoginRefused("the ID token is for another program")
    expires = number_claim(claims, "exp")
    if expires is None or expires < (at - LEEWAY).timestamp():
        raise LoginRefused(
            "the ID token has expired; is the clock of this computer right, and the provider's?"
        )
    if nonce is not None:
        said = claims.get("nonce")
        if not isinstance(said, str) or not hmac.compare_digest(said.encode(), nonce.encode()):
            raise LoginRefused("the ID token answers another login (nonce)")
    return claims


def _expiry(answer: Answer, claims: Claims | None, at: datetime) -> datetime:
    ends = []
    seconds = answer.members.get("expires_in")
    if isinstance(seconds, str) and seconds.isascii() and seconds.isdigit():
        seconds = int(seconds[:9])  # some providers quote it
    if isinstance(seconds, int | float) and not isinstance(seconds, bool) and 0 < seconds < 1 << 40:
        ends.append(at + min(timedelta(seconds=seconds), LONGEST_LIFE))
    # `exp` says the same on the provider's clock; where the clocks differ much, the duration is right.
    expires = number_claim(claims, "exp")
    if expires is not None and not ends:
        ends.append(min(datetime.fromtimestamp(expires, UTC), at + LONGEST_LIFE))
    return ends[0] if ends else at + UNKNOWN_LIFE


def clock_note(theirs: datetime | None, ours: datetime) -> str | None:
    """Return what is to be said where the clock of this computer, *ours*, is not that of the provider; else None."""
    if theirs is None or abs(ours - theirs) <= LEEWAY:
        return None
    return (
        f"note: the clock of this computer is {apart(ours, theirs)} the identity provider's, which says "
        f"{theirs:%Y-%m-%d %H:%M} UTC: set it; the login is kept"
    )


def renewed(provider: Provider, login: Login, at: datetime) -> Login:
    """Return *login* with a new access token (RFC 6749 §6).

    Raises:
        LoginNeeded: The provider does not renew it.
        ProviderUnreachable, ProviderInvalid: It does not answer as it should.
    """
    if login.refresh_token is None:
        raise LoginNeeded(f"the login of {login.shown_name} at {login.issuer} has expired")
    answer = provider.post(
        provider.metadata.token_endpoint,
        {"grant_type": "refresh_token", "refresh_token": login.refresh_token, "client_id": login.client_id},
    )
    try:
        fresh = read_tokens(
            answer,
            issuer=login.issuer,
            client_id=login.client_id,
            at=at,
            api_url=login.api_url,
            keyring=login.keyring,
        )
    except LoginRefused as e:
        raise LoginNeeded(f"the login of {login.shown_name} at {login.issuer} has ended: {e}") from None
    # OpenID Connect Core 1.0 §12.2: the same person.
    if fresh.subject != login.subject:
        raise LoginNeeded(f"{login.issuer} renewed the login of somebody else")
    return replace(
        fresh,
        username=fresh.username or login.username,
        email=fresh.email or login.email,
        refresh_token=fresh.refresh_token or login.refresh_token,
    )


def revoked(provider: Provider, login: Login) -> bool:
    """Ask the provider to end *login* (RFC 7009); False where it has no way to.

    Raises:
        ProviderUnreachable, ProviderInvalid: It does not answer as it should.
    """
    endpoint = provider.metadata.revocation_endpoint
    if endpoint is None:
        return False
    token, kind = (
        (login.access_token, "access_token")
        if login.refresh_token is None
        else (login.refresh_token, "refresh_token")
    )
    answer = provider.post(endpoint, {"token": token, "token_type_hint": kind, "client_id": login.client_id})
    return answer.status == 200
