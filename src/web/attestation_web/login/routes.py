"""Logging in, logging in again, logging out: by the person, or by the provider."""

# Algorithms for: digest
from __future__ import annotations

import hashlib
from datetime import timedelta
from typing import Final

from flask import Blueprint, current_app, g, make_response, redirect, render_template, request
from werkzeug.wrappers import Response

from attestation.client.openid.errors import ProviderInvalid, ProviderUnreachable
from attestation.errors import AttestationError
from attestation_web.login.addresses import local
from attestation_web.login.current import session_or_none, web, whoami
from attestation_web.login.errors import TokenInvalid
from attestation_web.login.openid import LOGGED_OUT, LOGIN_SECONDS, Finished
from attestation_web.login.sessions import Session
from attestation_web.logs import log

blueprint: Final = Blueprint("login", __name__, url_prefix="/auth")
PUBLIC: Final = frozenset(("login.log_in", "login.callback", "login.backchannel_logout", "login.logged_out"))
"""What answers everybody."""
LONGEST_FORM: Final = 128 << 10
"""Bytes of what strangers send: a logout token of at most 64 KiB, in a form."""
_TICKET: Final = "-login-"
MOST_TICKETS: Final = 3_500
"""Characters of logins under way, beside the one that begins: one long one, or eight others."""
UNSIGNED: Final = frozenset(("login.backchannel_logout",))
"""Forms without our signature: the provider's, which signs them itself."""


def _ticket_cookie(state: str) -> str:
    """Return the name of the cookie of one login: several may be under way, one in each tab."""
    short = hashlib.sha256(state.encode()).hexdigest()[:12]
    return f"{web().cookie}{_TICKET}{short}"


def _superfluous() -> list[str]:
    """Return the names of the oldest logins of this browser that are under way, where together they are too long.

    When a session ends, each open tab begins a login. Their cookies come with each request; proxies refuse long ones.
    """
    here = web()
    tickets = {n: v for n, v in request.cookies.items() if n.startswith(f"{here.cookie}{_TICKET}")}
    oldest_first = sorted(tickets, key=lambda name: here.openid.began(tickets[name]))
    while oldest_first and sum(len(tickets[name]) for name in oldest_first) > MOST_TICKETS:
        del oldest_first[0]
    return [name for name in tickets if name not in oldest_first]


@blueprint.get("/login")
def log_in() -> Response:
    """Send a browser to the provider."""
    to = local(current_app, request.args.get("to"))
    if session_or_none() is not None:
        return redirect(to, 303)
    return _begin(to)


@blueprint.get("/again")
def log_in_again() -> Response:
    """Send a browser to the provider although somebody is logged in: who decides proves who they are."""
    mine = session_or_none()
    to = local(current_app, request.args.get("to"))
    if mine is None:
        return _begin(to)
    return _begin(to, again=mine.subject, hint=mine.name)


def _begin(to: str, *, again: str | None = None, hint: str | None = None) -> Response:
    here = web()
    g.wanted = to
    begun = here.openid.begin(to, again=again, hint=hint)
    response = redirect(begun.url, 303)
    response.set_cookie(
        _ticket_cookie(begun.state),
        begun.ticket,
        max_age=LOGIN_SECONDS,
        secure=here.settings.is_encrypted,
        httponly=True,
        samesite="Lax",
    )
    for name in _superfluous():
        response.delete_cookie(name, secure=here.settings.is_encrypted, httponly=True, samesite="Lax")
    return response


@blueprint.get("/callback")
def callback() -> Response:
    """Take what the browser brings from the provider, and open a session."""
    here = web()
    cookie = _ticket_cookie(request.args.get("state", ""))
    ticket = request.cookies.get(cookie, "")
    # Where this does not work: to where they log in again.
    g.wanted = here.openid.wanted(ticket)
    finished = here.openid.finish(request.query_string.decode("ascii", "replace"), ticket)
    to = _open(finished)
    response = redirect(to, 303)
    response.delete_cookie(cookie, secure=here.settings.is_encrypted, httponly=True, samesite="Lax")
    response.set_cookie(
        here.cookie, g.opened, secure=here.settings.is_encrypted, httponly=True, samesite="Lax", path="/"
    )
    return response


def _open(finished: Finished) -> str:
    """Open a session under a new id and return where its browser goes.

    A name that somebody planted in the browser before the login is worth nothing after it.
    """
    here, identity = web(), finished.identity
    at = here.now()
    before = here.sessions.close(request.cookies.get(here.cookie, ""))
    # Without `auth_time`, an old login of the provider's may be behind it: nothing may be decided with it.
    unknown = at if finished.again is not None else at - timedelta(days=1)
    opened = Session(
        subject=identity.subject,
        name=identity.name,
        sid=identity.sid,
        authenticated_at=identity.authenticated_at or unknown,
        acr=identity.acr,
        tokens=finished.tokens,
        opened_at=at,
        seen_at=at,
    )
    same = before is not None and before.subject == identity.subject
    if same and before is not None:
        opened.resumed, opened.notices, opened.opened_at = before.resumed, before.notices, before.opened_at
        opened.pressed = before.pressed
    g.session = opened
    # The service must take the token too; else there is a page that says why, no loop, and no session.
    try:
        whoami()
    except AttestationError:
        g.session = None
        raise
    g.opened = here.sessions.open(opened)
    log().info("login.opened", subject=identity.subject, again=finished.again is not None)
    # What one person wanted to do, another who logged in at their computer does not find.
    return finished.to if finished.again in (None, identity.subject) else "/"


@blueprint.post("/logout")
def log_out() -> Response:
    """End the session here and the login at the provider."""
    here = web()
    ended = here.sessions.close(request.cookies.get(here.cookie, ""))
    to = LOGGED_OUT
    if ended is not None:
        log().info("login.closed", subject=ended.subject)
        try:
            here.openid.revoke(ended.tokens)
            to = here.openid.end(ended.tokens) or to
        except (ProviderUnreachable, ProviderInvalid) as e:
            log().warning("login.provider_away", reason=str(e))
    response = redirect(to, 303)
    response.delete_cookie(
        here.cookie, secure=here.settings.is_encrypted, httponly=True, samesite="Lax", path="/"
    )
    response.headers["Clear-Site-Data"] = '"cache", "storage"'
    return response


@blueprint.get("/logged-out")
def logged_out() -> Response:
    """Say that nobody is logged in here."""
    return make_response(render_template("logged_out.html"))


@blueprint.post("/backchannel-logout")
def backchannel_logout() -> Response:
    """End sessions because the provider says so (OpenID Connect Back-Channel Logout 1.0 §2.5)."""
    here = web()
    # From anybody: what is no token is not taken apart.
    request.max_content_length = LONGEST_FORM
    tokens = request.form.getlist("logout_token")
    if len(tokens) != 1:
        return make_response(
            {"error": "invalid_request", "error_description": "one logout_token is needed"}, 400
        )
    try:
        subject, sid = here.openid.ended(tokens[0])
    except TokenInvalid as e:
        log().warning("login.logout_refused", reason=str(e))
        return make_response({"error": "invalid_request", "error_description": str(e)}, 400)
    ended = here.sessions.close_of(subject=subject, sid=sid)
    log().info("login.ended_by_provider", sessions=ended)
    return make_response("", 200)
