"""What a controller wants done: values, which a pure `reconcile` returns and `Executor` applies.

Each names the object as it was judged (`Target`): UID and resourceVersion go with the request, so an object that has
changed since, or another one under its name, is not touched: `ObjectChanged`, and it is read and judged again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from attestation_operator.objects import Key, Kind, Raw, Target


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
class Create:
    """Create an object, in the namespace that its metadata name.

    Where there is one of that name, `ObjectExists` ends what is done: what it is must be read and judged, for a
    stranger may have put it there. Of a kind with a status subresource the API server drops `status`.
    """

    kind: Kind
    raw: Raw

    @property
    def target(self) -> Key:
        """Name of what is created."""
        return Key.of(self.kind, self.raw)


@dataclass(frozen=True, slots=True, kw_only=True)
class Delete:
    """Delete an object, if it is still this one (UID and resourceVersion)."""

    target: Target


@dataclass(frozen=True, slots=True, kw_only=True)
class Replace:
    """An object as it is to be from now on, whole (PUT), if it is unchanged (UID and resourceVersion)."""

    target: Target
    raw: Raw = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class SetStatus:
    """Our part of `status`, whole, by server-side apply: of an object of our own kinds, or of a request to us.

    What this program said before and does not say now goes; what others say stays. Each program of ours that writes
    a status has its own `manager`. The resourceVersion is compared where it is to be `exact`: what is only a step must
    not take the place of an end that was said meanwhile.
    """

    target: Target
    manager: str
    status: Mapping[str, Any]
    exact: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SetFinalizers:
    """What holds an object of our own kinds when it is deleted, all of it, if it is unchanged (resourceVersion)."""

    target: Target
    finalizers: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeStatus:
    """Members of `status` of an object of our own kinds, merged (RFC 7396), if it is unchanged (resourceVersion).

    None takes a member away; a list is replaced whole. For a state machine: no step is taken from a state that is
    not there any more, and none is taken back.
    """

    target: Target
    status: Mapping[str, Any]


Action = (
    Approve
    | Deny
    | PutCertificate
    | Fail
    | EmitEvent
    | PatchNode
    | Create
    | Replace
    | Delete
    | SetFinalizers
    | SetStatus
    | MergeStatus
)
