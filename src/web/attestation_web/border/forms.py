"""Forms that change something: only those that this dashboard gave, to this person, for this address (CSRF)."""

# Algorithms for: web-form
from __future__ import annotations

import base64
import hashlib
import hmac
from typing import Final

from flask import Flask, request
from markupsafe import Markup

from attestation_web.login.current import session, session_or_none, web
from attestation_web.login.errors import FormForged
from attestation_web.login.routes import UNSIGNED

FIELD: Final = "_form"
SAFE: Final = frozenset(("GET", "HEAD", "OPTIONS"))
OURS: Final = frozenset(("same-origin", "none"))


def signature(key: bytes, path: str) -> str:
    """Return what a form for *path* carries: HMAC-SHA256 under the session's key, 43 characters of base64url."""
    digest = hmac.new(key, path.encode(), hashlib.sha256).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode("ascii")


def field(path: str) -> Markup:
    """Return the hidden field of a form that is sent to *path*, which has no query."""
    return Markup('<input type="hidden" name="{}" value="{}">').format(FIELD, signature(session().key, path))


def is_ours() -> bool:
    """True where the browser says that the form of this request stood on a page of ours."""
    return request.headers.get("Origin") == web().settings.url


def install(app: Flask) -> None:
    """Refuse forged forms at every address of *app*."""

    @app.before_request
    def genuine() -> None:
        if request.method in SAFE or request.endpoint is None or request.endpoint in UNSIGNED:
            return
        # 1. The browser says where the form stood. Old ones do not say it; then the signature decides.
        if "Origin" in request.headers and not is_ours():
            raise FormForged("this form came from another site")
        if request.headers.get("Sec-Fetch-Site", "same-origin") not in OURS:
            raise FormForged("this form came from another site")
        # 2. Without a session nothing can be done in anybody's name; what asks for one says so.
        mine = session_or_none()
        if mine is None:
            return
        # 3. We gave the form to this person, for this address.
        sent = request.form.get(FIELD, "")
        if not hmac.compare_digest(sent.encode(), signature(mine.key, request.path).encode()):
            raise FormForged("this form was not given to you by this dashboard, or before you logged in anew")
