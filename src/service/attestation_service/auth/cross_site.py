"""Requests that somebody else's page has an operator's browser send.

A browser shows its client certificate to us whoever's page asks it to. What the browser adds on its own tells such a
request apart (Fetch Metadata, Origin); what a form, an image or a script without our consent cannot send does so where
the browser is old (Fetch §2.2.2). Nothing of ours is a page: programs send neither header, and are not concerned.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

from fastapi import HTTPException
from starlette.datastructures import Headers

from attestation.errors import CrossSiteRequest
from attestation_service.border.bodies import media_type

READING: Final = "GET"
"""The one method of an operator's route that changes nothing; `openapi.demand_access` sees to that."""

OWN_SITES: Final = frozenset({"same-origin", "none"})
"""`Sec-Fetch-Site` of our own origin, and of what a person typed. `same-site` is a neighbour, who may be anybody."""

BODIES: Final = frozenset({"application/json", "text/csv"})
"""What routes of operators read. Without asking us first, a page makes a browser send forms and plain text only."""

_DEFAULT_PORTS: Final = {"http": 80, "https": 443}
_SHOWN_CHARACTERS: Final = 80


def refuse(headers: Headers, service_url: str) -> None:
    """Refuse what another site may have caused.

    Args:
        headers: Of the request.
        service_url: The address under which the service is known (`ITL_SERVICE_URL`).

    Raises:
        CrossSiteRequest: The browser says that another site asked.
    """
    # 1. What the browser knows of who asked. A page cannot change it; without this, one link reads or acts.
    for site in headers.getlist("sec-fetch-site"):
        if site not in OWN_SITES:
            raise CrossSiteRequest(f"a browser sent this for another site (Sec-Fetch-Site: {_shown(site)})")
    # 2. The same in older browsers. Not the Host header: who can rebind a name chooses that too.
    for origin in headers.getlist("origin"):
        if origin != origin_of(service_url):
            raise CrossSiteRequest(
                f"a browser sent this for {_shown(origin)}, which is not {origin_of(service_url)}"
            )


def demand_form(method: str, headers: Headers) -> None:
    """Refuse an act of a kind that a form in a browser could send; asked when it is known who acts.

    Raises:
        HTTPException: 415, neither JSON nor CSV.
    """
    # A form says neither of both everywhere, and needs no consent of ours; also an empty POST is an act.
    if method != READING and media_type(headers.get("content-type")) not in BODIES:
        raise HTTPException(415, "an act needs Content-Type: application/json, with a body or without")


def origin_of(url: str) -> str:
    """Return the origin of *url* as browsers write it: lower case, no default port (RFC 6454 §6.2)."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    host = f"[{host}]" if ":" in host else host
    port = "" if parts.port in (None, _DEFAULT_PORTS.get(parts.scheme)) else f":{parts.port}"
    return f"{parts.scheme}://{host}{port}"


def _shown(value: str) -> str:
    return ascii(value[:_SHOWN_CHARACTERS])
