"""Machines in the database: one row each, found by id or EK, changed only by whoever saw the last change."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import TypedDict, Unpack

from sqlalchemy import and_, bindparam, delete, func, or_, select, text, update

from attestation.clock import to_micros
from attestation.errors import EKConflict, MachineChanged, MachineUnknown, NameInUse
from attestation.machines import ClockState, Machine, Role, Status, Trust
from attestation.machines.names import NAMELESS, Names, names_of
from attestation.results import Verdict
from attestation.store import machine_lists
from attestation.store.codec import binds, codec
from attestation.store.configurations import forget
from attestation.store.machine_lists import TRUST, MachineFilter
from attestation.store.pages import Page
from attestation.store.policies import revision_of_policies
from attestation.store.sql import Executor, Prepared
from attestation.store.tables import LEASED, MachineIdentityRow, MachineRow, table_of

_T = table_of(MachineRow)
_C = _T.c
_SEARCHED = frozenset({"hostname", "hw_serial", "hw_mac", "hw_uuid"})
_NAMING = frozenset({"hostname", "assigned_ip", "cluster_id"})


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
        by_cluster: Of each cluster; of very many those with most machines, first.
    """

    by_status: Mapping[Status, int]
    by_role: Mapping[Role | None, int]
    by_trust: Mapping[Trust, int]
    by_cluster: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """How many machines await approval, and how many bytes their certificates take."""

    rows: int
    kept_bytes: int


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


_ROW = codec(Machine, _C, besides=("id", "search", "name_key", "address_key"))
decode = _ROW.decode
_BY_ID = Prepared(select(_T).where(_C.machine_id == bindparam("machine_id")))
_BY_EK = Prepared(select(_T).where(_C.ek_fingerprint == bindparam("ek_fingerprint")))
_ADD = Prepared(lambda insert: insert(_T).values(binds(_C, "id")).on_conflict_do_nothing())


class Renewed(TypedDict):
    """The fields of a machine that every attestation may change."""

    clock: ClockState | None
    last_verdict: Verdict | None
    last_result_at: datetime | None
    last_policy: str | None
    last_failed: str | None
    last_result_key: str | None
    trust_expires_at: datetime | None
    event_log_sha256: str | None
    heartbeat_missed_at: datetime | None
    last_result_from: str | None


def _renew(*besides: str) -> Prepared:
    return Prepared(
        update(_T)
        .where(
            _C.machine_id == bindparam("of_machine"),
            _C.version == bindparam("of_version"),
            revision_of_policies == bindparam("of_revision"),
            _C.last_result_at.is_not_distinct_from(bindparam("of_last_result_at")),
        )
        .values({name: bindparam(name) for name in _RENEWED if name not in besides})
    )


_RENEWED = _ROW.names(Renewed.__annotations__)
# The log is named in an index, which the steady state shall not write.
_RENEW = _renew("event_log_sha256")
_RENEW_LOG = _renew()
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
# Of these `name_key` says nothing any more (machines.names.NAMELESS), so their words are compared.
_ONCE_CALLED = Prepared(
    select(_T)
    .where(
        _C.hostname == bindparam("name"),
        _C.cluster_id == bindparam("of_cluster"),
        or_(*(_C.status == each.value for each in sorted(NAMELESS))),
    )
    .order_by(_C.id.desc())
    .limit(1)
)
_SHARING_WITH = Prepared(
    select(_C.machine_id, _C.name_key, _C.address_key)
    .where(_CALLED, _C.cluster_id == bindparam("cluster_id"), _C.shares_names)
    .order_by(_C.id)
)
_ALONE = Prepared(update(_T).where(_C.machine_id == bindparam("of_machine")).values(shares_names=False))
_SHARING = Prepared(select(_T).where(_C.shares_names).order_by(_C.id).limit(bindparam("rows")))
_IDENTITIES = table_of(MachineIdentityRow)
_FORGET = Prepared(delete(_IDENTITIES).where(_IDENTITIES.c.machine_id == bindparam("machine_id")))
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
_MOST_CLUSTERS = 1_000
_COUNT_BY_CLUSTER = Prepared(
    select(_C.cluster_id, func.count())
    .group_by(_C.cluster_id)
    .order_by(func.count().desc(), _C.cluster_id)
    .limit(_MOST_CLUSTERS)
)
_COUNT_BY_ROLE = Prepared(select(_C.role, func.count()).group_by(_C.role))
_COUNT_BY_TRUST = Prepared(select(TRUST, func.count()).group_by(text("trust")))


