"""What a request is judged by, loaded in one read, and the judgement, which is pure and runs beside the loop."""

# Algorithms for: digest
from __future__ import annotations

import asyncio
import binascii
import hashlib
import json
import secrets
from base64 import b64decode
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from ipaddress import ip_interface
from typing import Final

from attestation.api import NodeCSRRequest
from attestation.api.node_csr import KUBELET_SERVING
from attestation.appraisal.node_csr import (
    Answer,
    Case,
    Decision,
    NodeCSRResult,
    Requested,
    Rules,
    SeenNode,
    ServingCase,
    appraise,
    appraise_serving,
    malformed,
    node_name,
)
from attestation.errors import AttestationError, MalformedEvidence
from attestation.evidence.key_certification import KeyMode
from attestation.evidence.node_csr import (
    MAX_CONTAINER_BYTES,
    Layout,
    UnverifiedContainer,
    is_container,
    parse,
)
from attestation.machines import Machine
from attestation.machines.names import names_of
from attestation.pki.request import read_request
from attestation.pki.requested import requested_names
from attestation.store import NodeChallenge, StoredAKCertificate, Tx
from attestation.tpm import PCRSelection
from attestation_service.keys import crypto_policy
from attestation_service.kubernetes_clusters import ClusterRule
from attestation_service.resources import Resources
from attestation_service.verifier import challenges, measurements, nodes, policy
from attestation_service.verifier.cluster_identity import Identified
from attestation_service.verifier.firmware import vendor_of

