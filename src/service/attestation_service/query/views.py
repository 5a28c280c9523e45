"""The tables of the query language: what may be asked of the service, column by column.

What does not stand here does not exist for a query. No token, secret, key or nonce, and no certificate; what a
machine or an operator wrote is text, and is shown as text.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    SQLColumnExpression,
    and_,
    case,
    func,
    literal,
    select,
    type_coerce,
)

from attestation.clock import to_micros
from attestation.store.machine_lists import trust_at
from attestation.store.tables import (
    ApprovalRow,
    AuditRow,
    Base,
    EKCertificateRow,
    HSMCertificateRow,
    IssuanceRow,
    MachineLabelRow,
    MachineRow,
    OutboxRow,
    ResultRow,
    table_of,
)
from attestation_service.context.identity import Right
from attestation_service.kql import Kind
from attestation_service.query.columns import Dialect, Shown, View, first_failed, object_of

READERS: Final = frozenset({Right.READ})
AUDITORS: Final = frozenset({Right.AUDIT})
BOTH: Final = READERS | AUDITORS

_STRING, _WHEN, _LONG, _BOOL = Kind.STRING, Kind.DATETIME, Kind.LONG, Kind.BOOL
_SPAN, _DYNAMIC = Kind.TIMESPAN, Kind.DYNAMIC


def views(at: datetime, dialect: Dialect = "sqlite") -> tuple[View, ...]:
    """Return the tables of the service as they are at *at*: what a result is worth and how old it is depend on it."""
    now = literal(to_micros(at), BigInteger())
    return (
        _machines(now, dialect),
        _audit_log(),
        _approvals(now),
        _attestations(dialect),
        _certificates(now),
        _hsm_certificates(now),
        _events(),
    )


class _Columns:
    """Columns of one table; those whose name is their column's need not say it."""

    def __init__(self, row: type[Base], rights: frozenset[Right]) -> None:
        self._columns, self._rights = table_of(row).c, rights
        self.shown: list[Shown] = []

    def add(
        self,
        name: str,
        kind: Kind,
        description: str,
        of: SQLColumnExpression[Any] | str | None = None,
        rights: frozenset[Right] | None = None,
        is_text: bool = False,
    ) -> None:
        """Show *of*, or the column called so, or called *name*."""
        expression = self._columns[of or name] if of is None or isinstance(of, str) else of
        self.shown.append(
            Shown(
                name=name,
                kind=kind,
                of=expression,
                description=description,
                rights=rights or self._rights,
                is_text=is_text,
            )
        )


def _passed(now: ColumnElement[int], since: ColumnElement[Any]) -> ColumnElement[int]:
    return now - type_coerce(since, BigInteger())


