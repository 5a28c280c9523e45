"""A Kubernetes API server without its sockets: a request in, an answer out, everything in memory.

What it does and what it leaves out: docs/extend/kubernetes-api.md. Not safe to use from several threads.
"""

# Longer than 500 lines: the way of a request through one server; what a resource has of its own stands in rules.py.
from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from random import Random
from typing import Any, Final

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from attestation_testing.kubernetes import certificates, custom, patches
from attestation_testing.kubernetes.access import (
    ANONYMOUS,
    DEFAULT_BINDINGS,
    DEFAULT_ROLES,
    NODE_PREFIX,
    NODES,
    RBAC,
    Access,
    Attributes,
    User,
)
from attestation_testing.kubernetes.apply import Manager, Owners, applied, owners, updated, write_owners
from attestation_testing.kubernetes.objects import (
    Matches,
    copied,
    field_selector,
    label_errors,
    label_selector,
    text,
)
from attestation_testing.kubernetes.resources import BUILT_IN, Resource, Version
from attestation_testing.kubernetes.rules import RULES, Rules
from attestation_testing.kubernetes.shapes import decode
from attestation_testing.kubernetes.status import (
    FieldError,
    Object,
    StatusError,
    already_exists,
    bad_request,
    conflict,
    expired,
    forbidden,
    invalid,
    not_allowed,
    not_found,
    required,
    unknown_path,
    unprocessable,
)
from attestation_testing.kubernetes.store import MOST_BYTES, Change, Store, encode

