"""Certification requests of Kubernetes nodes that carry what a TPM says of their key (HSM-AND-KUBERNETES §18).

Parsed here, judged in `attestation.appraisal.node_csr`: what such a container proves is proven by other kinds of
evidence, a key certification and a quote, for one request and one challenge.
"""

from attestation.evidence.node_csr.bucket import BUCKET_SECONDS, bucket_nonce
from attestation.evidence.node_csr.container import (
    MAX_CONTAINER_BYTES,
    MAX_EVENT_LOG_BYTES,
    MEDIA_TYPE,
    Layout,
    UnverifiedContainer,
    VMIdentity,
    build,
    check_point,
    is_container,
    parse,
    parse_certify,
)
from attestation.evidence.node_csr.gke import rebuilt_publics

__all__ = [
    "BUCKET_SECONDS",
    "MAX_CONTAINER_BYTES",
    "MAX_EVENT_LOG_BYTES",
    "MEDIA_TYPE",
    "Layout",
    "UnverifiedContainer",
    "VMIdentity",
    "bucket_nonce",
    "build",
    "check_point",
    "is_container",
    "parse",
    "parse_certify",
    "rebuilt_publics",
]
