"""What a controller wants done: values, which a pure `reconcile` returns and `Executor` applies.

Each names the object as it was judged (`Target`): UID and resourceVersion go with the request, so an object that has
changed since, or another one under its name, is not touched: `ObjectChanged`, and it is read and judged again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from attestation_operator.objects import Raw, Target


@dataclass(frozen=True, slots=True, kw_only=True)
class Approve:
    """Condition Approved on a CSR, by `/approval`.

    `conditions` are those that it had when it was judged: they stay.
    """

    target: Target
    reason: str
    message: str
    conditions: tuple[Raw, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Deny:
    """Condition Denied on a CSR, by `/approval`."""

    target: Target
    reason: str
    message: str
    conditions: tuple[Raw, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PutCertificate:
    """The certificate into a CSR, by `/status`: PEM, the leaf first."""

    target: Target
    certificate_pem: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Fail:
    """Condition Failed on an approved CSR, by `/status`: it is never signed."""

    target: Target
    reason: str
    message: str
    conditions: tuple[Raw, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EmitEvent:
    """An Event (events.k8s.io/v1) about an object. The same about the same object is said once.

    Args:
        action: What was done about the object, one word: `Approve`.
        reason: Why, one word, at most 128 characters: `TpmAttested`.
        note: At most 1024 bytes; longer ones are cut.
    """

    target: Target
    action: str
    reason: str
    note: str
    type: Literal["Normal", "Warning"] = "Normal"


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchNode:
    """Labels, taints and cordon of a Node, in one request; what is not named stays.

    Args:
        labels: Value by label, None takes it away.
        taints: All taints that it is to have, or None.
        unschedulable: Cordoned or not, or None.
    """

    target: Target
    labels: Mapping[str, str | None] = field(default_factory=dict)
    taints: tuple[Raw, ...] | None = None
    unschedulable: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteNode:
    """Delete a Node, if it is still this one (UID and resourceVersion)."""

    target: Target


@dataclass(frozen=True, slots=True, kw_only=True)
class SetStatus:
    """Our part of `status` of an object of our own kinds, whole, by server-side apply.

    What this program said before and does not say now goes; what others say stays. Each program of ours that writes
    a status has its own `manager`.
    """

    target: Target
    manager: str
    status: Mapping[str, Any]


Action = Approve | Deny | PutCertificate | Fail | EmitEvent | PatchNode | DeleteNode | SetStatus
