"""Who I am here, what I may, and how it looks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from flask import current_app, redirect, request

from attestation_web.login.addresses import local
from attestation_web.login.current import session, web
from attestation_web.page import Page, render, whoami
from attestation_web.page.area import RIGHTS
from attestation_web.page.theme import COOKIE, THEMES

if TYPE_CHECKING:
    from werkzeug.wrappers import Response

YEAR_SECONDS: Final = 31_536_000

page: Final = Page(__name__, title="Account", right=None)


@page.get("")
def show() -> Response:
    """Show whom the service takes me for."""
    return render("account/page.html", me=whoami(), mine=session(), rights=RIGHTS)


@page.post("/theme")
def choose_theme() -> Response:
    """Keep how it shall look, in this browser, and go back."""
    chosen = request.form.get("theme", "")
    response = redirect(local(current_app, request.form.get("to")), 303)
    if chosen in THEMES:
        response.set_cookie(
            COOKIE,
            chosen,
            max_age=YEAR_SECONDS,
            secure=web().settings.is_encrypted,
            httponly=True,
            samesite="Lax",
        )
    return response
