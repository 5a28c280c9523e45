"""Judging the certification request of a node (HSM-AND-KUBERNETES §19): fourteen steps, in order.

The first failure decides and ends the judgement: what stands behind it may be a stranger's, and is not worth the work.
What cannot be decided does not end it: a failure behind it still denies.
"""

from __future__ import annotations

from datetime import datetime

from attestation.algorithms import Use, demand
from attestation.appraisal.node_csr.boot import Quoted, judge_boot, read_quote
from attestation.appraisal.node_csr.case import Case, Rules
from attestation.appraisal.node_csr.record import (
    admitted,
    check_identity,
    check_membership,
    check_node,
    check_requester,
    nonces_of,
)
from attestation.appraisal.node_csr.result import (
    CHALLENGE,
    CONTAINER,
    REQUEST,
    SUBJECT,
    Decision,
    KeyTier,
    NodeCSRResult,
    Reason,
)
from attestation.appraisal.node_csr.statement import verify_statement
from attestation.appraisal.node_csr.steps import Denied, Found, Steps, conclude_steps, deny_request
from attestation.appraisal.node_csr.subject import client_problem, may_ask, node_name
from attestation.errors import (
    AttestationError,
    MalformedEvidence,
)
from attestation.evidence.key_certification import KeyMode
from attestation.evidence.node_csr import UnverifiedContainer, parse_certify
from attestation.machines.names import names_of
from attestation.pki.request import CertificateRequest, read_request, verify_request
from attestation.pki.requested import RequestedNames, requested_names
from attestation.results import Outcome


def missing(result_id: str, at: datetime) -> NodeCSRResult:
    """Return that a request carries no evidence, where it must."""
    return _refused(result_id, at, Reason.EVIDENCE_MISSING, "none")


def malformed(result_id: str, error: MalformedEvidence, at: datetime) -> NodeCSRResult:
    """Return that a container could not be parsed: what its parser raised ends it."""
    return _refused(result_id, at, Reason.EVIDENCE_MALFORMED, str(error))


def stale(result_id: str, at: datetime) -> NodeCSRResult:
    """Return that the challenge was spent while the request was judged: another one has it."""
    return _ended(result_id, at, Reason.EVIDENCE_STALE, CHALLENGE.failed("an unspent challenge", "spent"))


def _refused(result_id: str, at: datetime, reason: Reason, found: str) -> NodeCSRResult:
    return _ended(result_id, at, reason, CONTAINER.failed("evidence in a layout that we know", found))


def _ended(result_id: str, at: datetime, reason: Reason, outcome: Outcome) -> NodeCSRResult:
    return NodeCSRResult(
        result_id=result_id, at=at, decision=Decision.DENY, reason=reason, outcomes=(outcome,)
    )


def appraise(container: UnverifiedContainer, case: Case, at: datetime) -> NodeCSRResult:
    """Appraise a request for a client certificate of a node, for *case*, at the instant *at*.

    The challenge of *case* must be spent by the caller, whatever is found here. Raises nothing that it can express.
    """
    steps, found = Steps(), Found()
    try:
        _judge(container, case, at, steps, found)
    except Denied as denied:
        return conclude_steps(case.result_id, at, steps, found, denied.reason)
    return conclude_steps(case.result_id, at, steps, found, None)


def _judge(container: UnverifiedContainer, case: Case, at: datetime, steps: Steps, found: Found) -> None:
    # 1. What was sent can be read, by a layout that is allowed; whoever sent the request has its key.
    csr, names, quoted = _read(container, case.rules, steps)
    # 2. Who asks may. Without this, any user of the cluster could ask for a node's certificate.
    check_requester(may_ask(case.requested, node_name(names), case.rules), steps)
    # 3. A machine of this cluster that operators admitted, with an attestation key that is its own.
    machine, ak = admitted(container, case, steps)
    # 4. A challenge of ours, spent with this. Without it, an old container would do again.
    nonces = nonces_of(container, case, at, steps)
    # 5-10. Its attestation key certified the key of this request, for this challenge.
    certified, nonce = verify_statement(container, csr, machine, ak, case, nonces, steps, found)
    found.spki = csr.spki
    found.fresh = container.nonce_id is not None
    # 11. A certificate says only that this is this node.
    hostname = names_of(machine.hostname, None).hostname
    problem = client_problem(names, case.requested.usages, csr.algorithm, hostname)
    if problem is not None:
        steps.deny(
            SUBJECT, Reason.SUBJECT_INVALID, "the names and usages of this node's certificate", problem
        )
    steps.passed(SUBJECT)
    # 12. It booted what we expect.
    boot = judge_boot(container, quoted, case, machine, nonce, certified, at)
    found.boot = boot.result
    steps.outcomes += boot.outcomes
    if boot.reason is not None:
        raise Denied(boot.reason)
    found.tier = tier_of(found.mode, fresh=found.fresh, quoted=boot.quoted)
    # 13. The machine that signed is the machine that is named, and it belongs here.
    check_identity(container, case, steps)
    check_membership(case.membership, steps)
    # 14. Nobody else is that node already.
    check_node(case.node, machine, hostname, steps)


def _read(
    container: UnverifiedContainer, rules: Rules, steps: Steps
) -> tuple[CertificateRequest, RequestedNames, Quoted | None]:
    if container.layout not in rules.layouts:
        allowed = ", ".join(sorted(rules.layouts))
        steps.deny(CONTAINER, Reason.EVIDENCE_MALFORMED, f"layout {allowed}", container.layout)
    try:
        parts = read_request(container.csr_der)
        names = requested_names(parts)
        parse_certify(container.attest)
        quoted = read_quote(container)
    except MalformedEvidence as error:
        steps.deny(CONTAINER, Reason.EVIDENCE_MALFORMED, "evidence that can be read", str(error))
    steps.passed(CONTAINER, container.layout)
    try:
        csr = verify_request(parts)
        demand(rules.crypto_policy, Use.LEAF, csr.algorithm)
    except AttestationError as error:
        deny_request(error, steps)
    steps.passed(REQUEST)
    return csr, names, quoted


def tier_of(mode: KeyMode | None, *, fresh: bool, quoted: bool) -> KeyTier:
    """Return what is known of the key. What answers no challenge may be of any day, and raises no tier."""
    if mode is KeyMode.EXTERNAL:
        return KeyTier.EXTERNAL if fresh else KeyTier.EXTERNAL_UNFRESH
    return KeyTier.RESIDENT_AND_QUOTED if quoted and fresh else KeyTier.RESIDENT
