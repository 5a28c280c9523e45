"""What somebody is writing: kept in their session from one page to the next, of at most eight forms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from flask import request

from attestation_web.login.current import session

DRAFT: Final = "draft"
RESUME: Final = "resume"


def keep_draft(values: Mapping[str, str]) -> str:
    """Keep *values*, and return the name for `?draft=…`."""
    return session().keep(values)


def draft_of(name: str) -> Mapping[str, str] | None:
    """Return the draft *name* of who asks; None where there is none, or not any more."""
    return session().resumed.get(name)


def change_draft(name: str, values: Mapping[str, str]) -> None:
    """Put *values* in the place of the draft *name*; nothing happens where it is not kept any more."""
    session().change(name, values)


def drafted(field: str) -> str:
    """Return *field* of the form that is being filled in: as sent, or of the draft of this address, never of a link."""
    if request.method == "POST":
        return request.form.get(field, "").strip()
    for key in (DRAFT, RESUME):
        found = draft_of(request.args.get(key, ""))
        if found is not None:
            return found.get(field, "")
    return ""
