"""Accounts (RFC 8555, 7.3): made, looked at, changed, given another key, ended."""

# Algorithms for: acme-account
from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from typing import Any, Final

from attestation.algorithms import CryptoPolicy
from attestation.errors import RateLimited
from attestation.store import ACMEAccount, RateLimit, Tx
from attestation_service.acme import nonces
from attestation_service.acme.asked import Answer, Asked
from attestation_service.acme.jose import is_mac, parse_inner, parse_key
from attestation_service.acme.problems import Refused
from attestation_service.border.networks import network_of, site_of
from attestation_service.resources import Resources

MAX_CONTACTS: Final = 4
MAX_CONTACT_CHARACTERS: Final = 254
MOST_UNBOUND: Final = 1_000
"""So many accounts may be made by whoever comes (`ITL_ACME=open`). More need keys of operators."""
FULL_SECONDS: Final = 3600
UNBOUND: Final = RateLimit(requests=100, per_seconds=86_400)
"""Of them so many from one network, or all of a site of IPv6: one stranger leaves room for others."""
KEY_CHANGES: Final = RateLimit(requests=10, per_seconds=86_400)
"""Of one account: each stands in the audit for ever."""
_PURPOSE: Final = b"itl-acme-external-account/v1"


def external_key(res: Resources, key_id: str) -> bytes:
    """Return the key, 32 bytes, with which the holder of *key_id* makes an account; it is derived each time.

    Raises:
        SignerUnavailable: The service's key gives nothing to derive from.
    """
    return hmac.digest(nonces.secret_of(res, _PURPOSE), key_id.encode("ascii"), hashlib.sha256)


async def new_account(asked: Asked) -> Answer:
    """Make an account for the key that signed, or find the one that it has.

    RFC 8555 §7.3. Where ITL_ACME is `bound`, a key for an external account of an operator is needed.
    """
    body = asked.signed.members()
    found = await asked.res.store.read(lambda tx: tx.acme.account_by_key(asked.key.thumbprint))
    if found is not None:
        return _shown(asked, _usable(found))
    if body.get("onlyReturnExisting") is True:
        raise Refused("accountDoesNotExist", "this key has no account")
    contact = _contact(body)
    key_id = _external(asked, body.get("externalAccountBinding"))

    def work(tx: Tx) -> ACMEAccount | None:
        if tx.acme.account_by_key(asked.key.thumbprint) is not None:
            return None
        made = _make(tx, asked, contact, key_id)
        tx.acme.add_account(made)
        bound = f", key {key_id}" if key_id else ""
        detail = f"account {made.account_id}, key thumbprint {made.thumbprint}{bound}"
        tx.audit.append(asked.event("acme_account_created", detail, machine_id=made.machine_id), asked.at)
        return made

    made = await asked.res.store.write(work)
    if made is not None:
        return _shown(asked, made, created=True)
    # Another request with the same key came between: the account is that one's.
    other = await asked.res.store.read(lambda tx: tx.acme.account_by_key(asked.key.thumbprint))
    assert other is not None
    return _shown(asked, _usable(other))


def _make(tx: Tx, asked: Asked, contact: str, key_id: str | None) -> ACMEAccount:
    account_id = secrets.token_hex(16)
    machine_id = None
    if key_id is not None:
        # Single use: the second of two racers fails here.
        if not tx.acme.spend_key(key_id, account_id, asked.at):
            raise Refused("unauthorized", "this key for an external account makes none any more")
        key = tx.acme.key(key_id)
        assert key is not None
        machine_id = key.machine_id
    elif tx.acme.count_unbound() >= MOST_UNBOUND:
        raise RateLimited(
            f"there are {MOST_UNBOUND} accounts without a key of an operator",
            retry_after_seconds=FULL_SECONDS,
        )
    else:
        place = site_of(asked.origin.address) or network_of(asked.origin.address)
        asked.count(tx, "accounts", place, UNBOUND)
    return ACMEAccount(
        account_id=account_id,
        thumbprint=asked.key.thumbprint,
        jwk=asked.key.text,
        contact=contact,
        status="valid",
        key_id=key_id,
        machine_id=machine_id,
        created_at=asked.at,
    )


def _external(asked: Asked, value: object) -> str | None:
    """Return which key of an operator vouches for the account (RFC 8555, 7.3.4); None where none has to.

    Raises:
        Refused: None does.
    """
    if value is None:
        if asked.res.settings.acme == "bound":
            raise Refused(
                "externalAccountRequired", "an account needs externalAccountBinding; ask an operator"
            )
        return None
    inner = parse_inner(value)
    # 1. For this resource, and about the key that signed the request around it: otherwise it could be replayed for
    #    another account.
    if inner.word("url") != asked.signed.word("url") or "nonce" in inner.header:
        raise Refused("malformed", "externalAccountBinding is for another url, or has a nonce")
    if (
        parse_key(inner.members(), CryptoPolicy(asked.res.settings.crypto_policy)).thumbprint
        != asked.key.thumbprint
    ):
        raise Refused("malformed", "externalAccountBinding is about another key than the account's")
    # 2. By the key that its name derives. Whether it still makes an account, the unit finds out that spends it.
    key_id = inner.word("kid")
    if not is_mac(external_key(asked.res, key_id), inner):
        raise Refused("unauthorized", "externalAccountBinding was not made with the key that it names")
    return key_id


