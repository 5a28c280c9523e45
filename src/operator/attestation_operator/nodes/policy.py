"""What the administrator of a cluster wants of these controllers: `spec` of NodeAttestation/cluster, read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import Final

from pydantic import ValidationError

from attestation.api.node_csr import KUBELET_CLIENT, NODE_CLIENT
from attestation.errors import Unavailable
from attestation_operator.crds.v1alpha1 import NodeAttestationSpec
from attestation_operator.objects import NODE_ATTESTATION, Key, Raw


class OnMissingEvidence(StrEnum):
    """What becomes of a request without evidence of a TPM."""

    DENY = "deny"
    IGNORE = "ignore"


DEFAULT_SIGNERS: Final[Mapping[str, OnMissingEvidence]] = {
    KUBELET_CLIENT: OnMissingEvidence.IGNORE,
    NODE_CLIENT: OnMissingEvidence.DENY,
}
"""Nobody else decides what our signer signs. A kubelet's request may be meant for another approver."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePolicy:
    """What is decided, and how strictly; the defaults are those of an absent NodeAttestation.

    Args:
        signers: The signerNames that are decided, each with what becomes of requests without evidence.
        strict: Not ready while something would approve without evidence.
        bootstrap_groups: Groups, beside the usual ones, that are asked for whether they could have theirs approved.
        delete_stale_nodes: A Node of another machine goes where the name is by now that of the one that asks.
        longest: Lifetime of a certificate of our signer.
        taint: A Node of a machine that is not trusted is tainted.
        cordon: It is cordoned.
    """

    signers: Mapping[str, OnMissingEvidence] = field(default_factory=lambda: DEFAULT_SIGNERS)
    strict: bool = True
    bootstrap_groups: tuple[str, ...] = ()
    delete_stale_nodes: bool = False
    longest: timedelta = timedelta(hours=24)
    taint: bool = False
    cordon: bool = False


CLUSTER: Final = Key(kind=NODE_ATTESTATION, name="cluster")
"""The one NodeAttestation that counts."""


class PolicyUnreadable(Unavailable):
    """NodeAttestation/cluster says something that this program does not know: nothing is decided until it is mended."""

    code = "node-attestation-unreadable"


def read_policy(raw: Raw | None) -> NodePolicy:
    """Return what NodeAttestation/cluster says; None stands for there being none.

    Raises:
        PolicyUnreadable: It says something else than its kind allows: an API server of before 1.25 checks less.
    """
    if raw is None:
        return NodePolicy()
    try:
        spec = NodeAttestationSpec.model_validate(raw.get("spec") or {})
    except ValidationError as e:
        places = ", ".join(sorted({".".join(map(str, error["loc"])) for error in e.errors()}))
        raise PolicyUnreadable(f"NodeAttestation/cluster: not allowed: {places}") from None
    return NodePolicy(
        signers={each.name: OnMissingEvidence(each.on_missing_evidence) for each in spec.signers},
        strict=spec.in_tree_approver == "strict",
        bootstrap_groups=spec.bootstrap_groups,
        delete_stale_nodes=spec.delete_stale_nodes,
        longest=timedelta(seconds=spec.node_lifetime_seconds),
        taint=spec.on_trust_lapse.taint,
        cordon=spec.on_trust_lapse.cordon,
    )
