"""Routes of the extension `disk_kms` that the dashboard asks for: holds, releases, and names of keys."""

# These functions are declarations: nothing runs them.
# mypy: disable-error-code="empty-body"
from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Final, Literal

from attestation.api import PendingApproval
from attestation.api.base import Wire
from attestation.api.operation import operation

if TYPE_CHECKING:
    from attestation.api import ProposalDetail
    from attestation.client import OperatorClient
    from attestation.client.agreement import Vote

NAME = "disk_kms"
MOST_USES = 8
"""Disk keys of one release."""


class KMSHold(Wire):
    """A machine, or all machines of a cluster, that get no disk key without an operator."""

    scope: Literal["machine", "cluster"]
    subject: str
    placed_at: datetime
    placed_by: str


class KMSWaiting(Wire):
    """A machine that is held and asked for its disk key."""

    machine_id: str
    source_ip: str
    first_at: datetime
    last_at: datetime
    uses: int
    released_until: datetime | None
    released_by: str | None


class KMSHolds(Wire):
    """What is held, and who waits."""

    holds: list[KMSHold]
    waiting: list[KMSWaiting]


class KMSKey(Wire):
    """A key of a machine; the newest that is not retired seals."""

    key_id: str
    created_at: datetime
    retired_at: datetime | None


class KMSKeys(Wire):
    """The keys of a machine, the newest first."""

    machine_id: str
    keys: list[KMSKey]


class KMSHoldRequest(Wire):
    """Hold a machine."""

    scope: Literal["machine", "cluster"]
    subject: str


class KMSReleaseRequest(Wire):
    """Let a machine that waits have disk keys."""

    uses: int


class KMS:
    """What is asked of it."""

    @operation("disk_kms_holds", "GET /kms/holds")
    def holds(self) -> KMSHolds:
        """List what is held, and who waits."""

    @operation("disk_kms_keys", "GET /kms/machines/{machine_id}/keys")
    def keys(self, machine_id: str) -> KMSKeys:
        """List the disk keys of a machine."""

    @operation("disk_kms_hold", "POST /kms/holds")
    def hold(self, request: KMSHoldRequest) -> KMSHolds:
        """Hold a machine."""

    @operation("disk_kms_unhold", "POST /kms/holds/{scope}/{subject}/end")
    def unhold(self, scope: str, subject: str) -> KMSHolds | PendingApproval:
        """End a hold."""

    @operation("disk_kms_release", "POST /kms/machines/{machine_id}/release")
    def release(self, machine_id: str, request: KMSReleaseRequest) -> KMSWaiting | PendingApproval:
        """Let a machine that waits have its disk key."""


def _agree_to_release(client: OperatorClient, proposal: ProposalDetail) -> KMSWaiting | PendingApproval:
    uses = proposal.proposal["terms"]["uses"]
    return client.ask(KMS.release, proposal.machine_id or "", KMSReleaseRequest(uses=uses))


def _agree_to_unhold(client: OperatorClient, proposal: ProposalDetail) -> KMSHolds | PendingApproval:
    terms = proposal.proposal["terms"]
    return client.ask(KMS.unhold, terms["scope"], terms["subject"])


VOTES: Final[Mapping[str, Vote]] = {
    f"{NAME}.release": _agree_to_release,
    f"{NAME}.unhold": _agree_to_unhold,
}
"""How its acts are agreed to, by their kind."""