def _machines(now: ColumnElement[int], dialect: Dialect) -> View:
    machines, certificates = table_of(MachineRow), table_of(EKCertificateRow)
    labels, c = table_of(MachineLabelRow).c, table_of(MachineRow).c
    wears = (
        select(object_of(labels.key, labels.value, dialect))
        .where(labels.machine_id == c.machine_id)
        .correlate(machines)
        .scalar_subquery()
    )
    of = _Columns(MachineRow, READERS)
    add = of.add
    add("machine_id", _STRING, "UUID")
    add("hostname", _STRING, "What operators called it")
    add("role", _STRING, "What operators made of it")
    add(
        "status",
        _STRING,
        "Where it stands: pending_approval, registered, attested, locked, revoked, rejected",
    )
    add(
        "trust", _STRING, "What its last result is worth now: verified, failed, stale, unknown", trust_at(now)
    )
    add("cluster_id", _STRING, "The cluster that operators put it into")
    add("cluster", _STRING, "The same as cluster_id", "cluster_id")
    add("assurance", _STRING, "How well its identity is vouched for")
    add("last_verdict", _STRING, "Of its last result: Verified, Failed, Indeterminate")
    add(
        "last_attested_at",
        _WHEN,
        "When its last evidence was judged; null before the first",
        "last_result_at",
    )
    add("since_attested", _SPAN, "How long ago that was", _passed(now, c.last_result_at))
    add("last_policy", _STRING, "The policy of its last result, name@version")
    add("last_failed", _STRING, "The checks of its last result that failed, with commas between")
    add("trust_expires_at", _WHEN, "Until when its last result counts")
    add("heartbeat_missed_at", _WHEN, "When it was noticed that it did not attest again in time")
    add(
        "tpm_vendor",
        _STRING,
        "Who vouches for its TPM, as the trust bundle calls them",
        certificates.c.vendor,
    )
    add("tpm_manufacturer", _STRING, "TCG id in its EK certificate", "ek_certificate_manufacturer")
    add("tpm_model", _STRING, "Model in its EK certificate", "ek_certificate_model")
    add("tpm_firmware", _STRING, "Firmware version in its EK certificate", "ek_certificate_firmware")
    add("ek_source", _STRING, "Where its endorsement key came from: cert, pub, sev-snp, tdx")
    add("ek_fingerprint", _STRING, "SHA-384 of its endorsement key, hex")
    add("ek_chain_ok", _BOOL, "A chain leads from its EK certificate to an anchor")
    add("ek_chain_reason", _STRING, "Why it does, or why not", certificates.c.reason)
    add("ek_allow_listed", _BOOL, "Its key was admitted in advance")
    add("hw_product", _STRING, "Product, as the machine says")
    add("hw_serial", _STRING, "Serial number, as the machine says")
    add("hw_uuid", _STRING, "SMBIOS UUID, as the machine says")
    add("hw_mac", _STRING, "MAC address, as the machine says")
    add("hardware_kind", _STRING, "Confidential hardware that was seen: sev_snp, tdx; empty without any")
    add("firmware_blocked", _STRING, "The advisory that forbids its firmware")
    add("alarm", _STRING, "The newest alarm about it, until an operator admits or unlocks it")
    add("desired_role", _STRING, "The role that it asked for: a wish")
    add("desired_cluster_id", _STRING, "The cluster that it asked for: a wish")
    add("assigned_ip", _STRING, "Address that operators gave it, with prefix length")
    add("registered_from", _STRING, "Address that it introduced itself from")
    add("registered_at", _WHEN, "When it introduced itself first")
    add("age", _SPAN, "How long ago that was", _passed(now, c.registered_at))
    add("attested_at", _WHEN, "When its status became attested")
    add("locked_at", _WHEN, "When it was locked last")
    add("revoked_at", _WHEN, "When it was revoked")
    add("rejected_at", _WHEN, "When it was rejected")
    add("wipe_pending", _BOOL, "It will be told to wipe itself")
    add("wiped_at", _WHEN, "When it said that it had")
    add("config_owed_since", _WHEN, "Since when it is owed its configuration; null where it has it")
    add("config_failure", _STRING, "Why it does not have it")
    add("reset_count", _LONG, "Resets of its TPM")
    add("restart_count", _LONG, "Restarts of its TPM")
    add("shares_names", _BOOL, "Another machine of its cluster has its host name or address")
    add("labels", _DYNAMIC, "What operators wrote on it: labels.rack", wears)
    rows = machines.outerjoin(certificates, certificates.c.machine_id == c.machine_id)
    return View(
        name="Machines", description="One row a machine, as it is now", columns=tuple(of.shown), rows=rows
    )


