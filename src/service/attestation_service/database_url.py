"""What ITL_DB_URL says about the way to a server of PostgreSQL, read without its driver."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from urllib.parse import SplitResult, parse_qsl, urlencode, urlsplit


def weaknesses(url: str) -> list[str]:
    """Say, one line each, what is weak in *url*; none of them repeats it, because it may carry a password.

    A URL that nobody can read has none: whoever opens the database says what is wrong with it.
    """
    found = []
    if has_password(url):
        found.append(
            "ITL_DB_URL carries a password: whoever sees the variables of this process has it; put it into a file that "
            "ITL_DB_PASSWORD_FILE names"
        )
    parsed, query = _parts(url)
    ways = _hosts(parsed, query) if parsed is not None else []
    # Where a service of libpq leads, a file says that we do not read.
    if ("service" in query or not all(map(_is_here, ways))) and query.get("sslmode") != "verify-full":
        found.append(
            "ITL_DB_URL has no sslmode=verify-full: a stranger on the way to the database, or in its place, reads "
            "and changes what is stored"
        )
    return found


def with_password_file(url: str, file: str) -> str:
    """Return *url* with the file that the store reads the password from at each connection.

    Raises:
        ValueError: It is none of PostgreSQL, or carries a password itself.
    """
    parsed, query = _parts(url)
    if parsed is None:
        raise ValueError("ITL_DB_PASSWORD_FILE is for PostgreSQL, which ITL_DB_URL does not name")
    if has_password(url):
        raise ValueError("ITL_DB_URL carries a password, and ITL_DB_PASSWORD_FILE is set; keep the file")
    return f"{url}{'&' if query else '?'}{urlencode({'password_file': file})}"


def has_password(url: str) -> bool:
    """Return True where *url* names a server of PostgreSQL and the password for it."""
    parsed, query = _parts(url)
    return parsed is not None and bool(parsed.password or query.get("password"))


def is_elsewhere(url: str) -> bool:
    """Return True where *url* names servers of PostgreSQL on other computers, which have clocks of their own."""
    parsed, query = _parts(url)
    if parsed is None or "service" in query:
        return False
    return not any(map(_is_here, _hosts(parsed, query)))


def _hosts(parsed: SplitResult, query: Mapping[str, str]) -> list[str]:
    return (query.get("hostaddr") or query.get("host") or parsed.hostname or "").split(",")


def _parts(url: str) -> tuple[SplitResult | None, Mapping[str, str]]:
    """Return the parts of the URL of a database of PostgreSQL, and its query; None where it is none."""
    try:
        parsed = urlsplit(url)
        if parsed.scheme.partition("+")[0] == "postgresql":
            return parsed, dict(parse_qsl(parsed.query))
    except ValueError:
        pass
    return None, {}


def _is_here(host: str) -> bool:
    """Return True for a host that no network leads to: a Unix socket, which has no name, or the loopback interface."""
    if host in ("", "localhost") or host.startswith(("/", "@")):
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
