"""Deleting: preconditions, finalizers, and the garbage collection of what has no owner left."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from attestation_testing.kubernetes.admission import Admission
from attestation_testing.kubernetes.host import Host
from attestation_testing.kubernetes.objects import copied, text
from attestation_testing.kubernetes.reading import Reading
from attestation_testing.kubernetes.requests import Answer, Request, Target, is_dry, parsed, shown
from attestation_testing.kubernetes.resources import Resource
from attestation_testing.kubernetes.rules import Rules
from attestation_testing.kubernetes.status import Object, bad_request, conflict
from attestation_testing.kubernetes.store import Key, encode


class Deleting:
    """Deletes from *cluster*.

    Args:
        cluster: Where from.
        rules: Of resources that have some.
        reading: Selects what is deleted.
        admission: Is asked before.
    """

    def __init__(
        self, cluster: Host, rules: Mapping[Key, Rules], reading: Reading, admission: Admission
    ) -> None:
        self._cluster = cluster
        self._rules = rules
        self._reading = reading
        self._admission = admission

    def one(self, request: Request, target: Target) -> Answer:
        """Answer a deletion."""
        found = self._cluster.found(target)
        options = parsed(request) if request.body else {}
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
        dry = is_dry(request) or bool(options.get("dryRun"))
        policy = options.get("propagationPolicy") or request.query.get("propagationPolicy") or "Background"
        self._admission.check("DELETE", target, new=None, old=found, user=request.user, dry=dry)
        if dry:
            return self._deleted(target, found)
        left = self.delete(target.resource, found, policy=policy)
        if left is not None:
            return Answer(200, encode(shown(left, target.api_version)))
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

    def all(self, request: Request, target: Target) -> Answer:
        """Answer a deletion of all that selectors choose."""
        matches = self._reading.selected(request, target)
        found = [
            each
            for each in self._cluster.store.all(target.resource.key, target.namespace)
            if matches is None or matches(each)
        ]
        for each in found:
            self._admission.check(
                "DELETE", target, new=None, old=each, user=request.user, dry=is_dry(request)
            )
            if not is_dry(request):
                self.delete(target.resource, each)
        head = {
            "kind": f"{target.resource.kind}List",
            "apiVersion": target.api_version,
            "metadata": {"resourceVersion": str(self._cluster.store.version)},
        }
        return Answer(
            200, encode({**head, "items": [dict(shown(each, target.api_version)) for each in found]})
        )

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
            self._cluster.later(lambda: self._collect(metadata["uid"]))
        if finalizers and metadata.get("deletionTimestamp"):
            return found
        if finalizers:
            left = copied(dict(found))
            left["metadata"] |= {
                "deletionTimestamp": text(self._cluster.now()),
                "deletionGracePeriodSeconds": 0,
                "finalizers": finalizers,
            }
            if resource.generation:
                left["metadata"]["generation"] = int(metadata.get("generation", 0)) + 1
            return self._cluster.store.put(resource.key, left)
        self.gone(resource, found)
        return None

    def gone(self, resource: Resource, found: Object) -> Object:
        """Take an object away, and have done what follows; return it as it was last."""
        last = self._cluster.store.remove(resource.key, found)
        rules = self._rules.get(resource.key)
        if rules:
            rules.deleted(last)
        uid = last["metadata"]["uid"]
        self._cluster.later(lambda: self._collect(uid))
        for owner in [str(ref.get("uid")) for ref in last["metadata"].get("ownerReferences") or ()]:
            self._cluster.later(partial(self._release, owner))
        return last

    def _dependents(self, uid: str) -> list[tuple[Resource, Object]]:
        return [(self._cluster.resources[key], each) for key, each in self._cluster.store.owned_by(uid)]

    def _collect(self, uid: str) -> None:
        """Delete what has no owner left."""
        for resource, each in self._dependents(uid):
            refs = each["metadata"]["ownerReferences"]
            alive = [ref for ref in refs if self._stays(str(ref.get("uid")))]
            if not alive:
                self.delete(resource, each)
            elif len(alive) < len(refs):
                self._rewrite(resource, each, "ownerReferences", alive)

    def _stays(self, uid: str) -> bool:
        found = self._cluster.store.of_uid(uid)
        return found is not None and not found[1]["metadata"].get("deletionTimestamp")

    def _orphan(self, uid: str) -> None:
        for resource, each in self._dependents(uid):
            left = [ref for ref in each["metadata"]["ownerReferences"] if ref.get("uid") != uid]
            self._rewrite(resource, each, "ownerReferences", left)

    def _release(self, uid: str) -> None:
        """Let go of an owner that waits for its dependents, once there are none."""
        found = self._cluster.store.of_uid(uid)
        if found is None or self._dependents(uid):
            return
        key, owner = found
        finalizers = owner["metadata"].get("finalizers") or ()
        if "foregroundDeletion" in finalizers:
            left = [name for name in finalizers if name != "foregroundDeletion"]
            changed = self._rewrite(self._cluster.resources[key], owner, "finalizers", left)
            if not left:
                self.gone(self._cluster.resources[key], changed)

    def _rewrite(self, resource: Resource, found: Object, name: str, value: list[Any]) -> Object:
        new = copied(dict(found))
        if value:
            new["metadata"][name] = value
        else:
            new["metadata"].pop(name)
        return self._cluster.store.put(resource.key, new)
