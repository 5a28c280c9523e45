"""What ITL_KUBERNETES_CLUSTERS says: whose controllers may ask, and by which rules requests of nodes are judged.

A JSON list, in the variable itself or in a file that it names. What is wrong stops the start, in words.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from attestation.api.base import ClusterId
from attestation.api.node_csr import KUBELET_CLIENT, NODE_CLIENT
from attestation.api.said import said

AUDIENCE: Final = "itl-attestation"
"""What a controller's token must be for, and for nobody else."""

MAX_BYTES: Final = 1 << 20

ServiceAccountName = Annotated[
    str,
    Field(
        pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?:[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$",
        description="namespace:name",
    ),
]


class ControllerDuty(StrEnum):
    """What a ServiceAccount of a cluster is here; each opens its own routes and no others."""

    APPROVER = "attestation-approver"
    SIGNER = "attestation-signer"
    CONTROLLER = "attestation-controller"
    RUNS = "attestation-runs"
    RUN_AGENT = "attestation-run-agent"
    """Of the agents on the nodes: all have one ServiceAccount, and each token says on which node it is good."""
    HSM = "attestation-hsm"
    """Of the controller that has CA keys on its tokens."""


class KeyMode(StrEnum):
    """Where the key of a node may live."""

    RESIDENT = "tpm-resident"
    EXTERNAL = "certified-external"


class ClusterRule(BaseModel):
    """One cluster."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    cluster_id: ClusterId
    issuer: Annotated[str, Field(min_length=1, max_length=2048, pattern=r"^[!-~]+$")]
    jwks: dict[str, object] | None = None
    jwks_file: Path | None = None
    jwks_url: Annotated[str, Field(pattern=r"^https://[!-~]+$")] | None = None
    ca_file: Path | None = None
    service_accounts: Mapping[ControllerDuty, Annotated[tuple[ServiceAccountName, ...], Field(min_length=1)]]
    signers: Annotated[
        tuple[Literal["attestation.itl.io/node-client", "kubernetes.io/kube-apiserver-client-kubelet"], ...],
        Field(min_length=1),
    ] = (NODE_CLIENT, KUBELET_CLIENT)
    requester_groups: Annotated[tuple[str, ...], Field(min_length=1)] = ("system:bootstrappers",)
    key_modes: Annotated[tuple[KeyMode, ...], Field(min_length=1)] = (KeyMode.RESIDENT,)
    layouts: Annotated[tuple[Literal["itl-v1", "gke-v1"], ...], Field(min_length=1)] = ("itl-v1",)
    quote: Literal["required", "accepted"] = "required"
    bucket_nonces: bool = False
    identity: Annotated[str, Field(min_length=1, max_length=64)] = "machine"
    identity_anchors: Path | None = None
    membership: Annotated[str, Field(min_length=1, max_length=64)] = "machine"
    membership_options: Mapping[str, str] = Field(default_factory=dict)
    max_lifetime_seconds: Annotated[int, Field(ge=600, le=86_400)] = 86_400

    @model_validator(mode="after")
    def _one_source_of_keys(self) -> Self:
        if sum(each is not None for each in (self.jwks, self.jwks_file, self.jwks_url)) != 1:
            raise ValueError(
                "exactly one of jwks, jwks_file and jwks_url says by which keys tokens are signed"
            )
        if (self.ca_file is not None) != (self.jwks_url is not None):
            # Whoever answers in the place of the API server would name controllers: no CA of the system is asked.
            raise ValueError("jwks_url and ca_file belong together")
        return self

    @model_validator(mode="after")
    def _one_duty_each(self) -> Self:
        named = [name for names in self.service_accounts.values() for name in names]
        if len(set(named)) != len(named):
            # Who may approve must not be who signs: either alone gives nobody a certificate.
            raise ValueError("service_accounts: each ServiceAccount has one duty")
        return self

    def duty_of(self, service_account: str) -> ControllerDuty | None:
        """Return what `namespace:name` is here, or None."""
        return next((duty for duty, names in self.service_accounts.items() if service_account in names), None)


_CLUSTERS: Final = TypeAdapter(tuple[ClusterRule, ...])


def read_clusters(value: str) -> tuple[ClusterRule, ...]:
    """Read the setting: JSON, or the path of a file with it; empty: no clusters.

    Raises:
        ValueError: What is wrong, and where; never what stands there.
    """
    if not value.strip():
        return ()
    text = value
    if not value.lstrip().startswith("["):
        try:
            data = Path(value).read_bytes()[: MAX_BYTES + 1]
            text = data.decode("utf-8")
        except (OSError, UnicodeDecodeError) as e:
            raise ValueError(f"neither a JSON list nor a file that can be read: {type(e).__name__}") from None
    if len(text) > MAX_BYTES:
        raise ValueError(f"longer than {MAX_BYTES} bytes")
    try:
        found = _CLUSTERS.validate_python(_json(text))
    except ValidationError as e:
        faults = [f"{_place(error['loc'])}: {said(error)}" for error in e.errors()]
        raise ValueError("; ".join(faults)) from None
    for what, names in (
        ("cluster_id", [rule.cluster_id for rule in found]),
        ("issuer and keys", [_keys_of(rule) for rule in found]),
    ):
        if len(set(names)) != len(names):
            # Two clusters that nobody can tell apart: the controllers of one would speak for the other.
            raise ValueError(f"two clusters have the same {what}")
    return found


def _keys_of(rule: ClusterRule) -> str:
    keys = json.dumps(rule.jwks, sort_keys=True) if rule.jwks else str(rule.jwks_file or rule.jwks_url)
    return f"{rule.issuer} {keys}"


def _json(text: str) -> object:
    def once(pairs: list[tuple[str, object]]) -> dict[str, object]:
        found = dict(pairs)
        if len(found) != len(pairs):
            raise ValueError("a member stands twice")
        return found

    try:
        return json.loads(text, object_pairs_hook=once)
    except RecursionError:
        raise ValueError("not JSON: too deep") from None
    except json.JSONDecodeError as e:
        raise ValueError(f"not JSON: {e.msg} at line {e.lineno}") from None


def _place(location: tuple[int | str, ...]) -> str:
    return ".".join(map(str, location)) or "the list"
