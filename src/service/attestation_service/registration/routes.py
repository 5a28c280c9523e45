"""HTTP of introduction and activation."""

from __future__ import annotations

from attestation.api import IntroduceRequest, IntroduceResponse, RegisterRequest
from attestation.api.operations import NodeAPI
from attestation_service.context.request import From
from attestation_service.registration import handlers
from attestation_service.resources import Res
from attestation_service.routing.openapi import machine_router, route

router = machine_router("node: registration")


async def self_register(request: IntroduceRequest, *, res: Res, origin: From) -> IntroduceResponse:
    """Introduce a machine.

    Answer with a credential only the introduced TPM can open; nothing but the challenge is stored.
    """
    return await handlers.introduce(request, res=res, origin=origin)


async def register(request: RegisterRequest, *, res: Res, origin: From) -> IntroduceResponse:
    """Introduce a machine, with an operator's registration token if it has one.

    As `self-register`; the token is spent by the activation.
    """
    return await handlers.introduce(request, res=res, origin=origin)


route(router, NodeAPI.self_register, "machine", self_register, omit="unset")
route(router, NodeAPI.register, "machine", register, omit="unset")
route(router, NodeAPI.activate, "machine", handlers.activate, omit="unset")
route(router, NodeAPI.tee_activate, "machine", handlers.tee_activate, omit="unset", logs=True)
