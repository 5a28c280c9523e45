"""The login that a command uses: found in the cache, renewed where it is about to end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from attestation.client.openid.errors import LoginNeeded, ProviderInvalid, ProviderUnreachable
from attestation_cli.login.cache import Login, LoginCache

if TYPE_CHECKING:
    from attestation.client.carrier import Carrier


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which login a command means.

    Args:
        issuer: The provider; None takes the newest login that was made for *api_url*.
        client_id: How the provider knows this program.
        user: Name, e-mail or `sub` of its owner; None takes the newest.
        api_url: The service that will see the token.
        ca_file: For the provider, see `discovery.Provider`.
    """

    issuer: str | None
    client_id: str
    user: str | None
    api_url: str
    ca_file: str | None = None


def find(cache: LoginCache, wanted: Wanted) -> Login | None:
    """Return the newest login that is *wanted*, with its tokens; None where there is none.

    Raises:
        CacheUnsafe: The cache is not the user's alone.
        KeychainUnusable: Its tokens are in a keyring that does not answer.
    """
    login = known(cache, wanted)
    return None if login is None else cache.load(login.name)


def known(cache: LoginCache, wanted: Wanted) -> Login | None:
    """Return the newest login that is *wanted*, without tokens that are in the keyring; None where there is none.

    Where no issuer is configured, a token goes only to the service that was in use at its login.

    Raises:
        CacheUnsafe: The cache is not the user's alone.
    """
    for login in cache.logins():
        if wanted.issuer is None:
            fits = login.api_url == wanted.api_url
        else:
            fits = (login.issuer, login.client_id) == (wanted.issuer, wanted.client_id)
        if fits and wanted.user in (None, login.subject, login.username, login.email):
            return login
    return None


def bearer(
    cache: LoginCache,
    wanted: Wanted,
    *,
    carrier: Carrier | None = None,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> str:
    """Return the token to send.

    Raises:
        LoginNeeded: There is no login, or it has ended.
        ProviderUnreachable, ProviderInvalid: It has expired, and the provider could not be asked for a new one.
    """
    login = find(cache, wanted)
    if login is None:
        where = f" at {wanted.issuer}" if wanted.issuer else ""
        who = f" as {wanted.user}" if wanted.user else ""
        raise LoginNeeded(
            f"there is no login{where}{who}; ITL_ADMIN_TOKEN is not set, --token-file not given"
        )
    if not login.is_expired(now()):
        return login.access_token
    try:
        return refresh(cache, login, ca_file=wanted.ca_file, carrier=carrier, now=now).access_token
    except (ProviderUnreachable, ProviderInvalid):
        # Close to its end, but not there: the provider's trouble need not be ours yet.
        if now() < login.expires_at:
            return login.access_token
        raise


def refresh(
    cache: LoginCache,
    login: Login,
    *,
    ca_file: str | None = None,
    force: bool = False,
    carrier: Carrier | None = None,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> Login:
    """Renew *login*, once however many commands want it at the same time.

    Args:
        cache: Where it is kept.
        login: What the caller read.
        ca_file: For the provider, see `discovery.Provider`.
        force: Renew it also where it is still good.
        carrier: For tests.
        now: The clock.

    Raises:
        LoginNeeded: It has ended.
        ProviderUnreachable, ProviderInvalid: The provider does not answer as it should.
        CacheBusy: Another command does not finish.
    """
    with cache.lock(login.name):
        # Whoever held the lock before us may have renewed it: many providers take a refresh token only once.
        latest = cache.load(login.name)
        if latest is None:
            raise LoginNeeded(f"the login of {login.shown_name} at {login.issuer} was removed")
        if latest.obtained_at > login.obtained_at or latest.access_token != login.access_token:
            force = False
        if not force and not latest.is_expired(now()):
            return latest
        # Imported here: most commands find a good login and talk to no provider.
        from attestation.client.openid.discovery import Provider
        from attestation_cli.login.tokens import clock_note, renewed

        with Provider(latest.issuer, ca_file=ca_file, carrier=carrier) as provider:
            fresh = renewed(provider, latest, now())
        cache.save(fresh)
        if (note := clock_note(provider.clock, now())) is not None:
            cache.note(note)
        return fresh
