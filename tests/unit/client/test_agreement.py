"""What a proposal stands for is asked for again: each kind by its own route, with its digest."""

from __future__ import annotations

import dataclasses
import json
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest

from attestation.api import ProposalDetail
from attestation.client import OperatorClient
from attestation.client.agreement import agree
from attestation.errors import AttestationError, RequestInvalid
from attestation.machines import DEFAULT_CLUSTER, Role, Transition
from attestation.machines import dual_control as kinds
from attestation.machines.dual_control import (
    Admission,
    AppliedPolicy,
    Proposal,
    of_allow_list,
    of_approval_rule,
    of_ca_chain,
    of_ca_import,
    of_ca_revocation,
    of_ca_rotation,
    of_cluster_version,
    of_configuration,
    of_machine,
    of_offline_bundle,
    of_operator_certificate,
    of_policy_assignment,
    of_registration_token,
    of_trust_certificate,
)
from attestation.results import Assurance
from attestation.wire import b64encode, pem
from tests.contract.store_samples import a_machine
from tests.fixtures.over_httpx import answering

AT = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
ONE, OLD = a_machine(1), a_machine(2)
WANTED: dict[str, Any] = {"role": "controlplane", "hostname": "cp-1", "assigned_ip": None, "cluster_id": "c"}
POLICY = AppliedPolicy(ref="p@1", sha256="ab" * 32)
ENTRY = Admission(
    ek_fingerprint="ab" * 48,
    role=Role.CONTROLPLANE,
    hostname="cp-1",
    assigned_ip=None,
    cluster_id=None,
    note="rack 4",
)
CSR = "-----BEGIN CERTIFICATE REQUEST-----\n"


def _of(operation: Transition, **more: Any) -> Proposal:
    return of_machine(operation, ONE, **(WANTED | {"role": Role.CONTROLPLANE}), measured=None, **more)


def _where(policy: AppliedPolicy | None) -> Proposal:
    return of_policy_assignment(scope="cluster", subject="c", machine=None, policy=policy, replaces=POLICY)


MACHINE = f"/machines/{ONE.machine_id}"
WHY = {"reason": "agreed"}
TERMS: dict[str, Any] = {"uses": 2, "expires_in_seconds": 60, "minimum_assurance": Assurance.TOFU}
STEP: dict[str, Any] = {"step": "activate", "purpose": "machine", "algorithm": "ecdsa-p384", "force": True}
PERSON: dict[str, Any] = {"name": "ada", "duty": "viewer", "days": 3}
BASE: dict[str, Any] = {
    "place": "c/controlplane",
    "cluster_id": "c",
    "version": 2,
    "sha256": "ab" * 32,
    "replaces": 1,
    "replaces_sha256": "cd" * 32,
}
NAMED: dict[str, Any] = {"role": Role.LINUX, "hostname": "a", "assigned_ip": None, "cluster_id": None}

