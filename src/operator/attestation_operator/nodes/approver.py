"""Which certificate requests of nodes are approved (HSM-AND-KUBERNETES §22).

The service judges; here is decided only whether it is asked, and what follows from its answer. Where it gave none,
nothing follows: the request stays open, and is looked at again.

    certificate, Approved, Denied, Failed there     nothing: others decided
    another signer                                  nothing
    no evidence, and such requests are left alone   an Event
    the service has not answered yet                `Ask`
    it does not know the request as one of ours     as without evidence
    bad                                             Denied, with its reason
    good                                            Approved `TpmAttested`
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from pydantic import ValidationError

from attestation.api.node_csr import KUBELET_SERVING, KubernetesCSR, NodeCSRDecision, NodeCSRRequest, SeenNode
from attestation.errors import RequestInvalid
from attestation_operator.actions import Action, Approve, Delete, Deny, EmitEvent
from attestation_operator.nodes.objects import (
    Node,
    SigningRequest,
)
from attestation_operator.nodes.policy import NodePolicy, OnMissingEvidence
from attestation_operator.objects import clipped

TPM_ATTESTED: Final = "TpmAttested"
EVIDENCE_MISSING: Final = "EvidenceMissing"


class Outcome(StrEnum):
    """What became of a request at this look; one value of the metric's label each."""

    NOT_OURS = "not-ours"
    SKIPPED = "skipped"
    ASKED = "asked"
    LEFT = "left"
    MIXED_UP = "mixed-up"
    DENIED = "denied"
    APPROVED = "approved"


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """What was found at one look: what is to be done, and whether the service must be asked first."""

    outcome: Outcome
    actions: tuple[Action, ...] = ()
    reason: str = ""

    @property
    def ask(self) -> bool:
        """Whether nothing follows before the service has answered."""
        return self.outcome is Outcome.ASKED


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """All that a decision rests on.

    Args:
        csr: The request, as it is.
        has_evidence: There is something behind the PKCS#10.
        node_name: The name that the request asks for, None where it asks for none that a Node can have.
        node: The Node of that name, None where there is none.
        answer: What the service said, None before it was asked.
    """

    csr: SigningRequest
    has_evidence: bool
    node_name: str | None
    node: Node | None
    answer: NodeCSRDecision | None = None


def reconcile(case: Case, policy: NodePolicy) -> Looked:
    """Return what is to be done about a request now."""
    csr, answer = case.csr, case.answer
    # 1. and 2. Not ours, or not any more.
    passed_over = glance(csr, policy)
    if passed_over is not None:
        return passed_over
    on_missing = policy.signers[csr.signer_name]
    # 3. A kubelet that joins without us: another approver's, where the administrator said so. The certificate for
    #    serving follows the attested one and carries no evidence (§21), so only the service can tell.
    if (
        not case.has_evidence
        and on_missing is OnMissingEvidence.IGNORE
        and csr.signer_name != KUBELET_SERVING
    ):
        return _leave(case)
    # 4. Nothing is decided here alone, not even a refusal: there is one judge, who writes it down.
    if answer is None:
        return Looked(outcome=Outcome.ASKED)
    # 5. Not for the service to judge: the cluster's rule.
    if answer.decision == "not-recognised":
        if on_missing is OnMissingEvidence.IGNORE:
            return _leave(case)
        return _deny(case, EVIDENCE_MISSING, answer.message)
    # 6. Judged bad: at once, so that the node learns it and need not wait.
    if answer.decision == "deny":
        return _deny(case, answer.reason, answer.message)
    # 7. Good, for the node that the request names, by the proof of a TPM. An answer to another question approves
    #    nothing, whoever mixed them up.
    if (
        answer.node_name is None
        or answer.node_name != case.node_name
        or answer.machine_id is None
        or answer.reason != TPM_ATTESTED
    ):
        return Looked(outcome=Outcome.MIXED_UP)
    return _approve(case, policy, answer)


