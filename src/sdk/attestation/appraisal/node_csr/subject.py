"""What a certificate of a node may say (HSM-AND-KUBERNETES §21; kubernetes/api certificates/v1)."""

from __future__ import annotations

from typing import Final

from attestation.appraisal.node_csr.case import Requested, Rules
from attestation.errors import RequestInvalid
from attestation.machines.names import canonical_hostname
from attestation.pki.names import NODE_USER, NODES_GROUP
from attestation.pki.requested import COMMON_NAME, ORGANIZATION, RequestedNames

_CLIENT_USAGES: Final = frozenset({"digital signature", "client auth"})
_SERVING_USAGES: Final = frozenset({"digital signature", "server auth"})
_KEY_ENCIPHERMENT: Final = "key encipherment"


def node_name(names: RequestedNames) -> str | None:
    """Return the name of the node that a subject is of; None where it is of none.

    Exactly O = system:nodes and CN = system:node:NAME: an attribute more would be one that somebody believes.
    """
    common = names.values(COMMON_NAME)
    if len(names.subject) != 2 or len(common) != 1 or names.values(ORGANIZATION) != (NODES_GROUP,):
        return None
    name = common[0].removeprefix(NODE_USER)
    return name if name and name != common[0] else None


def may_ask(requested: Requested, name: str | None, rules: Rules) -> bool:
    """True where the requester may ask for a client certificate: by its groups, or as this very node that renews."""
    return bool(requested.groups & rules.requester_groups) or is_node(requested, name)


def is_node(requested: Requested, name: str | None) -> bool:
    """True where the requester is the node *name* itself, by a certificate of before."""
    return name is not None and NODES_GROUP in requested.groups and requested.username == NODE_USER + name


def client_problem(
    names: RequestedNames, usages: tuple[str, ...], algorithm: str, hostname: str | None
) -> str | None:
    """Return what is wrong with a request for a client certificate of *hostname*; None for nothing."""
    if node_name(names) is None:
        return "not a subject of a node"
    if hostname is None or node_name(names) != hostname:
        return "the subject is of another node"
    if names.dns_names or names.ip_addresses or names.others or names.extensions:
        return "more than a subject is asked for"
    return _usage_problem(usages, _CLIENT_USAGES, algorithm)


def serving_problem(
    names: RequestedNames,
    usages: tuple[str, ...],
    algorithm: str,
    dns_names: frozenset[str],
    addresses: frozenset[str],
) -> str | None:
    """Return what is wrong with a request for a serving certificate of these names; None for nothing."""
    if names.others or names.extensions:
        return "other names than of hosts and addresses are asked for"
    if not names.dns_names and not names.ip_addresses:
        return "no name or address is asked for"
    if any(_host(name) not in dns_names for name in names.dns_names):
        return "a name that is not the machine's"
    if not addresses.issuperset(names.ip_addresses):
        return "an address that is not the machine's"
    return _usage_problem(usages, _SERVING_USAGES, algorithm)


def _usage_problem(usages: tuple[str, ...], needed: frozenset[str], algorithm: str) -> str | None:
    found = frozenset(usages)
    # Keys of ML-DSA encipher nothing (RFC 9881, 5).
    allowed = needed if algorithm.startswith("ml-dsa") else needed | {_KEY_ENCIPHERMENT}
    return None if needed <= found <= allowed else "other usages than such a certificate has"


def _host(text: str) -> str | None:
    try:
        return canonical_hostname(text)
    except RequestInvalid:
        return None