def _audit_log() -> View:
    of, c = _Columns(AuditRow, AUDITORS), table_of(AuditRow).c
    add = of.add
    add("id", _LONG, "Its number in the log")
    add("ts", _WHEN, "When", "timestamp", is_text=True)
    add("actor", _STRING, "Who: an operator's name, SYSTEM for break-glass, machine, service", "operator_cn")
    add("actor_id", _STRING, "What stays the same when names change", "operator_sub")
    add("action", _STRING, "What was done, a word")
    add("machine_id", _STRING, "Which machine, where one is concerned")
    add("prev_state", _STRING, "Its status before")
    add("new_state", _STRING, "Its status after")
    add("result", _STRING, "The status after, or success", func.coalesce(c.new_state, "success"))
    add("detail", _STRING, "More about it")
    add("source_ip", _STRING, "Address that the request came from")
    add("prev_hash", _STRING, "Hash of the entry before")
    add("entry_hash", _STRING, "Hash of this one")
    return View(
        name="AuditLog",
        description="What was done and by whom: append-only. For auditors",
        columns=tuple(of.shown),
        rows=table_of(AuditRow),
    )


def _approvals(now: ColumnElement[int]) -> View:
    of, c = _Columns(ApprovalRow, BOTH), table_of(ApprovalRow).c
    state = case(
        (c.consumed_at.is_not(None), "used"),
        (c.void.is_not(None), "void"),
        (c.withdrawn_at.is_not(None), "withdrawn"),
        (c.lapsed_at.is_not(None) | (type_coerce(c.expires_at, BigInteger()) <= now), "expired"),
        else_="open",
    )
    add = of.add
    add("id", _LONG, "Its number")
    add("ts", _WHEN, "When the vote was cast", "created_at")
    add("actor", _STRING, "Who voted", "operator_cn")
    add("actor_id", _STRING, "What stays the same when names change", "operator_sub", AUDITORS)
    add("action", _STRING, "For what: approve, unlock, policy_assign …")
    add("machine_id", _STRING, "Which machine, where one is concerned")
    add("subject", _STRING, "What it is about, in words")
    add("result", _STRING, "What became of it: open, used, withdrawn, void, expired", state)
    add("reason", _STRING, "Why, in the voter's words")
    add("void", _STRING, "Why it became void")
    add("role", _STRING, "The role that was voted for")
    add("hostname", _STRING, "The host name that was voted for")
    add("assigned_ip", _STRING, "The address that was voted for")
    add("expires_at", _WHEN, "Until when it counts")
    add("used_at", _WHEN, "When the act was done", "consumed_at")
    add("withdrawn_at", _WHEN, "When it was taken back, or became void")
    add("proposal_digest", _STRING, "Votes for the same proposal have the same, 64 hex")
    return View(
        name="Approvals",
        description="Votes of operators where several must agree",
        columns=tuple(of.shown),
        rows=table_of(ApprovalRow),
    )


def _attestations(dialect: Dialect) -> View:
    of, c = _Columns(ResultRow, READERS), table_of(ResultRow).c
    add = of.add
    add("id", _LONG, "Its number")
    add("ts", _WHEN, "When the evidence was judged", "at")
    add("machine_id", _STRING, "Whose evidence")
    add("verdict", _STRING, "Verified, Failed, Indeterminate")
    add("result", _STRING, "The same as verdict", "verdict")
    add(
        "failed",
        _STRING,
        "The first check that failed; empty where none did",
        first_failed(c.outcomes, dialect),
    )
    add("checks", _DYNAMIC, "Every check: what came of it, its name, its texts", "outcomes")
    add("policy", _STRING, "The policy that it was judged by, name@version")
    add("assurance", _STRING, "How well the identity was vouched for")
    add("pcr_bank", _STRING, "Bank of the PCRs that were quoted")
    add("event_log_sha256", _STRING, "The boot event log that it rests on")
    return View(
        name="Attestations",
        description="Results of attestations: of each machine the newest, as many as are kept",
        columns=tuple(of.shown),
        rows=table_of(ResultRow),
    )


