"""Writing: POST, PUT, patches of each kind, server-side apply; what is checked, and in which order."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from random import Random
from typing import Final

from attestation_testing.kubernetes import patches
from attestation_testing.kubernetes.access import Attributes, User
from attestation_testing.kubernetes.admission import Admission
from attestation_testing.kubernetes.apply import Manager, Owners, applied, updated, write_owners
from attestation_testing.kubernetes.deleting import Deleting
from attestation_testing.kubernetes.host import Host
from attestation_testing.kubernetes.keeping import (
    finalizer_errors,
    keep,
    measure,
    metadata_errors,
    same,
    wanted,
)
from attestation_testing.kubernetes.objects import copied, text
from attestation_testing.kubernetes.requests import Answer, Request, Target, is_dry, is_true, parsed, shown
from attestation_testing.kubernetes.rules import Rules
from attestation_testing.kubernetes.shapes import decode
from attestation_testing.kubernetes.status import (
    FieldError,
    Object,
    StatusError,
    already_exists,
    bad_request,
    conflict,
    forbidden,
    invalid,
    not_allowed,
    not_found,
    required,
    unprocessable,
)
from attestation_testing.kubernetes.store import Key, encode

_LETTERS: Final = "bcdfghjklmnpqrstvwxz2456789"
_PATCHES: Final = {
    patches.JSON_PATCH,
    patches.MERGE_PATCH,
    patches.STRATEGIC_PATCH,
    patches.APPLY_PATCH,
}


class Writing:
    """Writes to *cluster*.

    Args:
        cluster: Where to.
        rules: Of resources that have some.
        admission: Is asked before.
        deleting: Takes away what only waited for its finalizers.
        random: Makes names and UIDs.
    """

    def __init__(
        self,
        cluster: Host,
        rules: Mapping[Key, Rules],
        admission: Admission,
        deleting: Deleting,
        random: Random,
    ) -> None:
        self._cluster = cluster
        self._rules = rules
        self._admission = admission
        self._deleting = deleting
        self._random = random

    def _manager(self, request: Request) -> str:
        return request.query.get("fieldManager") or request.agent.partition("/")[0] or "unknown"

    def _body(self, request: Request, target: Target) -> Object:
        value = parsed(request)
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

    def write(self, request: Request, target: Target, verb: str) -> Answer:
        """Answer what creates or changes an object, or is a review."""
        resource, dry = target.resource, is_dry(request)
        review = self._cluster.reviews.get((*resource.key, target.subresource))
        if review is not None:
            if verb != "create":
                raise not_allowed()
            return Answer(201, encode(review(target, self._body(request, target), request.user)))
        if verb == "create":
            if target.name:
                raise not_allowed()
            made = self.create(
                target, self._body(request, target), request.user, self._manager(request), dry=dry
            )
            return Answer(201, encode(shown(made, target.api_version)))
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
        old = self._cluster.store.get(resource.key, target.namespace, target.name)
        if old is None and resource.creates_on_update and not target.subresource:
            create = Attributes(
                verb="create",
                group=resource.group,
                resource=resource.plural,
                namespace=target.namespace,
                name=name,
            )
            self._cluster.access.check(request.user, create)
            made = self.create(target, new, request.user, self._manager(request), dry=dry)
            return Answer(201, encode(shown(made, target.api_version)))
        uid = new["metadata"].get("uid")
        if uid and (old is None or uid != old["metadata"]["uid"]):
            raise _other_uid(target, old, uid)
        if old is None:
            raise not_found(resource.group, resource.plural, target.name)
        if not new["metadata"].get("resourceVersion") and not resource.unconditional:
            error = invalid("metadata.resourceVersion", "0x0", "must be specified for an update")
            raise unprocessable(resource.group, resource.kind, name, [error])
        done = self.update(
            target,
            old,
            new,
            request.user,
            Manager(self._manager(request), "Update", target.api_version, target.subresource),
            dry=dry,
        )
        return Answer(200, encode(shown(done, target.api_version)))

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
        old = self._cluster.store.get(resource.key, target.namespace, target.name)
        if kind == patches.APPLY_PATCH:
            return self._apply(request, target, old, dry=dry)
        if old is None:
            raise not_found(resource.group, resource.plural, target.name)
        patch, now = parsed(request), shown(old, target.api_version)
        if kind == patches.JSON_PATCH:
            new = patches.json_patch(now, patch)
        elif not isinstance(patch, dict):
            raise bad_request(
                "error decoding patch: json: cannot unmarshal into Go value of type map[string]interface {}"
            )
        elif kind == patches.MERGE_PATCH:
            new = copied(patches.merge_patch(now, patch))
        else:
            new = copied(patches.strategic_merge_patch(now, patch, target.version.topology))
        if not isinstance(new, dict) or not isinstance(new.get("metadata"), dict):
            raise bad_request("the patch leaves no object")
        decode(new, resource.key, resource.kind)
        manager = Manager(self._manager(request), "Update", target.api_version, target.subresource)
        done = self.update(target, old, new, request.user, manager, dry=dry)
        return Answer(200, encode(shown(done, target.api_version)))

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
        live = copied(shown(old, target.api_version)) if old is not None else None
        new, after = applied(
            live,
            config,
            target.version.topology,
            manager,
            force=is_true(request.query, "force"),
        )
        new = copied(new)
        if old is not None:
            done = self.update(target, old, new, request.user, manager, dry=dry, after=after)
            return Answer(200, encode(shown(done, target.api_version)))
        if target.subresource:
            raise not_found(resource.group, resource.plural, target.name)
        create = Attributes(
            verb="create",
            group=resource.group,
            resource=resource.plural,
            namespace=target.namespace,
            name=target.name,
        )
        self._cluster.access.check(request.user, create)
        made = self.create(target, new, request.user, name, dry=dry, after=after)
        return Answer(201, encode(shown(made, target.api_version)))

    def create(
        self, target: Target, new: Object, user: User, manager: str, *, dry: bool, after: Owners | None = None
    ) -> Object:
        """Store a new object, which becomes the cluster's; return it as it was stored."""
        resource, rules = target.resource, self._rules.get(target.resource.key)
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
        at = text(self._cluster.now())
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
        errors = metadata_errors(target, metadata)
        if rules:
            errors += rules.validate(new, None)
        if target.version.validate:
            errors += target.version.validate(new, None)
        name = metadata.get("name", "")
        if errors:
            raise unprocessable(resource.group, resource.kind, name, errors)
        self._admission.check("CREATE", target, new=new, old=None, user=user, dry=dry)
        if after is None:
            after = updated(
                new, None, target.version.topology, Manager(manager, "Update", target.api_version)
            )
        write_owners(new, after, None, at)
        if self._cluster.store.get(resource.key, metadata.get("namespace", ""), name) is not None:
            raise already_exists(resource.group, resource.plural, name)
        measure(new)
        if dry:
            return new
        made = self._cluster.store.put(resource.key, new)
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
        namespace = self._cluster.store.get(("", "namespaces"), "", target.namespace)
        if namespace is None:
            raise not_found("", "namespaces", target.namespace)
        if namespace["metadata"].get("deletionTimestamp"):
            why = (
                f"unable to create new content in namespace {target.namespace} because it is being terminated"
            )
            raise forbidden(resource.group, resource.plural, str(metadata.get("name", "")), why)

    def update(
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
        """Store what becomes of an object, or of a part of it; return it as it was stored."""
        resource, rules = target.resource, self._rules.get(target.resource.key)
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
        keep(resource, target.subresource, new, old)
        metadata = new["metadata"]
        at = text(self._cluster.now())
        if target.version.default:
            target.version.default(new)
        if rules:
            rules.prepare_update(new, old, target.subresource)
        errors += metadata_errors(target, metadata)
        if rules:
            errors += rules.validate_update(new, old, target.subresource)
        if target.version.validate:
            errors += target.version.validate(new, old)
        errors += finalizer_errors(metadata, before)
        if rules:
            rules.admit_update(new, old, target.subresource, user)
        if errors:
            raise unprocessable(resource.group, resource.kind, target.name, errors)
        self._admission.check("UPDATE", target, new=new, old=old, user=user, dry=dry)
        if resource.generation and wanted(new, resource) != wanted(old, resource):
            metadata["generation"] = int(before.get("generation", 0)) + 1
        if after is None:
            after = updated(new, old, target.version.topology, manager)
        write_owners(new, after, old, at)
        if same(new, old):
            return old
        measure(new)
        if dry:
            return new
        if metadata.get("deletionTimestamp") and not metadata.get("finalizers"):
            return self._deleting.gone(resource, self._cluster.store.put(resource.key, new))
        done = self._cluster.store.put(resource.key, new)
        if rules:
            rules.committed(done, old)
        return done


def _other_uid(target: Target, old: Object | None, said: object) -> StatusError:
    """Return that the object is not the one that was meant, or is gone: the storage does not tell these apart."""
    uid, version = (old["metadata"]["uid"], old["metadata"]["resourceVersion"]) if old else ("", "0")
    place = "/".join(each for each in (target.resource.plural, target.namespace, target.name) if each)
    why = (
        f"StorageError: invalid object, Code: 4, Key: /registry/{place}, ResourceVersion: {version}, "
        f"AdditionalErrorMsg: Precondition failed: UID in precondition: {said}, UID in object meta: {uid}"
    )
    return conflict(target.resource.group, target.resource.plural, target.name, why)
