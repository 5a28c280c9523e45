"""A Kubernetes API server in this process, for tests of controllers and of what joins a cluster.

Needs the extra `kubernetes`. What it does, and what only the real one does: docs/extend/kubernetes-api.md.
"""

from attestation_testing.kubernetes.access import ANONYMOUS, User
from attestation_testing.kubernetes.authority import Pair
from attestation_testing.kubernetes.cluster import Cluster
from attestation_testing.kubernetes.faults import Fault, Faults
from attestation_testing.kubernetes.requests import Answer, Request, Watching
from attestation_testing.kubernetes.server import KubernetesAPI
from attestation_testing.kubernetes.status import StatusError

__all__ = [
    "ANONYMOUS",
    "Answer",
    "Cluster",
    "Fault",
    "Faults",
    "KubernetesAPI",
    "Pair",
    "Request",
    "StatusError",
    "User",
    "Watching",
]
