"""An area of pages: a Blueprint that knows its place in the navigation and the right that it takes."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from functools import wraps
from typing import Any, Final, ParamSpec, TypeVar

from flask import Blueprint, make_response, render_template, request
from werkzeug.wrappers import Response

from attestation.errors import Forbidden
from attestation_web.border.forms import OURS
from attestation_web.login.current import may, session, web, whoami
from attestation_web.page.acting import Act, serve

P = ParamSpec("P")
R = TypeVar("R")

RIGHTS: Final = {
    "read": "see machines, results and policies",
    "act": "decide about machines and what they are measured against",
    "audit": "read and verify the audit log",
    "query": "ask the query language",
}
"""What a right lets somebody do, in words."""


class Page(Blueprint):
    """One area of pages, in one file `pages/NAME.py`, with `templates/NAME/`.

    Args:
        module: `__name__` of that file, which names the area.
        title: What the navigation calls it.
        place: Where it stands there, small first; None for an area that the navigation does not name.
        group: Under which words it stands.
        under: Which area is shown as where one is, of one that the navigation does not name.
        right: What all of its pages take: `read`, `act`, `audit`; None takes nothing but a login.
        prefix: What its addresses begin with; by itself `/NAME`.
    """

    def __init__(
        self,
        module: str,
        *,
        title: str,
        place: int | None = None,
        group: str = "",
        under: str = "",
        right: str | None = "read",
        prefix: str | None = None,
    ) -> None:
        name = module.rpartition(".")[2]
        super().__init__(name, module, url_prefix=f"/{name}" if prefix is None else prefix or None)
        self.title, self.place, self.group, self.right = title, place, group, right
        self.under = under
        self.before_request(lambda: demand(right))

    def act(
        self, rule: str, *, fresh: bool = False, right: str = "act"
    ) -> Callable[[Callable[..., Act]], Callable[..., Response]]:
        """Serve an act at *rule*: GET tells what it will do and asks, POST does it and tells what it did.

        Args:
            rule: Its address below the area.
            fresh: Who does it has logged in lately, or logs in again first.
            right: What it takes.
        """

        def decorate(make: Callable[..., Act]) -> Callable[..., Response]:
            @wraps(make)
            def served(**args: Any) -> Response:
                demand(right)
                return serve(lambda: make(**args), fresh=fresh)

            self.add_url_rule(rule, make.__name__, served, methods=["GET", "POST"])
            return served

        return decorate


def demand(right: str | None) -> None:
    """Go on only for who has *right*.

    Raises:
        Forbidden: They have not.
        NotLoggedIn: Nobody is logged in.
    """
    session()
    if not may(right):
        names = ", ".join(whoami().roles) or "none"
        raise Forbidden(f"to {RIGHTS.get(right or '', 'do this')} takes another role than yours ({names})")


def asked_here() -> bool:
    """Return True where the person asked: by our form or link, an address that they typed, or a bookmark.

    A query is written into the audit under their name: a link on another site asks nothing.
    """
    return request.headers.get("Sec-Fetch-Site", "same-origin") in OURS


def needs(right: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a view that takes *right* beside that of its area."""

    def decorate(view: Callable[P, R]) -> Callable[P, R]:
        @wraps(view)
        def permitted(*args: P.args, **kwargs: P.kwargs) -> R:
            demand(right)
            return view(*args, **kwargs)

        return permitted

    return decorate


def render(template: str, /, status: int = 200, **values: Any) -> Response:
    """Return *template*, in `templates/`, as a page."""
    return make_response(render_template(template, **values), status)


def now() -> datetime:
    """Return the instant, UTC."""
    return web().now()
