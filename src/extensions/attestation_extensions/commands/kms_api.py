"""The routes of disk_kms as the command line asks for them (`attestation_cli.plugin`)."""

# These functions are declarations: nothing runs them.
# mypy: disable-error-code="empty-body"
from __future__ import annotations

from attestation.extension import PendingApproval
from attestation_cli.plugin import operation
from attestation_extensions.disk_kms import wire


class KMS:
    """What an operator asks of it."""

    @operation("disk_kms_holds", "GET /kms/holds")
    def holds(self) -> wire.KMSHolds:
        """List what is held, and who waits."""

    @operation("disk_kms_hold", "POST /kms/holds")
    def hold(self, request: wire.KMSHoldRequest) -> wire.KMSHolds:
        """Hold a machine or a cluster."""

    @operation("disk_kms_unhold", "POST /kms/holds/{scope}/{subject}/end")
    def unhold(self, scope: str, subject: str) -> wire.KMSHolds | PendingApproval:
        """End a hold."""

    @operation("disk_kms_release", "POST /kms/machines/{machine_id}/release")
    def release(self, machine_id: str, request: wire.KMSReleaseRequest) -> wire.KMSWaiting | PendingApproval:
        """Let a machine that waits have its disk key."""

    @operation("disk_kms_rewrap", "POST /kms/rewrap")
    def rewrap(self) -> wire.KMSRewrapped:
        """Bring keys under the newest KEK."""

    @operation("disk_kms_keys", "GET /kms/machines/{machine_id}/keys")
    def keys(self, machine_id: str) -> wire.KMSKeys:
        """List the keys of a machine."""

    @operation("disk_kms_rotate", "POST /kms/machines/{machine_id}/rotate")
    def rotate(self, machine_id: str) -> wire.KMSKeys:
        """Let a new key seal."""

    @operation("disk_kms_retire", "POST /kms/machines/{machine_id}/keys/{key_id}/retire")
    def retire(self, machine_id: str, key_id: str) -> wire.KMSKeys:
        """Let a key open nothing any more."""
