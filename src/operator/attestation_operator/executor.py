"""Applies actions: only this code changes a cluster, leases aside. Each request names the object it is meant for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, Protocol

from attestation.clock import Clock, rfc3339
from attestation.errors import AttestationError
from attestation.wire import b64encode
from attestation_operator.actions import (
    Action,
    Approve,
    Create,
    Delete,
    Deny,
    EmitEvent,
    Fail,
    MergeStatus,
    PatchNode,
    PutCertificate,
    Replace,
    SetFinalizers,
    SetStatus,
)
from attestation_operator.cluster import KubernetesCluster
from attestation_operator.errors import ClusterRefused, NotLeading, ObjectExists
from attestation_operator.objects import EVENT, GROUP, Raw, clipped

EVENT_NAMESPACE: Final = "default"
"""Where events about objects without a namespace are (events.k8s.io/v1)."""

_Change = (
    Approve
    | Deny
    | PutCertificate
    | Fail
    | PatchNode
    | Create
    | Replace
    | Delete
    | SetFinalizers
    | SetStatus
    | MergeStatus
)

MAX_NAME: Final = 253


class Executor(Protocol):
    """Applies actions, one after the other."""

    async def apply(self, actions: Iterable[Action]) -> None:
        """Do all of them in order; end at the first that cannot be done.

        An object that is gone needs nothing any more: its actions are passed over. An Event that cannot be written
        is logged and ends nothing.

        Raises:
            NotLeading: Another replica may act by now.
            ObjectChanged: The object is not what was judged; `ObjectExists`: it was to be created and is there.
            ClusterUnavailable: The API server is away.
            ClusterRefused: The API server refuses.
        """
        ...


class KubernetesExecutor:
    """Applies actions to a cluster.

    Args:
        cluster: The API server.
        name: Of the controller, as events tell it.
        instance: Of this replica.
        leading: True while no other replica may act; asked before each action.
        clock: For the times of events.
        log: structlog's.
    """

    def __init__(
        self,
        cluster: KubernetesCluster,
        *,
        name: str,
        instance: str,
        leading: Callable[[], bool],
        clock: Clock,
        log: Any,
    ) -> None:
        self._cluster = cluster
        self._name = name
        self._instance = instance
        self._leading = leading
        self._clock = clock
        self._log = log

    async def apply(self, actions: Iterable[Action]) -> None:
        """Do all of them in order; see `Executor`."""
        for action in actions:
            if not self._leading():
                raise NotLeading(f"{type(action).__name__} {action.target}: the lease is not held")
            await self._one(action)

    async def _one(self, action: Action) -> None:
        if isinstance(action, EmitEvent):
            await self._emit(action)
            return
        target = action.target
        there = await self._changed(action)
        self._log.info(
            "action.done" if there else "action.needless",
            action=type(action).__name__,
            kind=target.kind.kind,
            name=str(target),
            reason=getattr(action, "reason", None),
        )

    async def _changed(self, action: _Change) -> bool:
        """Do it; False where the object is gone."""
        cluster = self._cluster
        status: dict[str, Any]
        match action:
            case Approve(target=target) | Deny(target=target):
                type_ = "Approved" if isinstance(action, Approve) else "Denied"
                status = {"conditions": _with(action, type_)}
                return await cluster.replace(target, {"status": status}, action="approval")
            case PutCertificate(target=target):
                status = {"certificate": b64encode(action.certificate_pem.encode())}
                return await cluster.merge(target, {"status": status}, action="status")
            case Fail(target=target):
                status = {"conditions": _with(action, "Failed")}
                return await cluster.merge(target, {"status": status}, action="status")
            case PatchNode(target=target):
                return await cluster.merge(target, _node_patch(action))
            case Create():
                await cluster.create(action.kind, action.raw)
                return True
            case Replace(target=target):
                return await cluster.replace(target, action.raw)
            case Delete(target=target):
                return await cluster.delete(target)
            case SetFinalizers(target=target):
                return await cluster.merge(target, {"metadata": {"finalizers": list(action.finalizers)}})
            case SetStatus(target=target):
                return await cluster.apply_status(
                    target, action.status, manager=action.manager, exact=action.exact
                )
            case MergeStatus(target=target):
                return await cluster.merge(target, {"status": action.status}, action="status")

    async def _emit(self, action: EmitEvent) -> None:
        """Write an Event under a name that is the same for the same: a second one (409) says nothing new."""
        target = action.target
        regarding = {
            "apiVersion": target.kind.api_version,
            "kind": target.kind.kind,
            "name": target.name,
            "uid": target.uid,
            "resourceVersion": target.resource_version,
        }
        if target.namespace is not None:
            regarding["namespace"] = target.namespace
        event: dict[str, Any] = {
            "metadata": {"name": event_name(action), "namespace": target.namespace or EVENT_NAMESPACE},
            "eventTime": rfc3339(self._clock.now()),
            "reportingController": f"{GROUP}/{self._name}",
            "reportingInstance": self._instance[:128],
            "action": action.action,
            "reason": action.reason,
            "regarding": regarding,
            "note": clipped(action.note),
            "type": action.type,
        }
        try:
            try:
                await self._cluster.create(EVENT, event)
            except ClusterRefused:
                if target.namespace is not None:
                    raise
                # An old API server wants the namespace of the Event there too, where the object has none (1.20).
                regarding = {**regarding, "namespace": EVENT_NAMESPACE}
                event = {**event, "regarding": regarding}
                await self._cluster.create(EVENT, event)
        except ObjectExists:
            pass
        except AttestationError as e:
            self._log.warning("event.not_written", name=str(target), code=e.code, reason=str(e))


def event_name(action: EmitEvent) -> str:
    """Return the name of an Event: object, its UID, what was done and why; a DNS subdomain (RFC 1123)."""
    target = action.target
    end = f".{target.uid}.{action.action}.{action.reason}".lower()
    begin = "".join(c if c.isascii() and (c.isalnum() or c in "-.") else "-" for c in target.name.lower())
    # It begins and ends with a letter or digit, each label of it too.
    parts = [part.strip("-") or "x" for part in begin[: MAX_NAME - len(end)].split(".")]
    return ".".join(parts) + end


def _with(action: Approve | Deny | Fail, type_: str) -> list[Raw]:
    """Return the conditions that were there and ours; the API server fills in the times."""
    ours = {"type": type_, "status": "True", "reason": action.reason, "message": action.message}
    return [*action.conditions, ours]


def _node_patch(action: PatchNode) -> dict[str, Any]:
    spec: dict[str, Any] = {}
    if action.taints is not None:
        spec["taints"] = list(action.taints) or None
    if action.unschedulable is not None:
        spec["unschedulable"] = action.unschedulable or None
    return {"metadata": {"labels": dict(action.labels)}, **({"spec": spec} if spec else {})}
