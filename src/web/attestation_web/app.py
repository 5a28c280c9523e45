"""The application: what every request passes, in this order.

host ── static or public ── session ── form ── right of the area ── the page ── headers
"""

# Algorithms for: digest
from __future__ import annotations

import hashlib
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from flask import Flask, request

from attestation import __version__
from attestation.client import OperatorClient
from attestation.client.connection import carrier_for, tls_context
from attestation.client.openid.discovery import Provider
from attestation.client.retries import ONCE
from attestation.endorsements import vendors
from attestation.text import clean_lines
from attestation_web import navigation, problems
from attestation_web.border import forms, headers, in_time
from attestation_web.login import routes
from attestation_web.login.current import EXTENSION, Web, asks_by_itself, may, session, session_or_none, web
from attestation_web.login.openid import OpenID
from attestation_web.login.sessions import Sessions
from attestation_web.page import badges, names, theme, when
from attestation_web.settings import Settings

if TYPE_CHECKING:
    from attestation.client.carrier import Carrier

NOBODY: Final = "nobody"
"""In whose name the shared client of the service would speak; `speaking_for` replaces it."""


def create_app(
    settings: Settings,
    *,
    service: Carrier | None = None,
    provider: Carrier | None = None,
    now: Callable[[], datetime] | None = None,
) -> Flask:
    """Build the application.

    Args:
        settings: What was set.
        service: What carries requests to the service instead of the network: for tests.
        provider: Likewise, to the provider.
        now: Tells the time, UTC.

    Raises:
        SettingsInvalid, RequestInvalid: A file or an address cannot be used.
    """
    tell = now or (lambda: datetime.now(UTC))
    app = Flask("attestation_web")
    # Signed cookies of Flask are not used: without a key nobody uses them by mistake.
    app.secret_key = None
    app.config["TRUSTED_HOSTS"] = [urlsplit(settings.url).hostname]
    app.config["MAX_FORM_MEMORY_SIZE"] = 2 << 20
    app.config["MAX_FORM_PARTS"] = 2_000
    app.jinja_options = {**app.jinja_options, "trim_blocks": True, "lstrip_blocks": True, "finalize": _shown}
    ca_file = None if settings.oidc_ca_file is None else str(settings.oidc_ca_file)
    tls = tls_context(settings.service_ca_file) if settings.service_url.startswith("https:") else None
    app.extensions[EXTENSION] = Web(
        settings=settings,
        service=OperatorClient(
            settings.service_url,
            NOBODY,
            ca_file=settings.service_ca_file,
            # A person waits, and a thread with them: they are told, and press again. Acts are asked about all the same.
            retries=ONCE,
            carrier=in_time.InTime(carrier_for(settings.service_url, tls, service)),
        ),
        openid=OpenID(settings, Provider(settings.oidc_issuer, ca_file=ca_file, carrier=provider), tell),
        sessions=Sessions(
            idle=timedelta(seconds=settings.session_idle_seconds),
            longest=timedelta(seconds=settings.session_seconds),
        ),
        now=tell,
    )
    headers.install(app, settings)
    in_time.install(app)
    problems.install(app)
    _demand_login(app)
    forms.install(app)
    app.register_blueprint(routes.blueprint)
    for page in navigation.areas():
        app.register_blueprint(page)
    _templates(app, settings)
    return app


def _demand_login(app: Flask) -> None:
    public = routes.PUBLIC | {headers.STATIC}

    @app.before_request
    def known() -> None:
        # What is not public takes a session, a page that nobody thought of too.
        if request.endpoint is not None and request.endpoint not in public:
            session()


def _shown(value: object) -> object:
    """Return what a template shows of *value*: nothing that deceives a reader; it is escaped afterwards.

    What is markup already is left as it is, so `{{ value|e }}` in a field of a form gives back what was filled in.
    """
    return value if isinstance(value, int) or hasattr(value, "__html__") else clean_lines(str(value))


def _templates(app: Flask, settings: Settings) -> None:
    filters: dict[str, Callable[..., Any]] = {
        "badge": badges.badge,
        "called": names.called,
        "exact": when.exact,
        "maker": vendors.maker,
        "machine_readable": when.machine_readable,
        "relative": lambda value: when.relative(value, web().now()),
        "short": when.short,
    }
    app.jinja_env.filters.update(filters)
    app.jinja_env.tests["identifier"] = when.is_identifier
    app.jinja_env.globals.update(
        csp_nonce=headers.nonce,
        form_field=forms.field,
        may=may,
        navigation=navigation.shown,
        static=static,
        refresh_seconds=settings.refresh_seconds,
        themes=theme.THEMES,
        version=__version__,
    )

    @app.context_processor
    def of_this_request() -> dict[str, Any]:
        mine = session_or_none()
        return {
            "person": mine,
            # What an act did, and a secret that is shown once, is for a page that somebody looks at.
            "told": list if mine is None or asks_by_itself() else mine.told,
            "theme": theme.chosen(request.cookies.get(theme.COOKIE)),
            "here": request.full_path.rstrip("?") if request.method == "GET" else request.path,
            "asked_at": web().now(),
        }


@cache
def _digest(name: str) -> str:
    data = (Path(__file__).parent / "static" / name).read_bytes()
    return hashlib.sha256(data).hexdigest()[:16]


def static(name: str) -> str:
    """Return the address of a file in `static/`, which names its bytes: it may be kept for ever."""
    return f"/static/{name}?v={_digest(name)}"
