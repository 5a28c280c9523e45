"""Settings of `attestation-operator runs` (CONFIDENTIAL.md §4)."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Literal

from pydantic import Field, field_validator

from attestation.api.base import CLUSTER_ID_PATTERN
from attestation_operator.durations import parse_duration
from attestation_operator.settings import BoundSettings, LeaderSettings


class RunSettings(LeaderSettings, BoundSettings):
    """What is chosen for the controller of attestation runs."""

    cluster_id: Annotated[str, Field(pattern=CLUSTER_ID_PATTERN)]
    """Name of this cluster at the service: `cluster_id` in its `ITL_KUBERNETES_CLUSTERS`."""

    cluster_name: Annotated[str, Field(min_length=1, max_length=253)] | None = None
    """Name of this cluster for people, in SecurityEvents; that of the service without."""

    result_ttl: str = "168h"
    """How long Results are kept: a Go duration of at least a minute."""

    seed_event_mapping: bool = False
    """Tell an undecided run as AttestationVerified/info, as the seed's operator does; trust is unaffected."""

    node_action: Literal["none", "label", "taint", "cordon"] = "none"
    """What a run under an AttestationPolicy that is enforced does to its Node."""

    @field_validator("result_ttl")
    @classmethod
    def _ttl(cls, text: str) -> str:
        if not timedelta(minutes=1) <= parse_duration(text) <= timedelta(days=3660):
            raise ValueError("must be from 1m to ten years")
        return text

    @property
    def kept_for(self) -> timedelta:
        """How long Results are kept."""
        return parse_duration(self.result_ttl)
