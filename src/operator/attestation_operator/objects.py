"""Kinds of objects, and names of one of them. What an API server shows of an object is a dictionary here: `Raw`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

Raw = Mapping[str, Any]
"""An object as the API server shows it: JSON, read."""

GROUP: Final = "attestation.itl.io"
MANAGER: Final = "attestation-operator"
"""Who we are in `metadata.managedFields` and as the source of events."""
MAX_MESSAGE_BYTES: Final = 1024
"""Longest `note` of an Event (events.k8s.io/v1); conditions have no longer messages here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of cluster-scoped objects.

    `group` is empty for the core of Kubernetes.
    """

    group: str
    version: str
    kind: str
    plural: str

    @property
    def api_version(self) -> str:
        """What objects of this kind have as `apiVersion`."""
        return f"{self.group}/{self.version}" if self.group else self.version


CSR: Final = Kind(
    group="certificates.k8s.io",
    version="v1",
    kind="CertificateSigningRequest",
    plural="certificatesigningrequests",
)
NODE: Final = Kind(group="", version="v1", kind="Node", plural="nodes")
NODE_ATTESTATION: Final = Kind(
    group=GROUP, version="v1alpha1", kind="NodeAttestation", plural="nodeattestations"
)
CLUSTER_ROLE_BINDING: Final = Kind(
    group="rbac.authorization.k8s.io", version="v1", kind="ClusterRoleBinding", plural="clusterrolebindings"
)


PAGE_OBJECTS: Final = 100
PAGE_REQUESTS: Final = 5
"""Of certificate requests, each of which a stranger may make as large as an API server takes: a megabyte and more."""


def page_objects(kind: Kind) -> int:
    """Return how many objects of a kind are asked for at once: all of a page are in memory together."""
    return PAGE_REQUESTS if kind == CSR else PAGE_OBJECTS


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """Name of an object, whatever is there under it."""

    kind: Kind
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One object at one moment: what was judged, and nothing that came after it."""

    kind: Kind
    name: str
    uid: str
    resource_version: str

    @classmethod
    def of(cls, kind: Kind, raw: Raw) -> Self:
        """Return what *raw* is."""
        metadata = raw["metadata"]
        return cls(
            kind=kind,
            name=metadata["name"],
            uid=metadata["uid"],
            resource_version=metadata["resourceVersion"],
        )


def clipped(text: str, size_bytes: int = MAX_MESSAGE_BYTES) -> str:
    """Return *text* as the message of a condition or an Event: 1 to *size_bytes* bytes of UTF-8."""
    raw = text.encode("utf-8", "replace")[:size_bytes]
    return raw.decode("utf-8", "ignore").strip() or "no message"
