"""Requests for serving certificates: no TPM step, after a client certificate that had them (§21)."""

from __future__ import annotations

from datetime import datetime

from attestation.algorithms import Use, demand
from attestation.appraisal.node_csr.case import ServingCase
from attestation.appraisal.node_csr.record import check_membership, check_node, check_requester, of_cluster
from attestation.appraisal.node_csr.result import MACHINE, REQUEST, SUBJECT, NodeCSRResult, Reason
from attestation.appraisal.node_csr.steps import Denied, Found, Steps, conclude_steps, deny_request
from attestation.appraisal.node_csr.subject import is_node, node_name, serving_problem
from attestation.errors import AttestationError
from attestation.machines import Status, Trust
from attestation.machines.names import names_of
from attestation.pki.request import read_request, verify_request
from attestation.pki.requested import requested_names


def appraise_serving(csr: bytes, case: ServingCase, at: datetime) -> NodeCSRResult:
    """Appraise a request for a serving certificate: no TPM step, after a client certificate that had them (§21).

    Args:
        csr: `spec.request`: one PEM block CERTIFICATE REQUEST.
        case: What is known of it.
        at: The instant, UTC.
    """
    steps, found = Steps(), Found()
    try:
        _judge_serving(csr, case, at, steps, found)
    except Denied as denied:
        return conclude_steps(case.result_id, at, steps, found, denied.reason)
    return conclude_steps(case.result_id, at, steps, found, None)


def _judge_serving(csr: bytes, case: ServingCase, at: datetime, steps: Steps, found: Found) -> None:
    # 1. As above, without evidence.
    try:
        parts = read_request(csr)
        names = requested_names(parts)
        request = verify_request(parts)
        demand(case.rules.crypto_policy, Use.LEAF, request.algorithm)
    except AttestationError as error:
        deny_request(error, steps)
    steps.passed(REQUEST)
    # 2. The node itself asks, with its client certificate.
    name = node_name(names)
    check_requester(is_node(case.requested, name), steps)
    # 3. An attested machine, within its lease, of that name, whose client certificate was attested.
    machine = of_cluster(case.machine, case.cluster_id, steps)
    if machine.status is not Status.ATTESTED or machine.trust(at) is not Trust.VERIFIED:
        steps.deny(
            MACHINE,
            Reason.MACHINE_NOT_ADMITTED,
            "an attested machine within its lease",
            f"{machine.status}, trust {machine.trust(at)}",
        )
    if not case.client_attested:
        steps.deny(
            MACHINE, Reason.MACHINE_NOT_ADMITTED, "a client certificate that was approved by evidence", "none"
        )
    steps.passed(MACHINE)
    # 11. Names and addresses are those of the machine. A name more, and it could pass for another server.
    hostname = names_of(machine.hostname, None).hostname
    problem = serving_problem(names, case.requested.usages, request.algorithm, case.dns_names, case.addresses)
    if problem is None and name != hostname:
        problem = "the subject is of another node"
    if problem is not None:
        steps.deny(
            SUBJECT, Reason.SUBJECT_INVALID, "the names and usages of this node's certificate", problem
        )
    steps.passed(SUBJECT)
    found.spki = request.spki
    # 13, 14. As above.
    check_membership(case.membership, steps)
    check_node(case.node, machine, hostname, steps)
