"""A unit of work sees the database through this: the repositories, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import TypeVar

from attestation.clock import Clock
from attestation.store.acme import ACME
from attestation.store.acts import Acts
from attestation.store.allow_list import AllowList
from attestation.store.approval_rules import ApprovalRules
from attestation.store.approvals import Approvals
from attestation.store.attention import Attention
from attestation.store.attestations import Attestations
from attestation.store.audit import Audit
from attestation.store.captures import Captures
from attestation.store.challenges import Challenges
from attestation.store.chips import AKBindings, ChipMarks
from attestation.store.chores import Chores
from attestation.store.clusters import Clusters
from attestation.store.collateral import CollateralItems
from attestation.store.configurations import Configurations
from attestation.store.console_codes import ConsoleCodes
from attestation.store.handovers import Handovers
from attestation.store.hsm import HSM
from attestation.store.hsm_quotes import HSMQuotes
from attestation.store.identities import Identities
from attestation.store.identity import Identity
from attestation.store.issuances import Issuances
from attestation.store.issuers import Issuers
from attestation.store.known_keys import KnownKeys
from attestation.store.labels import Labels
from attestation.store.logs import Logs
from attestation.store.machines import Machines
from attestation.store.node_csrs import NodeCSRs
from attestation.store.outbox import Outbox
from attestation.store.policies import Policies
from attestation.store.purge import Purged, purge
from attestation.store.rate_limits import RateLimits
from attestation.store.refused_keys import RefusedKeys
from attestation.store.results import Results
from attestation.store.run_seals import RunSeals
from attestation.store.runs import Runs
from attestation.store.saved_queries import SavedQueries
from attestation.store.schema import Schema
from attestation.store.sql import Executor
from attestation.store.state import State
from attestation.store.tokens import ConfigTokens, RegistrationTokens
from attestation.store.trust import AKCertificates, EKCertificates, Trust

T = TypeVar("T")


class Tx:
    """The repositories on one connection; made once per connection, lent to one unit at a time.

    Args:
        sql: Runs statements on that connection.
        results_kept: Attestation results kept per machine.
        clock: Tells the time of what no entry tells of.
    """

    __slots__ = (
        "_clock",
        "_sql",
        "acme",
        "acts",
        "ak_bindings",
        "ak_certificates",
        "allow_list",
        "approval_rules",
        "approvals",
        "attention",
        "attestations",
        "audit",
        "captures",
        "challenges",
        "chip_marks",
        "chores",
        "clusters",
        "collateral",
        "config_tokens",
        "configurations",
        "console_codes",
        "ek_certificates",
        "handovers",
        "hsm",
        "hsm_quotes",
        "identities",
        "identity",
        "issuances",
        "issuers",
        "known_keys",
        "labels",
        "logs",
        "machines",
        "node_csrs",
        "outbox",
        "policies",
        "rate_limits",
        "refused_keys",
        "registration_tokens",
        "results",
        "run_seals",
        "runs",
        "saved_queries",
        "schema",
        "state",
        "trust",
    )

    def __init__(self, sql: Executor, *, results_kept: int, clock: Clock) -> None:
        self._sql = sql
        self._clock = clock
        self.attestations = Attestations(sql)
        self.attention = Attention(sql)
        self.machines = Machines(sql)
        self.identities = Identities(sql)
        self.labels = Labels(sql)
        self.ak_bindings = AKBindings(sql)
        self.chip_marks = ChipMarks(sql)
        self.challenges = Challenges(sql)
        self.node_csrs = NodeCSRs(sql)
        self.audit = Audit(sql)
        self.outbox = Outbox(sql)
        self.handovers = Handovers(sql)
        self.hsm = HSM(sql)
        self.hsm_quotes = HSMQuotes(sql)
        self.acme = ACME(sql)
        self.console_codes = ConsoleCodes(sql)
        self.acts = Acts(sql)
        self.allow_list = AllowList(sql)
        self.approvals = Approvals(sql)
        self.registration_tokens = RegistrationTokens(sql)
        self.config_tokens = ConfigTokens(sql)
        self.configurations = Configurations(sql)
        self.results = Results(sql, results_kept)
        self.runs = Runs(sql)
        self.run_seals = RunSeals(sql)
        self.logs = Logs(sql)
        self.rate_limits = RateLimits(sql)
        self.saved_queries = SavedQueries(sql)
        self.policies = Policies(sql)
        self.captures = Captures(sql)
        self.ek_certificates = EKCertificates(sql)
        self.ak_certificates = AKCertificates(sql)
        self.state = State(sql)
        self.trust = Trust(sql)
        self.identity = Identity(sql)
        self.schema = Schema(sql)
        self.known_keys = KnownKeys(sql)
        self.chores = Chores(sql)
        self.approval_rules = ApprovalRules(sql)
        self.clusters = Clusters(sql)
        self.collateral = CollateralItems(sql)
        self.issuers = Issuers(sql)
        self.refused_keys = RefusedKeys(sql)
        self.issuances = Issuances(sql, self.issuers, self.refused_keys)

    def of(self, repository: Callable[[Executor], T]) -> T:
        """Return *repository*, of an extension's tables, in this unit: it takes what runs statements here."""
        return repository(self._sql)

    def begin(self) -> None:
        """Begin a unit that writes."""
        self._sql.forget()
        self.audit.begin()

    def settle(self) -> bool:
        """End a unit that writes: the audit tells of every row of authority that it changed.

        Returns:
            True if it was an act, not of a machine's own, on one.
        """
        self.audit.settle(self._clock)
        return self.audit.hurries

    def purge(self, at: datetime, batch: int = 500) -> Purged:
        """Delete up to *batch* rows of each kind that nothing needs at *at*; return how many went."""
        return purge(self._sql, at, batch)
