"""Agreeing to what somebody else proposed: the act that a proposal stands for, asked for again, by its digest.

What is sent is made of the proposal as it was shown. The service makes the proposal anew from that and from what is
the case, and refuses what has another digest. What was shown beside that, a fingerprint that somebody compared, is
held against the digest here; so nothing needs to be believed (docs/adr/0069).
"""

# Algorithms for: digest
from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from attestation import api
from attestation.errors import ProposalDiffers, RequestInvalid
from attestation.machines import Role, Transition
from attestation.machines import dual_control as kinds
from attestation.wire import b64encode, canonical_json, pem, pem_blocks

if TYPE_CHECKING:
    from pydantic import BaseModel

    from attestation.client.operator import OperatorClient


Vote = Callable[["OperatorClient", api.ProposalDetail], "BaseModel | None"]
"""Asks for the act that a proposal stands for; the client's votes are for that proposal alone."""


def agree(
    client: OperatorClient,
    proposal: api.ProposalDetail,
    reason: str | None,
    beside: Mapping[str, Vote] = MappingProxyType({}),
) -> BaseModel | None:
    """Vote for *proposal*, with whatever the act needs that the proposal stands for.

    Args:
        client: Who votes.
        proposal: As `OperatorClient.proposal` returned it, with its document.
        reason: Why; where an act needs a reason and none is given, that this was agreed to.
        beside: Acts of extensions that the caller knows, by their kind.

    Returns:
        What the act answers; `PendingApproval` while others must agree. None where it answers nothing.

    Raises:
        ProposalDiffers: Its members are not those of its digest: somebody changed what was shown.
        RequestInvalid: A proposal of a kind that this version does not know.
    """
    if hashlib.sha256(canonical_json(proposal.proposal)).hexdigest() != proposal.proposal_digest:
        raise ProposalDiffers("what was shown is not what this digest stands for: nothing was agreed to")
    voter = client.agreeing_to(proposal.proposal_digest)
    if proposal.action in beside:
        return beside[proposal.action](voter, proposal)
    ask = _ACTS.get(proposal.action)
    if ask is None:
        raise RequestInvalid(f"this version does not know acts of the kind {proposal.action!r}")
    return ask(_Asked(voter, proposal, reason))


def is_known(action: str) -> bool:
    """Say whether this version knows how to agree to acts of a kind, extensions' left out."""
    return action in _ACTS


@dataclass(frozen=True, slots=True)
class _Asked:
    """What an act is asked with: by whom, which proposal, and why."""

    client: OperatorClient
    proposal: api.ProposalDetail
    said: str | None

    @property
    def terms(self) -> Mapping[str, Any]:
        """What the act says beside what a machine gets."""
        found: Mapping[str, Any] = self.proposal.proposal["terms"]
        return found

    @property
    def machine(self) -> str:
        """Which machine it is about; empty where none."""
        return self.proposal.machine_id or ""

    @property
    def reason(self) -> str:
        """Why, for acts that need a reason."""
        return self.said or f"agreed to proposal {self.proposal.proposal_digest}"

    @property
    def names(self) -> dict[str, Any]:
        """What a machine or token gets."""
        return {
            name: self.proposal.proposal[name] for name in ("role", "hostname", "assigned_ip", "cluster_id")
        }

    @property
    def accepts_ek(self) -> bool:
        """True where the EK is admitted by name."""
        return "accepts_ek" in self.terms

    @property
    def sent(self) -> str:
        """What the digest in the terms stands for.

        Raises:
            RequestInvalid: It was not kept: the vote is of an older version.
        """
        if self.proposal.document is None:
            raise RequestInvalid(
                "the service did not keep what this proposal binds: ask for the same by its command"
            )
        return self.proposal.document


def _approve(asked: _Asked) -> BaseModel:
    request = {**asked.names, "accept_ek": asked.accepts_ek, "reason": asked.said}
    return asked.client.approve(asked.machine, api.ApproveRequest.model_validate(request))


def _replace(asked: _Asked) -> BaseModel:
    request = {"new": asked.machine, "accept_ek": asked.accepts_ek, "reason": asked.reason}
    return asked.client.replace(asked.terms["replaces"], api.ReplaceRequest.model_validate(request))


def _role(asked: _Asked) -> BaseModel:
    request = {**asked.names, "reason": asked.reason}
    return asked.client.change_role(asked.machine, api.RoleChangeRequest.model_validate(request))


def _token(asked: _Asked) -> BaseModel:
    request = {**asked.names, **asked.terms}
    return asked.client.create_registration_token(api.RegistrationTokenRequest.model_validate(request))


def _import(asked: _Asked) -> BaseModel:
    return asked.client.import_allow_list(
        api.AllowListImport.model_validate({"entries": json.loads(asked.sent)})
    )


