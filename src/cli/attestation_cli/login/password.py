"""Logging in with name and password typed here: the resource owner password grant (RFC 6749 §4.3).

For providers in a laboratory that offer nothing else: the password passes this program, and second factors cannot.
OAuth has abandoned it (RFC 9700 §2.4).
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from attestation.client.openid.discovery import Provider
from attestation.client.openid.errors import LoginRefused
from attestation_cli.login.cache import Login
from attestation_cli.login.tokens import read_tokens


def login(
    provider: Provider,
    *,
    client_id: str,
    scope: str,
    username: str,
    ask: Callable[[], str],
    now: Callable[[], datetime],
) -> Login:
    """Log in as *username*; *ask* yields the password, which is asked for only when the provider is known.

    Raises:
        LoginRefused: The provider said no.
        ProviderUnreachable, ProviderInvalid: It does not answer as it should.
    """
    endpoint = provider.metadata.token_endpoint
    form = {
        "grant_type": "password",
        "username": username,
        "password": ask(),
        "client_id": client_id,
        "scope": scope,
    }
    answer = provider.post(endpoint, form)
    if answer.error == "invalid_grant":
        raise LoginRefused("name or password is wrong, or this account needs more than a password")
    return read_tokens(answer, issuer=provider.issuer, client_id=client_id, at=now())