RULE: dict[str, Any] = {
    "name": "rack-4",
    "expression": "true",
    "role": Role.LINUX,
    "cluster_id": "prod",
    "hostname": "w-{serial}",
    "minimum_assurance": Assurance.EK_CHAIN,
    "max_count": 40,
    "priority": 100,
}
ASKED: dict[str, tuple[Proposal, str | None, str, Any]] = {
    "approve": (
        _of(Transition.APPROVE, accepts_ek=True),
        None,
        f"POST {MACHINE}/approve",
        WANTED | WHY | {"accept_ek": True, "expected_version": None},
    ),
    "replace": (
        _of(Transition.APPROVE, replaces=OLD),
        None,
        f"POST /machines/{OLD.machine_id}/replace",
        WHY | {"new": ONE.machine_id, "accept_ek": False, "expected_version": None, "confirm_name": None},
    ),
    "unlock": (_of(Transition.UNLOCK), None, f"POST {MACHINE}/unlock", WHY),
    "role": (
        _of(Transition.ROLE_CHANGE),
        None,
        f"POST {MACHINE}/role",
        WANTED | WHY | {"expected_version": None},
    ),
    "approve-hardware": (_of(Transition.APPROVE_HARDWARE), None, f"POST {MACHINE}/approve-hardware", WHY),
    "ak-reset": (_of(Transition.AK_RESET), None, f"POST {MACHINE}/ak-reset", WHY),
    "redeliver": (_of(Transition.REDELIVER), None, f"POST {MACHINE}/redeliver", None),
    "bundle": (of_offline_bundle(ONE, None), None, f"POST {MACHINE}/offline-bundle", None),
    "token": (
        of_registration_token(**NAMED, **TERMS),
        None,
        "POST /registration-tokens",
        NAMED | TERMS,
    ),
    "allow-list": (
        of_allow_list([ENTRY], []),
        json.dumps([dataclasses.asdict(ENTRY)]),
        "POST /allow-list",
        {"entries": [dataclasses.asdict(ENTRY)]},
    ),
    "assign": (_where(POLICY), None, "PUT /policies/assignments/cluster/c", {"policy": "p@1"}),
    "unassign": (_where(None), None, "DELETE /policies/assignments/cluster/c", None),
    "anchor": (
        of_trust_certificate(sha256="ab" * 32, role="anchor", vendor="IFX"),
        "MIIB",
        "POST /trust/certificates",
        WHY | {"certificate": "MIIB", "role": "anchor", "vendor": "IFX"},
    ),
    "anchor again": (
        of_trust_certificate(sha256="ab" * 32, role="anchor", vendor="IFX"),
        None,
        f"POST /trust/certificates/{'ab' * 32}/restore",
        WHY,
    ),
    "rotation": (of_ca_rotation(**STEP, active="a", other="b"), None, "POST /ca/rotation", STEP | WHY),
    "revocation": (
        of_ca_revocation(serial="ab" * 20, profile="ca", subject="CN=CA", reason="superseded"),
        None,
        f"POST /ca/certificates/{'ab' * 20}/revoke",
        {"reason": "superseded", "note": "agreed"},
    ),
    "chain": (
        of_ca_chain(
            issuer="ab" * 8,
            root="CN=R",
            root_sha256="a",
            chain_sha256="b",
            until="2027-01-01T00:00:00Z",
            replaces="c",
            force=True,
        ),
        CSR,
        f"PUT /ca/keys/{'ab' * 8}/chain",
        {"chain_pem": CSR, "force": True} | WHY,
    ),
    "import": (
        of_ca_import(
            purpose="machine",
            algorithm="ecdsa-p384",
            name="CN=CA",
            spki_sha256="a",
            root="CN=R",
            root_sha256="b",
            chain_sha256="c",
            until="2027-01-01T00:00:00Z",
            wrapped_sha256="d",
            oaep_hash="sha1",
        ),
        pem("ITL WRAPPED KEY", b"wrapped") + pem("CERTIFICATE", b"one") + pem("CERTIFICATE", b"two"),
        "POST /ca/keys",
        {
            "purpose": "machine",
            "wrapped_key": b64encode(b"wrapped"),
            "oaep_hash": "sha1",
            "chain_pem": pem("CERTIFICATE", b"one") + pem("CERTIFICATE", b"two"),
        }
        | WHY,
    ),
    "approval rule": (
        of_approval_rule(step="make", **RULE),
        None,
        "POST /approval-rules",
        RULE,
    ),
    "approval rule enabled": (
        of_approval_rule(step="enable", **RULE),
        None,
        "POST /approval-rules/rack-4/enable",
        None,
    ),
    "cluster": (
        of_cluster_version(cluster="c", description="rack 4", talos_version="v1.13.9", replaces=None),
        None,
        "POST /clusters",
        {"cluster_id": "c", "description": "rack 4", "talos_version": "v1.13.9"},
    ),
    "version of a cluster": (
        of_cluster_version(cluster="c", description=None, talos_version="default", replaces="v1.13.9"),
        None,
        "POST /clusters/c",
        {"talos_version": "default"},
    ),
    "person": (
        of_operator_certificate(**PERSON, spki_sha256="ab" * 32),
        CSR,
        "POST /operator-certificates",
        PERSON | WHY | {"csr_pem": CSR},
    ),
    "configuration": (
        of_configuration(**BASE, role=Role.CONTROLPLANE, machine=None),
        None,
        "PUT /configurations/c/controlplane/active",
        {"version": 2} | WHY,
    ),
    "patch": (
        of_configuration(**BASE, role=None, machine=ONE),
        None,
        f"PUT {MACHINE}/patches/active",
        {"version": 2} | WHY,
    ),
}


