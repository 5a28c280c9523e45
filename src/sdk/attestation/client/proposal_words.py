"""What a proposal of dual control says, in the words that people use for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

BECOMES: Final = (
    ("role", "role", "current_role"),
    ("host name", "hostname", "current_hostname"),
    ("address", "assigned_ip", "current_assigned_ip"),
    ("cluster", "cluster_id", "current_cluster_id"),
)
"""What a machine gets: the word, the member, and the member that says what it has now."""

NAMES: Final = {"ek_fingerprint": "EK fingerprint", "ak_name": "AK name", "evidence_digest": "evidence"}
"""What people call members."""

_TOLD: Final = {"machine_id", "action", "format", "terms", *(name for _, *two in BECOMES for name in two)}


def others(proposal: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """Yield member, its name and value: all that votes bind beside what a machine becomes, where there is something."""
    members = {name: value for name, value in proposal.items() if name not in _TOLD}
    for name, value in (*members.items(), *proposal.get("terms", {}).items()):
        if value is not None:
            yield name, NAMES.get(name, name.replace("_", " ")), value


def words(value: Any) -> str:
    """Return a member of a proposal in words."""
    if isinstance(value, dict) and "parts" in value:
        parts = [f"{part['ref']}{'' if part['agreed'] else ' (one operator)'}" for part in value["parts"]]
        made = f", of {', '.join(parts)}" if parts else ""
        policy = value["policy"]
        return f"{policy['ref']}, at least {value['minimum']}{made}; SHA-256 {policy['sha256']}"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
