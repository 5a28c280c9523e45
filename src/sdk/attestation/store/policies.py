"""Policies: immutable by name and version; assigned to the fleet, a cluster, a role or one machine.

Every change of an assignment is kept, so that what applied before can be put back.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal

from sqlalchemy import (
    BindParameter,
    ColumnCollection,
    ColumnElement,
    ScalarSelect,
    String,
    and_,
    bindparam,
    case,
    cast,
    delete,
    insert,
    literal,
    select,
    update,
)

from attestation.clock import to_micros
from attestation.errors import AlreadyExists, MachineChanged, PolicyUnknown
from attestation.store.codec import binds, codec
from attestation.store.pages import Page, before_id, checked_limit, page_of
from attestation.store.sql import Executor, Prepared
from attestation.store.tables import PolicyAssignmentRow, PolicyHistoryRow, PolicyRow, RevisionRow, table_of

_P = table_of(PolicyRow)
_PC = _P.c
_A = table_of(PolicyAssignmentRow)
_AC = _A.c
_H = table_of(PolicyHistoryRow)
_HC = _H.c

AGREED: Final = " agreed"
_R = table_of(RevisionRow)
_RC = _R.c

Scope = Literal["fleet", "cluster", "role", "machine"]
FLEET = "*"
"""The subject of the scope `fleet`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPolicy:
    """One policy version: its document as JSON text, and the SHA-256 of that text in hex."""

    name: str
    version: int
    sha256: str
    document: str
    created_at: datetime
    created_by: str

    @property
    def ref(self) -> str:
        """`name@version`."""
        return f"{self.name}@{self.version}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyAssignment:
    """Which policy (`name@version`) applies to a subject of a scope; `agreed`: several operators agreed to it."""

    scope: Scope
    subject: str
    policy: str
    assigned_at: datetime
    assigned_by: str
    agreed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyChange:
    """That a policy (`name@version`) began to apply somewhere; None: that nothing is assigned there any more."""

    id: int
    scope: Scope
    subject: str
    policy: str | None
    at: datetime
    by: str


def _split(ref: str) -> tuple[str, int]:
    name, _, version = ref.partition("@")
    if not (version.isascii() and version.isdigit() and len(version) <= 9):
        raise PolicyUnknown(f"no policy {ref[:80]!r}")
    return name, int(version)


_ROW = codec(StoredPolicy, _PC)


def _ref(columns: ColumnCollection[str, ColumnElement[Any]]) -> ColumnElement[str]:
    ref: ColumnElement[str] = columns.policy_name + "@" + cast(columns.policy_version, String)
    return ref.label("policy")


_ASSIGNED = [_ref(_AC), *(c for c in _AC if c.name not in ("policy_name", "policy_version"))]
_ASSIGNMENT = codec(PolicyAssignment, _ASSIGNED)
_NOTED = [_HC.id, _ref(_HC), *(c for c in _HC if c.name not in ("id", "policy_name", "policy_version"))]
_CHANGE = codec(PolicyChange, _NOTED)
_ADD = Prepared(lambda insert: insert(_P).values(binds(_PC)).on_conflict_do_nothing())
_GET = Prepared(select(_P).where(_PC.name == bindparam("name"), _PC.version == bindparam("version")))
_ALL = Prepared(select(_P).order_by(_PC.name, _PC.version))


def _text(name: str) -> BindParameter[str]:
    return bindparam(name, type_=String())


_NARROWEST = case({"machine": 0, "role": 1, "cluster": 2}, value=_AC.scope, else_=3)


def applicable(
    machine_id: ColumnElement[str], role: ColumnElement[Any], cluster_id: ColumnElement[str]
) -> tuple[ScalarSelect[str], ...]:
    """Return subqueries for the policies of fleet, cluster, role and machine, or NULL.

    Each is `name@version sha256`, and then ` agreed` where several operators agreed to it.

    Each is found by two primary keys, so they stay flat however many assignments there are.
    """
    scopes: tuple[tuple[Scope, ColumnElement[Any]], ...] = (
        ("fleet", literal(FLEET)),
        ("cluster", cluster_id),
        ("role", role),
        ("machine", machine_id),
    )
    return tuple(_assigned(scope, subject) for scope, subject in scopes)