def glance(csr: SigningRequest, policy: NodePolicy) -> Looked | None:
    """Return why a request is passed over without looking into it, None where it must be looked into."""
    # 1. What somebody decided stays: conditions cannot be taken back, and two of them would be refused.
    if not csr.is_open:
        return Looked(outcome=Outcome.SKIPPED)
    # 2. Other signers are other people's: we would need a right for each, and have none.
    if csr.signer_name not in policy.signers:
        return Looked(outcome=Outcome.NOT_OURS)
    return None


def question(case: Case, policy: NodePolicy) -> NodeCSRRequest:
    """Return what the service is asked: the request, what the API server stamped on it, and the Node of its name.

    A Node of another machine is not mentioned where it may be deleted: then the name is judged by whose it is by now,
    and the Node goes before the approval, only if that is good.
    """
    node = case.node
    return asked(case.csr, None if node is not None and _may_go(node, policy) else node)


def asked(csr: SigningRequest, node: Node | None) -> NodeCSRRequest:
    """Return a request and the Node of its name as the service reads them.

    Raises:
        RequestInvalid: The service would not read it, for its size: nobody decides it.
    """
    try:
        return NodeCSRRequest(
            csr=KubernetesCSR(
                name=csr.target.name,
                uid=csr.target.uid,
                signer_name=csr.signer_name,
                username=csr.username,
                groups=list(csr.groups),
                usages=list(csr.usages),
                expiration_seconds=csr.expiration_seconds,
                created_at=csr.created_at,
                request=csr.request,
            ),
            node=None
            if node is None
            else SeenNode(name=node.name, uid=node.target.uid, machine_id=node.owner),
        )
    except ValidationError as e:
        fields = ", ".join(
            ".".join(str(part) for part in error["loc"]) for error in e.errors(include_input=False)
        )
        raise RequestInvalid(f"the service does not read such a request: {clipped(fields, 200)}") from None


def _may_go(node: Node, policy: NodePolicy) -> bool:
    # A Node that nobody claimed may be anybody's: never deleted.
    return policy.delete_stale_nodes and node.owner is not None


def _approve(case: Case, policy: NodePolicy, answer: NodeCSRDecision) -> Looked:
    # 8. First the Node that another machine left behind, only this one (UID): its pods and their secrets would be the
    #    new machine's. After a crash in between the request is still open, and the Node is gone.
    actions: list[Action] = []
    node = case.node
    if node is not None and _may_go(node, policy) and node.owner != answer.machine_id:
        actions += [
            Delete(target=node.target),
            EmitEvent(
                target=node.target,
                action="Delete",
                reason="StaleNode",
                note=f"Node of machine {node.owner}; its name is that of {answer.machine_id} by now",
            ),
        ]
    message = clipped(answer.message)
    actions += [
        Approve(
            target=case.csr.target,
            reason=TPM_ATTESTED,
            message=message,
            conditions=case.csr.conditions,
        ),
        EmitEvent(target=case.csr.target, action="Approve", reason=TPM_ATTESTED, note=message),
    ]
    return Looked(outcome=Outcome.APPROVED, actions=tuple(actions), reason=TPM_ATTESTED)


def _deny(case: Case, reason: str, message: str) -> Looked:
    message = clipped(message)
    return Looked(
        outcome=Outcome.DENIED,
        reason=reason,
        actions=(
            Deny(target=case.csr.target, reason=reason, message=message, conditions=case.csr.conditions),
            EmitEvent(target=case.csr.target, action="Deny", reason=reason, note=message, type="Warning"),
        ),
    )


def _leave(case: Case) -> Looked:
    return Looked(
        outcome=Outcome.LEFT,
        reason=EVIDENCE_MISSING,
        actions=(
            EmitEvent(
                target=case.csr.target,
                action="Leave",
                reason=EVIDENCE_MISSING,
                note="no evidence of a TPM in the request: it is left to other approvers",
            ),
        ),
    )
