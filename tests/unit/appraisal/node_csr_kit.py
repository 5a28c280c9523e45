"""A machine in Python, its record, and what a cluster expects of it: everything good, to be changed one at a time."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from attestation.appraisal.node_csr import BOOTSTRAPPERS, Case, NodeCSRResult, Requested, Rules, appraise
from attestation.evidence import node_csr
from attestation.machines import Anchor, Machine, Role, Status
from attestation.reference import Policy, parse_policy
from attestation.results import Assurance, Verdict
from attestation.tpm import PCRSelection
from attestation_testing import SoftwareNode
from attestation_testing.node_csr import PCRS, node_csr_container

AT = datetime(2026, 11, 21, 12, tzinfo=UTC)
NONCE = bytes(range(32))
NONCE_ID = "0f" * 16
MACHINE_ID = "7f3ad3ac-0f0e-4c55-9d4a-3f6f0e1b2c3d"
CLUSTER = "edge"
HOSTNAME = "worker-1"
RESULT_ID = "ab" * 16

SELECTION = PCRSelection.from_names({"sha256": [0, 7]})

NODE = SoftwareNode(1)


def policy(document: dict[str, Any] | None = None) -> Policy:
    """Return a policy; by default PCR 7 is to be zero, as that of the machine is."""
    return parse_policy(
        {
            "format": "itl-tpm-policy/1",
            "name": "nodes",
            "version": 1,
            "bank": "sha256",
            "pcrs": {"7": {"any_of": ["00" * 32]}},
            **(document or {}),
        }
    )


POLICY = policy()


def machine(node: SoftwareNode = NODE, **changes: Any) -> Machine:
    """Return the record of *node*: attested a minute ago."""
    return replace(
        Machine(
            machine_id=MACHINE_ID,
            version=3,
            status=Status.ATTESTED,
            role=Role.WORKER_APP,
            cluster_id=CLUSTER,
            anchor=Anchor(
                ek_fingerprint=node.ek.public.fingerprint(),
                ek_public=node.ek.public.tpm2b(),
                ek_source="pub",
                ek_template="L-2",
                ek_certificate=None,
                ek_chain_ok=False,
                ek_allow_listed=False,
                ak_public=node.ak.public.tpm2b(),
                ak_name=node.ak.public.name,
                ak_activated_at=AT - timedelta(hours=1),
            ),
            assurance=Assurance.TOFU,
            hw_uuid="",
            hw_mac="",
            hw_serial="",
            hw_product="",
            desired_role=None,
            hostname=HOSTNAME,
            assigned_ip="10.0.0.11/24",
            registered_from=None,
            registered_at=AT - timedelta(hours=2),
            attested_at=AT - timedelta(minutes=1),
            locked_at=None,
            revoked_at=None,
            rejected_at=None,
            wipe_pending=False,
            wiped_at=None,
            config_owed_since=None,
            clock=None,
            last_verdict=Verdict.VERIFIED,
            last_result_at=AT - timedelta(minutes=1),
            last_policy=POLICY.ref,
            last_failed=None,
            last_result_key=None,
            trust_expires_at=AT + timedelta(minutes=4),
            directive_sha256=None,
        ),
        **changes,
    )


REQUESTED = Requested(
    username="system:bootstrap:abcdef",
    groups=frozenset({BOOTSTRAPPERS, "system:authenticated"}),
    usages=("digital signature", "key encipherment", "client auth"),
)


def case(**changes: Any) -> Case:
    """Return a case in which all is as it should be."""
    return replace(
        Case(
            result_id=RESULT_ID,
            cluster_id=CLUSTER,
            rules=Rules(),
            requested=REQUESTED,
            machine=machine(),
            first_certificate=True,
            nonce=NONCE,
            selection=PCRS,
            requested_policy=POLICY.ref,
            policy=POLICY,
            node=None,
        ),
        **changes,
    )


def container(node: SoftwareNode = NODE, **changes: Any) -> bytes:
    """Return a good container of *node*."""
    return node_csr_container(
        node,
        **{
            "hostname": HOSTNAME,
            "machine_id": MACHINE_ID,
            "nonce": NONCE,
            "nonce_id": NONCE_ID,
            **changes,
        },
    )


def judged(data: bytes, the_case: Case | None = None) -> NodeCSRResult:
    """Return the judgement over *data*."""
    return appraise(node_csr.parse(data), the_case or case(), AT)
