"""Where in the dashboard a command leads that the SDK's words name: who reads them here has no terminal at hand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from attestation_web.page import may


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """A page that does or shows what a command does.

    Args:
        label: What stands in the sentence instead of the command.
        href: The page; `{id}` is the machine's.
        right: What one must have for it.
    """

    label: str
    href: str
    right: str | None = None


WAYS: Final = {
    "machine approve": Way(label="Approve", href="/inbox/{id}/approve", right="act"),
    "machine reject": Way(label="Reject", href="/inbox/{id}/reject", right="act"),
    **{
        f"machine {name}": Way(
            label=name.replace("-", " ").capitalize(), href=f"/machines/{{id}}/{name}", right="act"
        )
        for name in ("lock", "unlock", "revoke", "delete", "approve-hardware")
    },
    "machine get": Way(label="Identity", href="/machines/{id}?tab=identity"),
    "machine results": Way(label="Evidence", href="/machines/{id}?tab=evidence"),
    "policy create": Way(label="New policy", href="/policies/edit", right="act"),
    "policy assign": Way(label="Activate", href="/policies/activate", right="act"),
    "policy learn": Way(label="Learn a policy", href="/policies/learn", right="act"),
    "collateral status": Way(label="Collateral", href="/trust?tab=collateral"),
    "collateral refresh": Way(label="Refresh", href="/trust/collateral/refresh", right="act"),
}
"""By the two words after `attestation`."""


def way(command: str, machine_id: str) -> Way | None:
    """Return the page for *command* about a machine; None where there is none, or not for who asks."""
    program, *words = command.split()
    found = WAYS.get(" ".join(words[:2])) if program == "attestation" else None
    if found is None or (found.right is not None and not may(found.right)):
        return None
    return Way(label=found.label, href=found.href.format(id=machine_id))
