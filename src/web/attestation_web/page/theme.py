"""How it looks: dark unless somebody chose otherwise; kept in the browser, without a script."""

from __future__ import annotations

from typing import Final

COOKIE: Final = "itl-web-theme"
THEMES: Final = ("dark", "light", "system")


def chosen(cookie: str | None) -> str:
    """Return what a browser's cookie chooses."""
    return cookie if cookie in THEMES else THEMES[0]
