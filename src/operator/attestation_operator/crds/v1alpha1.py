"""`attestation.itl.io/v1alpha1`: our kinds, as models, of which the YAML in deploy/helm is made.

An API server checks what the schema says, its rules in CEL from 1.25 on; a controller reads `spec` through the same
model, so an older server lets nothing more through.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, model_validator

from attestation.api.node_csr import KUBELET_CLIENT, NODE_CLIENT
from attestation_operator.crds.parts import Condition, Part, listed, ruled

SignerName = Annotated[str, Field(min_length=3, max_length=571, pattern=r"^[a-z0-9.-]+/[A-Za-z0-9._/-]+$")]
Group = Annotated[str, Field(min_length=1, max_length=253)]


class SignerRule(Part):
    """Which requests are decided, and what becomes of those without evidence of a TPM."""

    name: SignerName = Field(description="The signerName of the requests")
    on_missing_evidence: Literal["deny", "ignore"] = Field(
        default="deny",
        description="deny: denied at once. ignore: left to another approver; an Event says so",
    )


class TrustLapse(Part):
    """What becomes of a Node whose machine is not trusted any more: locked, revoked, or not attested in time.

    Its label goes in any case.
    """

    taint: bool = Field(
        default=False,
        description="Taint it: NoSchedule where the trust lapsed, NoExecute where the machine is locked, revoked "
        "or has another name; the taint goes when the trust is back",
    )
    cordon: bool = Field(
        default=False,
        description="Cordon it; the kubelet itself can undo that, a taint it cannot. What somebody else cordoned "
        "is not uncordoned when the trust is back",
    )


class NodeAttestationSpec(Part):
    """How the controllers of nodes behave in this cluster."""

    signers: Annotated[tuple[SignerRule, ...], Field(min_length=1, max_length=16)] = Field(
        default=(
            SignerRule(name=KUBELET_CLIENT, on_missing_evidence="ignore"),
            SignerRule(name=NODE_CLIENT, on_missing_evidence="deny"),
        ),
        description="The requests that are decided; all others are left alone",
        json_schema_extra=listed("name"),
    )
    in_tree_approver: Literal["strict", "warn"] = Field(
        default="strict",
        description="strict: the approver is not ready while something else would approve a node's request without "
        "evidence. warn: it only says so",
    )
    bootstrap_groups: Annotated[tuple[Group, ...], Field(max_length=16)] = Field(
        default=(),
        description="Groups of bootstrap tokens, beside the usual ones, that are looked at for that",
        json_schema_extra=listed(),
    )
    delete_stale_nodes: bool = Field(
        default=False,
        description="Delete the Node of another machine where the name belongs to the one that asks by now; the "
        "approver needs the right to do so",
    )
    node_lifetime_seconds: Annotated[int, Field(ge=600, le=86_400)] = Field(
        default=86_400,
        description="Longest lifetime of a certificate of our signer; one that lives longer is not put into a request",
    )
    on_trust_lapse: TrustLapse = Field(
        default=TrustLapse(), description="What becomes of a Node whose machine is not trusted any more"
    )

    @model_validator(mode="after")
    def _once(self) -> NodeAttestationSpec:
        names = [each.name for each in self.signers]
        if len(names) != len(set(names)):
            raise ValueError("signers: a name stands there twice")
        if len(self.bootstrap_groups) != len(set(self.bootstrap_groups)):
            raise ValueError("bootstrapGroups: a group stands there twice")
        return self


class NodeAttestationStatus(Part):
    """What the approver says, by server-side apply."""

    conditions: tuple[Condition, ...] = Field(
        default=(),
        description="InTreeApproverActive: something would approve without evidence; Ready: nothing does, or it may",
        json_schema_extra=listed("type"),
    )
    kopf: dict[str, Any] = Field(
        default_factory=dict,
        description="What the framework of the controllers keeps, were it to keep anything",
        json_schema_extra={"x-kubernetes-preserve-unknown-fields": True},
    )


class NodeAttestation(Part):
    """How certificate requests of nodes are decided in this cluster.

    There is one, of the name `cluster`; without it the defaults hold.
    """

    model_config = ConfigDict(
        json_schema_extra=ruled(("self.metadata.name == 'cluster'", "the one that counts is named cluster"))
    )

    spec: NodeAttestationSpec = Field(default=NodeAttestationSpec())
    status: NodeAttestationStatus | None = None