RESULT_ID_BYTES: Final = 16
MAX_REQUEST_CHARACTERS: Final = 4 * -(-MAX_CONTAINER_BYTES // 3)
"""The longest container in base64."""
NO_PCRS: Final = PCRSelection(())


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A request after its judgement.

    Args:
        result: What was found.
        machine: By whose record it was judged, as that was read; None where there is none.
        challenge_id: The challenge that it answers and that is spent with it, or None.
        policy_sha256: Of the policy that it was judged by, or None.
    """

    result: NodeCSRResult
    machine: Machine | None = None
    challenge_id: str | None = None
    policy_sha256: str | None = None


def content_of(request: NodeCSRRequest) -> str:
    """Return SHA-256 over everything that a request says, hex. What its approver saw beside it is no part of it."""
    said = request.csr.model_dump(mode="json", exclude={"request"})
    said["request_sha256"] = hashlib.sha256(request.csr.request.encode()).hexdigest()
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


def new_result_id() -> str:
    """Return the name of a new judgement."""
    return secrets.token_bytes(RESULT_ID_BYTES).hex()


def evidence_in(request: NodeCSRRequest) -> bytes:
    """Return `spec.request`.

    Raises:
        MalformedEvidence: Not base64, or more than any request with evidence has.
    """
    if len(request.csr.request) > MAX_REQUEST_CHARACTERS:
        raise MalformedEvidence(f"spec.request: more than {MAX_CONTAINER_BYTES} bytes")
    try:
        return b64decode(request.csr.request, validate=True)
    except (binascii.Error, ValueError):
        raise MalformedEvidence("spec.request is not base64") from None


async def judge(request: NodeCSRRequest, rule: ClusterRule, res: Resources, at: datetime) -> Judged | None:
    """Judge a request by what is known now; None where it carries no evidence that anybody could judge.

    Raises:
        Unavailable: It could not be decided now.
    """
    result_id = new_result_id()
    serving = request.csr.signer_name == KUBELET_SERVING
    try:
        data = evidence_in(request)
        if not serving and not is_container(data):
            return None
        if serving:
            return await _judge_serving(request, data, rule, result_id, res, at)
        # A stranger's megabyte: beside the loop, and not read again before it is known to be well-formed.
        container = await asyncio.to_thread(parse, data)
    except MalformedEvidence as error:
        return Judged(result=malformed(result_id, error, at))
    case, challenge_id, kept = await res.store.read(
        lambda tx: _load(tx, request, container, rule, result_id, res, at)
    )
    result = await _appraised(container, case, kept, rule, res, at)
    return Judged(
        result=result,
        machine=case.machine,
        challenge_id=challenge_id,
        policy_sha256=case.policy.sha256 if case.policy is not None else None,
    )


async def _appraised(
    container: UnverifiedContainer,
    case: Case,
    kept: StoredAKCertificate | None,
    rule: ClusterRule,
    res: Resources,
    at: datetime,
) -> NodeCSRResult:
    """Judge a request, and who sent it; ask whether that is a member only where all else is good.

    Who knows that may be far away, and no stranger has it asked.
    """
    goes_by = res.cluster_identities
    assert goes_by is not None

    def judged() -> tuple[NodeCSRResult, Case, Identified]:
        who = goes_by.identify(container, case.machine, kept, rule, at)
        known = replace(case, identity=who.answer, certified_ak=who.certified_ak)
        return appraise(container, known, at), known, who

    result, known, who = await asyncio.to_thread(judged)
    if result.decision is not Decision.APPROVE or who.identity is None or case.machine is None:
        return result
    answer = await goes_by.is_member(who.identity, case.machine.hostname, rule)
    if answer is Answer.YES:
        return result
    return await asyncio.to_thread(appraise, container, replace(known, membership=answer), at)


def _load(
    tx: Tx,
    request: NodeCSRRequest,
    container: UnverifiedContainer,
    rule: ClusterRule,
    result_id: str,
    res: Resources,
    at: datetime,
) -> tuple[Case, str | None, StoredAKCertificate | None]:
    machine = (
        tx.machines.by_id(container.machine_id)
        if container.machine_id is not None
        else nodes.named(tx, _asked_for(container.csr_der), rule.cluster_id)
    )
    asked = _challenge(tx, container, machine, at)
    in_force = log = None
    if machine is not None:
        in_force = policy.in_force(tx, machine, res.settings)
        log = measurements.kept(tx, machine, in_force.tpm.bank, res.replays)
    case = Case(
        result_id=result_id,
        cluster_id=rule.cluster_id,
        rules=rules_of(rule, res),
        requested=_requested(request),
        machine=machine,
        first_certificate=machine is not None
        and not tx.node_csrs.was_approved(machine.machine_id, machine.registered_at),
        nonce=asked.nonce if asked is not None else None,
        selection=challenges.selection_of_node(asked) if asked is not None else NO_PCRS,
        requested_policy=asked.policy_ref if asked is not None else _ref(in_force),
        policy=in_force,
        node=_seen(request),
        kept_log=log,
        ek_vendor=vendor_of(machine) if machine is not None else None,
        firmware=res.advisories.judge,
    )
    return case, asked.challenge_id if asked is not None else None, _kept(tx, machine, rule)


def _kept(tx: Tx, machine: Machine | None, rule: ClusterRule) -> StoredAKCertificate | None:
    """Return what vouched for a machine's AK at its introduction, where the cluster goes by certificates."""
    if machine is None or rule.identity_anchors is None:
        return None
    return tx.ak_certificates.get(machine.machine_id)


def _ref(in_force: object) -> str:
    return getattr(in_force, "ref", "")


def _challenge(
    tx: Tx, container: UnverifiedContainer, machine: Machine | None, at: datetime
) -> NodeChallenge | None:
    """Return the challenge that *container* names, where its machine may still answer it."""
    if container.nonce_id is None or machine is None:
        return None
    found = tx.node_csrs.challenge(container.nonce_id)
    if found is None or found.machine_id != machine.machine_id:
        return None
    return found if found.used_at is None and at < found.expires_at else None


def rules_of(rule: ClusterRule, res: Resources) -> Rules:
    """Return what the cluster allows, as the judge reads it."""
    return Rules(
        modes=frozenset(KeyMode(mode) for mode in rule.key_modes),
        layouts=frozenset(Layout(layout) for layout in rule.layouts),
        quote_required=rule.quote == "required",
        bucket_nonces=rule.bucket_nonces,
        requester_groups=frozenset(rule.requester_groups),
        crypto_policy=crypto_policy.of(res.settings),
    )


def _requested(request: NodeCSRRequest) -> Requested:
    csr = request.csr
    return Requested(username=csr.username, groups=frozenset(csr.groups), usages=tuple(csr.usages))


def _seen(request: NodeCSRRequest) -> SeenNode | None:
    node = request.node
    return None if node is None else SeenNode(name=node.name, machine_id=node.machine_id)


def _asked_for(csr: bytes) -> str | None:
    """Return the name of the node that a request is for; None for what cannot be read: the judge says why."""
    try:
        return node_name(requested_names(read_request(csr)))
    except AttestationError:
        return None


async def _judge_serving(
    request: NodeCSRRequest,
    data: bytes,
    rule: ClusterRule,
    result_id: str,
    res: Resources,
    at: datetime,
) -> Judged:
    asked_for = await asyncio.to_thread(_asked_for, data)

    def load(tx: Tx) -> tuple[ServingCase, StoredAKCertificate | None]:
        machine = nodes.named(tx, asked_for, rule.cluster_id)
        # Its client certificate lives for that long at most, whoever signed it.
        since = at - timedelta(seconds=rule.max_lifetime_seconds)
        case = ServingCase(
            result_id=result_id,
            cluster_id=rule.cluster_id,
            rules=rules_of(rule, res),
            requested=_requested(request),
            machine=machine,
            # One for serving was approved without evidence: it must not vouch for the next.
            client_attested=machine is not None
            and tx.node_csrs.was_approved(machine.machine_id, since, besides=KUBELET_SERVING),
            dns_names=_names(machine),
            addresses=_addresses(machine),
            node=_seen(request),
        )
        return case, _kept(tx, machine, rule)

    case, kept = await res.store.read(load)
    result = await _appraised_serving(data, case, kept, rule, res, at)
    return Judged(result=result, machine=case.machine)


async def _appraised_serving(
    data: bytes,
    case: ServingCase,
    kept: StoredAKCertificate | None,
    rule: ClusterRule,
    res: Resources,
    at: datetime,
) -> NodeCSRResult:
    """Judge a request for a serving certificate; ask whether its node is a member still, where all else is good.

    Where a cluster goes by certificates that come with the evidence, nobody is named here: then it counts what was
    found for the client certificate, which is no older than that may live.
    """
    goes_by = res.cluster_identities
    assert goes_by is not None
    result = await asyncio.to_thread(appraise_serving, data, case, at)
    if result.decision is not Decision.APPROVE or case.machine is None:
        return result
    who = await asyncio.to_thread(goes_by.identify, None, case.machine, kept, rule, at)
    if who.identity is None and who.answer is Answer.NO:
        return result
    answer = who.answer
    if who.identity is not None:
        answer = await goes_by.is_member(who.identity, case.machine.hostname, rule)
    if answer is Answer.YES:
        return result
    return await asyncio.to_thread(appraise_serving, data, replace(case, membership=answer), at)


def _names(machine: Machine | None) -> frozenset[str]:
    name = names_of(machine.hostname, None).hostname if machine is not None else None
    return frozenset() if name is None else frozenset({name})


def _addresses(machine: Machine | None) -> frozenset[str]:
    if machine is None or machine.assigned_ip is None:
        return frozenset()
    return frozenset({str(ip_interface(machine.assigned_ip).ip)})