async def account(asked: Asked) -> Answer:
    """Look at an account, change its contacts, or end it.

    RFC 8555 §7.3.2, §7.3.6. One that has ended asks for nothing any more; its certificates stay.
    """
    holder = _own(asked)
    if asked.is_look:
        return _shown(asked, holder)
    body = asked.signed.members()
    if (status := body.get("status")) is not None and status != "deactivated":
        raise Refused("malformed", "an account can be given the status deactivated, and no other")
    contact = _contact(body) if "contact" in body else None

    def work(tx: Tx) -> ACMEAccount:
        if contact is not None:
            tx.acme.set_contact(holder.account_id, contact)
        if status is not None and tx.acme.end_account(holder.account_id, "deactivated", asked.at):
            detail = f"account {holder.account_id}: deactivated by its holder"
            tx.audit.append(asked.event("acme_account_ended", detail, machine_id=holder.machine_id), asked.at)
        now = tx.acme.account(holder.account_id)
        assert now is not None
        return now

    return _shown(asked, await asked.res.store.write(work))


async def orders(asked: Asked) -> Answer:
    """List the newest orders of an account.

    RFC 8555 §7.1.2.1. At most a hundred; orders go a day after their end.
    """
    holder = _own(asked)
    found = await asked.res.store.read(lambda tx: tx.acme.orders_of(holder.account_id, 100))
    return Answer(body={"orders": [asked.url(f"orders/{each.order_id}") for each in found]})


async def key_change(asked: Asked) -> Answer:
    """Give an account another key (RFC 8555, 7.3.5).

    Its holder agrees by the old key and the new one. An order whose challenge the old key answered is over.
    """
    inner = parse_inner(asked.signed.members())
    if "kid" in inner.header or "nonce" in inner.header or inner.word("url") != asked.signed.word("url"):
        raise Refused("malformed", "the inner JWS has jwk and the url of the outer one, and no nonce")
    # 1. The holder of the new key agrees: otherwise somebody's key could be taken for an account of another.
    policy = CryptoPolicy(asked.res.settings.crypto_policy)
    new = parse_key(inner.header.get("jwk"), policy)
    new.verify(inner)
    # 2. To be that of this account, in place of this key.
    body = inner.members()
    if body.get("account") != asked.url(f"accounts/{asked.holder.account_id}"):
        raise Refused("malformed", "the inner JWS is about another account")
    if parse_key(body.get("oldKey"), policy).thumbprint != asked.key.thumbprint:
        raise Refused("malformed", "oldKey is not the key of the account")

    def work(tx: Tx) -> ACMEAccount:
        if (other := tx.acme.account_by_key(new.thumbprint)) is not None:
            raise Refused(
                "conflict",
                "the new key has an account",
                {"Location": asked.url(f"accounts/{other.account_id}")},
            )
        asked.count(tx, "key changes", asked.holder.account_id, KEY_CHANGES)
        if not tx.acme.change_key(asked.holder, new.thumbprint, new.text):
            raise Refused("unauthorized", "the account was changed meanwhile")
        detail = f"account {asked.holder.account_id}: key thumbprint {new.thumbprint}"
        machine_id = asked.holder.machine_id
        tx.audit.append(asked.event("acme_key_changed", detail, machine_id=machine_id), asked.at)
        now = tx.acme.account(asked.holder.account_id)
        assert now is not None
        return now

    return _shown(asked, await asked.res.store.write(work))


def _own(asked: Asked) -> ACMEAccount:
    if asked.in_path["account_id"] != asked.holder.account_id:
        raise Refused("unauthorized", "this is another account than the one that asks")
    return asked.holder


def _usable(found: ACMEAccount) -> ACMEAccount:
    if found.status != "valid":
        raise Refused("unauthorized", f"the account of this key is {found.status}")
    return found


def _contact(body: dict[str, Any]) -> str:
    found = body.get("contact", [])
    if not isinstance(found, list) or len(found) > MAX_CONTACTS:
        raise Refused("invalidContact", f"contact is a list of at most {MAX_CONTACTS} addresses")
    for each in found:
        if not isinstance(each, str) or not each.startswith("mailto:"):
            raise Refused("unsupportedContact", "a contact is a mailto: URL")
        address = each.removeprefix("mailto:")
        if (
            len(each) > MAX_CONTACT_CHARACTERS
            or "@" not in address
            or not address.isprintable()
            or set("?,") & set(address)
        ):
            raise Refused("invalidContact", "a contact is one address of mail, without header fields")
    return json.dumps(found)


def _shown(asked: Asked, found: ACMEAccount, *, created: bool = False) -> Answer:
    place = asked.url(f"accounts/{found.account_id}")
    body = {"status": found.status, "contact": json.loads(found.contact), "orders": f"{place}/orders"}
    return Answer(body=body, status=201 if created else 200, headers={"Location": place})