@lru_cache(maxsize=64)
def _update(columns: tuple[str, ...]) -> Prepared:
    return Prepared(
        update(_T)
        .where(_C.machine_id == bindparam("of_machine"), _C.version == bindparam("of_version"))
        .values({name: bindparam(name) for name in columns})
    )


class Machines:
    """The machines, inside one unit of work."""

    __slots__ = ("_sql",)

    def __init__(self, sql: Executor) -> None:
        self._sql = sql

    def by_id(self, machine_id: str) -> Machine | None:
        """Return the machine called *machine_id*, or None."""
        return _ROW.one(self._sql.row(_BY_ID, machine_id=machine_id))

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
        return _ROW.one(self._sql.row(_BY_EK, ek_fingerprint=ek_fingerprint))

    def add(self, machine: Machine) -> None:
        """Store a new machine.

        Raises:
            EKConflict: Its id or its EK is stored already.
            NameInUse: Another one of its cluster is called so.
        """
        if not machine.shares_names:
            self.demand_free(machine.machine_id, machine.cluster_id, machine.hostname, machine.assigned_ip)
        columns = _ROW.encode(machine) | _key_columns(_keys(machine))
        if self._sql.run(_ADD, **columns, search=_search_text(machine)) != 1:
            raise EKConflict("this machine id or EK is registered already")

    def update(self, machine: Machine, **changes: object) -> Machine:
        """Change fields of *machine*, which must still be at its version, and return it at the next one.

        Raises:
            MachineChanged: Somebody changed or deleted it since it was read.
            NameInUse: It would be called like another one of its cluster.
        """
        after: Machine = dataclasses.replace(machine, **{**changes, "version": machine.version + 1})  # type: ignore[arg-type]  # replace() refuses unknown names itself
        columns = _ROW.stored({**changes, "version": after.version})
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
        if not self._sql.one(statement, of_machine=machine.machine_id, of_version=machine.version, **columns):
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

    def once_called(self, hostname: str, cluster_id: str) -> Machine | None:
        """Return the newest machine of a cluster that was called *hostname*, and is nobody's name any more; or None."""
        return _ROW.one(self._sql.row(_ONCE_CALLED, name=hostname, of_cluster=cluster_id))

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
                self._sql.do(_ALONE, of_machine=machine_id)

    def renew(
        self,
        machine: Machine,
        *,
        revision: int,
        **renewed: Unpack[Renewed],
    ) -> None:
        """Store what an attestation established; the hot path, so the version stays.

        It holds only for what was judged: whatever an operator or a distrust did to the machine meanwhile, or to the
        policies (`revision`), or another attestation established, is not undone.

        Raises:
            MachineChanged: The machine or what applies is not what was judged any more, or it is gone.
        """
        if renewed.keys() != Renewed.__annotations__.keys():
            raise TypeError(f"not what every attestation renews: {', '.join(renewed)}")
        judged_before = machine.last_result_at
        renewed_it = self._sql.one(
            _RENEW if renewed["event_log_sha256"] == machine.event_log_sha256 else _RENEW_LOG,
            of_machine=machine.machine_id,
            of_version=machine.version,
            of_revision=revision,
            of_last_result_at=None if judged_before is None else to_micros(judged_before),
            **_ROW.stored(renewed),
        )
        if not renewed_it:
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
            by_status={Status(word): count for word, count in self._sql.rows(_COUNT_BY_STATUS)},
            by_role={word and Role(word): count for word, count in self._sql.rows(_COUNT_BY_ROLE)},
            by_trust={
                Trust(word): count for word, count in self._sql.rows(_COUNT_BY_TRUST, at=to_micros(at))
            },
            by_cluster={str(cluster_id): count for cluster_id, count in self._sql.rows(_COUNT_BY_CLUSTER)},
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
        """Delete a machine with its identities, patches, results and config tokens; return False if there was none.

        Who may be deleted is the caller's rule; the audit keeps what happened.
        """
        machine = self.by_id(machine_id)
        if machine is None:
            return False
        self._sql.do(_FORGET, machine_id=machine_id)
        forget(self._sql, machine_id)
        deleted = self._sql.run(_DELETE, machine_id=machine_id) == 1
        self._settle(machine)
        return deleted

    def page(
        self, wanted: MachineFilter, cursor: str | None, limit: int, order: str | None = None
    ) -> Page[Machine]:
        """Return machines, newest first or in an order of `machine_lists.ORDERS`.

        Raises:
            RequestInvalid: *cursor*, *limit* or *order* cannot be right.
        """
        found = machine_lists.page(self._sql, wanted, cursor, limit, order)
        return Page(items=tuple(map(decode, found.items)), next_cursor=found.next_cursor)

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
