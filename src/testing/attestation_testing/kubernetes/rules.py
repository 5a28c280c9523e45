"""Resources with rules of their own: certificate signing requests, nodes, events, namespaces."""

# ruff: noqa: ARG002  # a rule that does not look at all that it is given has the same form as one that does

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from attestation_testing.kubernetes import certificates
from attestation_testing.kubernetes.access import NODE_PREFIX, NODES, User
from attestation_testing.kubernetes.host import Host
from attestation_testing.kubernetes.objects import text
from attestation_testing.kubernetes.status import (
    FieldError,
    Object,
    forbidden,
    invalid,
    required,
    unsupported,
)


class Rules:
    """Rules of a resource, none of them here."""

    def __init__(self, host: Host) -> None:
        self.host = host

    def prepare_create(self, new: Object, user: User) -> None:
        """Write what the server writes into a new object, whatever it says."""

    def prepare_update(self, new: Object, old: Object, subresource: str) -> None:
        """Take back what this way of writing does not change."""

    def admit_create(self, new: Object, user: User) -> None:
        """Refuse what *user* may not say."""

    def admit_update(self, new: Object, old: Object, subresource: str, user: User) -> None:
        """Refuse what *user* may not change."""

    def validate(self, new: Object, old: Object | None) -> list[FieldError]:
        """Return what is wrong with an object."""
        return []

    def validate_update(self, new: Object, old: Object, subresource: str) -> list[FieldError]:
        """Return what is wrong with a change."""
        return self.validate(new, old)

    def committed(self, new: Object, old: Object | None) -> None:
        """Do what follows a write."""

    def deleted(self, last: Object) -> None:
        """Do what follows a deletion."""


class SigningRequests(Rules):
    """HSM-AND-KUBERNETES §21; NodeRestriction from 1.31 on."""

    def prepare_create(self, new: Object, user: User) -> None:
        """Stamp the caller."""
        certificates.created(new, user)

    def prepare_update(self, new: Object, old: Object, subresource: str) -> None:
        """Keep what this way does not change."""
        certificates.prepared(new, old, subresource, text(self.host.now()))

    def admit_create(self, new: Object, user: User) -> None:
        """Refuse certificates of masters, and of a node for another."""
        certificates.admit_creation(new)
        if self.host.node_restriction:
            certificates.admit_node(new, user)

    def admit_update(self, new: Object, old: Object, subresource: str, user: User) -> None:
        """Ask for the right to this signer."""
        certificates.admit_update(new, old, subresource, user, self.host.access)

    def validate(self, new: Object, old: Object | None) -> list[FieldError]:
        """Return what is wrong."""
        return certificates.validate(new)

    def validate_update(self, new: Object, old: Object, subresource: str) -> list[FieldError]:
        """Return what may not change."""
        return certificates.validate_update(new, old, subresource)


_NODE_LABELS: Final = frozenset(
    {
        "kubernetes.io/hostname",
        "kubernetes.io/arch",
        "kubernetes.io/os",
        "beta.kubernetes.io/arch",
        "beta.kubernetes.io/os",
        "beta.kubernetes.io/instance-type",
        "node.kubernetes.io/instance-type",
        "failure-domain.beta.kubernetes.io/region",
        "failure-domain.beta.kubernetes.io/zone",
        "failure-domain.kubernetes.io/region",
        "failure-domain.kubernetes.io/zone",
        "topology.kubernetes.io/region",
        "topology.kubernetes.io/zone",
    }
)


def _node_may_label(name: str) -> bool:
    """Say whether a kubelet may set a label on its Node (plugin/pkg/admission/noderestriction)."""
    domain = name.partition("/")[0] if "/" in name else ""
    if domain == "node-restriction.kubernetes.io" or domain.endswith(".node-restriction.kubernetes.io"):
        return False
    reserved = any(domain == each or domain.endswith(f".{each}") for each in ("kubernetes.io", "k8s.io"))
    own = any(
        domain == each or domain.endswith(f".{each}")
        for each in ("kubelet.kubernetes.io", "node.kubernetes.io")
    )
    return not reserved or own or name in _NODE_LABELS


