"""Collateral: shown, carried in and out over an air gap, asked for again.

What an operator brings is believed as little as what a vendor's host answers: only under the pinned anchors.
"""

from __future__ import annotations

from collections.abc import Sequence

from attestation.api import (
    CollateralDetail,
    CollateralImport,
    CollateralImported,
    CollateralPage,
    CollateralRefreshed,
    CollateralRefused,
)
from attestation.endorsements.collateral import Item, verify_item
from attestation.errors import AttestationError
from attestation.store import StoredCollateral, Tx
from attestation.store.pages import decode_cursor, encode_cursor
from attestation.wire import b64decode, b64encode
from attestation_service.auth import OperatorDep
from attestation_service.resources import Res, Resources
from attestation_service.routing.parameters import Cursor, Limit
from attestation_service.verifier.collateral import ASKING_SECONDS

_LIST = "collateral"
_DATA_AT_ONCE = 20
"""Pieces of a page that carries them: 20 MiB at most."""


async def show(
    cursor: Cursor = None, limit: Limit = 200, *, with_data: bool = False, res: Res
) -> CollateralPage:
    """List the collateral that is kept.

    By name; `with_data` for an export.

    Raises:
        RequestInvalid: A cursor that cannot be.
    """
    at = res.clock.now()
    after = decode_cursor(_LIST, cursor) if cursor is not None else ""
    rows = min(limit, _DATA_AT_ONCE) if with_data else limit

    def work(tx: Tx) -> CollateralPage:
        found = tx.collateral.page(after, rows + 1)
        shown = [_detail(res, each, with_data=with_data) for each in found[:rows]]
        more = encode_cursor(_LIST, found[rows - 1].name) if len(found) > rows else None
        return CollateralPage(items=shown, next_cursor=more, at=at, fetching=res.settings.collateral_fetch)

    return await res.store.scan(work)


def _detail(res: Resources, stored: StoredCollateral, *, with_data: bool) -> CollateralDetail:
    item = res.collateral.verified(stored.name, stored.data)
    return CollateralDetail(
        name=stored.name,
        says=item.says if item is not None else None,
        current=item is not None and item.is_current(res.clock.now()),
        source=stored.source,
        stored_at=stored.stored_at,
        expires_at=item.expires if item is not None else None,
        ask_at=stored.ask_at,
        failure=stored.failure,
        data=b64encode(item.data) if with_data and item is not None else None,
    )


async def keep(request: CollateralImport, *, res: Res, operator: OperatorDep) -> CollateralImported:
    """Keep collateral that was carried here.

    Each piece is verified by itself: what nobody vouches for is refused, and the others are kept.
    """
    at = res.clock.now()
    good: list[Item] = []
    refused: list[CollateralRefused] = []
    for each in request.items:
        try:
            data = b64decode(each.data, each.name)
            good.append(verify_item(each.name, data, res.collateral.trusted))
        except AttestationError as e:
            refused.append(CollateralRefused(name=each.name, reason=str(e)))

    def work(tx: Tx) -> CollateralImported:
        stored: list[str] = []
        older: list[str] = []
        for item in good:
            (stored if res.collateral.put_newer(tx, item, "import", at) else older).append(item.name)
        if stored:
            told = f"{len(stored)} pieces of collateral: {', '.join(stored)}"
            tx.audit.append(operator.event("collateral_import", detail=told[:1000]), at)
        return CollateralImported(stored=stored, older=older, refused=refused)

    return await res.store.write(work)


async def refresh(*, res: Res, operator: OperatorDep) -> CollateralRefreshed:
    """Ask vendors again for what is kept.

    As far as they may be asked again; the answer does not wait for all of it.
    """
    if not res.settings.collateral_fetch:
        return CollateralRefreshed(asked=0, fetching=False)
    at = res.clock.now()

    def work(tx: Tx) -> Sequence[str]:
        tx.audit.append(operator.event("collateral_refresh"), at)
        return tx.collateral.hurry(at)

    names = await res.store.write(work)
    await res.collateral.fetch(names, wait_seconds=ASKING_SECONDS)
    return CollateralRefreshed(asked=len(names), fetching=True)