def _assigned(scope: Scope, subject: ColumnElement[Any]) -> ScalarSelect[str]:
    return (
        select(
            _PC.name
            + "@"
            + cast(_PC.version, String)
            + " "
            + _PC.sha256
            + case((_AC.agreed, literal(AGREED)), else_=literal(""))
        )
        .select_from(_A.join(_P, and_(_PC.name == _AC.policy_name, _PC.version == _AC.policy_version)))
        .where(_AC.scope == scope, _AC.subject == subject)
        .scalar_subquery()
    )


_APPLICABLE = Prepared(select(*applicable(_text("machine_id"), _text("role"), _text("cluster_id"))))
_PLACE = and_(_AC.scope == bindparam("scope"), _AC.subject == bindparam("subject"))
_OF_PLACE = Prepared(select(*_ASSIGNED).where(_PLACE))
_ASSIGNMENTS = Prepared(select(*_ASSIGNED).order_by(_NARROWEST.desc(), _AC.subject))
_ASSIGN = Prepared(
    lambda insert: (
        insert(_A)
        .values(binds(_AC))
        .on_conflict_do_update(index_elements=[_AC.scope, _AC.subject], set_=binds(_AC, "scope", "subject"))
    )
)
_OF_POLICIES = _RC.what == "policies"
revision_of_policies = select(_RC.revision).where(_OF_POLICIES).scalar_subquery()
"""Grows with every change of what applies anywhere: whoever judged compares it where the judgement is written."""
_REVISION = Prepared(select(_RC.revision).where(_OF_POLICIES))
_CHANGED = Prepared(update(_R).where(_OF_POLICIES).values(revision=_RC.revision + 1))
_UNASSIGN = Prepared(delete(_A).where(_PLACE))
_NOTE = Prepared(insert(_H).values(binds(_HC, "id")))
_SINCE = Prepared(
    select(*_NOTED)
    .where(_HC.scope == bindparam("scope"), _HC.subject == bindparam("subject"))
    .order_by(_HC.id.desc())
    .limit(2)
)


def _changes(*where: ColumnElement[bool]) -> Prepared:
    newest = select(*_NOTED).where(*where, _HC.id < bindparam("before")).order_by(_HC.id.desc())
    return Prepared(newest.limit(bindparam("rows")))


_CHANGES = _changes()
_CHANGES_OF_SCOPE = _changes(_HC.scope == bindparam("scope"))
_CHANGES_OF_PLACE = _changes(_HC.scope == bindparam("scope"), _HC.subject == bindparam("subject"))


