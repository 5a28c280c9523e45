"""Who asks, and what they may: role based access control, and the nodes' own rules."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from attestation_testing.kubernetes.status import Object, StatusError, forbidden
from attestation_testing.kubernetes.store import Change, Store

MASTERS: Final = "system:masters"
AUTHENTICATED: Final = "system:authenticated"
UNAUTHENTICATED: Final = "system:unauthenticated"
NODES: Final = "system:nodes"
NODE_PREFIX: Final = "system:node:"
RBAC: Final = "rbac.authorization.k8s.io"


@dataclass(frozen=True, slots=True)
class User:
    """Somebody who asks.

    Args:
        name: User name.
        groups: Groups, `system:authenticated` among them where the API server put it there.
        uid: Of a token file or a ServiceAccount.
        extra: What else is known, as tokens of ServiceAccounts say it.
    """

    name: str
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def authenticated(self) -> User:
        """Return the same, in the group of everybody who is known."""
        if AUTHENTICATED in self.groups:
            return self
        return User(self.name, (*self.groups, AUTHENTICATED), self.uid, self.extra)

    def as_object(self) -> Object:
        """Return what TokenReview and SelfSubjectReview tell."""
        said: Object = {"username": self.name, "groups": list(self.groups)}
        if self.uid:
            said["uid"] = self.uid
        if self.extra:
            said["extra"] = {key: list(values) for key, values in self.extra.items()}
        return said


ANONYMOUS: Final = User("system:anonymous", (UNAUTHENTICATED,))


@dataclass(frozen=True, slots=True, kw_only=True)
class Attributes:
    """What somebody wants to do."""

    verb: str
    group: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    path: str = ""

    def denied(self, user: User) -> StatusError:
        """Return the refusal."""
        if self.path:
            return StatusError(
                403, "Forbidden", f'forbidden: User "{user.name}" cannot {self.verb} path "{self.path}"'
            )
        plural = self.resource + (f"/{self.subresource}" if self.subresource else "")
        where = f'in the namespace "{self.namespace}"' if self.namespace else "at the cluster scope"
        return forbidden(
            self.group,
            self.resource,
            self.name,
            f'User "{user.name}" cannot {self.verb} resource "{plural}" in API group "{self.group}" {where}',
        )


def _covers(rule: Object, what: Attributes) -> bool:
    """Say whether a PolicyRule lets *what* through (k8s.io/kubernetes, pkg/apis/rbac/v1/evaluation_helpers.go)."""
    verbs = rule.get("verbs") or ()
    if what.verb not in verbs and "*" not in verbs:
        return False
    if what.path:
        urls = rule.get("nonResourceURLs") or ()
        return any(
            url in ("*", what.path) or (url.endswith("*") and what.path.startswith(url[:-1])) for url in urls
        )
    groups = rule.get("apiGroups") or ()
    if what.group not in groups and "*" not in groups:
        return False
    resources = rule.get("resources") or ()
    asked = f"{what.resource}/{what.subresource}" if what.subresource else what.resource
    named = asked in resources or "*" in resources
    if not named and what.subresource:
        named = f"*/{what.subresource}" in resources
    if not named:
        return False
    names = rule.get("resourceNames") or ()
    return not names or what.name in names


def _rule(groups: str, resources: str, verbs: str) -> Object:
    return {
        "apiGroups": ["" if each == "core" else each for each in groups.split()],
        "resources": resources.split(),
        "verbs": verbs.split(),
    }


_CSR: Final = "certificates.k8s.io"
_SIGNING: Final = "certificatesigningrequests"
_URLS: Final = ["/healthz", "/livez", "/readyz", "/version", "/version/"]

DEFAULT_ROLES: Final[Mapping[str, list[Object]]] = {
    "cluster-admin": [
        {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]},
        {"nonResourceURLs": ["*"], "verbs": ["*"]},
    ],
    "system:public-info-viewer": [{"nonResourceURLs": _URLS, "verbs": ["get"]}],
    "system:discovery": [
        {
            "nonResourceURLs": ["/api", "/api/*", "/apis", "/apis/*", "/openapi", "/openapi/*", *_URLS],
            "verbs": ["get"],
        }
    ],
    "system:basic-user": [
        _rule("authorization.k8s.io", "selfsubjectaccessreviews selfsubjectrulesreviews", "create"),
        _rule("authentication.k8s.io", "selfsubjectreviews", "create"),
    ],
    "system:node-bootstrapper": [_rule(_CSR, _SIGNING, "create get list watch")],
    "system:certificates.k8s.io:certificatesigningrequests:nodeclient": [
        _rule(_CSR, f"{_SIGNING}/nodeclient", "create")
    ],
    "system:certificates.k8s.io:certificatesigningrequests:selfnodeclient": [
        _rule(_CSR, f"{_SIGNING}/selfnodeclient", "create")
    ],
    "system:service-account-issuer-discovery": [
        {"nonResourceURLs": ["/.well-known/openid-configuration", "/openid/v1/jwks"], "verbs": ["get"]}
    ],
    "system:auth-delegator": [
        _rule("authentication.k8s.io", "tokenreviews", "create"),
        _rule("authorization.k8s.io", "subjectaccessreviews", "create"),
    ],
    "system:node": [],
}
"""Roles that a cluster has from the start, so far as ours and their tests meet them."""

DEFAULT_BINDINGS: Final[Mapping[str, tuple[str, ...]]] = {
    "cluster-admin": (MASTERS,),
    "system:public-info-viewer": (AUTHENTICATED, UNAUTHENTICATED),
    "system:discovery": (AUTHENTICATED,),
    "system:basic-user": (AUTHENTICATED,),
    "system:service-account-issuer-discovery": ("system:serviceaccounts",),
}
"""Groups that each of them is bound to."""

_NODE_RULES: Final[tuple[Object, ...]] = (
    _rule("authorization.k8s.io", "subjectaccessreviews localsubjectaccessreviews", "create"),
    _rule("authentication.k8s.io", "tokenreviews", "create"),
    _rule("core", "nodes", "create get list watch patch update"),
    _rule("core", "nodes/status", "patch update"),
    _rule("core", "pods services", "get list watch"),
    _rule("core events.k8s.io", "events", "create patch update"),
    _rule(_CSR, _SIGNING, "create get list watch"),
    _rule("coordination.k8s.io", "leases", "create get update patch delete"),
)
"""What the node authorizer lets each node do, without its graph of Secrets and volumes."""


@dataclass(frozen=True, slots=True)
class _Grant:
    """A rule that somebody has, in one namespace or, where that is empty, in all."""

    namespace: str
    rule: Object


class Access:
    """Answers whether somebody may do something, from the roles and bindings in *store*."""

    def __init__(self, store: Store, *, node_authorizer: bool = False) -> None:
        self._store = store
        self._grants: dict[tuple[str, str], list[_Grant]] | None = None
        self._node_authorizer = node_authorizer
        store.listen(None, self._forget)

    def _forget(self, change: Change) -> None:
        if change.key[0] == RBAC:
            self._grants = None

    def _read(self) -> dict[tuple[str, str], list[_Grant]]:
        grants: dict[tuple[str, str], list[_Grant]] = {}
        for plural in ("clusterrolebindings", "rolebindings"):
            for binding in self._store.all((RBAC, plural)):
                namespace = binding["metadata"].get("namespace", "")
                ref = binding.get("roleRef") or {}
                roles, scope = (
                    ("clusterroles", "") if ref.get("kind") == "ClusterRole" else ("roles", namespace)
                )
                role = self._store.get((RBAC, roles), scope, str(ref.get("name")))
                for subject in binding.get("subjects") or ():
                    kind, name = str(subject.get("kind")), str(subject.get("name"))
                    if kind == "ServiceAccount":
                        kind, name = (
                            "User",
                            f"system:serviceaccount:{subject.get('namespace', namespace)}:{name}",
                        )
                    grants.setdefault((kind, name), []).extend(
                        _Grant(namespace, rule) for rule in (role or {}).get("rules") or ()
                    )
        return grants

    def _of(self, user: User) -> Iterable[_Grant]:
        if self._grants is None:
            self._grants = self._read()
        yield from self._grants.get(("User", user.name), ())
        for group in user.groups:
            yield from self._grants.get(("Group", group), ())

    def allows(self, user: User, what: Attributes) -> bool:
        """Say whether *user* may."""
        if MASTERS in user.groups:
            return True
        node = self._node_authorizer and NODES in user.groups and user.name.startswith(NODE_PREFIX)
        if node and any(_covers(rule, what) for rule in _NODE_RULES):
            return True
        return any(
            _covers(grant.rule, what)
            for grant in self._of(user)
            if not grant.namespace or grant.namespace == what.namespace
        )

    def check(self, user: User, what: Attributes) -> None:
        """Refuse what *user* may not.

        Raises:
            StatusError: 403.
        """
        if not self.allows(user, what):
            raise what.denied(user)

    def may_sign(self, user: User, verb: str, signer: str) -> bool:
        """Say whether *user* may `approve`, `sign` or `attest` for a signer, by its name or by `domain/*`."""
        names = (signer, signer.partition("/")[0] + "/*")
        return any(
            self.allows(user, Attributes(verb=verb, group=_CSR, resource="signers", name=name))
            for name in names
        )
