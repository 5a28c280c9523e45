"""Logging in with a browser: authorization code with PKCE over loopback (RFC 8252, RFC 7636, RFC 9700 §2.1.1)."""

# Algorithms for: login
from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from datetime import datetime
from urllib.parse import urlencode

from attestation.client.openid.answer import verify_answer
from attestation.client.openid.discovery import Provider
from attestation.client.openid.errors import ProviderInvalid
from attestation.client.openid.pkce import ProofKey, random_text
from attestation_cli.login.cache import Login
from attestation_cli.login.loopback import Loopback
from attestation_cli.login.tokens import read_tokens

WAIT_SECONDS = 120.0


def login(
    provider: Provider,
    *,
    client_id: str,
    scope: str,
    show: Callable[[str], None],
    now: Callable[[], datetime],
    user: str | None = None,
    fresh: bool = False,
    wait_seconds: float = WAIT_SECONDS,
) -> Login:
    """Have a person log in with their browser.

    Args:
        provider: Where.
        client_id: As which program.
        scope: What is asked for, words with spaces between.
        show: Gives the address to the person, or to their browser.
        now: The clock.
        user: Whom the provider may suggest in its form.
        fresh: Have it ask, even where the browser is logged in already.
        wait_seconds: How long the person may take.

    Raises:
        LoginRefused: The provider or the person said no, or the answer is not for this login.
        LoginTimedOut: Nothing came.
        ProviderUnreachable, ProviderInvalid: The provider does not answer as it should.
    """
    metadata = provider.metadata
    if metadata.authorization_endpoint is None:
        raise ProviderInvalid(f"{provider.issuer} names no authorization_endpoint; try --method device")
    proof, state, nonce = ProofKey(), random_text(), random_text()
    with Loopback() as loopback:
        question = {
            "response_type": "code",
            "client_id": client_id,
            "redirect_uri": loopback.redirect_uri,
            "scope": scope,
            "state": state,
            "nonce": nonce,
            "code_challenge": proof.challenge,
            "code_challenge_method": "S256",
        }
        if user is not None:
            question["login_hint"] = user
        if fresh:
            question["prompt"] = "login"  # OpenID Connect Core 1.0 §3.1.2.1
        separator = "&" if "?" in metadata.authorization_endpoint else "?"
        show(f"{metadata.authorization_endpoint}{separator}{urlencode(question)}")
        answer = loopback.wait(wait_seconds)
        code = verify_answer(answer, state=state, metadata=metadata)
        tokens = provider.post(
            metadata.token_endpoint,
            {
                "grant_type": "authorization_code",
                "code": code,
                "redirect_uri": loopback.redirect_uri,
                "client_id": client_id,
                "code_verifier": proof.verifier,
            },
        )
    return read_tokens(tokens, issuer=provider.issuer, client_id=client_id, at=now(), nonce=nonce)


def browser_opens(environ: Mapping[str, str] | None = None, platform: str = sys.platform) -> bool:
    """True where a browser with windows can be expected: one in this terminal would fight us for it."""
    environ = os.environ if environ is None else environ
    if environ.get("BROWSER"):
        return True
    if environ.get("SSH_CONNECTION"):
        return False
    return platform in ("darwin", "win32") or bool(environ.get("DISPLAY") or environ.get("WAYLAND_DISPLAY"))


def open_browser(url: str) -> bool:
    """Open *url* in the user's browser; False where that did not work."""
    import webbrowser

    try:
        return webbrowser.open(url)
    except (webbrowser.Error, OSError):
        return False
