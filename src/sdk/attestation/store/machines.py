"""Machines in the database: one row each, found by id or EK, changed only by whoever saw the last change."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any

from sqlalchemy import and_, bindparam, case, delete, func, or_, select, text, update

from attestation.clock import from_micros, to_micros
from attestation.errors import EKConflict, MachineChanged, MachineUnknown, NameInUse, RequestInvalid
from attestation.machines import ClockState, EKCertificateInfo, Machine, Role, Status, Trust
from attestation.machines.names import NAMELESS, Names, names_of
from attestation.results import Assurance, Verdict
from attestation.store.labels import wears
from attestation.store.pages import Page, before_id, checked_limit, page_of
from attestation.store.policies import revision_of_policies
from attestation.store.sql import Executor, Prepared, Row, signed, unsigned
from attestation.store.tables import LEASED, MachineRow, table_of

_T = table_of(MachineRow)
_C = _T.c
_STATUS = {word.value: word for word in Status}
_ROLE: dict[str | None, Role | None] = {None: None, **{word.value: word for word in Role}}
_ASSURANCE = {word.value: word for word in Assurance}
_VERDICT: dict[str | None, Verdict | None] = {None: None, **{word.value: word for word in Verdict}}
_VERDICT_WORD: dict[Verdict | None, str | None] = {word: text for text, word in _VERDICT.items()}
_SEARCHED = frozenset({"hostname", "hw_serial", "hw_mac", "hw_uuid"})
_NAMING = frozenset({"hostname", "assigned_ip", "cluster_id"})


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineFilter:
    """Which machines a list shows; None means any.

    Args:
        status: Exactly this status.
        role: Exactly this role.
        cluster_id: Exactly this cluster.
        q: Part of hostname, serial, MAC or UUID, or the beginning of machine id or EK fingerprint; without
            regard to case, no character is special.
        labels: Each of these labels; with any value where it is None.
    """

    status: Status | None = None
    role: Role | None = None
    cluster_id: str | None = None
    q: str | None = None
    labels: Mapping[str, str | None] = dataclasses.field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Namesake:
    """A machine, neither revoked nor rejected, that is called like another one.

    Args:
        machine_id: Which.
        cluster_id: Where.
        ek_fingerprint: Of its EK, 96 lower-case hex.
        names: What it has in common; None what not.
    """

    machine_id: str
    cluster_id: str
    ek_fingerprint: str
    names: Names


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineCounts:
    """How many machines there are, each counted once in every table; what nobody is in is absent.

    Args:
        by_status: Of each status.
        by_role: Of each role; None counts those without one.
        by_trust: Whose last result is worth so much now.
    """

    by_status: Mapping[Status, int]
    by_role: Mapping[Role | None, int]
    by_trust: Mapping[Trust, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """How many machines await approval, and how many bytes their certificates take."""

    rows: int
    kept_bytes: int


def _micros(at: datetime | None) -> int | None:
    return None if at is None else to_micros(at)


def _instant(micros: int | None) -> datetime | None:
    return None if micros is None else from_micros(micros)


def decode(row: Row) -> Machine:
    """Return the machine in *row*, all columns in the order of the table."""
    (
        _,
        machine_id,
        version,
        status,
        role,
        cluster_id,
        ek_fingerprint,
        ek_public,
        ek_source,
        ek_template,
        subject,
        manufacturer,
        model,
        firmware,
        sha256,
        assurance,
        ek_chain_ok,
        ek_allow_listed,
        hw_uuid,
        hw_mac,
        hw_serial,
        hw_product,
        desired_role,
        hostname,
        assigned_ip,
        registered_from,
        registered_at,
        attested_at,
        locked_at,
        revoked_at,
        rejected_at,
        wipe_pending,
        wiped_at,
        ak_public,
        ak_name,
        ak_activated_at,
        clock_ms,
        reset_count,
        restart_count,
        clock_safe,
        firmware_version,
        last_verdict,
        last_result_at,
        last_policy,
        last_failed,
        last_result_key,
        trust_expires_at,
        directive_sha256,
        event_log_sha256,
        heartbeat_missed_at,
        firmware_attested,
        firmware_blocked,
        _,
        desired_cluster_id,
        alarm,
        kept_bytes,
        unlock_pending,
        pinned_keys,
        shares_names,
        _,
        _,
        config_owed_since,
        config_failure,
    ) = row
    return Machine(
        machine_id=machine_id,
        version=version,
        status=_STATUS[status],
        role=_ROLE[role],
        cluster_id=cluster_id,
        ek_fingerprint=ek_fingerprint,
        ek_public=ek_public,
        ek_source=ek_source,
        ek_template=ek_template,
        ek_certificate=None
        if sha256 is None
        else EKCertificateInfo(
            subject=subject, manufacturer=manufacturer, model=model, firmware=firmware, sha256=sha256
        ),
        assurance=_ASSURANCE[assurance],
        ek_chain_ok=bool(ek_chain_ok),
        ek_allow_listed=bool(ek_allow_listed),
        hw_uuid=hw_uuid,
        hw_mac=hw_mac,
        hw_serial=hw_serial,
        hw_product=hw_product,
        desired_role=_ROLE[desired_role],
        hostname=hostname,
        assigned_ip=assigned_ip,
        registered_from=registered_from,
        registered_at=from_micros(registered_at),
        attested_at=_instant(attested_at),
        locked_at=_instant(locked_at),
        revoked_at=_instant(revoked_at),
        rejected_at=_instant(rejected_at),
        wipe_pending=bool(wipe_pending),
        wiped_at=_instant(wiped_at),
        config_owed_since=_instant(config_owed_since),
        ak_public=ak_public,
        ak_name=ak_name,
        ak_activated_at=_instant(ak_activated_at),
        clock=None
        if clock_ms is None
        else ClockState(
            clock_ms=unsigned(clock_ms),
            reset_count=reset_count,
            restart_count=restart_count,
            safe=bool(clock_safe),
            firmware_version=unsigned(firmware_version),
        ),
        last_verdict=_VERDICT[last_verdict],
        last_result_at=_instant(last_result_at),
        last_policy=last_policy,
        last_failed=last_failed,
        last_result_key=last_result_key,
        trust_expires_at=_instant(trust_expires_at),
        directive_sha256=directive_sha256,
        event_log_sha256=event_log_sha256,
        heartbeat_missed_at=_instant(heartbeat_missed_at),
        firmware_attested=None if firmware_attested is None else unsigned(firmware_attested),
        firmware_blocked=firmware_blocked,
        desired_cluster_id=desired_cluster_id,
        alarm=alarm,
        kept_bytes=kept_bytes,
        unlock_pending=bool(unlock_pending),
        pinned_keys=pinned_keys,
        shares_names=bool(shares_names),
        config_failure=config_failure,
    )


def _clock_columns(clock: ClockState | None) -> dict[str, object]:
    if clock is None:
        names = ("clock_ms", "reset_count", "restart_count", "clock_safe", "firmware_version")
        return dict.fromkeys(names)
    return {
        "clock_ms": signed(clock.clock_ms),
        "reset_count": clock.reset_count,
        "restart_count": clock.restart_count,
        "clock_safe": clock.safe,
        "firmware_version": signed(clock.firmware_version),
    }


def _encode(changes: Mapping[str, Any]) -> dict[str, object]:
    """Return fields of a machine as columns."""
    columns: dict[str, object] = {}
    for field, value in changes.items():
        if field == "clock":
            columns |= _clock_columns(value)
        elif field == "ek_certificate":
            for part in EKCertificateInfo.__slots__:
                columns[f"ek_certificate_{part}"] = None if value is None else getattr(value, part)
        elif isinstance(value, datetime):
            columns[field] = to_micros(value)
        elif field == "firmware_attested" and value is not None:
            columns[field] = signed(value)
        elif isinstance(value, Status | Role | Assurance | Verdict):
            columns[field] = value.value
        else:
            columns[field] = value
    return columns


def _keys(machine: Machine) -> Names:
    """Return what *machine* is called as it is compared; nothing where it is called nothing any more."""
    if machine.status in NAMELESS:
        return Names(hostname=None, address=None)
    return names_of(machine.hostname, machine.assigned_ip)


def _key_columns(keys: Names) -> dict[str, object]:
    return {"name_key": keys.hostname, "address_key": keys.address}


def _search_text(machine: Machine) -> str:
    """Return what `q` looks through anywhere; no value contains the separator."""
    return "\n".join((machine.hostname or "", machine.hw_serial, machine.hw_mac, machine.hw_uuid)).lower()


def _escaped(text: str) -> str:
    r"""Return *text* for LIKE with `\` as escape: no character is special."""
    return text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")


_FIELDS = tuple(f.name for f in dataclasses.fields(Machine))
_COLUMNS = tuple(c.name for c in _C)

_BY_ID = Prepared(select(_T).where(_C.machine_id == bindparam("machine_id")))
_BY_EK = Prepared(select(_T).where(_C.ek_fingerprint == bindparam("ek_fingerprint")))
_ADD = Prepared(
    lambda insert: (
        insert(_T)
        .values({name: bindparam(name) for name in _COLUMNS if name != "id"})
        .on_conflict_do_nothing()
    )
)
_RENEWED = (
    *("clock_ms", "reset_count", "restart_count", "clock_safe", "firmware_version"),
    *("last_verdict", "last_result_at", "last_policy", "last_failed", "last_result_key", "trust_expires_at"),
    "heartbeat_missed_at",
)


def _renew(*columns: str) -> Prepared:
    return Prepared(
        update(_T)
        .where(
            _C.machine_id == bindparam("of_machine"),
            _C.version == bindparam("of_version"),
            revision_of_policies == bindparam("of_revision"),
            _C.last_result_at.is_not_distinct_from(bindparam("of_last_result_at")),
        )
        .values({name: bindparam(name) for name in columns})
    )


_RENEW = _renew(*_RENEWED)
# The log is named in an index, which the steady state shall not write.
_RENEW_LOG = _renew(*_RENEWED, "event_log_sha256")
_OVERDUE = and_(text(LEASED), _C.trust_expires_at <= bindparam("before"))
# The condition of the partial index word for word, or it is not used.
_LAPSED = Prepared(
    select(_T).where(_OVERDUE).order_by(_C.trust_expires_at, _C.id).limit(bindparam("rows")),
    sqlite_index=("machines", "ix_machines_trust_expires_at"),
)
_MISS = Prepared(
    update(_T)
    .where(_C.machine_id == bindparam("of_machine"), _OVERDUE)
    .values(heartbeat_missed_at=bindparam("at"))
)
# NULL equals nothing: who has no name is called like nobody.
_CALLED = or_(_C.name_key == bindparam("name"), _C.address_key == bindparam("address"))
_NAMESAKES = Prepared(
    select(_C.machine_id, _C.cluster_id, _C.ek_fingerprint, _C.name_key, _C.address_key)
    .where(_CALLED, _C.machine_id != bindparam("besides"))
    .order_by(_C.id)
)
_SHARING_WITH = Prepared(
    select(_C.machine_id, _C.name_key, _C.address_key)
    .where(_CALLED, _C.cluster_id == bindparam("cluster_id"), _C.shares_names)
    .order_by(_C.id)
)
_ALONE = Prepared(update(_T).where(_C.machine_id == bindparam("of_machine")).values(shares_names=False))
_SHARING = Prepared(select(_T).where(_C.shares_names).order_by(_C.id).limit(bindparam("rows")))
_DELETE = Prepared(delete(_T).where(_C.machine_id == bindparam("machine_id")))
_PENDING = _C.status == Status.PENDING_APPROVAL.value
_WEIGHED = select(func.count(), func.coalesce(func.sum(_C.kept_bytes), 0)).select_from(_T).where(_PENDING)
_WEIGH_PENDING = Prepared(_WEIGHED)
_WEIGH_PENDING_FROM = Prepared(_WEIGHED.where(_C.registered_from == bindparam("registered_from")))
_WEIGH_PENDING_KIND = Prepared(_WEIGHED.where(_C.ek_chain_ok == bindparam("vouched")))
_OLDEST_PENDING = Prepared(select(_T).where(_PENDING).order_by(_C.id).limit(bindparam("rows")))
_COUNT_PINNED = Prepared(
    select(func.count()).select_from(_T).where(_C.pinned_keys == bindparam("pinned_keys"))
)
_COUNT_BY_STATUS = Prepared(select(_C.status, func.count()).group_by(_C.status))
_ROLES_IN_USE = Prepared(
    select(_C.cluster_id, _C.role)
    .where(
        _C.role.is_not(None),
        or_(*(_C.status == each.value for each in (Status.REGISTERED, Status.ATTESTED, Status.LOCKED))),
    )
    .distinct()
    .order_by(_C.cluster_id, _C.role)
)
_COUNT_BY_ROLE = Prepared(select(_C.role, func.count()).group_by(_C.role))
# The same rule as `Machine.trust`; a test compares them.
_TRUST = case(
    (_C.last_verdict.is_(None) | (_C.last_verdict == Verdict.INDETERMINATE.value), Trust.UNKNOWN.value),
    (_C.last_verdict == Verdict.FAILED.value, Trust.FAILED.value),
    (_C.trust_expires_at.is_(None) | (_C.trust_expires_at <= bindparam("at")), Trust.STALE.value),
    else_=Trust.VERIFIED.value,
).label("trust")
_COUNT_BY_TRUST = Prepared(select(_TRUST, func.count()).group_by(text("trust")))


@lru_cache(maxsize=64)
def _update(columns: tuple[str, ...]) -> Prepared:
    return Prepared(
        update(_T)
        .where(_C.machine_id == bindparam("of_machine"), _C.version == bindparam("of_version"))
        .values({name: bindparam(name) for name in columns})
    )


@lru_cache(maxsize=32)
def _page(filters: tuple[str, ...], labels: tuple[bool, ...] = ()) -> Prepared:
    """Return the statement for a page: under these filters, and labels of which it is known which have a value."""
    conditions = {
        "status": _C.status == bindparam("status"),
        "role": _C.role == bindparam("role"),
        "cluster_id": _C.cluster_id == bindparam("cluster_id"),
        "q": or_(
            _C.search.like(bindparam("part"), escape="\\"),
            _C.machine_id.like(bindparam("start"), escape="\\"),
            _C.ek_fingerprint.like(bindparam("start"), escape="\\"),
        ),
    }
    worn = [wears(_C.machine_id, number, valued=valued) for number, valued in enumerate(labels)]
    chosen = and_(_C.id < bindparam("before"), *(conditions[name] for name in filters), *worn)
    rows = select(_T).where(chosen).order_by(_C.id.desc()).limit(bindparam("rows"))
    if filters == ("q",) and not labels:
        # Searching reads the narrow index over what is searched; only the rows found are read whole.
        found = select(_C.id).where(chosen).order_by(_C.id.desc()).limit(bindparam("rows"))
        rows = select(_T).where(_C.id.in_(found)).order_by(_C.id.desc())
    return Prepared(rows)


class Machines:
    """The machines, inside one unit of work."""

    __slots__ = ("_sql",)

    def __init__(self, sql: Executor) -> None:
        self._sql = sql

    def by_id(self, machine_id: str) -> Machine | None:
        """Return the machine called *machine_id*, or None."""
        row = self._sql.row(_BY_ID, machine_id=machine_id)
        return None if row is None else decode(row)

    def require(self, machine_id: str) -> Machine:
        """Return the machine called *machine_id*.

        Raises:
            MachineUnknown: No such machine.
        """
        machine = self.by_id(machine_id)
        if machine is None:
            raise MachineUnknown("no such machine")
        return machine

    def by_ek(self, ek_fingerprint: str) -> Machine | None:
        """Return the machine whose EK has this fingerprint (96 lower-case hex), or None."""
        row = self._sql.row(_BY_EK, ek_fingerprint=ek_fingerprint)
        return None if row is None else decode(row)

    def add(self, machine: Machine) -> None:
        """Store a new machine.

        Raises:
            EKConflict: Its id or its EK is stored already.
            NameInUse: Another one of its cluster is called so.
        """
        if not machine.shares_names:
            self.demand_free(machine.machine_id, machine.cluster_id, machine.hostname, machine.assigned_ip)
        columns = _encode({name: getattr(machine, name) for name in _FIELDS}) | _key_columns(_keys(machine))
        if self._sql.run(_ADD, **columns, search=_search_text(machine)) != 1:
            raise EKConflict("this machine id or EK is registered already")

    def update(self, machine: Machine, **changes: object) -> Machine:
        """Change fields of *machine*, which must still be at its version, and return it at the next one.

        Raises:
            MachineChanged: Somebody changed or deleted it since it was read.
            NameInUse: It would be called like another one of its cluster.
        """
        after: Machine = dataclasses.replace(machine, **{**changes, "version": machine.version + 1})  # type: ignore[arg-type]  # replace() refuses unknown names itself
        columns = _encode({**changes, "version": after.version})
        renamed = not _NAMING.isdisjoint(changes) or (machine.status in NAMELESS) != (
            after.status in NAMELESS
        )
        if renamed:
            # Only here: what was called so before it was a rule can still be locked, or attest.
            if after.status not in NAMELESS:
                self.demand_free(after.machine_id, after.cluster_id, after.hostname, after.assigned_ip)
            after = dataclasses.replace(after, shares_names=False)
            columns |= {**_key_columns(_keys(after)), "shares_names": False}
        if not _SEARCHED.isdisjoint(changes):
            columns["search"] = _search_text(after)
        statement = _update(tuple(sorted(columns)))
        if (
            self._sql.run(statement, of_machine=machine.machine_id, of_version=machine.version, **columns)
            != 1
        ):
            raise MachineChanged(f"machine {machine.machine_id} was changed meanwhile; ask again")
        if renamed:
            self._settle(machine)
        return after

    # Names

    def namesakes(self, names: Names, *, besides: str) -> list[Namesake]:
        """Return the machines of every cluster that share one of *names* with the machine *besides*, oldest first."""
        rows = self._sql.rows(_NAMESAKES, name=names.hostname, address=names.address, besides=besides)
        return [
            Namesake(
                machine_id=machine_id,
                cluster_id=cluster_id,
                ek_fingerprint=ek_fingerprint,
                names=Names(
                    hostname=name if name == names.hostname else None,
                    address=address if address == names.address else None,
                ),
            )
            for machine_id, cluster_id, ek_fingerprint, name, address in rows
        ]

    def demand_free(
        self, machine_id: str, cluster_id: str, hostname: str | None, assigned_ip: str | None
    ) -> None:
        """Check that the machine can be called so in that cluster; it need not exist yet.

        Raises:
            NameInUse: Another one is called so; the message names it, which is for operators only.
        """
        for other in self.namesakes(names_of(hostname, assigned_ip), besides=machine_id):
            if other.cluster_id == cluster_id:
                raise NameInUse(
                    f"{other.names.told()} in cluster {cluster_id} is that of machine {other.machine_id}"
                )

    def sharing(self, limit: int) -> list[Machine]:
        """Return machines that were called like another one before that was forbidden, oldest first."""
        return [decode(row) for row in self._sql.rows(_SHARING, rows=limit)]

    def _settle(self, freed: Machine) -> None:
        """Where what *freed* was called leaves another one alone with its names, they are its own from now on."""
        was = names_of(freed.hostname, freed.assigned_ip)
        rows = self._sql.rows(
            _SHARING_WITH, name=was.hostname, address=was.address, cluster_id=freed.cluster_id
        )
        for machine_id, name, address in rows:
            others = self.namesakes(Names(hostname=name, address=address), besides=machine_id)
            if all(other.cluster_id != freed.cluster_id for other in others):
                self._sql.run(_ALONE, of_machine=machine_id)

    def renew(
        self,
        machine: Machine,
        *,
        revision: int,
        clock: ClockState | None,
        last_verdict: Verdict | None,
        last_result_at: datetime | None,
        last_policy: str | None,
        last_failed: str | None,
        last_result_key: str | None,
        trust_expires_at: datetime | None,
        event_log_sha256: str | None,
        heartbeat_missed_at: datetime | None,
    ) -> None:
        """Store what an attestation established; the hot path, so the version stays.

        It holds only for what was judged: whatever an operator or a distrust did to the machine meanwhile, or to the
        policies (`revision`), or another attestation established, is not undone.

        Raises:
            MachineChanged: The machine or what applies is not what was judged any more, or it is gone.
        """
        changed = self._sql.run(
            _RENEW if event_log_sha256 == machine.event_log_sha256 else _RENEW_LOG,
            of_machine=machine.machine_id,
            of_version=machine.version,
            of_revision=revision,
            of_last_result_at=_micros(machine.last_result_at),
            **_clock_columns(clock),
            last_verdict=_VERDICT_WORD[last_verdict],
            last_result_at=_micros(last_result_at),
            last_policy=last_policy,
            last_failed=last_failed,
            last_result_key=last_result_key,
            trust_expires_at=_micros(trust_expires_at),
            event_log_sha256=event_log_sha256,
            heartbeat_missed_at=_micros(heartbeat_missed_at),
        )
        if changed != 1:
            raise MachineChanged(
                f"machine {machine.machine_id} or its policies are not what was judged at version {machine.version}"
            )

    def lapsed(self, before: datetime, limit: int) -> list[Machine]:
        """Return attested machines whose lease ended at *before* or earlier and was not noticed; the oldest first."""
        rows = self._sql.rows(_LAPSED, before=to_micros(before), rows=limit)
        return [decode(row) for row in rows]

    def miss(self, machine_id: str, before: datetime, at: datetime) -> bool:
        """Note that the lease of a machine has lapsed: one atomic statement, so one of any number of workers does.

        Returns:
            False where another worker was first, or the machine attested meanwhile.
        """
        return self._sql.run(_MISS, of_machine=machine_id, before=to_micros(before), at=to_micros(at)) == 1

    def counts(self, at: datetime) -> MachineCounts:
        """Count the machines by status, by role and by what their last result is worth at *at*."""
        return MachineCounts(
            by_status={_STATUS[word]: count for word, count in self._sql.rows(_COUNT_BY_STATUS)},
            by_role={_ROLE[word]: count for word, count in self._sql.rows(_COUNT_BY_ROLE)},
            by_trust={
                Trust(word): count for word, count in self._sql.rows(_COUNT_BY_TRUST, at=to_micros(at))
            },
        )

    def roles_in_use(self) -> list[tuple[str, Role]]:
        """Return cluster and role of the machines that get a configuration, each once, sorted."""
        return [(cluster_id, Role(word)) for cluster_id, word in self._sql.rows(_ROLES_IN_USE)]

    def count_pinned(self, pinned_keys: bytes) -> int:
        """Return how many machines acknowledged this key set of the service."""
        row = self._sql.row(_COUNT_PINNED, pinned_keys=pinned_keys)
        assert row is not None
        return int(row[0])

    def delete(self, machine_id: str) -> bool:
        """Delete a machine with its results and config tokens; return False if there was none.

        Who may be deleted is the caller's rule; the audit keeps what happened.
        """
        machine = self.by_id(machine_id)
        if machine is None:
            return False
        deleted = self._sql.run(_DELETE, machine_id=machine_id) == 1
        self._settle(machine)
        return deleted

    def page(self, wanted: MachineFilter, cursor: str | None, limit: int) -> Page[Machine]:
        """Return machines, newest first.

        Raises:
            RequestInvalid: *cursor* or *limit* cannot be right.
        """
        values: dict[str, object] = {
            "before": before_id("machines", cursor),
            "rows": checked_limit(limit) + 1,
        }
        filters = []
        for name in ("status", "role", "cluster_id"):
            value = getattr(wanted, name)
            if value is not None:
                filters.append(name)
                values[name] = str(value)
        if wanted.q:
            filters.append("q")
            if "\n" in wanted.q:
                raise RequestInvalid("q: a line break is in no name")
            text = _escaped(wanted.q.lower())
            values |= {"part": f"%{text}%", "start": f"{text}%"}
        for number, (key, label) in enumerate(wanted.labels.items()):
            values |= {f"label_{number}": key, f"value_{number}": label}
        statement = _page(tuple(filters), tuple(label is not None for label in wanted.labels.values()))
        return page_of("machines", self._sql.rows(statement, **values), limit, decode)

    def pending(self, registered_from: str | None = None, *, vouched: bool | None = None) -> Pending:
        """Return how many machines await approval and what they keep.

        Args:
            registered_from: Of one address only.
            vouched: Only of those whose EK a vendor's chain vouches for, or of the others.
        """
        if vouched is not None:
            row = self._sql.row(_WEIGH_PENDING_KIND, vouched=vouched)
        elif registered_from is not None:
            row = self._sql.row(_WEIGH_PENDING_FROM, registered_from=registered_from)
        else:
            row = self._sql.row(_WEIGH_PENDING)
        assert row is not None
        return Pending(rows=int(row[0]), kept_bytes=int(row[1]))

    def oldest_pending(self, limit: int) -> list[Machine]:
        """Return machines that await approval, in the order in which they came."""
        return [decode(row) for row in self._sql.rows(_OLDEST_PENDING, rows=limit)]
