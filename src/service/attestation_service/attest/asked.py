"""What an attestation answers, and what of it is appraised."""

from __future__ import annotations

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


class Gathered(NamedTuple):
    """What came of one kind, and what it is compared with.

    Attributes:
        evidence: As the kind parsed it; None where none came.
        expected: As the kind wants it.
        besides: What is kept besides, where the service keeps more of this kind than its state.
    """

    evidence: Any
    expected: Any
    besides: Any = None
