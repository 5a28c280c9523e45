"""Settings of `attestation-operator runs` (CONFIDENTIAL.md §4)."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Final, Literal

from pydantic import Field, ValidationInfo, field_validator

from attestation.api.base import CLUSTER_ID_PATTERN
from attestation_operator.durations import parse_duration
from attestation_operator.settings import BoundSettings, LeaderSettings

_NAMESPACE: Final = "[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"


class RunSettings(LeaderSettings, BoundSettings):
    """What is chosen for the controller of attestation runs."""

    cluster_id: Annotated[str, Field(pattern=CLUSTER_ID_PATTERN)]
    """Name of this cluster at the service: `cluster_id` in its `ITL_KUBERNETES_CLUSTERS`."""

    cluster_name: Annotated[str, Field(min_length=1, max_length=253)] | None = None
    """Name of this cluster for people, in SecurityEvents; that of the service without."""

    result_ttl: str = "168h"
    """How long Results are kept: a Go duration of at least a minute."""

    seal_timeout: str = "72h"
    """How long after its end a run waits for its events and its sealed bundle: a Go duration of at least a minute."""

    seed_event_mapping: bool = False
    """Tell an undecided run as AttestationVerified/info, as the seed's operator does; trust is unaffected."""

    node_action: Literal["none", "label", "taint", "cordon"] = "none"
    """What a run under an AttestationPolicy that is enforced does to its Node."""

    node_action_namespaces: Annotated[
        str | None, Field(pattern=rf"^{_NAMESPACE}(,{_NAMESPACE})*$", max_length=4096, validate_default=True)
    ] = None
    """Namespaces whose runs act on Nodes, separated by commas; needed where `node_action` is not `none`."""

    node_verdict_max_age: str = "48h"
    """How long what a run did to its Node holds without a newer run: a Go duration of at least a minute."""

    @field_validator("result_ttl", "seal_timeout", "node_verdict_max_age")
    @classmethod
    def _ttl(cls, text: str) -> str:
        if not timedelta(minutes=1) <= parse_duration(text) <= timedelta(days=3660):
            raise ValueError("must be from 1m to ten years")
        return text

    @field_validator("node_action_namespaces")
    @classmethod
    def _whose_runs(cls, text: str | None, found: ValidationInfo) -> str | None:
        # A Node is everybody's, an AttestationPolicy is of whoever may write in its namespace.
        if text is None and found.data.get("node_action", "none") != "none":
            raise ValueError("must name the namespaces whose runs act on Nodes")
        return text

    @property
    def acts_for(self) -> frozenset[str]:
        """Namespaces whose runs act on Nodes."""
        return frozenset((self.node_action_namespaces or "").split(",")) - {""}

    @property
    def kept_for(self) -> timedelta:
        """How long Results are kept."""
        return parse_duration(self.result_ttl)

    @property
    def seals_for(self) -> timedelta:
        """How long what comes of a run is waited for."""
        return parse_duration(self.seal_timeout)

    @property
    def verdicts_for(self) -> timedelta:
        """How long what a run did to its Node holds."""
        return parse_duration(self.node_verdict_max_age)
