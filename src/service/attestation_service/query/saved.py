"""Queries that operators keep under a name. Who runs a shared one sees what they may see, not what its owner may."""

from __future__ import annotations

import asyncio
from typing import Annotated, Final

from fastapi import Path

from attestation.api import SavedQueryDetail, SavedQueryList, SavedQueryRequest
from attestation.errors import QueryUnknown, RequestInvalid
from attestation.store import SavedQuery, Tx
from attestation_service import kql
from attestation_service.auth import Operator, OperatorDep
from attestation_service.query.handlers import seen_by
from attestation_service.resources import Res

NAME: Final = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$"
MOST: Final = 200
"""Queries that one operator may keep."""
MOST_LISTED: Final = 2_000

Name = Annotated[str, Path(pattern=NAME, description="Letters, digits, `.`, `_` and `-`, at most 63")]


async def list_saved(*, res: Res, operator: OperatorDep) -> SavedQueryList:
    """List the caller's queries and those that others share, by name."""
    owner = _owner(operator)
    found = await res.store.scan(lambda tx: tx.saved_queries.visible(owner, MOST_LISTED))
    return SavedQueryList(queries=[_detail(each, owner) for each in found])


async def save(
    name: Name, request: SavedQueryRequest, *, res: Res, operator: OperatorDep
) -> SavedQueryDetail:
    """Keep a query of the caller's under a name, in place of what they kept there.

    Raises:
        QueryInvalid: It is none that they may ask.
        RequestInvalid: They keep as many as they may.
    """
    at, owner = res.clock.now(), _owner(operator)
    await asyncio.to_thread(kql.analyse, request.query, seen_by(operator, res, at), at=at)
    saved = SavedQuery(
        owner=owner,
        owner_cn=operator.cn,
        name=name,
        query=request.query,
        description=request.description,
        shared=request.shared,
        created_at=at,
        updated_at=at,
    )

    def work(tx: Tx) -> SavedQuery:
        before = tx.saved_queries.get(owner, name)
        if before is None and tx.saved_queries.count(owner) >= MOST:
            raise RequestInvalid(f"you keep {MOST} queries already: delete one first")
        tx.saved_queries.put(saved)
        told = f"{name}, {'shared' if request.shared else 'for themselves'}"
        tx.audit.append(operator.event("query_save", detail=told), at)
        found = tx.saved_queries.get(owner, name)
        assert found is not None
        return found

    return _detail(await res.store.write(work), owner)


async def delete(name: Name, *, res: Res, operator: OperatorDep) -> None:
    """Forget a query of the caller's.

    Raises:
        QueryUnknown: They keep none of this name.
    """
    at, owner = res.clock.now(), _owner(operator)

    def work(tx: Tx) -> None:
        if not tx.saved_queries.remove(owner, name):
            raise QueryUnknown(f"you keep no query {name}")
        tx.audit.append(operator.event("query_delete", detail=name), at)

    await res.store.write(work)


def _owner(operator: Operator) -> str:
    return operator.sub or operator.cn


def _detail(saved: SavedQuery, owner: str) -> SavedQueryDetail:
    return SavedQueryDetail(
        name=saved.name,
        owner=saved.owner_cn,
        mine=saved.owner == owner,
        query=saved.query,
        description=saved.description,
        shared=saved.shared,
        created_at=saved.created_at,
        updated_at=saved.updated_at,
    )
