"""Evidence for keys that CA keys are wrapped for."""

# ruff: noqa: ARG001 -- its parts are being built
from __future__ import annotations

from typing import Annotated

from fastapi import Path

from attestation.api import QuoteAttestationPut, QuoteJudge, QuoteStep, QuoteStepRecorded, QuoteVerdict
from attestation.api.node_csr import ObjectUID
from attestation.errors import Unavailable
from attestation_service.auth import ControllerDep
from attestation_service.resources import Res

QuoteUID = Annotated[ObjectUID, Path(description="`metadata.uid` of the QuoteAttestation")]


async def put(uid: QuoteUID, request: QuoteAttestationPut, *, res: Res, who: ControllerDep) -> QuoteVerdict:
    """Have the evidence of a QuoteAttestation judged."""
    raise Unavailable("this part of the service is being built")


async def step(uid: QuoteUID, request: QuoteStep, *, res: Res, who: ControllerDep) -> QuoteStepRecorded:
    """Write down what became of the key that a QuoteAttestation asked for."""
    raise Unavailable("this part of the service is being built")


async def judge(request: QuoteJudge, *, res: Res) -> QuoteVerdict:
    """Have an envelope judged, without Kubernetes; nothing is kept of it."""
    raise Unavailable("this part of the service is being built")
