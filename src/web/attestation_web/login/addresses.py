"""Which addresses a browser may be sent to: pages of ours, and nothing that only looks like one."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

from flask import Flask
from werkzeug.exceptions import HTTPException
from werkzeug.routing import RequestRedirect

HOME: Final = "/"
LONGEST: Final = 8192


def local(app: Flask, target: str | None) -> str:
    r"""Return *target* where it is the path of one of our pages, else the first page.

    Args:
        app: Whose pages.
        target: From anybody: `//elsewhere`, `/\elsewhere` and `https:elsewhere` are read by browsers as other hosts.
    """
    if not target or len(target) > LONGEST or not target.startswith("/") or target.startswith(("//", "/\\")):
        return HOME
    if not target.isascii() or not target.isprintable() or "\\" in target:
        return HOME
    try:
        parts = urlsplit(target)
        if parts.scheme or parts.netloc:
            return HOME
        endpoint, _ = app.url_map.bind("").match(parts.path, method="GET")
    except (ValueError, HTTPException, RequestRedirect):
        return HOME
    return HOME if endpoint.startswith(("login.", "static")) else target
