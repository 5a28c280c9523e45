"""Views of the list of machines: what `GET /machines` is asked, an expression, and columns, as an address says it.

Whoever opens a view asks with their own rights. It is checked so that none is kept that nobody can open.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, get_args
from urllib.parse import parse_qsl

from attestation.api.operations import MachineSort
from attestation.errors import RequestInvalid
from attestation.machines import Role, Status, Trust, labels

MOST_PARTS: Final = 64

_ONE: Final[Mapping[str, Callable[[str], Any]]] = {
    "status": Status,
    "role": Role,
    "trust": Trust,
    "labels": labels.parse_selector,
    "sort": lambda text: get_args(MachineSort).index(text),
    "cluster_id": str,
    "q": str,
    "where": str,
}
"""What stands in a view once at most, and what takes it; a fault of theirs is a ValueError or ours."""


def query_of(view: str) -> str | None:
    """Return the query that a view's `where` stands for, or None where it has none.

    Raises:
        RequestInvalid: It is no view.
    """
    try:
        parts = (
            parse_qsl(
                view, keep_blank_values=True, strict_parsing=True, max_num_fields=MOST_PARTS, errors="strict"
            )
            if view
            else []
        )
    except ValueError as e:
        raise RequestInvalid("view: not the query of an address") from e
    found: dict[str, str] = {}
    for name, value in parts:
        if name == "column":
            continue
        if name not in _ONE or name in found:
            raise RequestInvalid(f"view: {name[:64]!r} is unknown, or stands there twice")
        try:
            _ONE[name](value)
        except ValueError as e:
            raise RequestInvalid(f"view: there is no {name} called {value[:64]!r}") from e
        found[name] = value
    return machines_where(found["where"]) if "where" in found else None


def machines_where(expression: str) -> str:
    """Return the query for the machines for which *expression* holds."""
    # On a line of its own: a comment at the end of what somebody typed takes nothing of ours away.
    return f"Machines | where (\n{expression}\n)"
