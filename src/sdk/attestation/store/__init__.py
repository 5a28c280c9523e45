"""Where machines, challenges, tokens, results, policies, the audit chain and the outbox live.

    store = open_store("sqlite:////var/lib/itl/attestation.db")
    machine = await store.read(lambda tx: tx.machines.by_id(machine_id))

`tables.py` is the schema, `tx.py` what a unit of work sees, `base.py` what a store promises, `sqlite.py` and
`postgres.py` how it keeps that promise, `queues.py` what they share.
"""

from attestation.store.acme import ACMEAccount, ACMEKey, ACMEOrder
from attestation.store.acts import ACTS_OF_ONE, Act
from attestation.store.allow_list import AllowListRow
from attestation.store.approval_rules import ApprovalRule
from attestation.store.approvals import Approval
from attestation.store.attestations import AttestationCase
from attestation.store.audit import AuditFilter
from attestation.store.audit_tree import Countersignature, CountersignatureKind, StoredCheckpoint
from attestation.store.authority import AUTHORITY, NOT_AUTHORITY, AuthorityTable
from attestation.store.base import Store, StoreSettings
from attestation.store.captures import Capture, CaptureFilter
from attestation.store.challenges import Challenge, Purpose
from attestation.store.chips import AKBinding
from attestation.store.chores import Chore
from attestation.store.clusters import Cluster, ClusterCounts, ListedCluster
from attestation.store.collateral import StoredCollateral
from attestation.store.configurations import (
    ActiveConfiguration,
    Configuration,
    Delivered,
    Place,
    SealedConfiguration,
    WrappedConfiguration,
)
from attestation.store.console_codes import ConsoleCode
from attestation.store.grants import grant
from attestation.store.handovers import DeadLetter, Waiting
from attestation.store.hsm_look import HSMState
from attestation.store.hsm_quotes import HSMNonce, HSMQuote
from attestation.store.hsm_records import HSMBegunCRL, HSMCertificate, HSMDelegate, HSMIssuer
from attestation.store.identity import DatabaseIdentity
from attestation.store.issuances import (
    Issuance,
    IssuanceFilter,
    IssuanceState,
    ListedCertificate,
    RevocationReason,
)
from attestation.store.issuers import (
    PUBLISHED,
    Issuer,
    IssuerAlgorithm,
    IssuerPurpose,
    IssuerState,
    StoredCRL,
    StoredDelegate,
)
from attestation.store.logs import MAX_LOG_BYTES, LogKind, PackedLog, pack
from attestation.store.lookups import Found, LookUp
from attestation.store.machine_lists import MachineFilter
from attestation.store.machines import MachineCounts, Namesake, Pending
from attestation.store.migrate import Branch, is_postgresql, migrate, migrate_branch, place, sqlite_path
from attestation.store.node_csrs import NodeChallenge, NodeCSR, NodeDecision, QuoteWord
from attestation.store.outbox import OutboxEvent
from attestation.store.pages import MAX_LIMIT, Page
from attestation.store.policies import FLEET, PolicyAssignment, PolicyChange, Scope, StoredPolicy
from attestation.store.purge import ACT_KEPT, CHALLENGE_KEPT, Purged
from attestation.store.rate_limits import RateLimit, wait
from attestation.store.refused_keys import RefusedKey
from attestation.store.results import StoredEvidence, StoredResult
from attestation.store.run_seals import RunSeal
from attestation.store.runs import Run, RunAttempt, RunBlob
from attestation.store.saved_queries import SavedQuery
from attestation.store.sql import row_of
from attestation.store.sqlite import SQLiteStore
from attestation.store.tokens import ConfigToken, RegistrationToken
from attestation.store.trust import (
    StoredAKCertificate,
    StoredEKCertificate,
    TrustCertificate,
    TrustRole,
    TrustStatus,
)
from attestation.store.tx import Tx

__all__ = [
    "ACTS_OF_ONE",
    "ACT_KEPT",
    "AUTHORITY",
    "CHALLENGE_KEPT",
    "FLEET",
    "MAX_LIMIT",
    "MAX_LOG_BYTES",
    "NOT_AUTHORITY",
    "PUBLISHED",
    "ACMEAccount",
    "ACMEKey",
    "ACMEOrder",
    "AKBinding",
    "Act",
    "ActiveConfiguration",
    "AllowListRow",
    "Approval",
    "ApprovalRule",
    "AttestationCase",
    "AuditFilter",
    "AuthorityTable",
    "Branch",
    "Capture",
    "CaptureFilter",
    "Challenge",
    "Chore",
    "Cluster",
    "ClusterCounts",
    "ConfigToken",
    "Configuration",
    "ConsoleCode",
    "Countersignature",
    "CountersignatureKind",
    "DatabaseIdentity",
    "DeadLetter",
    "Delivered",
    "Found",
    "HSMBegunCRL",
    "HSMCertificate",
    "HSMDelegate",
    "HSMIssuer",
    "HSMNonce",
    "HSMQuote",
    "HSMState",
    "Issuance",
    "IssuanceFilter",
    "IssuanceState",
    "Issuer",
    "IssuerAlgorithm",
    "IssuerPurpose",
    "IssuerState",
    "ListedCertificate",
    "ListedCluster",
    "LogKind",
    "LookUp",
    "MachineCounts",
    "MachineFilter",
    "Namesake",
    "NodeCSR",
    "NodeChallenge",
    "NodeDecision",
    "OutboxEvent",
    "PackedLog",
    "Page",
    "Pending",
    "Place",
    "PolicyAssignment",
    "PolicyChange",
    "Purged",
    "Purpose",
    "QuoteWord",
    "RateLimit",
    "RefusedKey",
    "RegistrationToken",
    "RevocationReason",
    "Run",
    "RunAttempt",
    "RunBlob",
    "RunSeal",
    "SavedQuery",
    "Scope",
    "SealedConfiguration",
    "Store",
    "StoreSettings",
    "StoredAKCertificate",
    "StoredCRL",
    "StoredCheckpoint",
    "StoredCollateral",
    "StoredDelegate",
    "StoredEKCertificate",
    "StoredEvidence",
    "StoredPolicy",
    "StoredResult",
    "TrustCertificate",
    "TrustRole",
    "TrustStatus",
    "Tx",
    "Waiting",
    "WrappedConfiguration",
    "grant",
    "is_postgresql",
    "migrate",
    "migrate_branch",
    "open_store",
    "pack",
    "place",
    "row_of",
    "sqlite_path",
    "wait",
]


def open_store(url: str, settings: StoreSettings | None = None) -> Store:
    """Open the database at *url*; it must have been migrated.

    Raises:
        ValueError: Not a URL of a database that we support.
        StoreUnavailable: The database cannot be opened.
    """
    settings = settings or StoreSettings()
    if is_postgresql(url):
        from attestation.store.postgres import PostgresStore  # here: who has SQLite need not have its driver

        return PostgresStore(url, settings)
    return SQLiteStore(sqlite_path(url), settings)
