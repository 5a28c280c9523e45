"""The area, and what its pages share: places where a policy applies, and references to versions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, cast, get_args

from attestation.api.operations import Scope
from attestation.client.policy_words import place_words
from attestation.errors import RequestInvalid
from attestation.machines import Role
from attestation_web.page import Page

if TYPE_CHECKING:
    from attestation.api import PolicyAssignment, PolicyDetail, PolicyList

page: Final = Page(__package__, title="Policies", place=40)

SCOPES: Final[tuple[Scope, ...]] = get_args(Scope)
SCOPE_WORDS: Final = (
    ("fleet", "every machine"),
    ("cluster", "one cluster"),
    ("role", "one role"),
    ("machine", "one machine"),
)
ROLES: Final = tuple(role.value for role in Role)


def place_of(scope: str, subject: str) -> tuple[Scope, str]:
    """Return the place that somebody named; the fleet's subject is `*` whatever was typed.

    Raises:
        RequestInvalid: There is no such kind of place, or its name is missing.
    """
    if scope not in SCOPES:
        raise RequestInvalid(f"{scope!r} is no place: choose one of {', '.join(SCOPES)}")
    if scope == "fleet":
        return "fleet", "*"
    if not subject:
        raise RequestInvalid(f"name the {scope}")
    return cast("Scope", scope), subject


def ref(policy: PolicyDetail) -> str:
    """Return `name@version`."""
    return f"{policy.name}@{policy.version}"


def newest_first(listed: PolicyList) -> Sequence[PolicyDetail]:
    """Return policies by name, the newest version of each first."""
    return sorted(listed.policies, key=lambda p: (p.name, -p.version))


def applied_at(listed: PolicyList, scope: str, subject: str) -> PolicyAssignment | None:
    """Return what is assigned at a place now."""
    return next((a for a in listed.assignments if (a.scope, a.subject) == (scope, subject)), None)


def places(listed: PolicyList, reference: str) -> list[PolicyAssignment]:
    """Return where the version *reference* is assigned."""
    return [a for a in listed.assignments if a.policy == reference]


page.add_app_template_filter(lambda a: place_words(a.scope, a.subject), "place")
page.add_app_template_filter(ref, "policy_ref")
