"""A Kubernetes API server without its sockets: a request in, an answer out, everything in memory.

What it does and what it leaves out: docs/extend/kubernetes-api.md. Not safe to use from several threads.

answer ── target, verb, who may ──┬── reading.py    lists, watches
                                  ├── writing.py    create, update, patch, apply
                                  ├── deleting.py   delete, garbage collection
                                  └── discovery.py  paths that name no resource
What a resource has of its own stands in rules.py; who is asked before something is written, in admission.py.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from random import Random
from typing import Final

from attestation_testing.kubernetes import admission, custom, webhooks
from attestation_testing.kubernetes.access import (
    DEFAULT_BINDINGS,
    DEFAULT_ROLES,
    RBAC,
    Access,
    Attributes,
    User,
)
from attestation_testing.kubernetes.apply import Manager
from attestation_testing.kubernetes.deleting import Deleting
from attestation_testing.kubernetes.discovery import Discovery
from attestation_testing.kubernetes.objects import copied
from attestation_testing.kubernetes.reading import Reading
from attestation_testing.kubernetes.requests import NOTHING, Answer, Request, Target, Watching, is_true, shown
from attestation_testing.kubernetes.resources import BUILT_IN, NEWEST, Resource
from attestation_testing.kubernetes.rules import RULES, Rules
from attestation_testing.kubernetes.status import Object, StatusError, not_allowed, not_found
from attestation_testing.kubernetes.store import Store, encode
from attestation_testing.kubernetes.writing import Writing

_VERBS: Final = {
    "POST": "create",
    "PUT": "update",
    "PATCH": "patch",
    "GET": "get",
    "HEAD": "get",
    "DELETE": "delete",
}


class Cluster:
    """Objects, who may do what with them, and the rules of each resource.

    Args:
        now: Tells the time.
        history: How many changes a watch may begin behind.
        node_authorizer: Nodes may do what nodes may, without a binding; NodeRestriction holds for them.
        seed: Makes the names of `generateName`.
        minor: Which version of Kubernetes this is, 1.*minor*, where versions differ (docs/extend/kubernetes-api.md).
    """

    def __init__(
        self,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        history: int = 100_000,
        node_authorizer: bool = True,
        seed: int | None = None,
        minor: int = NEWEST,
    ) -> None:
        self.now = now
        self.minor = minor
        self.store = Store(history=history)
        self.access = Access(self.store, node_authorizer=node_authorizer)
        self.node_restriction = node_authorizer
        self.resources: dict[tuple[str, str], Resource] = {
            each.key: each for each in BUILT_IN if each.since <= minor
        }
        self.rules: dict[tuple[str, str], Rules] = {key: make(self) for key, make in RULES.items()}
        self.rules |= {
            custom.KEY: custom.Definitions(self),
            admission.POLICIES: admission.Policies(self),
            admission.BINDINGS: admission.Bindings(self),
            webhooks.CONFIGURATIONS: webhooks.Configurations(self),
        }
        self.reviews: dict[tuple[str, str, str], Callable[[Target, Object, User], Object]] = {}
        """What is made and not stored, by group, plural and subresource."""
        self.documents: dict[str, Callable[[], Object]] = {}
        """What is told at other paths."""
        self.webhooks = webhooks.Webhooks(self)
        asked = admission.Admission(self, self.webhooks)
        self.reading, self.discovery = Reading(self), Discovery(self)
        self.deleting = Deleting(self, self.rules, self.reading, asked)
        self.writing = Writing(self, self.rules, asked, self.deleting, Random(seed))
        self._later: list[Callable[[], None]] = []
        self._default_objects()

    def _default_objects(self) -> None:
        for name in ("default", "kube-system", "kube-public", "kube-node-lease"):
            self.make("", "namespaces", {"metadata": {"name": name}, "spec": {"finalizers": ["kubernetes"]}})
        for name, rules in DEFAULT_ROLES.items():
            self.make(RBAC, "clusterroles", {"metadata": {"name": name}, "rules": rules})
        for name, groups in DEFAULT_BINDINGS.items():
            subjects = [{"kind": "Group", "name": each, "apiGroup": RBAC} for each in groups]
            ref = {"kind": "ClusterRole", "name": name, "apiGroup": RBAC}
            self.make(
                RBAC,
                "clusterrolebindings",
                {"metadata": {"name": name}, "subjects": subjects, "roleRef": ref},
            )

    # From inside: tests and controllers of the cluster

    def make(self, group: str, plural: str, value: Object, *, namespace: str = "") -> Object:
        """Create an object as the cluster itself would: by the rules of its resource, without asking who may."""
        resource = self.resources[group, plural]
        target = Target(resource=resource, version=resource.versions[0], namespace=namespace)
        made = self.writing.create(target, copied(value), admission.INSIDE, "kube-apiserver", dry=False)
        self.settle()
        return made

    def change(self, group: str, plural: str, new: Object, subresource: str = "") -> Object:
        """Write an object, or a part of it, as a controller of the cluster would; *new* becomes the cluster's.

        Raises:
            StatusError: It is gone, or another by now, or breaks a rule.
        """
        resource = self.resources[group, plural]
        target = Target(
            resource=resource,
            version=resource.versions[0],
            namespace=new["metadata"].get("namespace", ""),
            name=new["metadata"]["name"],
            subresource=subresource,
        )
        manager = Manager("kube-controller-manager", "Update", target.api_version, subresource)
        return self.writing.update(target, self.found(target), new, admission.CONTROLLERS, manager, dry=False)

    def later(self, work: Callable[[], None]) -> None:
        """Do *work* after the request that is being answered."""
        self._later.append(work)

    def settle(self) -> None:
        """Do what is to be done after a request."""
        while self._later:
            self._later.pop(0)()

    # The way of a request

    def answer(self, request: Request) -> Answer | Watching:
        """Answer *request*. Whatever is wrong with it is an answer too."""
        try:
            answer = self._answer(request)
        except StatusError as e:
            answer = Answer(e.code, encode(e.as_object()), retry_after=e.retry_after)
        self.settle()
        return answer

    def target(self, path: str) -> Target | None:
        """Return what *path* names; None where it is not the path of a resource."""
        parts = [each for each in path.split("/") if each]
        if parts[:1] == ["api"] and len(parts) > 2:  # api, v1, and more
            group, version, rest = "", parts[1], parts[2:]
        elif parts[:1] == ["apis"] and len(parts) > 3:  # apis, group, version, and more
            group, version, rest = parts[1], parts[2], parts[3:]
        else:
            return None
        namespace = ""
        if (
            rest[0] == "namespaces"
            and len(rest) > 2
            and not (len(rest) == 3 and not group and rest[2] in ("status", "finalize"))
        ):  # a resource in it
            namespace, rest = rest[1], rest[2:]
        resource = self.resources.get((group, rest[0]))
        served = resource.version(version) if resource else None
        if resource is None or served is None or len(rest) > 3:  # plural, name, subresource
            return None
        if namespace and not resource.namespaced:
            return None
        name, subresource = (*rest[1:], "", "")[:2]
        if subresource and subresource not in resource.subresources:
            return None
        return Target(
            resource=resource, version=served, namespace=namespace, name=name, subresource=subresource
        )

    def verb(self, request: Request, target: Target) -> str:
        """Return what is done, as RBAC says it."""
        verb = _VERBS.get(request.method, "")
        if verb == "get" and not target.name:
            return "watch" if is_true(request.query, "watch") else "list"
        if verb == "get" and is_true(request.query, "watch"):
            return "watch"
        if verb == "delete" and not target.name:
            return "deletecollection"
        return verb

    def _answer(self, request: Request) -> Answer | Watching:
        target = self.target(request.path)
        if target is None:
            return self.discovery.answer(request)
        resource, verb = target.resource, self.verb(request, target)
        what = Attributes(
            verb=verb,
            group=resource.group,
            resource=resource.plural,
            subresource=target.subresource,
            namespace=target.namespace,
            name=target.name,
        )
        self.access.check(request.user, what)
        if (verb not in resource.verbs and not target.subresource) or not verb:
            raise not_allowed()
        if verb == "watch":
            return self.reading.watch(request, target)
        if verb == "list":
            return self.reading.list(request, target)
        if resource.namespaced and not target.namespace:
            if resource.custom:
                return NOTHING
            raise not_allowed()
        if verb == "get":
            return Answer(200, encode(shown(self.found(target), target.api_version)))
        if verb == "deletecollection":
            return self.deleting.all(request, target)
        if verb == "delete":
            return self.deleting.one(request, target)
        return self.writing.write(request, target, verb)

    def found(self, target: Target) -> Object:
        """Return what *target* names, or refuse."""
        found = self.store.get(target.resource.key, target.namespace, target.name)
        if found is None:
            raise not_found(target.resource.group, target.resource.plural, target.name)
        return found

    def forget(self) -> None:
        """Forget changes and pages: who watches or lists on from before gets 410."""
        self.reading.forget()

    def delete(self, resource: Resource, found: Object, *, policy: str = "Background") -> Object | None:
        """Delete an object as the cluster itself would; return what is left of it where finalizers wait."""
        return self.deleting.delete(resource, found, policy=policy)
