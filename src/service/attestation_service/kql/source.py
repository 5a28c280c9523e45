"""The text of a query, and how a place in it becomes an error."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass

from attestation.errors import QueryInvalid
from attestation_service.kql.kinds import Place


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The text of a query."""

    text: str

    def invalid(self, place: Place, message: str, *, suggestion: str | None = None) -> QueryInvalid:
        """Return the error that says that something is wrong at *place*."""
        before = self.text[: place.offset]
        return QueryInvalid(
            message,
            line=before.count("\n") + 1,
            column=place.offset - (before.rfind("\n") + 1) + 1,
            length=max(1, place.length),
            suggestion=suggestion,
        )

    def unknown(self, place: Place, what: str, name: str, known: Iterable[str]) -> QueryInvalid:
        """Return the error that says that nothing is called *name*, and what was probably meant."""
        shown = name if len(name) <= 64 else name[:64] + "…"
        return self.invalid(place, f"no {what} is called {shown}", suggestion=nearest(name, known))


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the one of *known* that *name* is most like, whatever the case of its letters."""
    by_fold = {each.casefold(): each for each in known}
    found = difflib.get_close_matches(name[:64].casefold(), by_fold, n=1, cutoff=0.6)
    return by_fold[found[0]] if found else None
