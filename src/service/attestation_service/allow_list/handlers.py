"""The allow-list: EKs that operators admit before they were ever seen, imported as JSON or CSV."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Annotated

from fastapi import Path

from attestation.api import (
    AllowListEntry,
    AllowListImport,
    AllowListImported,
    AllowListItem,
    AllowListPage,
    PendingApproval,
)
from attestation.errors import AllowListEntryUnknown, RequestInvalid
from attestation.machines import DEFAULT_CLUSTER
from attestation.machines.dual_control import Admission, of_allow_list
from attestation.machines.names import names_of
from attestation.store import AllowListRow, Tx
from attestation_service.auth import Operator, OperatorDep
from attestation_service.border.bodies import parse_json
from attestation_service.context.reach import demand_cluster, demand_ek, holds
from attestation_service.entitlements import names
from attestation_service.operators import dual_control
from attestation_service.resources import Res, Resources
from attestation_service.routing.parameters import Cursor, Limit
from attestation_service.settings import Settings

COLUMNS = tuple(AllowListEntry.model_fields)
REQUIRED_COLUMNS = ("ek_fingerprint", "role")
ENTRIES_PER_AUDIT = 80
"""So many EKs are named in one audit entry, which is limited in length."""


def parse_csv(body: bytes) -> AllowListImport:
    """Read CSV (RFC 4180) with a header line; columns may stand in any order, optional ones may be absent.

    Raises:
        RequestInvalid: Not CSV of ours, with the line and the column.
        RequestValidationError: A value is not allowed.
    """
    try:
        text = body.decode("utf-8-sig")
    except UnicodeDecodeError as e:
        raise RequestInvalid("CSV is not UTF-8") from e
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    try:
        header = reader.fieldnames or []
        unknown = sorted(set(header) - set(COLUMNS))
        missing = [name for name in REQUIRED_COLUMNS if name not in header]
        if unknown or missing or len(set(header)) != len(header):
            raise RequestInvalid(
                f"CSV header: unknown {unknown[:5]}, missing {missing}, columns are {', '.join(COLUMNS)}"
            )
        rows = []
        for row in reader:
            if None in row or None in row.values():
                raise RequestInvalid(f"CSV line {reader.line_num}: not as many values as columns")
            rows.append({name: value for name, value in row.items() if value != ""})
    except csv.Error as e:
        raise RequestInvalid(f"CSV line {reader.line_num}: {e}") from e
    return parse_json(AllowListImport, json.dumps({"entries": rows}).encode())


async def import_entries(
    wanted: AllowListImport, *, res: Resources, operator: Operator
) -> AllowListImported | PendingApproval:
    """Store entries, all or none; an EK that is listed already gets the new entry.

    Raises:
        RequestInvalid: An EK is named twice, or two entries are called alike.
        NameInUse: A machine with another EK is called like an entry.
        ClusterUnknown: An entry names a cluster that nobody declared.
        BreakGlassCannotVote: Several people must agree to it.
    """
    at = res.clock.now()
    fingerprints = [entry.ek_fingerprint for entry in wanted.entries]
    if len(set(fingerprints)) != len(fingerprints):
        twice = next(f for f in fingerprints if fingerprints.count(f) > 1)
        raise RequestInvalid(f"EK {twice} is named twice")
    _demand_apart(wanted.entries)
    rows = [
        AllowListRow(**entry.model_dump(), created_at=at, created_by=operator.cn) for entry in wanted.entries
    ]

    def work(tx: Tx) -> AllowListImported | PendingApproval:
        _demand_reach(tx, operator, rows)
        for cluster_id in sorted({row.cluster_id or DEFAULT_CLUSTER for row in rows}):
            tx.clusters.demand_known(cluster_id)
        for row in rows:
            _demand_free(tx, row, res.settings)
        agreed = _agreed(tx, rows, res, operator, at)
        if isinstance(agreed, PendingApproval):
            return agreed
        if agreed.voters:
            told = agreed.told(f"{len(rows)} entries")
            tx.audit.append(operator.event("allow_list_approved", detail=told), at)
        added = 0
        for first in range(0, len(rows), ENTRIES_PER_AUDIT):
            some = rows[first : first + ENTRIES_PER_AUDIT]
            added += sum(tx.allow_list.put(row) for row in some)
            tx.audit.append(operator.event("allow_list_import", detail=_summary(some)), at)
        return AllowListImported(added=added, replaced=len(rows) - added)

    return await dual_control.write(work, res=res, operator=operator, at=at)


def _demand_reach(tx: Tx, operator: Operator, rows: Sequence[AllowListRow]) -> None:
    """Check that *operator* may list *rows*, and take the place of what was said of these EKs, also long ago.

    Raises:
        Forbidden: For a cluster that is none of theirs, or an EK that is known in such a one.
    """
    if operator.clusters is None:
        return
    for wanted in rows:
        demand_cluster(operator, wanted.cluster_id)
        ek = wanted.ek_fingerprint
        demand_ek(operator, tx.allow_list.ever(ek), tx.machines.by_ek(ek))


def _demand_apart(entries: Sequence[AllowListEntry]) -> None:
    """Check that no two of *entries* would make machines of one cluster that are called alike."""
    seen: set[tuple[str, str]] = set()
    for entry in entries:
        names = names_of(entry.hostname, entry.assigned_ip)
        for name in (names.hostname, names.address):
            called = (entry.cluster_id or DEFAULT_CLUSTER, name or "")
            if name is not None and called in seen:
                raise RequestInvalid(f"two entries of cluster {called[0]} have {name}")
            seen.add(called)


def _demand_free(tx: Tx, row: AllowListRow, settings: Settings) -> None:
    """Check that no machine with another EK is called like *row*; asked again when the machine comes."""
    if row.hostname is None and row.assigned_ip is None:
        return
    own = tx.machines.by_ek(row.ek_fingerprint)
    names.demand_free(
        tx,
        settings,
        own.machine_id if own is not None else "",
        row.cluster_id or DEFAULT_CLUSTER,
        row.hostname,
        row.assigned_ip,
    )


def _agreed(
    tx: Tx, rows: Sequence[AllowListRow], res: Resources, operator: Operator, at: datetime
) -> dual_control.Agreed | PendingApproval:
    """Ask dual control about *rows* and the entries that give way to them; that costs a read of each."""
    if not dual_control.rule_of(res.settings).is_on:
        return dual_control.alone(operator)
    # Removed ones too: otherwise one operator could remove what two agreed on, and list it again as they like.
    listed = (tx.allow_list.ever(row.ek_fingerprint) for row in rows)
    wanted = [_admission(row) for row in rows]
    proposal = of_allow_list(wanted, [_admission(row) for row in listed if row is not None])
    sent = json.dumps([asdict(entry) for entry in wanted], ensure_ascii=False, separators=(",", ":"))
    return dual_control.gate(tx, proposal, operator, res, at, document=sent)


def _admission(row: AllowListRow) -> Admission:
    return Admission(**{name: getattr(row, name) for name in COLUMNS})


async def list_entries(
    cursor: Cursor = None, limit: Limit = 50, *, res: Res, operator: OperatorDep
) -> AllowListPage:
    """List the EKs admitted in advance.

    In the order of their fingerprints.
    """
    page = await res.store.read(lambda tx: tx.allow_list.page(cursor, limit, operator.clusters))
    return AllowListPage(
        items=[
            AllowListItem(**{name: getattr(row, name) for name in AllowListItem.model_fields})
            for row in page.items
        ],
        next_cursor=page.next_cursor,
    )


async def remove(
    ek_fingerprint: Annotated[str, Path(pattern=r"^[0-9a-f]{96}$")], *, res: Res, operator: OperatorDep
) -> None:
    """Remove an EK from the allow-list.

    Machines already admitted stay.

    Raises:
        AllowListEntryUnknown: It is not on the list.
    """
    at = res.clock.now()

    def work(tx: Tx) -> None:
        entry = tx.allow_list.get(ek_fingerprint)
        if entry is not None and not holds(operator, entry.cluster_id):
            raise AllowListEntryUnknown("this EK is not on the allow-list")
        tx.allow_list.remove(ek_fingerprint, at)
        tx.audit.append(operator.event("allow_list_remove", detail=f"EK {ek_fingerprint}"), at)

    await res.store.write(work)


def _summary(rows: Sequence[AllowListRow]) -> str:
    return json.dumps({row.ek_fingerprint: row.role.value for row in rows}, separators=(",", ":"))
