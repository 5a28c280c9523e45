"""Conditions of objects, as every controller of ours writes them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from attestation.clock import rfc3339
from attestation_operator.objects import Raw, clipped


def said(type_: str, reason: str, message: str = "", *, true: bool | None = True) -> dict[str, Any]:
    """Return a condition without its time; *true* None: unknown."""
    status = "Unknown" if true is None else str(bool(true))
    return {"type": str(type_), "status": status, "reason": str(reason), "message": message}


def with_conditions(
    there: Iterable[Raw], ours: Iterable[Mapping[str, Any]], *, generation: int | None, at: datetime
) -> list[dict[str, Any]]:
    """Return the conditions *there* with *ours* in place of those of their types.

    The time of one changes with its `status`, and with the reason of one that is Unknown, which is a state too.
    """
    found = {str(each["type"]): dict(each) for each in there}
    for each in ours:
        type_, old = str(each["type"]), found.get(str(each["type"]), {})
        same = old.get("status") == each["status"] and (
            each["status"] != "Unknown" or old.get("reason") == each["reason"]
        )
        since = old["lastTransitionTime"] if same else rfc3339(at)
        # An old API server (1.20) takes an empty text for null, which a condition may not have.
        message = clipped(each["message"] or each["reason"])
        found[type_] = {**each, "message": message, "lastTransitionTime": since}
        if generation is not None:
            found[type_]["observedGeneration"] = generation
    return list(found.values())
