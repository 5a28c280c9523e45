"""Judging certification requests of Kubernetes nodes (HSM-AND-KUBERNETES §§17-22): evidence and record -> decision."""

from attestation.appraisal.node_csr.appraise import appraise, malformed, missing, stale
from attestation.appraisal.node_csr.case import (
    BOOTSTRAPPERS,
    Answer,
    Case,
    Requested,
    Rules,
    SeenNode,
    ServingCase,
)
from attestation.appraisal.node_csr.result import (
    MAX_MESSAGE_BYTES,
    Decision,
    KeyTier,
    NodeCSRResult,
    Reason,
)
from attestation.appraisal.node_csr.serving import appraise_serving
from attestation.appraisal.node_csr.subject import node_name

__all__ = [
    "BOOTSTRAPPERS",
    "MAX_MESSAGE_BYTES",
    "Answer",
    "Case",
    "Decision",
    "KeyTier",
    "NodeCSRResult",
    "Reason",
    "Requested",
    "Rules",
    "SeenNode",
    "ServingCase",
    "appraise",
    "appraise_serving",
    "malformed",
    "missing",
    "node_name",
    "stale",
]
