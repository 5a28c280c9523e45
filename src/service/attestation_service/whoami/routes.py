"""Whom the service takes the caller for, and what they may: asked before anything is tried and refused."""

from __future__ import annotations

from attestation.api import WhoAmI
from attestation.api.operations import OperatorAPI
from attestation_service.auth import OperatorDep, Right
from attestation_service.routing.openapi import operator_router, route

router = operator_router("operator: access")


async def whoami(operator: OperatorDep) -> WhoAmI:
    """Tell who the caller is, and what they may.

    For everybody who may do anything here; it looks nothing up and leaves no trace but break-glass's own.
    """
    rights = [each for each in Right if each is not Right.KNOWN and operator.reach(each) != frozenset()]
    return WhoAmI(
        name=operator.cn,
        subject=operator.sub,
        method=operator.method.value,
        roles=sorted(
            [
                *(duty.value for duty in operator.duties),
                *(f"{duty.value}:{cluster}" for duty, cluster in operator.within),
            ]
        ),
        rights=[right.value for right in rights],
        clusters={
            right.value: sorted(reach) for right in rights if (reach := operator.reach(right)) is not None
        },
    )


route(router, OperatorAPI.whoami, "known", whoami, reach="any")
