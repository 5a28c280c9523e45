"""Orders and their authorizations (RFC 8555, 7.4 and 7.5): which machine an identifier means, and who may ask for it.

An order has one identifier, and its authorization one challenge:

    permanent-identifier   the machine's id      device-attest-01: its TPM certifies the key; a client certificate
    dns                    its host name         http-01: what answers there knows; a server certificate

Whether there is such a machine is told when an order is made, as operators gave out the keys of accounts. How it
stands, only whoever answered the challenge learns.
"""

from __future__ import annotations

import json
import re
import secrets
from datetime import datetime, timedelta
from typing import Any, Final

from attestation.clock import rfc3339
from attestation.errors import RateLimited, RequestInvalid
from attestation.machines import Machine
from attestation.machines.names import canonical_hostname, names_of
from attestation.store import ACMEOrder, RateLimit, Tx
from attestation.wire import b64url_encode
from attestation_service.acme.asked import Answer, Asked
from attestation_service.acme.problems import PREFIX, Refused
from attestation_service.resources import Resources

LIFETIME: Final = timedelta(hours=1)
MOST_OPEN: Final = 20
"""So many orders of one account may wait for something at a time."""
ORDERS: Final = RateLimit(requests=600, per_seconds=3_600)
"""Of one account, those that it gave up too: each is kept for a day, and one that was answered is in the audit."""
DEACTIVATED: Final = json.dumps({"type": f"{PREFIX}unauthorized", "detail": "deactivated by its account"})
_NUMBER: Final = r"(?:0|[1-9][0-9]*)"
_PERMANENT: Final = re.compile(rf"[^/]+(?:/(?:[01]\.[1-3]?[0-9]|2\.{_NUMBER})(?:\.{_NUMBER})*)?")
"""`permanent-identifier-value` of the draft, section 3.1."""
CHALLENGES: Final = {"permanent-identifier": "device-attest-01", "dns": "http-01"}


async def new_order(asked: Asked) -> Answer:
    """Order a certificate for one identifier: a machine's id, or its host name.

    RFC 8555 §7.4. `permanent-identifier` is proven by `device-attest-01`, `dns` by `http-01`.
    """
    body = asked.signed.members()
    if "notBefore" in body or "notAfter" in body:
        raise Refused("malformed", "how long a certificate is good stands in the settings of the service")
    kind, value = _identifier(body.get("identifiers"), asked.res)
    holder, at = asked.holder, asked.at

    def work(tx: Tx) -> ACMEOrder:
        machine = _meant(tx, kind, value)
        if machine is None or holder.machine_id not in (None, machine.machine_id):
            # One answer for both: an account of one machine does not learn which others there are.
            raise Refused("rejectedIdentifier", "there is no such machine for this account")
        if tx.acme.count_open(holder.account_id, at) >= MOST_OPEN:
            raise RateLimited(f"the account has {MOST_OPEN} open orders", retry_after_seconds=600)
        asked.count(tx, "orders", holder.account_id, ORDERS)
        order = ACMEOrder(
            order_id=secrets.token_hex(16),
            account_id=holder.account_id,
            kind=kind,  # type: ignore[arg-type]  # one of the two
            value=value,
            machine_id=machine.machine_id,
            status="pending",
            token=b64url_encode(secrets.token_bytes(32)),
            created_at=at,
            expires_at=at + LIFETIME,
        )
        tx.acme.add_order(order)
        return order

    return shown(asked, await asked.res.store.write(work), status=201)


def _identifier(value: object, res: Resources) -> tuple[str, str]:
    """Return type and value of the one identifier of an order.

    Raises:
        Refused: None that is served here.
    """
    if not isinstance(value, list) or len(value) != 1 or not isinstance(value[0], dict):
        raise Refused("malformed", "an order here has exactly one identifier")
    kind, text = value[0].get("type"), value[0].get("value")
    if not isinstance(text, str) or not 0 < len(text) <= 253 or not text.isprintable():
        raise Refused("malformed", "an identifier has a type and a value")
    if kind == "permanent-identifier":
        if _PERMANENT.fullmatch(text) is None:
            raise Refused(
                "malformed", "a permanent identifier has no slash but the one before an assigner's OID"
            )
        return kind, text
    if kind != "dns" or not res.settings.acme_http_networks:
        what = "host names" if kind == "dns" else "identifiers of this type"
        raise Refused("unsupportedIdentifier", f"{what} are not served here")
    try:
        return kind, canonical_hostname(text)
    except RequestInvalid as e:
        raise Refused("rejectedIdentifier", str(e)) from e


def _meant(tx: Tx, kind: str, value: str) -> Machine | None:
    """Return the machine that an identifier means; None where it means none, or several."""
    if kind == "permanent-identifier":
        return tx.machines.by_id(value)
    called = tx.machines.namesakes(names_of(value, None), besides="")
    return tx.machines.by_id(called[0].machine_id) if len(called) == 1 else None


async def order(asked: Asked) -> Answer:
    """Look at an order.

    RFC 8555 §7.1.3.
    """
    return shown(asked, await asked.res.store.read(asked.own_order))


async def authorization(asked: Asked) -> Answer:
    """Look at the authorization of an order, or give it up.

    RFC 8555 §7.5. Each has one challenge.
    """
    found = await asked.res.store.read(asked.own_order)
    if not asked.is_look:
        if asked.signed.members() != {"status": "deactivated"}:
            raise Refused("malformed", "an authorization can be given the status deactivated, and no other")

        def work(tx: Tx) -> ACMEOrder:
            tx.acme.failed(found.order_id, DEACTIVATED)
            return asked.own_order(tx)

        found = await asked.res.store.write(work)
    status = _authorization_status(found, asked.at)
    body = {
        "identifier": {"type": found.kind, "value": found.value},
        "status": status,
        "expires": rfc3339(found.expires_at),
        "challenges": [challenge_of(asked, found)],
    }
    return Answer(body=body)


def _authorization_status(found: ACMEOrder, at: datetime) -> str:
    if found.error == DEACTIVATED:
        return "deactivated"
    if found.status == "pending":
        return "invalid" if found.expires_at <= at else "pending"
    if found.validated_at is None:
        return "invalid"
    return "expired" if found.expires_at <= at else "valid"


def challenge_of(asked: Asked, found: ACMEOrder) -> dict[str, Any]:
    """Return the challenge of an order, as its client sees it."""
    status = "pending" if found.status == "pending" else "valid" if found.validated_at else "invalid"
    body: dict[str, Any] = {
        "type": CHALLENGES[found.kind],
        "url": asked.url(f"challenges/{found.order_id}"),
        "status": status,
        "token": found.token,
    }
    if found.validated_at is not None:
        body["validated"] = rfc3339(found.validated_at)
    elif found.error is not None:
        body["error"] = json.loads(found.error)
    return body


def shown(asked: Asked, found: ACMEOrder, *, status: int = 200) -> Answer:
    """Return an order as its client sees it."""
    place = asked.url(f"orders/{found.order_id}")
    over = found.status in ("pending", "ready") and found.expires_at <= asked.at
    body: dict[str, Any] = {
        "status": "invalid" if over else found.status,
        "expires": rfc3339(found.expires_at),
        "identifiers": [{"type": found.kind, "value": found.value}],
        "authorizations": [asked.url(f"authorizations/{found.order_id}")],
        "finalize": f"{place}/finalize",
    }
    if found.error is not None:
        body["error"] = json.loads(found.error)
    if found.serials:
        body["certificate"] = asked.url(f"certificates/{found.order_id}/{found.serials.split()[0]}")
    return Answer(body=body, status=status, headers={"Location": place})
