"""Rules by which machines are approved without a person: what several people agreed to in advance."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import bindparam, delete, select, update

from attestation.errors import AlreadyExists, ApprovalRuleUnknown
from attestation.machines import Role
from attestation.results import Assurance
from attestation.store.codec import binds, codec
from attestation.store.pages import Page, checked_limit, decode_cursor, page_of
from attestation.store.sql import Executor, Prepared
from attestation.store.tables import ApprovalRuleRow, table_of

_T = table_of(ApprovalRuleRow)
_C = _T.c


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalRule:
    """A rule; what it says never changes, whether it is enabled does.

    Args:
        name: What it is called.
        expression: CEL over what is known of a machine; true approves it.
        role: Role given to the machine.
        cluster_id: Cluster given to it.
        hostname: Host name given to it, with `{serial}`, `{uuid}` or `{mac}` in it; None gives none.
        minimum_assurance: How well its EK must be vouched for.
        max_count: Machines that it may approve, ever.
        used: Machines that it has approved.
        priority: The higher one is asked first.
        enabled: It approves machines.
        created_at: Since when it is there.
        created_by: Who made it, the last of those who agreed.
        changed_at: When it was enabled or disabled last.
        changed_by: By whom.
    """

    name: str
    expression: str
    role: Role
    cluster_id: str
    hostname: str | None
    minimum_assurance: Assurance
    max_count: int
    used: int
    priority: int
    enabled: bool
    created_at: datetime
    created_by: str
    changed_at: datetime
    changed_by: str


_ROW = codec(ApprovalRule, _C)
_ONE = _C.name == bindparam("of_rule")
_GET = Prepared(select(_T).where(_ONE))
_ADD = Prepared(lambda insert: insert(_T).values(binds(_C)).on_conflict_do_nothing())
_SWITCH = Prepared(
    update(_T).where(_ONE).values({name: bindparam(name) for name in ("enabled", "changed_at", "changed_by")})
)
_USE = Prepared(update(_T).where(_ONE, _C.enabled, _C.used < _C.max_count).values(used=_C.used + 1))
_REMOVE = Prepared(delete(_T).where(_ONE))
_ENABLED = Prepared(
    select(_T)
    .where(_C.enabled, _C.used < _C.max_count)
    .order_by(_C.priority.desc(), _C.name)
    .limit(bindparam("rows"))
)
_COUNT = Prepared(select(_C.name).limit(bindparam("rows")))
_PAGE = Prepared(select(_T).where(_C.name > bindparam("after")).order_by(_C.name).limit(bindparam("rows")))


class ApprovalRules:
    """The rules, inside one unit of work."""

    __slots__ = ("_sql",)

    def __init__(self, sql: Executor) -> None:
        self._sql = sql

    def get(self, name: str) -> ApprovalRule | None:
        """Return a rule, or None."""
        return _ROW.one(self._sql.row(_GET, of_rule=name))

    def require(self, name: str) -> ApprovalRule:
        """Return a rule.

        Raises:
            ApprovalRuleUnknown: There is none of this name.
        """
        found = self.get(name)
        if found is None:
            raise ApprovalRuleUnknown(f"no approval rule is called {name}")
        return found

    def add(self, rule: ApprovalRule) -> None:
        """Store a new rule.

        Raises:
            AlreadyExists: One is called so.
        """
        if self._sql.run(_ADD, **_ROW.encode(rule)) != 1:
            raise AlreadyExists(f"an approval rule is called {rule.name} already")

    def switch(self, rule: ApprovalRule) -> None:
        """Store whether a rule is enabled, since when, and by whom; nothing else of it."""
        encoded = _ROW.encode(rule)
        values = {name: encoded[name] for name in ("enabled", "changed_at", "changed_by")}
        self._sql.do(_SWITCH, of_rule=rule.name, **values)

    def use(self, name: str) -> bool:
        """Take one of the machines that an enabled rule may approve; False where none is left."""
        return self._sql.run(_USE, of_rule=name) == 1

    def remove(self, name: str) -> None:
        """Remove a rule."""
        self._sql.do(_REMOVE, of_rule=name)

    def enabled(self, most: int) -> tuple[ApprovalRule, ...]:
        """Return the rules that may approve a machine now, in the order in which they are asked; at most *most*."""
        return tuple(_ROW.decode(row) for row in self._sql.rows(_ENABLED, rows=most))

    def count(self, most: int) -> int:
        """Return how many rules there are, up to *most*."""
        return len(self._sql.rows(_COUNT, rows=most))

    def page(self, cursor: str | None, limit: int) -> Page[ApprovalRule]:
        """Return rules in the order of their names.

        Raises:
            RequestInvalid: *cursor* or *limit* cannot be right.
        """
        kind = "approval-rules"
        after = "" if cursor is None else decode_cursor(kind, cursor)
        rows = self._sql.rows(_PAGE, after=after, rows=checked_limit(limit) + 1)
        return page_of(kind, rows, limit, _ROW.decode)
