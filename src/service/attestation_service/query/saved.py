"""What operators keep under a name: queries, and views of the list of machines.

Who runs a shared one sees what they may see, not what its owner may.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Final

from fastapi import Path, Query

from attestation.api import SavedKind, SavedQueryDetail, SavedQueryList, SavedQueryRequest
from attestation.errors import AlreadyExists, QueryUnknown, RequestInvalid
from attestation.store import SavedQuery, Tx
from attestation_service import kql
from attestation_service.auth import Operator, OperatorDep
from attestation_service.query import machine_views
from attestation_service.query.handlers import lasting, seen_by
from attestation_service.resources import Res, Resources

NAME: Final = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$"
MOST: Final = 200
"""Queries and views that one operator may keep."""
MOST_LISTED: Final = 2_000

Name = Annotated[str, Path(pattern=NAME, description="Letters, digits, `.`, `_` and `-`, at most 63")]
SavedId = Annotated[int, Path(ge=1, lt=1 << 63, description="`id` of a shared query or view")]


async def list_saved(
    kind: Annotated[SavedKind, Query(description="Queries, or views of the list of machines")] = "query",
    *,
    res: Res,
    operator: OperatorDep,
) -> SavedQueryList:
    """List the caller's queries, or views, and those that others share, by name."""
    owner = lasting(operator)
    found = await res.store.scan(lambda tx: tx.saved_queries.visible(owner, MOST_LISTED, kind))
    return SavedQueryList(queries=[_detail(number, each, owner) for number, each in found])


async def save(
    name: Name, request: SavedQueryRequest, *, res: Res, operator: OperatorDep
) -> SavedQueryDetail:
    """Keep a query of the caller's, or a view of the list of machines, in place of what they kept under its name.

    Raises:
        QueryInvalid: It is none that they may ask.
        QueriesBusy: Too many wait to be read.
        RequestInvalid: They keep as many as they may, or a view asks for what the list does not know.
        AlreadyExists: They keep a view under this name and it is a query, or the other way round.
    """
    at, owner = res.clock.now(), lasting(operator)
    await res.understanding.of(owner, lambda: _check(request, operator, res, at))
    saved = SavedQuery(
        owner=owner,
        owner_cn=operator.cn,
        name=name,
        query=request.query,
        description=request.description,
        shared=request.shared,
        created_at=at,
        updated_at=at,
        kind=request.kind,
    )

    def work(tx: Tx) -> SavedQueryDetail:
        before = tx.saved_queries.get(owner, name)
        if before is not None and before[1].kind != saved.kind:
            raise AlreadyExists(f"you keep a {before[1].kind} under the name {name}: a name is one thing")
        if before is None and tx.saved_queries.count(owner) >= MOST:
            raise RequestInvalid(f"you keep {MOST} queries and views already: delete one first")
        tx.saved_queries.put(saved)
        told = f"{_called(saved)}, {'shared' if saved.shared else 'for themselves'}"
        tx.audit.append(operator.event("query_save", detail=told), at)
        found = tx.saved_queries.get(owner, name)
        assert found is not None
        return _detail(*found, owner)

    return await res.store.write(work)


def _check(request: SavedQueryRequest, operator: Operator, res: Resources, at: datetime) -> None:
    """Check that *request* is a query, or a view, that the caller may ask."""
    seen = seen_by(operator, res, at)
    asked = request.query if request.kind == "query" else machine_views.query_of(request.query)
    if asked is not None:
        kql.analyse(asked, seen, at=at)


async def delete(name: Name, *, res: Res, operator: OperatorDep) -> None:
    """Forget a query or a view of the caller's.

    Raises:
        QueryUnknown: They keep none of this name.
    """
    at, owner = res.clock.now(), lasting(operator)

    def work(tx: Tx) -> None:
        found = tx.saved_queries.get(owner, name)
        if found is None:
            raise QueryUnknown(f"you keep no query {name}")
        tx.saved_queries.remove(owner, name)
        tx.audit.append(operator.event("query_delete", detail=_called(found[1])), at)

    await res.store.write(work)


async def take_over(saved_id: SavedId, *, res: Res, operator: OperatorDep) -> SavedQueryDetail:
    """Make a query or a view that somebody shares the caller's own: who kept it has left, for example.

    What somebody keeps to themselves is not found.

    Raises:
        QueryUnknown: Nobody shares it.
        AlreadyExists: The caller keeps something under its name.
        RequestInvalid: They keep as many as they may.
    """
    at, owner = res.clock.now(), lasting(operator)

    def work(tx: Tx) -> SavedQueryDetail:
        found = _shared(tx, saved_id)
        if found.owner != owner:
            if tx.saved_queries.get(owner, found.name) is not None:
                raise AlreadyExists(f"you keep something under the name {found.name} already")
            if tx.saved_queries.count(owner) >= MOST:
                raise RequestInvalid(f"you keep {MOST} queries and views already: delete one first")
            tx.saved_queries.give(saved_id, owner, operator.cn, at)
            told = f"{_called(found)}, of {found.owner_cn}"
            tx.audit.append(operator.event("query_take_over", detail=told), at)
        return _detail(saved_id, _shared(tx, saved_id), owner)

    return await res.store.write(work)


async def delete_shared(saved_id: SavedId, *, res: Res, operator: OperatorDep) -> None:
    """Forget a query or a view that somebody shares, whoever keeps it.

    What somebody keeps to themselves is not found.

    Raises:
        QueryUnknown: Nobody shares it.
    """
    at = res.clock.now()

    def work(tx: Tx) -> None:
        found = _shared(tx, saved_id)
        tx.saved_queries.remove(found.owner, found.name)
        told = f"{_called(found)}, of {found.owner_cn}"
        tx.audit.append(operator.event("query_delete", detail=told), at)

    await res.store.write(work)


def _shared(tx: Tx, saved_id: int) -> SavedQuery:
    if (found := tx.saved_queries.shared(saved_id)) is None:
        raise QueryUnknown("nobody shares this query")
    return found


def _called(saved: SavedQuery) -> str:
    return saved.name if saved.kind == "query" else f"view {saved.name}"


def _detail(number: int, saved: SavedQuery, owner: str) -> SavedQueryDetail:
    return SavedQueryDetail(
        id=number,
        kind="view" if saved.kind == "view" else "query",
        name=saved.name,
        owner=saved.owner_cn,
        mine=saved.owner == owner,
        query=saved.query,
        description=saved.description,
        shared=saved.shared,
        created_at=saved.created_at,
        updated_at=saved.updated_at,
    )
