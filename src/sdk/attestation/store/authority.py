"""Which rows give authority: whoever writes one admits a machine, or decides by what machines are judged.

What the service writes into such a row is told by the audit entry of the same unit (`attestation.audit.authority`),
without anybody having to think of it: `sql.py` reads the row before and after. A new table of authority is one line
here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sqlalchemy import ColumnElement, Select, Table, and_, select, true

from attestation.store.tables import (
    ACMEOrderRow,
    ActiveConfigurationRow,
    AKBindingRow,
    AllowListTableRow,
    ApprovalRow,
    ApprovalRuleRow,
    CAChainRow,
    ChipMarkRow,
    ClusterRow,
    IssuanceRow,
    IssuerRow,
    MachineIdentityRow,
    MachineRow,
    NodeCSRRow,
    PolicyAssignmentRow,
    PolicyRow,
    RefusedKeyRow,
    RegistrationTokenRow,
    RunAttemptRow,
    TrustCertificateRow,
    table_of,
)


@dataclass(frozen=True, slots=True)
class AuthorityTable:
    """One table of authority.

    Args:
        name: What people call such a row.
        table: Where it is.
        key: The columns that name it, all written by whoever inserts it.
        columns: Those that say what it gives. What changes without anybody's act is not among them.
        counts: Which rows give anything; the others are as if they were not there.
    """

    name: str
    table: Table
    key: tuple[str, ...]
    columns: tuple[str, ...]
    counts: ColumnElement[bool]

    def select(self) -> Select[tuple[object, ...]]:
        """Return the query for rows: key, whether it counts, columns."""
        c = self.table.c
        return select(
            *(c[name] for name in self.key), self.counts.label("counts"), *(c[name] for name in self.columns)
        )


def _table(
    name: str, row: type, key: str, columns: str, *, nothing: tuple[str | None, ...] = (), says: str = "state"
) -> AuthorityTable:
    table = table_of(row)
    counts = and_(true(), *(table.c[says] != word for word in nothing))
    return AuthorityTable(name, table, tuple(key.split()), tuple(columns.split()), counts)


AUTHORITY: Final = {
    kind.table.name: kind
    for kind in (
        _table(
            "machine",
            MachineRow,
            "machine_id",
            "ek_fingerprint ek_public status role cluster_id hostname assigned_ip ek_allow_listed ek_chain_ok "
            "assurance ak_public ak_name name_key address_key shares_names wipe_pending wiped_at unlock_pending",
        ),
        _table(
            "identity", MachineIdentityRow, "kind value", "machine_id guest approved_chip approved_csp_id"
        ),
        _table("ak-binding", AKBindingRow, "ak_name", "ek_fingerprint machine_id"),
        _table("chip-mark", ChipMarkRow, "kind value machine_id", "ended_as ended_believed"),
        _table(
            "allow-list",
            AllowListTableRow,
            "ek_fingerprint",
            "role hostname assigned_ip cluster_id removed_at",
        ),
        # Who is let in without a person.
        _table(
            "approval-rule",
            ApprovalRuleRow,
            "name",
            "expression role cluster_id hostname minimum_assurance max_count used priority enabled",
        ),
        # Which documents its machines are given, and by which schema they are judged.
        _table("cluster", ClusterRow, "cluster_id", "talos_version"),
        _table(
            "token",
            RegistrationTokenRow,
            "token_id",
            "token_sha256 role hostname assigned_ip cluster_id uses uses_left expires_at revoked_at minimum_assurance",
        ),
        _table(
            "vote",
            ApprovalRow,
            "proposal_digest operator_sub created_at",
            "action machine_id operator_cn role proposal expires_at consumed_at withdrawn_at lapsed_at void "
            "certificate",
        ),
        _table("refused-key", RefusedKeyRow, "spki_sha256", "why"),
        _table("policy", PolicyRow, "name version", "sha256 document"),
        _table("assignment", PolicyAssignmentRow, "scope subject", "policy_name policy_version agreed"),
        _table(
            "configuration",
            ActiveConfigurationRow,
            "cluster_id role machine_id",
            "version sha256 previous agreed mark",
        ),
        _table("anchor", TrustCertificateRow, "sha256", "certificate role vendor status"),
        _table(
            "ca-key",
            IssuerRow,
            "issuer_id",
            "purpose algorithm state key_uri spki_sha256 certificate cross_certificates",
            nothing=("reserved", "abandoned"),
        ),
        _table("ca-chain", CAChainRow, "issuer_id", "chain"),
        _table(
            "certificate",
            IssuanceRow,
            "serial",
            "issuer_id profile state machine_id spki_sha256 not_after certificate",
            nothing=("reserved", "void"),
        ),
        _table(
            "node-request",
            NodeCSRRow,
            "cluster_id csr_uid",
            "content_sha256 decision machine_id node_name tier serial",
            nothing=("deny",),
            says="decision",
        ),
        _table(
            "run-attempt",
            RunAttemptRow,
            "challenge_id",
            "run_id attempt random verdict machine_id result",
            # Every verdict: one that is taken back makes a node trusted less, and a failure that is hidden more.
            nothing=(None,),
            says="verdict",
        ),
        _table(
            "acme-order",
            ACMEOrderRow,
            "order_id",
            "account_id kind value machine_id status thumbprint spki ak_name boot expires_at",
            # What is ready becomes a certificate without being judged again.
            nothing=("pending", "valid", "invalid"),
            says="status",
        ),
    )
}
"""By the name of the table."""

NOT_AUTHORITY: Final = {
    "database_identity": "names the database; the keys beside it remember it",
    "schema_support": "says which code may run on the tables",
    "ek_certificates": "who vouches for a TPM: evidence, judged again by the bundle in force",
    "ak_certificates": "who vouches for an AK: evidence, judged again by the anchors in force",
    "collateral": "who vouches for confidential hardware: verified under the pinned anchors whenever it is loaded",
    "measurement_logs": "evidence",
    "attestation_results": "what was judged; what it gave is in the machine's row",
    "challenges": "asks for evidence, and admits nobody without",
    "node_csr_challenges": "asks for evidence, and admits nobody without",
    "runs": "asks a node for evidence; what was judged names the run as it was then",
    "run_blobs": "evidence",
    "run_seals": "what is to be signed, compared with what was judged; what was signed stands in the audit",
    "acme_keys": "let somebody make an account; what they are is derived from the service's key",
    "acme_accounts": "ask, and have nothing: an order names the key that may finalize it",
    "acme_nonces": "refuse what was used before",
    "hsm_issuers": "CAs of others, whom nobody here believes; what is registered stands in the audit",
    "hsm_certificates": "certificates of others, by which nobody is let in here; each stands in the audit",
    "hsm_crls": "signed by the key that it speaks of",
    "hsm_delegates": "sealed to the service's key; speaks for a CA whom nobody here believes",
    "hsm_nonces": "refuses what was used before",
    "hsm_quotes": "evidence, and what it proved to others; each verdict stands in the audit",
    "configurations": "delivered only where they are active, and by their SHA-256; sealed under ITL_CONFIG_KEK",
    "console_codes": "say that somebody stood at a console; nothing is released on them, and each stands in the audit",
    "config_tokens": "good for one delivery, sealed to the TPM that the machine's row names",
    "ocsp_delegates": "sealed to the service's key; its certificate is a row of its own",
    "ca_crls": "signed, and made anew from the certificates",
    "audit_log": "the log itself",
    "audit_nodes": "the log's tree, compared with it",
    "audit_checkpoints": "signed",
    "audit_countersignatures": "signed by others",
    "machine_labels": "operators' own words; nothing that judges reads them",
    "saved_queries": "operators' own words; whoever runs one sees what they may see",
    "outbox": "tells of what was done",
    "handovers": "tells subscribers of what was done",
    "rate_limits": "slows down",
    "chores": "says which process does what any of them may do",
    "known_keys": "refuses other keys; what a key may do stands where it is trusted",
    "acts": "tells whoever asks again what was done; what was done has rows of its own",
    "revisions": "counts what judgements rest on; what is counted has rows of its own",
    "policy_history": "tells of what was assigned",
}
"""Every other table, and why a row of it gives nothing by itself."""
