"""Clusters: those that operators declared, and those that machines are in."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache

from sqlalchemy import bindparam, exists, func, or_, select, union, update

from attestation.errors import AlreadyExists, ClusterUnknown
from attestation.machines import DEFAULT_CLUSTER, Role, Status
from attestation.store.codec import binds, codec
from attestation.store.pages import Page, checked_limit, decode_cursor, page_of
from attestation.store.sql import Executor, Prepared, Row
from attestation.store.tables import ClusterRow, MachineRow, table_of
from attestation.store.within import named, size_of, within

_T = table_of(ClusterRow)
_C = _T.c
_M = table_of(MachineRow).c


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """A cluster that an operator declared; without `talos_version` its machines run the service's."""

    cluster_id: str
    description: str | None
    talos_version: str | None
    created_at: datetime
    created_by: str
    changed_at: datetime
    changed_by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedCluster:
    """A cluster, how many machines it has, and what was declared of it; None where nothing was."""

    cluster_id: str
    machines: int
    declared: Cluster | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterCounts:
    """How many machines of one cluster there are, each once in each table; what nobody is in is absent."""

    by_status: Mapping[Status, int]
    by_role: Mapping[Role | None, int]


_ROW = codec(Cluster, _C)
_ONE = _C.cluster_id == bindparam("cluster_id")
_IN_IT = _M.cluster_id == bindparam("cluster_id")
_GET = Prepared(select(_T).where(_ONE))
_ADD = Prepared(lambda insert: insert(_T).values(binds(_C)).on_conflict_do_nothing())
_CHANGED = ("description", "talos_version", "changed_at", "changed_by")
_CHANGE = Prepared(
    update(_T)
    .where(_C.cluster_id == bindparam("of_cluster"))
    .values({name: bindparam(name) for name in _CHANGED})
)
_UNDECLARED = Prepared(
    select(
        exists().select_from(_T) & ~or_(exists().where(_ONE), exists().where(_IN_IT)),
    )
)
_THERE = Prepared(select(or_(exists().where(_ONE), exists().where(_IN_IT))))
_BY_STATUS = Prepared(select(_M.status, func.count()).where(_IN_IT).group_by(_M.status))
_BY_ROLE = Prepared(select(_M.role, func.count()).where(_IN_IT).group_by(_M.role))
_EVERY = union(select(_C.cluster_id), select(_M.cluster_id)).subquery()
_COUNT = select(func.count()).where(_M.cluster_id == _EVERY.c.cluster_id).scalar_subquery()


@lru_cache(maxsize=16)
def _page(clusters: int | None) -> Prepared:
    """Return the statement for a page: of all clusters, or of those of so many that are given."""
    rows = (
        select(_EVERY.c.cluster_id, _COUNT, *_C)
        .select_from(_EVERY.outerjoin(_T, _C.cluster_id == _EVERY.c.cluster_id))
        .where(_EVERY.c.cluster_id > bindparam("after"))
        .order_by(_EVERY.c.cluster_id)
        .limit(bindparam("rows"))
    )
    return Prepared(rows if clusters is None else rows.where(within(_EVERY.c.cluster_id, clusters)))


class Clusters:
    """The clusters, inside one unit of work."""

    __slots__ = ("_sql",)

    def __init__(self, sql: Executor) -> None:
        self._sql = sql

    def get(self, cluster_id: str) -> Cluster | None:
        """Return what was declared of a cluster, or None."""
        return _ROW.one(self._sql.row(_GET, cluster_id=cluster_id))

    def require(self, cluster_id: str) -> Cluster:
        """Return what was declared of a cluster.

        Raises:
            ClusterUnknown: Nobody declared it.
        """
        found = self.get(cluster_id)
        if found is None:
            raise ClusterUnknown(f"no operator declared a cluster {cluster_id}")
        return found

    def talos_version(self, cluster_id: str) -> str | None:
        """Return which version of Talos an operator said that a cluster runs, or None."""
        found = self.get(cluster_id)
        return None if found is None else found.talos_version

    def add(self, cluster: Cluster) -> None:
        """Declare a cluster; machines may be in it already.

        Raises:
            AlreadyExists: It is declared.
        """
        if self._sql.run(_ADD, **_ROW.encode(cluster)) != 1:
            raise AlreadyExists(f"cluster {cluster.cluster_id} is declared already")

    def change(self, cluster: Cluster) -> None:
        """Store what is declared of a cluster from now on; since when it is declared stays."""
        encoded = _ROW.encode(cluster)
        self._sql.do(_CHANGE, of_cluster=cluster.cluster_id, **{name: encoded[name] for name in _CHANGED})

    def is_there(self, cluster_id: str) -> bool:
        """Return True if a cluster is declared, or machines are in it, or it is the default."""
        return cluster_id == DEFAULT_CLUSTER or self._is(_THERE, cluster_id)

    def demand_known(self, cluster_id: str) -> None:
        """Check that *cluster_id* is no slip of the pen, once operators declare their clusters.

        Where none is declared any name is one. The default, and a cluster that machines are in, is known.

        Raises:
            ClusterUnknown: Others are declared, this one is not, and no machine is in it.
        """
        if cluster_id != DEFAULT_CLUSTER and self._is(_UNDECLARED, cluster_id):
            raise ClusterUnknown(
                f"no operator declared a cluster {cluster_id}, and no machine is in it: is it spelled so? "
                "`attestation cluster create` declares it"
            )

    def _is(self, question: Prepared, cluster_id: str) -> bool:
        row = self._sql.row(question, cluster_id=cluster_id)
        assert row is not None
        return bool(row[0])

    def counts(self, cluster_id: str) -> ClusterCounts:
        """Count the machines of a cluster by status and by role."""
        by_status = self._sql.rows(_BY_STATUS, cluster_id=cluster_id)
        by_role = self._sql.rows(_BY_ROLE, cluster_id=cluster_id)
        return ClusterCounts(
            by_status={Status(word): count for word, count in by_status},
            by_role={word and Role(word): count for word, count in by_role},
        )

    def page(
        self, cursor: str | None, limit: int, within: Collection[str] | None = None
    ) -> Page[ListedCluster]:
        """Return clusters that are declared or that machines are in, in the order of their ids; of *within* alone.

        Raises:
            RequestInvalid: *cursor* or *limit* cannot be right.
        """
        kind = "clusters"
        after = "" if cursor is None else decode_cursor(kind, cursor)
        statement, given = _page(None if within is None else size_of(within)), named(within or ())
        values = {"after": after, "rows": checked_limit(limit) + 1}
        rows = self._sql.rows(statement, **values, **(given if within is not None else {}))
        return page_of(kind, rows, limit, _listed)


def _listed(row: Row) -> ListedCluster:
    cluster_id, machines, *declared = row
    return ListedCluster(
        cluster_id=cluster_id,
        machines=machines,
        declared=None if declared[0] is None else _ROW.decode(declared),
    )
