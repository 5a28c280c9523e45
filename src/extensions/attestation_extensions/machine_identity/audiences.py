"""Who tokens may be made for: a list that the deployment wrote, and what a machine must be for each.

    openbao; https://kubernetes.prod role=worker-app,worker-db cluster=prod

Entries end with `;` or the line. The first word is the audience as it stands in `aud`; conditions follow. All of them
must hold; an audience without any is for every machine that is attested.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from attestation.extension import Role

MAX_AUDIENCES: Final = 64
AUDIENCE: Final = re.compile(r"[!-:<-~]{1,255}")
"""What a StringOrURI of ours is made of: printable, without blank and `;`."""
_CLUSTER: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Audience:
    """One audience.

    Args:
        name: As it stands in `aud`.
        roles: Of which role a machine must be; None for any.
        clusters: Of which cluster it must be; None for any.
    """

    name: str
    roles: frozenset[Role] | None = None
    clusters: frozenset[str] | None = None

    def is_for(self, role: Role, cluster_id: str) -> bool:
        """True where a machine of *role* in *cluster_id* may have a token for it."""
        return (self.roles is None or role in self.roles) and (
            self.clusters is None or cluster_id in self.clusters
        )


def parse_audiences(text: str) -> Mapping[str, Audience]:
    """Return the audiences that *text* lists, by name.

    Raises:
        ValueError: An entry is none, stands there twice, or there are too many; the only way to fail.
    """
    found: dict[str, Audience] = {}
    for entry in re.split(r"[;\n]", text):
        if words := entry.split():
            audience = _audience(words[0], words[1:])
            if audience.name in found:
                raise ValueError(f"{audience.name} stands there twice")
            found[audience.name] = audience
    if not 0 < len(found) <= MAX_AUDIENCES:
        raise ValueError(f"1 to {MAX_AUDIENCES} audiences are needed")
    return found


def _audience(name: str, conditions: list[str]) -> Audience:
    if not AUDIENCE.fullmatch(name):
        raise ValueError("an audience is 1 to 255 printable characters without blanks")
    given: dict[str, frozenset[str]] = {}
    for condition in conditions:
        word, _, values = condition.partition("=")
        # Nothing unknown is passed over: it was meant to narrow.
        if word not in ("role", "cluster") or word in given:
            raise ValueError(f"{name}: what follows is role=… or cluster=…, each once")
        given[word] = frozenset(values.split(","))
    roles, clusters = given.get("role"), given.get("cluster")
    if clusters is not None and not all(_CLUSTER.fullmatch(each) for each in clusters):
        raise ValueError(f"{name}: a cluster is letters, digits and -")
    try:
        known = frozenset(Role(each) for each in roles) if roles is not None else None
    except ValueError:
        raise ValueError(f"{name}: a role is one of {', '.join(Role)}") from None
    return Audience(name=name, roles=known, clusters=clusters)
