"""Bound ServiceAccount tokens of Kubernetes: what they must say before a controller is believed.

Pure, as `access_token` is: text, claims, rule and the instant come in; who asks goes out. The signature is verified in
between. A token is good only while it is bound to a pod (kubernetes/api authentication/v1, BoundObjectReference), is
for this service and nobody else, and ends within a day: a token in a Secret, which lasts for ever, is none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from attestation.errors import Forbidden, NodeMismatch, Unauthenticated
from attestation_service.auth import access_token
from attestation_service.auth.access_token import UnverifiedToken, shown
from attestation_service.context.identity import BoundNode
from attestation_service.kubernetes_clusters import AUDIENCE, ClusterRule, ControllerDuty

MAX_LIFETIME_SECONDS: Final = 24 * 3600
LEEWAY_SECONDS: Final = 90
"""Clocks may differ by a minute, and a token that was issued this moment is as good as any."""
_TYPES: Final = frozenset({None, "jwt"})
"""An API server writes no `typ`."""

_SUBJECT: Final = "system:serviceaccount"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bearer:
    """Whom a verified token names.

    Args:
        duty: What it is here.
        service_account: `namespace:name`.
        pod: Name of the pod that the token is bound to.
        node: Where that pod runs, as the API server says; None where the duty does not ask for it.
    """

    duty: ControllerDuty
    service_account: str
    pod: str
    node: BoundNode | None = None


def parse(token: str) -> UnverifiedToken:
    """Take *token* apart.

    Raises:
        Unauthenticated: It is no signed token.
    """
    return access_token.parse(token, _TYPES)


def issuer_of(token: UnverifiedToken) -> object:
    """Return which issuer an *unverified* token names: it chooses by whose keys the token is verified, nothing else.

    Raises:
        Unauthenticated: Its payload is not a JSON object.
    """
    return access_token.claims_of(token.payload).get("iss")


def judge(claims: Mapping[str, object], rule: ClusterRule, at: datetime) -> Bearer:
    """Return whom *claims* name; their signature was verified with a key of this cluster.

    Args:
        claims: The payload, of any JSON types.
        rule: Of the cluster.
        at: The instant to judge at, aware.

    Raises:
        Unauthenticated: It is not for us, not now, or not bound.
        Forbidden: It names a ServiceAccount without any duty here.
        NodeMismatch: It is an agent's, and names no node.
    """
    # 1. Who issued it, and for us alone: a token that another service got too, that service could send on.
    if claims.get("iss") != rule.issuer:
        raise Unauthenticated(f"token has iss={shown(claims.get('iss'))}, expected {rule.issuer}")
    audience = claims.get("aud")
    if audience not in (AUDIENCE, [AUDIENCE]):
        raise Unauthenticated(
            f"the token is not for {AUDIENCE} alone; see the audience of the projected token"
        )
    # 2. Now, and not for long.
    now = at.timestamp()
    issued, expires = _seconds(claims, "iat"), _seconds(claims, "exp")
    begins = _seconds(claims, "nbf") if "nbf" in claims else issued
    if now >= expires + LEEWAY_SECONDS:
        raise Unauthenticated("the token has expired")
    if max(issued, begins) > now + LEEWAY_SECONDS:
        raise Unauthenticated("the token is not valid yet; compare the clocks")
    if expires - issued > MAX_LIFETIME_SECONDS:
        raise Unauthenticated("the token lasts longer than a day; a bound token is needed")
    # 3. Bound to a pod of the account that it names: when the pod is gone, nobody renews it.
    bound = _object(claims, "kubernetes.io")
    account, pod = _object(bound, "serviceaccount"), _object(bound, "pod")
    namespace, name = _text(bound, "namespace"), _text(account, "name")
    _text(account, "uid")
    _text(pod, "uid")
    if claims.get("sub") != f"{_SUBJECT}:{namespace}:{name}":
        raise Unauthenticated("the token names another subject than it is bound to")
    # 4. Whose duty that is. Authentic so far, so from here on it is 403.
    duty = rule.duty_of(f"{namespace}:{name}")
    if duty is None:
        raise Forbidden(f"ServiceAccount {namespace}:{name} has no duty here (ITL_KUBERNETES_CLUSTERS)")
    # 5. Where an agent runs. All agents have one account: without this, each could speak for every node.
    node = _node(bound) if duty is ControllerDuty.RUN_AGENT else None
    return Bearer(duty=duty, service_account=f"{namespace}:{name}", pod=_text(pod, "name"), node=node)


def _node(bound: Mapping[str, object]) -> BoundNode:
    """Return the node of the pod that a token is bound to (KEP-4193): the API server wrote it, nobody on the node."""
    try:
        node = _object(bound, "node")
        return BoundNode(name=_text(node, "name"), uid=_text(node, "uid"))
    except Unauthenticated:
        raise NodeMismatch(
            "the token names no node (kubernetes.io.node): Kubernetes 1.32 or later writes it"
        ) from None


def _seconds(claims: Mapping[str, object], member: str) -> float:
    found = access_token.instant(claims, member)
    if found is None:
        raise Unauthenticated(f"the token has no {member}")
    return found


def _object(claims: Mapping[str, object], member: str) -> Mapping[str, object]:
    found = claims.get(member)
    if not isinstance(found, dict):
        raise Unauthenticated(f"the token is not bound to a pod: it has no {member}")
    return found


def _text(claims: Mapping[str, object], member: str) -> str:
    found = claims.get(member)
    if not isinstance(found, str) or not 1 <= len(found) <= 253 or not found.isprintable():
        raise Unauthenticated(f"the token is not bound to a pod: {member} is no name")
    return found
