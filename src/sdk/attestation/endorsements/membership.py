"""Whether a node belongs to a cluster, and what it is called there (HSM-AND-KUBERNETES §20).

An identity says who somebody is; membership says that he is one of ours. A provider answers with one of three values,
and what it cannot tell is none of the other two: `Undecided` is asked again, and approves nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Protocol, TypeAlias

from attestation.endorsements.node_identity import NodeIdentity
from attestation.errors import RequestInvalid

FORMAT: Final = "itl-node-members/1"
MAX_LIST_BYTES: Final = 4 << 20
MAX_MEMBERS: Final = 20_000
_IDENTITY: Final = re.compile(r"[!-~]([ -~]{0,254}[!-~])?\Z")
_NODE_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?(\.[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)*\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """The node belongs to the cluster.

    Args:
        node_name: What it is called there: the only name that it may have in a certificate.
    """

    node_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NotMember:
    """It does not.

    Args:
        reason: One sentence for operators.
    """

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Undecided:
    """Who should know did not say. Asked again later; never an approval.

    Args:
        reason: One sentence for operators.
    """

    reason: str


Membership: TypeAlias = Member | NotMember | Undecided


class MembershipProvider(Protocol):
    """Knows who belongs to a cluster.

    It may ask others and take its time: it is called on a thread, and bounded. What it raises is `Undecided`.
    """

    def is_member(self, identity: NodeIdentity) -> Membership:
        """Say whether *identity* belongs to the cluster that this provider was made for."""
        ...


@dataclass(frozen=True, slots=True)
class MachineMembership:
    """Whoever operators gave a host name is a member, by that name: the record of the machine decides.

    That the machine is admitted, and to this cluster, is judged beside (HSM-AND-KUBERNETES §19, step 3).
    """

    def is_member(self, identity: NodeIdentity) -> Membership:
        """Say whether operators named the machine behind *identity*, and not otherwise than it names itself."""
        if identity.machine_id is None:
            return NotMember(reason="no machine is known behind this identity")
        if identity.hostname is None:
            return NotMember(reason="operators gave this machine no host name")
        if identity.node_name not in (None, identity.hostname):
            return NotMember(reason="the certificate names the node otherwise than operators do")
        return Member(node_name=identity.hostname)


@dataclass(frozen=True, slots=True)
class ListMembership:
    """Members by a list: identity to node name.

    Args:
        members: `NodeIdentity.value` to the name of the node.
    """

    members: Mapping[str, str]

    def is_member(self, identity: NodeIdentity) -> Membership:
        """Say whether *identity* is on the list, and not otherwise than it names itself."""
        node_name = self.members.get(identity.value)
        if node_name is None:
            return NotMember(reason="this identity is not on the list of members")
        if identity.node_name not in (None, node_name):
            return NotMember(reason="the certificate names the node otherwise than the list")
        return Member(node_name=node_name)


def parse_members(data: bytes) -> ListMembership:
    """Read a list of members: JSON `{"format": "itl-node-members/1", "members": {identity: node name, …}}`.

    Raises:
        RequestInvalid: The only way to fail; too long, another format, an identity twice, a name that is none.
    """
    if len(data) > MAX_LIST_BYTES:
        raise RequestInvalid(f"list of members: {len(data)} bytes, at most {MAX_LIST_BYTES} allowed")
    try:
        document = json.loads(data, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as e:
        raise RequestInvalid("list of members: no JSON, or a member twice") from e
    if not isinstance(document, dict) or set(document) != {"format", "members"}:
        raise RequestInvalid("list of members: format and members expected, nothing else")
    members = document["members"]
    if document["format"] != FORMAT or not isinstance(members, dict) or len(members) > MAX_MEMBERS:
        raise RequestInvalid(f"list of members: not {FORMAT}, or more than {MAX_MEMBERS} members")
    for identity, node_name in members.items():
        if not _IDENTITY.match(identity) or not isinstance(node_name, str):
            raise RequestInvalid("list of members: not an identity with the name of a node")
        if len(node_name) > 253 or not _NODE_NAME.match(node_name):
            raise RequestInvalid("list of members: not the name of a node")
    # Two identities of one name could each pass for the other.
    if len(set(members.values())) != len(members):
        raise RequestInvalid("list of members: two members have one name")
    return ListMembership(MappingProxyType(dict(members)))


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a member stands twice")
    return found
