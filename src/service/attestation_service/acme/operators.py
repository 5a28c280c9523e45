"""ACME in the hands of operators: who may make an account, which there are, what they asked for."""

from __future__ import annotations

import json
import secrets
from datetime import timedelta
from typing import Annotated

from fastapi import Path

from attestation.api import (
    ACMEAccountDetail,
    ACMEAccountPage,
    ACMEKeyDetail,
    ACMEKeyMade,
    ACMEKeyPage,
    ACMEKeyRequest,
    ACMEOrderDetail,
    ACMEOrderPage,
    ReasonRequest,
)
from attestation.errors import ACMEUnknown, TransitionForbidden
from attestation.store import ACMEAccount, ACMEKey, ACMEOrder, Tx
from attestation.wire import b64url_encode
from attestation_service.acme.accounts import external_key
from attestation_service.auth import OperatorDep
from attestation_service.resources import Res
from attestation_service.routing.parameters import Cursor, Limit

KeyId = Annotated[str, Path(pattern=r"^[0-9a-f]{16}$", description="What an ACME client calls kid")]
AccountId = Annotated[str, Path(pattern=r"^[0-9a-f]{32}$", description="As in the account's URL")]


async def make_key(request: ACMEKeyRequest, *, res: Res, operator: OperatorDep) -> ACMEKeyMade:
    """Make a key with which somebody may make one ACME account.

    The key is in this answer and nowhere else: it is derived from its name and the service's key.

    Raises:
        MachineUnknown: No such machine.
        SignerUnavailable: The service's key gives nothing to derive from.
    """
    at = res.clock.now()
    key = ACMEKey(
        key_id=secrets.token_hex(8),
        machine_id=request.machine_id,
        note=request.note,
        created_at=at,
        created_by=operator.cn,
        expires_at=at + timedelta(seconds=request.expires_in_seconds),
    )
    secret = external_key(res, key.key_id)

    def work(tx: Tx) -> None:
        if key.machine_id is not None:
            tx.machines.require(key.machine_id)
        tx.acme.add_key(key)
        detail = f"key {key.key_id} for an ACME account: {key.note}"
        tx.audit.append(operator.event("acme_key_made", machine_id=key.machine_id, detail=detail), at)

    await res.store.write(work)
    return ACMEKeyMade(hmac_key=b64url_encode(secret), **_key(key).model_dump())


async def keys(cursor: Cursor = None, limit: Limit = 50, *, res: Res) -> ACMEKeyPage:
    """List keys for ACME accounts, newest first, without the keys.

    Raises:
        RequestInvalid: A cursor that cannot be.
    """
    page = await res.store.scan(lambda tx: tx.acme.keys(cursor, limit))
    return ACMEKeyPage(items=list(map(_key, page.items)), next_cursor=page.next_cursor)


async def revoke_key(key_id: KeyId, *, res: Res, operator: OperatorDep) -> ACMEKeyDetail:
    """Let a key make no account any more.

    The account that it has made stays; that one is revoked by itself.

    Raises:
        ACMEUnknown: No such key.
        TransitionForbidden: It made its account, or was taken back before.
    """
    at = res.clock.now()

    def work(tx: Tx) -> ACMEKey:
        if tx.acme.key(key_id) is None:
            raise ACMEUnknown("there is no such key for ACME accounts")
        if not tx.acme.revoke_key(key_id, at):
            raise TransitionForbidden("the key has made its account, or was taken back before")
        tx.audit.append(operator.event("acme_key_revoked", detail=f"key {key_id} for an ACME account"), at)
        found = tx.acme.key(key_id)
        assert found is not None
        return found

    return _key(await res.store.write(work))


async def accounts(cursor: Cursor = None, limit: Limit = 50, *, res: Res) -> ACMEAccountPage:
    """List ACME accounts, newest first.

    Raises:
        RequestInvalid: A cursor that cannot be.
    """
    page = await res.store.scan(lambda tx: tx.acme.accounts(cursor, limit))
    return ACMEAccountPage(items=list(map(_account, page.items)), next_cursor=page.next_cursor)


async def revoke_account(
    account_id: AccountId, request: ReasonRequest, *, res: Res, operator: OperatorDep
) -> ACMEAccountDetail:
    """End an ACME account for good.

    It asks for nothing any more. Certificates that it has stay; they are revoked each by itself.

    Raises:
        ACMEUnknown: No such account.
        TransitionForbidden: It has ended before.
    """
    at = res.clock.now()

    def work(tx: Tx) -> ACMEAccount:
        if tx.acme.account(account_id) is None:
            raise ACMEUnknown("there is no such ACME account")
        if not tx.acme.end_account(account_id, "revoked", at):
            raise TransitionForbidden("the account has ended before")
        found = tx.acme.account(account_id)
        assert found is not None
        detail = f"account {account_id}: revoked: {request.reason}"
        tx.audit.append(operator.event("acme_account_ended", machine_id=found.machine_id, detail=detail), at)
        return found

    return _account(await res.store.write(work))


async def orders(cursor: Cursor = None, limit: Limit = 50, *, res: Res) -> ACMEOrderPage:
    """List ACME orders, newest first.

    Each goes a day after its end; what was issued stays in the list of certificates.

    Raises:
        RequestInvalid: A cursor that cannot be.
    """
    page = await res.store.scan(lambda tx: tx.acme.orders(cursor, limit))
    return ACMEOrderPage(items=list(map(_order, page.items)), next_cursor=page.next_cursor)


def _key(found: ACMEKey) -> ACMEKeyDetail:
    return ACMEKeyDetail(**{name: getattr(found, name) for name in ACMEKeyDetail.model_fields})


def _account(found: ACMEAccount) -> ACMEAccountDetail:
    members = {name: getattr(found, name) for name in ACMEAccountDetail.model_fields}
    return ACMEAccountDetail(**members | {"contact": json.loads(found.contact)})


def _order(found: ACMEOrder) -> ACMEOrderDetail:
    return ACMEOrderDetail(
        order_id=found.order_id,
        account_id=found.account_id,
        identifier_type=found.kind,
        identifier=found.value,
        machine_id=found.machine_id,
        status=found.status,
        error=None if found.error is None else json.loads(found.error)["detail"],
        created_at=found.created_at,
        expires_at=found.expires_at,
        validated_at=found.validated_at,
        serials=found.serials.split(),
    )