class Nodes(Rules):
    """A kubelet writes its own Node, and no label that others rest on."""

    def _admit(self, new: Object, old: Object | None, user: User) -> None:
        if not self.host.node_restriction or NODES not in user.groups:
            return
        if not user.name.startswith(NODE_PREFIX):
            return
        own, name = user.name.removeprefix(NODE_PREFIX), str(new["metadata"].get("name", ""))
        if name != own:
            raise forbidden("", "nodes", name, f'node "{own}" is not allowed to modify node "{name}"')
        now = new["metadata"].get("labels") or {}
        before = (old or {"metadata": {}})["metadata"].get("labels") or {}
        changed = {key for key in now.keys() | before.keys() if now.get(key) != before.get(key)}
        refused = sorted(key for key in changed if not _node_may_label(key))
        if refused and old is None:
            raise forbidden(
                "",
                "nodes",
                name,
                f'node "{own}" is not allowed to set the following labels: {", ".join(refused)}',
            )
        if refused:
            raise forbidden("", "nodes", name, f"is not allowed to modify labels: {', '.join(refused)}")
        if old is not None and (new.get("spec") or {}).get("taints") != (old.get("spec") or {}).get("taints"):
            raise forbidden("", "nodes", name, f'node "{own}" is not allowed to modify taints')

    def admit_create(self, new: Object, user: User) -> None:
        """Refuse another's Node, and labels that a kubelet may not set."""
        self._admit(new, None, user)

    def admit_update(self, new: Object, old: Object, subresource: str, user: User) -> None:
        """Refuse the same of a change."""
        self._admit(new, old, user)


class Namespaces(Rules):
    """A namespace goes with everything in it."""

    def prepare_create(self, new: Object, user: User) -> None:
        """It is active, and carries its name."""
        new["status"] = {"phase": "Active"}
        new["metadata"].setdefault("labels", {})["kubernetes.io/metadata.name"] = new["metadata"].get(
            "name", ""
        )

    def deleted(self, last: Object) -> None:
        """Delete what is in it."""
        name = last["metadata"]["name"]

        def empty() -> None:
            for key, each in list(self.host.store.everything()):
                if each["metadata"].get("namespace") == name:
                    self.host.delete(self.host.resources[key], each)

        self.host.later(empty)


_NOTE_BYTES: Final = 1024
_WORD_CHARACTERS: Final = 128


class Events(Rules):
    """Events of events.k8s.io (k8s.io/kubernetes, pkg/apis/core/validation/events.go)."""

    def validate(self, new: Object, old: Object | None) -> list[FieldError]:
        """Return what is missing or too long, and whether it stands where its object does."""
        errors = []
        for name in ("eventTime", "reportingController", "reportingInstance", "action", "reason"):
            value = new.get(name)
            if not value:
                errors.append(required(name))
            elif len(str(value)) > _WORD_CHARACTERS:
                errors.append(invalid(name, f'"{value}"', f"can have at most {_WORD_CHARACTERS} characters"))
        if new.get("type") not in ("Normal", "Warning"):
            errors.append(unsupported("type", str(new.get("type") or ""), ("Normal", "Warning")))
        if len(str(new.get("note") or "").encode()) > _NOTE_BYTES:
            errors.append(invalid("note", '""', f"can have at most {_NOTE_BYTES} characters"))
        where = str((new.get("regarding") or {}).get("namespace") or "")
        if not where and new["metadata"].get("namespace") not in ("default", "kube-system"):
            errors.append(invalid("involvedObject.namespace", f'"{where}"', "does not match event.namespace"))
        return errors


RULES: Final[Mapping[tuple[str, str], Callable[[Host], Rules]]] = {
    certificates.KEY: SigningRequests,
    ("", "nodes"): Nodes,
    ("", "namespaces"): Namespaces,
    ("events.k8s.io", "events"): Events,
}
