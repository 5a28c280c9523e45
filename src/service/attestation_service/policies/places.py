"""Where a policy can apply: the fleet, a cluster, a role, a machine."""

from __future__ import annotations

import re
from typing import Final

from attestation.api.base import CLUSTER_ID_PATTERN
from attestation.errors import RequestInvalid
from attestation.machines import Role
from attestation.store import FLEET, Scope

SCOPES: Final[tuple[Scope, ...]] = ("fleet", "cluster", "role", "machine")
"""Widest first; what a narrower one says wins."""


def check_subject(scope: Scope, subject: str) -> None:
    """Refuse what is no place.

    Raises:
        RequestInvalid: *subject* is none of this scope.
    """
    good = {
        "fleet": subject == FLEET,
        "cluster": re.fullmatch(CLUSTER_ID_PATTERN, subject) is not None,
        "role": subject in set(Role),
        "machine": len(subject) <= 36,
    }
    if not good[scope]:
        raise RequestInvalid(f"{subject[:80]!r} is not a {scope}; the fleet is {FLEET!r}")
