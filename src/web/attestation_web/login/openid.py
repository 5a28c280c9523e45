"""The conversation with the identity provider: authorization code with PKCE, by a client that may have a secret.

begin    where a browser is sent, and what it brings back with it
finish   what it brought, exchanged for tokens and verified
renew    a new access token
end      where a browser ends its login at the provider
"""

# Algorithms for: login
from __future__ import annotations

import base64
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final
from urllib.parse import quote_plus, urlencode

from itsdangerous import BadSignature, URLSafeTimedSerializer

from attestation.client.openid.answer import UnverifiedAnswer, refusal, verify_answer
from attestation.client.openid.discovery import Answer, Metadata, Provider
from attestation.client.openid.errors import LoginNeeded, LoginRefused, ProviderInvalid
from attestation.client.openid.pkce import ProofKey, random_text
from attestation_web.login.addresses import HOME
from attestation_web.login.errors import TokenInvalid
from attestation_web.login.sessions import Tokens
from attestation_web.login.sparing import Sparing
from attestation_web.login.tokens import Claims, Identity, Keys, LogoutTokens, verify_identity
from attestation_web.settings import Settings

CALLBACK: Final = "/auth/callback"
LOGGED_OUT: Final = "/auth/logged-out"
LOGIN_SECONDS: Final = 600
"""So long a person may take at the provider."""
LONGEST_TICKET: Final = 3_500
"""Characters; with its name and what is said of it a browser takes 4096."""
LONGEST_TOKEN: Final = 64 << 10
LONGEST_LIFE: Final = timedelta(days=1)
UNKNOWN_LIFE: Final = timedelta(minutes=2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """A login that began.

    Args:
        url: Where the browser is sent.
        state: What the answer must repeat.
        ticket: What the browser keeps meanwhile in a cookie, signed by us: so strangers' logins cost us nothing.
    """

    url: str
    state: str
    ticket: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A login that ended well.

    Args:
        identity: Who it is.
        tokens: Theirs.
        to: The page that they wanted, a path.
        again: Whom it was to confirm (`sub`), who was logged in before; None for a first login.
    """

    identity: Identity
    tokens: Tokens
    to: str
    again: str | None


class OpenID:
    """One client of one provider.

    Args:
        settings: Which.
        provider: The conversation with it.
        now: Tells the time, UTC.

    Raises:
        SettingsInvalid: The secret cannot be read.
    """

    def __init__(self, settings: Settings, provider: Provider, now: Callable[[], datetime]) -> None:
        self._settings, self._provider, self._now = settings, provider, now
        secret = settings.client_secret()
        self._headers: dict[str, str] = {}
        if secret is not None:
            # RFC 6749 §2.3.1: both are encoded as in a form before they are joined.
            pair = f"{quote_plus(settings.oidc_client_id)}:{quote_plus(secret.get_secret_value())}"
            self._headers = {"Authorization": "Basic " + base64.b64encode(pair.encode()).decode("ascii")}
        self._discovered = Sparing(lambda: provider.metadata, now)
        self._known: Metadata | None = None
        self._keys = Keys(self._jwks, now)
        self._logouts = LogoutTokens(issuer=provider.issuer, client_id=settings.oidc_client_id)
        # Of this process: after a restart a login that was under way begins again.
        self._tickets = URLSafeTimedSerializer(secrets.token_bytes(32), salt="login")

    @property
    def _metadata(self) -> Metadata:
        """What the provider says of itself; asked for until it is known."""
        if self._known is None:
            self._known = self._discovered()
        return self._known

    @property
    def redirect_uri(self) -> str:
        """Where the provider sends browsers."""
        return f"{self._settings.url}{CALLBACK}"

    def begin(self, to: str, *, again: str | None = None, hint: str | None = None) -> Begun:
        """Begin a login.

        Args:
            to: The page that is wanted, a path of ours.
            again: `sub` of who is logged in and shall prove it anew.
            hint: Whom the provider may suggest.

        Raises:
            ProviderUnreachable, ProviderInvalid: It does not answer as it should.
        """
        endpoint = self._metadata.authorization_endpoint
        if endpoint is None:
            raise ProviderInvalid(f"{self._provider.issuer} names no authorization_endpoint")
        proof, state, nonce = ProofKey(), random_text(), random_text()
        question = {
            "response_type": "code",
            "client_id": self._settings.oidc_client_id,
            "redirect_uri": self.redirect_uri,
            "scope": self._settings.oidc_scope,
            "state": state,
            "nonce": nonce,
            "code_challenge": proof.challenge,
            "code_challenge_method": "S256",
        }
        if again is not None:
            # Each of the two is enough by OpenID Connect Core 1.0 §3.1.2.1; `auth_time` is verified in any case.
            question |= {"prompt": "login", "max_age": "0"}
            if self._settings.oidc_acr_values:
                question["acr_values"] = self._settings.oidc_acr_values
        if hint is not None:
            question["login_hint"] = hint
        kept = {"state": state, "nonce": nonce, "verifier": proof.verifier, "to": to, "again": again}
        kept_at = {"began": self._now().timestamp()}
        separator = "&" if "?" in endpoint else "?"
        ticket = self._tickets.dumps(kept | kept_at)
        if len(ticket) > LONGEST_TICKET:
            # A browser would not keep it, and the login would fail: better it leads to the first page.
            ticket = self._tickets.dumps(kept | kept_at | {"to": HOME})
        assert isinstance(ticket, str)
        return Begun(url=f"{endpoint}{separator}{urlencode(question)}", state=state, ticket=ticket)

    def finish(self, query: str, ticket: str) -> Finished:
        """Finish a login.

        Args:
            query: What the browser brought from the provider; anybody can have made it.
            ticket: What it kept meanwhile.

        Raises:
            LoginRefused: It is not this browser's login, or the provider said no.
            TokenInvalid: The provider's token does not prove who it is.
            ProviderUnreachable, ProviderInvalid: It does not answer as it should.
        """
        # 1. This browser began the login, here and lately. Otherwise a link could log somebody in as somebody else.
        try:
            kept: dict[str, Any] = self._tickets.loads(ticket, max_age=LOGIN_SECONDS)
        except BadSignature:
            raise LoginRefused("this login was not begun in this browser, or too long ago") from None
        # 2. The answer is for that login and from our provider.
        metadata = self._metadata
        code = verify_answer(UnverifiedAnswer.of(query), state=kept["state"], metadata=metadata)
        # 3. Only who has the verifier, and our secret, gets tokens for the code.
        answer = self._provider.post(
            metadata.token_endpoint,
            {
                "grant_type": "authorization_code",
                "code": code,
                "redirect_uri": self.redirect_uri,
                "client_id": self._settings.oidc_client_id,
                "code_verifier": kept["verifier"],
            },
            self._headers,
        )
        tokens = self._tokens(answer)
        if tokens.identity is None:
            raise TokenInvalid("the provider gave no ID token")
        # 4. The ID token proves who it is, to us, now.
        again: str | None = kept["again"]
        identity = verify_identity(
            self._keys.verified(tokens.identity, from_provider=True),
            issuer=self._provider.issuer,
            client_id=self._settings.oidc_client_id,
            nonce=kept["nonce"],
            at=self._now(),
            fresh_since=None if again is None else datetime.fromtimestamp(kept["began"], self._now().tzinfo),
            acr_values=tuple(self._settings.oidc_acr_values.split()),
        )
        return Finished(identity=identity, tokens=tokens, to=kept["to"], again=again)

    def began(self, ticket: str) -> float:
        """Return when a *ticket* says that its login began, also where it proves nothing; 0 where it says nothing."""
        at = self._says(ticket).get("began")
        return at if isinstance(at, float) else 0.0

    def wanted(self, ticket: str) -> str | None:
        """Return the page that a *ticket* says was wanted, also where it proves nothing: it is for `local` alone."""
        to = self._says(ticket).get("to")
        return to if isinstance(to, str) else None

    def _says(self, ticket: str) -> Mapping[str, Any]:
        # It may be anybody's, and is packed: a thousand times as much may come out of it.
        if len(ticket) > LONGEST_TICKET:
            return {}
        _, kept = self._tickets.loads_unsafe(ticket)
        return kept if isinstance(kept, dict) else {}

    def renew(self, tokens: Tokens) -> Tokens:
        """Return *tokens* with a new access token (RFC 6749 §6).

        Raises:
            LoginNeeded: The provider does not renew them.
            ProviderUnreachable, ProviderInvalid: It does not answer as it should.
        """
        if tokens.refresh is None:
            raise LoginNeeded("the login has expired, and the provider gave nothing to renew it with")
        form = {
            "grant_type": "refresh_token",
            "refresh_token": tokens.refresh,
            "client_id": self._settings.oidc_client_id,
        }
        answer = self._provider.post(self._metadata.token_endpoint, form, self._headers)
        try:
            fresh = self._tokens(answer)
        except LoginRefused as e:
            raise LoginNeeded(f"the login has ended: {e}") from None
        return Tokens(
            access=fresh.access,
            refresh=fresh.refresh or tokens.refresh,
            identity=fresh.identity or tokens.identity,
            expires_at=fresh.expires_at,
        )

    def revoke(self, tokens: Tokens) -> None:
        """Ask the provider to forget the refresh token (RFC 7009); without an endpoint for that, do nothing.

        Raises:
            ProviderUnreachable, ProviderInvalid: It does not answer as it should.
        """
        endpoint = self._metadata.revocation_endpoint
        if endpoint is None or tokens.refresh is None:
            return
        form = {"token": tokens.refresh, "token_type_hint": "refresh_token"}
        self._provider.post(endpoint, form | {"client_id": self._settings.oidc_client_id}, self._headers)

    def end(self, tokens: Tokens) -> str | None:
        """Return where a browser ends its login (OpenID Connect RP-Initiated Logout 1.0 §2); None for nowhere.

        Raises:
            ProviderUnreachable, ProviderInvalid: The provider does not answer as it should.
        """
        endpoint = self._metadata.end_session_endpoint
        if endpoint is None:
            return None
        question = {
            "client_id": self._settings.oidc_client_id,
            "post_logout_redirect_uri": f"{self._settings.url}{LOGGED_OUT}",
            **({"id_token_hint": tokens.identity} if tokens.identity else {}),
        }
        return f"{endpoint}{'&' if '?' in endpoint else '?'}{urlencode(question)}"

    def ended(self, token: str) -> tuple[str | None, str | None]:
        """Return whose logins a logout token ends: `sub` and `sid`, one of which is there.

        Raises:
            TokenInvalid: It ends nothing.
            ProviderUnreachable, ProviderInvalid: The provider's keys are not to be had.
        """
        return self._logouts.verify(self._keys.verified(token), self._now())

    def _jwks(self) -> Claims:
        url = self._metadata.jwks_uri
        if url is None:
            raise ProviderInvalid(f"{self._provider.issuer} names no jwks_uri")
        answer = self._provider.get(url)
        if answer.status != 200:
            raise ProviderInvalid(f"{url} answered {answer.status} instead of keys")
        return answer.members

    def _tokens(self, answer: Answer) -> Tokens:
        """Read a token answer (RFC 6749 §5.1)."""
        if answer.error is not None:
            raise refusal(answer.error, answer.description)
        kind = answer.members.get("token_type")
        if answer.status != 200 or not isinstance(kind, str) or kind.lower() != "bearer":
            raise ProviderInvalid(f"the token endpoint answered {answer.status} without a bearer token")
        access = _token(answer.members, "access_token")
        if access is None:
            raise ProviderInvalid("the token endpoint answered without an access_token")
        seconds = answer.members.get("expires_in")
        life = UNKNOWN_LIFE
        if isinstance(seconds, int) and not isinstance(seconds, bool) and 0 < seconds < 1 << 40:
            life = min(timedelta(seconds=seconds), LONGEST_LIFE)
        return Tokens(
            access=access,
            refresh=_token(answer.members, "refresh_token"),
            identity=_token(answer.members, "id_token"),
            expires_at=self._now() + life,
        )


def _token(members: Mapping[str, object], name: str) -> str | None:
    value = members.get(name)
    if value is None:
        return None
    # It is sent in a header: a line break would begin another one.
    usable = (
        isinstance(value, str) and 0 < len(value) <= LONGEST_TOKEN and all("!" <= c <= "~" for c in value)
    )
    if not usable:
        raise ProviderInvalid(f"the token endpoint answered with an unusable {name}")
    return str(value)
