"""What an attestation answers, and what of it is appraised."""

from __future__ import annotations

from datetime import datetime
from typing import Any, NamedTuple

from attestation.api import AttestRequest
from attestation.machines import Machine
from attestation.reference import Policy
from attestation.store import Challenge, Tx
from attestation_service.resources import Resources


class Asked(NamedTuple):
    """One attestation, before anything of it is believed."""

    tx: Tx
    request: AttestRequest
    machine: Machine
    policy: Policy
    challenge: Challenge
    res: Resources
    at: datetime


Gathered = tuple[Any, Any, Any]
"""Of one kind: the evidence as parsed, or None; what is expected of it; what is kept besides its state, or None."""
