"""What an operator at a console says of a code that it shows.

An approval binds that operator to what the machine says of its hardware. It proves presence, and no TPM: no policy
and no minimum of assurance counts it, and nothing is released on it (docs/adr/0199).
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated, Any, Final, Literal

from fastapi import Path

from attestation.api import ConsoleCodeDetail, ConsoleCodePage, ConsoleCodeShown
from attestation.errors import ConsoleCodeDecided, ConsoleCodeExpired, ConsoleCodeUnknown
from attestation.machines.console_code import PATTERN
from attestation.store import ConsoleCode, RateLimit, Tx
from attestation_service.auth import OperatorDep
from attestation_service.border import limits
from attestation_service.context.identity import Operator
from attestation_service.resources import Res, Resources
from attestation_service.routing.parameters import Cursor, Limit

KEPT: Final = timedelta(days=30)
"""For so long what was decided can be looked at; the audit keeps it for good."""
WRONG_CODES: Final = RateLimit(requests=10, per_seconds=60)
"""Of one operator: whoever mistypes has enough, whoever guesses has one chance in two and a half million a minute."""

Code = Annotated[str, Path(pattern=PATTERN, description="As the console shows it")]


async def list_codes(cursor: Cursor = None, limit: Limit = 50, *, res: Res) -> ConsoleCodePage:
    """List codes that machines show on their consoles, newest first.

    What nobody decided about goes an hour after its end, what was decided after thirty days.

    Raises:
        RequestInvalid: A cursor that cannot be.
    """
    at = res.clock.now()
    page = await res.store.read(lambda tx: tx.console_codes.page(cursor, limit))
    return ConsoleCodePage(
        items=[ConsoleCodeDetail(**_members(each, at)) for each in page.items], next_cursor=page.next_cursor
    )


async def show(code: Code, *, res: Res, operator: OperatorDep) -> ConsoleCodeShown:
    """Return what is known of the machine that shows a code.

    With who else says the same of their hardware: a machine may claim the UUID of another one.

    Raises:
        ConsoleCodeUnknown: No console shows this code.
        RateLimited: Too many wrong codes.
    """
    at = res.clock.now()
    async with limits.CountRefusals(res.store, _guesses(operator, res), at):
        return await res.store.read(lambda tx: _shown(tx, _known(tx, code, operator, res, at), at))


async def approve(code: Code, *, res: Res, operator: OperatorDep) -> ConsoleCodeShown:
    """Say that one stands before the machine that shows a code.

    It binds the operator to what the machine says of its hardware, and the machine gets a token that releases nothing.

    Raises:
        ConsoleCodeUnknown: No console shows this code.
        ConsoleCodeDecided: It was approved or denied before.
        ConsoleCodeExpired: It was there too long ago.
        RateLimited: Too many wrong codes.
    """
    return await _decide(code, "approved", res, operator)


async def deny(code: Code, *, res: Res, operator: OperatorDep) -> ConsoleCodeShown:
    """Refuse a code for good: nobody stands there, or it is not the machine that it says.

    Raises:
        ConsoleCodeUnknown: No console shows this code.
        ConsoleCodeDecided: It was approved or denied before.
        ConsoleCodeExpired: It was there too long ago.
        RateLimited: Too many wrong codes.
    """
    return await _decide(code, "denied", res, operator)


async def _decide(
    code: str, state: Literal["approved", "denied"], res: Resources, operator: Operator
) -> ConsoleCodeShown:
    at = res.clock.now()

    def work(tx: Tx) -> ConsoleCodeShown:
        found = _known(tx, code, operator, res, at)
        # One statement decides: of two operators at once, and at the end of its time, exactly one outcome is true.
        if not tx.console_codes.decide(code, state, by=operator.cn, at=at, kept_until=at + KEPT):
            if found.state == "pending":
                raise ConsoleCodeExpired("the code has expired; the machine shows another one")
            raise ConsoleCodeDecided(f"the code was {found.state} by {found.decided_by}")
        if state == "approved":
            tx.audit.append(operator.event("console_approved", detail=_told(found)), at)
        else:
            tx.audit.append(operator.event("console_denied", detail=_told(found)), at)
        after = tx.console_codes.get(code)
        assert after is not None
        return _shown(tx, after, at)

    async with limits.CountRefusals(res.store, _guesses(operator, res), at):
        return await res.store.write(work)


def _guesses(operator: Operator, res: Resources) -> limits.Limits:
    if not res.settings.rate_limits:
        return ()
    return (limits.Counted(f"console-guess:{operator.sub or operator.cn}", WRONG_CODES, "wrong codes"),)


def _known(tx: Tx, code: str, operator: Operator, res: Resources, at: datetime) -> ConsoleCode:
    if not res.settings.console_approval:
        raise ConsoleCodeUnknown(
            "no console shows a code: console approval is off here (ITL_CONSOLE_APPROVAL)"
        )
    limits.check(tx, _guesses(operator, res), at)
    found = tx.console_codes.get(code)
    if found is None:
        raise ConsoleCodeUnknown("no console shows this code, or it did so too long ago")
    return found


def _told(code: ConsoleCode) -> str:
    said = {"uuid": code.hw_uuid, "mac": code.hw_mac, "serial": code.hw_serial, "hostname": code.hostname}
    parts = [f"{name} {value}" for name, value in said.items() if value is not None]
    return f"tier console, code {code.user_code}, asked for by {code.source}, which says: {', '.join(parts)}"


def _shown(tx: Tx, code: ConsoleCode, at: datetime) -> ConsoleCodeShown:
    machines, others = tx.console_codes.alike(code, at)
    return ConsoleCodeShown(**_members(code, at), machines=machines, other_codes=others)


def _members(code: ConsoleCode, at: datetime) -> dict[str, Any]:
    return {
        "code": code.user_code,
        "state": "expired" if code.state == "pending" and at >= code.expires_at else code.state,
        "client_id": code.client_id,
        "hw_uuid": code.hw_uuid,
        "hw_mac": code.hw_mac,
        "hw_serial": code.hw_serial,
        "hostname": code.hostname,
        "source_ip": code.source,
        "asked_at": code.asked_at,
        "expires_at": code.expires_at,
        "decided_at": code.decided_at,
        "decided_by": code.decided_by,
        "token_source_ip": code.token_source,
    }
