"""What is known and expected of a node that asks for a certificate."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from attestation.algorithms import CryptoPolicy
from attestation.appraisal.tpm import FirmwareJudge, no_advisories
from attestation.evidence.event_log import ReplayedLog
from attestation.evidence.key_certification import KeyMode
from attestation.evidence.node_csr import Layout, VMIdentity
from attestation.machines import Machine
from attestation.reference import Policy
from attestation.tpm import PCRSelection

BOOTSTRAPPERS: Final = "system:bootstrappers"


class Answer(StrEnum):
    """What a part beside the evidence says: an extractor of identities, a provider of memberships."""

    YES = "yes"
    NO = "no"
    UNDECIDED = "undecided"
    """It could not say; asked again it may."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Requested:
    """What stands in the CertificateSigningRequest beside `spec.request`; stamped by the API server, so believed.

    Args:
        username: Who made it.
        groups: Of which groups that is a member.
        usages: As written, e.g. `client auth`.
    """

    username: str
    groups: frozenset[str]
    usages: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenNode:
    """The Node of the name asked for, as the approver saw it.

    Args:
        name: Of the object.
        machine_id: Of its label; None where it has none.
    """

    name: str
    machine_id: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What a cluster allows.

    Args:
        modes: How a key may stand to its TPM.
        layouts: How a container may be written.
        quote_required: Each request carries a quote.
        bucket_nonces: A statement may answer a bucket of time.
        requester_groups: Who may ask for the first certificate of a node.
        crypto_policy: Which kinds of keys are certified.
    """

    modes: frozenset[KeyMode] = frozenset({KeyMode.RESIDENT})
    layouts: frozenset[Layout] = frozenset({Layout.ITL_V1})
    quote_required: bool = True
    bucket_nonces: bool = False
    requester_groups: frozenset[str] = frozenset({BOOTSTRAPPERS})
    crypto_policy: CryptoPolicy = CryptoPolicy.DEFAULT


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What the service knows of one request for a client certificate.

    Args:
        result_id: Names the judgement.
        cluster_id: Of the cluster that asks.
        rules: What it allows.
        requested: What the API server says of the request.
        machine: As it stands in the record; None where there is none of that id.
        first_certificate: It has never had a certificate of a node.
        nonce: Of the challenge that the container names: of this machine, for this purpose, unspent until now, 32
            bytes; None where there is no such challenge.
        selection: The PCRs that were requested with it; without a challenge those of the policy count.
        requested_policy: `name@version` of the policy in force when it was issued.
        policy: The policy in force now; None where there is none.
        node: The Node of that name; None where there is none.
        certified_ak: SubjectPublicKeyInfo, DER, of an attestation key that a certificate of a configured CA vouches
            for as this machine's; only where none is activated. None where there is none.
        instance: The identity in that certificate, where it states one in the form of gke-v1.
        identity: Whether the identity that was extracted is this machine.
        membership: Whether this machine is of this cluster.
        kept_log: An event log from before, replayed in the bank of the policy: it counts where the request brings
            none, as far as it leads to what is quoted now.
        ek_vendor: Registered name of the TPM's manufacturer, from a verified chain; None where there is none.
        firmware: Judges the TPM's firmware.
    """

    result_id: str
    cluster_id: str
    rules: Rules
    requested: Requested
    machine: Machine | None
    first_certificate: bool
    nonce: bytes | None = field(repr=False)
    selection: PCRSelection
    requested_policy: str
    policy: Policy | None
    node: SeenNode | None
    certified_ak: bytes | None = field(default=None, repr=False)
    instance: VMIdentity | None = None
    identity: Answer = Answer.YES
    membership: Answer = Answer.YES
    kept_log: ReplayedLog | None = None
    ek_vendor: str | None = None
    firmware: FirmwareJudge = no_advisories


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingCase:
    """What the service knows of one request for a serving certificate (§21): it carries no evidence.

    Args:
        result_id: Names the judgement.
        cluster_id: Of the cluster that asks.
        rules: What it allows.
        requested: What the API server says of the request.
        machine: The machine of that host name in this cluster; None where there is none.
        client_attested: It has a client certificate of a node that was approved by evidence and is good now.
        dns_names: Names that are the machine's, canonical.
        addresses: Addresses that are the machine's, canonical, without prefix length.
        membership: Whether this machine is of this cluster.
        node: The Node of that name; None where there is none.
    """

    result_id: str
    cluster_id: str
    rules: Rules
    requested: Requested
    machine: Machine | None
    client_attested: bool
    dns_names: frozenset[str]
    addresses: frozenset[str]
    membership: Answer = Answer.YES
    node: SeenNode | None = None