def detail(proposal: Proposal, document: str | None = None) -> ProposalDetail:
    """Return *proposal* as the service shows it."""
    return ProposalDetail(
        proposal_digest=proposal.digest(),
        action=proposal.action,
        subject=proposal.subject,
        machine_id=proposal.machine_id,
        approvals_received=1,
        approvals_required=2,
        expires_at=AT,
        voters=["anna"],
        proposal=json.loads(proposal.canonical()),
        approvals=[],
        document=document,
    )


def asked_by(found: ProposalDetail, reason: str | None = "agreed") -> httpx.Request:
    """Return the request with which somebody agrees to *found*."""
    sent: list[httpx.Request] = []

    def refuse(request: httpx.Request) -> httpx.Response:
        sent.append(request)
        return httpx.Response(409)

    client = OperatorClient("http://localhost", "t", carrier=answering(refuse))
    with pytest.raises(AttestationError):
        agree(client, found, reason)
    (request,) = sent
    assert client.meant is None, "other acts of this client are not votes"
    return request


def _said(value: Any) -> Any:
    """Return *value* without what it leaves open: absent and null are the same to the service."""
    if isinstance(value, dict):
        return {name: _said(each) for name, each in value.items() if each is not None}
    return [_said(each) for each in value] if isinstance(value, list) else value


@pytest.mark.parametrize("name", ASKED)
def test_each_kind_is_asked_for_by_its_own_route(name: str) -> None:
    """With what the proposal says and nothing else, and with the digest of the whole."""
    proposal, document, route, body = ASKED[name]
    request = asked_by(detail(proposal, document))
    assert f"{request.method} {request.url.path.removeprefix('/api/v1')}" == route
    assert request.url.params["proposal"] == proposal.digest()
    assert (_said(json.loads(request.content)) if request.content else None) == _said(body)


def test_no_kind_is_forgotten() -> None:
    """Whatever several must agree to can be agreed to; what extensions ask for is agreed to by asking for the same."""
    names = {value for name, value in vars(kinds).items() if name.isupper() and isinstance(value, str)}
    acts = {operation.value for operation in kinds.MACHINE_ACTIONS}
    assert {proposal.action for proposal, *_ in ASKED.values()} == (
        names - {kinds.FORMAT, kinds.EXTENSION, DEFAULT_CLUSTER}
    ) | acts


def test_what_needs_a_reason_says_that_it_was_agreed_to() -> None:
    """The first one's reason is not put into the mouth of the second."""
    proposal = ASKED["ak-reset"][0]
    assert json.loads(asked_by(detail(proposal), None).content) == {
        "reason": f"agreed to proposal {proposal.digest()}"
    }


def test_what_was_not_kept_is_not_guessed() -> None:
    """A vote of an older version has no document; and of a newer one nothing is known."""
    client = OperatorClient("http://localhost", "t", carrier=answering(lambda _: httpx.Response(500)))
    for name in ("allow-list", "person"):
        with pytest.raises(RequestInvalid, match="did not keep"):
            agree(client, detail(ASKED[name][0]), None)
    with pytest.raises(RequestInvalid, match="does not know"):
        agree(client, detail(ASKED["token"][0]).model_copy(update={"action": "x"}), None)
