"""What an operator is and may: duties come from outside, rights follow from one table.

A route declares the right that it needs (`openapi.access`); the one dependency in `operator.py` compares. Who
reads the audit is not who acts: no other duty implies the auditor's (DELIVERY-AND-OPERATORS §9.2).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from attestation.api.base import CLUSTER_ID_PATTERN
from attestation.audit import AuditEvent
from attestation.errors import Forbidden
from attestation_service.kubernetes_clusters import ClusterRule, ControllerDuty

_CLUSTER_ID: Final = re.compile(CLUSTER_ID_PATTERN)


class Right(StrEnum):
    """What a route needs; the words stand in the OpenAPI document."""

    READ = "read"
    ACT = "act"
    AUDIT = "audit"
    METRICS = "metrics"
    """To count: numbers, and nothing that they are about."""
    QUERY = "query"
    """To ask the query language; which tables, the other rights say."""
    KNOWN = "known"
    """To be told who one is."""


class Duty(StrEnum):
    """What an identity provider or a certificate makes of a person."""

    OPERATOR = "operator"
    VIEWER = "viewer"
    AUDITOR = "auditor"
    METRICS = "metrics"


class Method(StrEnum):
    """How somebody was recognised."""

    OIDC = "oidc"
    CERTIFICATE = "certificate"
    BREAK_GLASS = "break_glass"


RIGHTS: Final[Mapping[Duty, frozenset[Right]]] = MappingProxyType(
    {
        Duty.OPERATOR: frozenset({Right.READ, Right.ACT, Right.QUERY, Right.METRICS, Right.KNOWN}),
        Duty.VIEWER: frozenset({Right.READ, Right.QUERY, Right.METRICS, Right.KNOWN}),
        Duty.AUDITOR: frozenset({Right.AUDIT, Right.QUERY, Right.KNOWN}),
        Duty.METRICS: frozenset({Right.METRICS, Right.KNOWN}),
    }
)
"""What each duty may; everything absent is forbidden."""

IN_A_CLUSTER: Final = frozenset({Duty.OPERATOR, Duty.VIEWER})
"""Duties that may be had in one cluster, `<duty>:<cluster>`; the log and the numbers are the whole fleet's."""


def within_clusters(words: Iterable[str], duties: Mapping[str, Duty]) -> frozenset[tuple[Duty, str]]:
    """Return what *words* of the form `<word>:<cluster>` make of a person, by what each word is; others are nothing."""
    found = set()
    for each in words:
        word, colon, cluster = each.rpartition(":")
        duty = duties.get(word)
        if colon and duty in IN_A_CLUSTER and _CLUSTER_ID.fullmatch(cluster):
            found.add((duty, cluster))
    return frozenset(found)


BREAK_GLASS_NAME: Final = "SYSTEM"

RESERVED_NAMES: Final = frozenset({"system", "machine", "unknown", "service"})
"""Names in the audit that are nobody's; a person who is called so is refused, in any case of letters."""


class WithoutDuty(Forbidden):
    """A good credential of somebody who is nothing here, or not any more.

    Args:
        reason: Why.
        sub: Their stable subject.
    """

    def __init__(self, reason: str, sub: str) -> None:
        super().__init__(reason)
        self.sub = sub


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """A person who was recognised, or the break-glass identity.

    Args:
        cn: Name shown in the audit; `SYSTEM` for break-glass.
        sub: What stays the same when names change: `<issuer>#<sub>` of a token, `spki-sha256:<64 hex>` of a
            certificate's key; None for break-glass.
        source: Address the request came from.
        method: How they were recognised.
        duties: What they may be, in every cluster; empty for break-glass, which may everything but vote.
        authenticated_at: When they last proved to the identity provider who they are, or None: not by a token, or
            it does not say.
        certificate: The client certificate, DER, that they came with, or None.
        proposal: Digest of the proposal that they agree to, 64 lower-case hex: with it they do that or nothing; None
            where they named none.
        new_proposal: They know that another proposal about the same thing waits, and want theirs beside it.
        within: Duties of `IN_A_CLUSTER` that they have in one cluster, beside those that they have in all.
        clusters: In which they may what they ask for now; None in all (`reach.py`).
    """

    cn: str
    sub: str | None
    source: str
    method: Method
    duties: frozenset[Duty]
    authenticated_at: datetime | None = None
    certificate: bytes | None = field(default=None, repr=False)
    proposal: str | None = None
    new_proposal: bool = False
    within: frozenset[tuple[Duty, str]] = frozenset()
    clusters: frozenset[str] | None = None

    def reach(self, right: Right) -> frozenset[str] | None:
        """Return in which clusters they have *right*: None in all, none in none."""
        if right in self.rights:
            return None
        return frozenset(cluster for duty, cluster in self.within if right in RIGHTS[duty])

    @property
    def rights(self) -> frozenset[Right]:
        """What they may in every cluster."""
        if self.method is Method.BREAK_GLASS:
            return frozenset(Right)
        return frozenset().union(*(RIGHTS[duty] for duty in self.duties))

    @property
    def is_human(self) -> bool:
        """True where a named person acts, who counts where several must agree."""
        return self.method is not Method.BREAK_GLASS and self.sub is not None

    def event(self, action: str, **members: str | None) -> AuditEvent:
        """Return the audit event of an act of this operator."""
        return AuditEvent(
            operator_cn=self.cn, operator_sub=self.sub, action=action, source_ip=self.source, **members
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundNode:
    """A node of a Kubernetes cluster, as its API server names it in a token.

    Args:
        name: `metadata.name`.
        uid: `metadata.uid`: another node of that name is another one.
    """

    name: str
    uid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Controller:
    """A program in a Kubernetes cluster that was recognised. It is no operator, and no operator is one.

    Args:
        cluster: Whose, and by which rule its requests are judged.
        duty: What it may.
        service_account: `namespace:name`.
        pod: Where it runs.
        source: Address the request came from.
        node: Where it runs, of an agent; None of every other.
    """

    cluster: ClusterRule
    duty: ControllerDuty
    service_account: str
    pod: str
    source: str
    node: BoundNode | None = None

    def event(self, action: str, **members: str | None) -> AuditEvent:
        """Return the audit event of what this controller asked for."""
        name = f"system:serviceaccount:{self.service_account}"
        return AuditEvent(
            operator_cn=f"{self.cluster.cluster_id}/{self.service_account}",
            operator_sub=f"{self.cluster.issuer}#{name}",
            action=action,
            source_ip=self.source,
            **members,
        )