def _certificate(asked: _Asked) -> BaseModel:
    terms = asked.terms
    if asked.proposal.document is None:  # it was in the bundle before, and is to be believed again
        return asked.client.restore_certificate(terms["sha256"], asked.reason)
    return asked.client.trust_certificate(
        asked.proposal.document, role=terms["role"], vendor=terms["vendor"], reason=asked.reason
    )


def _step(asked: _Asked) -> BaseModel:
    names = ("step", "purpose", "algorithm", "force")
    request = {name: asked.terms[name] for name in names} | {"reason": asked.reason}
    request["force"] = bool(request["force"])
    return asked.client.rotate_ca(api.RotationRequest.model_validate(request))


def _revocation(asked: _Asked) -> BaseModel:
    request = {"reason": asked.terms["reason"], "note": asked.said}
    return asked.client.revoke_certificate(
        asked.terms["serial"], api.CertificateRevokeRequest.model_validate(request)
    )


def _chain(asked: _Asked) -> BaseModel:
    request = {"chain_pem": asked.sent, "reason": asked.reason, "force": bool(asked.terms["force"])}
    return asked.client.import_ca_certificate(
        asked.terms["issuer"], api.CAChainImport.model_validate(request)
    )


def _key(asked: _Asked) -> BaseModel:
    (_, wrapped), *chain = pem_blocks(asked.sent.encode(), "what the proposal binds")
    request = {name: asked.terms[name] for name in ("purpose", "oaep_hash")}
    request |= {
        "wrapped_key": b64encode(wrapped),
        "chain_pem": "".join(pem(label, der) for label, der in chain),
        "reason": asked.reason,
    }
    return asked.client.import_ca_key(api.CAKeyImport.model_validate(request))


def _person(asked: _Asked) -> BaseModel:
    request = {name: asked.terms[name] for name in ("name", "duty", "days")}
    request |= {"csr_pem": asked.sent, "reason": asked.said}
    return asked.client.request_operator_certificate(api.OperatorCertificateRequest.model_validate(request))


def _approval_rule(asked: _Asked) -> BaseModel:
    terms = asked.terms
    if terms["step"] == "enable":
        return asked.client.enable_approval_rule(terms["name"])
    names = ("name", "expression", "minimum_assurance", "max_count", "priority")
    request = {name: terms[name] for name in names} | {"hostname": terms["pattern"]}
    request |= {name: asked.names[name] for name in ("role", "cluster_id")}
    return asked.client.create_approval_rule(api.ApprovalRuleCreate.model_validate(request))


def _cluster(asked: _Asked) -> BaseModel:
    terms = asked.terms
    request = {name: terms[name] for name in ("description", "talos_version")}
    if terms["replaces"] is not None:
        return asked.client.change_cluster(terms["cluster"], api.ClusterChange.model_validate(request))
    request["cluster_id"] = terms["cluster"]
    return asked.client.create_cluster(api.ClusterCreate.model_validate(request))


def _configuration(asked: _Asked) -> BaseModel:
    version = asked.terms["version"]
    if asked.machine:
        return asked.client.activate_patch(asked.machine, version, asked.said)
    found = asked.proposal.proposal
    return asked.client.activate_configuration(
        found["cluster_id"], Role(found["current_role"]), version, asked.said
    )


_ACTS: Final[Mapping[str, Callable[[_Asked], BaseModel | None]]] = {
    Transition.APPROVE: _approve,
    Transition.UNLOCK: lambda asked: asked.client.unlock(asked.machine, asked.said),
    Transition.ROLE_CHANGE: _role,
    Transition.AK_RESET: lambda asked: asked.client.ak_reset(asked.machine, asked.reason),
    Transition.APPROVE_HARDWARE: lambda asked: asked.client.approve_hardware(asked.machine, asked.reason),
    Transition.REDELIVER: lambda asked: asked.client.redeliver(asked.machine),
    kinds.REPLACE: _replace,
    kinds.OFFLINE_BUNDLE: lambda asked: asked.client.offline_bundle(asked.machine),
    kinds.REGISTRATION_TOKEN: _token,
    kinds.ALLOW_LIST_IMPORT: _import,
    kinds.POLICY_ASSIGN: lambda asked: asked.client.assign_policy(
        asked.terms["scope"], asked.terms["subject"], asked.terms["policy"]
    ),
    kinds.POLICY_UNASSIGN: lambda asked: asked.client.unassign_policy(
        asked.terms["scope"], asked.terms["subject"]
    ),
    kinds.TRUST_CERTIFICATE: _certificate,
    kinds.CA_ROTATION: _step,
    kinds.CA_REVOCATION: _revocation,
    kinds.CA_CHAIN: _chain,
    kinds.CA_IMPORT: _key,
    kinds.OPERATOR_CERTIFICATE: _person,
    kinds.CLUSTER_VERSION: _cluster,
    kinds.APPROVAL_RULE: _approval_rule,
    kinds.CONFIGURATION_ACTIVATE: _configuration,
}
"""How each kind of proposal is asked for; a test compares the names with those that the service gates."""
