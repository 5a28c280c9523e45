"""What Talos refuses of documents side by side, which no schema says: it, and what it took the place of in v1alpha1.

From `V1Alpha1ConflictValidate` of Talos 1.12 to 1.14, for the documents that are written here (ADR 213).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

_CONFLICTS: Final = (
    ("HostnameConfig", ("machine", "network", "hostname")),
    ("HostnameConfig", ("machine", "features", "stableHostname")),
    ("KubeNodeConfig", ("cluster", "allowSchedulingOnControlPlanes")),
    ("KubeNodeConfig", ("cluster", "allowSchedulingOnMasters")),
    ("KubeNodeConfig", ("machine", "kubelet", "skipNodeRegistration")),
    ("KubeNodeConfig", ("machine", "kubelet", "registerWithFQDN")),
    ("KubeNodeConfig", ("machine", "kubelet", "nodeIP")),
    ("KubeNodeConfig", ("machine", "nodeLabels")),
    ("KubeNodeConfig", ("machine", "nodeAnnotations")),
    ("KubeNodeConfig", ("machine", "nodeTaints")),
    ("UnattendedInstallConfig", ("machine", "install")),
)
_COUNTS_WHEN_TRUE: Final = frozenset({"hostname", "stableHostname"})
"""Members that say nothing where they are empty or false; others conflict by being there."""


def conflicts(v1alpha1: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the kind of each document that cannot stand beside *v1alpha1*, and the path that it conflicts with."""
    for kind, path in _CONFLICTS:
        value: Any = v1alpha1
        for key in path:
            value = value.get(key) if isinstance(value, Mapping) else None
        if value is not None and (value or path[-1] not in _COUNTS_WHEN_TRUE):
            yield kind, ".".join(path)
