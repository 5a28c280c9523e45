"""Errors as pages, in words: what happened, whether anything was done, and what to do now."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from flask import Flask, current_app, g, make_response, redirect, render_template, request, url_for
from werkzeug.exceptions import HTTPException

from attestation.client.errors import AnswerInvalid, APIError, OutcomeUnknown, ServiceUnreachable, TLSFailed
from attestation.client.openid.errors import LoginRefused, ProviderInvalid, ProviderUnreachable
from attestation.client.text import clean
from attestation.errors import (
    AttestationError,
    AuthenticationTooOld,
    ConfigurationsNotKept,
    Conflict,
    Expired,
    Forbidden,
    RateLimited,
    RequestInvalid,
    Unauthenticated,
    Unavailable,
    Unknown,
)
from attestation_web.border.forms import is_ours
from attestation_web.login.addresses import HOME, local
from attestation_web.login.current import asks_by_itself, forget, session_or_none
from attestation_web.login.errors import FormForged, LoginTooOld, NotLoggedIn, TokenInvalid
from attestation_web.logs import log

if TYPE_CHECKING:
    from werkzeug.wrappers import Response


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """What a page of an error says.

    Args:
        status: HTTP status.
        title: What happened.
        text: What that means, and what to do.
        retry_seconds: When to come back, or None.
        log_in: A link to log in helps.
    """

    status: int
    title: str
    text: str
    retry_seconds: int | None = None
    log_in: bool = False


_KINDS: tuple[tuple[type[AttestationError], int, str, str], ...] = (
    (FormForged, 400, "This form cannot be used", "Nothing was done. Open the page anew and try again."),
    (LoginRefused, 400, "The login did not work", "You are not logged in by it."),
    (TokenInvalid, 400, "The login did not work", "What the identity provider sent does not prove who you are."),
    (ProviderUnreachable, 503, "The identity provider does not answer", "Who is logged in stays so for a while."),
    (ProviderInvalid, 503, "The identity provider cannot be used", "Its operators must look at its settings."),
    (AuthenticationTooOld, 403, "Log in again first", "Nothing was done: who decides proves lately who they are."),
    (LoginTooOld, 403, "Log in again first", "Nothing was done: who decides proves lately who they are."),
    (Forbidden, 403, "You may not do this", "Nothing was done. Roles are granted in the identity provider."),
    (Unknown, 404, "There is no such thing", "It may have been removed, or the address is wrong."),
    (Conflict, 409, "That does not go now", "Nothing was done. Look at how things stand, and decide anew."),
    (Expired, 410, "That is over", "It expired before it was used."),
    (RequestInvalid, 422, "That cannot be used", "Nothing was done."),
    (RateLimited, 429, "Too many requests", "Nothing was done. The service answers again in a moment."),
    (OutcomeUnknown, 503, "It is not known what became of that", "Look before you try again: it may have been done."),
    (TLSFailed, 503, "The attestation service could not prove who it is", "Nothing was sent to it."),
    (AnswerInvalid, 502, "What answered is not understood", "It is of another version, or is not the service."),
    (ServiceUnreachable, 503, "The attestation service does not answer", "Nothing is known now; pages may be old."),
    (ConfigurationsNotKept, 503, "Configurations are not kept here", "Machines get files: ITL_CONFIG_KEK is not set."),
    (Unavailable, 503, "The attestation service cannot answer now", "It says so itself; it comes back by itself."),
)  # fmt: skip


_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
"""What a form of ours carries hidden, and nobody typed."""
_AWAY: Final = (ServiceUnreachable, Unavailable, ProviderUnreachable, ProviderInvalid)
"""Before an act: what becomes of one is told by its page, and what nobody knows has words of its own."""


def problem_of(error: AttestationError) -> Problem:
    """Return what the page about *error* says."""
    nothing_was_done = (
        "Nothing was done. "
        if request.method == "POST" and isinstance(error, _AWAY) and not isinstance(error, OutcomeUnknown)
        else ""
    )
    unknown = (500, "Something went wrong here", "It is in the log of the dashboard.")
    if isinstance(error, APIError):
        unknown = (
            502,
            "The attestation service failed",
            "Its log says why; an act is told of in the audit log.",
        )
    status, title, text = next((row[1:] for row in _KINDS if isinstance(error, row[0])), unknown)
    return Problem(
        status=status,
        title=title,
        text=f"{nothing_was_done}{text}",
        retry_seconds=error.retry_after_seconds if isinstance(error, APIError) else None,
        log_in=status == 400 and not isinstance(error, FormForged),
    )


def install(app: Flask) -> None:
    """Let *app* answer errors with pages."""

    @app.errorhandler(NotLoggedIn)
    def not_logged_in(error: NotLoggedIn) -> Response:
        # A poll of a page that is open somewhere: the page itself is loaded anew, and then asks.
        if asks_by_itself():
            return make_response("", 401, {"HX-Refresh": "true"})
        # After the provider's answer it would go round in a circle.
        if request.method == "GET" and request.endpoint != "login.callback":
            return redirect(url_for("login.log_in", to=request.full_path.rstrip("?")), 303)
        return _page(
            Problem(
                status=401,
                title="You are not logged in",
                text="Nothing was done: the login has ended, or the service does not accept it.",
                log_in=True,
            ),
            clean(str(error)),
        )

    @app.errorhandler(AttestationError)
    def told(error: AttestationError) -> Response:
        problem = problem_of(error)
        # The service knows nobody by this token any more: the next page begins with a login.
        if isinstance(error, Unauthenticated) and isinstance(error, APIError):
            forget()
            return not_logged_in(NotLoggedIn(str(error)))
        log().info("page.problem", code=error.code, status=problem.status, path=request.path)
        return _page(problem, clean(str(error)), getattr(error, "request_id", None))

    @app.errorhandler(HTTPException)
    def refused(error: HTTPException) -> Response:
        status = error.code or 500
        titles = {404: "There is no such page", 405: "That is not how this page is used"}
        return _page(
            Problem(
                status=status,
                title=titles.get(status, error.name),
                text="Nothing was done.",
            ),
            "",
        )

    @app.errorhandler(Exception)
    def broken(error: Exception) -> Response:
        log().exception("page.broken", path=request.path, exc_info=error)
        return _page(
            Problem(
                status=500,
                title="Something went wrong here",
                text="It is in the log of the dashboard. Whether something was done, the audit log says.",
            ),
            "",
        )


def _filled_in() -> dict[str, str]:
    """Return what a person sent with a form of ours, which is not to be lost; nothing of what another site sent."""
    if request.method != "POST" or not is_ours():
        return {}
    try:
        return {name: value for name, value in request.form.items() if not name.startswith("_") and value}
    except HTTPException:  # too long to be read
        return {}


def _where_to(filled: dict[str, str]) -> str:
    """Return where somebody goes on: at the page that they wanted, with what they filled in where that can be kept."""
    if request.method == "GET":
        # Who comes from the provider wanted another page; with what they brought this one can be opened once.
        return local(current_app, g.get("wanted", request.full_path.rstrip("?")))
    here, mine = local(current_app, request.path), session_or_none()
    return f"{here}?resume={mine.keep(filled)}" if mine is not None and filled and here != HOME else here


def _page(problem: Problem, detail: str, request_id: str | None = None) -> Response:
    filled, known = _filled_in(), session_or_none() is not None
    headers = {} if problem.retry_seconds is None else {"Retry-After": str(problem.retry_seconds)}
    page = render_template(
        "problem.html",
        problem=problem,
        detail=detail,
        request_id=request_id,
        to=_where_to(filled),
        kept=bool(filled) and known,
        # Nobody is here for whom it could be kept: they take it along.
        filled={} if known else {n: v for n, v in filled.items() if not _DIGEST.fullmatch(v)},
        known=known,
    )
    return make_response(page, problem.status, headers)