def _certificates(now: ColumnElement[int]) -> View:
    of, c = _Columns(IssuanceRow, READERS), table_of(IssuanceRow).c
    begins, ends = type_coerce(c.not_before, BigInteger()), type_coerce(c.not_after, BigInteger())
    add = of.add
    add("serial", _STRING, "40 hex")
    add("profile", _STRING, "For what it is good")
    add("state", _STRING, "reserved, issued, held, revoked, void")
    add("valid", _BOOL, "It is good now", and_(c.state == "issued", begins <= now, now < ends))
    add("machine_id", _STRING, "Whose it is; empty for operators")
    add("subject", _STRING, "The name in it")
    add("issuer_id", _STRING, "The key of the CA that signed it")
    add("requester", _STRING, "Who asked for it")
    add("key_tier", _LONG, "How well its key is protected; 1 is best")
    add("assurance", _STRING, "How well the identity was vouched for")
    add("renews", _STRING, "Serial of the one that it follows")
    add("not_before", _WHEN, "Since when it is good")
    add("not_after", _WHEN, "Until when it is good")
    add("expires_in", _SPAN, "How long that is; negative where it has ended", ends - now)
    add("issued_at", _WHEN, "When it was signed")
    add("ended_at", _WHEN, "When it was held, revoked or given up")
    add("reason", _STRING, "Why, a word of RFC 5280")
    add("note", _STRING, "Why, in words")
    add("spki_sha256", _STRING, "SHA-256 of its public key")
    return View(
        name="Certificates",
        description="What the service's CAs have signed",
        columns=tuple(of.shown),
        rows=table_of(IssuanceRow),
    )


def _hsm_certificates(now: ColumnElement[int]) -> View:
    of, c = _Columns(HSMCertificateRow, READERS), table_of(HSMCertificateRow).c
    begins, ends = type_coerce(c.not_before, BigInteger()), type_coerce(c.not_after, BigInteger())
    add = of.add
    add("serial", _STRING, "40 hex")
    add("state", _STRING, "reserved, issued, revoked, void")
    add("valid", _BOOL, "It is good now", and_(c.state == "issued", begins <= now, now < ends))
    add(
        "issuer_id",
        _STRING,
        "The CA key in hardware that signed it; `GET /hsm/issuers` says of which cluster",
    )
    add("kind", _STRING, "Kind of the request")
    add("namespace", _STRING, "Of the request")
    add("name", _STRING, "Of the request")
    add("request_uid", _STRING, "metadata.uid of the request")
    add("requester", _STRING, "Who made it, as the API server says")
    add("subject", _STRING, "The name in it")
    add("names", _STRING, "Subject alternative names, a JSON list")
    add("is_ca", _BOOL, "It certifies others")
    add("not_before", _WHEN, "Since when it is good")
    add("not_after", _WHEN, "Until when it is good")
    add("expires_in", _SPAN, "How long that is; negative where it has ended", ends - now)
    add("reserved_at", _WHEN, "When its serial number was taken")
    add("issued_at", _WHEN, "When it was written down")
    add("ended_at", _WHEN, "When it was revoked or given up")
    add("reason", _STRING, "Why, a word of RFC 5280")
    add("note", _STRING, "Why, in words")
    add("spki_sha256", _STRING, "SHA-256 of its public key")
    return View(
        name="HsmCertificates",
        description="What CA keys in hardware of Kubernetes clusters have signed",
        columns=tuple(of.shown),
        rows=table_of(HSMCertificateRow),
    )


def _events() -> View:
    of = _Columns(OutboxRow, READERS)
    add = of.add
    add("sequence", _LONG, "Its number")
    add("id", _STRING, "The same at every attempt to tell of it")
    add("event", _STRING, "What happened: node.attested, node.locked …")
    add("machine_id", _STRING, "To which machine, where one is concerned")
    add("ts", _WHEN, "When", "created_at")
    add("attempts", _LONG, "How often it was tried to hand it over")
    add("done_at", _WHEN, "When it was handed over; null where it waits")
    return View(
        name="Events",
        description="What subscribers are told of; kept for a while after it was handed over",
        columns=tuple(of.shown),
        rows=table_of(OutboxRow),
    )
