"""Headers of every answer: what a browser may do with it, and who may keep it."""

from __future__ import annotations

import secrets
from typing import Final
from urllib.parse import urlsplit

from flask import Flask, g, request
from werkzeug.wrappers import Response

from attestation_web.settings import Settings

YEAR_SECONDS: Final = 31_536_000
STATIC: Final = "static"
FIXED: Final = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    # With `no-referrer` browsers send `Origin: null` with forms, by which we could not tell whose they are.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
}


def nonce() -> str:
    """Return the nonce of this answer: only elements that carry it are run or applied."""
    if "nonce" not in g:
        g.nonce = secrets.token_urlsafe(16)
    return str(g.nonce)


def policy(nonce: str, issuer: str) -> str:
    """Return the Content-Security-Policy of a page.

    Args:
        nonce: Of its scripts and styles; there are no inline ones, and no handlers or styles in attributes.
        issuer: The provider, to which the form that logs out leads on: browsers hold redirects to `form-action`.
    """
    parts = urlsplit(issuer)
    return "; ".join(
        (
            "default-src 'none'",
            f"script-src 'nonce-{nonce}'",
            f"style-src 'nonce-{nonce}'",
            "img-src 'self'",
            "font-src 'self'",
            "connect-src 'self'",
            f"form-action 'self' {parts.scheme}://{parts.netloc}",
            "base-uri 'none'",
            "frame-ancestors 'none'",
        )
    )


def install(app: Flask, settings: Settings) -> None:
    """Let every answer of *app* carry them, errors too."""

    @app.after_request
    def carry(response: Response) -> Response:
        for name, value in FIXED.items():
            response.headers[name] = value
        response.headers["Content-Security-Policy"] = policy(nonce(), settings.oidc_issuer)
        if settings.is_encrypted:
            response.headers["Strict-Transport-Security"] = f"max-age={YEAR_SECONDS}; includeSubDomains"
        # A file whose address names its bytes never changes; a page is of one person, at one time.
        named = request.endpoint == STATIC and "v" in request.args and response.status_code == 200
        response.headers["Cache-Control"] = (
            f"public, max-age={YEAR_SECONDS}, immutable" if named else "no-store"
        )
        if request.endpoint != STATIC:
            response.headers["Vary"] = "Cookie"
        return response