MOST_BODY_BYTES: Final = 3 * 1024 * 1024
_LETTERS: Final = "bcdfghjklmnpqrstvwxz2456789"
_PATCHES: Final = {
    patches.JSON_PATCH,
    patches.MERGE_PATCH,
    patches.STRATEGIC_PATCH,
    patches.APPLY_PATCH,
}
_NAME_RULE: Final = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'example.com', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
_LABEL_RULE: Final = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and "
    "end with an alphanumeric character"
)
_VERBS: Final = {
    "POST": "create",
    "PUT": "update",
    "PATCH": "patch",
    "GET": "get",
    "HEAD": "get",
    "DELETE": "delete",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What was asked.

    Args:
        method: Of HTTP.
        path: Decoded, without the query.
        query: The last value of each name.
        content_type: Without parameters.
        body: Up to 3 MiB.
        user: Who asks.
        agent: `User-Agent`, for the name of a manager who does not say one.
    """

    method: str
    path: str
    query: Mapping[str, str]
    content_type: str = ""
    body: bytes = b""
    user: User = ANONYMOUS
    agent: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """What is answered: a status of HTTP and JSON."""

    status: int
    body: bytes
    content_type: str = "application/json"
    retry_after: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Watching:
    """A watch that was let through; the server follows it.

    Args:
        resource: What is watched.
        version: In which version its objects are told.
        first: Lines to send at once.
        shows: Turns a change into a line, or None where the watch does not see it.
        bookmarks: Bookmarks are wanted.
        seconds: How long; None for the server's own.
        ends: Nothing comes after *first*.
    """

    resource: Resource
    version: str
    first: tuple[bytes, ...]
    shows: Callable[[Change], bytes | None]
    bookmarks: bool
    seconds: int | None
    ends: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What a path names."""

    resource: Resource
    version: Version
    namespace: str = ""
    name: str = ""
    subresource: str = ""

    @property
    def api_version(self) -> str:
        """As objects say it."""
        return self.resource.api_version(self.version.name)


def event_line(kind: str, value: Object) -> bytes:
    """Return one event of a watch."""
    return b'{"type":"' + kind.encode() + b'","object":' + encode(value) + b"}\n"


class Cluster:
    """Objects, who may do what with them, and the rules of each resource.

    Args:
        now: Tells the time.
        history: How many changes a watch may begin behind.
        node_authorizer: Nodes may do what nodes may, without a binding; NodeRestriction holds for them.
        seed: Makes the names of `generateName`.
    """

    def __init__(
        self,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        history: int = 100_000,
        node_authorizer: bool = True,
        seed: int | None = None,
    ) -> None:
        self.now = now
        self.store = Store(history=history)
        self.access = Access(self.store, node_authorizer=node_authorizer)
        self.node_restriction = node_authorizer
        self.resources: dict[tuple[str, str], Resource] = {each.key: each for each in BUILT_IN}
        self.rules: dict[tuple[str, str], Rules] = {key: make(self) for key, make in RULES.items()}
        self.rules[custom.KEY] = custom.Definitions(self)
        self.reviews: dict[tuple[str, str, str], Callable[[Target, Object, User], Object]] = {}
        """What is made and not stored, by group, plural and subresource."""
        self.documents: dict[str, Callable[[], Object]] = {}
        """What is told at other paths."""
        self._random = Random(seed)
        self._pages: dict[str, tuple[int, list[Object]]] = {}
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
        made = self._create(
            target, copied(value), User("system:apiserver", ("system:masters",)), "kube-apiserver", dry=False
        )
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
        user = User("system:kube-controller-manager", ("system:masters",))
        manager = Manager("kube-controller-manager", "Update", target.api_version, subresource)
        return self._update(target, self._found(target), new, user, manager, dry=False)

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
            return "watch" if _true(request.query, "watch") else "list"
        if verb == "get" and _true(request.query, "watch"):
            return "watch"
        if verb == "delete" and not target.name:
            return "deletecollection"
        return verb

    def _answer(self, request: Request) -> Answer | Watching:
        target = self.target(request.path)
        if target is None:
            return self._other(request)
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
            return self._watch(request, target)
        if verb == "list":
            return self._list(request, target)
        if resource.namespaced and not target.namespace:
            raise not_allowed()
        if verb == "get":
            return Answer(200, encode(self._show(self._found(target), target)))
        if verb == "deletecollection":
            return self._delete_all(request, target)
        if verb == "delete":
            return self._delete(request, target)
        return self._write(request, target, verb)

    def _show(self, value: Object, target: Target) -> Object:
        return self._shown(value, target.api_version)

    @staticmethod
    def _shown(value: Object, api_version: str) -> Object:
        if value.get("apiVersion") == api_version:
            return value
        return {**value, "apiVersion": api_version}

    def _found(self, target: Target) -> Object:
        found = self.store.get(target.resource.key, target.namespace, target.name)
        if found is None:
            raise not_found(target.resource.group, target.resource.plural, target.name)
        return found

    # Reading

    def _other(self, request: Request) -> Answer:
        path = "/" + request.path.strip("/")
        self.access.check(request.user, Attributes(verb=request.method.lower(), path=path))
        if path in ("/healthz", "/livez", "/readyz"):
            return Answer(200, b"ok", "text/plain")
        if path in self.documents:
            return Answer(200, encode(self.documents[path]()))
        if path == "/version":
            return Answer(
                200, encode({"major": "1", "minor": "33", "gitVersion": "v1.33.0-fake", "platform": "python"})
            )
        if path == "/api":
            return Answer(200, encode({"kind": "APIVersions", "versions": ["v1"]}))
        if path == "/apis":
            groups = [self._group(each) for each in sorted({key[0] for key in self.resources}) if each]
            return Answer(200, encode({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}))
        parts = path.strip("/").split("/")
        if path == "/api/v1":
            return Answer(200, encode(self._group_version("", "v1")))
        if parts[0] == "apis" and any(key[0] == parts[1] for key in self.resources):
            if len(parts) == 2:  # apis, group
                return Answer(200, encode({"kind": "APIGroup", "apiVersion": "v1", **self._group(parts[1])}))
            if len(parts) == 3:  # apis, group, version
                return Answer(200, encode(self._group_version(parts[1], parts[2])))
        if parts[0] in ("api", "apis"):
            return Answer(404, b"404 page not found\n", "text/plain; charset=utf-8")
        raise unknown_path()

    def _group(self, group: str) -> Object:
        names: list[str] = []
        for (of, _), resource in self.resources.items():
            if of == group:
                names += [each.name for each in resource.versions if each.name not in names]
        versions = [{"groupVersion": f"{group}/{name}", "version": name} for name in names]
        return {"name": group, "versions": versions, "preferredVersion": versions[0]}

    def _group_version(self, group: str, version: str) -> Object:
        found: list[Object] = []
        for (of, plural), resource in sorted(self.resources.items()):
            if of != group or resource.version(version) is None:
                continue
            entry: Object = {
                "name": plural,
                "singularName": resource.singular,
                "namespaced": resource.namespaced,
                "kind": resource.kind,
                "verbs": sorted(resource.verbs),
            }
            if resource.short_names:
                entry["shortNames"] = list(resource.short_names)
            found.append(entry)
            found += [
                {
                    "name": f"{plural}/{each}",
                    "singularName": "",
                    "namespaced": resource.namespaced,
                    "kind": resource.kind,
                    "verbs": ["create"] if each == "token" else ["get", "patch", "update"],
                }
                for each in sorted(resource.subresources)
            ]
        if not found:
            raise unknown_path()
        return {
            "kind": "APIResourceList",
            "apiVersion": "v1",
            "groupVersion": f"{group}/{version}" if group else version,
            "resources": found,
        }

    def _selected(self, request: Request, target: Target) -> Matches | None:
        kind = target.resource.kind
        labels = label_selector(request.query.get("labelSelector", ""))
        fields = field_selector(
            request.query.get("fieldSelector", ""), target.version.selectable, target.api_version, kind
        )
        checks = [each for each in (labels, fields) if each is not None]
        if target.name:
            checks.append(lambda value: value["metadata"]["name"] == target.name)
        if target.namespace:
            checks.append(lambda value: value["metadata"].get("namespace") == target.namespace)
        if not checks:
            return None
        return lambda value: all(each(value) for each in checks)

    def _version_asked(self, request: Request) -> int | None:
        said = request.query.get("resourceVersion", "")
        if not said:
            return None
        if not said.isascii() or not said.isdigit():
            raise bad_request(
                f'resourceVersion: Invalid value: "{said}": strconv.ParseUint: parsing "{said}": invalid syntax'
            )
        return int(said)

    def _list(self, request: Request, target: Target) -> Answer:
        matches, version = self._selected(request, target), self._version_asked(request)
        start, left = 0, 0
        limit = _number(request.query, "limit") or 0
        if token := request.query.get("continue"):
            try:
                page, _, at = base64.urlsafe_b64decode(token).decode().partition(":")
                (seen, found), start = self._pages[page], int(at)
            except (ValueError, KeyError):
                raise expired(
                    "The provided continue parameter is too old to display a consistent list result. You can start "
                    "a new list without the continue parameter."
                ) from None
        else:
            if version is not None and version > self.store.version:
                raise StatusError(
                    504,
                    "Timeout",
                    f"Too large resource version: {version}, current: {self.store.version}",
                    {
                        "causes": [
                            {"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}
                        ]
                    },
                    retry_after=1,
                )
            if request.query.get("resourceVersionMatch") == "Exact" and version not in (
                None,
                self.store.version,
            ):
                raise expired(f"The resourceVersion for the provided list is too old: {version}")
            seen = self.store.version
            found = self.store.all(target.resource.key, target.namespace)
            if matches is not None:
                found = [each for each in found if matches(each)]
            page = ""
        metadata: Object = {"resourceVersion": str(seen)}
        part = found[start : start + limit] if limit else found[start:]
        left = len(found) - start - len(part)
        if left:
            if not page:
                page = uuid.uuid4().hex
                self._pages[page] = (seen, found)
                while len(self._pages) > 100:  # lists that are being paged through
                    del self._pages[next(iter(self._pages))]
            metadata["continue"] = base64.urlsafe_b64encode(f"{page}:{start + len(part)}".encode()).decode()
            if matches is None:
                metadata["remainingItemCount"] = left
        head = {"kind": f"{target.resource.kind}List", "apiVersion": target.api_version, "metadata": metadata}
        items = b",".join(encode(self._show(each, target)) for each in part)
        return Answer(200, encode(head)[:-1] + b',"items":[' + items + b"]}")

    def forget(self) -> None:
        """Forget changes and pages: who watches or lists on from before gets 410."""
        self._pages.clear()
        self.store.compact()

    def _watch(self, request: Request, target: Target) -> Watching:
        matches, version = self._selected(request, target), self._version_asked(request)
        resource, api_version = target.resource, target.api_version

        def shows(change: Change) -> bytes | None:
            was = change.before is not None and (matches is None or matches(change.before))
            is_ = not change.deleted and (matches is None or matches(change.now))
            if is_:
                return event_line("MODIFIED" if was else "ADDED", self._shown(change.now, api_version))
            if not was:
                return None
            if change.deleted:
                return event_line("DELETED", self._shown(change.now, api_version))
            assert change.before is not None
            # It is what it was when the watch saw it last, with the version of the change.
            metadata = {**change.before["metadata"], "resourceVersion": str(change.version)}
            return event_line("DELETED", {**change.before, "metadata": metadata, "apiVersion": api_version})

        initial = _true(request.query, "sendInitialEvents")
        bookmarks = _true(request.query, "allowWatchBookmarks")
        first: list[bytes] = []
        ends = False
        if initial or not version:
            found = self.store.all(resource.key, target.namespace)
            first = [
                event_line("ADDED", self._shown(each, api_version))
                for each in found
                if matches is None or matches(each)
            ]
            if initial:
                first.append(self.bookmark(target, initial=True))
        elif version < self.store.oldest:
            said = expired(f"too old resource version: {version} ({self.store.oldest})")
            first, ends = [event_line("ERROR", said.as_object())], True
        elif version > self.store.version:
            raise StatusError(
                504,
                "Timeout",
                f"Too large resource version: {version}, current: {self.store.version}",
                retry_after=1,
            )
        else:
            first = [line for each in self.store.since(version, resource.key) if (line := shows(each))]
        return Watching(
            resource=resource,
            version=target.version.name,
            first=tuple(first),
            shows=shows,
            bookmarks=bookmarks,
            seconds=_number(request.query, "timeoutSeconds"),
            ends=ends,
        )

    def bookmark(self, target: Target | Watching, *, initial: bool = False) -> bytes:
        """Return a bookmark of now."""
        version = target.version if isinstance(target, Watching) else target.version.name
        metadata: Object = {"resourceVersion": str(self.store.version), "creationTimestamp": None}
        if initial:
            metadata["annotations"] = {"k8s.io/initial-events-end": "true"}
        resource = target.resource
        return event_line(
            "BOOKMARK",
            {"kind": resource.kind, "apiVersion": resource.api_version(version), "metadata": metadata},
        )

    # Writing

    def _dry(self, request: Request) -> bool:
        said = request.query.get("dryRun")
        if said not in (None, "", "All"):
            raise StatusError(
                422, "Invalid", f'Invalid value: dryRun: Unsupported value: "{said}": supported values: "All"'
            )
        return said == "All"

    def _manager(self, request: Request) -> str:
        return request.query.get("fieldManager") or request.agent.partition("/")[0] or "unknown"

    def _body(self, request: Request, target: Target) -> Object:
        value = _parsed(request)
        if not isinstance(value, dict):
            raise bad_request(
                "the object provided is unrecognized (must be of type " + target.resource.kind + ")"
            )
        kind = "" if target.subresource == "token" else target.resource.kind
        said = (
            value.setdefault("apiVersion", target.api_version),
            value.setdefault("kind", target.resource.kind),
        )
        if kind and said != (target.api_version, kind):
            raise bad_request(
                f"{said[1]} in version {said[0].rpartition('/')[2]!r} cannot be handled as a {kind}: "
                f"no kind {said[1]!r} is registered for version {said[0]!r}".replace("'", '"')
            )
        decode(value, target.resource.key, target.resource.kind)
        value.setdefault("metadata", {})
        return value

    def _write(self, request: Request, target: Target, verb: str) -> Answer:
        resource, dry = target.resource, self._dry(request)
        review = self.reviews.get((*resource.key, target.subresource))
        if review is not None:
            if verb != "create":
                raise not_allowed()
            return Answer(201, encode(review(target, self._body(request, target), request.user)))
        if verb == "create":
            if target.name:
                raise not_allowed()
            made = self._create(
                target, self._body(request, target), request.user, self._manager(request), dry=dry
            )
            return Answer(201, encode(self._show(made, target)))
        if verb == "update":
            return self._put(request, target, dry=dry)
        return self._patch(request, target, dry=dry)

    def _put(self, request: Request, target: Target, *, dry: bool) -> Answer:
        resource, new = target.resource, self._body(request, target)
        name = new["metadata"].get("name", "")
        if name != target.name:
            raise bad_request(
                f"the name of the object ({name}) does not match the name on the URL ({target.name})"
            )
        old = self.store.get(resource.key, target.namespace, target.name)
        if old is None and resource.creates_on_update and not target.subresource:
            create = Attributes(
                verb="create",
                group=resource.group,
                resource=resource.plural,
                namespace=target.namespace,
                name=name,
            )
            self.access.check(request.user, create)
            made = self._create(target, new, request.user, self._manager(request), dry=dry)
            return Answer(201, encode(self._show(made, target)))
        uid = new["metadata"].get("uid")
        if uid and (old is None or uid != old["metadata"]["uid"]):
            raise _other_uid(target, old, uid)
        if old is None:
            raise not_found(resource.group, resource.plural, target.name)
        if not new["metadata"].get("resourceVersion") and not resource.unconditional:
            error = invalid("metadata.resourceVersion", "0x0", "must be specified for an update")
            raise unprocessable(resource.group, resource.kind, name, [error])
        done = self._update(
            target,
            old,
            new,
            request.user,
            Manager(self._manager(request), "Update", target.api_version, target.subresource),
            dry=dry,
        )
        return Answer(200, encode(self._show(done, target)))

    def _patch(self, request: Request, target: Target, *, dry: bool) -> Answer:
        resource, kind = target.resource, request.content_type
        known = _PATCHES - ({patches.STRATEGIC_PATCH} if resource.custom else set())
        if kind not in known:
            raise StatusError(
                415,
                "UnsupportedMediaType",
                "the body of the request was in an unknown format - accepted media types include: "
                + ", ".join(
                    each
                    for each in (
                        patches.JSON_PATCH,
                        patches.MERGE_PATCH,
                        patches.STRATEGIC_PATCH,
                        patches.APPLY_PATCH,
                    )
                    if each in known
                ),
            )
        old = self.store.get(resource.key, target.namespace, target.name)
        if kind == patches.APPLY_PATCH:
            return self._apply(request, target, old, dry=dry)
        if old is None:
            raise not_found(resource.group, resource.plural, target.name)
        patch, shown = _parsed(request), self._show(old, target)
        if kind == patches.JSON_PATCH:
            new = patches.json_patch(shown, patch)
        elif not isinstance(patch, dict):
            raise bad_request(
                "error decoding patch: json: cannot unmarshal into Go value of type map[string]interface {}"
            )
        elif kind == patches.MERGE_PATCH:
            new = copied(patches.merge_patch(shown, patch))
        else:
            new = copied(patches.strategic_merge_patch(shown, patch, target.version.topology))
        if not isinstance(new, dict) or not isinstance(new.get("metadata"), dict):
            raise bad_request("the patch leaves no object")
        decode(new, resource.key, resource.kind)
        manager = Manager(self._manager(request), "Update", target.api_version, target.subresource)
        done = self._update(target, old, new, request.user, manager, dry=dry)
        return Answer(200, encode(self._show(done, target)))

    def _apply(self, request: Request, target: Target, old: Object | None, *, dry: bool) -> Answer:
        resource = target.resource
        config = self._body(request, target)
        name = request.query.get("fieldManager")
        if not name:
            raise unprocessable(
                "meta.k8s.io", "PatchOptions", "", [required("fieldManager", "is required for apply patch")]
            )
        metadata = config["metadata"]
        if metadata.get("managedFields"):
            raise bad_request("metadata.managedFields must be nil")
        if metadata.setdefault("name", target.name) != target.name:
            raise bad_request(
                f"the name of the object ({metadata['name']}) does not match the name on the URL ({target.name})"
            )
        if target.namespace:
            metadata.setdefault("namespace", target.namespace)
        manager = Manager(name, "Apply", target.api_version, target.subresource)
        live = copied(self._show(old, target)) if old is not None else None
        new, after = applied(
            live,
            config,
            target.version.topology,
            manager,
            force=_true(request.query, "force"),
        )
        new = copied(new)
        if old is not None:
            done = self._update(target, old, new, request.user, manager, dry=dry, after=after)
            return Answer(200, encode(self._show(done, target)))
        if target.subresource:
            raise not_found(resource.group, resource.plural, target.name)
        create = Attributes(
            verb="create",
            group=resource.group,
            resource=resource.plural,
            namespace=target.namespace,
            name=target.name,
        )
        self.access.check(request.user, create)
        made = self._create(target, new, request.user, name, dry=dry, after=after)
        return Answer(201, encode(self._show(made, target)))

    def _create(
        self, target: Target, new: Object, user: User, manager: str, *, dry: bool, after: Owners | None = None
    ) -> Object:
        resource, rules = target.resource, self.rules.get(target.resource.key)
        metadata = new["metadata"]
        new["apiVersion"], new["kind"] = target.api_version, resource.kind
        if metadata.get("resourceVersion"):
            raise bad_request("resourceVersion should not be set on objects to be created")
        for name in ("uid", "creationTimestamp", "deletionTimestamp", "generation", "selfLink"):
            metadata.pop(name, None)
        if after is None:
            metadata.pop("managedFields", None)
        self._place(target, metadata)
        if not metadata.get("name") and metadata.get("generateName"):
            metadata["name"] = metadata["generateName"] + "".join(self._random.choices(_LETTERS, k=5))
        at = text(self.now())
        metadata["uid"], metadata["creationTimestamp"] = self._uid(), at
        if resource.generation:
            metadata["generation"] = 1
        if "status" in resource.subresources and resource.custom:
            new.pop("status", None)
        if target.version.default:
            target.version.default(new)
        if rules:
            rules.prepare_create(new, user)
            rules.admit_create(new, user)
        errors = self._metadata_errors(target, metadata)
        if rules:
            errors += rules.validate(new, None)
        if target.version.validate:
            errors += target.version.validate(new, None)
        name = metadata.get("name", "")
        if errors:
            raise unprocessable(resource.group, resource.kind, name, errors)
        if after is None:
            after = updated(
                new, None, target.version.topology, Manager(manager, "Update", target.api_version)
            )
        write_owners(new, after, None, at)
        if self.store.get(resource.key, metadata.get("namespace", ""), name) is not None:
            raise already_exists(resource.group, resource.plural, name)
        self._measure(new)
        if dry:
            return new
        made = self.store.put(resource.key, new)
        if rules:
            rules.committed(made, None)
        return made

    def _uid(self) -> str:
        return str(uuid.UUID(int=self._random.getrandbits(128), version=4))

    def _place(self, target: Target, metadata: Object) -> None:
        resource = target.resource
        if not resource.namespaced:
            metadata.pop("namespace", None)
            return
        if metadata.setdefault("namespace", target.namespace) != target.namespace:
            raise bad_request(
                "the namespace of the provided object does not match the namespace sent on the request"
            )
        namespace = self.store.get(("", "namespaces"), "", target.namespace)
        if namespace is None:
            raise not_found("", "namespaces", target.namespace)
        if namespace["metadata"].get("deletionTimestamp"):
            why = (
                f"unable to create new content in namespace {target.namespace} because it is being terminated"
            )
            raise forbidden(resource.group, resource.plural, str(metadata.get("name", "")), why)

    def _metadata_errors(self, target: Target, metadata: Object) -> list[FieldError]:
        errors = []
        name = metadata.get("name")
        if not name:
            errors.append(required("metadata.name", "name or generateName is required"))
        elif (
            not isinstance(name, str)
            or "/" in name
            or "%" in name
            or (not target.resource.any_name and not _is_name(name))
        ):
            errors.append(
                invalid(
                    "metadata.name",
                    json.dumps(name),
                    _NAME_RULE,
                )
            )
        for key, value in label_errors(metadata.get("labels")):
            errors.append(
                invalid(
                    "metadata.labels",
                    json.dumps(value or key),
                    _LABEL_RULE,
                )
            )
        return errors

    @staticmethod
    def _measure(value: Object) -> None:
        size = len(encode(value))
        if size > MOST_BYTES:
            # Resources of the server itself are stored as protobuf: bytes as bytes.
            spec = value.get("spec")
            if isinstance(spec, dict) and isinstance(spec.get("request"), str):
                size -= len(spec["request"]) // 4
        if size > MOST_BYTES:
            raise StatusError(500, "", "etcdserver: request is too large")

    def _update(
        self,
        target: Target,
        old: Object,
        new: Object,
        user: User,
        manager: Manager,
        *,
        dry: bool,
        after: Owners | None = None,
    ) -> Object:
        resource, rules = target.resource, self.rules.get(target.resource.key)
        metadata, before = new["metadata"], old["metadata"]
        new["apiVersion"], new["kind"] = target.api_version, resource.kind
        if metadata.get("resourceVersion") not in (None, "", "0", before["resourceVersion"]):
            raise conflict(resource.group, resource.plural, target.name)
        if metadata.get("name") not in (None, "", before["name"]):
            raise bad_request(
                f"the name of the object ({metadata['name']}) does not match the name on the URL ({before['name']})"
            )
        errors: list[FieldError] = []
        if metadata.get("uid") not in (None, "", before["uid"]):
            errors.append(invalid("metadata.uid", json.dumps(metadata["uid"]), "field is immutable"))
        self._keep(resource, target.subresource, new, old)
        metadata = new["metadata"]
        at = text(self.now())
        if target.version.default:
            target.version.default(new)
        if rules:
            rules.prepare_update(new, old, target.subresource)
        errors += self._metadata_errors(target, metadata)
        if rules:
            errors += rules.validate_update(new, old, target.subresource)
        if target.version.validate:
            errors += target.version.validate(new, old)
        errors += self._kept_finalizers(metadata, before)
        if rules:
            rules.admit_update(new, old, target.subresource, user)
        if errors:
            raise unprocessable(resource.group, resource.kind, target.name, errors)
        if resource.generation and _wanted(new, resource) != _wanted(old, resource):
            metadata["generation"] = int(before.get("generation", 0)) + 1
        if after is None:
            after = updated(new, old, target.version.topology, manager)
        write_owners(new, after, old, at)
        if _same(new, old):
            return old
        self._measure(new)
        if dry:
            return new
        if metadata.get("deletionTimestamp") and not metadata.get("finalizers"):
            return self._gone(resource, self.store.put(resource.key, new))
        done = self.store.put(resource.key, new)
        if rules:
            rules.committed(done, old)
        return done

    @staticmethod
    def _keep(resource: Resource, subresource: str, new: Object, old: Object) -> None:
        """Give back what an update by this way does not change."""
        metadata, before = new["metadata"], old["metadata"]
        if subresource == "status" and resource.custom:
            status = new.get("status")
            managed = metadata.get("managedFields")
            new.clear()
            new.update(copied({key: value for key, value in old.items() if key != "status"}))
            if status is not None:
                new["status"] = status
            if managed:
                new["metadata"]["managedFields"] = managed
            return
        for name in (
            "name",
            "namespace",
            "uid",
            "creationTimestamp",
            "deletionTimestamp",
            "deletionGracePeriodSeconds",
            "generation",
            "resourceVersion",
            "generateName",
        ):
            if name in before:
                metadata[name] = before[name]
            else:
                metadata.pop(name, None)
        if subresource == "status":
            if "spec" in old:
                new["spec"] = copied(old["spec"])
        elif "status" in resource.subresources and not subresource:
            if "status" in old:
                new["status"] = copied(old["status"])
            else:
                new.pop("status", None)

    @staticmethod
    def _kept_finalizers(metadata: Object, before: Object) -> list[FieldError]:
        if not before.get("deletionTimestamp"):
            return []
        added = [
            each for each in metadata.get("finalizers") or () if each not in (before.get("finalizers") or ())
        ]
        if not added:
            return []
        said = "no new finalizers can be added if the object is being deleted, found new finalizers []string{"
        return [
            FieldError(
                "FieldValueForbidden",
                "metadata.finalizers",
                "Forbidden: " + said + ", ".join(f'"{e}"' for e in added) + "}",
            )
        ]

    # Deleting

    def _delete(self, request: Request, target: Target) -> Answer:
        found = self._found(target)
        options = _parsed(request) if request.body else {}
        if not isinstance(options, dict):
            raise bad_request("DeleteOptions must be an object")
        said = options.get("preconditions") or {}
        metadata = found["metadata"]
        for name, word in (("uid", "UID"), ("resourceVersion", "ResourceVersion")):
            if said.get(name) and said[name] != metadata[name]:
                why = (
                    f"the {word} in the precondition ({said[name]}) does not match the {word} in record "
                    f"({metadata[name]}). The object might have been deleted and then recreated"
                )
                raise conflict(target.resource.group, target.resource.plural, target.name, why)
        dry = self._dry(request) or bool(options.get("dryRun"))
        policy = options.get("propagationPolicy") or request.query.get("propagationPolicy") or "Background"
        if dry:
            return self._deleted(target, found)
        left = self.delete(target.resource, found, policy=policy)
        if left is not None:
            return Answer(200, encode(self._show(left, target)))
        return self._deleted(target, found)

    @staticmethod
    def _deleted(target: Target, found: Object) -> Answer:
        details = {
            "name": target.name,
            "group": target.resource.group,
            "kind": target.resource.plural,
            "uid": found["metadata"]["uid"],
        }
        details = {key: value for key, value in details.items() if value}
        return Answer(
            200,
            encode(
                {
                    "kind": "Status",
                    "apiVersion": "v1",
                    "metadata": {},
                    "status": "Success",
                    "details": details,
                }
            ),
        )

    def _delete_all(self, request: Request, target: Target) -> Answer:
        matches = self._selected(request, target)
        found = [
            each
            for each in self.store.all(target.resource.key, target.namespace)
            if matches is None or matches(each)
        ]
        if not self._dry(request):
            for each in found:
                self.delete(target.resource, each)
        head = {
            "kind": f"{target.resource.kind}List",
            "apiVersion": target.api_version,
            "metadata": {"resourceVersion": str(self.store.version)},
        }
        return Answer(200, encode({**head, "items": [dict(self._show(each, target)) for each in found]}))

    def delete(self, resource: Resource, found: Object, *, policy: str = "Background") -> Object | None:
        """Delete an object, or begin to where finalizers wait; return what is left of it.

        Args:
            resource: Its resource.
            found: As stored.
            policy: What becomes of its dependents: `Background`, `Foreground` or `Orphan`.
        """
        metadata = found["metadata"]
        finalizers = list(metadata.get("finalizers") or ())
        if policy == "Orphan":
            self._orphan(metadata["uid"])
        if policy == "Foreground" and self._dependents(metadata["uid"]):
            finalizers.append("foregroundDeletion")
            self.later(lambda: self._collect(metadata["uid"]))
        if finalizers and metadata.get("deletionTimestamp"):
            return found
        if finalizers:
            left = copied(dict(found))
            left["metadata"] |= {
                "deletionTimestamp": text(self.now()),
                "deletionGracePeriodSeconds": 0,
                "finalizers": finalizers,
            }
            if resource.generation:
                left["metadata"]["generation"] = int(metadata.get("generation", 0)) + 1
            return self.store.put(resource.key, left)
        self._gone(resource, found)
        return None

    def _gone(self, resource: Resource, found: Object) -> Object:
        last = self.store.remove(resource.key, found)
        rules = self.rules.get(resource.key)
        if rules:
            rules.deleted(last)
        uid = last["metadata"]["uid"]
        self.later(lambda: self._collect(uid))
        for owner in [str(ref.get("uid")) for ref in last["metadata"].get("ownerReferences") or ()]:
            self.later(partial(self._release, owner))
        return last

    def _dependents(self, uid: str) -> list[tuple[Resource, Object]]:
        return [
            (self.resources[key], each)
            for key, each in self.store.everything()
            if any(ref.get("uid") == uid for ref in each["metadata"].get("ownerReferences") or ())
        ]

    def _exists(self, uid: str) -> Object | None:
        return next((each for _, each in self.store.everything() if each["metadata"]["uid"] == uid), None)

    def _collect(self, uid: str) -> None:
        """Delete what has no owner left."""
        for resource, each in self._dependents(uid):
            refs = each["metadata"]["ownerReferences"]
            alive = [
                ref
                for ref in refs
                if (owner := self._exists(ref.get("uid"))) and not owner["metadata"].get("deletionTimestamp")
            ]
            if not alive:
                self.delete(resource, each)
            elif len(alive) < len(refs):
                self._rewrite(resource, each, "ownerReferences", alive)

    def _orphan(self, uid: str) -> None:
        for resource, each in self._dependents(uid):
            left = [ref for ref in each["metadata"]["ownerReferences"] if ref.get("uid") != uid]
            self._rewrite(resource, each, "ownerReferences", left)

    def _release(self, uid: str) -> None:
        """Let go of an owner that waits for its dependents, once there are none."""
        for key, each in list(self.store.everything()):
            metadata = each["metadata"]
            if metadata["uid"] != uid or "foregroundDeletion" not in (metadata.get("finalizers") or ()):
                continue
            if not self._dependents(uid):
                left = [name for name in metadata["finalizers"] if name != "foregroundDeletion"]
                changed = self._rewrite(self.resources[key], each, "finalizers", left)
                if not left:
                    self._gone(self.resources[key], changed)

    def _rewrite(self, resource: Resource, found: Object, name: str, value: list[Any]) -> Object:
        new = copied(dict(found))
        if value:
            new["metadata"][name] = value
        else:
            new["metadata"].pop(name)
        return self.store.put(resource.key, new)


def _number(query: Mapping[str, str], name: str) -> int | None:
    """Return a number of the query, not negative; None where it is not said."""
    said = query.get(name, "")
    if not said:
        return None
    if not said.isascii() or not said.isdigit():
        raise bad_request(f'strconv.ParseInt: parsing "{said}": invalid syntax')
    return int(said)


def _true(query: Mapping[str, str], name: str) -> bool:
    return query.get(name, "").lower() in ("true", "1")


def _parsed(request: Request) -> Any:
    if len(request.body) > MOST_BODY_BYTES:
        raise StatusError(
            413, "RequestEntityTooLarge", f"Request entity too large: limit is {MOST_BODY_BYTES}"
        )
    try:
        return json.loads(request.body)
    except (ValueError, RecursionError):
        pass
    if "yaml" in request.content_type:
        return _yaml(request.body)
    raise bad_request("couldn't get version/kind; json parse error: invalid JSON")


def _yaml(body: bytes) -> Any:
    try:
        return YAML(typ="safe", pure=True).load(body)
    except (YAMLError, UnicodeDecodeError) as e:
        raise bad_request(f"error converting YAML to JSON: {e}") from e


def _is_name(name: str) -> bool:
    return len(name) <= 253 and certificates.is_subdomain(name)  # RFC 1123


def _wanted(value: Object, resource: Resource) -> Object:
    """Return what an object wants: all but metadata, and but status where that is written apart."""
    out = ("metadata", "apiVersion", "kind", *(("status",) if "status" in resource.subresources else ()))
    return {key: each for key, each in value.items() if key not in out}


def _same(new: Object, old: Object) -> bool:
    """Say whether nothing changed, times of managers and the version of the API aside."""

    def told(value: Object) -> Object:
        metadata = {
            key: each
            for key, each in value["metadata"].items()
            if key not in ("managedFields", "resourceVersion")
        }
        rest = {key: each for key, each in value.items() if key not in ("metadata", "apiVersion")}
        return {**rest, "metadata": metadata}

    return told(new) == told(old) and owners(new) == owners(old)


def _other_uid(target: Target, old: Object | None, said: object) -> StatusError:
    """Return that the object is not the one that was meant, or is gone: the storage does not tell these apart."""
    uid, version = (old["metadata"]["uid"], old["metadata"]["resourceVersion"]) if old else ("", "0")
    place = "/".join(each for each in (target.resource.plural, target.namespace, target.name) if each)
    why = (
        f"StorageError: invalid object, Code: 4, Key: /registry/{place}, ResourceVersion: {version}, "
        f"AdditionalErrorMsg: Precondition failed: UID in precondition: {said}, UID in object meta: {uid}"
    )
    return conflict(target.resource.group, target.resource.plural, target.name, why)


__all__ = ["NODES", "NODE_PREFIX", "Answer", "Cluster", "Request", "Target", "Watching"]