class Policies:
    """Policies and where they apply, inside one unit of work."""

    __slots__ = ("_sql",)

    def __init__(self, sql: Executor) -> None:
        self._sql = sql

    def add(self, policy: StoredPolicy) -> None:
        """Store a new policy version; it never changes again.

        Raises:
            AlreadyExists: This name and version are taken.
        """
        if self._sql.run(_ADD, **_ROW.encode(policy)) != 1:
            raise AlreadyExists(f"policy {policy.ref} exists; change means a new version")

    def get(self, ref: str) -> StoredPolicy:
        """Return the policy `name@version`.

        Raises:
            PolicyUnknown: No such policy.
        """
        name, version = _split(ref)
        row = self._sql.row(_GET, name=name, version=version)
        if row is None:
            raise PolicyUnknown(f"no policy {ref[:80]!r}")
        return _ROW.decode(row)

    def all(self) -> tuple[StoredPolicy, ...]:
        """Return every policy version, by name and version."""
        return tuple(map(_ROW.decode, self._sql.rows(_ALL)))

    def applicable(self, machine_id: str, role: str | None, cluster_id: str) -> tuple[str, ...]:
        """Return every policy assigned to such a machine, as the function of this name says, the widest first."""
        row = self._sql.row(
            _APPLICABLE, machine_id=machine_id, role=role and str(role), cluster_id=cluster_id
        )
        assert row is not None  # subqueries only, one row
        return tuple(filter(None, row))

    def assigned(self, scope: Scope, subject: str) -> PolicyAssignment | None:
        """Return the assignment of exactly this place, or None."""
        return _ASSIGNMENT.one(self._sql.row(_OF_PLACE, scope=scope, subject=subject))

    def assign(self, assignment: PolicyAssignment) -> None:
        """Let a policy apply to a subject, instead of the one before.

        Raises:
            PolicyUnknown: No such policy.
        """
        policy = self.get(assignment.policy)
        self._sql.do(
            _ASSIGN,
            scope=assignment.scope,
            subject=assignment.subject,
            policy_name=policy.name,
            policy_version=policy.version,
            assigned_at=to_micros(assignment.assigned_at),
            assigned_by=assignment.assigned_by,
            agreed=assignment.agreed,
        )
        self._note(
            assignment.scope,
            assignment.subject,
            policy.name,
            policy.version,
            assignment.assigned_at,
            assignment.assigned_by,
        )

    def unassign(self, scope: Scope, subject: str, *, at: datetime, by: str) -> None:
        """End an assignment; the next wider one applies.

        Raises:
            PolicyUnknown: Nothing is assigned there.
        """
        if self._sql.run(_UNASSIGN, scope=scope, subject=subject) != 1:
            raise PolicyUnknown(f"nothing is assigned to {scope} {subject[:80]!r}")
        self._note(scope, subject, None, None, at, by)

    def _note(
        self, scope: Scope, subject: str, name: str | None, version: int | None, at: datetime, by: str
    ) -> None:
        self._sql.do(_CHANGED)
        self._sql.do(
            _NOTE,
            scope=scope,
            subject=subject,
            policy_name=name,
            policy_version=version,
            at=to_micros(at),
            by=by,
        )

    def demand_revision(self, judged: int) -> None:
        """Check that what applies is what it was when somebody judged by it.

        Raises:
            MachineChanged: It was changed since.
        """
        row = self._sql.row(_REVISION)
        assert row is not None  # made with the table
        if row[0] != judged:
            raise MachineChanged("other policies apply since this was judged")

    def assignments(self) -> tuple[PolicyAssignment, ...]:
        """Return all assignments, widest first."""
        return tuple(map(_ASSIGNMENT.decode, self._sql.rows(_ASSIGNMENTS)))

    def before(self, scope: Scope, subject: str) -> str | None:
        """Return `name@version` of what applied there before the last change; None: nothing was assigned.

        Raises:
            PolicyUnknown: Nothing was ever changed there.
        """
        rows = self._sql.rows(_SINCE, scope=scope, subject=subject)
        if not rows:
            raise PolicyUnknown(f"nothing was ever assigned to {scope} {subject[:80]!r}")
        return _CHANGE.decode(rows[1]).policy if len(rows) == 2 else None

    def history(
        self, cursor: str | None, limit: int, *, scope: Scope | None = None, subject: str | None = None
    ) -> Page[PolicyChange]:
        """Return what was changed, newest first: everywhere, in one scope, or in one place of it.

        Raises:
            RequestInvalid: *cursor* or *limit* cannot be right.
        """
        kind = "policies"
        below: dict[str, object] = {"before": before_id(kind, cursor), "rows": checked_limit(limit) + 1}
        if scope is None:
            rows = self._sql.rows(_CHANGES, **below)
        elif subject is None:
            rows = self._sql.rows(_CHANGES_OF_SCOPE, scope=scope, **below)
        else:
            rows = self._sql.rows(_CHANGES_OF_PLACE, scope=scope, subject=subject, **below)
        return page_of(kind, rows, limit, _CHANGE.decode)
